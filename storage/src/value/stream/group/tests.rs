use super::super::pending::PendingEntry;
use super::super::{Stream, StreamId};
use crate::need::Part;
use crate::value::collection::Collection;
use crate::value::test_rows::TestRows;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

/// Expected state of a group.
#[derive(Clone, Debug, Default)]
struct Model {
    last_id: StreamId,
    /// Times at which a consumer was seen, and was active.
    consumers: BTreeMap<String, (u64, Option<u64>)>,
    /// Consumer, time, deliveries.
    pending: BTreeMap<StreamId, (String, u64, u64)>,
}

struct World {
    stream: Stream,
    rows: TestRows,
    model: BTreeMap<String, Model>,
    rng: SmallRng,
}

fn id(n: u64) -> StreamId {
    StreamId::new(n / 3, n % 3)
}

impl World {
    fn new(seed: u64) -> Self {
        let (stream, rows, model) = (Stream::new(), TestRows::default(), BTreeMap::new());
        Self { stream, rows, model, rng: SmallRng::seed_from_u64(seed) }
    }

    fn query<T>(&mut self, query: impl Fn(&Stream) -> Result<T, Part>) -> T {
        self.rows.query(&mut self.stream, query)
    }

    /// Acts between two commands: ends a round, drops rows, or reads everything anew.
    fn pause(&mut self) {
        match self.rng.random_range(0..12) {
            0..=2 => self.rows.seal(&mut self.stream),
            3..=5 => self.stream.shed(self.rng.random_range(0..40)),
            6 => {
                self.rows.seal(&mut self.stream);
                let mut meta = Vec::new();
                self.stream.encode_meta(&mut meta);
                let big = self.stream.version() != 0;
                self.stream = Stream::decode_meta(&meta, big).unwrap();
            }
            7 => {
                self.rows.seal(&mut self.stream);
                self.rows.sweep();
            }
            _ => {}
        }
    }

    fn put(&mut self, name: &str, consumer: &str, ids: &[u64]) {
        let now = self.rng.random_range(1..1000);
        let deliveries = self.rng.random_range(1..5);
        let number = self.query(|stream| {
            let group = stream.groups().group(name.as_bytes())?.unwrap();
            stream.groups().require_pending(group, ids.iter().map(|n| id(*n)))?;
            Ok(stream.groups().consumer(group, consumer.as_bytes())?.map(|(number, _)| number))
        });
        let groups = self.stream.groups_mut();
        let consumer_no = number
            .unwrap_or_else(|| groups.create_consumer(name.as_bytes(), consumer.as_bytes(), now));
        let entry = |n: &u64| PendingEntry {
            id: id(*n),
            delivered_ms: now,
            deliveries,
            consumer: consumer_no,
        };
        let entries: Vec<_> = ids.iter().map(entry).collect();
        groups.put_pending(name.as_bytes(), &entries);
        groups.note_request(name.as_bytes(), consumer_no, now, true);
        let model = self.model.get_mut(name).unwrap();
        model.consumers.insert(consumer.to_owned(), (now, Some(now)));
        for n in ids {
            model.pending.insert(id(*n), (consumer.to_owned(), now, deliveries));
        }
    }

    fn remove(&mut self, name: &str, ids: &[u64]) {
        let ids: Vec<_> = ids.iter().map(|n| id(*n)).collect();
        self.query(|stream| {
            let group = stream.groups().group(name.as_bytes())?.unwrap();
            stream.groups().require_pending(group, ids.iter().copied())
        });
        let removed = self.stream.groups_mut().remove_pending(name.as_bytes(), &ids);
        let model = self.model.get_mut(name).unwrap();
        let before = model.pending.len();
        model.pending.retain(|id, _| !ids.contains(id));
        assert_eq!(removed as usize, before - model.pending.len());
    }

    fn delete_consumer(&mut self, name: &str, consumer: &str) {
        self.query(|stream| {
            let group = stream.groups().group(name.as_bytes())?.unwrap();
            stream.groups().require_delete_consumer(group, consumer.as_bytes())
        });
        let groups = self.stream.groups_mut();
        let removed = groups.delete_consumer(name.as_bytes(), consumer.as_bytes());
        let model = self.model.get_mut(name).unwrap();
        let before = model.pending.len();
        model.pending.retain(|_, (owner, ..)| owner != consumer);
        assert_eq!(removed as usize, before - model.pending.len());
        model.consumers.remove(consumer);
    }

