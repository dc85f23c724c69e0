//! Reads a map that may be only in part in memory.

use super::{Paged, PagedKey, PagedRow};
use crate::need::{ElementRange, Part};
use std::ops::Bound;

/// Rows that are read when only one is needed.
const ONE: usize = 2;

/// Minimum and maximum number of rows of a page: the more were passed already, the more are read at
/// once.
const PAGE_MIN: usize = 8;
const PAGE_MAX: usize = 1024;

/// Result of a search: a row's key and value.
type FoundRow<'a, K, V> = Result<Option<(&'a K, &'a V)>, Part>;

impl<K: PagedKey, V: PagedRow<K>> Paged<K, V> {
    /// Returns the row of a key.
    pub(in crate::value) fn get(&self, key: &K) -> Result<Option<&V>, Part> {
        if let Some(slot) = self.rows.get(key) {
            return Ok(Some(&slot.value));
        }
        if self.is_known(key) {
            return Ok(None);
        }
        Err(self.page(key, key.after().as_ref(), false, 1))
    }

    /// Returns the row with the greatest key that is not greater than this.
    pub(in crate::value) fn floor(&self, key: &K) -> FoundRow<'_, K, V> {
        self.before(&K::first(), key.after().as_ref(), ONE)
    }

    /// Like [`floor`](Self::floor), for rows in memory; a greater one may not be in memory.
    pub(in crate::value) fn floor_in_memory(&self, key: &K) -> Option<(&K, &V)> {
        self.rows.range(..=key).next_back().map(|(key, slot)| (key, &slot.value))
    }

    /// Returns the number of consecutive rows in memory up to a key, counted only as far as the
    /// size of a page depends on it.
    pub(in crate::value) fn run_up_to(&self, key: &K) -> usize {
        let from = match self.gaps.range(..=key).next_back() {
            None => Bound::Unbounded,
            Some((_, Some(end))) if end <= key => Bound::Included(end),
            Some(_) => return 0,
        };
        self.rows.range((from, Bound::Included(key))).take(PAGE_MAX).count()
    }

    /// Returns the part to read if the row behind a key is unknown; `limit` rows, within bounds.
    pub(in crate::value) fn part_behind(&self, key: &K, limit: usize) -> Option<Part> {
        self.behind(&key.after()?, None, limit.clamp(PAGE_MIN, PAGE_MAX)).err()
    }

    /// Returns the row with the greatest key, if it is in memory.
    pub(in crate::value) fn last_in_memory(&self) -> Option<(&K, &V)> {
        let (key, slot) = self.rows.last_key_value()?;
        let is_last = match self.gaps.last_key_value() {
            Some((_, end)) => end.as_ref().is_some_and(|end| end <= key),
            None => true,
        };
        is_last.then_some((key, &slot.value))
    }

    /// Returns the rows from a key on to before another (`None`: to the last), forward or backward.
    pub(in crate::value) fn rows(
        &self,
        from: K,
        to: Option<K>,
        reverse: bool,
    ) -> PagedRows<'_, K, V> {
        let left = if to.as_ref().is_none_or(|to| from < *to) { Some((from, to)) } else { None };
        PagedRows { map: self, left, reverse, passed: 0 }
    }

    /// Returns the element keys from a key to before another (`None`: to the last).
    pub(in crate::value) fn range_of(&self, from: &K, to: Option<&K>) -> ElementRange {
        let element = |key: &K| {
            let mut element = self.prefix.to_vec();
            key.encode(&mut element);
            element
        };
        let end = || {
            let whole = !self.prefix.is_empty();
            whole.then(|| crate::encoding::prefix_range(&self.prefix).end)
        };
        ElementRange { from: element(from), to: to.map(element).or_else(end) }
    }

    /// Returns a request for rows of a gap.
    fn page(&self, from: &K, to: Option<&K>, reverse: bool, limit: usize) -> Part {
        Part::Page { range: self.range_of(from, to), reverse, limit, least: 1 }
    }

    /// Returns the first row from a key on, before another one.
    fn behind(&self, from: &K, to: Option<&K>, limit: usize) -> FoundRow<'_, K, V> {
        let row = self.rows.range(from..).next().filter(|(key, _)| to.is_none_or(|to| *key < to));
        let (from, gap_end) = match self.gap_at(from) {
            Some((_, end)) => (Some(from), end),
            None => {
                let gap = self.gaps.range(from..).next();
                (gap.map(|(from, _)| from), gap.and_then(|(_, end)| end.as_ref()))
            }
        };
        let end = least(row.map(|(key, _)| key), to);
        if let Some(from) = from.filter(|from| end.is_none_or(|end| *from < end)) {
            return Err(self.page(from, least(gap_end, end), false, limit));
        }
        Ok(row.map(|(key, slot)| (key, &slot.value)))
    }

    /// Returns the last row before a key, from another one on.
    fn before(&self, from: &K, to: Option<&K>, limit: usize) -> FoundRow<'_, K, V> {
        let upper = to.map_or(Bound::Unbounded, Bound::Excluded);
        let row = self.rows.range((Bound::Included(from), upper)).next_back();
        let behind_row = row.and_then(|(key, _)| key.after());
        let from = behind_row.as_ref().unwrap_or(from);
        if let Some((gap, end)) = self.gaps.range((Bound::Unbounded, upper)).next_back() {
            let (from, end) = (from.max(gap), least(end.as_ref(), to));
            // Behind the greatest possible key there is nothing.
            let is_behind = row.is_none() || behind_row.is_some();
            if is_behind && end.is_none_or(|end| from < end) {
                return Err(self.page(from, end, true, limit));
            }
        }
        Ok(row.map(|(key, slot)| (key, &slot.value)))
    }
}

/// Returns the lesser of two ends, where `None` is behind all keys.
fn least<'a, K: Ord>(a: Option<&'a K>, b: Option<&'a K>) -> Option<&'a K> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Iterator over rows, each of which may be missing from memory; see [`Paged::rows`].
#[derive(Debug)]
pub(in crate::value) struct PagedRows<'a, K: PagedKey, V: PagedRow<K>> {
    map: &'a Paged<K, V>,
    left: Option<(K, Option<K>)>,
    reverse: bool,
    passed: usize,
}

impl<'a, K: PagedKey, V: PagedRow<K>> Iterator for PagedRows<'a, K, V> {
    type Item = Result<(&'a K, &'a V), Part>;

    fn next(&mut self) -> Option<Self::Item> {
        let (from, to) = self.left.as_ref()?;
        let limit = self.passed.clamp(PAGE_MIN, PAGE_MAX);
        let found = if self.reverse {
            self.map.before(from, to.as_ref(), limit)
        } else {
            self.map.behind(from, to.as_ref(), limit)
        };
        self.passed += 1;
        let found = match found {
            Ok(found) => found,
            Err(part) => {
                self.left = None;
                return Some(Err(part));
            }
        };
        let Some((key, value)) = found else {
            self.left = None;
            return None;
        };
        self.left = self.left.take().and_then(|(from, to)| {
            let (from, to) =
                if self.reverse { (from, Some(key.clone())) } else { (key.after()?, to) };
            to.as_ref().is_none_or(|to| from < *to).then_some((from, to))
        });
        Some(Ok((key, value)))
    }
}
