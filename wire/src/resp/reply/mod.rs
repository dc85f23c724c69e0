//! Replies: the only place that renders RESP.
//!
//! RESP3 types are replaced in RESP2 as in Valkey: a map is a flat array, a double is a bulk
//! string, a boolean is an integer.

mod room;

use super::mark::Mark;
use super::proto::Proto;
use crate::client_memory::{SMALL, Taken};
use crate::num::{self, LongDouble};

/// Placeholder for a header whose length comes later: `*9\r\n`.
const PLACEHOLDER: &[u8] = b"*0\r\n";

/// Maximum size of a bulk string's header and end, in bytes.
pub const FRAME: usize = 24;

/// Initial capacity of a buffer in bytes.
const FIRST: usize = 64;

/// A buffer that may not double grows at least by this part of its bytes, so that it is not copied
/// for each of many small values.
const GROWTH_PART: usize = 8;

/// The error in place of a reply that did not fit.
pub const LOST: &str = "ERR the command has run, but its reply takes more memory than there is for \
    clients (maxmemory-clients)";

/// Rendered replies in sequence. Their memory counts as clients' memory: where that has no room for
/// them, further bytes are left out ([`Reply::is_lost`]).
#[derive(Debug)]
pub struct Reply {
    buf: Vec<u8>,
    proto: Proto,
    /// Offset from which on bytes are missing for lack of room; [`WHOLE`] if none is missing.
    lost_at: usize,
    taken: Taken,
    /// Bytes of the greatest value for which the buffer has grown.
    greatest: usize,
    /// True if the client is never closed for its memory.
    is_spared: bool,
    /// Offset at which an error has replaced a reply that did not fit; [`NO_LACK`]: none has.
    lacks_at: u32,
    /// Ends of the pieces, if there are any.
    pieces: Vec<usize>,
}

/// Offset that means complete replies, and that which means that none lacked room.
const WHOLE: usize = usize::MAX;
const NO_LACK: u32 = u32::MAX;

impl Default for Reply {
    fn default() -> Self {
        Self::new(Proto::default())
    }
}

impl From<Vec<u8>> for Reply {
    fn from(rendered: Vec<u8>) -> Self {
        Self::rendered(Proto::default(), rendered)
    }
}

