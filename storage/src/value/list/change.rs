//! Changes lists. The needed nodes must be in memory (see the `require…` methods).

use super::super::pack::{NODE_BYTES, NODE_MAX, Pack, entry_len};
use super::{
    FIRST, FIRST_MIN, LAST_MAX, List, ListNode, ListPlace, Matches, NodeState, PAGE_NODES, STEP,
    listpack_entry,
};
use crate::need::Part;
use crate::value::sequence::At;

/// Free numbers required on both sides of a node that may be split.
const ROOM: u64 = 64;

/// Some neighbouring nodes, and the bounds of their numbers.
#[derive(Debug)]
pub(super) struct NodeWindow {
    pub(super) first: At,
    pub(super) nodes: u64,
    pub(super) after: u64,
    pub(super) before: u64,
}

impl NodeWindow {
    /// Returns the distance between the numbers when they are spread evenly.
    fn spacing(&self) -> u64 {
        self.before.saturating_sub(self.after) / (self.nodes + 1)
    }

    /// Returns true if the nodes have enough room on average. Larger windows must have more, so
    /// that it lasts longer.
    fn is_roomy(&self) -> bool {
        let spacing = self.spacing();
        spacing >= 2 * ROOM && spacing.saturating_mul(spacing) >= self.nodes.saturating_mul(256)
    }
}

impl List {
    // ---- ends --------------------------------------------------------------------------------

    /// Pushes an element at an end; see [`List::require_push`].
    pub fn push(&mut self, element: &[u8], front: bool) {
        self.len += 1;
        self.listpack += listpack_entry(element);
        let end = if front { self.nodes.first() } else { self.nodes.last() };
        if let Some(at) = end
            && let Some(pack) = self.nodes.get(at).pack()
        {
            if pack.fits(element) {
                return self.change(at, |pack| {
                    if front { pack.push_front(element) } else { pack.push_back(element) }
                });
            }
            // The full node will hardly grow any more. If its row is due, it gets the memory of that.
            self.nodes.update(at, |node| match &mut node.kind {
                NodeState::Loaded(_) if node.dirty => node.full = true,
                NodeState::Loaded(pack) => pack.shrink(),
                _ => {}
            });
        }
        let (first, last) = self.bounds();
        if (first < FIRST_MIN || last > LAST_MAX) && self.unloaded == 0 {
            self.renumber();
        }
        let (first, last) = self.bounds();
        let no = match (end, front) {
            (None, _) => FIRST,
            (_, true) => first - STEP,
            (_, false) => last + STEP,
        };
        let before = if front { self.nodes.first() } else { None };
        self.add_node(before, no, Pack::of(element));
    }

    /// Drops up to `count` elements at an end; see [`List::require_end`].
    pub fn drop_end(&mut self, front: bool, count: u64) {
        let mut left = usize::try_from(count).unwrap_or(usize::MAX);
        while left > 0
            && let Some(at) = if front { self.nodes.first() } else { self.nodes.last() }
            && let Some(pack) = self.nodes.get(at).pack()
        {
            let n = left.min(pack.count());
            let dropped: u64 = if front {
                pack.iter().take(n).map(listpack_entry).sum()
            } else {
                pack.iter().rev().take(n).map(listpack_entry).sum()
            };
            self.listpack -= dropped;
            self.len -= n as u64;
            left -= n;
            if n == pack.count() {
                self.remove_node(at);
            } else {
                self.change(at, |pack| if front { pack.drop_front(n) } else { pack.drop_back(n) });
            }
        }
    }

    /// Checks that everything needed by [`List::trim`] is in memory.
    pub fn require_trim(&self, start: u64, count: u64) -> Result<(), Part> {
        if count == 0 || self.unloaded == 0 {
            return Ok(());
        }
        if self.keeps_less(count) {
            return self.range(start, count, false).map(drop);
        }
        self.require_end(true, start)?;
        self.require_end(false, self.len - start - count)
    }

    /// Returns true if a trim to `count` elements keeps fewer than it drops, in a list that is only
    /// in part in memory: then the kept ones are read.
    fn keeps_less(&self, count: u64) -> bool {
        self.unloaded > 0 && count < self.len / 2
    }

    /// Keeps only the `count` elements from a position on; see [`List::require_trim`].
    pub fn trim(&mut self, start: u64, count: u64) {
        if count == 0 || self.keeps_less(count) {
            let mut kept = Self { quicklist: self.quicklist, ..Self::default() };
            if let Ok(elements) = self.range(start, count, false) {
                elements.for_each(|element| kept.push(element, false));
            }
            // The new list has no version: the old one is dead.
            *self = kept;
            return;
        }
        let behind = self.len - start - count;
        self.drop_end(true, start);
        self.drop_end(false, behind);
    }

