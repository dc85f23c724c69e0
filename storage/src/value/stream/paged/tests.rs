use super::{Paged, PagedKey, PagedRow};
use crate::encoding::{ElementRows, OpWriter};
use crate::need::Part;
use crate::value::stream::id::StreamId;
use crate::value::test_rows::TestRows;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

const PREFIX: &[u8] = &[7, 1];

impl PagedRow<StreamId> for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn decode(_: &StreamId, row: &[u8]) -> Option<Self> {
        Some(row.to_vec())
    }

    fn heap(&self) -> usize {
        self.len()
    }
}

type Map = Paged<StreamId, Vec<u8>>;

fn id(n: u64) -> StreamId {
    StreamId::new(n / 4, n % 4)
}

struct World {
    map: Map,
    rows: TestRows,
    model: BTreeMap<StreamId, Vec<u8>>,
    pages: usize,
}

impl World {
    fn new() -> Self {
        let mut map = Map::new(PREFIX);
        map.unpack();
        Self { map, rows: TestRows::default(), model: BTreeMap::new(), pages: 0 }
    }

    fn seal(&mut self) {
        let mut ops = OpWriter::default();
        self.map.seal(&mut ElementRows::new(&mut ops, 0, 1, &|_| 0));
        self.rows.apply(&ops);
    }

    fn serve(&mut self, part: Part) {
        self.seal();
        self.pages += 1;
        match part {
            Part::All => self.map.apply_all(&self.rows.all()).unwrap(),
            Part::Page { range, reverse, limit, .. } => {
                self.map.apply_page(&self.rows.page(range, reverse, limit)).unwrap();
            }
            other => panic!("nobody asks for {other:?}"),
        }
    }

    fn query<T>(&mut self, query: impl Fn(&Map) -> Result<T, Part>) -> T {
        for _ in 0..1000 {
            match query(&self.map) {
                Ok(answer) => return answer,
                Err(part) => self.serve(part),
            }
        }
        panic!("a query asks without end");
    }

    fn insert(&mut self, n: u64, value: &[u8]) {
        self.map.insert(id(n), value.to_vec());
        self.model.insert(id(n), value.to_vec());
    }

    fn remove(&mut self, n: u64) {
        self.map.remove(&id(n));
        self.model.remove(&id(n));
    }

    fn read(&mut self, from: u64, to: Option<u64>, reverse: bool) -> Vec<(StreamId, Vec<u8>)> {
        let (from, to) = (id(from), to.map(id));
        self.query(|map| {
            let copy = |row: Result<(&StreamId, &Vec<u8>), Part>| row.map(|(k, v)| (*k, v.clone()));
            map.rows(from, to, reverse).map(copy).collect()
        })
    }

    fn check(&mut self, n: u64, to: u64) {
        let found = |found: Option<(&StreamId, &Vec<u8>)>| found.map(|(k, v)| (*k, v.clone()));
        let get = self.query(|map| map.get(&id(n)).map(|v| v.cloned()));
        assert_eq!(get, self.model.get(&id(n)).cloned());
        let floor = self.query(|map| map.floor(&id(n)).map(found));
        assert_eq!(floor, found(self.model.range(..=id(n)).next_back()));
        let ceil = self.query(|map| map.rows(id(n), None, false).next().transpose().map(found));
        assert_eq!(ceil, found(self.model.range(id(n)..).next()));
        let mut all: Vec<_> =
            self.model.range(id(n)..id(to.max(n))).map(|(k, v)| (*k, v.clone())).collect();
        assert_eq!(self.read(n, Some(to), false), all);
        all.reverse();
        assert_eq!(self.read(n, Some(to), true), all);
    }

    /// Asserts that known rows agree with the model, and that the memory is counted.
    fn audit(&self) {
        for (key, value) in self.map.in_memory() {
            assert_eq!(self.model.get(key), Some(value));
        }
        let heap: usize = self.map.in_memory().map(|(_, v)| v.len()).sum();
        assert_eq!(self.map.heap, heap);
        let gaps: Vec<_> = self.map.gaps.iter().collect();
        for pair in gaps.windows(2) {
            assert!(pair[0].1.as_ref().is_some_and(|end| end < pair[1].0), "{gaps:?}");
        }
        assert!(gaps.iter().all(|(from, to)| to.as_ref().is_none_or(|to| *from < to)));
        if let Some(first) = self.model.keys().next() {
            assert!(self.map.low().is_some_and(|low| low <= first));
        }
    }
}

