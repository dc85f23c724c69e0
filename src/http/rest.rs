//! Commands over HTTP, in the forms of Upstash and of Webdis.
//!
//! Upstash: `POST /` with a command as an array of JSON, `POST /pipeline` and `POST /multi-exec` with
//! an array of commands, `/set/foo/bar?EX=100`. Webdis: `/SET/foo/bar`, in capitals, and `.json`,
//! `.raw` or `.txt` behind the last argument. A command is answered by `{"result": …}` or
//! `{"error": …}`, with Webdis by its name and the reply.
//!
//! A page of another site can make a browser send simple requests. So a command that may change
//! something needs an Authorization header, or the content type of JSON, which no simple request
//! has.

use super::access::Caller;
use super::answer::{Denial, charged, large_json, typed};
use super::errand::Errand;
use super::sent::SentCommands;
use super::values::{self, Form, put_text, put_value, put_wrapped};
use super::{Site, pages};
use crate::command::registry;
use axum::Extension;
use axum::body::{Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use flagstone_commands::flag;
use flagstone_wire::client_memory::Taken;
use std::sync::Arc;

/// Maximum size of the body of a request, in bytes.
const MAX_BODY: usize = 8 << 20;

/// The answer to a request, or the reason why there is none.
type Answered = Result<Response, Denial>;

/// `POST /`: one command as an array of JSON, or as a path; `GET /`: the dashboard.
pub(super) async fn root(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    match *request.method() {
        Method::GET => return Ok(pages::page(&site)),
        Method::POST => {}
        _ => return Err(not_allowed()),
    }
    let (errand, Received { headers, body }) = receive(&site, &caller, request).await?;
    let form = form(&headers);
    if body.trim_ascii_start().starts_with(b"[") {
        let mut sent = SentCommands::default();
        sent.push_json(&body)?;
        drop(body);
        return one(errand, sent, form).await;
    }
    let path = std::str::from_utf8(&body);
    let path = path.map_err(|_| Denial::bad("ERR the body is neither JSON nor a path"))?;
    let path = format!("/{}", path.trim().trim_start_matches('/'));
    Asked::of(&path, None)?.run(errand, form).await
}

/// `POST /pipeline`: an array of commands.
pub(super) async fn pipeline(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    let (mut errand, Received { headers, body }) = receive(&site, &caller, request).await?;
    let mut sent = SentCommands::default();
    sent.push_all_json(&body)?;
    drop(body);
    let replies = errand.run(sent).await?;
    let mut rest = &replies[..];
    let each = std::iter::from_fn(|| {
        let (reply, behind) = values::split(rest);
        rest = behind;
        (!reply.is_empty()).then_some(reply)
    });
    wrapped(each, form(&headers))
}

/// Returns an array of wrapped replies.
fn wrapped<'a>(replies: impl Iterator<Item = &'a [u8]>, form: Form) -> Answered {
    let mut out = vec![b'['];
    for reply in replies {
        if out.len() > 1 {
            out.push(b',');
        }
        put_wrapped(&mut out, reply, form);
    }
    out.push(b']');
    large_json(out)
}

/// `POST /multi-exec`: an array of commands, which run as one transaction.
pub(super) async fn multi_exec(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    let (mut errand, Received { headers, body }) = receive(&site, &caller, request).await?;
    let mut sent = SentCommands::of([&b"MULTI"[..]])?;
    sent.push_all_json(&body)?;
    drop(body);
    sent.push([&b"EXEC"[..]])?;
    let replies = errand.run(sent).await?;
    let (mut rest, mut refused, mut last) = (&replies[..], None, &replies[..0]);
    while !rest.is_empty() {
        let (reply, behind) = values::split(rest);
        // The first error is the reason why the transaction does not run.
        refused = refused.or_else(|| values::error_of(reply));
        (last, rest) = (reply, behind);
    }
    let Some(parts) = values::parts(last) else {
        let text = refused.unwrap_or_else(|| "ERR the transaction was not run".to_owned());
        return Err(values::denial(text));
    };
    wrapped(parts, form(&headers))
}

