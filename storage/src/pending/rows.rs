//! Rows in memory: hash tables of rows, each with its key and value in one allocation.

use crate::prefetch::prefetch;
use crate::reclaim::Parts;
use crate::table::{Named, Table};
use bytes::Bytes;
use hashbrown::DefaultHashBuilder;
use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::OnceLock;

/// Bytes of key and value that a row stores inline: with these, a row fills a cache line.
const INLINE: usize = 48;

/// Bytes from which on the engine shares a value; smaller values are copied.
const SHARED: usize = 512;

/// Key and value in one allocation.
#[derive(Debug)]
enum RowBytes {
    Inside {
        len: u8,
        bytes: [u8; INLINE],
    },
    Apart(Bytes),
    /// The value separate, in memory that others have as well.
    Shared(Box<(Box<[u8]>, Bytes)>),
}

impl RowBytes {
    /// Splits into the key, of so many bytes, and the value.
    fn split(&self, key_len: usize) -> (&[u8], &[u8]) {
        match self {
            Self::Inside { len, bytes } => bytes[..usize::from(*len)].split_at(key_len),
            Self::Apart(bytes) => bytes.split_at(key_len),
            Self::Shared(parts) => (&parts.0, &parts.1),
        }
    }
}

/// A pending put or delete of a row. It lies in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PendingRow {
    held: RowBytes,
    key_len: u32,
    put: bool,
    /// True if neither the engine nor an older map has a row of this key: deleting it leaves no
    /// trace.
    new: bool,
}

const _: () = assert!(size_of::<PendingRow>() == 64);

impl Named for PendingRow {
    fn name(&self) -> &[u8] {
        self.key()
    }
}

impl PendingRow {
    fn new(key: &[u8], value: Option<&[u8]>, new: bool) -> Self {
        let parts = [key, value.unwrap_or_default()];
        let len = parts[0].len() + parts[1].len();
        let held = if len <= INLINE {
            let mut bytes = [0; INLINE];
            bytes[..key.len()].copy_from_slice(key);
            bytes[key.len()..len].copy_from_slice(parts[1]);
            RowBytes::Inside { len: len as u8, bytes } // at most `INLINE`
        } else {
            RowBytes::Apart(parts.concat().into())
        };
        Self { held, key_len: key.len() as u32, put: value.is_some(), new }
    }

    /// Like [`new`](Self::new), for a value that may lie in `memory`: it stays there.
    fn new_in(key: &[u8], value: Option<&[u8]>, new: bool, memory: Option<Bytes>) -> Self {
        match memory {
            Some(memory) => {
                let held = RowBytes::Shared(Box::new((key.into(), memory)));
                Self { held, key_len: key.len() as u32, put: true, new }
            }
            None => Self::new(key, value, new),
        }
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        self.held.split(self.key_len as usize)
    }

    pub(super) fn key(&self) -> &[u8] {
        self.parts().0
    }

    pub(super) fn value(&self) -> Option<&[u8]> {
        self.put.then(|| self.parts().1)
    }

    /// Returns the value without copying it, if it is large.
    pub(super) fn shared_value(&self) -> Option<Bytes> {
        match &self.held {
            RowBytes::Apart(bytes) if bytes.len() - self.key_len as usize >= SHARED => {
                self.put.then(|| bytes.slice(self.key_len as usize..))
            }
            RowBytes::Shared(parts) => self.put.then(|| parts.1.clone()),
            _ => None,
        }
    }

    /// Returns the size of key and value in bytes.
    pub(super) fn len(&self) -> usize {
        let (key, value) = self.parts();
        key.len() + value.len()
    }

    /// Replaces the value, in place if the new one has the same size.
    fn set(&mut self, value: Option<&[u8]>, memory: Option<Bytes>) {
        match value {
            Some(value) if memory.is_none() && self.overwrite(value) => self.put = true,
            _ => *self = Self::new_in(self.key(), value, self.new, memory),
        }
    }