    // ---- in the middle -----------------------------------------------------------------------

    /// Checks that the element at a place can be replaced, or get a neighbour.
    pub fn require_room(&self, place: ListPlace) -> Result<(), Part> {
        self.window(place.at).map(drop)
    }

    /// Replaces the element at a place; see [`List::require_room`].
    pub fn set(&mut self, place: ListPlace, element: &[u8]) {
        let ListPlace { at, offset } = place;
        let Some(pack) = self.nodes.get(at).pack() else { return };
        let Some(old) = pack.get(offset) else { return };
        let grown = pack.bytes() - entry_len(old.len()) + entry_len(element.len());
        let (lost, count) = (listpack_entry(old), pack.count());
        if count == 1 || grown <= NODE_BYTES {
            self.listpack = self.listpack - lost + listpack_entry(element);
            return self.change(at, |pack| pack.replace(offset, element));
        }
        self.listpack -= lost;
        self.len -= 1;
        self.change(at, |pack| pack.remove(offset));
        self.insert(place, element, false);
    }

    /// Inserts an element before or after the one at a place; see [`List::require_room`].
    pub fn insert(&mut self, place: ListPlace, element: &[u8], after: bool) {
        self.len += 1;
        self.listpack += listpack_entry(element);
        if let Ok(Some(window)) = self.window(place.at) {
            self.spread(&window);
        }
        self.insert_at(place.at, place.offset + usize::from(after), element);
    }

    fn insert_at(&mut self, at: At, offset: usize, element: &[u8]) {
        let Some(pack) = self.nodes.get(at).pack() else { return };
        let count = pack.count();
        if pack.fits(element) {
            return self.change(at, |pack| pack.insert(offset, element));
        }
        let fits = |at: &At| self.nodes.get(*at).pack().is_some_and(|pack| pack.fits(element));
        if offset == 0
            && let Some(prev) = self.nodes.prev(at).filter(fits)
        {
            return self.change(prev, |pack| pack.push_back(element));
        }
        if offset >= count
            && let Some(next) = self.nodes.next(at).filter(fits)
        {
            return self.change(next, |pack| pack.push_front(element));
        }
        if count > 1 && entry_len(element.len()) <= NODE_BYTES / 2 {
            let half = pack.half();
            let (left, right) = self.split(at, half);
            return if offset <= half {
                self.insert_at(left, offset, element)
            } else {
                self.insert_at(right, offset - half, element)
            };
        }
        let before = match offset {
            0 => Some(at),
            _ if offset >= count => self.nodes.next(at),
            _ => Some(self.split(at, offset).1),
        };
        let no = self.number_before(before);
        self.add_node(before, no, Pack::of(element));
    }

    /// Splits a node before its `offset`-th element, and returns both halves.
    fn split(&mut self, at: At, offset: usize) -> (At, At) {
        let next = self.nodes.next(at);
        let no = self.number_before(next);
        let mut tail = Pack::default();
        self.change(at, |pack| tail = pack.split_off(offset));
        let right = self.add_node(next, no, tail);
        (self.nodes.prev(right).unwrap_or(right), right)
    }

    /// Returns a free number for a node before a piece (`None`: behind the last).
    fn number_before(&self, before: Option<At>) -> u64 {
        let prev = match before {
            Some(at) => self.nodes.prev(at),
            None => self.nodes.last(),
        };
        let low = prev.map(|at| self.nodes.get(at).end() - 1);
        let high = before.map(|at| self.nodes.get(at).no);
        match (low, high) {
            (Some(low), Some(high)) => low + (high - low) / 2,
            (Some(low), None) => low.saturating_add(STEP),
            (None, Some(high)) => high.saturating_sub(STEP),
            (None, None) => FIRST,
        }
    }

    /// Removes an element's occurrences found by [`List::matches`].
    pub fn remove(&mut self, matches: &Matches, element: &[u8]) {
        for &(no, count) in &matches.nodes {
            let Some(at) = self.nodes.last_where(no, |node| node.no <= no) else { continue };
            let Some(pack) = self.nodes.get(at).pack() else { continue };
            let here = pack.iter().filter(|e| *e == element).count();
            self.len -= count as u64;
            self.listpack -= count as u64 * listpack_entry(element);
            if count == pack.count() {
                self.remove_node(at);
                continue;
            }
            let skip = if matches.reverse { here - count } else { 0 };
            let mut seen = 0;
            self.change(at, |pack| {
                pack.remove_where(|e| {
                    let is = e == element;
                    seen += usize::from(is);
                    is && (skip + 1..=skip + count).contains(&seen)
                });
            });
            if !self.merge(Some(at)) {
                self.merge(self.nodes.prev(at));
            }
        }
    }

