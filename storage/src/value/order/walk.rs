//! Reads the order: ranks, counts, and items in sequence.

use super::apply::places;
use super::items::is_before;
use super::{
    BlockItems, Order, OrderPlace, PlaceKey, SequencePiece, element_range, ordered, row_name,
};
use crate::need::{ElementRange, IndexBy, Part};
use crate::value::members::Name;
use crate::value::sequence::At;

/// Minimum and maximum number of items of a page.
const PAGE: u64 = 256;
const PAGE_MAX: u64 = 64 * 1024;

/// Distance from both ends of a block beyond which an item is not searched for page by page.
const NEAR: u64 = 16 * 1024;

/// Rows of an index that make a block.
const INDEX_ROWS: u64 = 128;

/// Location of a place.
enum Spot {
    /// Before an item of a block, given by its index (before the first one if the block is not in
    /// memory).
    Before(At, usize),
    /// Behind all items.
    End,
    /// Somewhere in a block that is not in memory.
    Inside(At),
}

/// Iterator over items: names and scores.
#[derive(Clone, Debug)]
pub struct ZsetWalk<'a> {
    order: &'a Order,
    /// A block and an index: before the next item or, backwards, behind it.
    at: Option<(At, usize)>,
    from: OrderPlace,
    to: OrderPlace,
    reverse: bool,
    skip: u64,
    left: u64,
}

impl Order {
    fn spot(&self, key: PlaceKey<'_>) -> Spot {
        if key >= self.end.key() {
            return Spot::End;
        }
        let Some(at) = self.block_of(key) else {
            return self.blocks.first().map_or(Spot::End, |at| Spot::Before(at, 0));
        };
        let block = self.blocks.get(at);
        match &block.kept {
            BlockItems::Here(items) => Spot::Before(at, items.search(key)),
            BlockItems::Away(_) if block.first.key() == key => Spot::Before(at, 0),
            BlockItems::Away(_) => Spot::Inside(at),
        }
    }

    // ---- parts to load -----------------------------------------------------------------------

    /// Returns a page of about `want` items of a block and later blocks, within `from` to `to`.
    fn page(&self, at: At, from: &OrderPlace, to: &OrderPlace, want: u64) -> Part {
        let limit = want.clamp(PAGE, PAGE_MAX);
        let (mut last, mut sum) = (at, self.blocks.get(at).count());
        while let Some(next) = self.blocks.next(last)
            && sum.is_some_and(|sum| sum < limit)
            && self.blocks.get(next).items().is_none()
        {
            sum = sum.zip(self.blocks.get(next).count()).map(|(a, b)| a + b);
            last = next;
        }
        let from = from.max(&self.blocks.get(at).first);
        let range = element_range(from, to.min(self.end_of(last)));
        Part::Page { range, reverse: false, limit: limit as usize, least: 1 }
    }

    /// Like [`page`](Self::page), backwards: of a block and earlier blocks.
    fn page_back(&self, at: At, from: &OrderPlace, to: &OrderPlace, want: u64) -> Part {
        let limit = want.clamp(PAGE, PAGE_MAX);
        let (mut first, mut sum) = (at, self.blocks.get(at).count());
        while let Some(prev) = self.blocks.prev(first)
            && sum.is_some_and(|sum| sum < limit)
            && self.blocks.get(prev).items().is_none()
        {
            sum = sum.zip(self.blocks.get(prev).count()).map(|(a, b)| a + b);
            first = prev;
        }
        let from = from.max(&self.blocks.get(first).first);
        let range = element_range(from, to.min(self.end_of(at)));
        Part::Page { range, reverse: true, limit: limit as usize, least: 1 }
    }

    /// Returns the part that gives the number of a block's items between two places.
    fn counts(&self, at: At, from: &OrderPlace, to: &OrderPlace) -> Part {
        let block = self.blocks.get(at);
        let end = self.end_of(at);
        if block.count().is_some_and(|count| count <= PAGE) {
            return self.page(at, &block.first, end, PAGE);
        }
        let range = element_range(from.max(&block.first), to.min(end));
        Part::Index { range, by: IndexBy::Rows(INDEX_ROWS) }
    }

    /// Returns true if the block is in memory with which a page begins (see [`page`](Self::page)).
    pub(in crate::value) fn has_page(&self, range: &ElementRange, reverse: bool) -> bool {
        let Ok((from, to)) = places(range) else { return false };
        let at = match reverse {
            true => self.blocks.last_where(to.score, |block| block.first < to),
            false => self.block_of(from.key()),
        };
        at.is_some_and(|at| self.blocks.get(at).items().is_some())
    }