    /// Overwrites the value in place; returns false if the size differs, or the engine shares the
    /// memory.
    fn overwrite(&mut self, value: &[u8]) -> bool {
        let at = self.key_len as usize;
        if value.len() != self.parts().1.len() {
            return false;
        }
        match &mut self.held {
            RowBytes::Shared(_) => return false,
            RowBytes::Inside { bytes, .. } => bytes[at..at + value.len()].copy_from_slice(value),
            RowBytes::Apart(bytes) => match std::mem::take(bytes).try_into_mut() {
                Ok(mut own) => {
                    own[at..].copy_from_slice(value);
                    *bytes = own.freeze();
                }
                Err(shared) => {
                    *bytes = shared;
                    return false;
                }
            },
        }
        true
    }

    /// Touches the memory that the row refers to.
    #[inline]
    fn touch(&self) {
        if let RowBytes::Apart(bytes) = &self.held {
            prefetch(&bytes[..]);
            prefetch(&bytes[bytes.len() - 1]);
        }
    }
}

/// A table of rows.
pub(super) type RowTable = Table<PendingRow>;

/// Outcome of setting a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowChange {
    /// Bytes of key and value of the replaced row; `None`: there was none.
    pub(super) before: Option<usize>,
    /// True if the table has a row of the key now.
    pub(super) kept: bool,
}

/// Sets a row, which is `new` if neither the engine nor an older map has one of its key. The value
/// stays in `memory`, if it lies there.
pub(super) fn set_row(
    rows: &mut RowTable,
    hash: u64,
    (key, value, new): (&[u8], Option<&[u8]>, bool),
    memory: Option<Bytes>,
    hash_of: impl Fn(&PendingRow) -> u64,
) -> RowChange {
    let Some(at) = rows.find(hash, key) else {
        rows.push(hash, PendingRow::new_in(key, value, new, memory), hash_of);
        return RowChange { before: None, kept: true };
    };
    let before = rows.at(at).map(PendingRow::len);
    let never_was = value.is_none() && rows.at(at).is_some_and(|row| row.new);
    if never_was {
        rows.swap_remove(at, hash_of);
    } else if let Some(row) = rows.at_mut(at) {
        row.set(value, memory);
    }
    RowChange { before, kept: !never_was }
}

/// Prefetches rows, given by their hashes, before they are set: each step of the search for all of
/// them together.
pub(super) fn warm_rows(rows: &[(&RowTable, u64)]) {
    rows.iter().for_each(|(rows, hash)| rows.touch_index(*hash));
    rows.iter().for_each(|(rows, hash)| rows.touch_element(*hash));
    for row in rows.iter().filter_map(|(rows, hash)| rows.touched(*hash)) {
        row.touch();
    }
}

/// Sorts rows by their keys, which share their first `same` bytes.
pub(super) fn sorted<'a>(
    rows: impl Iterator<Item = &'a PendingRow>,
    same: usize,
) -> Vec<&'a PendingRow> {
    let mut rows: Vec<(u64, &PendingRow)> =
        rows.map(|row| (beginning(&row.key()[same..]), row)).collect();
    rows.sort_unstable_by(|(a, a_row), (b, b_row)| {
        a.cmp(b).then_with(|| a_row.key().cmp(b_row.key()))
    });
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Returns the first bytes of a key as a number that sorts like them: most keys differ there, and
/// need not be read again.
fn beginning(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let len = key.len().min(bytes.len());
    bytes[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(bytes)
}

/// Tables of a large group of rows, so that none pauses to grow.
const TABLES: usize = 256;

/// Rows from which on a group has so many tables.
const LARGE: usize = 4096;

/// The element rows of a version, by element. They are sorted when a range of them is read, which
/// does not happen to values that are wholly in memory.
#[derive(Debug)]
pub(super) struct PendingElementRows {
    hasher: DefaultHashBuilder,
    /// One table, or [`TABLES`] by the first bits of the hash.
    tables: Vec<RowTable>,
    len: usize,
    order: OnceLock<BTreeSet<Box<[u8]>>>,
}

impl Default for PendingElementRows {
    fn default() -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            tables: vec![RowTable::default()],
            len: 0,
            order: OnceLock::new(),
        }
    }
}

