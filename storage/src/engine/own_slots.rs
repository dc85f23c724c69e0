//! Engines of shards that were split: they have files with rows of slots that are in another shard by now.
//!
//! Such rows do not count. Scans skip them, and merges leave them out, so that they are gone once all files
//! of that time are merged. No row of these slots is ever written here again.

use super::Engine;
use crate::encoding::slot_of_row;
use async_trait::async_trait;
use slatedb::{
    CompactionFilter, CompactionFilterDecision, CompactionFilterError, CompactionFilterSupplier,
    CompactionJobContext, RowEntry,
};
use std::ops::Range;
use std::sync::PoisonError;

/// The slots whose rows count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnSlots(pub(crate) Range<u16>);

impl OwnSlots {
    /// Returns true if a row counts: its slot is one of these, or it belongs to none.
    pub(super) fn has(&self, row_key: &[u8]) -> bool {
        slot_of_row(row_key).is_none_or(|slot| self.0.contains(&slot))
    }
}

#[async_trait]
impl CompactionFilterSupplier for OwnSlots {
    async fn create_compaction_filter(
        &self,
        _context: &CompactionJobContext,
    ) -> Result<Box<dyn CompactionFilter>, CompactionFilterError> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl CompactionFilter for OwnSlots {
    async fn filter(
        &mut self,
        entry: &RowEntry,
    ) -> Result<CompactionFilterDecision, CompactionFilterError> {
        // No tombstone: older versions of the row do not count either.
        Ok(match self.has(&entry.key) {
            true => CompactionFilterDecision::Keep,
            false => CompactionFilterDecision::Drop,
        })
    }

    async fn on_compaction_end(&mut self) -> Result<(), CompactionFilterError> {
        Ok(())
    }
}

impl Engine {
    /// Returns the slots whose rows count; `None`: all.
    pub(crate) fn slots(&self) -> Option<Range<u16>> {
        self.opened().slots.map(|own| own.0)
    }

    /// Makes rows of other slots not count from now on, nor when it is opened again: until then, merges keep
    /// them.
    pub(crate) fn narrow(&self, slots: Range<u16>) {
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        opened.slots = Some(OwnSlots(slots));
    }
}
