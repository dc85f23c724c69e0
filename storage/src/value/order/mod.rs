//! The order of a sorted set: its items by score, then by name, in blocks of which some may not be
//! in memory.
//!
//! A block covers the places from its first up to the next block's first. Items may be inserted
//! into and removed from blocks that are not in memory: only the block's count changes, and a row.

mod learn;
mod place;
mod walk;

use super::members::Name;
use super::sequence::{At, Piece, Sequence};
use crate::encoding::ElementRows;
use crate::need::ElementRange;
use place::{Key, ordered, row_name, unordered};
pub(in crate::value) use place::{PREFIX, Place};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::hint::black_box;
pub use walk::Walk;

/// Items of a block in memory at most.
const BLOCK_MAX: usize = 128;

/// Neighbours that have no more together become one block.
const MERGE_MAX: usize = 96;

/// A block with fewer items looks for a neighbour to merge with.
const SMALL: usize = 32;

/// A member and its score.
#[derive(Clone, Debug)]
struct Item {
    score: f64,
    name: Name,
}

/// What is in memory of a block.
#[derive(Clone, Debug)]
enum Kept {
    /// All items, in order.
    Here(Vec<Item>),
    /// How many there are, if that is known.
    Away(Option<u64>),
}

#[derive(Clone, Debug)]
struct Block {
    /// No item of it stands before.
    first: Place,
    kept: Kept,
}

/// What the journal has not heard of a place.
#[derive(Clone, Debug)]
enum Change {
    /// There is an item. `fresh`: there is no row of it yet.
    Put {
        row: Vec<u8>,
        fresh: bool,
    },
    Delete,
}

/// See the module's description.
#[derive(Clone, Debug)]
pub(in crate::value) struct Order {
    blocks: Sequence<Block>,
    /// There is no item at this place or behind.
    end: Place,
    len: u64,
    /// Whether items have rows.
    has_rows: bool,
    dirty: BTreeMap<Place, Change>,
    /// Items in memory, and bytes of their names beyond what a [`Name`] holds.
    items: usize,
    heap: usize,
    /// Where the next blocks are dropped from memory.
    hand: Place,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            blocks: Sequence::default(),
            end: Place::last(),
            len: 0,
            has_rows: false,
            dirty: BTreeMap::new(),
            items: 0,
            heap: 0,
            hand: Place::first(),
        }
    }
}

impl Item {
    fn new(score: f64, name: &[u8]) -> Self {
        Self { score, name: Name::from_slice(name) }
    }

    fn place(&self) -> Place {
        Place::of(self.score, &self.name)
    }

    fn is_before(&self, (score, name): Key<'_>) -> bool {
        match ordered(self.score).cmp(&score) {
            Ordering::Equal => *row_name(&self.name) < *name,
            of_scores => of_scores.is_lt(),
        }
    }

    fn heap(&self) -> usize {
        if self.name.spilled() { self.name.len() + 16 } else { 0 }
    }
}

impl Piece for Block {
    fn count(&self) -> Option<u64> {
        match &self.kept {
            Kept::Here(items) => Some(items.len() as u64),
            Kept::Away(count) => *count,
        }
    }
}

impl Block {
    fn items(&self) -> Option<&Vec<Item>> {
        match &self.kept {
            Kept::Here(items) => Some(items),
            Kept::Away(_) => None,
        }
    }
}

/// The row's value: only what its key does not tell.
fn row_value(score: f64, name: &[u8], row_name: &[u8]) -> Vec<u8> {
    let is_digested = name.len() != row_name.len();
    let mut row = Vec::new();
    if is_digested || (score == 0.0 && score.is_sign_negative()) {
        row.extend_from_slice(&score.to_bits().to_be_bytes());
    }
    if is_digested {
        row.extend_from_slice(name);
    }
    row
}

impl Order {
    /// What is known from a meta row alone: `len` items with scores from `low` to `high`.
    pub(in crate::value) fn away(len: u64, low: f64, high: f64) -> Self {
        let mut order =
            Self { end: Place::after_score(high), len, has_rows: true, ..Self::default() };
        let first = Place::before_score(low);
        order.blocks.insert(None, Block { first, kept: Kept::Away(Some(len)) });
        order
    }

    /// A lower bound of all scores.
    pub(in crate::value) fn low(&self) -> f64 {
        let Some(block) = self.blocks.first().map(|at| self.blocks.get(at)) else { return 0.0 };
        match block.items().and_then(|items| items.first()) {
            Some(item) => item.score,
            None => unordered(block.first.score),
        }
    }

    /// An upper bound of all scores.
    pub(in crate::value) fn high(&self) -> f64 {
        let Some(block) = self.blocks.last().map(|at| self.blocks.get(at)) else { return 0.0 };
        match block.items().and_then(|items| items.last()) {
            Some(item) => item.score,
            // All scores are smaller if the name is empty.
            None => unordered(self.end.score - u64::from(self.end.name.is_empty())),
        }
    }

    /// Whether all items are in memory.
    pub(in crate::value) fn is_complete(&self) -> bool {
        self.items as u64 == self.len
    }

