//! Pending rows: rows that are in the journal but not yet in the engine, last value per row.
//!
//! Meta rows are in hash tables by slot range, so that none pauses to grow; element rows are
//! grouped by version; other rows are few.

mod blind;
mod rows;

use crate::encoding::{Library, Row, RowKey, SourcePosition};
use crate::journal::Lsn;
use crate::need::ElementRange;
use crate::reclaim::Reclaimed;
use crate::slot::{KeyHash, SUB_TABLES, sub_table};
use crate::value::decode_entry;
use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;
use rows::{PendingElementRows, PendingRow, RowChange, RowTable, set_row, sorted, warm_rows};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::{Bound, Range};

/// Offset of the slot in a meta row's key: keys of one generation are equal up to there.
const META_SLOT: usize = 5;

/// Number of rows that are prefetched together.
pub(crate) const TOGETHER: usize = 32;

/// Number of rows that a page of a scan passes at most: those of deleted keys are not shown.
const PASSED: usize = 2048;

/// Approximate memory use of a row beside its key and value, in bytes.
const ROW_OVERHEAD: usize = 80;

/// The element rows of one version.
#[derive(Debug, Default)]
struct PendingVersion {
    slot: u16,
    /// Approximate memory use of these rows, in bytes.
    bytes: usize,
    rows: Reclaimed<PendingElementRows>,
}

/// State of a row without a value.
#[derive(Clone, Copy, Debug)]
struct RowMark {
    /// True if the row is put, false if it is deleted.
    put: bool,
    /// True if neither the engine nor an older map has the row.
    new: bool,
}

/// One map of pending rows.
#[derive(Debug, Default)]
pub struct Pending {
    /// By generation, then sub-table.
    meta: HashMap<u32, Vec<RowTable>>,
    /// Dead generations: none of their meta rows counts any more.
    dead: BTreeSet<u32>,
    elements: HashMap<u64, PendingVersion>,
    /// Expiry index and dead versions.
    others: BTreeMap<Box<[u8]>, RowMark>,
    /// Libraries of functions, by name.
    libraries: BTreeMap<Box<[u8]>, Option<Box<[u8]>>>,
    /// The newest position in the stream of another server.
    source: Option<Box<[u8]>>,
    blind: blind::PendingBlind,
    rows: usize,
    bytes: usize,
    /// The lsn of the newest record merged.
    last_lsn: Lsn,
    /// Number of operations of the merged records.
    ops: u64,
}

/// Rows in the form that the engine takes: puts (`Some`) and deletes.
pub type Batch = Vec<(Bytes, Option<Bytes>)>;

/// A row's pending state. `None`: no change is pending; `Some(None)`: the row is deleted.
pub type Lookup<'a> = Option<Option<&'a [u8]>>;

/// Returns the bytes that were added and freed when a row was set.
fn sizes(key: &[u8], value: Option<&[u8]>, set: RowChange) -> (usize, usize) {
    let size = key.len() + value.map_or(0, <[u8]>::len) + ROW_OVERHEAD;
    (if set.kept { size } else { 0 }, set.before.map_or(0, |bytes| bytes + ROW_OVERHEAD))
}

/// Returns the hash of a meta row's key in its table.
fn hash_of_meta(row: &PendingRow) -> u64 {
    match Row::parse(row.key()) {
        Some(Row::Meta { hash48, .. }) => table_hash(hash48),
        _ => 0,
    }
}

