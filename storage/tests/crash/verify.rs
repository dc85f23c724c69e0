//! Compares a directory with the model.

use crate::model::V;
use crate::world::World;
use flagstone_storage::encoding::{Row, prefix_range};
use flagstone_storage::scan::{Cursor, DueCursor};
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// Compares everything that can be read.
    pub(crate) fn verify(&mut self, at: &str) {
        // If a kill has interrupted a pass over the expiry index, the next one continues.
        self.expire();
        self.verify_counters(at);
        assert_eq!(self.libraries, self.model.libraries, "{at}: libraries");
        self.verify_scan(at);
        self.verify_values(at);
        self.verify_times(at);
    }

    fn verify_counters(&mut self, at: &str) {
        let _counting = self.partition.begin_counting();
        (0..self.shards()).for_each(|shard| self.resolve(shard, true));
        assert_eq!(self.partition.unresolved(), 0);
        for db in 0..self.model.dbs.len() {
            let found = self.partition.totals(db as u32);
            assert_eq!(found, self.model.totals(db), "{at}: counters of database {db}");
        }
    }

    fn verify_values(&mut self, at: &str) {
        let names: BTreeSet<Vec<u8>> =
            self.model.dbs.iter().flatten().map(|(k, _)| k.clone()).collect();
        for db in 0..self.model.dbs.len() {
            for key in &names {
                let found = self.get(db as u32, key);
                let want = self.model.dbs[db].get(key).map(|(v, at)| ((**v).clone(), *at));
                let name = String::from_utf8_lossy(key);
                assert_eq!(found, want, "{at}: database {db}, key {name:?}");
            }
        }
    }

    fn verify_scan(&mut self, at: &str) {
        for db in 0..self.model.dbs.len() {
            let mut found = BTreeMap::new();
            for shard in 0..self.shards() {
                let mut next = Some(Cursor::default());
                let mut pages = 0;
                while let Some(cursor) = next {
                    let limit = 1 + pages % 4;
                    let plan = self.partition.plan_scan(db as u32, shard, cursor, limit).unwrap();
                    let page = self.block_on(plan.run()).unwrap();
                    for key in page.keys {
                        let value = (key.type_name, key.expire_at_ms);
                        let twice = found.insert(key.key.to_vec(), value);
                        assert!(twice.is_none(), "{at}: a scan shows a key twice");
                    }
                    assert!(page.next.is_none_or(|n| n > cursor), "{at}: the cursor stands still");
                    next = page.next;
                    pages += 1;
                }
            }
            let kind = |v: &V| match v {
                V::Str(_) => "string",
                V::Hash(_) => "hash",
                V::Set(_) => "set",
                V::List(_) => "list",
                V::Stream(_) => "stream",
            };
            let want: BTreeMap<_, _> =
                self.model.dbs[db].iter().map(|(k, (v, at))| (k.clone(), (kind(v), *at))).collect();
            assert_eq!(found, want, "{at}: scan of database {db}");
        }
    }

    /// Asserts that the expiry index has each key's expiry, and for each hash that has fields with
    /// expiries a time, which may be too early.
    fn verify_times(&mut self, at: &str) {
        let mut keys = BTreeSet::new();
        let mut fields = BTreeMap::new();
        for shard in 0..self.shards() {
            let from = DueCursor::at(0);
            let plan = self.partition.plan_due(shard, &from, u64::MAX - 1, 10_000).unwrap();
            let (due, rest) = self.block_on(plan.run()).unwrap();
            assert!(rest.is_none());
            for due in due {
                let db = self.partition.store.db_of(due.generation).unwrap() as usize;
                if due.fields {
                    let twice = fields.insert((db, due.key.to_vec()), due.at_ms);
                    assert!(twice.is_none(), "{at}: two times for the fields of a hash");
                } else {
                    keys.insert((db, due.key.to_vec(), due.at_ms));
                }
            }
        }
        let mut want = BTreeSet::new();
        for (db, items) in self.model.dbs.iter().enumerate() {
            for (key, (value, expiry)) in items {
                if *expiry != 0 {
                    want.insert((db, key.clone(), *expiry));
                }
                let V::Hash(hash) = &**value else { continue };
                let times = hash.values().map(|(_, at)| *at).filter(|at| *at != 0);
                let found = fields.remove(&(db, key.clone()));
                if let Some(min) = times.min() {
                    let name = String::from_utf8_lossy(key);
                    assert!(found.is_some_and(|at| at <= min), "{at}: fields of {name}: {found:?}");
                }
            }
        }
        assert_eq!(keys, want, "{at}: expiry index");
        assert!(fields.is_empty(), "{at}: times of fields that do not exist: {fields:?}");
    }

    /// Asserts, after [`World::settle`], that the engines have no unreachable rows.
    pub(crate) fn verify_no_garbage(&mut self, at: &str) {
        let names: Vec<(u32, Vec<u8>)> = (0u32..)
            .zip(&self.model.dbs)
            .flat_map(|(db, keys)| keys.keys().map(move |k| (db, k.clone())))
            .collect();
        let mut versions = BTreeSet::new();
        for (db, key) in names {
            self.get(db, &key);
            if let Some(entry) = self.partition.store.entry_for_part(db, &key) {
                versions.insert(entry.value.version());
            }
        }
        let store = &self.partition.store;
        let live: BTreeSet<u32> = (0..store.databases()).map(|db| store.generation(db)).collect();
        for (id, shard) in &self.partition.shards {
            for kind in [b'M', b'E', b'T', b'D'] {
                let rows = self.block_on(shard.engine().scan(prefix_range(&[kind]), usize::MAX));
                for (key, _) in rows.unwrap() {
                    let row = Row::parse(&key).expect("a row of ours");
                    let reachable = match &row {
                        Row::Meta { generation, .. } | Row::Time { generation, .. } => {
                            live.contains(generation)
                        }
                        Row::Element { version, .. } => versions.contains(version),
                        Row::Dead { .. }
                        | Row::Control { .. }
                        | Row::Library { .. }
                        | Row::Source => false,
                    };
                    assert!(reachable, "{at}: garbage in shard {id}: {row:?}");
                }
            }
        }
    }
}
