use super::super::collection::Collection;
use super::super::test_rows::TestRows;
use super::*;
use crate::value::{Entry, Value, decode_entry, encode_meta};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::collections::VecDeque;

/// Reads a list's meta row; no element is in memory.
fn cold(list: List) -> List {
    let mut entry = Entry::absent(b"k", 1);
    entry.value = Value::List(Box::new(list));
    let mut row = Vec::new();
    encode_meta(&mut row, &entry);
    match decode_entry(b"k", 1, &row).unwrap().value {
        Value::List(list) => *list,
        other => panic!("no list: {other:?}"),
    }
}

fn collect(list: &List, at: u64, count: u64, reverse: bool) -> Result<Vec<Vec<u8>>, Part> {
    Ok(list.range(at, count, reverse)?.map(<[u8]>::to_vec).collect())
}

struct Test {
    list: List,
    rows: TestRows,
    model: VecDeque<Vec<u8>>,
    rng: SmallRng,
}

impl Test {
    fn new(seed: u64) -> Self {
        Self {
            list: List::new(),
            rows: TestRows::default(),
            model: VecDeque::new(),
            rng: SmallRng::seed_from_u64(seed),
        }
    }

    fn element(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..40) {
            0 => vec![b'x'; self.rng.random_range(1000..5000)],
            1..4 => vec![b'y'; self.rng.random_range(0..400)],
            4..9 => b"same".to_vec(),
            _ => self.rng.random_range(-100_000i64..100_000).to_string().into_bytes(),
        }
    }

    fn push(&mut self, front: bool) {
        self.rows.query(&mut self.list, |list| list.require_push(front));
        for _ in 0..self.rng.random_range(1..60) {
            let element = self.element();
            self.list.push(&element, front);
            if front { self.model.push_front(element) } else { self.model.push_back(element) }
        }
    }

    fn drop_end(&mut self, front: bool) {
        let count = self.rng.random_range(0..50).min(self.model.len());
        self.rows.query(&mut self.list, |list| list.require_end(front, count as u64));
        if count > 0 {
            let end = if front { self.model.front() } else { self.model.back() };
            assert_eq!(self.list.peek_end(front), end.map(|e| &e[..]));
        }
        self.list.drop_end(front, count as u64);
        let from = if front { 0 } else { self.model.len() - count };
        self.model.drain(from..from + count);
    }

    fn place(&mut self) -> (usize, ListPlace) {
        let i = self.rng.random_range(0..self.model.len());
        let place = self.rows.query(&mut self.list, |list| {
            let place = list.seek(i as u64)?.unwrap();
            list.require_room(place)?;
            Ok(place)
        });
        (i, place)
    }

    fn read(&mut self) {
        let i = self.rng.random_range(0..self.model.len() + 2);
        let get = |list: &List| Ok(list.get(i as u64)?.map(<[u8]>::to_vec));
        assert_eq!(self.rows.query(&mut self.list, get).as_ref(), self.model.get(i));
        let count = self.rng.random_range(0..300).min(self.model.len().saturating_sub(i));
        let found = self.rows.query(&mut self.list, |l| collect(l, i as u64, count as u64, false));
        assert!(found.iter().eq(self.model.iter().skip(i).take(count)));
        if i < self.model.len() {
            let count = count.min(i + 1);
            let query = |l: &List| collect(l, i as u64, count as u64, true);
            let found = self.rows.query(&mut self.list, query);
            let skip = self.model.len() - 1 - i;
            assert!(found.iter().eq(self.model.iter().rev().skip(skip).take(count)));
        }
    }

    fn remove(&mut self) {
        let (most, reverse) = (self.rng.random_range(0..20u64), self.rng.random_bool(0.5));
        let matches = self.rows.query(&mut self.list, |list| list.matches(b"same", most, reverse));
        self.list.remove(&matches, b"same");
        let same = |(i, e): (usize, &Vec<u8>)| (e == b"same").then_some(i);
        let mut at: Vec<usize> = self.model.iter().enumerate().filter_map(same).collect();
        if reverse {
            at.drain(..at.len().saturating_sub(most as usize));
        } else {
            at.truncate(most as usize);
        }
        assert_eq!(matches.count(), at.len() as u64);
        at.into_iter().rev().for_each(|i| drop(self.model.remove(i)));
    }

    fn find(&mut self) {
        let found = self.rows.query(&mut self.list, |list| list.find(b"same"));
        assert_eq!(found.is_some(), self.model.iter().any(|e| e == b"same"));
        let Some(place) = found else { return };
        assert_eq!(self.list.at(place), Some(&b"same"[..]));
    }

    fn trim(&mut self) {
        let len = self.model.len();
        let start = self.rng.random_range(0..=len.min(40));
        let count = match self.rng.random_range(0..60) {
            0 => self.rng.random_range(0..=len - start),
            _ => len - start - self.rng.random_range(0..40).min(len - start),
        };
        let (at, keep) = (start as u64, count as u64);
        self.rows.query(&mut self.list, |list| list.require_trim(at, keep));
        self.list.trim(at, keep);
        self.model.truncate(start + count);
        self.model.drain(..start);
    }

    fn step(&mut self) {
        let choice = self.rng.random_range(0..15);
        match choice {
            0..=4 => self.push(choice % 2 == 0),
            5 | 6 => self.drop_end(choice == 5),
            7 => self.read(),
            8 if !self.model.is_empty() => {
                let ((i, place), element) = (self.place(), self.element());
                self.list.set(place, &element);
                self.model[i] = element;
            }
            9 | 10 if !self.model.is_empty() => {
                let ((i, place), element) = (self.place(), self.element());
                let after = choice == 9;
                self.list.insert(place, &element, after);
                self.model.insert(i + usize::from(after), element);
            }
            11 => self.remove(),
            12 => self.trim(),
            13 => self.find(),
            _ => self.read(),
        }
    }

    fn check(&mut self) {
        let len = self.model.len() as u64;
        assert_eq!(self.list.len(), len);
        let sum: u64 = self.model.iter().map(|e| listpack_entry(e)).sum();
        assert_eq!(self.list.listpack_bytes(), 7 + sum);
        let loaded: usize =
            self.list.nodes.iter().filter_map(ListNode::pack).map(Pack::bytes).sum();
        assert_eq!(self.list.bytes, loaded);
        let unloaded = self.list.nodes.iter().filter(|node| node.pack().is_none()).count();
        assert_eq!(self.list.unloaded, unloaded);
        assert!(self.list.nodes.iter().is_sorted_by(|a, b| a.end() <= b.no));
    }

    fn check_all(&mut self) {
        let len = self.model.len() as u64;
        let all = self.rows.query(&mut self.list, |list| collect(list, 0, len, false));
        assert!(all.iter().eq(&self.model));
        self.rows.seal(&mut self.list);
        if self.list.version != 0 {
            let nodes = self.list.nodes.len();
            assert_eq!(self.rows.len(), nodes);
            assert!(nodes < 10 + self.model.len() / 4, "nodes are small: {nodes}");
        }
    }
}

