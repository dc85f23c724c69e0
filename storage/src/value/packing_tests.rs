//! Hashes, sets and sorted sets of changing size next to plain maps, while they are sealed, evicted
//! and dropped in part: they are packed and unpacked, and always have the elements of the maps.

use super::collection::{MAX_REWRITES, PACKED_AGAIN, PACKED_ALWAYS, PACKED_MAX};
use super::{Entry, Hash, Set, SetEncoding, Typed, Value, Zset};
use crate::encoding::{ElementRows, Op, OpWriter, Row};
use crate::need::{ElementRange, Page, Part};
use crate::slot::Layout;
use crate::value::{decode_entry, encode_meta};
use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;

static LAYOUT: Layout = Layout::new(1, 3);

/// A value with its rows on disk.
struct Stored {
    value: Value,
    meta: Vec<u8>,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    versions: u64,
    /// Bytes that were written, and how often it was unpacked and packed again.
    written: usize,
    unpacked: u32,
    packed_again: u32,
}

impl Stored {
    fn new(value: Value) -> Self {
        Self {
            value,
            meta: Vec::new(),
            rows: BTreeMap::new(),
            versions: 0,
            written: 0,
            unpacked: 0,
            packed_again: 0,
        }
    }

    /// Closes a round, as [`crate::commit`] does.
    fn seal(&mut self) {
        let collection = self.value.collection_mut().expect("a collection");
        if collection.is_small_again() {
            collection.detach();
            self.rows.clear();
            self.packed_again += 1;
        }
        if collection.version() == 0 {
            collection.note_rewrite();
            if collection.is_too_big() {
                self.versions += 1;
                self.unpacked += 1;
                collection.unpack(self.versions);
            }
        }
        let mut ops = OpWriter::default();
        if collection.version() != 0 {
            let hash_of = |name: &[u8]| LAYOUT.hash(name);
            collection.seal(&mut ElementRows::new(&mut ops, 1, collection.version(), &hash_of));
        }
        self.written += ops.len();
        for op in ops.read() {
            let Some(Row::Element { element, .. }) = op.key().and_then(Row::parse) else {
                panic!("no element row: {op:?}")
            };
            match op {
                Op::Put { value, new, .. } => {
                    let old = self.rows.insert(element.to_vec(), value.to_vec());
                    assert!(!new || old.is_none(), "it is not new");
                }
                _ => drop(self.rows.remove(element)),
            }
        }
        let mut entry = Entry::absent(b"k", 1);
        entry.value = std::mem::take(&mut self.value);
        self.meta.clear();
        encode_meta(&mut self.meta, &entry);
        self.written += self.meta.len();
        self.value = entry.value;
    }

    fn evict(&mut self) {
        self.seal();
        self.value = decode_entry(b"k", 1, &self.meta).expect("decoded").value;
    }

    fn is_packed(&self) -> bool {
        self.value.version() == 0
    }

    fn serve(&mut self, part: Part) {
        self.seal();
        let collection = self.value.collection_mut().expect("a collection");
        match part {
            Part::Fields(names) => {
                for name in names {
                    let row = self.rows.get(&collection.element_key(&name, &LAYOUT));
                    collection.apply_named(&name, row.map(|row| &**row)).expect("applied");
                }
            }
            Part::All => {
                let rows = self.rows.iter();
                let mut all: Vec<(Bytes, Bytes)> =
                    rows.map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
                let some = collection.apply_some(&all[..all.len() / 2]).expect("applied");
                all.drain(..some);
                collection.apply_all(all).expect("applied");
            }
            Part::Page { range, .. } | Part::Index { range, .. } => {
                let inside = self.rows.iter().filter(|(element, _)| range.contains(element));
                let rows: Vec<(Bytes, Bytes)> =
                    inside.map(|(k, v)| (k.clone().into(), v.clone().into())).collect();
                let range = ElementRange { ..range };
                collection.apply_page(Page { range, rows }).expect("applied");
            }
            Part::Chunks(_) | Part::Expiries => panic!("nobody asks for {part:?}"),
        }
    }

