//! Consumer groups of a stream.

use crate::encoding::{ElementRows, get_varint, put_varint};
use crate::need::{Page, Part};
use anyhow::Result;
use bytes::Bytes;

/// The consumer groups of a stream.
#[derive(Clone, Debug, Default)]
pub struct Groups {}

impl Groups {
    /// Number of groups.
    pub fn len(&self) -> u64 {
        0
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory, about; in constant time.
    pub(super) fn memory(&self) -> usize {
        0
    }

    /// Bytes that they take in the meta row of a packed stream, about; in constant time.
    pub(super) fn packed_bytes(&self) -> usize {
        0
    }

    /// Checks that all of them are in memory.
    pub(super) fn require_whole(&self) -> Result<(), Part> {
        Ok(())
    }

    /// From now on they are in rows.
    pub(super) fn unpack(&mut self) {}

    /// Cuts them loose from their rows. All of them are in memory.
    pub(super) fn detach(&mut self) {}

    /// Writes the rows that changed.
    pub(super) fn seal(&mut self, _rows: &mut ElementRows<'_>) {}

    /// What the meta row has of them: everything, or (`stored`) what finds their rows.
    pub(super) fn encode(&self, out: &mut Vec<u8>, _stored: bool) {
        put_varint(out, self.len());
    }

    /// Reads what [`Groups::encode`] wrote.
    pub(super) fn decode(input: &mut &[u8], _stored: bool) -> Option<Self> {
        (get_varint(input)? == 0).then(Self::default)
    }

    /// All rows were read.
    pub(super) fn learn_all(&mut self, _rows: &[(Bytes, Bytes)]) -> Result<()> {
        Ok(())
    }

    /// A page was read, which may be of others.
    pub(super) fn learn_page(&mut self, _page: &Page) -> Result<()> {
        Ok(())
    }

    /// Whether hardly anything of them is in memory.
    pub(super) fn is_bare(&self) -> bool {
        true
    }

    /// Drops what the journal knows from memory, looking at up to `steps` rows.
    pub(super) fn shed(&mut self, _steps: usize) {}
}
