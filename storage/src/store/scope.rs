//! The keys that a command may ask for. A command that asks only for declared keys may ask for any;
//! if its keys follow from data, the undeclared ones must be locked for it first.

use super::Store;
use crate::need::Key;
use crate::slot::KeyHash;
use std::collections::BTreeSet;

/// The keys that a command may ask for: any other key counts as missing.
#[derive(Clone, Debug, Default)]
pub enum Scope {
    /// Every key, for a command that asks only for keys it has declared.
    #[default]
    All,
    /// Keys of the store's own shards, while none is locked.
    Own,
    /// These keys.
    Keys(BTreeSet<Key>),
}

impl Store {
    /// Sets the scope of the command that has begun.
    pub fn confine(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Returns true if the command may ask for a key.
    #[inline]
    pub(crate) fn allows(&self, db: u32, at: KeyHash, key: &[u8]) -> bool {
        matches!(self.scope, Scope::All) || self.is_in_scope(db, at, key)
    }

    fn is_in_scope(&self, db: u32, at: KeyHash, key: &[u8]) -> bool {
        match &self.scope {
            Scope::All => true,
            Scope::Own => self.has_shard_of(at.slot),
            Scope::Keys(keys) => keys.contains(&(db, key.into())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::slot::{Layout, slot_of};
    use crate::store::{Fault, Versions};
    use std::sync::Arc;

    /// Returns a store of two databases, all of it in memory.
    pub(crate) fn store() -> Store {
        let layout = Arc::new(Layout::new(2, 1));
        let mut store = Store::new(layout, Arc::new(Versions::new(1)), &[1, 2], false);
        store.begin(1, true);
        store
    }

    fn misses(store: &mut Store, db: u32, key: &[u8]) -> bool {
        match store.entry(db, key) {
            Ok(_) => false,
            Err(Fault::Miss(need)) => {
                assert_eq!((need.db, &*need.key, need.part), (db, key, None));
                true
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_out_of_scope_are_missing() {
        let mut store = store();
        assert!(!misses(&mut store, 0, b"k"));
        store.confine(Scope::Keys([(0, b"k"[..].into())].into()));
        assert!(!misses(&mut store, 0, b"k"));
        assert!(misses(&mut store, 1, b"k"));
        assert!(misses(&mut store, 0, b"other"));
        assert!(store.entry_mut(0, b"other").is_err());
        store.begin(2, true);
        assert!(!misses(&mut store, 0, b"other"), "a scope is of one command");
    }

    #[test]
    fn keys_of_other_shards_are_missing() {
        let mut store = store();
        let shard = store.layout.shard_of(slot_of(b"k"));
        store.own_none();
        store.confine(Scope::Own);
        assert!(misses(&mut store, 0, b"k"));
        store.confine(Scope::All);
        assert!(matches!(store.entry(0, b"k"), Err(Fault::NotOwned(_))));
        assert!(!store.is_hot(0, b"k"));
        store.take_in(shard, std::iter::empty());
        for scope in [Scope::Own, Scope::All] {
            store.confine(scope);
            assert!(!misses(&mut store, 0, b"k"));
        }
    }
}
