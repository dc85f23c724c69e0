//! The order of a sorted set: its items by score, then by name, in blocks, some of which may not be
//! in memory.
//!
//! A block covers the places from its first one up to the next block's first. Items may be inserted
//! into and removed from blocks that are not in memory: only the block's count changes, and a row.

mod apply;
mod items;
mod place;
mod walk;

use super::members::Name;
use super::sequence::{At, Sequence, SequencePiece};
use crate::encoding::ElementRows;
use crate::need::ElementRange;
use items::{Items, ScoredItem};
pub(in crate::value) use place::{OrderPlace, PREFIX};
use place::{PlaceKey, ordered, row_name, unordered};
use smallvec::SmallVec;
use std::collections::BTreeMap;
pub use walk::ZsetWalk;

/// Maximum number of items of a block in memory.
const BLOCK_MAX: usize = 128;

/// Number of items up to which two neighbours are merged.
const MERGE_MAX: usize = 96;

/// Items that are prefetched together without an allocation.
const TOUCHED: usize = 32;

/// A block with fewer items looks for a neighbour to merge with.
const SMALL: usize = 32;

/// The part of a block that is in memory.
#[derive(Clone, Debug)]
enum BlockItems {
    /// All items, in order.
    Here(Items),
    /// The number of items, if that is known.
    Away(Option<u64>),
}

#[derive(Clone, Debug)]
struct Block {
    /// Lower bound of its items' places.
    first: OrderPlace,
    kept: BlockItems,
}

/// Change of an item that is not in the journal.
#[derive(Clone, Debug)]
enum ItemChange {
    /// The item exists. `fresh`: it has no row yet.
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
    /// Upper bound of all places, exclusive.
    end: OrderPlace,
    len: u64,
    /// True if items have rows.
    has_rows: bool,
    dirty: BTreeMap<OrderPlace, ItemChange>,
    /// Items in memory, and bytes of their names that are not inline in a [`Name`].
    items: usize,
    heap: usize,
    /// Place from which the next blocks are dropped from memory.
    hand: OrderPlace,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            blocks: Sequence::default(),
            end: OrderPlace::last(),
            len: 0,
            has_rows: false,
            dirty: BTreeMap::new(),
            items: 0,
            heap: 0,
            hand: OrderPlace::first(),
        }
    }
}

impl SequencePiece for Block {
    fn count(&self) -> Option<u64> {
        match &self.kept {
            BlockItems::Here(items) => Some(items.len() as u64),
            BlockItems::Away(count) => *count,
        }
    }

    fn rank(&self) -> u64 {
        self.first.score
    }
}

impl Block {
    fn items(&self) -> Option<&Items> {
        match &self.kept {
            BlockItems::Here(items) => Some(items),
            BlockItems::Away(_) => None,
        }
    }
}

