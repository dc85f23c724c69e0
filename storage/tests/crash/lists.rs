//! Steps of random histories on lists.

use crate::histories::{History, key};
use crate::model::V;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::List;
use rand::RngExt;

impl History {
    fn element(&mut self) -> Vec<u8> {
        let len = match self.random.random_range(0..30) {
            0 => 5000,
            1..5 => self.random.random_range(0..500),
            _ => self.random.random_range(0..20),
        };
        vec![b'a' + self.random.random_range(0..26); len]
    }

    /// Returns a key, mostly one that holds a list.
    fn list_key(&mut self) -> (u32, Vec<u8>) {
        let db = self.db();
        let items = self.world.model.dbs[db as usize].iter();
        let lists: Vec<_> = items.filter(|(_, (value, _))| matches!(**value, V::List(_))).collect();
        if lists.is_empty() || self.random.random_range(0..4) == 0 {
            return (db, key(&mut self.random));
        }
        (db, lists[self.random.random_range(0..lists.len())].0.clone())
    }

    /// Sets a list in the model; its expiry stays.
    fn put_list(&mut self, db: u32, name: &[u8], list: Vec<Vec<u8>>) {
        let was = self.world.model.dbs[db as usize].get(name);
        let is_list = was.is_some_and(|(value, _)| matches!(&**value, V::List(_)));
        let expiry = if is_list { self.world.model.expiry(db as usize, name) } else { 0 };
        if list.is_empty() {
            self.world.model.dbs[db as usize].remove(name);
        } else {
            self.put(db, name, V::List(list), expiry);
        }
    }

    /// Pushes a few elements, or enough for many nodes.
    pub(crate) fn push(&mut self) {
        let (db, name) = self.list_key();
        let front = self.random.random();
        let many = self.random.random_range(0..4) == 0;
        let count = self.random.random_range(1..if many { 1500 } else { 10 });
        let added: Vec<Vec<u8>> = (0..count).map(|_| self.element()).collect();
        self.drop_some(db, &name);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            match entry.typed::<List>() {
                Some(list) => list.require_push(front).or_load(db, &name)?,
                None => entry.clear(),
            }
            let list = entry.typed_or_new::<List>()?;
            added.iter().for_each(|element| list.push(element, front));
            Ok(())
        });
        let mut list = self.world.model.list(db as usize, &name);
        if front {
            list.splice(0..0, added.into_iter().rev());
        } else {
            list.extend(added);
        }
        self.put_list(db, &name, list);
    }

    /// Changes an existing list.
    pub(crate) fn edit_list(&mut self) {
        let (db, name) = self.list_key();
        let mut model = self.world.model.list(db as usize, &name);
        for _ in 0..self.random.random_range(1..6) {
            if model.is_empty() {
                return;
            }
            self.drop_some(db, &name);
            match self.random.random_range(0..7) {
                0..3 => self.set_or_insert(db, &name, &mut model),
                3 | 4 => self.pop(db, &name, &mut model),
                5 => self.remove_equal(db, &name, &mut model),
                _ => self.trim(db, &name, &mut model),
            }
            // Loads return committed values, so the model must have them.
            self.put_list(db, &name, model.clone());
        }
    }

    fn set_or_insert(&mut self, db: u32, name: &[u8], model: &mut Vec<Vec<u8>>) {
        let (at, element) = (self.random.random_range(0..model.len()), self.element());
        let insert: Option<bool> = self.random.random::<bool>().then(|| self.random.random());
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let list = entry.typed::<List>().expect("a list");
            let place = list.seek(at as u64).or_load(db, name)?.expect("a position");
            list.require_room(place).or_load(db, name)?;
            let list = entry.typed_mut::<List>().expect("a list");
            match insert {
                Some(after) => list.insert(place, &element, after),
                None => list.set(place, &element),
            }
            Ok(())
        });
        match insert {
            Some(after) => model.insert(at + usize::from(after), element),
            None => model[at] = element,
        }
    }

    fn pop(&mut self, db: u32, name: &[u8], model: &mut Vec<Vec<u8>>) {
        let (front, count) = (self.random.random(), self.random.random_range(1..300));
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let list = entry.typed::<List>().expect("a list");
            list.require_end(front, count as u64).or_load(db, name)?;
            entry.typed_mut::<List>().expect("a list").drop_end(front, count as u64);
            entry.clear_if_empty();
            Ok(())
        });
        let count = count.min(model.len());
        if front {
            model.drain(..count);
        } else {
            model.truncate(model.len() - count);
        }
    }

    fn remove_equal(&mut self, db: u32, name: &[u8], model: &mut Vec<Vec<u8>>) {
        let element = model[self.random.random_range(0..model.len())].clone();
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let list = entry.typed::<List>().expect("a list");
            let matches = list.matches(&element, u64::MAX, false).or_load(db, name)?;
            entry.typed_mut::<List>().expect("a list").remove(&matches, &element);
            entry.clear_if_empty();
            Ok(())
        });
        model.retain(|e| *e != element);
    }

    fn trim(&mut self, db: u32, name: &[u8], model: &mut Vec<Vec<u8>>) {
        let start = self.random.random_range(0..=model.len());
        let count = self.random.random_range(0..=model.len() - start);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let list = entry.typed::<List>().expect("a list");
            list.require_trim(start as u64, count as u64).or_load(db, name)?;
            entry.typed_mut::<List>().expect("a list").trim(start as u64, count as u64);
            entry.clear_if_empty();
            Ok(())
        });
        *model = model[start..start + count].to_vec();
    }
}
