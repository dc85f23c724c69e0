//! Compares a sorted set with a plain map; its rows are in a map: cold, shed, or in memory.

use super::*;
use crate::encoding::{Op, OpWriter};
use crate::need::{IndexBy, OrLoad};
use crate::store::Fault;
use crate::value::{Entry, Value, decode_entry, encode_meta};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;

static LAYOUT: Layout = Layout::new(1, 7);

/// Row key heads: kind, slot, version.
const HEAD: usize = 11;

/// A sorted set and its element rows.
#[derive(Default)]
struct World {
    zset: Zset,
    meta: Vec<u8>,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names of the parts that were loaded, with the least score of each page of the order.
    loaded: Vec<&'static str>,
    least: f64,
    /// Decides what is dropped from memory while a question is answered.
    drops: Option<SmallRng>,
    /// Parts that were requested last.
    recent: Vec<Part>,
    /// Number of parts that were read, and of those that it said it had afterwards.
    read: u32,
    had: u32,
}

/// Number of parts of a question before whose arrival something may be dropped.
const DROPS: usize = 24;

impl World {
    /// Closes a round, and writes its rows.
    fn seal(&mut self) {
        let zset: &mut dyn Collection = &mut self.zset;
        if zset.version() == 0 {
            zset.unpack(1);
        }
        let mut ops = OpWriter::default();
        let hash_of = |name: &[u8]| LAYOUT.hash(name);
        zset.seal(&mut ElementRows::new(&mut ops, 3, 1, &hash_of));
        for op in ops.read() {
            match op {
                Op::Put { key, value, new, .. } => {
                    let old = self.rows.insert(key[HEAD..].to_vec(), value.to_vec());
                    assert!(!new || old.is_none(), "it is not new");
                }
                Op::Delete { key, .. } => {
                    self.rows.remove(&key[HEAD..]);
                }
                Op::Generation { .. } | Op::Resize { .. } => {}
            }
        }
        assert_eq!(self.rows.len() as u64, 2 * self.zset.len());
        let mut entry = Entry::absent(b"k", 1);
        entry.value = Value::Zset(Box::new(std::mem::take(&mut self.zset)));
        self.meta.clear();
        encode_meta(&mut self.meta, &entry);
        let Value::Zset(zset) = entry.value else { panic!("it is a sorted set") };
        self.zset = *zset;
    }

    /// Forgets everything but the rows.
    fn evict(&mut self) {
        self.seal();
        // An emptied set keeps its encoding here, so that it takes negative zeros.
        if !self.zset.is_empty() {
            let Value::Zset(zset) = decode_entry(b"k", 1, &self.meta).unwrap().value else {
                panic!("it is a sorted set")
            };
            self.zset = *zset;
        }
    }

    fn in_range(&self, range: &ElementRange) -> Vec<(Bytes, Bytes)> {
        let rows = self.rows.iter().filter(|(element, _)| range.contains(element));
        rows.map(|(k, v)| (k.clone().into(), v.clone().into())).collect()
    }

    fn page(&mut self, mut range: ElementRange, reverse: bool, limit: usize) {
        let mut rows = self.in_range(&range);
        if rows.len() >= limit {
            if reverse {
                rows.drain(..rows.len() - limit);
                range.from = rows[0].0.to_vec();
            } else {
                rows.truncate(limit);
                range.to = Some([&rows[limit - 1].0[..], &[0]].concat());
            }
        }
        if range.from[0] == ORDER_PREFIX {
            let score = range.from[1..9].try_into().unwrap();
            let bits = u64::from_be_bytes(score) & !(1 << 63);
            self.least = self.least.min(f64::from_bits(bits));
        }
        self.zset.apply_page(Page { range, rows }).unwrap();
    }

