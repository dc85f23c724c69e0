//! Steps of random histories on streams.

use crate::histories::{History, key};
use crate::model::{StreamModel, V};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::stream::{NodeLimits, PendingEntry, Threshold, Trim};
use flagstone_storage::value::{Stream, StreamId};
use rand::RngExt;
use std::collections::BTreeMap;

impl History {
    /// Returns a key, mostly one that holds a stream.
    fn stream_key(&mut self) -> (u32, Vec<u8>) {
        let db = self.db();
        let items = self.world.model.dbs[db as usize].iter();
        let streams: Vec<_> =
            items.filter(|(_, (value, _))| matches!(**value, V::Stream(_))).collect();
        if streams.is_empty() || self.random.random_range(0..4) == 0 {
            return (db, key(&mut self.random));
        }
        (db, streams[self.random.random_range(0..streams.len())].0.clone())
    }

    /// Sets a stream in the model; its expiry stays.
    fn put_stream(&mut self, db: u32, name: &[u8], stream: StreamModel) {
        let was = self.world.model.dbs[db as usize].get(name);
        let is_stream = was.is_some_and(|(value, _)| matches!(&**value, V::Stream(_)));
        let expiry = if is_stream { self.world.model.expiry(db as usize, name) } else { 0 };
        self.put(db, name, V::Stream(stream), expiry);
    }

    fn limits(&mut self) -> NodeLimits {
        NodeLimits::new(4096, if self.random.random() { 100 } else { 5 })
    }

