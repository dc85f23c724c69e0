//! Applies rows that were read to blocks that are not in memory.

use super::place::{row_name, unordered};
use super::{BLOCK_MAX, Block, BlockItems, Items, MERGE_MAX, Order, OrderPlace, ScoredItem};
use crate::need::{ElementRange, IndexPiece, Page};
use crate::value::sequence::At;
use anyhow::{Context, Result, bail};
use bytes::Bytes;

/// Decodes the item of a row.
fn read_item(element: &[u8], row: &[u8]) -> Result<ScoredItem> {
    let place = OrderPlace::of_element(element)?;
    let Some((score, name)) = row.split_first_chunk::<8>() else {
        return Ok(ScoredItem { score: unordered(place.score), name: place.name });
    };
    let score = f64::from_bits(u64::from_be_bytes(*score));
    let item = if name.is_empty() {
        ScoredItem { score, name: place.name }
    } else {
        ScoredItem::new(score, name)
    };
    if item.score.is_nan() || row_name(&item.name).len() != element.len().saturating_sub(9) {
        bail!("a row of the order is damaged");
    }
    Ok(item)
}

/// Returns the places at which a range begins and ends.
pub(super) fn places(range: &ElementRange) -> Result<(OrderPlace, OrderPlace)> {
    let to = range.to.as_ref().context("a range of the order has no end")?;
    Ok((OrderPlace::of_element(&range.from)?, OrderPlace::of_element(to)?))
}

/// Builds blocks of equal size from items in order; the first one begins at `from`. Each has memory
/// for its own items only.
fn blocks_of(items: Vec<ScoredItem>, from: &OrderPlace) -> Vec<Block> {
    let count = items.len().div_ceil(BLOCK_MAX).max(1);
    let mut items = items.into_iter();
    let block = |left: usize| {
        let share = items.len().div_ceil(left);
        let here: Items = items.by_ref().take(share).collect();
        let first = match here.first() {
            Some((score, name)) if left < count => OrderPlace::of(score, name),
            _ => from.clone(),
        };
        Block { first, kept: BlockItems::Here(here) }
    };
    (1..=count).rev().map(block).collect()
}

impl Order {
    /// Applies all rows: element key and value, ascending.
    pub(in crate::value) fn apply_all(&mut self, rows: &[(Bytes, Bytes)]) -> Result<()> {
        self.apply_loaded(&OrderPlace::first(), &OrderPlace::last(), rows)
    }

    /// Applies a page.
    pub(in crate::value) fn apply_page(&mut self, page: &Page) -> Result<()> {
        let (from, to) = places(&page.range)?;
        self.apply_loaded(&from, &to, &page.rows)
    }

    /// Applies `rows`, which are all rows between two places.
    fn apply_loaded(
        &mut self,
        from: &OrderPlace,
        to: &OrderPlace,
        rows: &[(Bytes, Bytes)],
    ) -> Result<()> {
        let mut rows = rows.iter().peekable();
        let mut at = self.block_of(from.key()).or_else(|| self.blocks.first());
        while let Some(here) = at {
            let block = self.blocks.get(here);
            let (lo, hi) = (from.max(&block.first).clone(), to.min(self.end_of(here)).clone());
            if block.first >= *to {
                break;
            }
            if block.items().is_some() || lo >= hi {
                at = self.blocks.next(here);
                continue;
            }
            let (lower, upper) = (lo.element(), hi.element());
            while rows.next_if(|(element, _)| **element < *lower).is_some() {}
            let mut items = Vec::new();
            while let Some((element, row)) = rows.next_if(|(element, _)| **element < *upper) {
                items.push(read_item(element, row)?);
            }
            let (count, heap) = (items.len(), items.iter().map(ScoredItem::heap).sum::<usize>());
            at = self.replace(here, &hi, blocks_of(items, &lo))?;
            self.items += count;
            self.heap += heap;
        }
        self.tidy(from, to);
        self.settle()
    }

    /// Applies the counts of a range, which lies in one block.
    pub(in crate::value) fn apply_index(
        &mut self,
        range: &ElementRange,
        pieces: Vec<IndexPiece>,
    ) -> Result<()> {
        let (from, to) = places(range)?;
        let Some(at) = self.block_of(from.key()) else { return Ok(()) };
        if self.blocks.get(at).items().is_some() || *self.end_of(at) < to {
            return Ok(());
        }
        let mut blocks = Vec::with_capacity(pieces.len());
        for (element, count) in pieces {
            let first = OrderPlace::of_element(&element)?;
            blocks.push(Block { first, kept: BlockItems::Away(Some(count)) });
        }
        match blocks.first_mut() {
            Some(block) => block.first = from.clone(),
            None => {
                blocks.push(Block { first: from.clone(), kept: BlockItems::Here(Items::default()) })
            }
        }
        self.replace(at, &to, blocks)?;
        self.tidy(&from, &to);
        self.settle()
    }

