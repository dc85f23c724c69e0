//! Strings: an integer, bytes, or chunks.

use crate::need::Part;
use crate::prefetch::prefetch_all;
use crate::reclaim::{Parts, Reclaimed};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::Range;

/// Bytes of a chunk of a big string; also the greatest size of a string kept in its meta row.
pub const CHUNK: usize = 16 * 1024;

/// Number of missing chunks from which on, if they are more than half of the value's, one scan
/// reads them; it also finds the holes for good.
const READ_SINGLY: usize = 16;

/// Approximate memory overhead of a chunk, in bytes.
const CHUNK_OVERHEAD: usize = 48;

/// Longest string that Redis keeps in one allocation with its object ("embstr").
const EMBSTR_MAX: usize = 44;

/// Bytes of a value that are prefetched: the processor fetches the rest by itself.
const TOUCHED: usize = 1024;

/// A string value.
#[derive(Clone, Debug)]
pub enum Str {
    /// An integer whose decimal form is the value.
    Int(i64),
    /// Set whole and at most 44 bytes long: OBJECT ENCODING returns embstr.
    Emb(Box<[u8]>),
    Raw(Vec<u8>),
    /// Longer than [`CHUNK`]: stored in element rows of a chunk each.
    Big(Box<BigStr>),
}

type Chunks = BTreeMap<u32, Vec<u8>>;

impl Parts for Chunks {
    fn parts(&self) -> usize {
        self.len()
    }
}

/// Returns true if a value kept in one piece may keep memory of so many bytes, without wasting
/// much.
fn fits_as_raw(bytes: &[u8], capacity: usize) -> bool {
    let len = bytes.len();
    (EMBSTR_MAX + 1..=CHUNK).contains(&len) && (len..=len + len / 4).contains(&capacity)
}

/// A string in chunks, some of which may not be in memory.
#[derive(Clone, Debug, Default)]
pub struct BigStr {
    pub(crate) version: u64,
    pub(crate) len: u64,
    /// The chunks in memory, by number. A chunk shorter than [`CHUNK`] is followed by zeros.
    pub(crate) chunks: Reclaimed<Chunks>,
    /// Bytes of the chunks in memory.
    pub(crate) held: usize,
    /// True if a chunk that is not in `chunks` is a hole of zeros, not an unloaded one.
    pub(crate) complete: bool,
    /// From this number on that is so in any case: the string was shorter when it was stored.
    pub(crate) holes_from: u32,
    /// Chunks with changes not in the journal.
    pub(crate) dirty: BTreeSet<u32>,
}

impl Str {
    /// Creates a value as SET stores it: an integer if the text is one, else bytes.
    pub fn new(bytes: &[u8]) -> Self {
        if let Some(n) = parse_int(bytes) {
            return Self::Int(n);
        }
        Self::text(bytes)
    }

    /// Replaces the value with [`Str::new`] of other bytes, in its present memory if that fits.
    pub fn set(&mut self, bytes: &[u8]) {
        match self {
            Self::Raw(v) if fits_as_raw(bytes, v.capacity()) && parse_int(bytes).is_none() => {
                v.clear();
                v.extend_from_slice(bytes);
            }
            Self::Emb(b) if b.len() == bytes.len() && parse_int(bytes).is_none() => {
                b.copy_from_slice(bytes);
            }
            _ => *self = Self::new(bytes),
        }
    }

    /// Like [`new`](Self::new), without looking for an integer: INCRBYFLOAT leaves "embstr"
    /// whatever the text.
    pub fn text(bytes: &[u8]) -> Self {
        if bytes.len() <= EMBSTR_MAX {
            Self::Emb(bytes.into())
        } else if bytes.len() <= CHUNK {
            Self::Raw(bytes.into())
        } else {
            Self::Big(Box::new(BigStr::new(bytes)))
        }
    }

