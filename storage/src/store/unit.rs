//! Units: several commands that run as one (a transaction, a script). Either all their changes
//! count, or all are rolled back unseen.
//!
//! Rolling back forgets the changed entries: they revert to their last journaled value, which is
//! loaded when a command asks for it. So nothing is copied ahead. It requires that the journal has
//! every earlier change of these keys: a unit that would change an entry with changes not yet in a
//! record stops ([`Fault::Unsettled`](super::Fault::Unsettled)), and runs again when they are.

use super::Store;
use crate::encoding::SourcePosition;
use crate::need::{Key, Need};
use crate::value::Entry;
use std::collections::HashMap;

/// State of the open unit.
#[derive(Debug, Default)]
pub(super) struct Unit {
    /// Counts the units, from 1 on.
    last: u32,
    is_open: bool,
    /// Number of dirty keys of the open round when the unit began.
    dirty: usize,
    moved: usize,
    /// Position in the stream of another server when the unit began.
    source: Option<SourcePosition>,
    /// Position in the words of the round when the unit began.
    words: usize,
    /// Hits and misses when the unit began.
    lookups: (u64, u64),
    /// Keys that have a value of which not all is in memory, and the keys that had it when the unit
    /// began.
    renamed: HashMap<Key, Key>,
}

impl Unit {
    /// Returns the number of the open unit; 0: there is none.
    #[inline]
    pub(super) fn number(&self) -> u32 {
        if self.is_open { self.last } else { 0 }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if a change of an entry could be rolled back, or no unit is open.
    #[inline]
    pub(super) fn may_change(&self, entry: &Entry) -> bool {
        !self.is_open || !entry.dirty || entry.unit == self.last
    }
}

impl Store {
    /// Begins a unit: changes from now on may be rolled back.
    pub fn begin_unit(&mut self) {
        // 0 means that no unit is open.
        let last = self.unit.last.wrapping_add(1).max(1);
        let (dirty, moved) = (self.dirty.len(), self.moved.len());
        let (source, words) = (self.source.clone(), self.words.position());
        let (lookups, renamed) = (self.stats.lookups(), HashMap::new());
        self.unit = Unit { last, is_open: true, dirty, moved, source, words, lookups, renamed };
    }

    /// Ends the unit: its changes belong to the open round.
    pub fn end_unit(&mut self) {
        self.unit.is_open = false;
        if self.makes_copies() {
            self.copies.drop_unused();
        }
        // The key may be one of the unit's arguments, whose memory is about to be freed.
        self.hint = None;
    }

    /// Sets the position in the stream of another server: it is stored in the record with the unit's
    /// changes, also if they undo each other and nothing else is in that record. Without changes it is
    /// forgotten.
    pub fn set_source(&mut self, source: SourcePosition) {
        // A workspace opens no unit: without changes, nothing of it is stored.
        if !self.unit.is_open || self.unit_has_changed() {
            self.source = Some(source);
        }
    }

