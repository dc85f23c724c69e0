//! Requests: RESP2 multibulk commands and inline commands, parsed in place.
//!
//! The parser never copies a multibulk argument and never allocates for a length announced by a
//! client: it remembers where in the connection's buffer each argument lies. When the buffer ends
//! inside a command it keeps its state and continues once more bytes have come.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use smallvec::SmallVec;

use super::inline;
use crate::num;

/// Start and end of every argument, counted from the front of the command's bytes.
pub type ArgRanges = SmallVec<[(u32, u32); 8]>;

/// Maximum number of arguments of a command before the connection has authenticated.
const UNAUTHENTICATED_MAX_ARGS: usize = 10;
/// Maximum size of an argument before the connection has authenticated, in bytes.
const UNAUTHENTICATED_MAX_BULK: usize = 16 * 1024;
/// Greatest length of a short argument: one or two digits, and below every limit but a test's.
const SHORT: usize = 99;
/// Capacity beyond which a range list or an inline buffer is freed after its command.
const KEEP_CAPACITY: usize = 1024;

/// Limits of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of an argument in bytes (`proto-max-bulk-len`).
    pub max_bulk: usize,
    /// Maximum number of arguments of a command.
    pub max_args: usize,
    /// Maximum length of an inline command, and of a length line, without its end, in bytes.
    pub max_inline: usize,
    /// True if the connection may run commands; if not, much narrower limits hold as well.
    pub authenticated: bool,
}

impl Default for Limits {
    /// Returns the limits of an authenticated connection: 512 MiB, 1 Mi arguments, 64 KiB lines.
    fn default() -> Self {
        Self {
            max_bulk: 512 * 1024 * 1024,
            max_args: 1024 * 1024,
            max_inline: 64 * 1024,
            authenticated: true,
        }
    }
}

/// Result of [`Parser::parse`] at the front of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// A whole command: [`Parser::args`] shows it, [`Parser::consumed`] bytes hold it.
    Command,
    /// An empty request (`*0`, `*-1`, an empty line): [`Parser::consumed`] bytes, no command.
    Empty,
    /// The command continues beyond the buffer.
    Incomplete {
        /// At least this many more bytes are needed. The number follows from the client's
        /// announcement: a reason to read on, not to reserve that much memory at once.
        need: usize,
    },
}

/// A request that breaks the protocol. The connection gets the text and is closed.
///
/// The texts are those of Valkey 8.1 (`networking.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("ERR Protocol error: too big inline request")]
    BigInlineRequest,
    #[error("ERR Protocol error: too big mbulk count string")]
    BigMultibulkCount,
    #[error("ERR Protocol error: too big bulk count string")]
    BigBulkCount,
    #[error("ERR Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    #[error("ERR Protocol error: invalid bulk length")]
    InvalidBulkLength,
    #[error("ERR Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    #[error("ERR Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    #[error("ERR Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedDollar(u8),
    #[error("ERR Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

impl ProtocolError {
    /// Returns the error reply's text, with the offending byte as it came.
    pub fn reply_text(&self) -> Vec<u8> {
        match self {
            Self::ExpectedDollar(byte) => {
                let mut text = b"ERR Protocol error: expected '$', got '".to_vec();
                text.extend_from_slice(&[*byte, b'\'']);
                text
            }
            other => other.to_string().into_bytes(),
        }
    }
}

/// Progress in the current request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// Before the first byte.
    #[default]
    Start,
    /// A multibulk command before the length line of its next argument.
    BulkHeader,
    /// A multibulk command inside an argument of this many bytes.
    BulkBody(usize),
    /// Inside an inline command.
    Inline,
    /// Complete; the next call starts with the next request.
    Done,
}