    fn ask<C: Typed, T>(&mut self, question: impl Fn(&C) -> Result<T, Part>) -> T {
        for _ in 0..100 {
            match question(C::of(&self.value).expect("of its type")) {
                Ok(answer) => return answer,
                Err(part) => self.serve(part),
            }
        }
        panic!("it asks for ever")
    }

    fn change<C: Typed, T>(&mut self, change: impl FnOnce(&mut C) -> T) -> T {
        change(C::of_mut(&mut self.value).expect("of its type"))
    }
}

/// The common operations of the three types; the value of an element is a number.
trait Kept: Typed {
    /// Bytes that a value may have at most.
    const LONGEST: usize;
    /// The greatest number that an element may have.
    const GREATEST: u64;
    fn empty() -> Self;
    fn ensure(&self, name: &[u8]) -> Result<(), Part>;
    fn ensure_all(&self) -> Result<(), Part>;
    fn put(&mut self, name: &[u8], value: &[u8], number: u64);
    fn take(&mut self, name: &[u8]) -> bool;
    fn all(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)>;
}

impl Kept for Hash {
    const LONGEST: usize = 900;
    const GREATEST: u64 = 1000;

    fn empty() -> Self {
        Self::new()
    }

    fn ensure(&self, name: &[u8]) -> Result<(), Part> {
        self.require([name].into_iter())
    }

    fn ensure_all(&self) -> Result<(), Part> {
        self.require_all()
    }

    /// The number is the field's expiry.
    fn put(&mut self, name: &[u8], value: &[u8], number: u64) {
        self.set(name, value, number);
    }

    fn take(&mut self, name: &[u8]) -> bool {
        self.remove(name).is_some()
    }

    fn all(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
        let least = self.iter().map(|(_, field)| field.expire_at_ms).filter(|at| *at != 0).min();
        assert_eq!(self.min_expire_at_ms(), least.unwrap_or(0));
        let fields = self.iter();
        fields.map(|(n, field)| (n.to_vec(), (field.value.to_vec(), field.expire_at_ms))).collect()
    }
}

impl Kept for Set {
    const LONGEST: usize = 0;
    const GREATEST: u64 = 0;

    fn empty() -> Self {
        Self::new(SetEncoding::Listpack)
    }

    fn ensure(&self, name: &[u8]) -> Result<(), Part> {
        self.require([name].into_iter())
    }

    fn ensure_all(&self) -> Result<(), Part> {
        self.require_all()
    }

    fn put(&mut self, name: &[u8], _: &[u8], _: u64) {
        self.add(name);
    }

    fn take(&mut self, name: &[u8]) -> bool {
        self.remove(name)
    }

    fn all(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
        self.iter().map(|name| (name.to_vec(), (Vec::new(), 0))).collect()
    }
}

impl Kept for Zset {
    const LONGEST: usize = 0;
    const GREATEST: u64 = 1000;

    fn empty() -> Self {
        Self::new(true)
    }

    fn ensure(&self, name: &[u8]) -> Result<(), Part> {
        self.require([name].into_iter())
    }

    fn ensure_all(&self) -> Result<(), Part> {
        self.require_all()
    }

    /// The number is the score.
    fn put(&mut self, name: &[u8], _: &[u8], number: u64) {
        self.set(name, number as f64);
    }

    fn take(&mut self, name: &[u8]) -> bool {
        self.remove(name).is_some()
    }

    fn all(&self) -> BTreeMap<Vec<u8>, (Vec<u8>, u64)> {
        let scores: Vec<f64> = self.iter().map(|(_, score)| score).collect();
        assert!(scores.is_sorted(), "in order");
        self.iter().map(|(name, score)| (name.to_vec(), (Vec::new(), score as u64))).collect()
    }
}