/// Appends a request, as a client sends it. Its memory is not counted.
pub fn write_request<'w>(out: &mut Vec<u8>, words: impl ExactSizeIterator<Item = &'w [u8]>) {
    let head = |out: &mut Vec<u8>, prefix: u8, len: usize| {
        out.push(prefix);
        out.extend_from_slice(len.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    head(out, b'*', words.len());
    for word in words {
        head(out, b'$', word.len());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// Returns the line before a data set for a replica: its length, or how its end is marked.
pub fn data_set_head(length_or_mark: &str) -> Vec<u8> {
    format!("${length_or_mark}\r\n").into_bytes()
}

impl Reply {
    /// Creates an empty buffer for replies in `proto`.
    pub fn new(proto: Proto) -> Self {
        Self::of(Vec::new(), proto, Taken::default())
    }

    /// Creates an empty buffer that takes `bytes` bytes before it grows.
    pub fn with_capacity(proto: Proto, bytes: usize) -> Self {
        let mut this = Self::new(proto);
        this.has_room(bytes);
        this
    }

    /// Creates a buffer for replies in the memory of `buf`, which is cleared.
    pub fn in_buffer(proto: Proto, mut buf: Vec<u8>) -> Self {
        buf.clear();
        Self::rendered(proto, buf)
    }

    /// Takes replies that are rendered already, with all of the memory of `buf`.
    pub fn rendered(proto: Proto, buf: Vec<u8>) -> Self {
        let mut taken = Taken::default();
        taken.set(buf.capacity());
        Self::of(buf, proto, taken)
    }

    fn of(buf: Vec<u8>, proto: Proto, taken: Taken) -> Self {
        Self {
            buf,
            proto,
            lost_at: WHOLE,
            taken,
            greatest: 0,
            is_spared: false,
            lacks_at: NO_LACK,
            pieces: Vec::new(),
        }
    }

    /// Returns the memory of the buffer for reuse.
    pub fn into_buffer(self) -> Vec<u8> {
        self.buf
    }

    /// Returns the protocol replies are rendered in.
    pub fn proto(&self) -> Proto {
        self.proto
    }

    /// Changes the protocol for replies from now on.
    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
    }

    /// Says whether the client is never closed for its memory: its replies may take more, then.
    pub fn spare(&mut self, is_spared: bool) {
        self.is_spared = is_spared;
    }

    /// Returns true if the client is never closed for its memory.
    pub fn is_spared(&self) -> bool {
        self.is_spared
    }

    /// Returns true if replies are rendered as RESP3.
    #[inline]
    pub fn is_resp3(&self) -> bool {
        self.proto == Proto::Resp3
    }

    /// Appends `+text`. CR and LF become spaces.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// Appends `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.put(b"+OK\r\n");
    }

    /// Appends `-text`; `text` begins with its code (`ERR …`). CR and LF become spaces.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.line(b'-', text.as_ref());
    }

    /// Appends an integer.
    #[inline]
    pub fn int(&mut self, value: i64) {
        match u8::try_from(value) {
            Ok(digit @ 0..=9) => {
                self.put(&[b':', b'0' + digit, b'\r', b'\n']);
            }
            _ => {
                self.put(b":");
                self.digits(value);
                self.put(b"\r\n");
            }
        }
    }

    /// Appends a count as an integer; beyond the range of integers, the largest one.
    #[inline]
    pub fn count(&mut self, value: usize) {
        self.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Appends a bulk string.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.has_room(bytes.len() + FRAME) {
            return;
        }
        self.header(b'$', bytes.len());
        self.buf.extend_from_slice(bytes);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Appends a bulk string of `len` bytes in pieces, each with its offset in the string and behind
    /// the one before; the bytes between them are zeros. If it does not fit, no piece is read.
    pub fn bulk_of(&mut self, len: usize, pieces: impl Iterator<Item = (usize, impl AsRef<[u8]>)>) {
        if self.is_lost() || !self.has_room(len + FRAME) {
            return;
        }
        self.header(b'$', len);
        let start = self.buf.len();
        for (at, piece) in pieces {
            self.buf.resize(start + at, 0);
            self.buf.extend_from_slice(piece.as_ref());
        }
        self.buf.resize(start + len, 0);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Appends a bulk string from text.
    #[inline]
    pub fn bulk_str(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Appends an integer's digits as a bulk string.
    pub fn bulk_int(&mut self, value: i64) {
        let mut digits = itoa::Buffer::new();
        self.bulk(digits.format(value).as_bytes());
    }

    /// Appends a bulk string, or null for `None`.
    #[inline]
    pub fn bulk_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.bulk(bytes),
            None => self.null(),
        }
    }

    /// Appends null: in RESP2 a null bulk string.
    #[inline]
    pub fn null(&mut self) {
        self.put(if self.is_resp3() { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Appends null in place of an array: in RESP2 a null array.
    #[inline]
    pub fn null_array(&mut self) {
        self.put(if self.is_resp3() { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Appends the header of an array of `len` elements, which follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// Appends the header of a map of `len` pairs, which follow: in RESP2 an array of twice as
    /// many.
    #[inline]
    pub fn map(&mut self, len: usize) {
        let (prefix, scale) = self.map_form();
        self.header(prefix, len * scale);
    }

    /// Appends the header of a set of `len` elements, which follow: in RESP2 an array.
    #[inline]
    pub fn set(&mut self, len: usize) {
        let prefix = self.resp3_or_array(b'~');
        self.header(prefix, len);
    }

    /// Appends the header of a push message of `len` elements, which follow: in RESP2 an array.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let prefix = self.resp3_or_array(b'>');
        self.header(prefix, len);
    }

    /// Appends the header of an attribute of `len` pairs, which follow, before the reply it
    /// describes.
    ///
    /// RESP2 has no attributes: then nothing is written, false is returned, and the pairs must be
    /// left out.
    #[must_use]
    pub fn attribute(&mut self, len: usize) -> bool {
        if self.is_resp3() {
            self.header(b'|', len);
        }
        self.is_resp3()
    }

    /// Appends a double: in RESP2 its text as a bulk string.
    pub fn double(&mut self, value: f64) {
        self.number(num::format_f64(value).as_bytes());
    }

    /// Appends a long double in plain decimal notation: in RESP2 its text as a bulk string.
    pub fn long_double(&mut self, value: LongDouble) {
        self.number(value.to_string().as_bytes());
    }

    /// Appends a boolean: in RESP2 the integer 1 or 0.
    pub fn bool(&mut self, value: bool) {
        if self.is_resp3() {
            self.put(if value { b"#t\r\n" } else { b"#f\r\n" });
        } else {
            self.int(i64::from(value));
        }
    }

    /// Appends an integer of any size by its digits: in RESP2 a bulk string.
    pub fn big_number(&mut self, digits: &str) {
        if self.is_resp3() {
            self.line(b'(', digits.as_bytes());
        } else {
            self.bulk_str(digits);
        }
    }

    /// Appends text with its format, three bytes such as `txt` or `mkd`: in RESP2 a bulk string.
    pub fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        if !self.is_resp3() {
            return self.bulk(text);
        }
        self.header(b'=', text.len() + format.len() + 1);
        self.put(&format);
        self.put(b":");
        self.put(text);
        self.put(b"\r\n");
    }

    /// Begins an array whose length [`Reply::end`] sets.
    pub fn begin_array(&mut self) -> Mark {
        self.begin(b'*', 1)
    }

    /// Begins a map whose number of pairs [`Reply::end`] sets.
    pub fn begin_map(&mut self) -> Mark {
        let (prefix, scale) = self.map_form();
        self.begin(prefix, scale)
    }

    /// Begins a set whose length [`Reply::end`] sets.
    pub fn begin_set(&mut self) -> Mark {
        let prefix = self.resp3_or_array(b'~');
        self.begin(prefix, 1)
    }

    /// Begins a push message whose length [`Reply::end`] sets.
    pub fn begin_push(&mut self) -> Mark {
        let prefix = self.resp3_or_array(b'>');
        self.begin(prefix, 1)
    }

    /// Ends an aggregate of `len` elements, or of `len` pairs in a map.
    ///
    /// Nested aggregates end before the ones around them. Costs a move of the elements' bytes
    /// when `len` has more than one digit.
    pub fn end(&mut self, mark: Mark, len: usize) {
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(len * mark.scale).as_bytes();
        if self.is_lost() {
            return;
        }
        self.buf[mark.at] = mark.prefix;
        let placeholder = mark.at + 1..mark.at + 2;
        if let &[digit] = digits {
            self.buf[placeholder.start] = digit;
        } else if self.has_room(digits.len()) {
            self.buf.splice(placeholder, digits.iter().copied());
        }
    }

    /// Removes an aggregate, with everything rendered since it was begun.
    pub fn discard(&mut self, mark: Mark) {
        self.truncate(mark.at);
    }

    /// Appends replies that are rendered already.
    #[inline]
    pub fn append(&mut self, rendered: &[u8]) {
        self.put(rendered);
    }

    /// Appends replies that are rendered already, with their memory if there are no others.
    pub fn take_over(&mut self, mut other: Self) {
        self.take_lack(&mut other);
        other.spare(self.is_spared() || other.is_spared());
        if self.is_empty() && !self.is_lost() {
            *self = Self { proto: self.proto, lacks_at: self.lacks_at, ..other };
        } else if other.is_lost() {
            self.discard_rest();
        } else {
            self.append(other.as_bytes());
        }
    }

    /// Makes room at once for `bytes` more bytes of strings, the greatest of which takes `greatest`.
    /// If they do not fit, none of them is to be rendered ([`Reply::is_lost`]).
    pub fn reserve(&mut self, bytes: usize, greatest: usize) {
        self.greatest = self.greatest.max(greatest);
        let wanted = self.buf.len().saturating_add(bytes);
        if wanted > self.buf.capacity() && !self.is_lost() && !self.grow(wanted) {
            self.discard_rest();
        }
    }

    /// Ends a piece, which others are to put together: everything rendered since the last one.
    pub fn end_piece(&mut self) {
        self.pieces.push(self.buf.len());
    }

    /// Returns the pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.pieces);
        starts.zip(&self.pieces).map(|(&start, &end)| &self.buf[start..end])
    }

    /// Returns true if some bytes did not fit: then the rendered ones are incomplete.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost_at != WHOLE
    }

    /// Discards everything rendered from here on.
    pub fn discard_rest(&mut self) {
        self.lost_at = self.lost_at.min(self.buf.len());
    }

    /// Replaces the bytes behind the first `len` with an error, if some of them did not fit;
    /// returns true in that case.
    #[inline]
    pub fn replace_lost(&mut self, len: usize) -> bool {
        let lost = self.is_lost() && self.lost_at >= len;
        if lost {
            self.truncate(len);
            self.error(LOST);
            self.lacks_at = self.lacks_at.min(u32::try_from(len).unwrap_or(NO_LACK - 1));
        }
        lost
    }

    /// Returns true if an error has replaced a reply that did not fit. Then no further command of the
    /// client should run at once: it might render as much in vain.
    #[inline]
    pub fn lacks_room(&self) -> bool {
        self.lacks_at != NO_LACK
    }

    /// Moves what [`lacks_room`](Self::lacks_room) tells from another buffer to this one.
    pub fn take_lack(&mut self, other: &mut Self) {
        let is_lack = std::mem::replace(&mut other.lacks_at, NO_LACK) != NO_LACK;
        self.lacks_at = if is_lack { 0 } else { self.lacks_at };
    }

    /// Returns the number of rendered bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Returns true if nothing is rendered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Removes everything behind the first `len` bytes ([`Reply::len`] at an earlier point).
    pub fn truncate(&mut self, len: usize) {
        self.buf.truncate(len);
        self.greatest = if len == 0 { 0 } else { self.greatest };
        let keeps = len > 0 && len >= self.lacks_at as usize;
        self.lacks_at = if keeps { self.lacks_at } else { NO_LACK };
        while self.pieces.pop_if(|end| *end > len).is_some() {}
        if self.is_lost() && len <= self.lost_at {
            self.lost_at = WHOLE;
            // Room that it would need again at once stays.
            self.buf.shrink_to(len + len / GROWTH_PART + FIRST);
            self.taken.set(self.buf.capacity());
        }
    }

    /// Returns the rendered bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buf
    }

    /// Drops the rendered bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
    }

    /// Returns the rendered bytes, whose memory does not count as clients' memory any more. If
    /// something did not fit, returns the error instead.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.replace_lost(0);
        self.buf
    }

    /// Returns true if the buffer takes so many more bytes, growing it if necessary.
    #[inline]
    fn has_room(&mut self, more: usize) -> bool {
        self.buf.capacity() - self.buf.len() >= more || self.make_room(more)
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self, more: usize) -> bool {
        if self.is_lost() {
            return false;
        }
        self.greatest = self.greatest.max(more);
        let wanted = self.buf.len() + more;
        let part = self.buf.len() / GROWTH_PART;
        let fits = self.grow(wanted.max(self.buf.capacity() * 2).max(FIRST))
            || self.grow(wanted + part)
            || (more >= part && self.grow(wanted));
        if !fits {
            self.discard_rest();
        }
        fits
    }

    fn grow(&mut self, capacity: usize) -> bool {
        let counts = capacity > SMALL;
        (!counts || self.taken.try_set_with(capacity, self.greatest, self.is_spared))
            && self.buf.try_reserve_exact(capacity - self.buf.len()).is_ok()
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.has_room(bytes.len()) {
            self.buf.extend_from_slice(bytes);
        }
    }

    fn begin(&mut self, prefix: u8, scale: usize) -> Mark {
        let at = self.buf.len();
        self.put(PLACEHOLDER);
        Mark { at, prefix, scale }
    }

    /// Returns the type byte of a map and the elements each pair counts as.
    #[inline]
    fn map_form(&self) -> (u8, usize) {
        if self.is_resp3() { (b'%', 1) } else { (b'*', 2) }
    }

    #[inline]
    fn resp3_or_array(&self, prefix: u8) -> u8 {
        if self.is_resp3() { prefix } else { b'*' }
    }

    /// Appends the text of a number: `,text` or a bulk string.
    fn number(&mut self, text: &[u8]) {
        if self.is_resp3() {
            self.line(b',', text);
        } else {
            self.bulk(text);
        }
    }

    /// Appends a type byte and a length.
    #[inline]
    fn header(&mut self, prefix: u8, len: usize) {
        if len < 10 {
            self.put(&[prefix, b'0' + len as u8, b'\r', b'\n']);
        } else {
            self.put(&[prefix]);
            self.digits(len);
            self.put(b"\r\n");
        }
    }

    #[inline]
    fn digits(&mut self, value: impl itoa::Integer) {
        let mut digits = itoa::Buffer::new();
        self.put(digits.format(value).as_bytes());
    }

    /// Appends a type byte and one line of text.
    fn line(&mut self, prefix: u8, text: &[u8]) {
        if !self.has_room(text.len() + 3) {
            return;
        }
        self.buf.push(prefix);
        let start = self.buf.len();
        self.buf.extend_from_slice(text);
        for byte in &mut self.buf[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.buf.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
#[path = "../reply_tests.rs"]
mod tests;