/// A resumable parser for one connection's requests.
///
/// Feed it the connection's unconsumed bytes. After [`Parsed::Command`] or [`Parsed::Empty`] drop
/// [`Parser::consumed`] bytes from the front ([`Parser::take`] does both); after
/// [`Parsed::Incomplete`] call again with the same bytes and more behind them.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// Offset up to which the request is parsed.
    pos: usize,
    /// Offset up to which the current line was searched for its end.
    scanned: usize,
    /// Number of arguments still to be parsed.
    remaining: usize,
    args: ArgRanges,
    /// Unescaped arguments of an inline command; `args` counts from its front.
    inline: Vec<u8>,
    is_inline: bool,
}

/// The arguments of a parsed command, the command's name first.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    source: &'a [u8],
    ranges: &'a [(u32, u32)],
}

impl<'a> Args<'a> {
    /// Creates the arguments at `ranges` of `source`.
    pub fn new(source: &'a [u8], ranges: &'a [(u32, u32)]) -> Self {
        Self { source, ranges }
    }

    /// Returns the number of arguments, including the command's name.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of bytes of all arguments.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.ranges.iter().map(|&(start, end)| (end - start) as usize).sum()
    }

    /// Returns at least the number of bytes of all arguments, without a look at each.
    #[inline]
    pub fn bytes_at_most(&self) -> usize {
        self.source.len()
    }

    /// Returns the argument at `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let &(start, end) = self.ranges.get(index)?;
        self.source.get(start as usize..end as usize)
    }

    /// Returns the arguments behind the first `count`.
    pub fn skip(&self, count: usize) -> Self {
        Self { source: self.source, ranges: self.ranges.get(count..).unwrap_or_default() }
    }

    /// Returns `count` arguments from `first` on, or as many as there are.
    pub fn slice(&self, first: usize, count: usize) -> Self {
        let first = first.min(self.ranges.len());
        let end = first.saturating_add(count).min(self.ranges.len());
        Self { source: self.source, ranges: &self.ranges[first..end] }
    }

    /// Returns all arguments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let source = self.source;
        self.ranges.iter().map(move |&(start, end)| &source[start as usize..end as usize])
    }
}

/// A length line.
enum Header {
    /// The line's number (`None` if it is malformed), and the offset behind the line.
    Line(Option<i64>, usize),
    Incomplete,
    TooLong,
}

impl Parser {
    /// Creates a parser at the front of a connection's first request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the request at the front of `buf`.
    ///
    /// `limits` apply when a length line is read, so a change by one command (AUTH) holds for the
    /// next one unless that is parsed ahead.
    #[inline]
    pub fn parse(&mut self, buf: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        if self.state == State::Done {
            self.reset();
        }
        match self.state {
            State::Start => match buf.first() {
                None => Ok(Parsed::Incomplete { need: 1 }),
                Some(b'*') => self.parse_multibulk(buf, limits),
                Some(_) => self.parse_inline(buf, limits),
            },
            State::Inline => self.parse_inline(buf, limits),
            _ => self.parse_bulks(buf, limits),
        }
    }

    /// Returns the arguments of the command just parsed from `buf`.
    #[inline]
    pub fn args<'a>(&'a self, buf: &'a [u8]) -> Args<'a> {
        Args::new(if self.is_inline { &self.inline } else { buf }, &self.args)
    }

    /// Returns the ranges of the arguments: in the parsed buffer, or for an inline command
    /// ([`Parser::is_inline`]) in the parser's own. [`Parser::args`] resolves them.
    #[inline]
    pub fn argv(&self) -> &ArgRanges {
        &self.args
    }