#[test]
fn a_list_is_as_a_deque_whatever_is_in_memory() {
    let mut asked = [0; 4];
    for seed in 0..3 {
        let mut test = Test::new(seed);
        test.rows.drops = Some(SmallRng::seed_from_u64(seed + 100));
        for n in 0..1200 {
            test.step();
            if n % 8 == 0 {
                test.check();
            }
            match test.rng.random_range(0..12) {
                0..3 => test.rows.seal(&mut test.list),
                3 if n % 3 == 0 && !test.model.is_empty() => {
                    test.rows.seal(&mut test.list);
                    let list = std::mem::take(&mut test.list);
                    test.list = cold(list);
                }
                4 => {
                    test.rows.seal(&mut test.list);
                    test.list.shed(test.rng.random_range(0..100));
                }
                5 => test.list.shed(10),
                6 if n % 10 == 0 => {
                    test.rows.query(&mut test.list, List::require_all);
                    let mut copy = test.list.clone();
                    copy.detach();
                    assert_eq!(copy.version, 0);
                    test.list = copy;
                }
                _ => {}
            }
            if n % 100 == 0 {
                test.check_all();
            }
        }
        test.check_all();
        for part in &test.rows.asked {
            asked[match part {
                Part::Page { reverse, .. } => usize::from(*reverse),
                Part::Index { .. } => 2,
                _ => 3,
            }] += 1;
        }
    }
    assert!(asked.iter().all(|&times| times > 5), "not every kind of read is tried: {asked:?}");
}

/// Returns a sealed list of `count` numbers.
fn numbers(count: u64, rows: &mut TestRows) -> List {
    let mut list = List::new();
    (0..count).for_each(|n| list.push(n.to_string().as_bytes(), false));
    rows.seal(&mut list);
    list
}