    /// Returns true if there is nothing to count where an index begins (see [`counts`](Self::counts)).
    pub(in crate::value) fn has_index(&self, range: &ElementRange) -> bool {
        let Ok((from, _)) = places(range) else { return false };
        let count = self.block_of(from.key()).and_then(|at| self.blocks.get(at).count());
        count.is_some_and(|count| count <= PAGE)
    }

    /// Returns the part with the item that has `before` others before it in its block, and `behind`
    /// others behind it.
    fn near(&self, at: At, before: u64, behind: u64, want: u64) -> Part {
        let (first, end) = (&self.blocks.get(at).first, self.end_of(at));
        if before.min(behind) > NEAR {
            self.counts(at, first, end)
        } else if before <= behind {
            self.page(at, first, end, before.saturating_add(want))
        } else {
            self.page_back(at, first, end, behind.saturating_add(PAGE))
        }
    }

    // ---- ranks and counts --------------------------------------------------------------------

    /// Returns the number of items before an existing one.
    pub(in crate::value) fn rank(&self, score: f64, name: &[u8]) -> Result<u64, Part> {
        let row_name = row_name(name);
        let whole = |at| self.counts(at, &OrderPlace::first(), &OrderPlace::last());
        let (at, index) = match self.spot((ordered(score), &row_name)) {
            Spot::Before(at, index) => (at, index),
            Spot::Inside(at) => return Err(whole(at)),
            Spot::End => return Ok(self.len),
        };
        match self.known_rank(at, index) {
            Some(rank) => Ok(rank),
            None => {
                let first = self.blocks.first().unwrap_or(at);
                Err(whole(self.blocks.first_uncounted(first, Some(at)).unwrap_or(at)))
            }
        }
    }

    /// Returns the number of items before a position, if enough blocks are counted.
    fn known_rank(&self, at: At, index: usize) -> Option<u64> {
        let before = self.blocks.count_before(at);
        let before = before.or_else(|| Some(self.len - self.blocks.count_between(at, None)?));
        Some(before? + index as u64)
    }

    /// Returns the number of items between two places.
    pub(in crate::value) fn count(&self, from: &OrderPlace, to: &OrderPlace) -> Result<u64, Part> {
        if from >= to {
            return Ok(0);
        }
        let (start, first) = match self.spot(from.key()) {
            Spot::Before(at, index) => (at, index),
            Spot::Inside(at) => return Err(self.counts(at, from, to)),
            Spot::End => return Ok(0),
        };
        let (end, last) = match self.spot(to.key()) {
            Spot::Before(at, index) => (Some(at), index),
            Spot::Inside(at) => return Err(self.counts(at, from, to)),
            Spot::End => (None, 0),
        };
        if let Some(between) = self.blocks.count_between(start, end) {
            return Ok(between + last as u64 - first as u64);
        }
        let rest = self.blocks.count_before(start).zip(match end {
            Some(end) => self.blocks.count_between(end, None),
            None => Some(0),
        });
        match (rest, self.blocks.first_uncounted(start, end)) {
            (None, Some(at)) => Err(self.counts(at, from, to)),
            (before_behind, _) => {
                let (before, behind) = before_behind.unwrap_or_default();
                Ok(self.len - before - behind + last as u64 - first as u64)
            }
        }
    }

    // ---- walking -----------------------------------------------------------------------------

    /// Returns up to `count` items from a rank on, which counts from the end if `reverse`.
    pub(in crate::value) fn by_rank(
        &self,
        rank: u64,
        count: u64,
        reverse: bool,
    ) -> Result<ZsetWalk<'_>, Part> {
        let count = count.min(self.len.saturating_sub(rank));
        let mut walk = ZsetWalk::new(self, OrderPlace::first(), OrderPlace::last(), reverse, count);
        if count > 0 {
            let rank = if reverse { self.len - 1 - rank } else { rank };
            let (at, index) = self.seek(rank, count)?;
            walk.at = Some((at, index + usize::from(reverse)));
        }
        Ok(walk)
    }

    /// Returns the position of the item of a rank, which must be in memory.
    fn seek(&self, rank: u64, want: u64) -> Result<(At, usize), Part> {
        let behind = self.len - 1 - rank;
        let (at, before) = self.blocks.find(rank).ok_or(Part::All)?;
        let (at, before, behind) = if let Some(before) = before {
            let count = self.blocks.get(at).count().unwrap_or_default();
            (at, before, count - 1 - before)
        } else {
            let (back, behind_in) = self.blocks.find_back(behind).ok_or(Part::All)?;
            match behind_in {
                Some(n) => {
                    let count = self.blocks.get(back).count().unwrap_or_default();
                    (back, count - 1 - n, n)
                }
                None => {
                    // Both before the item and behind it there are uncounted blocks.
                    let before = rank - self.blocks.count_before(at).unwrap_or_default();
                    let behind = behind - self.blocks.count_after(back).unwrap_or_default();
                    let at = if before <= behind { at } else { back };
                    return Err(self.near(at, before, behind, want));
                }
            }
        };
        match self.blocks.get(at).items() {
            Some(_) => Ok((at, before as usize)),
            None => Err(self.near(at, before, behind, want)),
        }
    }

    /// Returns up to `count` items between two places, without the first `skip`; from the last one
    /// on if `reverse`.
    pub(in crate::value) fn within(
        &self,
        (from, to): (&OrderPlace, &OrderPlace),
        skip: u64,
        count: u64,
        reverse: bool,
    ) -> Result<ZsetWalk<'_>, Part> {
        let mut walk = ZsetWalk::new(self, from.clone(), to.clone(), reverse, count);
        if from >= to || *from >= self.end || count == 0 {
            return Ok(walk);
        }
        let (at, index) = match self.spot(if reverse { to } else { from }.key()) {
            Spot::Before(at, index) => (at, index),
            Spot::Inside(at) => return Err(walk.missing(at, skip)),
            Spot::End => match self.blocks.last().filter(|_| reverse) {
                Some(at) => match self.blocks.get(at).items() {
                    Some(items) => (at, items.len()),
                    None => return Err(walk.missing(at, skip)),
                },
                None => return Ok(walk),
            },
        };
        walk.at = Some((at, index));
        walk.skip = skip;
        walk.jump();
        Ok(walk)
    }
}

