use super::*;
use crate::need::Part;
use crate::value::Value;
use crate::value::collection::Collection;
use crate::value::test_rows::TestRows;
use rand::{RngExt, SeedableRng, rngs::SmallRng};

type Pair = (Vec<u8>, Vec<u8>);
type Owned = (StreamId, Vec<Pair>);

struct World {
    stream: Stream,
    rows: TestRows,
    model: Vec<Owned>,
    /// Expected state in Valkey: live and deleted entries of each node.
    limits: NodeLimits,
}

fn own(entry: StreamEntry<'_>) -> Owned {
    (entry.id, entry.fields.map(|(n, v)| (n.to_vec(), v.to_vec())).collect())
}

impl World {
    fn new(entries: u64) -> Self {
        Self {
            stream: Stream::new(),
            rows: TestRows::default(),
            model: Vec::new(),
            limits: NodeLimits::new(0, entries),
        }
    }

    fn add(&mut self, id: StreamId, fields: &[Pair]) {
        self.stream.append(id, fields.iter().map(|(n, v)| (&n[..], &v[..])), self.limits);
        self.model.push((id, fields.to_vec()));
    }

    fn add_many(&mut self, n: u64, value: usize) {
        for _ in 0..n {
            let id = StreamId::new(self.stream.last_id().ms + 1, 0);
            self.add(id, &[(b"f".to_vec(), vec![b'v'; value])]);
        }
    }

    fn query<T>(&mut self, query: impl Fn(&Stream) -> Result<T, Part>) -> T {
        self.rows.query(&mut self.stream, query)
    }

    /// Writes the stream, forgets it, and reads its meta row.
    fn reload(&mut self) {
        self.rows.reload(&mut self.stream);
    }

    fn range(&mut self, from: u64, to: u64, count: u64, reverse: bool) -> Vec<Owned> {
        let (from, to) = (StreamId::new(from, 0), StreamId::new(to, 3));
        self.query(|stream| Ok(stream.range(from, to, count, reverse)?.map(own).collect()))
    }

    fn expected(&self, from: u64, to: u64, count: u64, reverse: bool) -> Vec<Owned> {
        let (from, to) = (StreamId::new(from, 0), StreamId::new(to, 3));
        let mut all: Vec<_> =
            self.model.iter().filter(|(id, _)| (from..=to).contains(id)).cloned().collect();
        if reverse {
            all.reverse();
        }
        all.truncate(count as usize);
        all
    }

    fn delete(&mut self, ids: &[StreamId]) -> u64 {
        let plan = self.query(|stream| stream.plan_delete(ids));
        if plan.count() > 0 {
            self.stream.delete(&plan);
        }
        self.model.retain(|(id, _)| !ids.contains(id));
        plan.count()
    }

    fn trim(&mut self, trim: Trim) -> u64 {
        let plan = self.query(|stream| stream.plan_trim(&trim, None));
        self.stream.trim(&plan);
        plan.deleted()
    }

    fn check(&mut self) {
        assert_eq!(self.stream.len(), self.model.len() as u64);
        let first = self.model.first().map_or(StreamId::MIN, |(id, _)| *id);
        assert_eq!(self.stream.first_id(), first);
        for last in [false, true] {
            let end = self.query(|stream| Ok(stream.end(last)?.map(own)));
            let expected = if last { self.model.last() } else { self.model.first() };
            assert_eq!(end.as_ref(), expected);
        }
        if self.stream.nodes.is_whole() {
            assert_eq!(self.stream.nodes.loaded() as u64, self.stream.node_count());
        }
    }
}

fn max_len(n: u64) -> Trim {
    Trim { to: Threshold::MaxLen(n), approximate: false, limit: 0 }
}

fn fields(rng: &mut SmallRng) -> Vec<Pair> {
    let names: &[&[&[u8]]] = &[&[b"a", b"b"], &[b"a"], &[b"temp", b"b", b"17"]];
    let names = names[rng.random_range(0..10usize).saturating_sub(7)];
    let len = [0, 5, 200, 5000][rng.random_range(0..40usize).saturating_sub(36)];
    names.iter().map(|name| (name.to_vec(), vec![b'v'; rng.random_range(0..=len)])).collect()
}