#[test]
fn a_queue_reads_no_node_twice_and_none_that_is_gone() {
    let mut rows = TestRows::default();
    let mut list = cold(numbers(20_000, &mut rows));
    for n in 0..100_000u64 {
        let first = list.bounds().0;
        rows.query(&mut list, |list| list.require_end(true, 1));
        for part in rows.asked.drain(..) {
            let Part::Page { range, reverse: false, limit, .. } = part else { panic!("{part:?}") };
            assert!(*range.from >= first.to_be_bytes()[..] && limit <= MAX_END_NODES);
        }
        assert_eq!(list.peek_end(true), Some(n.to_string().as_bytes()));
        list.drop_end(true, 1);
        rows.query(&mut list, |list| list.require_push(false));
        rows.asked.clear();
        list.push((20_000 + n).to_string().as_bytes(), false);
        if n % 100 == 0 {
            rows.seal(&mut list);
        }
        if n % 10_000 == 0 {
            list = cold(list);
        }
    }
    assert_eq!(list.len(), 20_000);
    assert!(rows.len() < 300, "rows are left: {}", rows.len());
}

#[test]
fn inserts_at_one_place_find_numbers() {
    for after in [false, true] {
        let mut rows = TestRows::default();
        let mut list = numbers(20_000, &mut rows);
        let written = rows.written;
        list = cold(list);
        for n in 0..10_000u64 {
            let at = if after { 10_000 } else { 10_000 + n };
            let place = rows.query(&mut list, |list| {
                let place = list.seek(at)?.unwrap();
                list.require_room(place)?;
                Ok(place)
            });
            list.insert(place, &n.to_be_bytes(), after);
        }
        let all = rows.query(&mut list, |list| collect(list, 0, 30_000, false));
        let inserted: Vec<_> = (0..10_000u64).map(|n| n.to_be_bytes().to_vec()).collect();
        if after {
            assert!(all[10_001..20_001].iter().eq(inserted.iter().rev()));
        } else {
            assert!(all[10_000..20_000].iter().eq(&inserted));
        }
        assert_eq!(all[20_001], b"10001");
        rows.seal(&mut list);
        assert!(rows.written < written + 3000, "many rows are written: {}", rows.written);
    }
}

#[test]
fn a_read_costs_the_same_whatever_the_length() {
    let mut rows = TestRows::default();
    let list = numbers(200_000, &mut rows);
    for (at, count) in [(0, 10), (199_990, 10), (1_000, 1), (199_000, 1)] {
        let mut list = cold(list.clone());
        rows.asked.clear();
        rows.query(&mut list, |list| collect(list, at, count, false));
        assert!(rows.asked.len() <= 3, "{:?}", rows.asked);
        assert!(list.bytes < 200_000, "much is read: {}", list.bytes);
    }
    let mut list = cold(list);
    rows.asked.clear();
    rows.query(&mut list, |list| collect(list, 100_000, 10, false));
    assert!(matches!(rows.asked[..], [Part::Index { .. }, Part::Page { limit: 1, .. }]));
    rows.query(&mut list, |list| list.require_trim(100, 10));
    list.trim(100, 10);
    assert_eq!((list.version, list.len()), (0, 10));
}

#[test]
fn numbers_at_the_edge_begin_anew() {
    for front in [false, true] {
        let mut rows = TestRows::default();
        let mut list = numbers(1000, &mut rows);
        let nodes = list.nodes.len() as u64;
        let (after, no) = if front { (0, 9) } else { (u64::MAX - STEP, u64::MAX - 9) };
        let first = list.nodes.first().unwrap();
        list.spread(&change::NodeWindow { first, nodes, after, before: after + STEP });
        rows.seal(&mut list);
        list = cold(list);
        for n in 1000..3000u64 {
            rows.query(&mut list, |list| list.require_push(front));
            list.push(n.to_string().as_bytes(), front);
        }
        rows.seal(&mut list);
        assert!(list.bounds().0.abs_diff(no) > FIRST_MIN && list.bounds().1.abs_diff(no) > 9);
        let all = rows.query(&mut list, |list| collect(list, 0, 3000, false));
        assert_eq!((all.len(), rows.len()), (3000, list.nodes.len()));
    }
}

#[test]
fn listpack_sizes_are_those_of_the_specification() {
    for (element, size) in [
        (&b"0"[..], 2),
        (b"127", 2),
        (b"128", 3),
        (b"-1", 3),
        (b"4096", 4),
        (b"-32769", 5),
        (b"8388608", 6),
        (b"9223372036854775807", 10),
        (b"9223372036854775808", 21),
        (b"007", 5),
        (b"", 2),
        (&[b'a'; 63], 65),
        (&[b'a'; 64], 67),
        (&[b'a'; 125], 128),
        (&[b'a'; 126], 130),
        (&[b'a'; 5000], 5007),
    ] {
        assert_eq!(listpack_entry(element), size, "{}", String::from_utf8_lossy(element));
    }
}
