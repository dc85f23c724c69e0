//! The tables of a store's databases: the entries by slot, and the keys that are not among them.

use super::own::RemovedEntries;
use crate::slot::{SLOTS, SUB_TABLES, slot_of, sub_table};
use crate::table::{Named, Table};
use crate::value::{Entry, KeyBuf};
use std::collections::HashSet;
use std::ops::Range;

impl Named for Entry {
    const UNINDEXED: usize = 1;

    #[inline]
    fn name(&self) -> &[u8] {
        &self.key
    }
}

/// A sub-table: the keys of some slots.
#[derive(Debug, Default)]
pub(crate) struct SubTable {
    pub(super) entries: Table<Entry>,
    /// Keys that are not among `entries` may exist on disk.
    pub(crate) partial: bool,
    /// In a table that is not partial: keys that are not among `entries` and may exist on disk all
    /// the same.
    lost: HashSet<KeyBuf>,
}

/// Maximum number of a table's lost keys; a table that loses more becomes partial.
const MAX_LOST: usize = 1024;

impl SubTable {
    /// Returns the entries; they have positions, which change when one is removed.
    pub(crate) fn entries(&self) -> &Table<Entry> {
        &self.entries
    }

    /// Returns the entry of a key.
    #[inline]
    pub(super) fn get(&self, hash: u64, key: &[u8]) -> Option<&Entry> {
        self.entries.at(self.entries.find(hash, key)?)
    }

    /// Inserts an entry whose key is not in the table and returns its position.
    pub(super) fn insert(&mut self, entry: Entry) -> usize {
        self.entries.push(entry.hash, entry, |e| e.hash);
        self.entries.len() - 1
    }

    /// Returns the entry at a position for changing it; its key must stay the same.
    pub(crate) fn entry_mut(&mut self, position: usize) -> Option<&mut Entry> {
        self.entries.at_mut(position)
    }

    /// Removes the entry at a position; the last one takes its place.
    pub(crate) fn remove_at(&mut self, position: usize) -> Option<Entry> {
        let removed = self.entries.swap_remove(position, |e| e.hash);
        if self.entries.has_much_room() {
            self.entries.shrink_to(self.entries.len() * 2, |e| e.hash);
        }
        removed
    }

    /// Removes the entry of a key if `fits` returns true for it.
    pub(super) fn remove_if(
        &mut self,
        hash: u64,
        key: &[u8],
        fits: impl FnOnce(&Entry) -> bool,
    ) -> Option<Entry> {
        let position = self.entries.find(hash, key)?;
        self.entries.at(position).is_some_and(fits).then_some(())?;
        self.remove_at(position)
    }

    /// Returns true if a key that is not among the entries may exist.
    #[inline]
    pub(super) fn may_exist(&self, key: &[u8]) -> bool {
        self.partial || (!self.lost.is_empty() && self.lost.contains(key))
    }

    /// Notes that a key has no entry any more but may exist on disk.
    pub(super) fn note_lost(&mut self, key: &[u8]) {
        if self.partial {
            return;
        }
        if self.lost.len() < MAX_LOST {
            self.lost.insert(KeyBuf::from_slice(key));
        } else {
            self.set_partial();
        }
    }

    /// Notes that any key without an entry may exist on disk.
    fn set_partial(&mut self) {
        (self.partial, self.lost) = (true, HashSet::new());
    }

    /// Removes the entries of some slots, among those of others.
    fn remove_some(&mut self, slots: &Range<u16>, removed: &mut Vec<Entry>) {
        let is_there = |key: &[u8]| slots.contains(&slot_of(key));
        removed.extend(self.entries.extract(|entry| is_there(entry.key()), |e| e.hash));
        self.lost.retain(|key| !is_there(key));
    }

    /// Notes that the state of a key is known.
    pub(super) fn note_known(&mut self, key: &[u8]) {
        if !self.lost.is_empty() {
            self.lost.remove(key);
        }
    }
}

/// A logical database.
#[derive(Debug)]
pub(crate) struct Db {
    pub(super) generation: u32,
    /// Empty until the first key.
    pub(crate) tables: Vec<SubTable>,
    /// Number of the last table: 255, or 0 in a workspace.
    last: usize,
    pub(super) partial: bool,
}

impl Db {
    pub(super) fn new(generation: u32, partial: bool) -> Self {
        Self { generation, tables: Vec::new(), last: SUB_TABLES - 1, partial }
    }

