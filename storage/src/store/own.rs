//! The shards whose keys a store has, how they come and go, and the generations of their rows.

use super::{Db, Store};
use crate::attached::AttachedShards;
use crate::slot::MAX_SHARDS;
use crate::table::Table;
use crate::value::Entry;
use std::sync::Arc;

/// The shards whose keys a store has.
#[derive(Debug)]
pub(crate) enum OwnShards {
    /// Those of any: a workspace knows only what it is lent.
    Any,
    /// Those for which this is true, by number.
    Listed(Vec<bool>),
}

impl OwnShards {
    #[inline]
    fn has(&self, shard: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(shards) => shards.get(usize::from(shard)).is_some_and(|own| *own),
        }
    }
}

/// Entries of a shard that was detached, to be dropped elsewhere: there may be many.
#[derive(Debug, Default)]
pub struct RemovedEntries {
    pub(super) tables: Vec<Table<Entry>>,
    pub(super) entries: Vec<Entry>,
}

impl RemovedEntries {
    /// Returns their number.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum::<usize>() + self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory that the store has counted for them, in bytes.
    fn counted(&self) -> usize {
        let all = self.tables.iter().flat_map(Table::iter).chain(&self.entries);
        all.map(|entry| entry.counted).sum()
    }
}

impl Store {
    /// Returns true if a key belongs to this store; all keys belong to a workspace.
    pub fn owns(&self, key: &[u8]) -> bool {
        !self.lacks(crate::slot::slot_of(key))
    }

    /// Returns true if another process owns the shard of a key: its value must not change here.
    pub fn mirrors(&self, key: &[u8]) -> bool {
        self.attached.mirrors(self.layout.shard_of(crate::slot::slot_of(key)))
    }

    /// Returns true if the shard of a slot is not attached here. A workspace lacks none.
    #[inline]
    pub(crate) fn lacks(&self, slot: u16) -> bool {
        match &self.own {
            OwnShards::Any => false,
            own @ OwnShards::Listed(_) => !own.has(self.layout.shard_of(slot)),
        }
    }

    /// Returns true if it has the shard of a slot. A workspace has none.
    #[inline]
    pub(super) fn has_shard_of(&self, slot: u16) -> bool {
        !self.is_workspace() && self.own.has(self.layout.shard_of(slot))
    }

    /// Returns true if this store knows only what it is lent.
    pub(super) fn is_workspace(&self) -> bool {
        matches!(self.own, OwnShards::Any)
    }

    /// Makes this the store of a partition that has no shard yet.
    pub(crate) fn own_none(&mut self) {
        self.own = OwnShards::Listed(vec![false; usize::from(MAX_SHARDS)]);
    }

    /// Returns the shards of the process.
    pub fn attached(&self) -> &Arc<AttachedShards> {
        &self.attached
    }

    /// Takes a shard in. `has_keys`: the databases of which it may have keys.
    pub(crate) fn take_in(&mut self, shard: u16, has_keys: impl Iterator<Item = u32>) {
        if let OwnShards::Listed(shards) = &mut self.own
            && let Some(own) = shards.get_mut(usize::from(shard))
        {
            *own = true;
        }
        let slots = self.layout.slots_of(shard);
        for db in has_keys {
            self.dbs[db as usize].set_partial(&slots);
        }
    }

    /// Gives a shard away: its entries leave the memory. The open round must have no changes.
    pub(crate) fn give_away(&mut self, shard: u16) -> RemovedEntries {
        debug_assert!(self.dirty.is_empty(), "changes of a shard are lost");
        if let OwnShards::Listed(shards) = &mut self.own
            && let Some(own) = shards.get_mut(usize::from(shard))
        {
            *own = false;
        }
        let slots = self.layout.slots_of(shard);
        let mut removed = RemovedEntries::default();
        self.dbs.iter_mut().for_each(|db| Db::remove(db, &slots, &mut removed));
        self.memory = self.memory.saturating_sub(removed.counted());
        self.tombstones.retain(|(_, key)| !slots.contains(&key.at.slot));
        self.large.retain(|key| !slots.contains(&key.at.slot));
        self.big.forget(&slots);
        self.set_presence(shard, None);
        removed
    }

    // ---- generations -------------------------------------------------------------------------

    /// Returns the generation that the rows of a database have in a shard. The database's own
    /// ([`generation`](Self::generation)) names it in memory.
    #[inline]
    pub fn row_generation(&self, db: u32, shard: u16) -> u32 {
        self.attached.row_generation(self.generation(db), shard)
    }