    /// Loads a missing part.
    fn serve(&mut self, part: Part) {
        self.seal();
        match part {
            Part::Fields(names) => {
                self.loaded.push("fields");
                for name in names {
                    let row = self.rows.get(&self.zset.element_key(&name, &LAYOUT));
                    self.zset.apply_named(&name, row.map(|row| &**row)).unwrap();
                }
            }
            Part::All => {
                self.loaded.push("all");
                let everything = ElementRange { from: Vec::new(), to: None };
                let mut rows = self.in_range(&everything);
                let some = self.zset.apply_some(&rows[..rows.len() / 2]).unwrap();
                rows.drain(..some);
                self.zset.apply_all(rows).unwrap();
            }
            Part::Page { range, reverse, limit, .. } => {
                self.loaded.push("page");
                self.page(range, reverse, limit);
            }
            Part::Index { range, by: IndexBy::Rows(most) } => {
                self.loaded.push("index");
                let rows = self.in_range(&range);
                let pieces = rows.chunks(most as usize);
                let pieces = pieces.map(|rows| (rows[0].0.clone(), rows.len() as u64)).collect();
                self.zset.apply_index(&range, pieces).unwrap();
            }
            other => panic!("{other:?} is not a part of a sorted set"),
        }
    }

    /// Drops something from memory between the request for a part and its arrival, and reads parts
    /// that were requested before once more, as when a unit is rolled back.
    fn drop_some(&mut self, part: &Part) {
        let Some(random) = &mut self.drops else { return };
        let (choice, blocks) = (random.random_range(0..8), random.random_range(0..12));
        let again = self.recent.iter().filter(|_| random.random_ratio(1, 4)).cloned();
        let again: Vec<_> = again.collect();
        match choice {
            0 => {
                self.evict();
                again.into_iter().for_each(|part| self.serve(part));
            }
            1 | 2 => {
                self.seal();
                Collection::shed(&mut self.zset, blocks);
            }
            _ => {}
        }
        self.recent.insert(0, part.clone());
        self.recent.truncate(12);
    }

    /// Repeats a query until everything it needs is in memory.
    fn ask<T>(&mut self, question: impl Fn(&Zset) -> Result<T, Part>) -> T {
        for attempt in 0..200 {
            match question(&self.zset).or_load(0, b"k") {
                Ok(answer) => return answer,
                Err(Fault::Miss(need)) => {
                    let part = need.part.unwrap();
                    // Otherwise nobody would read it.
                    assert!(!Collection::has(&self.zset, &part), "{part:?}");
                    if attempt < DROPS {
                        self.drop_some(&part);
                    }
                    self.serve(part.clone());
                    self.read += 1;
                    self.had += u32::from(Collection::has(&self.zset, &part));
                }
                Err(other) => panic!("it is a sorted set: {other:?}"),
            }
        }
        panic!("it asks for ever: {:?}", &self.loaded[self.loaded.len() - 5..]);
    }

    fn set(&mut self, name: &[u8], score: f64) -> Option<f64> {
        self.ask(|zset| zset.require(std::iter::once(name)));
        self.zset.set(name, score)
    }

    fn walk(&mut self, span: &Span, skip: u64, count: u64, reverse: bool) -> Vec<(Vec<u8>, f64)> {
        self.ask(|zset| collect(zset.within(span, skip, count, reverse)?))
    }

    fn pop(&mut self, reverse: bool) -> Option<(Vec<u8>, f64)> {
        let item = self.ask(|zset| collect(zset.by_rank(0, 1, reverse)?)).pop()?;
        self.zset.remove_found(&item.0, item.1);
        Some(item)
    }
}

fn collect(walk: ZsetWalk<'_>) -> Result<Vec<(Vec<u8>, f64)>, Part> {
    walk.map(|item| item.map(|(name, score)| (name.to_vec(), score))).collect()
}

/// The expected contents, as a plain map.
#[derive(Default)]
struct Model(BTreeMap<Vec<u8>, f64>);

impl Model {
    fn sorted(&self) -> Vec<(Vec<u8>, f64)> {
        let mut items: Vec<_> = self.0.iter().map(|(n, s)| (n.clone(), *s)).collect();
        items.sort_by(|a, b| a.1.partial_cmp(&b.1).unwrap().then_with(|| a.0.cmp(&b.0)));
        items
    }
}