#[test]
fn a_stream_is_as_a_model() {
    for seed in 0..4 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(if seed % 2 == 0 { 100 } else { 7 });
        world.rows.drops = Some(SmallRng::seed_from_u64(seed + 100));
        for step in 0..3000 {
            let last = world.stream.last_id();
            let at = rng.random_range(0..=last.ms);
            match rng.random_range(0..40) {
                0..20 => {
                    let next = StreamId::new(last.ms + rng.random_range(0..3), last.seq + 1);
                    let fields = fields(&mut rng);
                    world.add(next, &fields);
                }
                20..26 if !world.model.is_empty() => {
                    let n = world.model.len();
                    let pick = |i: usize| world.model[i % n].0;
                    let ids: Vec<_> = match rng.random_range(0..3) {
                        0 => (0..3).map(pick).chain([StreamId::new(at, 9)]).collect(),
                        1 => (0..5).map(|_| pick(rng.random_range(0..n))).collect(),
                        _ => (n - 1..n + 1).map(pick).collect(),
                    };
                    let before = world.model.len();
                    let deleted = world.delete(&ids);
                    assert_eq!(deleted, (before - world.model.len()) as u64);
                }
                26 | 27 => {
                    let keep = (world.model.len() as u64).saturating_sub(rng.random_range(0..30));
                    let before = world.model.len() as u64;
                    assert_eq!(world.trim(max_len(keep)), before - keep);
                    world.model.drain(..(before - keep) as usize);
                }
                28 if rng.random_ratio(1, 20) => {
                    let least = StreamId::new(at, 1);
                    let to = Threshold::MinId(least);
                    let deleted = world.trim(Trim { to, approximate: false, limit: 0 });
                    let before = world.model.len();
                    world.model.retain(|(id, _)| *id >= least);
                    assert_eq!(deleted, (before - world.model.len()) as u64);
                }
                29 if rng.random_ratio(1, 3) => {
                    let to = Threshold::MaxLen(world.stream.len().saturating_sub(60));
                    let deleted = world.trim(Trim { to, approximate: true, limit: 70 });
                    assert!(deleted <= 60);
                    world.model.drain(..deleted as usize);
                }
                30 if rng.random_ratio(1, 3) => world.reload(),
                31 => {
                    world.rows.seal(&mut world.stream);
                    world.stream.shed(rng.random_range(0..50));
                }
                32 if rng.random_ratio(1, 100) => {
                    world.trim(max_len(0));
                    world.model.clear();
                    assert_eq!(world.stream.version(), 0);
                }
                _ => {
                    let to = at + rng.random_range(0..200);
                    let count = [1, 10, u64::from(u32::MAX)][rng.random_range(0..3)];
                    // Readers go on where they were.
                    for (reverse, behind) in [(false, 0), (true, 0), (false, 2), (false, 5)] {
                        let at = at + behind;
                        let found = world.range(at, to, count, reverse);
                        assert_eq!(found, world.expected(at, to, count, reverse), "{step}");
                    }
                }
            }
            world.check();
        }
        world.query(|stream| stream.require_whole());
        assert_eq!(world.range(0, u64::MAX, u64::MAX, false), world.model);
    }
}

#[test]
fn entries_are_deleted_though_the_rows_behind_their_node_are_not_in_memory() {
    let mut world = World::new(100);
    world.add_many(1000, 20);
    world.reload();
    // The first deletion reads the node of the entries; no row behind that node is known. Some
    // entries are in one plan with entries of other nodes.
    for ids in [&[450][..], &[470], &[1, 480, 720], &[405, 499, 730, 990]] {
        let ids: Vec<_> = ids.iter().map(|ms| StreamId::new(*ms, 0)).collect();
        assert_eq!(world.delete(&ids), ids.len() as u64);
        world.check();
    }
    world.reload();
    assert_eq!(world.range(0, 2000, 2000, false), world.expected(0, 2000, 2000, false));
}