    /// Returns the database whose rows have a generation now, in the shard of a key.
    pub fn db_of_row(&self, generation: u32, key: &[u8]) -> Option<u32> {
        if !self.attached.differ() {
            return self.db_of(generation);
        }
        let shard = self.layout.shard_of(crate::slot::slot_of(key));
        (0..self.databases()).find(|db| self.row_generation(*db, shard) == generation)
    }

    /// Returns the generations that the rows of all databases have in a shard.
    pub(crate) fn row_generations(&self, shard: u16) -> Vec<u32> {
        (0..self.databases()).map(|db| self.row_generation(db, shard)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::{Layout, slot_of};
    use crate::store::Versions;
    use crate::value::{Str, Value};

    /// Returns a store that has all of three shards, which share sub-tables.
    fn store() -> Store {
        let layout = Arc::new(Layout::new(3, 1));
        let mut store = Store::new(layout, Arc::new(Versions::new(1)), &[1, 2], false);
        store.own_none();
        (0..3).for_each(|shard| store.take_in(shard, std::iter::empty()));
        store.begin(1, true);
        store
    }

    fn names() -> impl Iterator<Item = Vec<u8>> {
        (0..3000u32).map(|n| n.to_string().into_bytes())
    }

    fn set(store: &mut Store, db: u32, key: &[u8], value: &[u8]) {
        store.entry_mut(db, key).unwrap().value = Value::Str(Str::new(value));
    }

    #[test]
    fn the_entries_of_a_shard_leave_and_those_of_others_stay() {
        let mut store = store();
        let layout = store.layout.clone();
        let is_there = |key: &[u8]| layout.shard_of(slot_of(key)) != 1;
        let large = || (3000..3040u32).map(|n| n.to_string().into_bytes());
        for (n, key) in names().enumerate() {
            set(&mut store, n as u32 % 2, &key, &vec![0; n]);
        }
        large().for_each(|key| set(&mut store, 0, &key, &vec![0; 300_000]));
        store.seal();
        for (n, key) in names().enumerate().step_by(7) {
            assert!(store.remove(n as u32 % 2, &key).unwrap());
        }
        store.seal();
        let of_big =
            |store: &mut Store| store.big_keys().iter().filter(|big| !is_there(&big.key)).count();
        assert!(of_big(&mut store) > 0 && !store.large.is_empty() && !store.tombstones.is_empty());
        let removed = store.give_away(1);
        let gone = names().chain(large()).filter(|key| !is_there(key)).count();
        assert_eq!(removed.len(), gone);
        assert!(
            !removed.tables.is_empty() && !removed.entries.is_empty(),
            "whole tables and parts"
        );
        assert_eq!(of_big(&mut store), 0);
        assert!(store.large.iter().all(|key| is_there(&key.key)) && !store.large.is_empty());
        assert!(store.tombstones.iter().all(|(_, key)| is_there(&key.key)));
        let mut entries = 0;
        let counted: usize = store.lent().inspect(|_| entries += 1).map(|(_, e)| e.counted).sum();
        assert_eq!((entries, store.memory()), (3040 - gone, counted));
        store.settle(u64::MAX);
        let live = names().enumerate().filter(|(n, key)| n % 7 != 0 && is_there(key));
        for (n, key) in live {
            assert!(store.exists(n as u32 % 2, &key).unwrap(), "{n}");
        }
    }

    #[test]
    fn a_shard_that_comes_back_has_keys_that_are_not_in_memory() {
        let mut store = store();
        names().for_each(|key| set(&mut store, 0, &key, b"v"));
        store.seal();
        store.settle(u64::MAX);
        drop(store.give_away(1));
        store.take_in(1, std::iter::once(0));
        let layout = store.layout.clone();
        for (n, key) in names().enumerate() {
            let missing = store.exists(0, &key).is_err();
            assert_eq!(missing, layout.shard_of(slot_of(&key)) == 1, "{n}");
        }
        let unknown = |n: u32| format!("unknown{n}").into_bytes();
        let far = |key: &Vec<u8>| layout.shard_of(slot_of(key)) == 2 && slot_of(key) > 12_000;
        let other = (0..).map(unknown).find(far).unwrap();
        assert!(!store.exists(0, &other).unwrap(), "what others have is known");
    }
}