    /// Adds a few entries, or enough for many nodes; sometimes trims old ones.
    pub(crate) fn add_entries(&mut self) {
        let (db, name) = self.stream_key();
        let limits = self.limits();
        let many = self.random.random_range(0..4) == 0;
        let count = self.random.random_range(1..if many { 1500 } else { 10 });
        let mut model = self.world.model.stream(db as usize, &name).unwrap_or_default();
        let mut added = Vec::new();
        for _ in 0..count {
            let id =
                StreamId::new(model.last.ms + self.random.random_range(0..2), model.last.seq + 1);
            let len = match self.random.random_range(0..200) {
                0 => 5000,
                _ => self.random.random_range(0..20),
            };
            added.push((id, vec![b'a' + self.random.random_range(0..26); len]));
            model.last = id;
        }
        self.drop_some(db, &name);
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, &name)?;
            if entry.typed::<Stream>().is_none() {
                entry.clear();
            }
            let stream = entry.typed_or_new::<Stream>()?;
            for (id, value) in &added {
                stream.append(*id, [(&b"field"[..], &value[..])].into_iter(), limits);
            }
            Ok(())
        });
        model.added += added.len() as u64;
        model.entries.extend(added);
        self.put_stream(db, &name, model);
    }

    /// Changes an existing stream.
    pub(crate) fn edit_stream(&mut self) {
        let (db, name) = self.stream_key();
        let Some(mut model) = self.world.model.stream(db as usize, &name) else { return };
        for _ in 0..self.random.random_range(1..6) {
            self.drop_some(db, &name);
            match self.random.random_range(0..7) {
                0 => self.delete_entries(db, &name, &mut model),
                1 => self.read_entries(db, &name, &model),
                2..=4 => self.use_group(db, &name, &mut model),
                _ => self.trim_entries(db, &name, &mut model),
            }
            self.put_stream(db, &name, model.clone());
        }
    }

    fn delete_entries(&mut self, db: u32, name: &[u8], model: &mut StreamModel) {
        if model.entries.is_empty() {
            return;
        }
        let count = self.random.random_range(1..20);
        let start = self.random.random_range(0..model.entries.len());
        let ids: Vec<_> = if self.random.random() {
            model.entries.iter().skip(start).take(count).map(|(id, _)| *id).collect()
        } else {
            model.entries.iter().step_by(start + 1).take(count).map(|(id, _)| *id).collect()
        };
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let stream = entry.typed::<Stream>().expect("a stream");
            let plan = stream.plan_delete(&ids).or_load(db, name)?;
            assert_eq!(plan.count(), ids.len() as u64);
            entry.typed_mut::<Stream>().expect("a stream").delete(&plan);
            Ok(())
        });
        model.entries.retain(|(id, _)| !ids.contains(id));
        model.max_deleted = model.max_deleted.max(*ids.last().expect("an id"));
    }

    /// Creates or destroys a group; delivers or acknowledges entries of a consumer, or deletes it.
    fn use_group(&mut self, db: u32, name: &[u8], model: &mut StreamModel) {
        let group: &[u8] = if self.random.random() { b"group" } else { b"other" };
        let consumer: &[u8] = if self.random.random() { b"a" } else { b"b" };
        let kind = self.random.random_range(0..10);
        let Some(pending) = model.groups.get_mut(group).filter(|_| kind > 0) else {
            let exists = model.groups.remove(group).is_some();
            if !exists {
                model.groups.insert(group.to_vec(), BTreeMap::new());
            }
            return self.world.run(|store| {
                let mut entry = store.entry_mut(db, name)?;
                let stream = entry.typed::<Stream>().expect("a stream");
                assert_eq!(stream.groups().group(group).or_load(db, name)?.is_some(), exists);
                let groups = entry.typed_mut::<Stream>().expect("a stream").groups_mut();
                if exists {
                    groups.destroy(group);
                } else {
                    groups.create(group, StreamId::MIN, None);
                }
                Ok(())
            });
        };
        let first = self.random.random_range(0..=model.entries.len());
        let count = [1, 20, 1000][self.random.random_range(0..3)];
        let ids = model.entries[first..].iter().take(count).map(|(id, _)| *id);
        let ids: Vec<_> = ids.collect();
        match kind {
            1 => pending.retain(|_, owner| owner != consumer),
            2..=5 => pending.retain(|id, _| !ids.contains(id)),
            _ => pending.extend(ids.iter().map(|id| (*id, consumer.to_vec()))),
        }
        self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let groups = entry.typed::<Stream>().expect("a stream").groups();
            let row = groups.group(group).or_load(db, name)?.expect("a group");
            groups.require_pending(row, ids.iter().copied()).or_load(db, name)?;
            groups.require_delete_consumer(row, consumer).or_load(db, name)?;
            let number = groups.consumer(row, consumer).or_load(db, name)?;
            let number = number.map(|(number, _)| number);
            let groups = entry.typed_mut::<Stream>().expect("a stream").groups_mut();
            match kind {
                1 => drop(groups.delete_consumer(group, consumer)),
                2..=5 => drop(groups.remove_pending(group, &ids)),
                _ => {
                    let number =
                        number.unwrap_or_else(|| groups.create_consumer(group, consumer, 1));
                    let entry = |id: &StreamId| PendingEntry {
                        id: *id,
                        delivered_ms: 7,
                        deliveries: 1,
                        consumer: number,
                    };
                    groups.put_pending(group, &ids.iter().map(entry).collect::<Vec<_>>());
                }
            }
            Ok(())
        });
    }

    fn read_entries(&mut self, db: u32, name: &[u8], model: &StreamModel) {
        let (a, b) = (self.random.random_range(0..=model.last.ms), model.last.ms);
        let (from, to) = (StreamId::new(a, 0), StreamId::new(self.random.random_range(a..=b), 9));
        let reverse = self.random.random();
        let found: Vec<StreamId> = self.world.run(|store| {
            let stream = store.typed::<Stream>(db, name)?.expect("a stream");
            let entries = stream.range(from, to, 50, reverse).or_load(db, name)?;
            Ok(entries.map(|entry| entry.id).collect())
        });
        let ids = model.entries.iter().map(|(id, _)| *id).filter(|id| (from..=to).contains(id));
        let mut want: Vec<_> = ids.collect();
        if reverse {
            want.reverse();
        }
        want.truncate(50);
        assert_eq!(found, want);
    }

    fn trim_entries(&mut self, db: u32, name: &[u8], model: &mut StreamModel) {
        let len = model.entries.len();
        let keep = match self.random.random_range(0..10) {
            0 => 0,
            1..4 => self.random.random_range(0..=len),
            _ => len - self.random.random_range(0..=len.min(50)),
        };
        let by_id = model.entries.get(len - keep).filter(|_| self.random.random());
        let to = by_id.map_or(Threshold::MaxLen(keep as u64), |(id, _)| Threshold::MinId(*id));
        let trim = Trim { to, approximate: self.random.random(), limit: 0 };
        let deleted = self.world.run(|store| {
            let mut entry = store.entry_mut(db, name)?;
            let stream = entry.typed::<Stream>().expect("a stream");
            let plan = stream.plan_trim(&trim, None).or_load(db, name)?;
            entry.typed_mut::<Stream>().expect("a stream").trim(&plan);
            Ok(plan.deleted() as usize)
        });
        assert!(deleted == len - keep || (trim.approximate && deleted < len - keep));
        model.entries.drain(..deleted);
    }
}