/// Runs random operations; returns how often the value was unpacked, and packed again.
fn history<C: Kept>(seed: u64) -> (u32, u32) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut stored = Stored::new(C::empty().into_value());
    let mut model: BTreeMap<Vec<u8>, (Vec<u8>, u64)> = BTreeMap::new();
    let name = |n: u32| format!("{n:0width$}", width = 5 + n as usize * 37 % 90).into_bytes();
    for phase in 0..24 {
        // Grows and shrinks in turn, to another size each time.
        let (most, grows) = (rng.random_range(5..250), phase % 2 == 0);
        for _ in 0..rng.random_range(1..60) {
            let changes = if rng.random_bool(0.1) { most } else { rng.random_range(0..4) };
            for _ in 0..changes {
                let mut name = name(rng.random_range(0..most));
                if !grows && !model.is_empty() {
                    name = model.keys().nth(rng.random_range(0..model.len())).unwrap().clone();
                }
                stored.ask(|it: &C| it.ensure(&name));
                if rng.random_bool(if grows { 0.8 } else { 0.2 }) {
                    let len = rng.random_range(0..C::LONGEST + 1);
                    let value =
                        vec![rng.random(); if rng.random_bool(0.1) { len } else { len / 9 }];
                    let number = if rng.random() { 0 } else { rng.random_range(0..=C::GREATEST) };
                    let expected = if C::LONGEST == 0 { Vec::new() } else { value.clone() };
                    stored.change(|it: &mut C| it.put(&name, &value, number));
                    model.insert(name, (expected, number));
                } else {
                    let was = stored.change(|it: &mut C| it.take(&name));
                    assert_eq!(was, model.remove(&name).is_some());
                }
            }
            match rng.random_range(0..12) {
                0..6 => stored.seal(),
                6..8 => stored.evict(),
                8 => stored.ask(C::ensure_all),
                9 => {
                    stored.seal();
                    stored.value.collection_mut().expect("a collection").shed(30);
                }
                _ => {}
            }
            assert_eq!(stored.value.collection().expect("a collection").len(), model.len() as u64);
        }
        if rng.random() {
            stored.evict();
        }
        stored.ask(C::ensure_all);
        let all = C::of(&stored.value).expect("of its type").all();
        assert_eq!(all, model, "seed {seed}, phase {phase}");
    }
    (stored.unpacked, stored.packed_again)
}

fn histories<C: Kept>() {
    let (mut unpacked, mut packed_again) = (0, 0);
    for seed in 0..16 {
        let (there, back) = history::<C>(seed);
        unpacked += there;
        packed_again += back;
    }
    assert!(unpacked > 30 && packed_again > 30, "{unpacked}, {packed_again}");
}

#[test]
fn a_hash_holds_the_same_packed_or_not() {
    histories::<Hash>();
}

#[test]
fn a_set_holds_the_same_packed_or_not() {
    histories::<Set>();
}

#[test]
fn a_sorted_set_holds_the_same_packed_or_not() {
    histories::<Zset>();
}

fn hash_of(fields: usize, bytes: usize) -> Stored {
    let mut hash = Hash::new();
    hash.make_table();
    for n in 0..fields {
        hash.set(format!("field{n:03}").as_bytes(), &vec![b'v'; bytes], 0);
    }
    Stored::new(hash.into_value())
}

fn set_field(stored: &mut Stored, n: usize, value: &[u8]) {
    let name = format!("field{n:03}").into_bytes();
    stored.ask(|hash: &Hash| hash.require([&*name].into_iter()));
    stored.change(|hash: &mut Hash| hash.set(&name, value, 0));
    stored.seal();
}

