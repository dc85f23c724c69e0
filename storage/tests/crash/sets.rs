//! Steps of random histories on sets.

use crate::histories::{History, key};
use crate::model::V;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Set, SetEncoding};
use rand::RngExt;
use std::collections::BTreeSet;

impl History {
    fn member(&mut self) -> Vec<u8> {
        match self.random.random_range(0..60) {
            0 => vec![b'M'; 33_000],
            n => n.to_string().into(),
        }
    }

    /// Returns a key, mostly one that holds a set.
    fn set_key(&mut self) -> (u32, Vec<u8>) {
        let db = self.db();
        let items = self.world.model.dbs[db as usize].iter();
        let sets: Vec<_> = items.filter(|(_, (value, _))| matches!(**value, V::Set(_))).collect();
        if sets.is_empty() || self.random.random_range(0..4) == 0 {
            return (db, key(&mut self.random));
        }
        (db, sets[self.random.random_range(0..sets.len())].0.clone())
    }

    /// Drops elements from memory, sometimes all.
    pub(crate) fn drop_some(&mut self, db: u32, name: &[u8]) {
        let steps = [0, 0, 30, 10_000][self.random.random_range(0..4)];
        if steps > 0 {
            self.world.commit();
            self.world.partition.store.shed(db, name, steps);
        }
    }

    /// Sets a set in the model; its expiry stays.
    fn put_set(&mut self, db: u32, name: &[u8], members: BTreeSet<Vec<u8>>) {
        let was = self.world.model.dbs[db as usize].get(name);
        let is_set = was.is_some_and(|(value, _)| matches!(&**value, V::Set(_)));
        let expiry = if is_set { self.world.model.expiry(db as usize, name) } else { 0 };
        if members.is_empty() {
            self.world.model.dbs[db as usize].remove(name);
        } else {
            self.put(db, name, V::Set(members), expiry);
        }
    }

    /// Adds a few members, or more than a page has.
    pub(crate) fn add_members(&mut self) {
        let (db, name) = self.set_key();
        let mut added: Vec<Vec<u8>> = Vec::new();
        if self.random.random_range(0..8) == 0 {
            let first = self.random.random_range(0..400);
            added.extend((first..first + 800).map(|n: u32| n.to_string().into()));
        }
        for _ in 0..self.random.random_range(1..12) {
            added.push(self.member());
        }
        let is_table = self.random.random();
        let encoding = if is_table { SetEncoding::Table } else { SetEncoding::Listpack };
        self.drop_some(db, &name);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            match entry.typed::<Set>() {
                Some(set) => set.require(added.iter().map(|n| &n[..])).or_load(db, &name)?,
                None => entry.clear(),
            }
            let set = entry.typed_or_new::<Set>()?;
            for name in &added {
                set.add(name);
            }
            set.set_encoding(encoding.max(set.encoding()));
            Ok(())
        });
        let mut members = self.world.model.set(db as usize, &name);
        members.extend(added);
        self.put_set(db, &name, members);
    }

    pub(crate) fn remove_members(&mut self) {
        let (db, name) = self.set_key();
        let mut members = self.world.model.set(db as usize, &name);
        if members.is_empty() {
            return;
        }
        let mut gone: Vec<Vec<u8>> = (0..5).map(|_| self.member()).collect();
        if self.random.random_range(0..4) == 0 {
            gone.extend(members.iter().skip(1).cloned());
        }
        self.drop_some(db, &name);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            if let Some(set) = entry.typed::<Set>() {
                set.require(gone.iter().map(|n| &n[..])).or_load(db, &name)?;
            }
            let set = entry.typed_mut::<Set>().expect("a set");
            for name in &gone {
                set.remove(name);
            }
            entry.clear_if_empty();
            Ok(())
        });
        members.retain(|name| !gone.contains(name));
        self.put_set(db, &name, members);
    }

    /// Pops members like SPOP. Its choice does not follow from the seed.
    pub(crate) fn pop_members(&mut self) {
        let (db, name) = self.set_key();
        let mut members = self.world.model.set(db as usize, &name);
        if members.is_empty() {
            return;
        }
        let len = members.len();
        for _ in 0..self.random.random_range(1..20) {
            let count = self.random.random_range(0..4).min(members.len());
            self.drop_some(db, &name);
            let popped: Vec<Vec<u8>> = self.world.run(|store| {
                let mut entry = store.entry_mut(db, &name)?;
                let Some(set) = entry.typed::<Set>() else { return Ok(Vec::new()) };
                let drawn = set.sample(count).or_load(db, &name)?;
                let popped: Vec<Vec<u8>> = drawn.into_iter().map(<[u8]>::to_vec).collect();
                let set = entry.typed_mut::<Set>().expect("a set");
                for name in &popped {
                    set.remove(name);
                }
                entry.clear_if_empty();
                Ok(popped)
            });
            assert_eq!(popped.len(), count, "as many as were asked for, of {len}");
            for name in &popped {
                assert!(members.remove(name), "each was a member");
            }
            // Loads return committed values, so the model must have them.
            self.put_set(db, &name, members.clone());
        }
    }
}
