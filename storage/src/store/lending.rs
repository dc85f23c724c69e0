//! Entries that are lent to a command on keys of several workers, and their return.

use super::big::measure;
use super::{DirtyKey, Store};
use crate::notes::NoteKind;
use crate::slot::KeyHash;
use crate::value::Entry;
use crate::words::RemovalCause;

impl Store {
    /// Lends an entry: it leaves the table. The key must stay locked until the entry is given back.
    /// Returns `None` when the entry is not in memory, or the database does not exist.
    pub fn lend(&mut self, db: u32, key: &[u8]) -> Option<Entry> {
        let at = self.layout.key_hash(key);
        let table = self.dbs.get_mut(db as usize)?.table(at.slot);
        if let Some(mut entry) = table.remove_if(at.hash, key, |_| true) {
            self.memory = self.memory.saturating_sub(entry.counted);
            (entry.visible, entry.sealed) = (false, false);
            return Some(entry);
        }
        self.is_hot(db, key).then(|| Entry::absent(key, at.hash))
    }

    /// Inserts an entry unchanged (a loan, or its return).
    pub fn adopt(&mut self, db: u32, mut entry: Entry) {
        let at = KeyHash { slot: crate::slot::slot_of(&entry.key), hash: entry.hash };
        entry.large = false;
        if entry.count().grew_large {
            self.large.push_back(DirtyKey { db, at, key: entry.key.clone() });
        }
        let table = self.dbs[db as usize].table(at.slot);
        self.memory += entry.counted;
        table.insert(entry);
    }

    /// Takes back a lent entry after a commit: replies that show it wait until the open round is
    /// closed, and do not fail with it. An entry that comes back changed but not committed (it had
    /// expired, and the command was broken off) is committed with the open round.
    pub fn give_back(&mut self, db: u32, mut entry: Entry, written: bool) {
        if written || entry.dirty {
            entry.round = if entry.dirty { self.round } else { self.stored_round() };
            let what = if entry.visible { NoteKind::Changed } else { NoteKind::Touched };
            self.notes.changed(db, &entry.key, what);
        }
        if entry.dirty {
            if !written && !entry.is_live() {
                // The words of the command that has found it expired are discarded.
                self.words.removal(db, &entry.key, RemovalCause::Expired);
            }
            let at = self.layout.key_hash(&entry.key);
            self.dirty.push(DirtyKey { db, at, key: entry.key.clone() });
        } else if !written && entry.round == 0 && !entry.is_live() && self.is_hot(db, &entry.key) {
            // The entry was made for the loan: the key is known to be absent without it.
            return;
        }
        entry.counted = entry.memory();
        let generation = self.generation(db);
        let at = KeyHash { slot: crate::slot::slot_of(&entry.key), hash: entry.hash };
        if !entry.dirty && !entry.is_live() {
            // The one that it had may have gone while it was lent.
            self.add_tombstone_as_of(entry.round, DirtyKey { db, at, key: entry.key.clone() });
        }
        self.see_size(generation, at, &entry.key, measure(&entry.value));
        self.adopt(db, entry);
    }

    /// Drops an entry that does not count (a failed commit, a rolled-back unit): the state on disk
    /// counts.
    pub fn forget(&mut self, db: u32, key: &[u8]) {
        let at = self.layout.key_hash(key);
        let table = self.dbs[db as usize].table(at.slot);
        table.note_lost(key);
        if let Some(entry) = table.remove_if(at.hash, key, |_| true) {
            self.memory = self.memory.saturating_sub(entry.counted);
        }
    }

    /// Takes every entry out of a workspace.
    pub fn drain(&mut self) -> Vec<(u32, Entry)> {
        let mut out = Vec::new();
        for (db, tables) in (0u32..).zip(&mut self.dbs) {
            for table in &mut tables.tables {
                let entries = std::mem::take(&mut table.entries);
                out.extend(entries.into_elements().into_iter().map(|e| (db, e)));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::store::scope::tests::store;
    use crate::value::{Str, Value};

    #[test]
    fn absent_entries_that_were_lent_leave_memory_once_their_round_is_durable() {
        let mut store = store();
        store.entry_mut(0, b"k").unwrap().value = Value::Str(Str::new(b"1"));
        store.seal();
        for written in [false, true] {
            store.begin(2, true);
            store.entry_mut(0, b"k").unwrap().value = Value::Absent;
            let round = store.seal().round;
            let lent = store.lend(0, b"k").unwrap();
            assert_eq!(lent.round, round);
            // It becomes durable while it is lent.
            store.settle(round);
            store.give_back(0, lent, written);
            assert!(store.round_of(0, b"k").is_some());
            store.settle(store.stored_round());
            assert!(store.round_of(0, b"k").is_none(), "written: {written}");
        }
    }

    #[test]
    fn entries_returned_as_stored_do_not_carry_the_number_of_the_open_round() {
        let mut store = store();
        store.entry_mut(0, b"k").unwrap().value = Value::Str(Str::new(b"1"));
        store.seal();
        let entry = store.lend(0, b"k").unwrap();
        store.give_back(0, entry, true);
        store.entry_mut(0, b"other").unwrap().value = Value::Str(Str::new(b"1"));
        let open = store.round();
        let failed = store.seal();
        store.unseal(&failed);
        store.begin(2, true);
        assert!(store.exists(0, b"k").unwrap());
        assert_eq!(store.seen(), open - 1, "it was in the journal before");
        assert!(!store.is_hot(0, b"other"));
    }

    #[test]
    fn a_key_that_is_known_to_be_absent_takes_no_memory_when_it_comes_back() {
        let mut store = store();
        let before = store.memory();
        for n in 0..1000 {
            let entry = store.lend(0, format!("k{n}").as_bytes()).unwrap();
            store.give_back(0, entry, false);
        }
        assert_eq!(store.memory(), before);
        assert!(store.is_hot(0, b"k1") && !store.exists(0, b"k1").unwrap());
        // An entry whose deletion may not be durable yet keeps its round.
        let mut entry = store.lend(0, b"k2").unwrap();
        entry.dirty = true;
        store.give_back(0, entry, false);
        assert_eq!(store.round_of(0, b"k2"), Some(store.round()));
    }

    #[test]
    fn entries_returned_as_changed_are_of_the_open_round() {
        let mut store = store();
        let mut entry = store.lend(0, b"k").unwrap();
        entry.value = Value::Str(Str::new(b"1"));
        entry.dirty = true;
        store.give_back(0, entry, false);
        store.begin(2, true);
        assert!(store.exists(0, b"k").unwrap());
        assert_eq!(store.seen(), store.round());
    }
}