/// `/command/argument/…?OPTION=…`: a command in the path; a body is its next argument.
pub(super) async fn path(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    let uri = request.uri().clone();
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    // A malformed path is refused before the body is read.
    let asked = Asked::of(target, None)?;
    match *request.method() {
        Method::GET => {
            let headers = request.headers().clone();
            if !asked.only_reads() {
                may_change(&caller, &headers)?;
            }
            let errand = Errand::begin(&site, &caller).await?;
            asked.run(errand, form(&headers)).await
        }
        Method::POST | Method::PUT => {
            let (errand, Received { headers, body }) = receive(&site, &caller, request).await?;
            let asked = Asked::of(target, Some(&body[..]).filter(|body| !body.is_empty()))?;
            drop(body);
            asked.run(errand, form(&headers)).await
        }
        _ => Err(not_allowed()),
    }
}

/// Form of the answer to a command in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `{"result": …}`.
    Result,
    /// `{"NAME": …}`.
    Named,
    /// The reply as the protocol has it.
    Raw,
    /// The value alone.
    Text,
}

/// A command in a path.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    args: Vec<Vec<u8>>,
    shape: Shape,
}

impl Asked {
    /// Parses a path with its query.
    fn of(target: &str, body: Option<&[u8]>) -> Result<Self, Denial> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut words: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let is_webdis = words[0].bytes().all(|byte| !byte.is_ascii_lowercase());
        let mut shape = if is_webdis { Shape::Named } else { Shape::Result };
        if is_webdis && let Some(last) = words.last_mut() {
            for (end, of_end) in
                [(".json", Shape::Named), (".raw", Shape::Raw), (".txt", Shape::Text)]
            {
                if let Some(word) = last.strip_suffix(end) {
                    (*last, shape) = (word, of_end);
                    break;
                }
            }
        }
        let mut args = Vec::with_capacity(words.len());
        for word in words {
            args.push(decoded(word)?);
        }
        args.extend(body.map(<[u8]>::to_vec));
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            args.push(decoded(name)?);
            if !value.is_empty() {
                args.push(decoded(value)?);
            }
        }
        if registry::lookup(&args[0]).is_none() {
            return Err(Denial::new(StatusCode::NOT_FOUND, "ERR there is no such page or command"));
        }
        Ok(Self { args, shape })
    }

    /// Returns true if its declaration says that it changes nothing.
    fn only_reads(&self) -> bool {
        let command = registry::lookup(&self.args[0]);
        let sub = command.and_then(|command| command.subcommand(self.args.get(1)?)).or(command);
        sub.is_some_and(|command| command.spec.has(flag!(READONLY)))
    }

    async fn run(mut self, mut errand: Errand, form: Form) -> Answered {
        let sent = SentCommands::of(self.args.iter().map(|arg| &arg[..]))?;
        // The name is all that an answer needs.
        self.args.truncate(1);
        if self.shape == Shape::Result {
            return one(errand, sent, form).await;
        }
        let replies = errand.run(sent).await?;
        if let Some(text) = values::error_of(&replies).filter(|text| text.starts_with("NOAUTH")) {
            return Err(values::denial(text));
        }
        match self.shape {
            Shape::Raw => Ok(typed("text/plain; charset=utf-8", replies)),
            Shape::Text => Ok(typed(
                "text/plain; charset=utf-8",
                replies.slice_ref(values::bytes_of(&replies)),
            )),
            Shape::Result | Shape::Named => {
                let mut out = vec![b'{'];
                put_text(&mut out, &self.args[0]);
                out.push(b':');
                put_value(&mut out, &replies, Form { pairs: true, ..form });
                out.push(b'}');
                large_json(out)
            }
        }
    }
}

/// Decodes `%` and two digits. `+` is a plus.
fn decoded(word: &str) -> Result<Vec<u8>, Denial> {
    let (mut out, mut rest) = (Vec::with_capacity(word.len()), word.as_bytes());
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        out.push(byte.ok_or_else(|| Denial::bad("ERR a % in the path without two digits"))?);
        rest = &rest[2..];
    }
    Ok(out)
}