#[test]
fn a_map_is_as_a_model() {
    for seed in 0..6 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new();
        for step in 0..3000u64 {
            let n = rng.random_range(0..400);
            match rng.random_range(0..20) {
                0..6 => world.insert(n, &step.to_le_bytes()[..rng.random_range(0..8)]),
                6..9 => world.remove(n),
                9 | 10 => {
                    if let Some(value) = world.model.get_mut(&id(n))
                        && world.map.update(&id(n), |row| row.push(1)).is_some()
                    {
                        value.push(1);
                    }
                }
                11 => world.seal(),
                12 | 13 => {
                    world.seal();
                    world.map.shed(rng.random_range(1..200));
                }
                14 if rng.random_ratio(1, 8) => {
                    let unread: Vec<_> = world.model.range(..id(n / 8)).map(|(k, _)| *k).collect();
                    world.map.remove_before(Some(&id(n / 8)), unread.into_iter(), 0);
                    world.model.retain(|key, _| *key >= id(n / 8));
                }
                15 if rng.random_ratio(1, 20) => {
                    world.query(|map| map.require_whole());
                    assert!(world.map.is_whole());
                    assert_eq!(world.map.loaded(), world.model.len());
                }
                16 if rng.random_ratio(1, 8) => {
                    world.seal();
                    let low = world.map.low().copied();
                    world.map = Map::away(PREFIX, low.unwrap_or(StreamId::MAX), None);
                }
                _ => world.check(n, n + rng.random_range(0..100)),
            }
            world.audit();
        }
        assert!(world.pages > 100);
        world.seal();
        world.query(|map| map.require_whole());
        assert!(world.map.in_memory().eq(world.model.iter()));
        assert_eq!(world.rows.len(), world.model.len());
    }
}

#[test]
fn rows_of_others_are_not_taken_in() {
    let mut world = World::new();
    world.insert(1, b"a");
    world.seal();
    let page = world.rows.page(crate::need::ElementRange { from: vec![8], to: None }, false, 5);
    let mut map = Map::away(PREFIX, id(0), None);
    map.apply_page(&page).unwrap();
    assert!(!map.is_whole());
    map.apply_all(&world.rows.all()).unwrap();
    assert!(map.is_whole());
    assert_eq!(map.get(&id(1)).unwrap(), Some(&b"a".to_vec()));
}

#[test]
fn removing_at_the_front_reads_nothing() {
    let mut world = World::new();
    (0..100).for_each(|n| world.insert(n, b"x"));
    world.seal();
    (0..90).for_each(|n| world.remove(n));
    assert_eq!(world.map.low(), Some(&id(90)));
    world.seal();
    world.map = Map::away(PREFIX, id(90), Some(id(100)));
    world.insert(100, b"y");
    assert_eq!(world.map.last_in_memory(), Some((&id(100), &b"y".to_vec())));
    assert_eq!(world.pages, 0);
    assert_eq!(world.read(0, None, false).len(), 11);
    assert_eq!(world.pages, 2);
}

#[test]
fn a_row_that_was_removed_from_a_gap_is_known_to_be_absent() {
    let mut world = World::new();
    (0..100).step_by(10).for_each(|n| world.insert(n, b"x"));
    world.seal();
    world.map = Map::away(PREFIX, id(0), Some(id(91)));
    for n in [30, 45] {
        world.insert(n, b"y");
        world.remove(n);
        assert!(matches!(world.map.get(&id(n)), Ok(None)), "{n}");
        assert!(world.map.get(&id(n - 1)).is_err() && world.map.get(&id(n + 1)).is_err());
    }
    world.audit();
    assert_eq!(world.pages, 0);
    assert_eq!(world.read(0, None, false).len(), 9);
    world.check(45, 60);
}

#[test]
fn nodes_that_were_never_written_leave_no_deletion() {
    let mut world = World::new();
    world.insert(1, b"x");
    world.remove(1);
    world.seal();
    assert_eq!(world.rows.written, 0);
    world.insert(1, b"x");
    world.seal();
    world.remove(1);
    world.insert(1, b"y");
    world.seal();
    assert_eq!((world.rows.written, world.rows.len()), (2, 1));
    world.remove(1);
    world.seal();
    assert_eq!((world.rows.written, world.rows.len()), (3, 0));
}

#[test]
fn shedding_keeps_unwritten_nodes_and_the_ends() {
    let mut world = World::new();
    (0..100).for_each(|n| world.insert(n, b"x"));
    world.map.shed(1000);
    assert_eq!(world.map.loaded(), 100);
    world.seal();
    world.map.update(&id(50), |row| row.push(b'y'));
    let before = world.map.memory();
    world.map.shed(100);
    assert_eq!(world.map.loaded(), 3);
    assert!(world.map.has_few_in_memory() && world.map.memory() < before / 10);
    assert_eq!(world.map.gaps.len(), 2);
    assert_eq!(world.map.get(&id(50)).unwrap().map(Vec::len), Some(2));
    assert!(matches!(world.map.get(&id(51)), Err(Part::Page { limit: 1, .. })));
    assert!(StreamId::first() < id(1));
}