#[test]
fn a_hashtable_written_at_once_is_one_row_until_it_is_changed_often() {
    let mut stored = hash_of(10, 350);
    stored.evict();
    assert!(stored.is_packed(), "written at once");
    assert_eq!(stored.value.encoding(), "hashtable");
    for n in 1..=MAX_REWRITES {
        assert!(stored.is_packed(), "after {n} rounds");
        set_field(&mut stored, 3, &[n as u8; 350]);
        // The number of rewrites is on disk.
        stored.value = decode_entry(b"k", 1, &stored.meta).unwrap().value;
    }
    assert!(!stored.is_packed());
    let before = stored.written;
    set_field(&mut stored, 3, &[b'w'; 350]);
    assert!(stored.written - before < 550, "only the field, and the meta row");
    assert_eq!(stored.value.encoding(), "hashtable");
    stored.evict();
    assert_eq!(stored.value.encoding(), "hashtable");
}

#[test]
fn a_round_that_changes_all_is_no_reason_to_unpack() {
    let mut stored = hash_of(10, 350);
    for round in 0..3 * MAX_REWRITES {
        for n in 0..10 {
            stored.change(|hash: &mut Hash| {
                hash.set(format!("field{n:03}").as_bytes(), &[round as u8; 350], 0)
            });
        }
        stored.evict();
    }
    assert!(stored.is_packed());
}

#[test]
fn no_change_writes_more_than_a_small_row_again_and_again() {
    for bytes in [10, 60, 180, 300, 380, 900, 5000] {
        let mut stored = hash_of(10, bytes);
        let size = 10 * bytes;
        stored.evict();
        (0..MAX_REWRITES as usize).for_each(|n| set_field(&mut stored, n, &vec![b'w'; bytes]));
        assert_eq!(stored.is_packed(), size < PACKED_ALWAYS, "{bytes} bytes");
        let before = stored.written;
        set_field(&mut stored, 1, &vec![b'x'; bytes]);
        let written = stored.written - before;
        assert!(written < PACKED_ALWAYS.max(bytes) + 200, "{written} of {size}");
        let mut fresh = hash_of(10, bytes);
        fresh.seal();
        assert_eq!(fresh.is_packed(), size < PACKED_MAX, "{bytes} bytes");
    }
}

#[test]
fn one_that_shrinks_is_packed_again_when_all_of_it_is_at_hand() {
    let mut stored = hash_of(40, 1000);
    stored.evict();
    assert!(!stored.is_packed());
    stored.ask(Hash::require_all);
    for n in 2..40 {
        let name = format!("field{n:03}").into_bytes();
        stored.change(|hash: &mut Hash| hash.remove(&name)).unwrap();
    }
    stored.seal();
    assert!(!stored.is_packed(), "two fields are more than {PACKED_AGAIN} bytes");
    set_field(&mut stored, 0, b"short");
    assert!(stored.is_packed() && stored.rows.is_empty());
    stored.evict();
    let all = Hash::of(&stored.value).unwrap().all();
    assert_eq!(all.len(), 2);
    assert_eq!(stored.value.encoding(), "hashtable");
}

#[test]
fn rows_of_earlier_versions_are_read() {
    // A packed hash, set and sorted set as they were written before rewrites were counted.
    let hash = [&[2, 0, 1, 1][..], b"f", &[2], b"vw"].concat();
    let set = [&[3, 16, 2, 1][..], b"7", &[1], b"9"].concat();
    let zset = [&[5, 8, 1][..], &2.5f64.to_bits().to_be_bytes(), &[1], b"m"].concat();
    for (row, encoding) in [(hash, "listpack"), (set, "intset"), (zset, "skiplist")] {
        let entry = decode_entry(b"k", 1, &row).unwrap();
        assert_eq!((entry.value.encoding(), entry.value.version()), (encoding, 0));
        let mut again = Vec::new();
        encode_meta(&mut again, &entry);
        assert_eq!(again, row, "and written alike until they are rewritten");
        again.push(0x80);
        assert!(decode_entry(b"k", 1, &again).is_err(), "half a number");
    }
}