/// Runs one command, and answers its reply.
async fn one(mut errand: Errand, sent: SentCommands, form: Form) -> Answered {
    let reply = errand.run(sent).await?;
    if let Some(text) = values::error_of(&reply) {
        return Err(values::denial(text));
    }
    let mut out = Vec::with_capacity(reply.len() + 16);
    put_wrapped(&mut out, &reply, form);
    large_json(out)
}

fn form(headers: &HeaderMap) -> Form {
    let encoding = headers.get("upstash-encoding");
    let base64 = encoding.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"base64"));
    Form { base64, pairs: false }
}

/// Refuses a command that may change something, if a page of another site can have sent it.
fn may_change(caller: &Caller, headers: &HeaderMap) -> Result<(), Denial> {
    let content = headers.get(header::CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let content = content.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if caller.credentials.is_some() || content.eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    Err(Denial::forbidden(
        "DENIED a command that may change something needs an Authorization header, or POST with \
        Content-Type: application/json",
    ))
}

fn not_allowed() -> Denial {
    Denial::new(StatusCode::METHOD_NOT_ALLOWED, "ERR the method is GET, POST or PUT")
}

/// A request that was read.
struct Received {
    headers: HeaderMap,
    /// Counts as the clients' memory as long as it is kept.
    body: Bytes,
}

/// Begins the session of a request that may change something, and then reads the body: a client
/// makes the server read much only once its password is right.
async fn receive(
    site: &Arc<Site>,
    caller: &Caller,
    request: Request,
) -> Result<(Errand, Received), Denial> {
    may_change(caller, request.headers())?;
    let errand = Errand::begin(site, caller).await?;
    let (parts, body) = request.into_parts();
    let too_large = || {
        let text = format!("ERR the body is longer than {MAX_BODY} bytes, or was cut off");
        Denial::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let len =
        parts.headers.get(header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    // Without a length the body comes in chunks.
    let len: usize = len.unwrap_or(MAX_BODY);
    if len > MAX_BODY {
        return Err(too_large());
    }
    let mut taken = Taken::default();
    if !taken.try_set(len) {
        return Err(Denial::no_memory());
    }
    let body = to_bytes(body, MAX_BODY).await.map_err(|_| too_large())?;
    Ok((errand, Received { headers: parts.headers, body: charged(body, taken) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(target: &str, body: Option<&[u8]>) -> Option<(Vec<String>, Shape)> {
        let asked = Asked::of(target, body).ok()?;
        let args = asked.args.into_iter().map(|arg| String::from_utf8(arg).unwrap()).collect();
        Some((args, asked.shape))
    }

    #[test]
    fn paths_are_commands() {
        let expect = |args: &[&str], shape| {
            Some((args.iter().map(ToString::to_string).collect::<Vec<_>>(), shape))
        };
        let is = |target: &str, args: &[&str], shape| {
            assert_eq!(asked(target, None), expect(args, shape), "{target}");
        };
        is("/get/x", &["get", "x"], Shape::Result);
        is("/set/a%2Fb/c+d?EX=100&NX", &["set", "a/b", "c+d", "EX", "100", "NX"], Shape::Result);
        is("/get/x.json", &["get", "x.json"], Shape::Result);
        is("/GET/x", &["GET", "x"], Shape::Named);
        is("/GET/x.json", &["GET", "x"], Shape::Named);
        is("/GET/x.raw", &["GET", "x"], Shape::Raw);
        is("/GET/x.txt", &["GET", "x"], Shape::Text);
        assert_eq!(
            asked("/set/k?EX=1", Some(b"v")),
            expect(&["set", "k", "v", "EX", "1"], Shape::Result)
        );
        for wrong in ["/", "/favicon.ico", "/../etc/passwd", "/get/%", "/get/%zz", "/get/%+1"] {
            assert_eq!(asked(wrong, None), None, "{wrong}");
        }
    }

    #[test]
    fn only_reads_need_no_mark_of_their_sender() {
        let reads = |target: &str| Asked::of(target, None).expect("a command").only_reads();
        assert!(reads("/get/x") && reads("/HGETALL/x.json") && reads("/memory/usage/x"));
        assert!(!reads("/set/x/1") && !reads("/config/get/x") && !reads("/eval/x/0"));
        assert!(!reads("/getex/x") && !reads("/flushall") && !reads("/shutdown"));
    }
}
