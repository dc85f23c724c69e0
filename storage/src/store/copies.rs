//! Copies of sorted sets that units change. If a unit is rolled back, because it has missed something, the copy
//! takes the place of the changed value, and what of it was in memory stays there. Without a copy the value is
//! forgotten; to count the places of a big sorted set again takes a read of all its rows.

use super::{EntryAddress, Store};
use crate::need::Key;
use crate::value::{Entry, Value};
use hashbrown::HashMap;

/// Maximum number of keys whose values are copied.
const MAX_COPIED: usize = 16;

/// Maximum memory in bytes of a value that is copied.
const MAX_COPY: usize = 16 << 20;

/// Number of units in a row that have not needed their copy after which a key is copied no more.
const MAX_IN_VAIN: u32 = 64;

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Keys of which units have lost what was in memory, each with the number of copies in a row since that were
    /// not needed.
    wanted: HashMap<Key, u32>,
    /// Entries as they were before the unit that is open.
    taken: HashMap<Key, Entry>,
}

impl Copies {
    /// Makes units copy a key from now on before they change it.
    fn want(&mut self, key: Key) {
        if self.wanted.len() >= MAX_COPIED && !self.wanted.contains_key(&key) {
            self.wanted.clear();
        }
        self.wanted.insert(key, 0);
    }

    /// Takes the copies of a unit that is rolled back.
    pub(super) fn take(&mut self) -> HashMap<Key, Entry> {
        std::mem::take(&mut self.taken)
    }

    /// Drops the copies of a unit that was not rolled back.
    pub(super) fn drop_unused(&mut self) {
        for (key, _) in self.taken.drain() {
            if let Some(in_vain) = self.wanted.get_mut(&key) {
                *in_vain += 1;
            }
        }
        self.wanted.retain(|_, in_vain| *in_vain < MAX_IN_VAIN);
    }
}

impl Entry {
    /// Returns true if it costs much to have it in memory again as it is now.
    fn is_worth_a_copy(&self) -> bool {
        matches!(&self.value, Value::Zset(zset) if zset.has_rows())
            && self.value.memory() <= MAX_COPY
    }

    /// Returns a copy of a sorted set's entry.
    fn copied(&self) -> Option<Self> {
        let Value::Zset(zset) = &self.value else { return None };
        let (value, stored) = (Value::Zset(zset.clone()), self.stored.clone());
        Some(Self { key: self.key.clone(), value, stored, ..*self })
    }
}

impl Store {
    /// Returns true if any key is copied before a unit changes it.
    #[inline]
    pub(super) fn makes_copies(&self) -> bool {
        !self.copies.wanted.is_empty()
    }

    /// Copies an entry that is about to be changed, if units have lost it before.
    #[cold]
    pub(super) fn copy_before_change(&mut self, found: EntryAddress) {
        let entry = found.entry(self);
        let is_first = match self.is_workspace() {
            true => !entry.was_changed(),
            false => self.unit.is_open() && !entry.dirty,
        };
        if !is_first || !entry.is_worth_a_copy() {
            return;
        }
        let key: Key = (found.db, (&*entry.key).into());
        if self.copies.wanted.contains_key(&key)
            && let Some(copy) = entry.copied()
        {
            self.copies.taken.insert(key, copy);
        }
    }

    /// Makes units copy a key before they change it, if the value that is about to be forgotten is worth it.
    pub(super) fn want_copy(&mut self, db: u32, key: &[u8]) {
        let at = self.layout.key_hash(key);
        if self.get_mut(db, at, key).is_some_and(|entry| entry.is_worth_a_copy()) {
            self.copies.want((db, key.into()));
        }
    }

    /// Puts a copy back in the place of the entry that a unit has changed.
    pub(super) fn put_back(&mut self, db: u32, key: &[u8], copy: Entry) {
        let at = self.layout.key_hash(key);
        let Some(entry) = self.get_mut(db, at, key) else { return };
        let (large, counted) = (entry.large, copy.counted);
        let before = std::mem::replace(entry, copy).counted;
        entry.large = large;
        self.memory = self.memory.saturating_sub(before) + counted;
    }

    /// Makes a workspace copy keys that earlier attempts of its unit have lost.
    pub fn copy_lost(&mut self, lost: &[Key]) {
        lost.iter().for_each(|key| self.copies.want(key.clone()));
    }