    /// Replaces the part of a block that is not in memory, from the first of `blocks` up to `to`,
    /// and returns the block behind it.
    fn replace(&mut self, at: At, to: &OrderPlace, mut blocks: Vec<Block>) -> Result<Option<At>> {
        let old = self.blocks.get(at);
        let found: u64 = blocks.iter().filter_map(super::SequencePiece::count).sum();
        let mut rest = match super::SequencePiece::count(old) {
            Some(count) => Some(count.checked_sub(found).context(MISCOUNTED)?),
            None => None,
        };
        let is_behind = to < self.end_of(at);
        let is_before = blocks.first().is_some_and(|block| old.first < block.first);
        if !is_before && !is_behind && rest.is_some_and(|rest| rest > 0) {
            bail!(MISCOUNTED);
        }
        let (old, mut next) = self.blocks.remove(at);
        match rest {
            Some(0) => {
                if let Some(block) = blocks.first_mut() {
                    block.first = old.first;
                }
            }
            _ => {
                if is_before && is_behind {
                    rest = None;
                }
                if is_before {
                    blocks.insert(0, Block { first: old.first, kept: BlockItems::Away(rest) });
                }
                if is_behind {
                    blocks.push(Block { first: to.clone(), kept: BlockItems::Away(rest) });
                }
            }
        }
        for block in blocks {
            let at = self.blocks.insert(next, block);
            next = self.blocks.next(at);
        }
        Ok(next)
    }

    /// Merges small neighbours between two places.
    fn tidy(&mut self, from: &OrderPlace, to: &OrderPlace) {
        let first = self.block_of(from.key()).or_else(|| self.blocks.first());
        let mut at = first.and_then(|at| self.blocks.prev(at)).or(first);
        while let Some(here) = at {
            match self.blocks.next(here) {
                Some(next) if self.merge(here, next) => {}
                next => at = next.filter(|next| self.blocks.get(*next).first <= *to),
            }
        }
        self.trim();
    }

    /// Checks the counts, and computes those that follow from the others.
    fn settle(&mut self) -> Result<()> {
        if self.blocks.total() > self.len {
            bail!(MISCOUNTED);
        }
        self.count_rest();
        Ok(())
    }

    /// Computes counts that follow from the others.
    pub(super) fn count_rest(&mut self) {
        let uncounted = self.blocks.uncounted();
        let rest = self.len.saturating_sub(self.blocks.total());
        if uncounted == 0 || (uncounted > 1 && rest > 0) {
            return;
        }
        let start = self.blocks.first();
        while let Some(at) = start.and_then(|start| self.blocks.first_uncounted(start, None)) {
            let kept = if rest == 0 {
                BlockItems::Here(Items::default())
            } else {
                BlockItems::Away(Some(rest))
            };
            self.blocks.update(at, |block| block.kept = kept);
        }
        if rest == 0 {
            self.tidy(&OrderPlace::first(), &OrderPlace::last());
        }
    }
}

const MISCOUNTED: &str = "the rows of the order are not as many as the sorted set has members";

const _: () = assert!(MERGE_MAX <= BLOCK_MAX, "a merged block is not too long");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_memory_for_their_items_only() {
        for count in [0, 1, BLOCK_MAX, BLOCK_MAX + 1, 10_000] {
            let items: Vec<ScoredItem> =
                (0..count).map(|n| ScoredItem::new(n as f64, b"name")).collect();
            let from = OrderPlace::before_score(-1.0);
            let blocks = blocks_of(items, &from);
            assert_eq!(blocks.len(), count.div_ceil(BLOCK_MAX).max(1));
            assert_eq!(blocks[0].first, from);
            let mut scores = 0..count;
            for (n, block) in blocks.iter().enumerate() {
                let BlockItems::Here(items) = &block.kept else { panic!("they are here") };
                assert!(items.len() <= BLOCK_MAX && items.capacity() <= BLOCK_MAX);
                let first = items.first().map(|(score, name)| OrderPlace::of(score, name));
                assert!(n == 0 || Some(&block.first) == first.as_ref());
                assert!(items.iter().all(|(score, _)| scores.next() == Some(score as usize)));
            }
            assert_eq!(scores.next(), None);
        }
    }
}
