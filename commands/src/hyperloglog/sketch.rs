//! A sketch in a string: a header, and registers in one of two encodings.
//!
//! | bytes | |
//! |---|---|
//! | 0–3 | `HYLL` |
//! | 4 | encoding: 0 dense, 1 sparse |
//! | 5–7 | not used |
//! | 8–15 | the last estimate, little-endian; out of date while the highest bit is set |
//! | 16– | the registers |

use super::estimate::Histogram;
use super::registers::{Corrupt, REGISTERS};
use super::{dense, hash, sparse};
use flagstone_storage::store::Part;
use flagstone_storage::value::Str;
use std::borrow::Cow;

const MAGIC: &[u8] = b"HYLL";
const ENCODING: usize = 4;
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const CACHE: usize = 8;
const HEADER: usize = 16;

/// Flag in the last byte of the cached estimate: it is out of date.
const STALE: u8 = 0x80;

/// A sketch. Its bytes are copied at the first change.
#[derive(Debug)]
pub(super) struct Sketch<'a> {
    bytes: Cow<'a, [u8]>,
    changed: bool,
}

impl Sketch<'_> {
    /// Returns a sketch without elements.
    pub(super) fn empty() -> Self {
        let mut bytes = vec![0; HEADER];
        bytes[..MAGIC.len()].copy_from_slice(MAGIC);
        bytes[ENCODING] = SPARSE;
        bytes.extend_from_slice(&sparse::empty());
        Self { bytes: Cow::Owned(bytes), changed: true }
    }
}

impl<'a> Sketch<'a> {
    /// Parses a string as a sketch; `None` if it is none.
    pub(super) fn open(s: &'a Str) -> Result<Option<Self>, Part> {
        if matches!(s, Str::Int(_)) || s.len() < HEADER {
            return Ok(None);
        }
        // The header alone decides whether a big string is loaded as a whole.
        let header = s.range(0..HEADER)?;
        let is_sketch = header.starts_with(MAGIC)
            && match header[ENCODING] {
                DENSE => s.len() == HEADER + dense::BYTES,
                encoding => encoding == SPARSE,
            };
        if !is_sketch {
            return Ok(None);
        }
        Ok(Some(Self { bytes: s.whole()?, changed: false }))
    }

    /// Returns the string to store, if the sketch has changed.
    pub(super) fn into_changed(self) -> Option<Str> {
        self.changed.then(|| Str::from_vec(self.bytes.into_owned()))
    }

    pub(super) fn is_sparse(&self) -> bool {
        self.bytes[ENCODING] == SPARSE
    }

    /// Returns the encoded registers.
    fn body(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }

    fn bytes_mut(&mut self) -> &mut Vec<u8> {
        self.changed = true;
        self.bytes.to_mut()
    }

    /// Returns the runs of a sparse sketch.
    pub(super) fn runs(&self) -> impl Iterator<Item = sparse::RegisterRun> {
        sparse::runs(self.body())
    }

    /// Adds an element; returns true if that raised a register. A sparse sketch becomes dense
    /// before it exceeds `sparse_max` bytes.
    pub(super) fn add(&mut self, element: &[u8], sparse_max: usize) -> Result<bool, Corrupt> {
        let (index, rank) = hash::place(element);
        self.raise(index, rank, sparse_max)
    }

    /// Raises a register to `value`; returns true if it was less.
    pub(super) fn raise(
        &mut self,
        index: usize,
        value: u8,
        sparse_max: usize,
    ) -> Result<bool, Corrupt> {
        if self.is_sparse() {
            if value <= sparse::MAX_VALUE {
                let Some(change) = sparse::raise(self.body(), index, value)? else {
                    return Ok(false);
                };
                let growth = change.growth();
                if growth == 0 || self.bytes.len() + growth <= sparse_max {
                    change.apply(self.bytes_mut(), HEADER);
                    self.invalidate();
                    return Ok(true);
                }
            }
            self.make_dense()?;
        }
        if dense::get(self.body(), index) >= value {
            return Ok(false);
        }
        dense::set(&mut self.bytes_mut()[HEADER..], index, value);
        self.invalidate();
        Ok(true)
    }

    /// Converts the registers to the dense encoding.
    pub(super) fn make_dense(&mut self) -> Result<(), Corrupt> {
        if self.is_sparse() {
            self.replace(&self.registers()?);
        }
        Ok(())
    }

    /// Replaces the registers, in the dense encoding.
    pub(super) fn replace(&mut self, registers: &[u8]) {
        let bytes = self.bytes_mut();
        bytes[ENCODING] = DENSE;
        bytes.truncate(HEADER);
        bytes.extend_from_slice(&dense::pack(registers));
    }

    /// Returns all registers, one byte each.
    pub(super) fn registers(&self) -> Result<Vec<u8>, Corrupt> {
        let mut registers = vec![0; REGISTERS];
        self.merge_into(&mut registers)?;
        Ok(registers)
    }

    /// Raises each of `registers` to that of the sketch.
    pub(super) fn merge_into(&self, registers: &mut [u8]) -> Result<(), Corrupt> {
        if self.is_sparse() {
            return sparse::for_each(self.body(), |first, run| {
                if run.value > 0 {
                    let covered = &mut registers[first..first + run.len];
                    covered.iter_mut().for_each(|r| *r = (*r).max(run.value));
                }
            });
        }
        dense::merge(self.body(), registers);
        Ok(())
    }

    /// Returns the estimated number of different elements.
    pub(super) fn estimate(&self) -> Result<u64, Corrupt> {
        if !self.is_sparse() {
            return Ok(Histogram::of(dense::unpack(self.body())).estimate());
        }
        let mut histogram = Histogram::new();
        sparse::for_each(self.body(), |_, run| histogram.add(run.value, run.len))?;
        Ok(histogram.estimate())
    }

    /// Returns the cached estimate, unless it is out of date.
    pub(super) fn cached(&self) -> Option<u64> {
        let cache = self.bytes[CACHE..].first_chunk::<8>()?;
        (cache[7] & STALE == 0).then(|| u64::from_le_bytes(*cache))
    }

    /// Caches an estimate.
    pub(super) fn cache(&mut self, estimate: u64) {
        self.bytes_mut()[CACHE..HEADER].copy_from_slice(&estimate.to_le_bytes());
    }

    /// Marks the cached estimate as out of date.
    pub(super) fn invalidate(&mut self) {
        self.bytes_mut()[HEADER - 1] |= STALE;
    }
}

#[cfg(test)]
#[path = "sketch_tests.rs"]
mod tests;