/// Spreads the 48 bits of a key's hash over the 64 that the tables use.
fn table_hash(hash48: u64) -> u64 {
    hash48 ^ (hash48 << 40)
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the approximate memory use of the map in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Returns the number of operations in these rows, which a start would have to replay.
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// Notes that a record of so many operations at `lsn` was merged.
    pub fn note_record(&mut self, lsn: Lsn, ops: usize) {
        self.last_lsn = self.last_lsn.max(lsn);
        self.ops += ops as u64;
    }

    /// Puts (`Some`) or deletes (`None`) a row. Unknown kinds of keys are ignored. A row that is
    /// `new`, as neither the engine nor an older map has it, is forgotten when it is deleted.
    pub fn set(&mut self, key: &[u8], value: Option<&[u8]>, new: bool) {
        self.set_in(key, value, new, None);
    }

    /// Like [`set`](Self::set), for a value that may lie in `memory`, which the row of an element keeps.
    pub(crate) fn set_in(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        new: bool,
        memory: Option<Bytes>,
    ) {
        match Row::parse(key) {
            Some(Row::Meta { generation, slot, hash48, .. }) => {
                self.set_meta(generation, slot, hash48, (key, value, new));
            }
            Some(Row::Element { slot, version, element }) => {
                let group = self.elements.entry(version).or_default();
                group.slot = slot;
                let set = group.rows.set(element, value, new, memory);
                let (added, freed) = sizes(element, value, set);
                group.bytes = group.bytes + added - freed;
                self.count(set, added, freed);
            }
            Some(Row::Dead { version, prefix, .. }) => {
                // Rows of a dead version need not be written any more.
                match (value.is_some(), prefix.is_empty()) {
                    (true, true) => self.drop_elements(version),
                    (true, false) => self.drop_prefix(version, prefix),
                    (false, _) => {}
                }
                self.set_other(key, RowMark { put: value.is_some(), new });
            }
            Some(Row::Time { .. }) => self.set_other(key, RowMark { put: value.is_some(), new }),
            Some(Row::Library { name }) => self.set_library(name, value),
            Some(Row::Source) => self.set_source(value),
            Some(Row::Control { .. }) | None => {}
        }
    }

    fn count(&mut self, set: RowChange, added: usize, freed: usize) {
        self.rows = self.rows + usize::from(set.kept) - usize::from(set.before.is_some());
        self.bytes = self.bytes + added - freed;
    }

    /// Prefetches the rows that [`Pending::set`] will replace, up to `TOGETHER`.
    pub fn warm<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let places = keys.filter_map(|key| match Row::parse(key)? {
            Row::Meta { generation, slot, hash48, .. } => {
                Some((&self.meta.get(&generation)?[sub_table(slot)], table_hash(hash48)))
            }
            Row::Element { version, element, .. } => {
                Some(self.elements.get(&version)?.rows.table(element))
            }
            _ => None,
        });
        warm_rows(&places.collect::<SmallVec<[_; TOGETHER]>>());
    }

    fn set_library(&mut self, name: &[u8], value: Option<&[u8]>) {
        let size = |value: Option<&[u8]>| name.len() + value.map_or(0, <[u8]>::len) + ROW_OVERHEAD;
        self.rows += 1;
        self.bytes += size(value);
        if let Some(old) = self.libraries.insert(name.into(), value.map(Into::into)) {
            self.rows -= 1;
            self.bytes -= size(old.as_deref());
        }
    }

    /// Puts a position in the stream of another server, unless there is a later one.
    fn set_source(&mut self, value: Option<&[u8]>) {
        let serial = |row: &[u8]| SourcePosition::decode(row).map(|position| position.serial);
        let before = self.source().and_then(serial);
        if before.zip(value.and_then(serial)).is_some_and(|(before, now)| now < before) {
            return;
        }
        let size = |value: &[u8]| value.len() + ROW_OVERHEAD;
        let added = value.map(Box::<[u8]>::from);
        self.rows += usize::from(added.is_some());
        self.bytes += added.as_deref().map_or(0, size);
        if let Some(old) = std::mem::replace(&mut self.source, added) {
            self.rows -= 1;
            self.bytes -= size(&old);
        }
    }

    /// Returns the row of the position in the stream of another server, if one was put.
    pub fn source(&self) -> Option<&[u8]> {
        self.source.as_deref()
    }

    /// Returns the libraries of functions that were put (`Some`) or deleted.
    pub fn libraries(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.libraries.iter().map(|(name, value)| (&**name, value.as_deref()))
    }

    fn set_other(&mut self, key: &[u8], mark: RowMark) {
        let bytes = key.len() + ROW_OVERHEAD;
        match self.others.get_mut(key) {
            Some(old) if old.new && !mark.put => {
                self.others.remove(key);
                self.rows -= 1;
                self.bytes -= bytes;
            }
            Some(old) => old.put = mark.put,
            None => {
                self.others.insert(key.into(), mark);
                self.rows += 1;
                self.bytes += bytes;
            }
        }
    }

    fn set_meta(
        &mut self,
        generation: u32,
        slot: u16,
        hash48: u64,
        (key, value, new): (&[u8], Option<&[u8]>, bool),
    ) {
        let tables = self.meta.entry(generation).or_insert_with(|| {
            let mut tables = Vec::new();
            tables.resize_with(SUB_TABLES, RowTable::default);
            tables
        });
        let table = &mut tables[sub_table(slot)];
        let set = set_row(table, table_hash(hash48), (key, value, new), None, hash_of_meta);
        let (added, freed) = sizes(key, value, set);
        self.count(set, added, freed);
    }

    /// Returns the pending meta row of a key.
    pub fn meta(&self, generation: u32, at: KeyHash, key: &[u8]) -> Lookup<'_> {
        let table = &self.meta.get(&generation)?[sub_table(at.slot)];
        if table.is_empty() {
            return None;
        }
        let mut row_key = Vec::with_capacity(13 + key.len());
        RowKey::meta(&mut row_key, generation, at, key);
        let row = table.find(table_hash(at.hash48()), &row_key)?;
        table.at(row).map(PendingRow::value)
    }

    /// Returns a pending meta row by its key.
    pub(crate) fn meta_row(&self, key: &[u8]) -> Lookup<'_> {
        let Some(Row::Meta { generation, slot, hash48, .. }) = Row::parse(key) else { return None };
        let table = &self.meta.get(&generation)?[sub_table(slot)];
        table.at(table.find(table_hash(hash48), key)?).map(PendingRow::value)
    }

    /// Returns the pending row of an element.
    pub fn element(&self, version: u64, element: &[u8]) -> Lookup<'_> {
        Some(self.elements.get(&version)?.rows.get(element)?.value())
    }

    /// Returns the pending element rows of a version in a range of element keys, in order.
    pub fn elements_in(
        &self,
        version: u64,
        range: &ElementRange,
    ) -> impl DoubleEndedIterator<Item = (&[u8], Option<&[u8]>)> {
        let group = self.elements.get(&version);
        let empty = range.to.as_ref().is_some_and(|to| *to <= range.from);
        let bounds = (
            Bound::Included(&range.from[..]),
            range.to.as_ref().map_or(Bound::Unbounded, |to| Bound::Excluded(&to[..])),
        );
        let rows =
            group.filter(|_| !empty).into_iter().flat_map(move |group| group.rows.range(bounds));
        rows.map(|row| (row.key(), row.value()))
    }

    /// Returns the first meta rows of a generation from `from` on, in order: all (then the second
    /// value is false), or up to the one that is number `limit` of those that are put, or number
    /// `PASSED` of all. A row is its key and, unless deleted, its value.
    #[allow(clippy::type_complexity, reason = "rows and whether there are more")]
    pub fn meta_from(
        &self,
        generation: u32,
        from: &[u8],
        slot: u16,
        limit: usize,
    ) -> (Vec<(Box<[u8]>, Option<Box<[u8]>>)>, bool) {
        let mut out: Vec<&PendingRow> = Vec::new();
        let Some(tables) = self.meta.get(&generation) else { return (Vec::new(), false) };
        let (mut more, mut puts) = (false, 0);
        let most = limit.max(PASSED);
        for (n, table) in tables.iter().enumerate().skip(sub_table(slot)) {
            if puts >= limit || out.len() >= most {
                more = tables[n..].iter().any(|t| !t.is_empty());
                break;
            }
            let wanted = table.iter().filter(|row| row.key() >= from);
            out.extend(wanted.inspect(|row| puts += usize::from(row.value().is_some())));
        }
        out.sort_unstable_by(|a, b| a.key().cmp(b.key()));
        let is_put = |(_, row): &(usize, &&PendingRow)| row.value().is_some();
        let last_put = out.iter().enumerate().filter(is_put).nth(limit - 1);
        let cut = last_put.map_or(out.len(), |(n, _)| n + 1).min(most);
        if out.len() > cut {
            // A group of equal hashes is never cut: the whole sub-table's rest is dropped after it.
            let head = |row: &PendingRow| row.key()[..13].to_vec();
            let last = head(out[cut - 1]);
            let end = cut + out[cut..].iter().take_while(|row| head(row) == last).count();
            more |= end < out.len();
            out.truncate(end);
        }
        let copy = |row: &PendingRow| (row.key().into(), row.value().map(Into::into));
        (out.into_iter().map(copy).collect(), more)
    }

    /// Returns expiry index rows in a range of their keys; true if put, false if deleted.
    pub fn times_in(&self, range: &Range<Vec<u8>>) -> impl Iterator<Item = (&[u8], bool)> {
        let bounds =
            (Bound::Included(&*range.start), Bound::Excluded(&**(&range.end).max(&range.start)));
        self.others.range::<[u8], _>(bounds).map(|(key, mark)| (&**key, mark.put))
    }

    /// Marks a generation as dead. At the hand-over its meta rows become deletes, so that no stale
    /// one stays in the engine: the sweep must find there the last state of a version, which may
    /// have moved to another database meanwhile.
    pub fn drop_generation(&mut self, generation: u32) {
        if self.meta.contains_key(&generation) {
            self.dead.insert(generation);
        }
    }

    /// Returns the rows that the meta rows of dead generations leave behind (dead versions and
    /// deletes in the expiry index), and the dead versions.
    fn remains(&self) -> (BTreeMap<Vec<u8>, bool>, HashSet<u64>) {
        let (mut rows, mut versions) = (BTreeMap::new(), HashSet::new());
        let tables = self.dead.iter().filter_map(|generation| self.meta.get(generation));
        for row in tables.flatten().flat_map(RowTable::iter) {
            let Some(Row::Meta { generation, slot, key, .. }) = Row::parse(row.key()) else {
                continue;
            };
            let Some(Ok(entry)) = row.value().map(|value| decode_entry(key, 0, value)) else {
                continue;
            };
            let version = entry.value.version();
            if version != 0 {
                rows.insert(RowKey::dead(slot, version), true);
                versions.insert(version);
            }
            for (at_ms, fields) in entry.state().times() {
                rows.insert(RowKey::time(at_ms, slot, generation, fields, key), false);
            }
        }
        (rows, versions)
    }

    /// Drops all rows of a version, in constant time.
    fn drop_elements(&mut self, version: u64) {
        let Some(group) = self.elements.remove(&version) else { return };
        self.rows -= group.rows.len();
        self.bytes -= group.bytes;
    }

    fn drop_prefix(&mut self, version: u64, prefix: &[u8]) {
        let Some(group) = self.elements.get_mut(&version) else { return };
        let (rows, bytes) = group.rows.drop_prefix(prefix);
        let bytes = bytes + rows * ROW_OVERHEAD;
        group.bytes -= bytes;
        self.bytes -= bytes;
        self.rows -= rows;
    }

    /// Passes every row to `emit` in the form that the engine takes, by kind, sorted, in batches of
    /// at least `size` rows.
    pub fn each_batch(&self, size: usize, emit: &mut dyn FnMut(Batch)) {
        let mut batches = Batches::new(size, emit);
        let (remains, dead_versions) = self.remains();
        let others = self.others.iter().filter(|(key, _)| !remains.contains_key(&key[..]));
        let others = others.map(|(key, mark)| (&key[..], mark.put));
        for (key, put) in others.chain(remains.iter().map(|(key, put)| (&key[..], *put))) {
            batches.push(&[key], put.then(Bytes::new));
        }
        if let Some((key, value)) = self.blind.resolved_row() {
            batches.push(&[&key], Some(value));
        }
        for (name, value) in &self.libraries {
            let value = value.as_deref().map(Bytes::copy_from_slice);
            batches.push(&[&Library::row_key(name)], value);
        }
        if let Some(value) = &self.source {
            batches.push(&[&SourcePosition::row_key()], Some(Bytes::copy_from_slice(value)));
        }
        let mut versions: Vec<_> = self.elements.iter().collect();
        versions.retain(|(version, _)| !dead_versions.contains(version));
        versions.sort_unstable_by_key(|(version, group)| (group.slot, **version));
        for (version, group) in versions {
            let mut head = Vec::with_capacity(11);
            RowKey::elements(&mut head, group.slot, *version);
            for row in sorted(group.rows.iter(), 0) {
                let value = batches.value(row);
                batches.push(&[&head, row.key()], value);
            }
        }
        let mut generations: Vec<_> = self.meta.iter().collect();
        generations.sort_unstable_by_key(|(generation, _)| **generation);
        for (generation, tables) in generations {
            let dead = self.dead.contains(generation);
            for table in tables {
                for row in sorted(table.iter(), META_SLOT) {
                    let value = if dead { None } else { batches.value(row) };
                    batches.push(&[row.key()], value);
                }
            }
        }
        batches.end();
    }
}