    /// Creates a "raw" value without looking for an integer (APPEND and SETRANGE).
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        if bytes.len() <= CHUNK {
            Self::Raw(bytes)
        } else {
            Self::Big(Box::new(BigStr::new(&bytes)))
        }
    }

    /// Returns the length in bytes.
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

    /// Reads its first and last byte, and prefetches those between.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let bytes: &[u8] = match self {
            Self::Int(_) | Self::Big(_) => &[],
            Self::Emb(b) => b,
            Self::Raw(v) => v,
        };
        prefetch_all(&bytes[..bytes.len().min(TOUCHED)]);
        let end = |byte: Option<&u8>| u64::from(byte.copied().unwrap_or_default());
        end(bytes.first()) + end(bytes.last())
    }

    /// Returns "int", "embstr" or "raw".
    pub fn encoding(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Emb(_) => "embstr",
            Self::Raw(_) | Self::Big(_) => "raw",
        }
    }

    /// Returns the approximate memory use beside the enum itself, in bytes.
    pub fn memory(&self) -> usize {
        match self {
            Self::Int(_) => 0,
            Self::Emb(b) => b.len(),
            Self::Raw(v) => v.capacity(),
            Self::Big(big) => size_of::<BigStr>() + big.held + big.chunks.len() * CHUNK_OVERHEAD,
        }
    }

    /// Returns the bytes of a range that lies inside the value, or the part that must be loaded
    /// first.
    pub fn range(&self, range: Range<usize>) -> Result<Cow<'_, [u8]>, Part> {
        match self {
            Self::Int(n) => Ok(Cow::Owned(n.to_string().as_bytes()[range].to_vec())),
            Self::Emb(b) => Ok(Cow::Borrowed(&b[range])),
            Self::Raw(v) => Ok(Cow::Borrowed(&v[range])),
            Self::Big(big) => big.range(range).map(Cow::Owned),
        }
    }

    /// Returns the whole value.
    pub fn whole(&self) -> Result<Cow<'_, [u8]>, Part> {
        self.range(0..self.len())
    }

    /// Checks that everything needed by [`Str::write_at`] with `len` bytes is in memory.
    pub fn require_write(&self, offset: usize, len: usize) -> Result<(), Part> {
        match self {
            Self::Big(big) => big.require_write(offset, len),
            Self::Int(_) | Self::Emb(_) | Self::Raw(_) => Ok(()),
        }
    }

    /// Overwrites from `offset` on, growing with zeros. Changes nothing if a part must be loaded.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Part> {
        if let Self::Big(big) = self {
            return big.write_at(offset, bytes);
        }
        let end = offset + bytes.len();
        if end > CHUNK {
            let mut big = BigStr::new(&self.whole()?);
            big.write_at(offset, bytes)?;
            *self = Self::Big(Box::new(big));
            return Ok(());
        }
        let raw = self.make_raw()?;
        if raw.len() < end {
            raw.resize(end, 0);
        }
        raw[offset..end].copy_from_slice(bytes);
        Ok(())
    }

    /// Extends with zeros to `len` bytes; they take no memory beyond the first [`CHUNK`].
    pub fn grow(&mut self, len: usize) -> Result<(), Part> {
        if len <= self.len() {
            return Ok(());
        }
        if let Self::Big(big) = self {
            big.len = len as u64;
        } else if len > CHUNK {
            let mut big = BigStr::new(&self.whole()?);
            big.len = len as u64;
            *self = Self::Big(Box::new(big));
        } else {
            self.make_raw()?.resize(len, 0);
        }
        Ok(())
    }

    /// Returns the bytes of a string that is not big, for changing them in place.
    fn make_raw(&mut self) -> Result<&mut Vec<u8>, Part> {
        if !matches!(self, Self::Raw(_)) {
            *self = Self::Raw(self.whole()?.into_owned());
        }
        match self {
            Self::Raw(v) => Ok(v),
            // Unreachable: it was made raw above.
            _ => Err(Part::All),
        }
    }

    /// Checks that a range inside the value is in memory.
    pub fn require(&self, range: Range<usize>) -> Result<(), Part> {
        match self {
            Self::Big(big) => big.missing(&range).map_or(Ok(()), Err),
            Self::Int(_) | Self::Emb(_) | Self::Raw(_) => Ok(()),
        }
    }

    /// Returns the stored bytes of a range inside the value, in order, each piece with its offset
    /// in the value, with zeros between them. No piece is empty or crosses a multiple of [`CHUNK`].
    pub fn pieces(
        &self,
        range: Range<usize>,
    ) -> Result<impl Iterator<Item = (usize, Cow<'_, [u8]>)>, Part> {
        let (whole, big) = match self {
            _ if range.is_empty() => (None, None),
            Self::Big(big) => (None, Some(big.pieces(range)?)),
            _ => (Some((range.start, self.range(range)?)), None),
        };
        let big = big.into_iter().flatten().map(|(at, bytes)| (at, Cow::Borrowed(bytes)));
        Ok(whole.into_iter().chain(big))
    }

    /// Creates a value of `len` bytes from its chunks by number: each at most [`CHUNK`] bytes, none
    /// beyond the length. Missing bytes are zeros.
    pub fn from_chunks(len: usize, mut chunks: BTreeMap<u32, Vec<u8>>) -> Self {
        if len <= CHUNK {
            let mut only = chunks.remove(&0).unwrap_or_default();
            only.resize(len, 0);
            return Self::Raw(only);
        }
        let dirty = chunks.keys().copied().collect();
        let held = chunks.values().map(Vec::len).sum();
        let len = len as u64;
        let chunks = Reclaimed(chunks);
        let whole = BigStr { complete: true, ..BigStr::default() };
        Self::Big(Box::new(BigStr { len, chunks, held, dirty, ..whole }))
    }

    /// Appends bytes; cheap on a string that is already raw.
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
    /// Creates a big string of which nothing is in memory.
    pub(crate) fn stored(version: u64, len: u64) -> Self {
        Self { version, len, holes_from: len.div_ceil(CHUNK as u64) as u32, ..Self::default() }
    }

    /// Creates a big string that is wholly in memory, every chunk dirty, under no version yet.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut big = Self { complete: true, ..Self::default() };
        for (n, chunk) in (0u32..).zip(bytes.chunks(CHUNK)) {
            big.chunks.insert(n, chunk.to_vec());
            big.dirty.insert(n);
        }
        big.len = bytes.len() as u64;
        big.held = bytes.len();
        big
    }

    pub(crate) fn require_whole(&self) -> Result<(), Part> {
        if self.complete { Ok(()) } else { Err(Part::All) }
    }

    pub(crate) fn detach(&mut self) {
        self.version = 0;
        self.dirty = self.chunks.keys().copied().collect();
    }

    /// Applies a chunk read from disk (empty: a hole), unless it is known already: that is newer.
    pub(crate) fn apply_loaded(&mut self, n: u32, chunk: &[u8]) {
        if let btree_map::Entry::Vacant(place) = self.chunks.entry(n) {
            place.insert(chunk.to_vec());
            self.held += chunk.len();
        }
    }

    /// Drops the chunks that are in the journal from memory. What is no row of the stored value is a
    /// hole once it was asked for.
    pub(crate) fn shed(&mut self) {
        if self.version == 0 || self.dirty.len() >= self.chunks.len() {
            return;
        }
        let mut all = std::mem::take(&mut self.chunks);
        let dirty = self.dirty.iter().filter_map(|n| Some((*n, all.remove(n)?)));
        *self.chunks = dirty.collect();
        self.held = self.chunks.values().map(Vec::len).sum();
        let behind = self.len.div_ceil(CHUNK as u64) as u32;
        self.holes_from = self.holes_from.max(behind);
        self.complete = false;
    }

    fn missing(&self, range: &Range<usize>) -> Option<Part> {
        if self.complete || range.is_empty() {
            return None;
        }
        let end = ((range.end - 1) / CHUNK + 1) as u32;
        let wanted = (range.start / CHUNK) as u32..end.min(self.holes_from);
        let chunks: Vec<u32> = wanted.filter(|n| !self.chunks.contains_key(n)).collect();
        if chunks.len() > READ_SINGLY && chunks.len() > self.holes_from as usize / 2 {
            return Some(Part::All);
        }
        (!chunks.is_empty()).then_some(Part::Chunks(chunks))
    }

    fn range(&self, range: Range<usize>) -> Result<Vec<u8>, Part> {
        let pieces = self.pieces(range.clone())?;
        let mut out = vec![0; range.len()];
        for (at, bytes) in pieces {
            let from = at - range.start;
            out[from..from + bytes.len()].copy_from_slice(bytes);
        }
        Ok(out)
    }

    /// See [`Str::pieces`].
    fn pieces(&self, range: Range<usize>) -> Result<impl Iterator<Item = (usize, &[u8])>, Part> {
        if let Some(part) = self.missing(&range) {
            return Err(part);
        }
        let chunks = (range.start / CHUNK) as u32..range.end.div_ceil(CHUNK) as u32;
        Ok(self.chunks.range(chunks).filter_map(move |(&n, chunk)| {
            let base = n as usize * CHUNK;
            let from = range.start.max(base);
            let to = range.end.min(base + chunk.len());
            (from < to).then(|| (from, &chunk[from - base..to - base]))
        }))
    }

    /// Checks that chunks which exist and are overwritten in part are known.
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
                self.held += within + take - chunk.len();
                chunk.resize(within + take, 0);
            }
            chunk[within..within + take].copy_from_slice(&bytes[at - offset..at - offset + take]);
            self.dirty.insert(n);
            at += take;
        }
        Ok(())
    }
}

/// Parses an integer, if the text is its canonical decimal form.
pub(super) fn parse_int(bytes: &[u8]) -> Option<i64> {
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
#[path = "string_tests.rs"]
mod tests;