impl Parts for PendingElementRows {
    fn parts(&self) -> usize {
        self.len
    }
}

impl PendingElementRows {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, hash: u64) -> usize {
        if self.tables.len() == 1 { 0 } else { (hash >> (u64::BITS - TABLES.ilog2())) as usize }
    }

    /// Returns the table that has an element's row, and its hash there.
    pub(super) fn table(&self, element: &[u8]) -> (&RowTable, u64) {
        let hash = self.hasher.hash_one(element);
        (&self.tables[self.place(hash)], hash)
    }

    /// Sets a row; see [`set_row`].
    pub(super) fn set(
        &mut self,
        element: &[u8],
        value: Option<&[u8]>,
        new: bool,
        memory: Option<Bytes>,
    ) -> RowChange {
        let hash = self.hasher.hash_one(element);
        let place = self.place(hash);
        let hash_of = |row: &PendingRow| self.hasher.hash_one(row.key());
        let row = (element, value, new);
        let set = set_row(&mut self.tables[place], hash, row, memory, hash_of);
        match (set.before, set.kept) {
            (None, _) => {
                if let Some(order) = self.order.get_mut() {
                    order.insert(element.into());
                }
                self.len += 1;
                if self.len == LARGE && self.tables.len() == 1 {
                    self.spread();
                }
            }
            (Some(_), false) => {
                if let Some(order) = self.order.get_mut() {
                    order.remove(element);
                }
                self.len -= 1;
            }
            (Some(_), true) => {}
        }
        set
    }

    /// Distributes the rows of one table to many.
    fn spread(&mut self) {
        let few = std::mem::take(&mut self.tables);
        self.tables.resize_with(TABLES, RowTable::default);
        let hasher = self.hasher.clone();
        let hash_of = |row: &PendingRow| hasher.hash_one(row.key());
        for row in few.into_iter().flat_map(RowTable::into_elements) {
            let hash = hash_of(&row);
            let place = self.place(hash);
            self.tables[place].push(hash, row, hash_of);
        }
    }

    pub(super) fn get(&self, element: &[u8]) -> Option<&PendingRow> {
        let (table, hash) = self.table(element);
        table.at(table.find(hash, element)?)
    }

    /// Drops the rows whose elements begin with a prefix, and returns their number and bytes.
    pub(super) fn drop_prefix(&mut self, prefix: &[u8]) -> (usize, usize) {
        let (mut rows, mut bytes) = (0, 0);
        let hash_of = |row: &PendingRow| self.hasher.hash_one(row.key());
        let mut order = self.order.get_mut();
        for table in &mut self.tables {
            let keep = |row: &mut PendingRow| {
                let stays = !row.key().starts_with(prefix);
                if !stays {
                    rows += 1;
                    bytes += row.len();
                    order.as_mut().map(|order| order.remove(row.key()));
                }
                stays
            };
            table.retain(keep, hash_of);
        }
        self.len -= rows;
        (rows, bytes)
    }

    /// Returns all rows, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PendingRow> {
        self.tables.iter().flat_map(RowTable::iter)
    }

    /// Returns the rows of a range of elements, in order.
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

    fn all(rows: &PendingElementRows) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let rows = rows.range((Bound::Unbounded, Bound::Unbounded));
        rows.map(|row| (row.key().to_vec(), row.value().map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn rows_that_the_engine_was_given_do_not_change() {
        let value = |n: u8| vec![n; SHARED];
        let mut row = PendingRow::new(b"key", Some(&value(1)), false);
        let at = row.value().unwrap().as_ptr();
        row.set(Some(&value(2)), None);
        assert_eq!(row.value().unwrap().as_ptr(), at, "it is written in place");
        let given = row.shared_value().unwrap();
        assert_eq!(given.as_ptr(), at, "it is not copied");
        row.set(Some(&value(3)), None);
        assert_eq!((row.key(), row.value()), (&b"key"[..], Some(&value(3)[..])));
        assert_eq!(given, value(2));
        row.set(None, None);
        assert_eq!((row.value(), row.shared_value()), (None, None));
        row.set(Some(&value(4)[1..]), None);
        assert_eq!(row.shared_value(), None, "a small one is copied");
    }

    #[test]
    fn a_value_stays_where_it_came() {
        let memory = Bytes::from(vec![7; 3 * SHARED]);
        let (small, big) = (&memory[..SHARED - 1], &memory[SHARED..]);
        let mut rows = PendingElementRows::default();
        for value in [big, small, big] {
            let held = Some(memory.slice_ref(value)).filter(|_| value.len() > SHARED);
            rows.set(b"e", Some(value), false, held);
            let row = rows.get(b"e").unwrap();
            assert_eq!(
                (row.key(), row.value(), row.len()),
                (&b"e"[..], Some(value), 1 + value.len())
            );
            let shared = row.shared_value().map(|shared| shared.as_ptr());
            assert_eq!(shared, Some(value.as_ptr()).filter(|_| value.len() > SHARED));
        }
        // Shared memory is not overwritten.
        rows.set(b"e", Some(&[8; 2 * SHARED]), false, None);
        assert_eq!(rows.get(b"e").unwrap().value(), Some(&[8; 2 * SHARED][..]));
        assert!(memory.iter().all(|byte| *byte == 7));
        rows.set(b"e", Some(big), false, Some(memory.slice_ref(big)));
        rows.set(b"e", None, false, None);
        assert_eq!((rows.get(b"e").unwrap().value(), rows.len()), (None, 1));
        assert!(memory.is_unique(), "a deleted value keeps no memory");
    }

    #[test]
    fn rows_are_those_of_an_ordered_map() {
        let (mut rows, mut model) = (PendingElementRows::default(), BTreeMap::new());
        for n in 0..3 * LARGE as u64 {
            // Every element about three times, of several lengths.
            let element = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51).to_be_bytes();
            let element = &element[6 - (n % 3) as usize..];
            let value = (n % 5 != 0).then(|| vec![n as u8; (n % 4) as usize]);
            // One row in four is new: its delete leaves no trace.
            let new = |element: &[u8]| element[element.len() - 1] % 4 == 1;
            let set = rows.set(element, value.as_deref(), new(element), None);
            let kept = value.is_some() || !(new(element) && model.contains_key(element));
            let known: Option<Option<Vec<u8>>> = match kept {
                true => model.insert(element.to_vec(), value),
                false => model.remove(element),
            };
            let bytes = |v: Option<Vec<u8>>| element.len() + v.map_or(0, |v| v.len());
            assert_eq!(set, RowChange { before: known.map(bytes), kept });
            if n == LARGE as u64 {
                // From here on the rows are kept sorted.
                assert_eq!(all(&rows), model.clone().into_iter().collect::<Vec<_>>());
            }
            warm_rows(&[rows.table(element)]);
        }
        assert_eq!(rows.len(), model.len());
        assert_eq!(all(&rows), model.clone().into_iter().collect::<Vec<_>>());
        let (dropped, bytes) = rows.drop_prefix(&[7]);
        let gone = model.extract_if(.., |element, _| element[0] == 7);
        let sizes: Vec<usize> = gone.map(|(e, v)| e.len() + v.map_or(0, |v| v.len())).collect();
        assert!(dropped > 0 && (dropped, bytes) == (sizes.len(), sizes.iter().sum()));
        assert_eq!(all(&rows), model.into_iter().collect::<Vec<_>>());
        assert!(rows.get(&[7]).is_none());
    }
}
