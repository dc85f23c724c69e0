//! Replies of the protocol as JSON.
//!
//! The forms are those of Upstash's REST interface
//! (<https://upstash.com/docs/redis/features/restapi>): `{"result": …}` or `{"error": "…"}`, strings
//! in Base64 if asked for; and of Webdis (<https://github.com/nicolasff/webdis>).

use super::answer::Denial;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The bytes are no reply.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Finds the end of replies in bytes that arrive in parts.
#[derive(Debug)]
pub(super) struct ReplyScan {
    /// End of the values that were found.
    at: usize,
    /// Number of values that are still missing.
    left: u64,
    /// Bytes up to which the next value is known to go.
    until: usize,
}

/// First line of a value.
struct Head<'a> {
    kind: u8,
    line: &'a [u8],
    /// Length of the line with its end.
    len: usize,
}

fn head(data: &[u8]) -> Option<Head<'_>> {
    let (&kind, rest) = data.split_first()?;
    let end = memchr::memchr(b'\n', rest)?;
    Some(Head { kind, line: rest[..end].trim_ascii_end(), len: end + 2 })
}

impl Head<'_> {
    fn number(&self) -> Option<i64> {
        std::str::from_utf8(self.line).ok()?.parse().ok()
    }

    /// Returns the number of bytes behind the line, without their own end of line; `None` if there
    /// are none.
    fn bytes(&self) -> Result<Option<usize>, Malformed> {
        match self.kind {
            b'$' | b'=' | b'!' => Ok(usize::try_from(self.number().ok_or(Malformed)?).ok()),
            _ => Ok(None),
        }
    }

    /// Returns the number of values that follow as parts of this one.
    fn parts(&self) -> Result<Option<u64>, Malformed> {
        let factor = match self.kind {
            b'*' | b'~' | b'>' => 1,
            b'%' => 2,
            b'+' | b'-' | b':' | b'$' | b'_' | b'#' | b',' | b'(' | b'=' | b'!' => return Ok(None),
            _ => return Err(Malformed),
        };
        let number = self.number().ok_or(Malformed)?;
        Ok(u64::try_from(number).ok().map(|number| number.saturating_mul(factor)))
    }
}

impl ReplyScan {
    /// Looks for so many replies.
    pub(super) fn new(replies: usize) -> Self {
        Self { at: 0, left: replies as u64, until: 0 }
    }

    /// Returns true if all replies are in `data`, of which earlier calls saw a beginning.
    pub(super) fn find_end(&mut self, data: &[u8]) -> Result<bool, Malformed> {
        while self.left > 0 {
            if data.len() < self.until {
                return Ok(false);
            }
            let Some(head) = head(data.get(self.at..).unwrap_or_default()) else {
                return Ok(false);
            };
            let mut end = self.at + head.len;
            if let Some(bytes) = head.bytes()? {
                end = end.saturating_add(bytes).saturating_add(2);
                if data.len() < end {
                    self.until = end;
                    return Ok(false);
                }
            }
            self.left = (self.left - 1).saturating_add(head.parts()?.unwrap_or(0));
            self.at = end;
        }
        Ok(true)
    }

    /// Returns the number of bytes that are missing at least.
    pub(super) fn missing(&self, len: usize) -> usize {
        self.until.saturating_sub(len).max(1)
    }
}

/// Returns the first reply, and the bytes behind it.
pub(super) fn split(replies: &[u8]) -> (&[u8], &[u8]) {
    let mut scan = ReplyScan::new(1);
    match scan.find_end(replies) {
        Ok(true) => replies.split_at(scan.at),
        _ => (replies, &[]),
    }
}

/// Returns the parts of a reply that is an array, `None` if it is none.
pub(super) fn parts(reply: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let head = head(reply)?;
    let count = head.parts().ok().flatten()?;
    let mut rest = &reply[head.len..];
    Some((0..count).map_while(move |_| {
        let (part, behind) = split(rest);
        rest = behind;
        (!part.is_empty()).then_some(part)
    }))
}

/// Returns the bytes of a reply that is one value; of others the reply itself.
pub(super) fn bytes_of(reply: &[u8]) -> &[u8] {
    let Some(head) = head(reply) else { return &[] };
    match (head.kind, head.bytes()) {
        (b'$', Ok(Some(len))) => reply.get(head.len..head.len + len).unwrap_or_default(),
        (b'$' | b'_', _) => &[],
        (b'+' | b'-' | b':' | b',' | b'(', _) => head.line,
        _ => reply,
    }
}