#[test]
fn a_part_that_begins_within_a_node_does_not_hide_the_nodes_entries() {
    let mut world = World::new(10);
    world.add_many(1000, 20);
    world.reload();
    // These are requested while the node of 505 is in memory, so they begin behind that id.
    let ask = |stream: &Stream| {
        stream.require(StreamId::new(505, 0), StreamId::MAX, 1, false)?;
        stream.require(StreamId::new(506, 0), StreamId::MAX, 50, false)
    };
    world.query(ask);
    let parts = std::mem::take(&mut world.rows.asked);
    assert!(parts.len() > 1, "{parts:?}");
    for part in parts {
        for from in 495..525 {
            // The unit that has requested it was rolled back: nothing else is in memory.
            world.reload();
            world.rows.serve(&mut world.stream, part.clone());
            let found = world.range(from, 2000, 5, false);
            assert_eq!(found, world.expected(from, 2000, 5, false), "{part:?}");
            assert_eq!(world.range(1, from, 5, true), world.expected(1, from, 5, true), "{part:?}");
        }
    }
}

#[test]
fn a_node_may_be_dropped_before_the_part_behind_it_arrives() {
    let mut world = World::new(10);
    world.add_many(1000, 20);
    world.reload();
    // The last node in memory is not dropped.
    world.range(980, 980, 1, false);
    for (entry, from) in [(203, 205), (505, 507), (791, 795)] {
        let at = StreamId::new(entry, 0);
        world.query(|stream| Ok(stream.get(at)?.is_some()));
        let behind = world.stream.require(at, StreamId::MAX, 50, false).unwrap_err();
        world.stream.shed(1000);
        world.rows.serve(&mut world.stream, behind);
        assert_eq!(world.range(from, 2000, 5, false), world.expected(from, 2000, 5, false));
    }
}

#[test]
fn readers_of_a_stream_whose_parts_come_and_go_miss_nothing() {
    for seed in 0..10 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(rng.random_range(4..14));
        world.add_many(400, 5);
        world.rows.drops = Some(SmallRng::seed_from_u64(seed + 100));
        let mut readers = [0; 3].map(|_| rng.random_range(0..300));
        for _ in 0..400 {
            let reader = rng.random_range(0..3);
            let behind = readers[reader];
            match rng.random_range(0..12) {
                0 => world.add_many(rng.random_range(1..4), 5),
                1 => {
                    let near = behind..behind + 12;
                    let ids = near.filter(|_| rng.random_ratio(1, 4));
                    world.delete(&ids.map(|ms| StreamId::new(ms, 0)).collect::<Vec<_>>());
                }
                2 => readers[reader] = rng.random_range(0..world.stream.last_id().ms),
                3 => {
                    let expected = world.expected(0, behind, 7, true);
                    assert_eq!(world.range(0, behind, 7, true), expected, "{seed}");
                }
                4..8 => world.rows.drop_some(&mut world.stream),
                _ => {
                    let count = rng.random_range(1..9);
                    let found = world.range(behind + 1, u64::MAX, count, false);
                    assert_eq!(found, world.expected(behind + 1, u64::MAX, count, false), "{seed}");
                    readers[reader] = found.last().map_or(0, |(id, _)| id.ms);
                }
            }
            world.check();
        }
    }
}

#[test]
fn a_small_stream_stays_in_its_meta_row() {
    let mut world = World::new(100);
    world.add_many(10, 10);
    world.reload();
    assert_eq!((world.stream.version(), world.rows.len()), (0, 0));
    world.add_many(100, 10);
    world.reload();
    assert_eq!((world.stream.version(), world.rows.len()), (1, 2));
    world.check();
    assert_eq!(world.stream.entries_added(), 110);
}

#[test]
fn a_stream_may_be_empty() {
    let mut world = World::new(100);
    world.add_many(2, 1);
    world.trim(max_len(0));
    world.stream.set_head(StreamHead {
        last_id: StreamId::new(9, 9),
        max_deleted_id: StreamId::new(1, 1),
        entries_added: 7,
    });
    world.reload();
    let stream = &world.stream;
    assert_eq!((stream.last_id(), stream.entries_added()), (StreamId::new(9, 9), 7));
    assert_eq!((stream.len(), stream.max_deleted_id()), (0, StreamId::new(1, 1)));
    let value = Value::Stream(Box::default());
    assert!(!value.is_empty_collection());
}