/// Builds batches of rows. Keys and small values are copied one after the other into shared pieces
/// of memory: an allocation for each would take longer than the copy.
struct Batches<'a> {
    size: usize,
    emit: &'a mut dyn FnMut(Batch),
    batch: Batch,
    piece: BytesMut,
}

impl<'a> Batches<'a> {
    /// Bytes of a piece. A piece lives as long as any row in it: the engine keeps two keys of each
    /// file.
    const PIECE: usize = 64 << 10;

    fn new(size: usize, emit: &'a mut dyn FnMut(Batch)) -> Self {
        Self { size, emit, batch: Vec::with_capacity(size), piece: BytesMut::new() }
    }

    /// Returns the row's value, in a piece if it is small.
    fn value(&mut self, row: &PendingRow) -> Option<Bytes> {
        row.shared_value().or_else(|| row.value().map(|value| self.copy(&[value])))
    }

    fn copy(&mut self, parts: &[&[u8]]) -> Bytes {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > Self::PIECE / 8 {
            return parts.concat().into();
        }
        if len > self.piece.capacity() {
            self.piece = BytesMut::with_capacity(Self::PIECE);
        }
        parts.iter().for_each(|part| self.piece.extend_from_slice(part));
        self.piece.split().freeze()
    }

    fn push(&mut self, key: &[&[u8]], value: Option<Bytes>) {
        let key = self.copy(key);
        self.batch.push((key, value));
        if self.batch.len() >= self.size {
            (self.emit)(std::mem::replace(&mut self.batch, Vec::with_capacity(self.size)));
        }
    }