/// Returns the text of a reply that is an error.
pub(super) fn error_of(reply: &[u8]) -> Option<String> {
    let head = head(reply)?;
    let text = match head.kind {
        b'-' => head.line,
        b'!' => reply.get(head.len..)?.trim_ascii_end(),
        _ => return None,
    };
    Some(String::from_utf8_lossy(text).into_owned())
}

/// Returns the answer to a request whose command was refused with an error.
pub(super) fn denial(text: String) -> Denial {
    if text.starts_with("NOAUTH") {
        Denial::unauthorized(text)
    } else if text.starts_with("NOPERM") {
        Denial::forbidden(text)
    } else {
        Denial::bad(text)
    }
}

/// Form of the JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// True if strings are in Base64, except the status OK.
    pub(super) base64: bool,
    /// True if a status is `[true, text]` and an error `[false, text]`, as Webdis has them.
    pub(super) pairs: bool,
}

/// Appends `{"result": …}`, or `{"error": …}` if the reply is an error.
pub(super) fn put_wrapped(out: &mut Vec<u8>, reply: &[u8], form: Form) {
    match error_of(reply) {
        Some(text) => {
            out.extend_from_slice(b"{\"error\":");
            put_text(out, text.as_bytes());
        }
        None => {
            out.extend_from_slice(b"{\"result\":");
            put_value(out, reply, form);
        }
    }
    out.push(b'}');
}

/// Appends a reply as a value of JSON. Maps become arrays of names and values, as in RESP2.
pub(super) fn put_value(out: &mut Vec<u8>, reply: &[u8], form: Form) {
    let mut rest = reply;
    // Number of parts that are missing of each array that is open.
    let mut open: Vec<u64> = Vec::new();
    while let Some(head) = head(rest) {
        rest = &rest[head.len..];
        let parts = head.parts().unwrap_or_default();
        if parts.is_some_and(|parts| parts > 0) {
            out.push(b'[');
            open.extend(parts);
            continue;
        }
        match parts {
            Some(_) => out.extend_from_slice(b"[]"),
            None => rest = put_scalar(out, &head, rest, form),
        }
        loop {
            let Some(left) = open.last_mut() else { return };
            *left -= 1;
            if *left > 0 {
                out.push(b',');
                break;
            }
            out.push(b']');
            open.pop();
        }
    }
}

/// Appends a value that has no parts, and returns the bytes behind it.
fn put_scalar<'a>(out: &mut Vec<u8>, head: &Head<'_>, rest: &'a [u8], form: Form) -> &'a [u8] {
    let line = head.line;
    match head.kind {
        b'$' | b'=' | b'!' => {
            let Ok(Some(len)) = head.bytes() else {
                out.extend_from_slice(b"null");
                return rest;
            };
            let (bytes, behind) = rest.split_at(len.min(rest.len()));
            // A verbatim string begins with its format.
            let bytes = if head.kind == b'=' { bytes.get(4..).unwrap_or_default() } else { bytes };
            put_string(out, bytes, form);
            return behind.get(END_LEN..).unwrap_or_default();
        }
        b'+' if form.pairs => {
            out.extend_from_slice(b"[true,");
            put_text(out, line);
            out.push(b']');
        }
        b'-' if form.pairs => {
            out.extend_from_slice(b"[false,");
            put_text(out, line);
            out.push(b']');
        }
        b'+' if line == b"OK" => out.extend_from_slice(b"\"OK\""),
        b'+' => put_string(out, line, form),
        b':' => out.extend_from_slice(line),
        b'#' => out.extend_from_slice(if line == b"t" { b"true" } else { b"false" }),
        b',' if line.iter().all(|byte| !byte.is_ascii_alphabetic()) => out.extend_from_slice(line),
        b',' | b'(' | b'-' => put_text(out, line),
        _ => out.extend_from_slice(b"null"),
    }
    rest
}

/// Bytes of the end of a line.
const END_LEN: usize = 2;

fn put_string(out: &mut Vec<u8>, bytes: &[u8], form: Form) {
    if form.base64 {
        out.push(b'"');
        out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
        out.push(b'"');
    } else {
        put_text(out, bytes);
    }
}