#[test]
fn appending_needs_nothing() {
    let mut world = World::new(100);
    world.add_many(1000, 20);
    world.reload();
    world.rows.asked.clear();
    world.add_many(150, 20);
    world.model.drain(..1000);
    assert_eq!(world.range(1001, 2000, 500, false), world.model);
    assert_eq!(world.stream.node_count(), 12);
    assert!(world.rows.asked.is_empty(), "{:?}", world.rows.asked);
}

#[test]
fn a_queue_reads_nothing_where_it_was_emptied() {
    let mut world = World::new(10);
    world.add_many(1000, 1);
    world.reload();
    for _ in 0..99 {
        let keep = world.stream.len() - 10;
        world.trim(Trim { approximate: true, ..max_len(keep) });
    }
    world.rows.seal(&mut world.stream);
    assert_eq!((world.stream.node_count(), world.rows.len()), (1, 1));
    let pages = world.rows.asked.len();
    assert!(pages < 20, "{pages}");
    world.reload();
    assert_eq!(world.stream.first_id(), StreamId::new(991, 0));
    assert_eq!(world.range(0, 2000, 1, false).len(), 1);
    assert_eq!(world.rows.asked.len(), pages + 1);
}

#[test]
fn an_appended_entry_counts_for_the_trim_behind_it() {
    let mut world = World::new(10);
    world.add_many(20, 1);
    let id = StreamId::new(21, 0);
    let added = world.stream.added(id, 2, world.limits);
    let plan = world.stream.plan_trim(&max_len(0), Some(added)).unwrap();
    assert_eq!(plan.deleted(), 21);
    let plan = world.stream.plan_trim(&max_len(1), Some(added)).unwrap();
    assert_eq!(plan.deleted(), 20);
    world.add_many(1, 1);
    world.stream.trim(&plan);
    assert_eq!((world.stream.len(), world.stream.first_id()), (1, id));
    // The next entry joins the node.
    let id = StreamId::new(22, 0);
    let added = world.stream.added(id, 2, world.limits);
    let trim = Trim { to: Threshold::MinId(id), approximate: false, limit: 0 };
    let plan = world.stream.plan_trim(&trim, Some(added)).unwrap();
    world.add_many(1, 1);
    world.stream.trim(&plan);
    assert_eq!((world.stream.len(), world.stream.first_id()), (1, id));
}

#[test]
fn an_approximate_trim_takes_whole_nodes() {
    let mut world = World::new(10);
    world.add_many(35, 1);
    let approximate = |n| Trim { approximate: true, ..max_len(n) };
    assert_eq!(world.trim(approximate(26)), 0);
    assert_eq!(world.trim(approximate(20)), 10);
    assert_eq!(world.trim(Trim { limit: 9, ..approximate(0) }), 0);
    assert_eq!(world.trim(Trim { limit: 19, ..approximate(0) }), 10);
    let to = Threshold::MinId(StreamId::new(31, 0));
    assert_eq!(world.trim(Trim { to, ..approximate(0) }), 10);
    assert_eq!(
        world.trim(Trim { to: Threshold::MinId(StreamId::new(35, 0)), ..approximate(0) }),
        0
    );
    assert_eq!((world.stream.len(), world.stream.node_count()), (5, 1));
}

#[test]
fn large_trims_are_counted_and_not_read() {
    let by_id = |n| Trim { to: Threshold::MinId(StreamId::new(n, 0)), ..max_len(0) };
    for trim in [max_len(1005), by_id(58_996)] {
        let mut world = World::new(10);
        world.add_many(60_000, 1);
        world.reload();
        world.stream.append(StreamId::new(60_001, 0), [].into_iter(), world.limits);
        world.model.drain(..58_995);
        let plan = world.query(|stream| stream.plan_trim(&trim, None));
        assert_eq!(world.stream.nodes.loaded() as u64, 2);
        assert!(world.rows.asked.len() <= 3, "{:?}", world.rows.asked);
        let deleted = if matches!(trim.to, Threshold::MaxLen(_)) { 58_996 } else { 58_995 };
        assert_eq!(plan.deleted(), deleted);
        world.stream.trim(&plan);
        world.rows.seal(&mut world.stream);
        assert_eq!(world.rows.len(), 102);
        assert_eq!(
            world.range(0, 60_000, 2000, false),
            &world.model[(deleted - 58_995) as usize..]
        );
    }
}