    /// Emits the remaining rows.
    fn end(self) {
        if !self.batch.is_empty() {
            (self.emit)(self.batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Layout;

    fn meta_key(layout: &Layout, name: &[u8]) -> (KeyHash, Vec<u8>) {
        let at = layout.key_hash(name);
        let mut key = Vec::new();
        RowKey::meta(&mut key, 1, at, name);
        (at, key)
    }

    #[test]
    fn the_last_value_of_a_row_counts() {
        let layout = Layout::new(1, 3);
        let mut pending = Pending::default();
        let (at, key) = meta_key(&layout, b"k");
        pending.set(&key, Some(b"one"), false);
        pending.set(&key, Some(b"two"), false);
        assert_eq!(pending.meta(1, at, b"k"), Some(Some(&b"two"[..])));
        pending.set(&key, None, false);
        assert_eq!(pending.meta(1, at, b"k"), Some(None));
        assert_eq!(pending.meta(2, at, b"k"), None);
        assert_eq!(pending.rows(), 1);
    }

    #[test]
    fn a_dead_version_takes_its_rows_along() {
        let mut pending = Pending::default();
        let mut key = Vec::new();
        RowKey::elements(&mut key, 7, 99);
        key.push(1);
        pending.set(&key, Some(b"v"), false);
        let one = pending.bytes();
        pending.set(&key, None, false);
        assert_eq!(pending.bytes(), one - 1);
        pending.set(&key, Some(b"v"), false);
        assert_eq!(pending.element(99, &[1]), Some(Some(&b"v"[..])));
        pending.set(&RowKey::dead(7, 99), Some(b""), false);
        assert_eq!(pending.element(99, &[1]), None);
        assert_eq!(pending.rows(), 1);
        let mut other = Pending::default();
        other.set(&RowKey::dead(7, 99), Some(b""), false);
        assert_eq!(pending.bytes(), other.bytes());
    }

    #[test]
    fn a_dead_part_of_a_version_takes_its_rows_along() {
        let mut head = Vec::new();
        RowKey::elements(&mut head, 7, 99);
        let row = |element: &[u8]| [&head[..], element].concat();
        let (mut pending, mut other) = (Pending::default(), Pending::default());
        for element in [&[1, 2][..], &[1, 2, 0], &[1, 2, 255, 3], &[1, 3], &[1], &[2]] {
            pending.set(&row(element), Some(b"v"), false);
        }
        pending.set(&row(&[1, 2, 7]), None, false);
        pending.set(&RowKey::dead_elements(&head, &[1, 2]), Some(b""), false);
        let all = ElementRange { from: Vec::new(), to: None };
        let kept: Vec<_> =
            pending.elements_in(99, &all).map(|(element, _)| element.to_vec()).collect();
        assert_eq!(kept, [vec![1], vec![1, 3], vec![2]]);
        for element in [&[1, 3][..], &[1], &[2]] {
            other.set(&row(element), Some(b"v"), false);
        }
        other.set(&RowKey::dead_elements(&head, &[1, 2]), Some(b""), false);
        assert_eq!((pending.rows(), pending.bytes()), (other.rows(), other.bytes()));
    }

    #[test]
    fn libraries_are_handed_over() {
        let mut pending = Pending::default();
        pending.set(&Library::row_key(b"b"), Some(b"some code"), false);
        pending.set(&Library::row_key(b"a"), None, false);
        pending.set(&Library::row_key(b"b"), Some(b"code"), false);
        assert_eq!((pending.rows(), pending.bytes()), (2, 2 * (1 + ROW_OVERHEAD) + 4));
        let mut rows = Vec::new();
        pending.each_batch(1, &mut |batch| rows.extend(batch));
        let code = Some(Bytes::from_static(b"code"));
        assert_eq!(rows, [(Bytes::from_static(b"Cfa"), None), (Bytes::from_static(b"Cfb"), code)]);
    }

    #[test]
    fn a_position_does_not_replace_a_later_one() {
        let mut pending = Pending::default();
        let row = |serial, offset| SourcePosition { serial, offset, ..Default::default() }.encode();
        for (put, expected) in [(2, 2), (1, 2), (2, 2), (3, 3)] {
            pending.set(&SourcePosition::row_key(), Some(&row(put, 7)), false);
            assert_eq!(pending.source(), Some(&row(expected, 7)[..]));
        }
        let bytes = row(3, 7).len() + ROW_OVERHEAD;
        assert_eq!((pending.rows(), pending.bytes()), (1, bytes));
        pending.set(&SourcePosition::row_key(), Some(b"damaged"), false);
        assert_eq!(pending.source(), Some(&b"damaged"[..]), "a start tells of it");
    }

    #[test]
    fn batches_hold_every_row_once_and_in_order() {
        let layout = Layout::new(1, 3);
        let mut pending = Pending::default();
        for n in 0..5000u32 {
            let (_, key) = meta_key(&layout, format!("k{n}").as_bytes());
            pending.set(&key, (n % 7 != 0).then_some(b"v"), false);
        }
        let mut batches = Vec::new();
        pending.each_batch(1000, &mut |batch| batches.push(batch));
        let keys: Vec<&Bytes> = batches.iter().flatten().map(|(k, _)| k).collect();
        assert_eq!(keys.len(), 5000);
        assert!(keys.is_sorted());
        let from = Row::parse(keys[100]);
        let Some(Row::Meta { slot, .. }) = from else { panic!("no meta row") };
        let (page, more) = pending.meta_from(1, keys[100], slot, 10);
        assert!(more);
        assert!(page.iter().zip(&keys[100..]).all(|((found, _), key)| found[..] == key[..]));
        assert_eq!(page.iter().filter(|(_, value)| value.is_some()).count(), 10);
        assert!(page.last().is_some_and(|(_, value)| value.is_some()));
    }

    #[test]
    fn a_page_passes_many_deleted_rows_and_ends() {
        let layout = Layout::new(1, 3);
        let mut pending = Pending::default();
        let rows = 3 * PASSED;
        for n in 0..rows {
            let (_, key) = meta_key(&layout, format!("k{n}").as_bytes());
            pending.set(&key, (n == 7).then_some(b"v"), false);
        }
        let (mut from, mut found, mut pages, mut passed) = (Vec::new(), 0, 0, 0);
        loop {
            let slot = match Row::parse(&from) {
                Some(Row::Meta { slot, .. }) => slot,
                _ => 0,
            };
            let (page, more) = pending.meta_from(1, &from, slot, 1);
            assert!(page.len() <= PASSED);
            (pages, passed) = (pages + 1, passed + page.len());
            found += page.iter().filter(|(_, value)| value.is_some()).count();
            if !more {
                break;
            }
            from = [&page[page.len() - 1].0[..], &[0]].concat();
        }
        assert_eq!((found, passed), (1, rows));
        assert!(pages <= 5, "{pages}");
    }
}
