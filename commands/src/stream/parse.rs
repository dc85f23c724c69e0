//! Parsing of stream ids.

use crate::Stop;
use flagstone_storage::value::StreamId;
use flagstone_wire::num::parse_u64;

/// Maximum length of an id's text.
const MAX_TEXT: usize = 127;

const INVALID: &str = "ERR Invalid stream ID specified as stream command argument";

/// An id of which the stream may have to choose a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewId {
    /// `*`
    Auto,
    /// `ms-*`
    OfTime(u64),
    Given(StreamId),
}

/// Splits an id into its parts: `ms`, or `ms-seq`.
fn parts(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr::memchr(b'-', text) {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

fn parse(text: &[u8], missing_seq: u64) -> Option<StreamId> {
    let (ms, seq) = parts(Some(text).filter(|text| text.len() <= MAX_TEXT)?);
    let ms = parse_u64(ms)?;
    let seq = seq.map_or(Some(missing_seq), parse_u64)?;
    Some(StreamId { ms, seq })
}

/// Parses an id; `missing_seq` is the sequence if it has only the time.
pub fn id(text: &[u8], missing_seq: u64) -> Result<StreamId, Stop> {
    parse(text, missing_seq).ok_or_else(|| INVALID.into())
}

/// Parses the id of a new entry, other than `*`.
pub fn new_id(text: &[u8]) -> Result<NewId, Stop> {
    if let (ms, Some(b"*")) = parts(text)
        && text.len() <= MAX_TEXT
    {
        return Ok(NewId::OfTime(parse_u64(ms).ok_or(INVALID)?));
    }
    id(text, 0).map(NewId::Given)
}

/// Parses an id, or `-` for the least one, or `+` for the greatest one.
pub fn bound(text: &[u8], missing_seq: u64) -> Result<StreamId, Stop> {
    match text {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => id(text, missing_seq),
    }
}

/// Parses the start of an interval; `(` excludes the id itself.
pub fn interval_start(text: &[u8]) -> Result<StreamId, Stop> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            let next = id(rest, 0)?.next();
            next.ok_or_else(|| "ERR invalid start ID for the interval".into())
        }
        _ => bound(text, 0),
    }
}

/// Parses the end of an interval; `(` excludes the id itself.
pub fn interval_end(text: &[u8]) -> Result<StreamId, Stop> {
    match text {
        [b'(', rest @ ..] if !rest.is_empty() => {
            let prev = id(rest, u64::MAX)?.prev();
            prev.ok_or_else(|| "ERR invalid end ID for the interval".into())
        }
        _ => bound(text, u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_may_lack_their_sequence() {
        assert_eq!(parse(b"5-7", 1), Some(StreamId::new(5, 7)));
        assert_eq!(parse(b"5", 9), Some(StreamId::new(5, 9)));
        for bad in [&b""[..], b"-", b"5-", b"-5", b"a-1", b"1-a", b"1-2-3", b"01-1", b"1-*"] {
            assert_eq!(parse(bad, 0), None, "{}", bad.escape_ascii());
        }
        assert_eq!(parse(&[b'1'; 200], 0), None);
    }

    #[test]
    fn intervals_may_leave_their_ends_out() {
        assert_eq!(interval_start(b"-").unwrap(), StreamId::MIN);
        assert_eq!(interval_end(b"+").unwrap(), StreamId::MAX);
        assert_eq!(interval_start(b"(5").unwrap(), StreamId::new(5, 1));
        assert_eq!(interval_end(b"(5").unwrap(), StreamId::new(5, u64::MAX - 1));
        assert_eq!(interval_end(b"5").unwrap(), StreamId::new(5, u64::MAX));
        for bad in [&b"("[..], b"(-", b"(+", b"(18446744073709551615-18446744073709551615"] {
            assert!(interval_start(bad).is_err());
        }
        assert!(interval_end(b"(0-0").is_err());
    }

    #[test]
    fn new_ids_may_ask_for_a_sequence() {
        assert_eq!(new_id(b"5-*").unwrap(), NewId::OfTime(5));
        assert_eq!(new_id(b"5").unwrap(), NewId::Given(StreamId::new(5, 0)));
        assert!(new_id(b"*-5").is_err() && new_id(b"x-*").is_err() && new_id(b"+").is_err());
    }
}
