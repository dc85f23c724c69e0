//! The rounds of a store (see the module above): their numbers, the memory of the entries that they
//! change, and tombstones.

use super::{DirtyKey, Store};
use crate::value::{Counted, Entry, KeyBuf};

/// Difference between the numbers of successive rounds.
const ROUND_STEP: u64 = 2;

impl Store {
    /// Returns the number of the open round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns the number of data that is in the journal already but shows with the open round:
    /// replies that saw nothing newer wait until the round is closed, whether or not its record can
    /// be appended.
    pub fn stored_round(&self) -> u64 {
        self.round - 1
    }

    /// Returns true if the open round has changes.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns true if the open round has something for the journal: changes, or words for replicas.
    pub fn has_to_commit(&self) -> bool {
        self.is_dirty() || !self.words.is_empty()
    }

    pub(crate) fn next_round(&mut self) {
        self.round += ROUND_STEP;
    }

    /// Counts the memory of a key's entry anew.
    pub(crate) fn recount(&mut self, db: u32, key: &[u8]) {
        let at = self.layout.key_hash(key);
        self.recount_key(&DirtyKey { db, at, key: KeyBuf::from_slice(key) });
    }

    pub(crate) fn recount_key(&mut self, key: &DirtyKey) {
        if let Some(change) = self.get_mut(key.db, key.at, &key.key).map(Entry::count) {
            self.counted(key, change);
        }
    }

    /// Counts the memory of the entries anew that the open round has changed, from the `first` on,
    /// and returns the number of all that it has changed.
    pub fn recount_changed(&mut self, first: usize) -> usize {
        let changed = std::mem::take(&mut self.dirty);
        changed.iter().skip(first).for_each(|key| self.recount_key(key));
        self.dirty = changed;
        self.dirty.len()
    }

    /// Applies a new memory count of a key's entry.
    pub(crate) fn counted(&mut self, key: &DirtyKey, change: Counted) {
        self.memory = (self.memory + change.after).saturating_sub(change.before);
        if change.grew_large {
            self.large.push_back(key.clone());
        }
    }

    /// Makes entries that are loaded from now on count as written in `round`, which may not be
    /// durable yet.
    pub(crate) fn load_as_of(&mut self, round: u64) {
        self.forgotten = round;
    }

    pub(crate) fn add_tombstone(&mut self, key: DirtyKey) {
        self.add_tombstone_as_of(self.round, key);
    }

    /// Notes a key as absent since a round. The tombstones are ordered by round.
    pub(super) fn add_tombstone_as_of(&mut self, round: u64, key: DirtyKey) {
        let behind = self.tombstones.partition_point(|(r, _)| *r <= round);
        self.tombstones.insert(behind, (round, key));
    }

    /// Returns the approximate memory use of all entries in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Removes the tombstones of rounds up to `durable`, which are durable, together with their
    /// entries where the table is complete.
    pub fn settle(&mut self, durable: u64) {
        if self.arranged <= durable {
            self.arranged = 0;
        }
        while self.tombstones.front().is_some_and(|(round, _)| *round <= durable) {
            let Some((round, key)) = self.tombstones.pop_front() else { return };
            let table = self.dbs[key.db as usize].table(key.at.slot);
            if table.partial {
                continue;
            }
            let settled = |e: &Entry| e.round == round && !e.is_live() && !e.dirty;
            if let Some(entry) = table.remove_if(key.at.hash, &key.key, settled) {
                self.memory = self.memory.saturating_sub(entry.counted);
            }
        }
    }
}