    fn toggle(&mut self, name: &str) {
        let exists = self.query(|stream| Ok(stream.groups().group(name.as_bytes())?.is_some()));
        assert_eq!(exists, self.model.contains_key(name));
        if exists {
            self.stream.groups_mut().destroy(name.as_bytes());
            self.model.remove(name);
        } else {
            let last_id = id(self.rng.random_range(0..1000));
            self.stream.groups_mut().create(name.as_bytes(), last_id, Some(5));
            self.model.insert(name.to_owned(), Model { last_id, ..Model::default() });
        }
    }

    /// Compares all of a group with the model.
    fn check(&mut self, name: &str) {
        let Some(model) = self.model.get(name).cloned() else { return };
        let (last_id, count, pending, consumers, last) = self.query(|stream| {
            let groups = stream.groups();
            let group = groups.group(name.as_bytes())?.unwrap();
            let name_of = |number| groups.consumer_of(group, number).map(|c| c.unwrap().name());
            let mut pending = BTreeMap::new();
            for entry in groups.pending_from(group, StreamId::MIN)? {
                let entry = entry?;
                let owner = String::from_utf8(name_of(entry.consumer)?.to_vec()).unwrap();
                pending.insert(entry.id, (owner, entry.delivered_ms, entry.deliveries));
            }
            let mut consumers = BTreeMap::new();
            for (_, consumer) in groups.consumers(group)? {
                let name = String::from_utf8(consumer.name().to_vec()).unwrap();
                consumers
                    .insert(name, (consumer.seen_ms(), consumer.active_ms(), consumer.pending()));
            }
            let last = groups.last_pending(group)?.map(|entry| entry.id);
            Ok((group.last_id(), (group.pending(), group.consumers()), pending, consumers, last))
        });
        assert_eq!(last_id, model.last_id);
        assert_eq!(count, (model.pending.len() as u64, model.consumers.len() as u64));
        assert_eq!(pending, model.pending);
        assert_eq!(last, model.pending.last_key_value().map(|(id, _)| *id));
        let owned = |name: &String| model.pending.values().filter(|p| p.0 == *name).count() as u64;
        let expected = model.consumers.iter();
        let expected =
            expected.map(|(name, (seen, active))| (name.clone(), (*seen, *active, owned(name))));
        assert!(consumers.into_iter().eq(expected));
    }

    /// Compares a consumer's entries from a random id on.
    fn check_consumer(&mut self, name: &str, consumer: &str) {
        let Some(model) = self.model.get(name).cloned() else { return };
        let from = id(self.rng.random_range(0..2000));
        let limit = self.rng.random_range(0..50);
        let found = self.query(|stream| {
            let groups = stream.groups();
            let group = groups.group(name.as_bytes())?.unwrap();
            let Some((number, _)) = groups.consumer(group, consumer.as_bytes())? else {
                return Ok(Vec::new());
            };
            groups.pending_of(group, number, from, limit)
        });
        let expected = model.pending.range(from..).filter(|(_, (owner, ..))| owner == consumer);
        let expected = expected.map(|(id, _)| *id).take(limit as usize);
        assert!(found.iter().map(|entry| entry.id).eq(expected));
    }

    fn step(&mut self) {
        let name = ["a", "b", "group with a name that is longer than others"];
        let name = name[self.rng.random_range(0..3)];
        let consumer = ["x", "y", "consumer"][self.rng.random_range(0..3)];
        let kind = self.rng.random_range(0..100);
        if kind == 0 || !self.model.contains_key(name) {
            return self.toggle(name);
        }
        let from = self.rng.random_range(0..2000);
        let count = [1, 3, 40, 400][self.rng.random_range(0..16usize).min(8) % 4];
        let ids: Vec<u64> = (from..from + count).collect();
        match kind {
            1..=35 => self.put(name, consumer, &ids),
            36..=40 => self.put(name, consumer, &[from, from / 2, 0]),
            41..=65 => self.remove(name, &ids),
            66 => self.delete_consumer(name, consumer),
            67..=90 => self.check_consumer(name, consumer),
            _ => self.check(name),
        }
    }
}