    /// Bytes of memory, about.
    pub(in crate::value) fn memory(&self) -> usize {
        self.items * size_of::<Item>() * 3 / 2
            + self.heap
            + self.blocks.len() * size_of::<Block>()
            + self.dirty.len() * (size_of::<(Place, Change)>() + 8)
    }

    /// The items in memory, in order.
    pub(in crate::value) fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> {
        let blocks = self.blocks.iter().filter_map(Block::items);
        blocks.flatten().map(|item| (&*item.name, item.score))
    }

    /// Where the block ends.
    fn end_of(&self, at: At) -> &Place {
        self.blocks.next(at).map_or(&self.end, |next| &self.blocks.get(next).first)
    }

    /// The block that covers a place.
    fn block_of(&self, key: Key<'_>) -> Option<At> {
        self.blocks.last_where(|block| block.first.key() <= key)
    }

    /// Touches where an item is.
    pub(in crate::value) fn touch(&self, score: f64, name: &[u8]) {
        let at = self.block_of((ordered(score), name));
        let Some(items) = at.and_then(|at| self.blocks.get(at).items()) else { return };
        // Where a search begins.
        for quarter in 1..4 {
            black_box(items.get(items.len() * quarter / 4).map(|item| item.score));
        }
    }

    // ---- changing ----------------------------------------------------------------------------

    /// Inserts an item that is not there.
    pub(in crate::value) fn insert(&mut self, score: f64, name: &[u8]) {
        let row_name = row_name(name);
        let key = (ordered(score), &*row_name);
        self.note_put(key, row_value(score, name, &row_name));
        self.len += 1;
        let item = Item::new(score, name);
        let at = match self.block_of(key) {
            _ if self.blocks.is_empty() => {
                self.end = Place::last();
                self.insert_block(None, item.place())
            }
            None => self.front_for(&item),
            Some(at) if key < self.end.key() => at,
            Some(at) => self.back_for(at),
        };
        if self.blocks.get(at).items().is_some() {
            self.items += 1;
            self.heap += item.heap();
        }
        let (index, len) = self.blocks.update(at, |block| match &mut block.kept {
            Kept::Here(items) => {
                let index = items.partition_point(|other| other.is_before(key));
                items.insert(index, item);
                (index, items.len())
            }
            Kept::Away(count) => {
                *count = count.map(|count| count + 1);
                (0, 0)
            }
        });
        if len > BLOCK_MAX {
            self.split(at, index);
        }
    }

    fn insert_block(&mut self, before: Option<At>, first: Place) -> At {
        self.blocks.insert(before, Block { first, kept: Kept::Here(Vec::new()) })
    }

    /// The block for an item before the first one's: nothing else is there.
    fn front_for(&mut self, item: &Item) -> At {
        let first = self.blocks.first();
        match first {
            Some(at) if self.blocks.get(at).items().is_some() => {
                self.blocks.update(at, |block| block.first = item.place());
                at
            }
            _ => self.insert_block(first, item.place()),
        }
    }

    /// The block for an item behind the end, given the last one: nothing else is there.
    fn back_for(&mut self, last: At) -> At {
        let end = std::mem::replace(&mut self.end, Place::last());
        if self.blocks.get(last).items().is_some() { last } else { self.insert_block(None, end) }
    }

    /// Splits a block that has become too long by an item at `index`: in halves, but at the end of
    /// all so that the blocks of a queue are full.
    fn split(&mut self, at: At, index: usize) {
        let next = self.blocks.next(at);
        let tail = self.blocks.update(at, |block| match &mut block.kept {
            Kept::Here(items) => {
                let appended = next.is_none() && index + 1 == items.len();
                let at = if appended { index } else { items.len() / 2 };
                // Neither half ever grows beyond a block.
                let mut tail = Vec::with_capacity(BLOCK_MAX + 1);
                tail.extend(items.drain(at..));
                items.shrink_to(BLOCK_MAX + 1);
                tail
            }
            Kept::Away(_) => Vec::new(),
        });
        if let Some(item) = tail.first() {
            let first = item.place();
            self.blocks.insert(next, Block { first, kept: Kept::Here(tail) });
        }
    }

    /// Removes an item that is there.
    pub(in crate::value) fn remove(&mut self, score: f64, name: &[u8]) {
        let row_name = row_name(name);
        let key = (ordered(score), &*row_name);
        self.note_delete(key);
        let Some(at) = self.block_of(key) else { return };
        self.len -= 1;
        let removed = self.blocks.update(at, |block| match &mut block.kept {
            Kept::Here(items) => {
                let index = items.partition_point(|other| other.is_before(key));
                debug_assert!(items.get(index).is_some_and(|item| *item.name == *name));
                (index < items.len()).then(|| items.remove(index))
            }
            Kept::Away(Some(1)) => {
                block.kept = Kept::Here(Vec::new());
                None
            }
            Kept::Away(count) => {
                *count = count.map(|count| count - 1);
                None
            }
        });
        if let Some(item) = removed {
            self.items -= 1;
            self.heap -= item.heap();
        }
        match self.blocks.get(at).count() {
            Some(_) => self.shrink(at),
            None => self.count_rest(),
        }
    }