#[test]
fn counted_nodes_may_be_loaded_and_change() {
    let mut world = World::new(10);
    world.add_many(40_000, 1);
    world.reload();
    let trim = max_len(5);
    let Err(part) = world.stream.plan_trim(&trim, None) else { panic!("it is not in memory") };
    world.rows.serve(&mut world.stream, part);
    world.range(50, 60, 10, false);
    assert_eq!(world.delete(&[StreamId::new(55, 0), StreamId::new(1001, 0)]), 2);
    assert_eq!(world.trim(trim), 39_993);
    world.model.drain(..39_993);
    world.check();
    world.rows.seal(&mut world.stream);
    assert_eq!(world.rows.len(), 1);
    let mut world = World::new(10);
    world.add_many(40_000, 1);
    world.reload();
    let plan = world.query(|stream| stream.plan_trim(&max_len(0), None));
    world.stream.trim(&plan);
    assert_eq!((world.stream.len(), world.stream.version()), (0, 0));
}

#[test]
fn a_unit_gets_the_counts_of_all_its_trims() {
    let by_id = |n| Trim { to: Threshold::MinId(StreamId::new(n, 0)), ..max_len(0) };
    for (deleted, trims) in [
        (Some(39_000), vec![max_len(5)]),
        (None, vec![max_len(20_000), max_len(5)]),
        (Some(3), vec![by_id(18_000), by_id(39_995)]),
        (None, vec![max_len(20_000), by_id(39_995)]),
    ] {
        let mut world = World::new(10);
        world.add_many(40_000, 1);
        world.reload();
        let cold = world.stream.clone();
        // Whenever it misses a part, the unit is rolled back, and begins anew with all parts.
        let mut parts = Vec::new();
        let left = 'unit: loop {
            assert!(parts.len() < 12, "it asks without end: {parts:?}");
            world.stream = cold.clone();
            for part in &parts {
                world.rows.serve(&mut world.stream, Part::clone(part));
            }
            if let Some(ms) = deleted {
                match world.stream.plan_delete(&[StreamId::new(ms, 0)]) {
                    Ok(plan) => world.stream.delete(&plan),
                    Err(part) => {
                        parts.push(part);
                        continue;
                    }
                }
            }
            for trim in &trims {
                match world.stream.plan_trim(trim, None) {
                    Ok(plan) => world.stream.trim(&plan),
                    Err(part) => {
                        parts.push(part);
                        continue 'unit;
                    }
                }
            }
            break world.stream.len();
        };
        world.model.retain(|(id, _)| Some(id.ms) != deleted);
        let drop = world.model.len() - left as usize;
        world.model.drain(..drop);
        assert!(left == 5 || left == 6, "{left}");
        world.check();
        assert_eq!(world.range(0, 50_000, 50, false), world.model);
        world.rows.seal(&mut world.stream);
        assert_eq!(world.rows.len() as u64, world.stream.node_count());
    }
}

#[test]
fn a_copy_is_written_anew() {
    let mut world = World::new(100);
    world.add_many(500, 20);
    world.rows.seal(&mut world.stream);
    let Value::Stream(mut copy) = Value::Stream(Box::new(world.stream.clone())).copied() else {
        panic!("a copy is of the same type")
    };
    assert_eq!((copy.version(), copy.len()), (0, 500));
    let mut rows = TestRows::default();
    rows.seal(&mut *copy);
    assert_eq!(rows.len(), world.rows.len());
}

#[test]
fn entries_are_deleted_behind_a_node_that_ended_with_a_greater_id() {
    let mut stream = Stream::new();
    let add = |stream: &mut Stream, ms: u64| {
        let fields = [(&b"f"[..], &b"v"[..])].into_iter();
        stream.append(StreamId::new(ms, 0), fields, NodeLimits::new(0, 2));
    };
    let delete = |stream: &mut Stream, ms: &[u64]| {
        let ids: Vec<_> = ms.iter().map(|ms| StreamId::new(*ms, 0)).collect();
        let plan = stream.plan_delete(&ids).unwrap();
        stream.delete(&plan);
    };
    add(&mut stream, 5);
    add(&mut stream, 10);
    delete(&mut stream, &[10]);
    stream.set_head(StreamHead { last_id: StreamId::new(7, 0), ..stream.head() });
    add(&mut stream, 8);
    add(&mut stream, 9);
    delete(&mut stream, &[5, 8]);
    let left: Vec<_> = stream.range(StreamId::MIN, StreamId::MAX, 9, false).unwrap().collect();
    assert_eq!(left.iter().map(|entry| entry.id.ms).collect::<Vec<_>>(), [9]);
    assert_eq!((stream.len(), stream.node_count()), (1, 1));
}