fn score_of(rng: &mut SmallRng) -> f64 {
    match rng.random_range(0..40) {
        0 => f64::INFINITY,
        1 => f64::NEG_INFINITY,
        2 => -0.0,
        3 => 0.0,
        4..12 => f64::from(rng.random_range(-3..3)),
        _ => f64::from(rng.random_range(-2000..2000)) / 4.0,
    }
}

fn bits(items: &[(Vec<u8>, f64)]) -> Vec<(&[u8], u64)> {
    items.iter().map(|(name, score)| (&**name, score.to_bits())).collect()
}

/// Compares the answers of both to one random query.
fn compare(world: &mut World, sorted: &[(Vec<u8>, f64)], rng: &mut SmallRng) {
    assert_eq!(world.zset.len(), sorted.len() as u64);
    let reverse = rng.random();
    let (a, b) = (score_of(rng), score_of(rng));
    let (a_out, b_out) = (rng.random_bool(0.3), rng.random_bool(0.3));
    let span = Span::by_score((a, a_out), (b, b_out));
    let is_in = |score: f64| {
        (if a_out { score > a } else { score >= a }) && (if b_out { score < b } else { score <= b })
    };
    let mut within: Vec<_> = sorted.iter().filter(|(_, score)| is_in(*score)).cloned().collect();
    match rng.random_range(0..5) {
        0 if !sorted.is_empty() => {
            let rank = rng.random_range(0..sorted.len());
            let (name, score) = &sorted[rank];
            let rank = if reverse { sorted.len() - 1 - rank } else { rank } as u64;
            let found = world.ask(|zset| zset.rank(name, reverse));
            assert_eq!(found, Some((rank, *score)));
        }
        1 => assert_eq!(world.ask(|zset| zset.count(&span)), within.len() as u64),
        2 => {
            let (skip, count) = (rng.random_range(0..200), rng.random_range(0..300));
            if reverse {
                within.reverse();
            }
            let expected: Vec<_> = within.into_iter().skip(skip).take(count).collect();
            let found = world.walk(&span, skip as u64, count as u64, reverse);
            assert_eq!(bits(&found), bits(&expected));
        }
        3 => {
            let rank = rng.random_range(0..sorted.len() + 1);
            let count = rng.random_range(0..300);
            let found =
                world.ask(|zset| collect(zset.by_rank(rank as u64, count as u64, reverse)?));
            let expected: Vec<_> = if reverse {
                sorted.iter().rev().skip(rank).take(count).cloned().collect()
            } else {
                sorted.iter().skip(rank).take(count).cloned().collect()
            };
            assert_eq!(bits(&found), bits(&expected));
        }
        _ => {
            let name = rng.random_range(0..3000).to_string().into_bytes();
            let expected = sorted.iter().find(|item| item.0 == name).map(|item| item.1);
            assert_eq!(world.ask(|zset| zset.score(&name)), expected);
        }
    }
}

fn change(world: &mut World, model: &mut Model, rng: &mut SmallRng) {
    let name = rng.random_range(0..3000).to_string().into_bytes();
    match rng.random_range(0..10) {
        0 => {
            world.ask(|zset| zset.require(std::iter::once(&*name)));
            assert_eq!(world.zset.remove(&name), model.0.remove(&name));
        }
        1 => {
            let reverse = rng.random();
            let sorted = model.sorted();
            let expected = if reverse { sorted.last() } else { sorted.first() };
            let found = world.pop(reverse);
            assert_eq!(found.as_ref().map(|item| &item.0), expected.map(|item| &item.0));
            if let Some((name, _)) = expected {
                model.0.remove(name);
            }
        }
        2 => {
            let from = score_of(rng);
            let span = Span::by_score((from, true), (from + 3.0, false));
            for (name, score) in world.walk(&span, 0, u64::MAX, false) {
                assert_eq!(model.0.remove(&name), Some(score));
                world.zset.remove_found(&name, score);
            }
        }
        _ => {
            let score = score_of(rng);
            let old = world.set(&name, score);
            assert_eq!(old, model.0.get(&name).copied());
            if old != Some(score) {
                model.0.insert(name, score);
            }
        }
    }
}