/// Returns the row's value: only the parts that its key lacks.
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
    /// Creates the order of a meta row: `len` items with scores from `low` to `high`, none in
    /// memory.
    pub(in crate::value) fn away(len: u64, low: f64, high: f64) -> Self {
        let mut order =
            Self { end: OrderPlace::after_score(high), len, has_rows: true, ..Self::default() };
        let first = OrderPlace::before_score(low);
        order.blocks.insert(None, Block { first, kept: BlockItems::Away(Some(len)) });
        order
    }

    /// Returns a lower bound of all scores.
    pub(in crate::value) fn low(&self) -> f64 {
        let Some(block) = self.blocks.first().map(|at| self.blocks.get(at)) else { return 0.0 };
        match block.items().and_then(|items| items.first()) {
            Some((score, _)) => score,
            None => unordered(block.first.score),
        }
    }

    /// Returns an upper bound of all scores.
    pub(in crate::value) fn high(&self) -> f64 {
        let Some(block) = self.blocks.last().map(|at| self.blocks.get(at)) else { return 0.0 };
        match block.items().and_then(|items| items.last()) {
            Some((score, _)) => score,
            // With an empty name, all scores are smaller.
            None => unordered(self.end.score - u64::from(self.end.name.is_empty())),
        }
    }

    /// Returns true if all items are in memory.
    pub(in crate::value) fn is_complete(&self) -> bool {
        self.items as u64 == self.len
    }

    /// Returns the approximate memory use in bytes.
    pub(in crate::value) fn memory(&self) -> usize {
        self.items * size_of::<ScoredItem>() * 3 / 2
            + self.heap
            + self.blocks.len() * size_of::<Block>()
            + self.dirty.len() * (size_of::<(OrderPlace, ItemChange)>() + 8)
    }

    /// Returns the items in memory, in order.
    pub(in crate::value) fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> {
        let blocks = self.blocks.iter().filter_map(Block::items);
        blocks.flat_map(Items::iter).map(|(score, name)| (&**name, score))
    }

    /// Returns the place at which a block ends.
    fn end_of(&self, at: At) -> &OrderPlace {
        self.blocks.next(at).map_or(&self.end, |next| &self.blocks.get(next).first)
    }

    /// Returns the block that covers a place.
    fn block_of(&self, key: PlaceKey<'_>) -> Option<At> {
        self.blocks.last_where(key.0, |block| block.first.key() <= key)
    }

    /// Prefetches the positions of items, existing or new, all of them together.
    pub(in crate::value) fn touch<'a>(&self, items: impl Iterator<Item = (f64, &'a [u8])>) {
        let mut blocks = SmallVec::<[(&Items, PlaceKey<'a>); TOUCHED]>::new();
        for (score, name) in items {
            let key = (ordered(score), name);
            let Some(at) = self.block_of(key) else { continue };
            if let Some(items) = self.blocks.get(at).items() {
                items.touch_scores();
                blocks.push((items, key));
            }
        }
        for (items, key) in blocks {
            items.touch_name(key);
        }
    }

    // ---- changing ----------------------------------------------------------------------------

    /// Inserts an item that does not exist.
    pub(in crate::value) fn insert(&mut self, score: f64, name: &[u8]) {
        let row_name = row_name(name);
        let key = (ordered(score), &*row_name);
        self.note_put(key, row_value(score, name, &row_name));
        self.len += 1;
        let item = ScoredItem::new(score, name);
        let at = match self.block_of(key) {
            _ if self.blocks.is_empty() => {
                self.end = OrderPlace::last();
                self.insert_block(None, item.place())
            }
            None => self.block_for_front(&item),
            Some(at) if key < self.end.key() => at,
            Some(at) => self.block_for_back(at),
        };
        if self.blocks.get(at).items().is_some() {
            self.items += 1;
            self.heap += item.heap();
        }
        let (index, len) = self.blocks.update(at, |block| match &mut block.kept {
            BlockItems::Here(items) => {
                let index = items.search(key);
                items.insert(index, item);
                (index, items.len())
            }
            BlockItems::Away(count) => {
                *count = count.map(|count| count + 1);
                (0, 0)
            }
        });
        if len > BLOCK_MAX {
            self.split(at, index);
        }
    }

    fn insert_block(&mut self, before: Option<At>, first: OrderPlace) -> At {
        self.blocks.insert(before, Block { first, kept: BlockItems::Here(Items::default()) })
    }

    /// Returns the block for an item before the first one's: it has no other items.
    fn block_for_front(&mut self, item: &ScoredItem) -> At {
        let first = self.blocks.first();
        match first {
            Some(at) if self.blocks.get(at).items().is_some() => {
                self.blocks.update(at, |block| block.first = item.place());
                at
            }
            _ => self.insert_block(first, item.place()),
        }
    }

    /// Returns the block for an item behind the end, given the last block: it has no other items.
    fn block_for_back(&mut self, last: At) -> At {
        let end = std::mem::replace(&mut self.end, OrderPlace::last());
        if self.blocks.get(last).items().is_some() { last } else { self.insert_block(None, end) }
    }

    /// Splits a block that has become too long by an item at `index`: into halves, but at the very
    /// end so that the blocks of a queue are full.
    fn split(&mut self, at: At, index: usize) {
        let next = self.blocks.next(at);
        let tail = self.blocks.update(at, |block| match &mut block.kept {
            BlockItems::Here(items) => {
                let appended = next.is_none() && index + 1 == items.len();
                let at = if appended { index } else { items.len() / 2 };
                // Neither half ever grows beyond a block.
                items.split_off(at, BLOCK_MAX + 1)
            }
            BlockItems::Away(_) => Items::default(),
        });
        if let Some((score, name)) = tail.first() {
            let first = OrderPlace::of(score, name);
            self.blocks.insert(next, Block { first, kept: BlockItems::Here(tail) });
        }
    }

    /// Removes an existing item.
    pub(in crate::value) fn remove(&mut self, score: f64, name: &[u8]) {
        let row_name = row_name(name);
        let key = (ordered(score), &*row_name);
        self.note_delete(key);
        let Some(at) = self.block_of(key) else { return };
        self.len -= 1;
        let removed = self.blocks.update(at, |block| match &mut block.kept {
            BlockItems::Here(items) => {
                let index = items.search(key);
                debug_assert!(items.get(index).is_some_and(|(_, other)| **other == *name));
                (index < items.len()).then(|| items.remove(index))
            }
            BlockItems::Away(Some(1)) => {
                block.kept = BlockItems::Here(Items::default());
                None
            }
            BlockItems::Away(count) => {
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

    /// Merges a block that has become smaller with a neighbour, or removes it if it is empty.
    fn shrink(&mut self, at: At) {
        let Some(len) = self.blocks.get(at).items().map(Items::len) else { return };
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

    /// Merges two neighbours if both are in memory and small; returns true if it did.
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
            if let (BlockItems::Here(items), BlockItems::Here(taken)) =
                (&mut block.kept, taken.kept)
            {
                items.append(taken);
            }
        });
        true
    }

    /// Removes empty blocks at the ends.
    fn trim(&mut self) {
        let is_empty = |block: &Block| block.items().is_some_and(Items::is_empty);
        while let Some(at) = self.blocks.first().filter(|at| is_empty(self.blocks.get(*at))) {
            self.blocks.remove(at);
        }
        while let Some(at) = self.blocks.last().filter(|at| is_empty(self.blocks.get(*at))) {
            self.end = self.blocks.remove(at).0.first;
        }
    }

    // ---- rows --------------------------------------------------------------------------------

    fn note_put(&mut self, (score, name): PlaceKey<'_>, row: Vec<u8>) {
        if self.has_rows {
            let place = OrderPlace { score, name: Name::from_slice(name) };
            let fresh = !matches!(self.dirty.get(&place), Some(ItemChange::Delete));
            self.dirty.insert(place, ItemChange::Put { row, fresh });
        }
    }

    fn note_delete(&mut self, (score, name): PlaceKey<'_>) {
        if self.has_rows {
            let place = OrderPlace { score, name: Name::from_slice(name) };
            match self.dirty.get(&place) {
                Some(ItemChange::Put { fresh: true, .. }) => self.dirty.remove(&place),
                _ => self.dirty.insert(place, ItemChange::Delete),
            };
        }
    }

    /// Makes each item a row from now on; all must be in memory.
    pub(in crate::value) fn unpack(&mut self) {
        self.has_rows = true;
        let items = self.blocks.iter().filter_map(Block::items).flat_map(Items::iter);
        self.dirty = items
            .map(|(score, name)| {
                let place = OrderPlace::of(score, name);
                let row = row_value(score, name, &place.name);
                (place, ItemChange::Put { row, fresh: true })
            })
            .collect();
    }

    /// Detaches the items from their rows; all must be in memory.
    pub(in crate::value) fn detach(&mut self) {
        self.has_rows = false;
        self.dirty.clear();
    }

    /// Writes the rows that changed since the last call.
    pub(in crate::value) fn seal(&mut self, rows: &mut ElementRows<'_>) {
        for (place, change) in std::mem::take(&mut self.dirty) {
            match change {
                ItemChange::Put { row, fresh } => rows.put(&place.element(), &row, fresh),
                ItemChange::Delete => rows.delete(&place.element()),
            }
        }
    }

    // ---- forgetting --------------------------------------------------------------------------

    /// Returns true if hardly any items are in memory.
    pub(in crate::value) fn has_few_in_memory(&self) -> bool {
        self.items <= 8 * BLOCK_MAX
    }

    /// Drops the items of up to `blocks` blocks from memory whose changes are all in the journal.
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
        // An empty block holds no memory, and records that nothing is there.
        let Some((score, name)) = items.last() else { return };
        if self.blocks.next(at).is_none() {
            self.end = OrderPlace::after(score, name);
        }
        self.items -= items.len();
        self.heap -= items.heap();
        self.blocks.update(at, |block| block.kept = BlockItems::Away(block.count()));
    }
}

/// Returns the element keys between two places.
fn element_range(from: &OrderPlace, to: &OrderPlace) -> ElementRange {
    ElementRange { from: from.element(), to: Some(to.element()) }
}
