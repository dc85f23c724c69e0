//! An ordered map of element rows, only some ranges of which may be in memory.
//!
//! Keys whose rows may not be in memory lie in *gaps*. A key outside of all gaps is known: its row
//! is in memory, or does not exist. A row may be written into a gap; it is known, its surroundings
//! are not. When it is removed, it is known that there is none. Nothing lies before the first row and the first gap, however much was removed there: a
//! reader from the front reads over no deleted rows.

mod read;
#[cfg(test)]
mod tests;

use crate::encoding::ElementRows;
use crate::need::{ElementRange, Page, Part};
use crate::reclaim::{Parts, Reclaimed};
use anyhow::{Context, Result};
use bytes::Bytes;
pub(in crate::value) use read::PagedRows;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Maximum number of rows in memory that counts as hardly any.
const FEW: usize = 16;

/// Common beginning of all element keys of a map.
pub(in crate::value) type Prefix = smallvec::SmallVec<[u8; 16]>;

/// The key of a row. Keys sort like their bytes.
pub(in crate::value) trait PagedKey:
    Ord + Clone + Send + std::fmt::Debug + 'static
{
    /// Appends its bytes in an element key behind the prefix.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a key.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// Returns the least key whose bytes are not less than these, if there is one.
    fn at_least(bytes: &[u8]) -> Option<Self>;

    /// Returns the least of all keys.
    fn first() -> Self;

    /// Returns the least greater key, if there is one.
    fn after(&self) -> Option<Self>;

    /// Returns the memory use beside its own size, in bytes.
    fn heap(&self) -> usize {
        0
    }
}

/// The contents of a row.
pub(in crate::value) trait PagedRow<K>: Clone + Send + 'static {
    /// Appends the row's value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the row's value; `None` if it is damaged.
    fn decode(key: &K, row: &[u8]) -> Option<Self>;

    /// Returns the approximate memory use beside its own size, in bytes.
    fn heap(&self) -> usize;
}

#[derive(Clone, Debug)]
struct PagedSlot<V> {
    value: V,
    /// True if the value is not in the journal; the key is in [`Paged::dirty`].
    dirty: bool,
    /// True if the key is not in the journal.
    fresh: bool,
}

type PagedSlots<K, V> = BTreeMap<K, PagedSlot<V>>;

impl<K: PagedKey, V: PagedRow<K>> Parts for PagedSlots<K, V> {
    fn parts(&self) -> usize {
        self.len()
    }
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(in crate::value) struct Paged<K: PagedKey, V: PagedRow<K>> {
    prefix: Prefix,
    rows: Reclaimed<PagedSlots<K, V>>,
    /// Ranges that are not in memory, each from a key to before another one (`None`: to the last).
    /// They neither overlap nor touch.
    gaps: BTreeMap<K, Option<K>>,
    /// True if the map has rows, false if it is packed into the meta row.
    stored: bool,
    dirty: Vec<K>,
    /// Keys removed since the last [`Paged::seal`].
    gone: BTreeSet<K>,
    /// Bytes of memory beside the sizes of keys and values.
    heap: usize,
    /// The same of all rows, in memory or not; approximate if rows were removed that were not read.
    whole: u64,
    /// Key from which the next rows are dropped from memory.
    hand: Option<K>,
}

impl<K: PagedKey, V: PagedRow<K>> Paged<K, V> {
    /// Creates an empty map, wholly in memory, without rows yet. `prefix` precedes the keys of its
    /// rows.
    pub(in crate::value) fn new(prefix: &[u8]) -> Self {
        Self {
            prefix: Prefix::from_slice(prefix),
            rows: Reclaimed::default(),
            gaps: BTreeMap::new(),
            stored: false,
            dirty: Vec::new(),
            gone: BTreeSet::new(),
            heap: 0,
            whole: 0,
            hand: None,
        }
    }

    /// Creates a map that has rows, none of them in memory: all its keys are from one to before
    /// another (`None`: to the last).
    pub(in crate::value) fn away(prefix: &[u8], from: K, to: Option<K>) -> Self {
        let mut map = Self { stored: true, ..Self::new(prefix) };
        if to.as_ref().is_none_or(|to| from < *to) {
            map.gaps.insert(from, to);
        }
        map
    }

