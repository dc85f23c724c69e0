//! Strings: an integer, bytes, or chunks.

use crate::store::Part;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a chunk of a big string, and the greatest size of a string kept in its meta row.
pub const CHUNK: usize = 16 * 1024;

/// Longest string that Redis keeps in one allocation with its object ("embstr").
const EMBSTR_MAX: usize = 44;

/// A string value.
#[derive(Clone, Debug)]
pub enum Str {
    /// Its decimal form is the value.
    Int(i64),
    /// Set whole and at most 44 bytes long: OBJECT ENCODING says embstr.
    Emb(Box<[u8]>),
    Raw(Vec<u8>),
    /// Longer than [`CHUNK`]: kept in element rows of a chunk each.
    Big(Box<BigStr>),
}

/// A string in chunks, of which some may not be in memory.
#[derive(Clone, Debug, Default)]
pub struct BigStr {
    pub(crate) version: u64,
    pub(crate) len: u64,
    /// The chunks in memory, by number. A chunk may be shorter than [`CHUNK`]: zeros follow.
    pub(crate) chunks: BTreeMap<u32, Vec<u8>>,
    /// Whether a chunk that is not in `chunks` is a hole of zeros rather than not loaded.
    pub(crate) complete: bool,
    /// Chunks the journal has not heard of.
    pub(crate) dirty: BTreeSet<u32>,
}

impl Str {
    /// A value as SET stores it: an integer where the text is one, else bytes.
    pub fn new(bytes: &[u8]) -> Self {
        if let Some(n) = parse_int(bytes) {
            return Self::Int(n);
        }
        Self::text(bytes)
    }

    /// The same without looking for an integer: INCRBYFLOAT leaves "embstr" whatever the text.
    pub fn text(bytes: &[u8]) -> Self {
        if bytes.len() <= EMBSTR_MAX {
            Self::Emb(bytes.into())
        } else {
            Self::from_vec(bytes.into())
        }
    }

    /// A value that is not looked at for an integer (APPEND and SETRANGE leave "raw").
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        if bytes.len() <= CHUNK {
            Self::Raw(bytes)
        } else {
            Self::Big(Box::new(BigStr::new(&bytes)))
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Int(n) => int_len(*n),
            Self::Emb(b) => b.len(),
            Self::Raw(v) => v.len(),
            Self::Big(big) => big.len as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// "int", "embstr" or "raw".
    pub fn encoding(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Emb(_) => "embstr",
            Self::Raw(_) | Self::Big(_) => "raw",
        }
    }

    /// Bytes of memory beside the enum itself, about.
    pub fn memory(&self) -> usize {
        match self {
            Self::Int(_) => 0,
            Self::Emb(b) => b.len(),
            Self::Raw(v) => v.capacity(),
            Self::Big(big) => size_of::<BigStr>() + big.chunks.len() * (CHUNK + 48),
        }
    }

    /// The bytes of a range that lies inside the value, or the part that must be loaded first.
    pub fn range(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>, Part> {
        match self {
            Self::Int(n) => Ok(Cow::Owned(n.to_string().as_bytes()[range].to_vec())),
            Self::Emb(b) => Ok(Cow::Borrowed(&b[range])),
            Self::Raw(v) => Ok(Cow::Borrowed(&v[range])),
            Self::Big(big) => big.range(range).map(Cow::Owned),
        }
    }

    /// The whole value.
    pub fn whole(&self) -> Result<Cow<'_, [u8]>, Part> {
        self.range(0..self.len())
    }

    /// Checks that what [`Str::write_at`] with `len` bytes needs is in memory.
    pub fn require_write(&self, offset: usize, len: usize) -> Result<(), Part> {
        match self {
            Self::Big(big) => big.require_write(offset, len),
            Self::Int(_) | Self::Emb(_) | Self::Raw(_) => Ok(()),
        }
    }

    /// Overwrites from `offset` on, growing with zeros. Nothing is changed if a part must be loaded.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Part> {
        if let Self::Big(big) = self {
            return big.write_at(offset, bytes);
        }
        let mut whole = self.whole()?.into_owned();
        let end = offset + bytes.len();
        if end > CHUNK {
            let mut big = BigStr::new(&whole);
            big.write_at(offset, bytes)?;
            *self = Self::Big(Box::new(big));
            return Ok(());
        }
        if whole.len() < end {
            whole.resize(end, 0);
        }
        whole[offset..end].copy_from_slice(bytes);
        *self = Self::Raw(whole);
        Ok(())
    }

    /// Appends; cheap on a string that is already raw.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Part> {
        if let Self::Raw(v) = self
            && v.len() + bytes.len() <= CHUNK
        {
            v.extend_from_slice(bytes);
            return Ok(());
        }
        self.write_at(self.len(), bytes)
    }
}

