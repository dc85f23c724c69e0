//! The items of a block in memory: scores and names in separate vectors, so that a search reads
//! little memory.

use super::place::{OrderPlace, PlaceKey, ordered, row_name};
use crate::prefetch::{prefetch, prefetch_all};
use crate::value::members::Name;
use std::cmp::Ordering;

/// Names that are prefetched from a position on: those that an insertion moves first.
const TOUCHED_NAMES: usize = 4;

/// A member and its score.
#[derive(Clone, Debug)]
pub(super) struct ScoredItem {
    pub(super) score: f64,
    pub(super) name: Name,
}

impl ScoredItem {
    pub(super) fn new(score: f64, name: &[u8]) -> Self {
        Self { score, name: Name::from_slice(name) }
    }

    pub(super) fn place(&self) -> OrderPlace {
        OrderPlace::of(self.score, &self.name)
    }

    /// Returns the bytes of its name that are not inline in a [`Name`].
    pub(super) fn heap(&self) -> usize {
        heap(&self.name)
    }
}

/// Returns true if an item stands before a place.
pub(super) fn is_before((score, name): (f64, &Name), (to_score, to_name): PlaceKey<'_>) -> bool {
    match ordered(score).cmp(&to_score) {
        Ordering::Equal => *row_name(name) < *to_name,
        of_scores => of_scores.is_lt(),
    }
}

fn heap(name: &Name) -> usize {
    if name.spilled() { name.len() + 16 } else { 0 }
}

/// Items in order: parallel vectors of the same length.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    scores: Vec<f64>,
    names: Vec<Name>,
}

impl FromIterator<ScoredItem> for Items {
    fn from_iter<I: IntoIterator<Item = ScoredItem>>(items: I) -> Self {
        let (scores, names) = items.into_iter().map(|item| (item.score, item.name)).unzip();
        Self { scores, names }
    }
}

impl Items {
    pub(super) fn len(&self) -> usize {
        self.scores.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    pub(super) fn get(&self, index: usize) -> Option<(f64, &Name)> {
        Some((*self.scores.get(index)?, self.names.get(index)?))
    }

    pub(super) fn first(&self) -> Option<(f64, &Name)> {
        self.get(0)
    }

    pub(super) fn last(&self) -> Option<(f64, &Name)> {
        self.get(self.len().checked_sub(1)?)
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &Name)> {
        self.scores.iter().copied().zip(&self.names)
    }

    /// Returns the number of items that fit without growing.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.scores.capacity().max(self.names.capacity())
    }

    /// Returns the bytes of the names that are not inline in a [`Name`].
    pub(super) fn heap(&self) -> usize {
        self.names.iter().map(heap).sum()
    }

    /// Returns the number of items before a place.
    pub(super) fn search(&self, (score, name): PlaceKey<'_>) -> usize {
        let from = self.scores.partition_point(|other| ordered(*other) < score);
        if self.scores.get(from).is_none_or(|other| ordered(*other) != score) {
            return from;
        }
        let same = self.scores[from..].partition_point(|other| ordered(*other) == score);
        let names = &self.names[from..from + same];
        from + names.partition_point(|other| *row_name(other) < *name)
    }

    /// Prefetches the memory that a search reads.
    pub(super) fn touch_scores(&self) {
        prefetch_all(&self.scores);
    }

    /// Prefetches the memory that is read and changed where a search ends, once the scores are in
    /// the cache.
    pub(super) fn touch_name(&self, (score, _): PlaceKey<'_>) {
        let from = self.scores.partition_point(|other| ordered(*other) < score);
        self.names[from..].iter().take(TOUCHED_NAMES).for_each(prefetch);
    }

    pub(super) fn insert(&mut self, index: usize, item: ScoredItem) {
        self.scores.insert(index, item.score);
        self.names.insert(index, item.name);
    }

    pub(super) fn remove(&mut self, index: usize) -> ScoredItem {
        ScoredItem { score: self.scores.remove(index), name: self.names.remove(index) }
    }

    /// Splits off the items from an index on. Both halves get capacity for `room` items.
    pub(super) fn split_off(&mut self, index: usize, room: usize) -> Self {
        fn half<T>(all: &mut Vec<T>, index: usize, room: usize) -> Vec<T> {
            let mut tail = Vec::with_capacity(room);
            tail.extend(all.drain(index..));
            all.shrink_to(room);
            tail
        }
        Self {
            scores: half(&mut self.scores, index, room),
            names: half(&mut self.names, index, room),
        }
    }

    /// Appends items that are all greater.
    pub(super) fn append(&mut self, mut others: Self) {
        self.scores.append(&mut others.scores);
        self.names.append(&mut others.names);
    }
}