    /// Returns the number of rows in memory.
    pub(in crate::value) fn loaded(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if all of it is in memory.
    pub(in crate::value) fn is_whole(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Checks that all of it is in memory.
    pub(in crate::value) fn require_whole(&self) -> Result<(), Part> {
        if self.is_whole() { Ok(()) } else { Err(Part::All) }
    }

    /// Returns a lower bound of the keys; `None` if there is no key.
    pub(in crate::value) fn low(&self) -> Option<&K> {
        let row = self.rows.first_key_value().map(|(key, _)| key);
        let gap = self.gaps.first_key_value().map(|(key, _)| key);
        match (row, gap) {
            (Some(row), Some(gap)) => Some(row.min(gap)),
            (row, gap) => row.or(gap),
        }
    }

    /// Returns the memory use beside the sizes of keys and values, in bytes.
    pub(in crate::value) fn heap(&self) -> usize {
        self.heap
    }

    /// Returns what [`heap`](Self::heap) would be if all rows were in memory.
    pub(in crate::value) fn whole_bytes(&self) -> u64 {
        self.whole
    }

    /// Sets that, for a map of which nothing is in memory.
    pub(in crate::value) fn set_whole_bytes(&mut self, bytes: u64) {
        self.whole = bytes;
    }

    /// Returns the approximate memory use in bytes.
    pub(in crate::value) fn memory(&self) -> usize {
        // Nodes of trees are a third empty on average.
        let tree = |len: usize, each: usize| len * each * 3 / 2;
        tree(self.rows.len(), size_of::<(K, PagedSlot<V>)>())
            + tree(self.gaps.len(), size_of::<(K, Option<K>)>())
            + tree(self.gone.len(), size_of::<K>())
            + self.dirty.capacity() * size_of::<K>()
            + self.heap
    }

    /// Returns the rows in memory, in order.
    pub(in crate::value) fn in_memory(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.iter().map(|(key, slot)| (key, &slot.value))
    }

    // ---- changing ----------------------------------------------------------------------------

    /// Sets the row of a key, replacing any other.
    pub(in crate::value) fn insert(&mut self, key: K, value: V) {
        self.heap += key.heap() + value.heap();
        self.whole += (key.heap() + value.heap()) as u64;
        let was_gone = self.gone.remove(&key);
        let fresh = !was_gone && !self.is_in_gap(&key);
        let mut slot = PagedSlot { value, dirty: self.stored, fresh };
        let old = self.rows.get(&key).map(|old| (old.dirty, old.fresh, old.value.heap()));
        if let Some((_, fresh, heap)) = old {
            slot.fresh = fresh;
            self.heap -= key.heap() + heap;
            self.whole = self.whole.saturating_sub((key.heap() + heap) as u64);
        }
        if self.stored && old.is_none_or(|(dirty, ..)| !dirty) {
            self.dirty.push(key.clone());
        }
        self.rows.insert(key, slot);
    }

    /// Changes a row that is in memory; `None` if it is not.
    pub(in crate::value) fn update<R>(
        &mut self,
        key: &K,
        change: impl FnOnce(&mut V) -> R,
    ) -> Option<R> {
        let slot = self.rows.get_mut(key)?;
        let before = slot.value.heap();
        let result = change(&mut slot.value);
        let after = slot.value.heap();
        self.heap = self.heap + after - before;
        self.whole = (self.whole + after as u64).saturating_sub(before as u64);
        if self.stored && !std::mem::replace(&mut slot.dirty, true) {
            self.dirty.push(key.clone());
        }
        Some(result)
    }

    /// Removes the row of a key, and returns it if it was in memory.
    pub(in crate::value) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.rows.remove(key);
        if self.stored && slot.as_ref().map_or(self.is_in_gap(key), |slot| !slot.fresh) {
            self.gone.insert(key.clone());
        }
        let slot = slot?;
        // Who removes a row may look for it, or for the one before, at once.
        if self.is_in_gap(key) {
            self.cover(key, key.after().as_ref());
        }
        let bytes = key.heap() + slot.value.heap();
        self.heap -= bytes;
        self.whole = self.whole.saturating_sub(bytes as u64);
        Some(slot.value)
    }

    /// Removes all rows before a key (`None`: all); `unread` are those that are not in memory, which
    /// are assumed to take `mean` bytes each.
    pub(in crate::value) fn remove_before(
        &mut self,
        end: Option<&K>,
        unread: impl Iterator<Item = K>,
        mean: u64,
    ) {
        for key in unread {
            if self.remove(&key).is_none() {
                self.whole = self.whole.saturating_sub(mean);
            }
        }
        while let Some((key, _)) = self.rows.first_key_value()
            && end.is_none_or(|end| key < end)
        {
            let key = key.clone();
            self.remove(&key);
        }
        self.cover(&K::first(), end);
    }

    /// Drops the rows from a key to before another. They are dead, and need no deletes.
    pub(in crate::value) fn forget(&mut self, from: &K, to: Option<&K>) {
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        let dead = self.rows.range((Bound::Included(from), upper)).map(|(key, _)| key.clone());
        for key in dead.collect::<Vec<_>>() {
            if let Some(slot) = self.rows.remove(&key) {
                self.heap -= key.heap() + slot.value.heap();
            }
        }
        self.gone.retain(|key| key < from || to.is_some_and(|to| key >= to));
        self.cover(from, to);
    }

    /// Gives the map rows from now on.
    pub(in crate::value) fn unpack(&mut self) {
        self.stored = true;
        self.dirty = self.rows.keys().cloned().collect();
        for slot in self.rows.values_mut() {
            (slot.dirty, slot.fresh) = (true, true);
        }
    }

    /// Detaches the map from its rows: they will be written anew elsewhere. All of it must be in
    /// memory.
    pub(in crate::value) fn detach(&mut self) {
        self.stored = false;
        self.dirty = Vec::new();
        self.gone.clear();
        self.rows.values_mut().for_each(|slot| slot.dirty = false);
    }

    /// Returns true if rows have changed since the last call of [`seal`](Self::seal).
    pub(in crate::value) fn has_changes(&self) -> bool {
        !self.dirty.is_empty() || !self.gone.is_empty()
    }

    /// Writes the rows that changed since the last call.
    pub(in crate::value) fn seal(&mut self, rows: &mut ElementRows<'_>) {
        let (mut element, mut value) = (self.prefix.to_vec(), Vec::new());
        let head = element.len();
        for key in std::mem::take(&mut self.gone) {
            element.truncate(head);
            key.encode(&mut element);
            rows.delete(&element);
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some(slot) = self.rows.get_mut(&key).filter(|slot| slot.dirty) else { continue };
            let new = slot.fresh;
            (slot.dirty, slot.fresh) = (false, false);
            element.truncate(head);
            key.encode(&mut element);
            value.clear();
            slot.value.encode(&mut value);
            rows.put(&element, &value, new);
        }
        dirty.shrink_to(FEW);
        self.dirty = dirty;
    }

    // ---- loading and shedding ----------------------------------------------------------------

    /// Returns true if rows with this element key, or a page of them, belong to this map.
    pub(in crate::value) fn is_of(&self, element: &[u8]) -> bool {
        element.starts_with(&self.prefix)
    }

    /// Applies all rows, which may include those of other maps: element key and value, ascending.
    pub(in crate::value) fn apply_all(&mut self, rows: &[(Bytes, Bytes)]) -> Result<()> {
        self.apply_loaded(&K::first(), None, rows)
    }

    /// Applies a page, if it belongs to this map.
    pub(in crate::value) fn apply_page(&mut self, page: &Page) -> Result<()> {
        if !self.is_of(&page.range.from) {
            return Ok(());
        }
        let Some((from, to)) = self.keys_of(&page.range) else { return Ok(()) };
        self.apply_loaded(&from, to.as_ref(), &page.rows)
    }

    /// Returns the keys of a range of this map's element keys: the first one, and the one behind
    /// the last.
    pub(in crate::value) fn keys_of(&self, range: &ElementRange) -> Option<(K, Option<K>)> {
        let from = K::at_least(range.from.get(self.prefix.len()..)?)?;
        let to = range.to.as_deref().filter(|to| self.is_of(to));
        Some((from, to.and_then(|to| K::at_least(&to[self.prefix.len()..]))))
    }

    /// Returns the key of one of this map's element keys.
    pub(in crate::value) fn key_of(&self, element: &[u8]) -> Option<K> {
        K::decode(element.strip_prefix(&self.prefix[..])?)
    }

    /// Applies `rows`, which are all rows from a key to before another. Rows known already are
    /// newer.
    fn apply_loaded(&mut self, from: &K, to: Option<&K>, rows: &[(Bytes, Bytes)]) -> Result<()> {
        for (element, row) in rows {
            if !self.is_of(element) {
                continue;
            }
            let key = self.key_of(element).context("the key of a row is damaged")?;
            if self.is_known(&key) {
                continue;
            }
            let value = V::decode(&key, row).context("a row is damaged")?;
            self.heap += key.heap() + value.heap();
            self.rows.insert(key, PagedSlot { value, dirty: false, fresh: false });
        }
        self.cover(from, to);
        Ok(())
    }

    /// Returns true if a key is in memory, or known not to exist.
    fn is_known(&self, key: &K) -> bool {
        !self.is_in_gap(key) || self.rows.contains_key(key) || self.gone.contains(key)
    }

    /// Returns true if a key lies in a gap.
    pub(in crate::value) fn is_in_gap(&self, key: &K) -> bool {
        self.gap_at(key).is_some()
    }

    /// Returns the gap in which a key lies.
    fn gap_at(&self, key: &K) -> Option<(&K, Option<&K>)> {
        let (from, to) = self.gaps.range(..=key).next_back()?;
        to.as_ref().is_none_or(|to| key < to).then_some((from, to.as_ref()))
    }

    /// Marks everything from a key to before another as known.
    pub(in crate::value) fn cover(&mut self, from: &K, to: Option<&K>) {
        if to.is_some_and(|to| to <= from) {
            return;
        }
        if let Some((start, end)) = self.gap_at(from).filter(|(start, _)| *start < from) {
            let (start, end) = (start.clone(), end.cloned());
            self.gaps.insert(start, Some(from.clone()));
            self.gaps.insert(from.clone(), end);
        }
        while let Some((start, end)) = self.gaps.range(from..).next()
            && to.is_none_or(|to| start < to)
        {
            let (start, end) = (start.clone(), end.clone());
            self.gaps.remove(&start);
            if let Some(to) = to
                && end.as_ref().is_none_or(|end| to < end)
            {
                self.gaps.insert(to.clone(), end);
            }
        }
    }

    /// Returns true if hardly any rows are in memory.
    pub(in crate::value) fn has_few_in_memory(&self) -> bool {
        self.rows.len() <= FEW
    }

    /// Drops rows that are in the journal from memory, examining up to `steps`. The first and the
    /// last one stay.
    pub(in crate::value) fn shed(&mut self, steps: usize) {
        if !self.stored {
            return;
        }
        let mut at = self.hand.take();
        for _ in 0..steps.min(self.rows.len()) {
            let from = at.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let Some((key, slot)) = self.rows.range((from, Bound::Unbounded)).next() else {
                at = None;
                continue;
            };
            let (key, dirty) = (key.clone(), slot.dirty);
            let is_first = self.rows.first_key_value().is_some_and(|(first, _)| *first == key);
            if !dirty && !is_first {
                self.drop_row(&key);
            }
            at = Some(key);
        }
        self.hand = at;
    }

    /// Drops a row from memory, unless it is the last one: a gap up to the next row takes its
    /// place.
    fn drop_row(&mut self, key: &K) {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let Some(next) = self.rows.range(behind).next().map(|(next, _)| next.clone()) else {
            return;
        };
        if self.gap_at(key).is_none() {
            let mut end = Some(next.clone());
            let gap = self.gaps.range(behind).next().filter(|(from, _)| **from <= next);
            if let Some((from, to)) = gap.map(|(from, to)| (from.clone(), to.clone())) {
                self.gaps.remove(&from);
                end = to;
            }
            let before = self.gaps.range_mut(..key).next_back();
            match before.filter(|(_, to)| to.as_ref() == Some(key)) {
                Some((_, to)) => *to = end,
                None => {
                    self.gaps.insert(key.clone(), end);
                }
            }
        }
        if let Some(slot) = self.rows.remove(key) {
            self.heap -= key.heap() + slot.value.heap();
        }
    }
}