impl BigStr {
    /// A big string that is wholly in memory, every chunk dirty, under no version yet.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut big = Self { complete: true, ..Self::default() };
        for (n, chunk) in (0u32..).zip(bytes.chunks(CHUNK)) {
            big.chunks.insert(n, chunk.to_vec());
            big.dirty.insert(n);
        }
        big.len = bytes.len() as u64;
        big
    }

    pub(crate) fn require_whole(&self) -> Result<(), Part> {
        if self.complete { Ok(()) } else { Err(Part::All) }
    }

    pub(crate) fn detach(&mut self) {
        self.version = 0;
        self.dirty = self.chunks.keys().copied().collect();
    }

    fn missing(&self, range: &Range<usize>) -> Option<Part> {
        if self.complete || range.is_empty() {
            return None;
        }
        let wanted = (range.start / CHUNK) as u32..((range.end - 1) / CHUNK + 1) as u32;
        let chunks: Vec<u32> = wanted.filter(|n| !self.chunks.contains_key(n)).collect();
        (!chunks.is_empty()).then_some(Part::Chunks(chunks))
    }

    fn range(&self, range: Range<usize>) -> Result<Vec<u8>, Part> {
        if let Some(part) = self.missing(&range) {
            return Err(part);
        }
        let mut out = vec![0; range.len()];
        if range.is_empty() {
            return Ok(out);
        }
        let first = (range.start / CHUNK) as u32;
        let last = ((range.end - 1) / CHUNK) as u32;
        for (&n, chunk) in self.chunks.range(first..=last) {
            let base = n as usize * CHUNK;
            let from = range.start.max(base);
            let to = range.end.min(base + chunk.len());
            if from < to {
                out[from - range.start..to - range.start]
                    .copy_from_slice(&chunk[from - base..to - base]);
            }
        }
        Ok(out)
    }

    /// Only chunks that are partly overwritten, and exist, must be known.
    fn require_write(&self, offset: usize, len: usize) -> Result<(), Part> {
        if len == 0 {
            return Ok(());
        }
        let end = offset + len;
        let mut edges = Vec::new();
        for edge in [offset, end - 1] {
            let base = edge / CHUNK * CHUNK;
            let known_end = (self.len as usize).min(base + CHUNK);
            if base < known_end
                && (offset > base || end < known_end)
                && let Some(Part::Chunks(chunks)) = self.missing(&(base..base + 1))
                && !edges.contains(&chunks[0])
            {
                edges.extend(chunks);
            }
        }
        if edges.is_empty() { Ok(()) } else { Err(Part::Chunks(edges)) }
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Part> {
        self.require_write(offset, bytes.len())?;
        let end = offset + bytes.len();
        self.len = self.len.max(end as u64);
        let mut at = offset;
        while at < end {
            let n = (at / CHUNK) as u32;
            let within = at % CHUNK;
            let take = (CHUNK - within).min(end - at);
            let chunk = self.chunks.entry(n).or_default();
            if chunk.len() < within + take {
                chunk.resize(within + take, 0);
            }
            chunk[within..within + take].copy_from_slice(&bytes[at - offset..at - offset + take]);
            self.dirty.insert(n);
            at += take;
        }
        Ok(())
    }
}

/// The integer a text stands for, if it is its canonical decimal form.
fn parse_int(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut n = 0i64;
    for &b in digits {
        let digit = i64::from(b.wrapping_sub(b'0'));
        if !(0..=9).contains(&digit) {
            return None;
        }
        n = n.checked_mul(10)?;
        n = if negative { n.checked_sub(digit)? } else { n.checked_add(digit)? };
    }
    Some(n)
}

fn int_len(n: i64) -> usize {
    usize::from(n < 0) + n.unsigned_abs().checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_canonical_only() {
        for (text, want) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            ("", None),
            ("1 ", None),
        ] {
            assert_eq!(parse_int(text.as_bytes()), want, "{text}");
            if let Some(n) = want {
                assert_eq!(int_len(n), text.len());
            }
        }
    }

    #[test]
    fn writes_grow_into_chunks() {
        let mut s = Str::new(b"hello");
        s.write_at(3 * CHUNK + 5, b"world").unwrap();
        assert_eq!(s.len(), 3 * CHUNK + 10);
        assert_eq!(&*s.range(0..6).unwrap(), b"hello\0");
        assert_eq!(&*s.range(3 * CHUNK + 4..3 * CHUNK + 10).unwrap(), b"\0world");
        s.write_at(CHUNK - 2, b"abcd").unwrap();
        assert_eq!(&*s.range(CHUNK - 3..CHUNK + 3).unwrap(), b"\0abcd\0");
    }

    #[test]
    fn a_part_that_is_not_loaded_is_asked_for() {
        let mut big = BigStr::new(&vec![7; 4 * CHUNK]);
        big.complete = false;
        big.chunks.remove(&2);
        let mut s = Str::Big(Box::new(big));
        assert_eq!(s.range(0..3 * CHUNK).unwrap_err(), Part::Chunks(vec![2]));
        assert_eq!(s.write_at(2 * CHUNK + 1, b"x").unwrap_err(), Part::Chunks(vec![2]));
        s.write_at(2 * CHUNK, &vec![1; CHUNK]).unwrap();
        assert_eq!(s.range(2 * CHUNK..2 * CHUNK + 1).unwrap()[0], 1);
    }
}