    /// Notes that a key gets the value of another one; `partial`: not all of it is in memory.
    pub(super) fn note_rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), partial: bool) {
        // A workspace opens no unit.
        if !self.unit.is_open && !self.is_workspace() {
            return;
        }
        let key = |(db, key): (u32, &[u8])| (db, key.into());
        let (from, to) = (key(from), key(to));
        let origin = self.unit.renamed.remove(&from).unwrap_or(from);
        if partial {
            self.unit.renamed.insert(to, origin);
        } else {
            self.unit.renamed.remove(&to);
        }
    }

    /// Translates the parts that a unit misses: it is rolled back for them, and then they are part
    /// of the values of other keys than now, if the unit has renamed keys.
    pub fn at_origins(&self, needs: Vec<Need>) -> Vec<Need> {
        if self.unit.renamed.is_empty() {
            return needs;
        }
        let at_origin = |need: Need| match self.unit.renamed.get(&(need.db, need.key.clone())) {
            Some((db, key)) if need.part.is_some() => Need { db: *db, key: key.clone(), ..need },
            _ => need,
        };
        needs.into_iter().map(at_origin).collect()
    }

    /// Returns true if the open unit has changes.
    pub fn unit_has_changed(&self) -> bool {
        self.dirty.len() > self.unit.dirty
    }

    /// Ends the unit and rolls back its changes. `good`: the greatest round that entries loaded
    /// again may be of.
    pub fn roll_back(&mut self, good: u64) {
        let mut copies = self.copies.take();
        self.end_unit();
        self.load_as_of(good);
        self.moved.truncate(self.unit.moved);
        self.source = self.unit.source.take();
        self.words.take_back(self.unit.words);
        let changed = self.dirty.split_off(self.unit.dirty.min(self.dirty.len()));
        for key in &changed {
            if !copies.is_empty()
                && let Some(copy) = copies.remove(&(key.db, (&*key.key).into()))
            {
                self.put_back(key.db, &key.key, copy);
            } else {
                self.revert(key.db, &key.key, good);
            }
        }
        self.notes.take();
        self.stats.set_lookups(self.unit.lookups);
    }

    /// Returns true if a key was changed in the open round.
    pub fn is_unsettled(&mut self, db: u32, key: &[u8]) -> bool {
        let at = self.at(key);
        self.get_mut(db, at, key).is_some_and(|entry| entry.dirty)
    }

    /// Reverts a key to its last journaled value. If that is its absence, the absence stays known.
    fn revert(&mut self, db: u32, key: &[u8], good: u64) {
        let at = self.layout.key_hash(key);
        let Some(entry) = self.get_mut(db, at, key) else { return };
        if entry.stored.live || entry.stored.unseen {
            self.want_copy(db, key);
            return self.forget(db, key);
        }
        let mut absent = Entry::absent(key, at.hash);
        // The absence may belong to a round that is not durable.
        absent.round = good;
        let before = std::mem::replace(entry, absent).counted;
        self.memory = self.memory.saturating_sub(before);
        let tombstone = super::DirtyKey { db, at, key: crate::value::KeyBuf::from_slice(key) };
        self.add_tombstone_as_of(good, tombstone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::Part;
    use crate::store::Fault;
    use crate::store::scope::tests::store;
    use crate::value::{Set, SetEncoding, Str, Typed, Value};

    fn set(store: &mut Store, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let mut entry = store.entry_mut(0, key)?;
        entry.value = Value::Str(Str::new(value));
        Ok(())
    }

    #[test]
    fn the_hash_of_a_key_is_known_no_longer_than_its_unit() {
        let mut store = store();
        let (key, right) = (&b"k"[..], store.at(b"k"));
        let other = store.at(b"other");
        for end in [Store::end_unit, |store: &mut Store| store.roll_back(1)] {
            store.begin_unit();
            store.hint(key, other);
            assert_eq!(store.at(key), other);
            end(&mut store);
            assert_eq!(store.at(key), right);
        }
    }

    #[test]
    fn a_position_is_sealed_with_the_changes_of_its_unit_and_never_later() {
        let mut store = store();
        let position = |serial| SourcePosition { serial, ..SourcePosition::default() };
        let sealed = |store: &mut Store| {
            let mut sealed = store.seal();
            store.seal_source(&mut sealed);
            sealed.source.map(|source| source.serial)
        };
        store.begin_unit();
        store.set_source(position(1));
        store.end_unit();
        set(&mut store, b"other", b"1").unwrap();
        assert_eq!(sealed(&mut store), None, "the unit has changed nothing");
        store.begin_unit();
        set(&mut store, b"key", b"1").unwrap();
        store.set_source(position(2));
        store.roll_back(1);
        set(&mut store, b"other", b"2").unwrap();
        assert_eq!(sealed(&mut store), None, "the unit was rolled back");
        store.begin_unit();
        set(&mut store, b"key", b"1").unwrap();
        store.set_source(position(3));
        store.end_unit();
        assert_eq!(sealed(&mut store), Some(3));
        set(&mut store, b"other", b"3").unwrap();
        assert_eq!(sealed(&mut store), None, "it was of the record before");
        store.begin_unit();
        set(&mut store, b"new", b"1").unwrap();
        store.remove(0, b"new").unwrap();
        store.set_source(position(4));
        store.end_unit();
        assert_eq!(
            sealed(&mut store),
            Some(4),
            "nothing is left of the changes, but they were made"
        );
        set(&mut store, b"other", b"4").unwrap();
        assert_eq!(sealed(&mut store), None);
    }

    #[test]
    fn changes_of_a_unit_are_taken_back() {
        let mut store = store();
        set(&mut store, b"old", b"1").unwrap();
        store.seal();
        set(&mut store, b"other", b"1").unwrap();
        store.begin_unit();
        set(&mut store, b"old", b"2").unwrap();
        set(&mut store, b"old", b"3").unwrap();
        set(&mut store, b"new", b"2").unwrap();
        assert!(store.unit_has_changed());
        store.roll_back(1);
        assert!(!store.is_hot(0, b"old"), "it is on disk");
        assert!(matches!(store.peek(0, b"old"), Err(Fault::Miss(_))));
        assert!(store.peek(0, b"new").unwrap().is_none());
        assert!(store.peek(0, b"unknown").unwrap().is_none(), "the table is complete as before");
        let sealed = store.seal();
        assert_eq!(sealed.keys().collect::<Vec<_>>(), [(0, &b"other"[..])]);
    }

    #[test]
    fn a_lost_key_is_found_again() {
        let mut store = store();
        set(&mut store, b"k", b"1").unwrap();
        store.seal();
        store.begin_unit();
        store.remove(0, b"k").unwrap();
        store.roll_back(1);
        assert!(store.lend(0, b"k").is_none());
        let mut entry = Entry::absent(b"k", 0);
        entry.value = Value::Str(Str::new(b"1"));
        store.apply_loaded(0, entry);
        assert!(store.exists(0, b"k").unwrap());
        store.remove(0, b"k").unwrap();
        store.seal();
        store.settle(u64::MAX);
        assert!(!store.exists(0, b"k").unwrap());
    }

    #[test]
    fn entries_loaded_again_are_as_young_as_the_last_round() {
        let mut store = store();
        set(&mut store, b"k", b"1").unwrap();
        let round = store.seal().round;
        store.begin_unit();
        set(&mut store, b"k", b"2").unwrap();
        set(&mut store, b"gone", b"2").unwrap();
        store.roll_back(round);
        let mut entry = Entry::absent(b"k", 0);
        entry.value = Value::Str(Str::new(b"1"));
        store.apply_loaded(0, entry);
        store.begin(2, true);
        store.exists(0, b"k").unwrap();
        assert_eq!(store.seen(), round);
        store.begin(2, true);
        store.exists(0, b"gone").unwrap();
        assert_eq!(store.seen(), round);
    }

    #[test]
    fn parts_of_renamed_values_are_missed_where_they_were() {
        let mut store = store();
        let origin = |store: &Store, key: &[u8]| {
            let need = Need { db: 0, key: key.into(), part: Some(Part::All) };
            String::from_utf8(store.at_origins(vec![need]).remove(0).key.into()).unwrap()
        };
        for (version, key) in (7..).zip([&b"{x}a"[..], b"{x}b", b"{x}c"]) {
            let mut entry = store.entry_mut(0, key).unwrap();
            entry.value = Set::from_meta(version, (3, 0), SetEncoding::Table).into_value();
        }
        set(&mut store, b"{x}e", b"1").unwrap();
        store.seal();
        store.begin_unit();
        store.rename((0, b"{x}a"), (0, b"{x}b")).unwrap();
        assert_eq!(
            (origin(&store, b"{x}b"), origin(&store, b"{x}c")),
            ("{x}a".into(), "{x}c".into())
        );
        store.rename((0, b"{x}b"), (0, b"{x}d")).unwrap();
        store.rename((0, b"{x}c"), (0, b"{x}a")).unwrap();
        assert_eq!(
            (origin(&store, b"{x}d"), origin(&store, b"{x}a")),
            ("{x}a".into(), "{x}c".into())
        );
        let key = Need { db: 0, key: b"{x}d"[..].into(), part: None };
        assert_eq!(store.at_origins(vec![key.clone()]), [key], "that is no part");
        store.rename((0, b"{x}e"), (0, b"{x}a")).unwrap();
        assert_eq!(origin(&store, b"{x}a"), "{x}a", "all of that value is in memory");
        store.roll_back(1);
        store.begin_unit();
        assert_eq!(origin(&store, b"{x}d"), "{x}d");
    }

    #[test]
    fn a_unit_changes_only_settled_entries() {
        let mut store = store();
        set(&mut store, b"k", b"1").unwrap();
        store.begin_unit();
        assert!(store.exists(0, b"k").unwrap());
        assert!(matches!(set(&mut store, b"k", b"2"), Err(Fault::Unsettled)));
        store.roll_back(1);
        store.seal();
        store.begin_unit();
        set(&mut store, b"k", b"2").unwrap();
        set(&mut store, b"k", b"3").unwrap();
        store.end_unit();
        // Another unit of the same round finds it unsettled again.
        store.begin_unit();
        assert!(matches!(set(&mut store, b"k", b"4"), Err(Fault::Unsettled)));
    }
}