    /// Merges a node with the next one if both together are small; returns true if it did.
    fn merge(&mut self, at: Option<At>) -> bool {
        let Some(at) = at else { return false };
        let Some(next) = self.nodes.next(at) else { return false };
        let (Some(a), Some(b)) = (self.nodes.get(at).pack(), self.nodes.get(next).pack()) else {
            return false;
        };
        if a.bytes() + b.bytes() > NODE_BYTES / 2 || a.count() + b.count() > NODE_MAX / 2 {
            return false;
        }
        if let NodeState::Loaded(tail) = self.remove_node(next) {
            self.change(at, |pack| pack.append(&tail));
        }
        true
    }

    // ---- nodes -------------------------------------------------------------------------------

    /// Changes the elements of a node in memory.
    fn change(&mut self, at: At, change: impl FnOnce(&mut Pack)) {
        let (big, dirty) = (self.version != 0, &mut self.dirty);
        let (before, after) = self.nodes.update(at, |node| {
            if big && !node.dirty {
                node.dirty = true;
                dirty.push(node.no);
            }
            let NodeState::Loaded(pack) = &mut node.kind else { return (0, 0) };
            let before = pack.bytes();
            change(pack);
            (before, pack.bytes())
        });
        self.bytes = self.bytes - before + after;
    }

    fn add_node(&mut self, before: Option<At>, no: u64, pack: Pack) -> At {
        self.bytes += pack.bytes();
        let mut node = ListNode::new(no, NodeState::Loaded(pack));
        if self.version != 0 {
            node.dirty = true;
            self.dirty.push(no);
        }
        self.nodes.insert(before, node)
    }

    /// Removes a node in memory. Its elements stay counted.
    fn remove_node(&mut self, at: At) -> NodeState {
        let (node, _) = self.nodes.remove(at);
        self.bytes -= node.pack().map_or(0, Pack::bytes);
        if self.version != 0 && !node.dirty {
            self.dirty.push(node.no);
        }
        node.kind
    }

    /// Returns the nodes around one that must be renumbered before it can be split, if any.
    fn window(&self, at: At) -> Result<Option<NodeWindow>, Part> {
        let mut last = at;
        let mut window = NodeWindow { first: at, nodes: 1, after: 0, before: 0 };
        loop {
            let prev = self.nodes.prev(window.first);
            let next = self.nodes.next(last);
            let far = STEP.saturating_mul(window.nodes);
            window.after = match prev {
                Some(prev) => self.nodes.get(prev).end() - 1,
                None => self.nodes.get(window.first).no.saturating_sub(far),
            };
            window.before = match next {
                Some(next) => self.nodes.get(next).no,
                None => self.nodes.get(last).no.saturating_add(far),
            };
            let no = self.nodes.get(at).no;
            if window.nodes == 1 && no - window.after >= ROOM && window.before - no >= ROOM {
                return Ok(None);
            }
            if window.is_roomy() || (prev.is_none() && next.is_none()) {
                return Ok(Some(window));
            }
            for _ in 0..window.nodes {
                if let Some(prev) = self.nodes.prev(window.first) {
                    self.require_node(prev, true)?;
                    (window.first, window.nodes) = (prev, window.nodes + 1);
                }
                if let Some(next) = self.nodes.next(last) {
                    self.require_node(next, false)?;
                    (last, window.nodes) = (next, window.nodes + 1);
                }
            }
        }
    }

    fn require_node(&self, at: At, reverse: bool) -> Result<(), Part> {
        match self.nodes.get(at).pack() {
            Some(_) => Ok(()),
            None => Err(self.ask(at, reverse, PAGE_NODES as u64, 0)),
        }
    }

    /// Spreads the numbers of nodes in memory evenly.
    pub(super) fn spread(&mut self, window: &NodeWindow) {
        let (mut at, mut no) = (Some(window.first), window.after);
        for _ in 0..window.nodes {
            let Some(here) = at else { break };
            no += window.spacing();
            let (big, dirty) = (self.version != 0, &mut self.dirty);
            self.nodes.update(here, |node| {
                if big {
                    dirty.extend([node.no, no]);
                }
                node.dirty = big;
                node.no = no;
            });
            at = self.nodes.next(here);
        }
    }

    /// Renumbers all nodes, beginning in the middle. All must be in memory.
    fn renumber(&mut self) {
        let Some(first) = self.nodes.first() else { return };
        let nodes = self.nodes.len() as u64;
        let after = FIRST - (nodes / 2 + 1) * STEP;
        let window = NodeWindow { first, nodes, after, before: after + (nodes + 1) * STEP };
        self.spread(&window);
    }
}