#[test]
fn groups_are_as_maps() {
    for seed in 0..3 {
        let mut world = World::new(seed);
        world.rows.drops = Some(SmallRng::seed_from_u64(seed + 100));
        for _ in 0..250 {
            world.step();
            world.pause();
        }
        for name in world.model.clone().keys() {
            world.check(name);
        }
        // Reads everything, and moves it to another key.
        world.query(Stream::require_whole);
        world.stream.detach();
        world.rows.seal(&mut world.stream);
        world.rows.sweep();
        for name in world.model.clone().keys() {
            world.check(name);
        }
    }
}

#[test]
fn a_queue_writes_a_few_rows_for_each_message() {
    let mut world = World::new(1);
    world.toggle("a");
    // Large, so that it has rows.
    world.put("a", "other", &(0..1000).collect::<Vec<_>>());
    world.toggle("b");
    world.put("b", "x", &[1]);
    world.rows.seal(&mut world.stream);
    world.rows.written = 0;
    for n in 2..200 {
        world.remove("b", &[n - 1]);
        world.put("b", "x", &[n]);
        world.rows.seal(&mut world.stream);
    }
    // Rows of the group, the consumer and the node.
    assert_eq!(world.rows.written, 198 * 3);
}

#[test]
fn a_group_goes_without_being_read() {
    let mut world = World::new(1);
    world.toggle("a");
    world.toggle("b");
    world.put("b", "x", &[7]);
    for n in 0..20 {
        world.put("a", "x", &(n * 400..n * 400 + 400).collect::<Vec<_>>());
    }
    world.rows.seal(&mut world.stream);
    let mut meta = Vec::new();
    world.stream.encode_meta(&mut meta);
    world.stream = Stream::decode_meta(&meta, true).unwrap();
    (world.rows.asked, world.rows.written) = (Vec::new(), 0);
    world.toggle("a");
    world.rows.seal(&mut world.stream);
    assert_eq!((world.rows.asked.len(), world.rows.written), (1, 4));
    world.rows.sweep();
    // Rows of the group, its consumer by name and by number, and its node.
    assert_eq!(world.rows.len(), 4);
    world.toggle("a");
    world.check("a");
    world.check("b");
}

#[test]
fn an_empty_stream_with_groups_is_read_back() {
    let mut world = World::new(1);
    world.toggle("a");
    world.put("a", "x", &[1, 2]);
    let mut meta = Vec::new();
    world.stream.encode_meta(&mut meta);
    for len in 0..meta.len() {
        assert!(Stream::decode_meta(&meta[..len], false).is_none(), "{len}");
    }
    world.stream = Stream::decode_meta(&meta, false).unwrap();
    world.check("a");
}

#[test]
fn a_consumer_is_deleted_whose_first_entries_are_acknowledged() {
    let mut world = World::new(1);
    world.toggle("a");
    world.put("a", "x", &(0..2000).collect::<Vec<_>>());
    world.put("a", "y", &[2500]);
    // The group's first node is removed with them.
    world.remove("a", &(0..1500).collect::<Vec<_>>());
    world.delete_consumer("a", "x");
    world.check("a");
}

#[test]
fn a_stream_of_which_some_groups_were_not_read_is_emptied() {
    let mut world = World::new(1);
    let add = |stream: &mut Stream, n: u64| {
        let fields = [(&b"f"[..], &b"v"[..])].into_iter();
        stream.append(id(n), fields, crate::value::stream::NodeLimits::new(0, 0));
    };
    for n in 1..500 {
        add(&mut world.stream, n);
    }
    world.toggle("a");
    world.toggle("b");
    world.toggle("a");
    world.rows.seal(&mut world.stream);
    let mut meta = Vec::new();
    world.stream.encode_meta(&mut meta);
    world.stream = Stream::decode_meta(&meta, true).unwrap();
    world.toggle("b");
    let all = crate::value::stream::Trim {
        to: crate::value::stream::Threshold::MaxLen(0),
        approximate: false,
        limit: 0,
    };
    let plan = world.query(|stream| stream.plan_trim(&all, None));
    world.stream.trim(&plan);
    assert_eq!(world.stream.version(), 0);
    assert_eq!(world.stream.require_whole(), Ok(()));
    world.toggle("a");
    world.check("a");
    let groups = world.stream.groups();
    assert!(groups.iter().all(|group| group.is_ok()));
}