#[test]
fn a_node_is_read_back_whose_deleted_entries_are_not_in_order() {
    let mut stream = Stream::new();
    let fields = || [(&b"f"[..], &b"v"[..])].into_iter();
    let entry = |ms, is_deleted| (StreamId::new(ms, 0), fields(), is_deleted);
    let entries = [entry(10, false), entry(5, true), entry(12, false), entry(7, true)];
    stream.push_node(StreamId::new(1, 0), [&b"f"[..]].into_iter(), entries.into_iter());
    stream.set_head(StreamHead { last_id: StreamId::new(12, 0), ..stream.head() });
    let mut meta = Vec::new();
    stream.encode_meta(&mut meta);
    let read = Stream::decode_meta(&meta, false).expect("it is sound");
    let ids = |stream: &Stream| -> Vec<u64> {
        let entries = stream.range(StreamId::MIN, StreamId::MAX, 9, false).unwrap();
        entries.map(|entry| entry.id.ms).collect()
    };
    assert_eq!((ids(&stream), ids(&read)), (vec![10, 12], vec![10, 12]));
}

#[test]
fn ids_that_are_looked_for_in_order_are_read_in_few_pages() {
    let mut stream = Stream::new();
    let mut rows = TestRows::default();
    for ms in 1..=20_000 {
        let fields = [(&b"f"[..], &b"v"[..])].into_iter();
        stream.append(StreamId::new(ms, 0), fields, NodeLimits::new(0, 20));
    }
    let gone: Vec<_> = (1..=20_000).filter(|ms| ms % 7 == 0).collect();
    let ids: Vec<_> = gone.iter().map(|ms| StreamId::new(*ms, 0)).collect();
    let plan = stream.plan_delete(&ids).unwrap();
    stream.delete(&plan);
    rows.seal(&mut stream);
    let mut asked = |ids: &[u64]| {
        let mut meta = Vec::new();
        stream.encode_meta(&mut meta);
        let mut cold = Stream::decode_meta(&meta, true).unwrap();
        rows.asked.clear();
        let found = rows.query(&mut cold, |stream| {
            let (mut before, mut found) = (None, Vec::new());
            for ms in ids {
                let id = StreamId::new(*ms, 0);
                if stream.get_behind(before.replace(id), id)?.is_some() {
                    found.push(*ms);
                }
            }
            Ok(found)
        });
        assert!(found.iter().eq(ids.iter().filter(|ms| **ms % 7 != 0)));
        (rows.asked.len(), cold.nodes.loaded())
    };
    let all: Vec<_> = (1..=20_000).collect();
    let (pages, _) = asked(&all);
    assert!(pages < 20, "{pages}");
    // Ids that are far apart cost a read each.
    let some: Vec<_> = (1..=20_000).step_by(500).collect();
    let (pages, nodes) = asked(&some);
    assert!(pages <= 2 * some.len() && nodes <= 12 * some.len(), "{pages} {nodes}");
}

/// The node was decoded for each deleted entry: 90 billion entries here.
#[test]
fn a_node_with_many_deleted_entries_is_taken_over_in_one_pass() {
    const COUNT: u64 = 300_000;
    let mut stream = Stream::new();
    let fields = || [(&b"f"[..], &b"v"[..])].into_iter();
    let entries = (1..=2 * COUNT).map(|n| (StreamId::new(n, 0), fields(), n > COUNT));
    stream.push_node(StreamId::new(1, 0), [&b"f"[..]].into_iter(), entries);
    assert_eq!((stream.len(), stream.first_id()), (COUNT, StreamId::new(1, 0)));
}