    /// Takes back the changes of a workspace of which there are copies, and returns the keys that the next attempt
    /// of its unit is to copy: the same, and those whose changed values are to be forgotten.
    pub fn take_back_copied(&mut self) -> Vec<Key> {
        for ((db, key), copy) in self.copies.take() {
            self.put_back(db, &key, copy);
        }
        let mut lost: Vec<Key> = self.copies.wanted.keys().cloned().collect();
        for (db, tables) in (0u32..).zip(&self.dbs) {
            let entries = tables.tables.iter().flat_map(|table| table.entries.iter());
            let is_lost = |entry: &&Entry| entry.was_changed() && entry.is_worth_a_copy();
            lost.extend(entries.filter(is_lost).map(|entry| (db, entry.key().into())));
        }
        lost.truncate(MAX_COPIED);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::{Need, Part};
    use crate::store::scope::tests::store;
    use crate::value::Zset;

    const KEY: &[u8] = b"{z}";
    const OTHER: &[u8] = b"{z}o";

    /// Reads a sorted set of a thousand members, one of which is in memory.
    fn load(store: &mut Store) {
        let zset = Zset::from_meta(7, (1000, 20_000), (0.0, 1000.0), true);
        let mut entry = Entry::absent(KEY, 0);
        (entry.value, entry.stored.live) = (Value::Zset(Box::new(zset)), true);
        let row = 1f64.to_bits().to_be_bytes();
        entry.value.collection_mut().unwrap().apply_named(b"m", Some(&row)).unwrap();
        store.apply_loaded(0, entry);
    }

    fn change(store: &mut Store) {
        let mut entry = store.typed_mut::<Zset>(0, KEY).unwrap().unwrap();
        entry.typed_mut::<Zset>().unwrap().set(b"m", 2.0);
    }

    fn has_member(store: &mut Store) -> bool {
        let part = Some(Part::Fields(vec![b"m"[..].into()]));
        store.has_part(&Need { db: 0, key: KEY.into(), part })
    }

    fn score(store: &mut Store) -> f64 {
        let zset: &Zset = store.typed(0, KEY).unwrap().unwrap();
        zset.score(b"m").unwrap().unwrap()
    }

    #[test]
    fn a_unit_that_is_rolled_back_again_keeps_what_is_in_memory() {
        let mut store = store();
        // It is no workspace.
        store.own_none();
        (0..2).for_each(|shard| store.take_in(shard, std::iter::once(0)));
        load(&mut store);
        assert!(has_member(&mut store));
        store.begin_unit();
        change(&mut store);
        store.roll_back(1);
        assert!(!has_member(&mut store) && !store.is_hot(0, KEY), "it is forgotten");
        load(&mut store);
        let memory = store.memory();
        for _ in 0..3 {
            store.begin_unit();
            change(&mut store);
            assert!(store.is_unsettled(0, KEY));
            change(&mut store);
            assert_eq!(score(&mut store), 2.0);
            store.roll_back(1);
            assert!(has_member(&mut store) && !store.is_unsettled(0, KEY));
            assert_eq!((score(&mut store), store.memory()), (1.0, memory));
            assert!(store.seal().is_empty(), "nothing is to be stored");
        }
        // A copy that is not used costs its making.
        for _ in 0..MAX_IN_VAIN {
            assert!(store.makes_copies());
            store.begin_unit();
            change(&mut store);
            store.end_unit();
            store.seal();
        }
        assert!(!store.makes_copies());
    }

    #[test]
    fn a_key_that_its_unit_has_deleted_or_renamed_comes_back() {
        for end in [
            |store: &mut Store| assert!(store.remove(0, KEY).unwrap()),
            |store: &mut Store| store.rename((0, KEY), (0, OTHER)).unwrap(),
        ] {
            let mut store = store();
            store.copies.want((0, KEY.into()));
            load(&mut store);
            store.begin_unit();
            change(&mut store);
            end(&mut store);
            store.roll_back(1);
            assert_eq!(score(&mut store), 1.0);
            assert!(!store.is_hot(0, OTHER) || !store.exists(0, OTHER).unwrap());
        }
    }

    #[test]
    fn a_workspace_takes_changes_back_of_keys_that_were_lost_before() {
        let owner = store();
        let mut space = owner.workspace(&[1]);
        load(&mut space);
        change(&mut space);
        let lost = space.take_back_copied();
        assert_eq!(lost, [(0, KEY.into())], "the next attempt is to copy it");
        assert!(space.drain().iter().all(|(_, entry)| entry.was_changed()));
        let mut space = owner.workspace(&[1]);
        space.copy_lost(&lost);
        load(&mut space);
        change(&mut space);
        assert_eq!(space.take_back_copied(), lost);
        assert_eq!(score(&mut space), 1.0);
        assert!(space.drain().iter().all(|(_, entry)| !entry.was_changed()));
    }
}
