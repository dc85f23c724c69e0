//! Element rows in a map, from which tests serve the parts that a collection requests.

use super::collection::Collection;
use super::{Entry, Typed, decode_entry, encode_meta};
use crate::encoding::{ElementRows, Op, OpWriter, Row, get_varint};
use crate::need::{ElementRange, IndexBy, Page, Part};
use bytes::Bytes;
use rand::{RngExt, rngs::SmallRng};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Number of parts of a query before whose arrival something may be dropped.
const DROPS: usize = 24;

/// Number of parts that may be read again.
const RECENT: usize = 12;

/// See the module's description.
#[derive(Default)]
pub(super) struct TestRows {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    version: u64,
    versions: u64,
    /// Parts that were requested.
    pub(super) asked: Vec<Part>,
    /// Prefixes of dead elements.
    dead: Vec<Vec<u8>>,
    /// Number of rows written and deleted.
    pub(super) written: usize,
    /// Decides what is dropped from memory while a query is served.
    pub(super) drops: Option<SmallRng>,
    /// Parts of this version that were requested last.
    recent: VecDeque<Part>,
}

impl TestRows {
    /// Seals a collection like a round does.
    pub(super) fn seal(&mut self, collection: &mut dyn Collection) {
        if collection.is_small_again() {
            collection.detach();
        }
        if collection.version() == 0 {
            collection.note_rewrite();
            if collection.is_too_big() {
                self.versions += 1;
                collection.unpack(self.versions);
            }
        }
        if collection.version() != self.version {
            self.version = collection.version();
            self.rows.clear();
            self.dead.clear();
            self.recent.clear();
        }
        if self.version == 0 {
            return;
        }
        let mut ops = OpWriter::default();
        collection.seal(&mut ElementRows::new(&mut ops, 0, self.version, &|_| 0));
        self.apply(&ops);
    }

    /// Applies written rows.
    pub(super) fn apply(&mut self, ops: &OpWriter) {
        let element = |key| match Row::parse(key) {
            Some(Row::Element { element, .. }) => element.to_vec(),
            other => panic!("no element row: {other:?}"),
        };
        let dead = |key| match Row::parse(key) {
            Some(Row::Dead { prefix, .. }) => Some(prefix.to_vec()),
            _ => None,
        };
        for op in ops.read() {
            self.written += 1;
            match op {
                Op::Put { key, .. } if dead(key).is_some() => self.dead.extend(dead(key)),
                Op::Put { key, value, new, .. } => {
                    let old = self.rows.insert(element(key), value.to_vec());
                    assert!(!new || old.is_none(), "it is not new");
                }
                Op::Delete { key, .. } => {
                    self.rows.remove(&element(key));
                }
                Op::Generation { .. } | Op::Resize { .. } => {
                    panic!("a collection has no generations and no counters")
                }
            }
        }
    }

    /// Deletes dead rows.
    pub(super) fn sweep(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        self.rows.retain(|key, _| !dead.iter().any(|prefix| key.starts_with(prefix)));
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    fn range(&self, range: &ElementRange) -> impl DoubleEndedIterator<Item = (Bytes, Bytes)> {
        let to = range.to.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((Bound::Included(range.from.clone()), to));
        rows.map(|(key, value)| (key.clone().into(), value.clone().into()))
    }

    /// Returns all rows.
    pub(super) fn all(&self) -> Vec<(Bytes, Bytes)> {
        self.range(&ElementRange { from: Vec::new(), to: None }).collect()
    }

    /// Reads a page like a load does.
    pub(super) fn page(&self, mut range: ElementRange, reverse: bool, limit: usize) -> Page {
        assert!(range.to.as_ref().is_none_or(|to| range.from < *to), "an empty page");
        let mut rows: Vec<_> = if reverse {
            self.range(&range).rev().take(limit).collect()
        } else {
            self.range(&range).take(limit).collect()
        };
        if rows.len() == limit {
            let last = rows.last().unwrap().0.to_vec();
            if reverse {
                range.from = last;
            } else {
                range.to = Some([&last[..], &[0]].concat());
            }
        }
        rows.sort();
        Page { range, rows }
    }

    /// Reads a part like a load does, after the round was closed.
    pub(super) fn serve(&mut self, collection: &mut dyn Collection, part: Part) {
        self.seal(collection);
        self.asked.push(part.clone());
        self.recent.truncate(RECENT);
        match part {
            Part::All => {
                // In pieces, as those of a big value come.
                let mut rows = self.all();
                for _ in 0..3 {
                    let some = collection.apply_some(&rows[..rows.len() / 3]).unwrap();
                    rows.drain(..some);
                }
                collection.apply_all(rows).unwrap();
            }
            Part::Page { range, reverse, limit, least } => {
                // One that is full of large rows ends early.
                let is_cut = self.drops.as_mut().is_some_and(|random| random.random_ratio(1, 4));
                let limit = if is_cut { least } else { limit };
                collection.apply_page(self.page(range, reverse, limit)).unwrap();
            }
            Part::Index { range, by: IndexBy::Values } => {
                let count = |row: Bytes| get_varint(&mut &row[..]).unwrap();
                let pieces = self.range(&range).map(|(key, row)| (key, count(row))).collect();
                collection.apply_index(&range, pieces).unwrap();
            }
            other => panic!("nobody asks for {other:?}"),
        }
    }

    /// Writes a collection, forgets it, and reads its meta row.
    pub(super) fn reload<C: Collection + Typed + Default>(&mut self, collection: &mut C) {
        self.seal(collection);
        if collection.len() == 0 && !collection.may_be_empty() {
            return;
        }
        let mut entry = Entry::absent(b"k", 1);
        entry.value = std::mem::take(collection).into_value();
        let mut row = Vec::new();
        encode_meta(&mut row, &entry);
        let mut read = decode_entry(b"k", 1, &row).unwrap();
        *collection = std::mem::take(C::of_mut(&mut read.value).unwrap());
    }

    /// Drops something from memory between the request for a part and its arrival: some elements, or
    /// everything, as when a unit is rolled back. Then some parts that were requested before are read
    /// again, although what is in memory is not what they were requested for.
    pub(super) fn drop_some<C: Collection + Typed + Default>(&mut self, collection: &mut C) {
        let Some(random) = &mut self.drops else { return };
        match random.random_range(0..8) {
            0 => {
                let wanted = self.recent.iter().filter(|_| random.random_ratio(1, 4));
                let again: Vec<_> = wanted.cloned().collect();
                self.reload(collection);
                for part in again {
                    self.serve(collection, part);
                }
            }
            1 | 2 => {
                let steps = random.random_range(0..12);
                self.seal(collection);
                collection.shed(steps);
            }
            _ => {}
        }
    }

    /// Runs a query until everything it needs is in memory.
    pub(super) fn query<C: Collection + Typed + Default, T>(
        &mut self,
        collection: &mut C,
        query: impl Fn(&C) -> Result<T, Part>,
    ) -> T {
        let begin = self.asked.len();
        for attempt in 0..10_000 {
            match query(collection) {
                Ok(answer) => return answer,
                Err(part) => {
                    // A query that needs much gets it in the end.
                    if attempt < DROPS {
                        self.drop_some(collection);
                    }
                    self.recent.push_front(part.clone());
                    self.serve(collection, part);
                }
            }
        }
        panic!("a query asks without end: {:?}", &self.asked[begin..begin + 9]);
    }
}