impl<'a> ZsetWalk<'a> {
    fn new(order: &'a Order, from: OrderPlace, to: OrderPlace, reverse: bool, left: u64) -> Self {
        Self { order, at: None, from, to, reverse, skip: 0, left }
    }

    /// Returns the part with the next items, the first of which are in a block.
    fn missing(&self, at: At, skip: u64) -> Part {
        let want = self.left.saturating_add(skip);
        if self.reverse {
            self.order.page_back(at, &self.from, &self.to, want)
        } else {
            self.order.page(at, &self.from, &self.to, want)
        }
    }

    /// Skips items without reading them where the counts of blocks suffice.
    fn jump(&mut self) {
        let Some((at, index)) = self.at.filter(|_| self.skip > 0) else { return };
        let blocks = &self.order.blocks;
        let Some(rank) = self.order.known_rank(at, index) else { return };
        let target = if self.reverse {
            rank.checked_sub(self.skip)
        } else {
            rank.checked_add(self.skip).filter(|target| *target < self.order.len)
        };
        let Some(target) = target else {
            self.left = 0;
            return;
        };
        if let Some((to, Some(before))) = blocks.find(target)
            && (blocks.get(to).items().is_some()
                || blocks.get(to).count().is_some_and(|count| count <= PAGE))
        {
            self.at = Some((to, before as usize));
            self.skip = 0;
        }
    }

    fn forward(&mut self) -> Option<Result<(f64, &'a Name), Part>> {
        let order = self.order;
        loop {
            let (at, index) = self.at?;
            let block = order.blocks.get(at);
            if block.first >= self.to {
                return None;
            }
            let Some(items) = block.items() else { return Some(Err(self.missing(at, self.skip))) };
            match items.get(index) {
                None => self.at = order.blocks.next(at).map(|next| (next, 0)),
                Some(item) if !is_before(item, self.to.key()) => return None,
                Some(item) => {
                    self.at = Some((at, index + 1));
                    if self.skip == 0 {
                        return Some(Ok(item));
                    }
                    self.skip -= 1;
                }
            }
        }
    }

    fn backward(&mut self) -> Option<Result<(f64, &'a Name), Part>> {
        let order = self.order;
        loop {
            let (at, index) = self.at?;
            let block = order.blocks.get(at);
            if index > 0 {
                let Some(items) = block.items() else {
                    let is_over = *order.end_of(at) <= self.from;
                    return (!is_over).then(|| Err(self.missing(at, self.skip)));
                };
                let item = items.get(index - 1)?;
                if is_before(item, self.from.key()) {
                    return None;
                }
                self.at = Some((at, index - 1));
                if self.skip == 0 {
                    return Some(Ok(item));
                }
                self.skip -= 1;
                continue;
            }
            if block.first <= self.from {
                return None;
            }
            let prev = order.blocks.prev(at)?;
            let block = order.blocks.get(prev);
            match block.items() {
                Some(items) => self.at = Some((prev, items.len())),
                None => return Some(Err(self.missing(prev, self.skip))),
            }
        }
    }
}

impl<'a> Iterator for ZsetWalk<'a> {
    type Item = Result<(&'a [u8], f64), Part>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let item = if self.reverse { self.backward() } else { self.forward() };
        self.left = if matches!(item, Some(Ok(_))) { self.left - 1 } else { 0 };
        item.map(|item| item.map(|(score, name)| (&**name, score)))
    }
}