#[test]
fn a_sorted_set_is_as_a_sorted_list_whatever_is_in_memory() {
    for seed in 0..12 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let (mut world, mut model) = (World::default(), Model::default());
        world.zset.make_skiplist();
        world.drops = Some(SmallRng::seed_from_u64(seed + 100));
        for _ in 0..500 * (seed % 4) {
            change(&mut world, &mut model, &mut rng);
        }
        for step in 0..400 {
            match rng.random_range(0..40) {
                0 => world.evict(),
                1..4 => {
                    world.seal();
                    let steps = rng.random_range(0..2000);
                    Collection::shed(&mut world.zset, steps);
                }
                4..8 => world.seal(),
                8..24 => change(&mut world, &mut model, &mut rng),
                _ => compare(&mut world, &model.sorted(), &mut rng),
            }
            if step % 100 == 99 {
                world.ask(Zset::require_all);
                let all: Vec<_> = world.zset.iter().map(|(n, s)| (n.to_vec(), s)).collect();
                assert_eq!(bits(&all), bits(&model.sorted()));
            }
        }
        // The place of a page may be gone if nothing was there.
        assert!(world.had * 10 > world.read * 9, "{} of {}", world.had, world.read);
        let (low, high) = world.zset.bounds();
        let sorted = model.sorted();
        assert!(low <= sorted[0].1 && high >= sorted[sorted.len() - 1].1);
    }
}

fn queue(len: u32) -> World {
    let mut world = World { least: f64::INFINITY, ..World::default() };
    for n in 0..len {
        world.zset.set(n.to_string().as_bytes(), f64::from(n));
    }
    world.evict();
    world
}

#[test]
fn a_cold_queue_is_never_read_before_its_beginning() {
    let mut world = queue(20_000);
    for n in 0..15_000u32 {
        assert_eq!(world.pop(false), Some((n.to_string().into_bytes(), f64::from(n))));
        if n % 4000 == 3999 {
            world.least = f64::INFINITY;
            world.evict();
            assert_eq!(world.zset.bounds().0, f64::from(n) + 1.0);
        }
        if n % 4000 > 0 {
            assert!(world.least >= f64::from(n / 4000 * 4000));
        }
    }
    assert!(world.loaded.iter().all(|what| *what == "page") && world.loaded.len() < 100);
    let popped_back = (0..100).filter_map(|_| world.pop(true)).last();
    assert_eq!(popped_back, Some((b"19900".to_vec(), 19_900.0)));
    world.evict();
    assert_eq!(world.zset.bounds(), (15_000.0, 19_899.0));
}

#[test]
fn ranks_of_a_cold_set_take_one_index() {
    let mut world = queue(30_000);
    for n in (0..30_000u64).step_by(997) {
        let name = n.to_string().into_bytes();
        assert_eq!(world.ask(|zset| zset.rank(&name, false)), Some((n, n as f64)));
        assert_eq!(world.ask(|zset| collect(zset.by_rank(n, 1, false)?))[0].0, name);
        Collection::shed(&mut world.zset, 3000);
    }
    assert_eq!(world.loaded.iter().filter(|what| **what == "index").count(), 1);
    let pages = world.loaded.iter().filter(|what| **what == "page").count();
    assert!(pages <= 60, "{pages} pages");
}