    /// Returns true if the last command was an inline one.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.is_inline
    }

    /// Returns the unescaped arguments of an inline command, which its ranges are of.
    #[inline]
    pub fn unescaped(&self) -> &[u8] {
        &self.inline
    }

    /// Returns the bytes of the request just parsed, or of the parsed part of an incomplete one.
    #[inline]
    pub fn consumed(&self) -> usize {
        self.pos
    }

    /// Returns the bytes that the argument being read needs beyond the `len` that have come, as the
    /// client has announced; 0: unknown.
    pub fn missing(&self, len: usize) -> usize {
        match self.state {
            State::BulkBody(body) => (self.pos + body + 2).saturating_sub(len),
            _ => 0,
        }
    }

    /// Returns true inside of an incomplete request.
    pub fn in_request(&self) -> bool {
        !matches!(self.state, State::Start | State::Done)
    }

    /// Takes the command just parsed off the front of `buf`: shared bytes, and the arguments'
    /// ranges in them.
    pub fn take(&mut self, buf: &mut BytesMut) -> (Bytes, ArgRanges) {
        let ranges = std::mem::take(&mut self.args);
        let source = if self.is_inline {
            buf.advance(self.pos);
            Bytes::from(std::mem::take(&mut self.inline))
        } else {
            buf.split_to(self.pos).freeze()
        };
        self.reset();
        (source, ranges)
    }

    /// Prepares for the next request.
    #[inline]
    fn reset(&mut self) {
        self.state = State::Start;
        self.pos = 0;
        self.scanned = 0;
        self.remaining = 0;
        self.args.clear();
        if self.args.capacity() > KEEP_CAPACITY {
            self.args = ArgRanges::new();
        }
        if self.is_inline {
            self.is_inline = false;
            self.inline.clear();
            self.inline.shrink_to(KEEP_CAPACITY);
        }
    }

    /// Parses `*<count>` and the arguments behind it.
    #[inline]
    fn parse_multibulk(&mut self, buf: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        let (count, next) = match self.header(buf, limits) {
            Header::Line(count, next) => (count, next),
            Header::Incomplete => return Ok(Parsed::Incomplete { need: 1 }),
            Header::TooLong => return Err(ProtocolError::BigMultibulkCount),
        };
        let count = count.ok_or(ProtocolError::InvalidMultibulkLength)?;
        let args = usize::try_from(count).unwrap_or(0);
        if args > limits.max_args {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if !limits.authenticated && args > UNAUTHENTICATED_MAX_ARGS {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        self.pos = next;
        if args == 0 {
            self.state = State::Done;
            return Ok(Parsed::Empty);
        }
        self.remaining = args;
        self.state = State::BulkHeader;
        self.parse_bulks(buf, limits)
    }

    /// Parses the arguments that are still to come.
    #[inline]
    fn parse_bulks(&mut self, buf: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        while self.remaining > 0 {
            if self.state == State::BulkHeader {
                self.parse_short(buf, limits);
                if self.remaining == 0 {
                    break;
                }
            }
            let len = match self.state {
                State::BulkBody(len) => len,
                _ => match self.bulk_length(buf, limits)? {
                    Some(len) => len,
                    None => return Ok(Parsed::Incomplete { need: 1 }),
                },
            };
            let body_end = self.pos + len;
            if buf.len() < body_end + 2 {
                self.state = State::BulkBody(len);
                return Ok(Parsed::Incomplete { need: body_end + 2 - buf.len() });
            }
            // Fits: `bulk_length` refuses an argument that would end beyond `u32`.
            self.args.push((self.pos as u32, body_end as u32));
            self.pos = body_end + 2;
            self.state = State::BulkHeader;
            self.remaining -= 1;
        }
        self.state = State::Done;
        Ok(Parsed::Command)
    }

    /// Parses the next arguments as long as they are short and complete. No limit is below their
    /// length.
    #[inline]
    fn parse_short(&mut self, buf: &[u8], limits: &Limits) {
        if limits.max_bulk < SHORT || buf.len() > u32::MAX as usize {
            return;
        }
        let digit = |byte: u8| usize::from(byte - b'0');
        let (mut pos, mut remaining) = (self.pos, self.remaining);
        while remaining > 0 {
            let line = buf.get(pos..).unwrap_or_default();
            let (len, head) = match *line {
                [b'$', a @ b'0'..=b'9', b'\r', _, ..] => (digit(a), 4),
                [b'$', a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..] => {
                    (digit(a) * 10 + digit(b), 5)
                }
                _ => break,
            };
            if line.len() < head + len + 2 {
                break;
            }
            let start = pos + head;
            self.args.push((start as u32, (start + len) as u32));
            pos = start + len + 2;
            remaining -= 1;
        }
        (self.pos, self.remaining) = (pos, remaining);
    }

    /// Reads `$<length>` and moves behind it; `None` if the line is not complete.
    #[inline]
    fn bulk_length(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let (len, next) = match self.header(buf, limits) {
            Header::Line(len, next) => (len, next),
            Header::Incomplete => return Ok(None),
            Header::TooLong => return Err(ProtocolError::BigBulkCount),
        };
        if buf[self.pos] != b'$' {
            return Err(ProtocolError::ExpectedDollar(buf[self.pos]));
        }
        let len = len
            .and_then(|len| usize::try_from(len).ok())
            .filter(|&len| len <= limits.max_bulk && len < (u32::MAX as usize).saturating_sub(next))
            .ok_or(ProtocolError::InvalidBulkLength)?;
        if !limits.authenticated && len > UNAUTHENTICATED_MAX_BULK {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        self.pos = next;
        Ok(Some(len))
    }

    /// Reads the length line at the current offset: a type byte, a number, CR and one more byte.
    #[inline]
    fn header(&mut self, buf: &[u8], limits: &Limits) -> Header {
        let line = buf.get(self.pos..).unwrap_or_default();
        let digit = |byte: u8| i64::from(byte - b'0');
        // One to three digits and the line's end; anything else is left to the slow path.
        match *line {
            [_, a @ b'0'..=b'9', b'\r', _, ..] => Header::Line(Some(digit(a)), self.pos + 4),
            [_, a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..] => {
                Header::Line(Some(digit(a) * 10 + digit(b)), self.pos + 5)
            }
            [_, a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', _, ..] => {
                Header::Line(Some(digit(a) * 100 + digit(b) * 10 + digit(c)), self.pos + 6)
            }
            _ => self.header_slow(buf, limits),
        }
    }

    /// Like [`Parser::header`], for any line: a long one, an incomplete one, one that is no number.
    #[inline(never)]
    fn header_slow(&mut self, buf: &[u8], limits: &Limits) -> Header {
        let window = self.line_window(buf, limits);
        let from = self.scanned.clamp(window.start, window.end);
        let Some(found) = memchr::memchr(b'\r', &buf[from..window.end]) else {
            self.scanned = window.end;
            return if window.len() > limits.max_inline {
                Header::TooLong
            } else {
                Header::Incomplete
            };
        };
        let end = from + found;
        if buf.len() < end + 2 {
            self.scanned = end;
            return Header::Incomplete;
        }
        let number = buf.get(self.pos + 1..end).and_then(num::parse_i64);
        Header::Line(number, end + 2)
    }

    /// Returns the part of `buf` in which the current line must end.
    fn line_window(&self, buf: &[u8], limits: &Limits) -> Range<usize> {
        self.pos..buf.len().min(self.pos + limits.max_inline + 1).max(self.pos)
    }

    /// Parses one line of space-separated, possibly quoted arguments.
    fn parse_inline(&mut self, buf: &[u8], limits: &Limits) -> Result<Parsed, ProtocolError> {
        self.state = State::Inline;
        let window = self.line_window(buf, limits);
        let from = self.scanned.min(window.end);
        let Some(found) = memchr::memchr(b'\n', &buf[from..window.end]) else {
            self.scanned = window.end;
            return if window.len() > limits.max_inline {
                Err(ProtocolError::BigInlineRequest)
            } else {
                Ok(Parsed::Incomplete { need: 1 })
            };
        };
        let end = from + found;
        let line = buf[..end].strip_suffix(b"\r").unwrap_or(&buf[..end]);
        self.is_inline = true;
        self.inline.clear();
        inline::split_into(line, &mut self.inline, &mut self.args)
            .map_err(|inline::UnbalancedQuotes| ProtocolError::UnbalancedQuotes)?;
        self.pos = end + 1;
        self.state = State::Done;
        Ok(if self.args.is_empty() { Parsed::Empty } else { Parsed::Command })
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
