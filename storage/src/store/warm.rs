//! Touching entries and elements ahead of the commands that look them up.

use super::Store;
use super::tables::SubTable;
use crate::prefetch::prefetch_whole;
use crate::slot::KeyHash;
use crate::table::Table;
use crate::value::{ElementHint, Entry};

/// Elements up to which a collection in use is assumed to be in the processor's caches.
const IN_CACHE: u64 = 4096;

impl Store {
    /// Touches the entries and values of keys, so that they are in the processor's caches when the
    /// commands run: each step of the search for all keys together.
    #[inline]
    pub fn warm(&self, keys: impl Iterator<Item = (u32, KeyHash)> + Clone) {
        keys.clone().for_each(|(db, at)| self.prefetch_index(db, at));
        keys.clone().for_each(|(db, at)| self.prefetch_entry(db, at));
        keys.for_each(|(db, at)| self.touch(db, at));
    }

    #[inline]
    fn entries_around(&self, db: u32, at: KeyHash) -> Option<&Table<Entry>> {
        let db = self.dbs.get(db as usize)?;
        db.tables.get(db.table_of(at.slot)).map(SubTable::entries)
    }

    #[inline]
    fn prefetch_index(&self, db: u32, at: KeyHash) {
        if let Some(entries) = self.entries_around(db, at) {
            entries.touch_index(at.hash);
        }
    }

    /// Prefetches what is most likely a key's entry, without reading it.
    #[inline]
    fn prefetch_entry(&self, db: u32, at: KeyHash) {
        if let Some(entry) = self.entries_around(db, at).and_then(|e| e.touched(at.hash)) {
            prefetch_whole(entry);
        }
    }

    /// Touches a key's entry and value.
    #[inline]
    fn touch(&self, db: u32, at: KeyHash) {
        if let Some(entry) = self.same_hash(db, at) {
            std::hint::black_box((entry.round, entry.value.touch()));
        }
    }

    /// Returns the hash of a key and its slot, for [`warm`](Self::warm).
    pub fn key_hash(&self, key: &[u8]) -> KeyHash {
        self.layout.key_hash(key)
    }

    /// Returns what is most likely a key's entry.
    fn same_hash(&self, db: u32, at: KeyHash) -> Option<&Entry> {
        let entries = self.entries_around(db, at)?;
        if entries.is_indexed() {
            return entries.touched(at.hash);
        }
        entries.iter().find(|e| e.hash == at.hash)
    }

    /// Touches elements of a key's collection if it is large, and returns their number.
    pub fn warm_elements<'a>(
        &self,
        db: u32,
        at: KeyHash,
        wanted: impl Iterator<Item = ElementHint<'a>>,
    ) -> usize {
        let collection = self
            .same_hash(db, at)
            .and_then(|e| e.value.collection())
            .filter(|c| c.len() > IN_CACHE);
        let Some(collection) = collection else { return 0 };
        let mut count = 0;
        collection.touch(&mut wanted.inspect(|_| count += 1));
        count
    }
}