#[test]
fn ranges_at_hand_need_few_reads() {
    let mut world = queue(30_000);
    let span = Span::by_score((20_000.0, false), (20_004.0, true));
    assert_eq!(world.ask(|zset| zset.count(&span)), 4);
    assert_eq!(world.walk(&span, 1, 2, true).len(), 2);
    assert_eq!(world.ask(|zset| collect(zset.by_rank(3, 2, false)?)).len(), 2);
    assert_eq!(world.ask(|zset| collect(zset.by_rank(3, 2, true)?))[0].0, b"29996");
    let empty = Span::by_score((500.25, false), (500.75, false));
    assert_eq!(world.ask(|zset| zset.count(&empty)), 0);
    assert_eq!(world.walk(&empty, 0, 9, false), []);
    world.set(b"new", 700.0);
    world.ask(|zset| zset.require(std::iter::once(&b"12000"[..])));
    assert_eq!(world.zset.remove(b"12000"), Some(12_000.0));
    assert!(world.loaded.len() < 20, "{:?}", world.loaded);
    assert_eq!(world.zset.len(), 30_000);
}

#[test]
fn names_of_any_length_are_kept() {
    let long = |last: u8| [vec![b'x'; 40_000], vec![last]].concat();
    let mut world = World::default();
    world.zset.make_skiplist();
    for (name, score) in [(long(1), -0.0), (long(2), 1.0), (b"x".to_vec(), 0.0)] {
        world.zset.set(&name, score);
    }
    world.evict();
    let found = world.walk(&Span::all(), 0, 9, false);
    assert_eq!(bits(&found), bits(&[(b"x".to_vec(), 0.0), (long(1), -0.0), (long(2), 1.0)]));
    assert_eq!(world.ask(|zset| zset.score(&long(2))), Some(1.0));
    assert_eq!(world.ask(|zset| zset.rank(&long(1), false)), Some((1, 0.0)));
    world.evict();
    world.ask(Zset::require_all);
    assert!(world.zset.is_complete());
}

#[test]
fn names_are_found_by_their_order() {
    use LexEdge::{Excluding, Including, Max, Min};
    let names = |world: &mut World, min: LexEdge<'_>, max: LexEdge<'_>, reverse: bool| {
        let span = world.ask(|zset| zset.lex_span(min, max, reverse));
        let found = world.walk(&span, 0, u64::MAX, reverse);
        found.into_iter().flat_map(|(name, _)| name).map(char::from).collect::<String>()
    };
    let mut world = World::default();
    for name in b'a'..=b'j' {
        world.zset.set(&[name], 1.0);
    }
    for cold in [false, true] {
        if cold {
            world.evict();
        }
        assert_eq!(names(&mut world, Min, Including(b"c"), false), "abc");
        assert_eq!(names(&mut world, Excluding(b"c"), Excluding(b"f"), true), "ed");
        assert_eq!(names(&mut world, Including(b"h"), Max, false), "hij");
        assert_eq!(names(&mut world, Min, Max, true), "jihgfedcba");
        assert_eq!(names(&mut world, Max, Min, false), "");
        assert_eq!(names(&mut world, Excluding(b"c"), Including(b"c"), false), "");
    }
    // Scores that differ: a listpack is searched from one end on.
    let zset = [(&b"c"[..], 1.0), (b"a", 2.0), (b"d", 3.0), (b"b", 4.0)].into_iter().collect();
    let mut world = World { zset, ..World::default() };
    assert_eq!(names(&mut world, Min, Including(b"c"), false), "ca");
    assert_eq!(names(&mut world, Including(b"b"), Max, true), "bd");
    assert_eq!(names(&mut world, Including(b"c"), Max, false), "");
}

#[test]
fn a_copy_has_rows_of_its_own() {
    let mut world = queue(300);
    world.ask(Zset::require_all);
    let Value::Zset(copy) = Value::Zset(Box::new(world.zset.clone())).copied() else {
        panic!("it is a sorted set")
    };
    let mut other = World { zset: *copy, ..World::default() };
    assert_eq!(Collection::version(&other.zset), 0);
    other.evict();
    assert_eq!(other.rows, world.rows);
    assert_eq!(other.walk(&Span::all(), 0, u64::MAX, false).len(), 300);
}