    /// Creates a database of a workspace: one table for the few entries of one command.
    pub(super) fn small(generation: u32, partial: bool) -> Self {
        Self { last: 0, ..Self::new(generation, partial) }
    }

    /// Returns the number of the table of a slot.
    #[inline]
    pub(super) fn table_of(&self, slot: u16) -> usize {
        sub_table(slot) & self.last
    }

    /// Returns the slots of a table.
    fn slots_of(&self, number: usize) -> Range<u16> {
        let slots = usize::from(SLOTS) / (self.last + 1);
        (number * slots) as u16..((number + 1) * slots) as u16
    }

    #[inline]
    pub(super) fn table(&mut self, slot: u16) -> &mut SubTable {
        if self.tables.is_empty() {
            self.create_tables();
        }
        let number = self.table_of(slot);
        &mut self.tables[number]
    }

    #[cold]
    fn create_tables(&mut self) {
        let partial = self.partial;
        self.tables.resize_with(self.last + 1, || SubTable { partial, ..SubTable::default() });
    }

    /// Notes that keys of some slots may be on disk only.
    pub(super) fn set_partial(&mut self, slots: &Range<u16>) {
        self.partial = true;
        if !self.tables.is_empty() && !slots.is_empty() {
            let tables = self.table_of(slots.start)..=self.table_of(slots.end - 1);
            self.tables[tables].iter_mut().for_each(SubTable::set_partial);
        }
    }

    /// Removes the entries of some slots.
    pub(super) fn remove(&mut self, slots: &Range<u16>, removed: &mut RemovedEntries) {
        if self.tables.is_empty() || slots.is_empty() {
            return;
        }
        for number in self.table_of(slots.start)..=self.table_of(slots.end - 1) {
            let all = self.slots_of(number);
            let table = &mut self.tables[number];
            if slots.start <= all.start && all.end <= slots.end {
                let fresh = SubTable { partial: table.partial, ..SubTable::default() };
                removed.tables.push(std::mem::replace(table, fresh).entries);
            } else {
                table.remove_some(slots, &mut removed.entries);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_database_has_one_table_for_all_slots() {
        let mut db = Db::small(7, true);
        let keys: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; 3]).collect();
        for key in &keys {
            db.table(slot_of(key)).insert(Entry::absent(key, 1));
        }
        assert_eq!(db.tables.len(), 1);
        assert_eq!(db.table(0).entries.len(), keys.len());
        let (mut removed, half) = (RemovedEntries::default(), 0..SLOTS / 2);
        db.remove(&half, &mut removed);
        let left = keys.iter().filter(|key| !half.contains(&slot_of(key))).count();
        assert!(left > 0 && left < keys.len());
        assert_eq!(db.table(0).entries.len(), left, "only entries of these slots are removed");
        assert_eq!(removed.entries.len(), keys.len() - left);
        db.remove(&(0..SLOTS), &mut removed);
        assert_eq!(db.table(0).entries.len(), 0);
        db.set_partial(&(SLOTS - 1..SLOTS));
        assert!(db.table(0).may_exist(b"any"));
    }

    #[test]
    fn a_table_has_no_more_room_than_its_entries_need() {
        let mut table = SubTable::default();
        let entry = |n: u64| {
            let hash = xxhash_rust::xxh3::xxh3_64(&n.to_be_bytes());
            Entry::absent(&n.to_be_bytes(), hash)
        };
        let keys = 5000;
        for n in 0..keys {
            assert_eq!(table.insert(entry(n)) as u64, n);
        }
        let full = table.entries.capacity();
        assert!(full <= 5000 * 5 / 4, "{full}");
        for n in keys..10 * keys {
            let gone = entry(n - keys);
            assert!(table.remove_if(gone.hash, &gone.key, |_| false).is_none());
            let removed = table.remove_if(gone.hash, &gone.key, |e| e.hash == gone.hash);
            assert_eq!(removed.expect("it is there").key, gone.key);
            assert!(table.remove_if(gone.hash, &gone.key, |_| true).is_none());
            table.insert(entry(n));
        }
        assert_eq!(table.entries.capacity(), full, "keys came and went");
        let last = entry(10 * keys - 1);
        assert!(table.get(last.hash, &last.key).is_some());
        while table.entries.len() > 1000 {
            table.remove_at(0);
        }
        let room = table.entries.capacity();
        assert!((1000..=4000).contains(&room), "{room}");
        let left: Vec<Entry> = std::mem::take(&mut table.entries).into_elements();
        assert_eq!(left.len(), 1000);
    }
}