/// Appends a string of JSON. Bytes that are no UTF-8 become U+FFFD.
pub(super) fn put_text(out: &mut Vec<u8>, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(reply: &str, form: Form) -> String {
        let mut out = Vec::new();
        put_wrapped(&mut out, reply.as_bytes(), form);
        let text = String::from_utf8(out).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok(), "{text}");
        text
    }

    #[test]
    fn replies_become_json() {
        let plain = Form::default();
        for (reply, expected) in [
            ("+OK\r\n", r#"{"result":"OK"}"#),
            ("+PONG\r\n", r#"{"result":"PONG"}"#),
            ("-ERR no \"x\"\r\n", r#"{"error":"ERR no \"x\""}"#),
            (":-7\r\n", r#"{"result":-7}"#),
            ("$-1\r\n", r#"{"result":null}"#),
            ("*-1\r\n", r#"{"result":null}"#),
            ("$0\r\n\r\n", r#"{"result":""}"#),
            ("$4\r\na\r\nb\r\n", "{\"result\":\"a\\r\\nb\"}"),
            ("*0\r\n", r#"{"result":[]}"#),
            ("*3\r\n:1\r\n*2\r\n+a\r\n*0\r\n$1\r\nz\r\n", r#"{"result":[1,["a",[]],"z"]}"#),
            ("*2\r\n*1\r\n*1\r\n:1\r\n:2\r\n", r#"{"result":[[[1]],2]}"#),
            ("*1\r\n-ERR x\r\n", r#"{"result":["ERR x"]}"#),
            ("%1\r\n+a\r\n:1\r\n", r#"{"result":["a",1]}"#),
            (
                "*5\r\n_\r\n#t\r\n,1.5\r\n,inf\r\n=5\r\ntxt:x\r\n",
                r#"{"result":[null,true,1.5,"inf","x"]}"#,
            ),
        ] {
            assert_eq!(json(reply, plain), expected, "{reply:?}");
        }
        let base64 = Form { base64: true, ..plain };
        assert_eq!(json("*2\r\n+OK\r\n$2\r\nhi\r\n", base64), r#"{"result":["OK","aGk="]}"#);
        let pairs = Form { pairs: true, ..plain };
        assert_eq!(
            json("*2\r\n+OK\r\n-ERR x\r\n", pairs),
            r#"{"result":[[true,"OK"],[false,"ERR x"]]}"#
        );
    }

    #[test]
    fn deep_replies_need_no_deep_stack() {
        let depth = 200_000;
        let reply = "*1\r\n".repeat(depth) + ":1\r\n";
        let mut scan = ReplyScan::new(1);
        assert_eq!(scan.find_end(reply.as_bytes()), Ok(true));
        let mut out = Vec::new();
        put_value(&mut out, reply.as_bytes(), Form::default());
        assert_eq!(out.len(), 2 * depth + 1);
    }

    #[test]
    fn the_end_is_found_wherever_the_bytes_are_cut() {
        let replies = b"*2\r\n$5\r\nab\r\nc\r\n*1\r\n:1\r\n+OK\r\n$-1\r\n".as_slice();
        let mut scan = ReplyScan::new(3);
        for end in 0..replies.len() {
            assert_eq!(scan.find_end(&replies[..end]), Ok(false), "{end}");
            assert!(scan.missing(end) <= replies.len() - end, "{end}");
        }
        assert_eq!(scan.find_end(replies), Ok(true));
        let (first, rest) = split(replies);
        assert_eq!(parts(first).unwrap().count(), 2);
        let (second, rest) = split(rest);
        assert_eq!((second, rest), (&b"+OK\r\n"[..], &b"$-1\r\n"[..]));
        assert!(parts(second).is_none());
    }

    #[test]
    fn malformed_replies_are_errors_and_no_panics() {
        for wrong in ["x\r\n", "$x\r\n", "*9999999999999999999\r\n", "$9223372036854775807\r\n"] {
            let mut scan = ReplyScan::new(1);
            assert_ne!(scan.find_end(wrong.as_bytes()), Ok(true), "{wrong}");
            let mut out = Vec::new();
            put_value(&mut out, wrong.as_bytes(), Form::default());
        }
    }
}
