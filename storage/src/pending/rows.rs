//! Rows in memory: found by a hash, each with its key and value in one allocation.

use crate::reclaim::Parts;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::OnceLock;

/// A row: put, or deleted.
#[derive(Debug)]
pub(super) struct PendingRow {
    pub(super) hash: u64,
    bytes: Box<[u8]>,
    key_len: u32,
    put: bool,
}

impl PendingRow {
    fn new(hash: u64, key: &[u8], value: Option<&[u8]>) -> Self {
        let mut bytes = Vec::with_capacity(key.len() + value.map_or(0, <[u8]>::len));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value.unwrap_or_default());
        Self { hash, bytes: bytes.into(), key_len: key.len() as u32, put: value.is_some() }
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len as usize]
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        self.put.then(|| &self.bytes[self.key_len as usize..])
    }

    /// Bytes of key and value.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Gives it another value, in place where that has the same size.
    fn set(&mut self, value: Option<&[u8]>) {
        let key_len = self.key_len as usize;
        match value {
            Some(value) if value.len() == self.bytes.len() - key_len => {
                self.bytes[key_len..].copy_from_slice(value);
                self.put = true;
            }
            _ => *self = Self::new(self.hash, self.key(), value),
        }
    }

    /// Reads its first and last byte.
    #[inline]
    fn touch(&self) -> u8 {
        let end = |byte: Option<&u8>| byte.copied().unwrap_or_default();
        end(self.bytes.first()) ^ end(self.bytes.last())
    }
}

/// Sets a row of a table. The bytes of key and value that it had; `None`: it is new.
pub(super) fn set_row(
    table: &mut HashTable<PendingRow>,
    hash: u64,
    key: &[u8],
    value: Option<&[u8]>,
) -> Option<usize> {
    match table.find_mut(hash, |row| row.key() == key) {
        Some(row) => {
            let before = row.len();
            row.set(value);
            Some(before)
        }
        None => {
            table.insert_unique(hash, PendingRow::new(hash, key, value), |row| row.hash);
            None
        }
    }
}

/// Touches a row of a table, so that it is in the processor's caches when it is set.
#[inline]
pub(super) fn warm_row(table: &HashTable<PendingRow>, hash: u64) {
    if let Some(row) = table.find(hash, |row| row.hash == hash) {
        std::hint::black_box(row.touch());
    }
}

/// Tables of a large group of rows: so that none pauses to grow.
const TABLES: usize = 64;

/// Rows from which on a group has so many.
const LARGE: usize = 4096;

/// The element rows of a version, by their elements. They are put in order when a range of them is
/// asked for, which nobody does whose value is all in memory.
#[derive(Debug)]
pub(super) struct ElementRows {
    hasher: DefaultHashBuilder,
    /// One, or [`TABLES`] by the first bits of the hash.
    tables: Vec<HashTable<PendingRow>>,
    len: usize,
    order: OnceLock<BTreeSet<Box<[u8]>>>,
}

impl Default for ElementRows {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            tables: vec![HashTable::new()],
            len: 0,
            order: OnceLock::new(),
        }
    }
}

impl Parts for ElementRows {
    fn parts(&self) -> usize {
        self.len
    }
}

impl ElementRows {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, hash: u64) -> usize {
        if self.tables.len() == 1 { 0 } else { (hash >> 58) as usize }
    }

    /// Sets a row; the bytes of key and value that it had.
    pub(super) fn set(&mut self, element: &[u8], value: Option<&[u8]>) -> Option<usize> {
        let hash = self.hasher.hash_one(element);
        let place = self.place(hash);
        let before = set_row(&mut self.tables[place], hash, element, value);
        if before.is_none() {
            if let Some(order) = self.order.get_mut() {
                order.insert(element.into());
            }
            self.len += 1;
            if self.len == LARGE {
                self.spread();
            }
        }
        before
    }

    /// From one table to many.
    fn spread(&mut self) {
        let rows: Vec<PendingRow> = self.tables.drain(..).flatten().collect();
        self.tables.resize_with(TABLES, HashTable::new);
        for row in rows {
            let place = self.place(row.hash);
            self.tables[place].insert_unique(row.hash, row, |row| row.hash);
        }
    }

    /// Touches the row of an element.
    #[inline]
    pub(super) fn warm(&self, element: &[u8]) {
        let hash = self.hasher.hash_one(element);
        warm_row(&self.tables[self.place(hash)], hash);
    }

    pub(super) fn get(&self, element: &[u8]) -> Option<&PendingRow> {
        let hash = self.hasher.hash_one(element);
        self.tables[self.place(hash)].find(hash, |row| row.key() == element)
    }

    /// Takes the rows away whose elements begin with a prefix.
    pub(super) fn take_prefix(&mut self, prefix: &[u8]) -> Vec<PendingRow> {
        let mut taken = Vec::new();
        for table in &mut self.tables {
            taken.extend(table.extract_if(|row| row.key().starts_with(prefix)));
        }
        if let Some(order) = self.order.get_mut() {
            for row in &taken {
                order.remove(row.key());
            }
        }
        self.len -= taken.len();
        taken
    }

    /// All rows, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingRow> {
        self.tables.iter().flatten()
    }

    /// The rows of a range of elements, in order.
    pub(super) fn range(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = &PendingRow> {
        let order = self.order.get_or_init(|| self.iter().map(|row| row.key().into()).collect());
        order.range::<[u8], _>(bounds).filter_map(|element| self.get(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn all(rows: &ElementRows) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let rows = rows.range((Bound::Unbounded, Bound::Unbounded));
        rows.map(|row| (row.key().to_vec(), row.value().map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn rows_are_those_of_an_ordered_map() {
        let (mut rows, mut model) = (ElementRows::default(), BTreeMap::new());
        for n in 0..3 * LARGE as u64 {
            // Every element about three times, of several lengths.
            let element = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51).to_be_bytes();
            let element = &element[6 - (n % 3) as usize..];
            let value = (n % 5 != 0).then(|| vec![n as u8; (n % 4) as usize]);
            let before = rows.set(element, value.as_deref());
            let known: Option<Option<Vec<u8>>> = model.insert(element.to_vec(), value);
            let bytes = |v: Option<Vec<u8>>| element.len() + v.map_or(0, |v| v.len());
            assert_eq!(before, known.map(bytes));
            if n == LARGE as u64 {
                // From here on the order is kept.
                assert_eq!(all(&rows), model.clone().into_iter().collect::<Vec<_>>());
            }
            rows.warm(element);
        }
        assert_eq!(rows.len(), model.len());
        assert_eq!(all(&rows), model.clone().into_iter().collect::<Vec<_>>());
        let taken = rows.take_prefix(&[7]).len();
        let before = model.len();
        model.retain(|element, _| element[0] != 7);
        assert!(taken > 0 && taken == before - model.len());
        assert_eq!(all(&rows), model.into_iter().collect::<Vec<_>>());
        assert!(rows.get(&[7]).is_none());
    }
}