    /// A block has fewer items than before: it merges with a neighbour or vanishes.
    fn shrink(&mut self, at: At) {
        let Some(len) = self.blocks.get(at).items().map(Vec::len) else { return };
        if len >= SMALL {
            return;
        }
        if let Some(prev) = self.blocks.prev(at)
            && self.merge(prev, at)
        {
            return;
        }
        if let Some(next) = self.blocks.next(at)
            && self.merge(at, next)
        {
            return;
        }
        if len == 0 {
            self.trim();
        }
    }

    /// Makes two neighbours one if both are in memory and small; whether it did.
    fn merge(&mut self, a: At, b: At) -> bool {
        let (Some(left), Some(right)) = (self.blocks.get(a).items(), self.blocks.get(b).items())
        else {
            return false;
        };
        let (left, right) = (left.len(), right.len());
        if left > 0 && right > 0 && left + right > MERGE_MAX {
            return false;
        }
        let (taken, _) = self.blocks.remove(b);
        self.blocks.update(a, |block| {
            if let (Kept::Here(items), Kept::Here(mut taken)) = (&mut block.kept, taken.kept) {
                items.append(&mut taken);
            }
        });
        true
    }

    /// Blocks without items at the ends vanish.
    fn trim(&mut self) {
        let is_empty = |block: &Block| block.items().is_some_and(Vec::is_empty);
        while let Some(at) = self.blocks.first().filter(|at| is_empty(self.blocks.get(*at))) {
            self.blocks.remove(at);
        }
        while let Some(at) = self.blocks.last().filter(|at| is_empty(self.blocks.get(*at))) {
            self.end = self.blocks.remove(at).0.first;
        }
    }

    // ---- rows --------------------------------------------------------------------------------

    fn note_put(&mut self, (score, name): Key<'_>, row: Vec<u8>) {
        if self.has_rows {
            let place = Place { score, name: Name::from_slice(name) };
            let fresh = !matches!(self.dirty.get(&place), Some(Change::Delete));
            self.dirty.insert(place, Change::Put { row, fresh });
        }
    }

    fn note_delete(&mut self, (score, name): Key<'_>) {
        if self.has_rows {
            let place = Place { score, name: Name::from_slice(name) };
            match self.dirty.get(&place) {
                Some(Change::Put { fresh: true, .. }) => self.dirty.remove(&place),
                _ => self.dirty.insert(place, Change::Delete),
            };
        }
    }

    /// From now on each item is a row; all of them are in memory.
    pub(in crate::value) fn unpack(&mut self) {
        self.has_rows = true;
        let items = self.blocks.iter().filter_map(Block::items).flatten();
        self.dirty = items
            .map(|item| {
                let place = item.place();
                let row = row_value(item.score, &item.name, &place.name);
                (place, Change::Put { row, fresh: true })
            })
            .collect();
    }

    /// The items have no rows any more; all of them are in memory.
    pub(in crate::value) fn detach(&mut self) {
        self.has_rows = false;
        self.dirty.clear();
    }

    /// Writes the rows that changed since the last time.
    pub(in crate::value) fn seal(&mut self, rows: &mut ElementRows<'_>) {
        for (place, change) in std::mem::take(&mut self.dirty) {
            match change {
                Change::Put { row, .. } => rows.put(&place.element(), &row),
                Change::Delete => rows.delete(&place.element()),
            }
        }
    }

    // ---- forgetting --------------------------------------------------------------------------

    /// Whether hardly any items are in memory.
    pub(in crate::value) fn is_bare(&self) -> bool {
        self.items <= 8 * BLOCK_MAX
    }

    /// Drops the items of up to `blocks` blocks from memory that the journal knows.
    pub(in crate::value) fn shed(&mut self, blocks: usize) {
        if !self.has_rows {
            return;
        }
        let mut at = self.block_of(self.hand.key()).or_else(|| self.blocks.first());
        for _ in 0..blocks.min(self.blocks.len()) {
            let Some(here) = at.or_else(|| self.blocks.first()) else { break };
            at = self.blocks.next(here);
            self.hand = self.end_of(here).clone();
            let first = &self.blocks.get(here).first;
            let is_dirty = self.dirty.range(first..&self.hand).next().is_some();
            if !is_dirty {
                self.drop_items(here);
            }
        }
    }

    fn drop_items(&mut self, at: At) {
        let Some(items) = self.blocks.get(at).items() else { return };
        // An empty one holds no memory, and tells that nothing is there.
        let Some(last) = items.last() else { return };
        if self.blocks.next(at).is_none() {
            self.end = Place::after(last.score, &last.name);
        }
        self.items -= items.len();
        self.heap -= items.iter().map(Item::heap).sum::<usize>();
        self.blocks.update(at, |block| block.kept = Kept::Away(block.count()));
    }
}

/// The element keys between two places.
fn element_range(from: &Place, to: &Place) -> ElementRange {
    ElementRange { from: from.element(), to: Some(to.element()) }
}
