//! Whole databases: their generations, and how a unit changes them in its workspace.

use super::{Db, Store};
use crate::keyspace::{Cursor, ScanKey};
use crate::slot::KeyHash;
use crate::value::Entry;

impl Store {
    /// Returns the generations of all databases.
    pub fn generations(&self) -> Vec<u32> {
        self.dbs.iter().map(|db| db.generation).collect()
    }

    /// Returns the generation that names a database in memory; see
    /// [`row_generation`](Self::row_generation) for that of its rows.
    pub fn generation(&self, db: u32) -> u32 {
        self.dbs[db as usize].generation
    }

    /// Returns the database that has a generation now.
    pub fn db_of(&self, generation: u32) -> Option<u32> {
        self.dbs.iter().position(|db| db.generation == generation).map(|db| db as u32)
    }

    /// Gives the databases these generations. A database moves to the index of its generation; one
    /// with a new generation is empty. Returns the removed databases, to be dropped elsewhere. The
    /// open round must have no changes.
    pub fn arrange(&mut self, generations: &[u32]) -> impl Send + 'static {
        let mut old = std::mem::take(&mut self.dbs);
        if !old.iter().map(|db| db.generation).eq(generations.iter().copied()) {
            self.arranged = self.stored_round();
        }
        for &generation in generations {
            let found = old.iter().position(|db| db.generation == generation);
            self.dbs.push(match found {
                Some(at) => old.swap_remove(at),
                None => Db::new(generation, false),
            });
        }
        let tables = old.iter().flat_map(|db| &db.tables);
        let entries = tables.flat_map(|table| table.entries.iter());
        let freed: usize = entries.map(|entry| entry.counted).sum();
        self.memory = self.memory.saturating_sub(freed);
        old
    }

    // ---- workspaces --------------------------------------------------------------------------

    /// Empties a database of a workspace and gives it a new generation.
    pub fn flush(&mut self, db: u32, generation: u32) {
        let old = std::mem::replace(&mut self.dbs[db as usize], Db::small(generation, false));
        self.dirty.retain(|key| key.db != db);
        let entries = old.tables.into_iter().flat_map(|table| table.entries.into_elements());
        self.flushed.extend(entries.map(|entry| (old.generation, entry)));
    }

    /// Exchanges two databases of a workspace.
    pub fn swap(&mut self, a: u32, b: u32) {
        self.dbs.swap(a as usize, b as usize);
        for key in &mut self.dirty {
            key.db = match key.db {
                db if db == a => b,
                db if db == b => a,
                db => db,
            };
        }
    }

    /// Takes the entries of emptied databases of a workspace, with the databases' generations.
    pub fn take_flushed(&mut self) -> Vec<(u32, Entry)> {
        std::mem::take(&mut self.flushed)
    }

    /// Returns the entries of a workspace.
    pub fn lent(&self) -> impl Iterator<Item = (u32, &Entry)> {
        (0u32..).zip(&self.dbs).flat_map(|(db, tables)| {
            tables
                .tables
                .iter()
                .flat_map(|table| table.entries.iter())
                .map(move |entry| (db, entry))
        })
    }

    /// Returns by how many keys a database of a workspace differs from its state in the journal.
    pub fn added_keys(&self, db: u32) -> i64 {
        let entries = self.lent().filter(|(of, _)| *of == db);
        entries.map(|(_, entry)| i64::from(entry.is_live()) - i64::from(entry.stored.live)).sum()
    }

    /// Applies a workspace's changes of a database to a page of its keys, which goes up to `end`.
    pub fn overlay(&self, db: u32, from: Cursor, end: Option<Cursor>, keys: &mut Vec<ScanKey>) {
        let Some(of_db) = self.dbs.get(db as usize) else { return };
        let tables = &of_db.tables;
        if tables.iter().all(|table| table.entries.is_empty()) {
            return;
        }
        keys.retain(|found| {
            let at = self.layout.key_hash(&found.key);
            let table = tables.get(of_db.table_of(at.slot));
            table.is_none_or(|table| table.get(at.hash, &found.key).is_none())
        });
        let live = tables.iter().flat_map(|table| table.entries.iter()).filter(|e| e.is_live());
        let within = live.filter(|entry| {
            let at = KeyHash { slot: crate::slot::slot_of(&entry.key), hash: entry.hash };
            let at = Cursor { slot: at.slot, hash48: at.hash48() };
            at >= from && end.is_none_or(|end| at < end)
        });
        keys.extend(within.map(|entry| ScanKey {
            key: entry.key[..].into(),
            type_name: entry.value.type_name(),
            expire_at_ms: entry.expire_at_ms,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Layout;
    use crate::store::Versions;
    use crate::value::{Str, Value};
    use std::sync::Arc;

    fn store() -> Store {
        let layout = Arc::new(Layout::new(2, 1));
        Store::new(layout, Arc::new(Versions::new(1)), &[1, 2, 3], false)
    }

    fn set(store: &mut Store, db: u32, key: &[u8]) {
        store.entry_mut(db, key).unwrap().value = Value::Str(Str::new(b"v"));
    }

    fn keys(store: &mut Store) -> Vec<(u32, bool)> {
        (0..3).map(|db| (store.generation(db), store.exists(db, b"k").unwrap())).collect()
    }

    #[test]
    fn every_command_shows_an_exchange_of_databases_until_it_is_durable() {
        let mut store = store();
        set(&mut store, 0, b"k");
        let round = store.seal().round;
        store.settle(round);
        store.begin(1, true);
        drop(store.arrange(&[1, 2, 3]));
        assert_eq!((store.exists(2, b"k").unwrap(), store.seen()), (false, 0));
        drop(store.arrange(&[2, 1, 9]));
        let exchanged = store.stored_round();
        for (db, key) in [(0, b"k"), (1, b"k"), (2, b"x")] {
            store.begin(1, true);
            store.exists(db, key).unwrap();
            assert_eq!(store.seen(), exchanged);
            assert_eq!(store.round_shown(db, key), exchanged);
        }
        store.settle(exchanged - 1);
        store.begin(1, true);
        assert_eq!(store.seen(), exchanged);
        store.settle(exchanged);
        store.begin(1, true);
        assert_eq!((store.seen(), store.round_shown(2, b"x")), (0, 0));
        assert_eq!(store.round_shown(1, b"k"), round);
    }

    #[test]
    fn keys_follow_their_generation() {
        let mut store = store();
        set(&mut store, 0, b"k");
        set(&mut store, 2, b"other");
        store.seal();
        drop(store.arrange(&[2, 1, 9]));
        assert_eq!(keys(&mut store), [(2, false), (1, true), (9, false)]);
        drop(store.arrange(&[7, 8, 9]));
        assert_eq!(keys(&mut store), [(7, false), (8, false), (9, false)]);
        assert_eq!(store.memory(), 0);
    }

    #[test]
    fn changes_of_databases_in_a_unit_are_sealed_where_they_are_now() {
        let owner = store();
        let mut space = owner.workspace(&owner.generations());
        for (db, key) in [(0, b"k"), (1, b"k"), (2, b"k")] {
            let at = owner.layout().key_hash(key);
            let mut entry = Entry::absent(key, at.hash);
            if db != 1 {
                (entry.value, entry.stored.live) = (Value::Str(Str::new(b"v")), true);
            }
            space.adopt(db, entry);
        }
        set(&mut space, 1, b"k");
        space.remove(0, b"k").unwrap();
        assert_eq!([0, 1, 2].map(|db| space.added_keys(db)), [-1, 1, 0]);
        space.swap(0, 1);
        assert_eq!([0, 1, 2].map(|db| space.added_keys(db)), [1, -1, 0]);
        space.flush(1, 9);
        assert_eq!(keys(&mut space), [(2, true), (9, false), (3, true)]);
        // Keys that were deleted before the database was emptied are deleted in its old generation,
        // which another database may have now.
        let sealed = space.seal();
        assert_eq!(sealed.keys().collect::<Vec<_>>(), [(0, &b"k"[..])]);
        let body = sealed.body();
        let ops = crate::commit::split_body(&body).unwrap();
        let mut puts = Vec::new();
        for op in ops.into_iter().flat_map(|(_, ops)| crate::encoding::OpReader::new(ops)) {
            use crate::encoding::{Op, Row};
            let (key, put) = match op {
                Op::Put { key, .. } => (key, true),
                Op::Delete { key, .. } => (key, false),
                Op::Generation { .. } => panic!("no generation"),
                Op::Resize { .. } => continue,
            };
            let Some(Row::Meta { generation, .. }) = Row::parse(key) else { panic!("{key:?}") };
            puts.push((generation, put));
        }
        puts.sort_unstable();
        assert_eq!(puts, [(1, false), (2, true)]);
    }

    #[test]
    fn a_page_shows_the_changes_of_the_unit() {
        let owner = store();
        let mut space = owner.workspace(&owner.generations());
        let found = |name: &[u8]| ScanKey { key: name.into(), type_name: "set", expire_at_ms: 0 };
        let mut gone = Entry::absent(b"gone", owner.layout().key_hash(b"gone").hash);
        gone.stored.live = true;
        space.adopt(0, gone);
        space.adopt(0, Entry::absent(b"new", owner.layout().key_hash(b"new").hash));
        set(&mut space, 0, b"new");
        let shown = |db, from, end| {
            let mut keys = vec![found(b"gone"), found(b"kept")];
            space.overlay(db, from, end, &mut keys);
            keys.iter().map(|k| String::from_utf8(k.key.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(shown(0, Cursor::START, None), ["kept", "new"]);
        assert_eq!(shown(1, Cursor::START, None), ["gone", "kept"]);
        let slot = crate::slot::slot_of(b"new");
        let here = Cursor { slot, hash48: 0 };
        assert_eq!(shown(0, Cursor::START, Some(here)), ["kept"]);
        assert_eq!(shown(0, Cursor { slot: slot + 1, ..here }, None), ["kept"]);
    }
}
