//! Element rows in a map, from which tests serve the parts that a collection requests.

use super::collection::Collection;
use crate::encoding::{ElementRows, Op, OpWriter, Row, get_varint};
use crate::need::{ElementRange, IndexBy, Page, Part};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

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
        match part {
            Part::All => {
                collection.apply_all(self.all()).unwrap();
            }
            Part::Page { range, reverse, limit } => {
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

    /// Runs a query until everything it needs is in memory.
    pub(super) fn query<C: Collection, T>(
        &mut self,
        collection: &mut C,
        query: impl Fn(&C) -> Result<T, Part>,
    ) -> T {
        for _ in 0..10_000 {
            match query(collection) {
                Ok(answer) => return answer,
                Err(part) => self.serve(collection, part),
            }
        }
        panic!("a query asks without end: {:?}", self.asked.last());
    }
}
