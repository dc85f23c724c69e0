//! Lists: packed into the meta row while small, a row per node of elements when big.

mod change;
mod rows;
#[cfg(test)]
mod tests;

use super::pack::{Pack, PackElements};
use super::sequence::{At, Sequence, SequencePiece};
use super::string::parse_int;
use crate::need::{ElementRange, IndexBy, Part};

/// Difference between the numbers of new nodes at the ends: as many nodes fit between two of them.
const STEP: u64 = 1 << 20;

/// The number of a list's first node.
const FIRST: u64 = 1 << 63;

/// If a list has nodes outside of these numbers, all nodes are renumbered before the next push. A
/// command has fewer than 2²¹ arguments.
const FIRST_MIN: u64 = STEP << 21;
const LAST_MAX: u64 = u64::MAX - FIRST_MIN;

/// Nodes that are read when only the end of a list is needed; doubled with each page that is read,
/// up to the maximum.
const END_NODES: usize = 8;
const MAX_END_NODES: usize = 64;

/// Maximum number of nodes that one page reads.
const PAGE_NODES: usize = 16_384;

/// Assumed elements of a node whose count is unknown.
const NODE_GUESS: u64 = 32;

/// Distance up to which a position is reached by walking from a node in memory; farther ones are
/// looked up in an index.
const NEAR: u64 = 1024;

/// Elements in numbered nodes, some of which may not be in memory. The nodes are in the order of
/// their numbers.
#[derive(Clone, Debug, Default)]
pub struct List {
    nodes: Sequence<ListNode>,
    len: u64,
    /// Bytes of the elements in memory.
    bytes: usize,
    /// Bytes that all elements would take in a listpack.
    listpack: u64,
    /// Number of pieces that are not in memory.
    unloaded: usize,
    /// 0 while the list is packed into the meta row.
    version: u64,
    /// True if OBJECT ENCODING calls it a "quicklist".
    quicklist: bool,
    /// Numbers of nodes with changes not in the journal (used for element rows only).
    dirty: Vec<u64>,
    /// Position from which the next nodes are dropped from memory.
    hand: u64,
    /// Number of pages that were read.
    pages: u32,
}

#[derive(Clone, Debug)]
struct ListNode {
    no: u64,
    /// True if its number is in [`List::dirty`].
    dirty: bool,
    /// True if nothing fits in any more, and the row that is due is the last one for a while.
    full: bool,
    kind: NodeState,
}

#[derive(Clone, Debug)]
enum NodeState {
    Loaded(Pack),
    /// A node that is not in memory.
    Cold {
        count: u64,
    },
    /// All nodes with numbers from that of the piece to before `end`; none is in memory.
    Gap {
        end: u64,
    },
}

impl ListNode {
    fn new(no: u64, kind: NodeState) -> Self {
        Self { no, dirty: false, full: false, kind }
    }

    /// Returns the first number behind the piece.
    fn end(&self) -> u64 {
        match self.kind {
            NodeState::Gap { end } => end,
            _ => self.no + 1,
        }
    }

    fn pack(&self) -> Option<&Pack> {
        match &self.kind {
            NodeState::Loaded(pack) => Some(pack),
            _ => None,
        }
    }
}

impl SequencePiece for ListNode {
    fn count(&self) -> Option<u64> {
        match &self.kind {
            NodeState::Loaded(pack) => Some(pack.count() as u64),
            NodeState::Cold { count } => Some(*count),
            NodeState::Gap { .. } => None,
        }
    }

    fn rank(&self) -> u64 {
        self.no
    }
}

/// Position of an element; valid until the list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    at: At,
    offset: usize,
}

/// Elements of a list that equal a given one: numbers of nodes, and how many in each; valid until
/// the list changes.
#[derive(Debug, Default)]
pub struct Matches {
    nodes: Vec<(u64, usize)>,
    /// True if a node's last equal elements are meant, not its first ones.
    reverse: bool,
}

impl Matches {
    /// Returns their number.
    pub fn count(&self) -> u64 {
        self.nodes.iter().map(|(_, count)| *count as u64).sum()
    }
}

/// Returns the bytes that an element takes in a listpack: an encoding and the text, or an integer
/// in as few bytes as it needs, and behind it the length of both.
pub(in crate::value) fn listpack_entry(element: &[u8]) -> u64 {
    let len = element.len() as u64;
    let starts = matches!(element.first(), Some(b'-' | b'0'..=b'9'));
    let integer = if starts && len <= 20 { parse_int(element) } else { None };
    let encoded = match integer {
        Some(0..=127) => 1,
        Some(-4096..=4095) => 2,
        Some(-0x8000..=0x7fff) => 3,
        Some(-0x80_0000..=0x7f_ffff) => 4,
        Some(-0x8000_0000..=0x7fff_ffff) => 5,
        Some(_) => 9,
        None if len < 64 => 1 + len,
        None if len < 4096 => 2 + len,
        None => 5 + len,
    };
    encoded
        + match encoded {
            0..=127 => 1,
            128..=16_382 => 2,
            16_383..=2_097_150 => 3,
            2_097_151..=268_435_454 => 4,
            _ => 5,
        }
}

impl List {
    /// Creates an empty list, wholly in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a big list from its meta row; no element is in memory.
    pub(crate) fn from_meta(version: u64, len: u64, nodes: (u64, u64), bytes: u64) -> Self {
        let listpack = bytes.saturating_sub(7);
        let mut list = Self { version, len, listpack, unloaded: 1, ..Self::default() };
        let end = nodes.1.saturating_add(1);
        list.nodes.insert(None, ListNode::new(nodes.0, NodeState::Gap { end }));
        list
    }

    /// Returns the number of elements.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if OBJECT ENCODING calls it a "quicklist", not a "listpack".
    pub fn is_quicklist(&self) -> bool {
        self.quicklist
    }

    /// Sets the name that OBJECT ENCODING returns.
    pub fn set_quicklist(&mut self, quicklist: bool) {
        self.quicklist = quicklist;
    }

    /// Returns the size in bytes of a listpack that holds all elements.
    pub fn listpack_bytes(&self) -> u64 {
        7 + self.listpack
    }

    /// Returns the lowest and the highest number that a node has or may have.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let first = self.nodes.first().map_or(FIRST, |at| self.nodes.get(at).no);
        let last = self.nodes.last().map_or(FIRST, |at| self.nodes.get(at).end() - 1);
        (first, last)
    }

    /// Returns the elements in memory in order.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = &[u8]> {
        self.nodes.iter().filter_map(ListNode::pack).flat_map(Pack::iter)
    }

    // ---- parts that must be in memory --------------------------------------------------------

    /// Checks that every element is in memory.
    pub fn require_all(&self) -> Result<(), Part> {
        if self.unloaded == 0 { Ok(()) } else { Err(Part::All) }
    }

    /// Checks that an element can be pushed at an end: the node there is in memory.
    pub fn require_push(&self, front: bool) -> Result<(), Part> {
        let (first, last) = self.bounds();
        if first < FIRST_MIN || last > LAST_MAX {
            // All nodes will be renumbered.
            self.require_all()?;
        }
        self.require_end(front, 1)
    }

    /// Checks that the first or last `count` elements are in memory.
    pub fn require_end(&self, front: bool, count: u64) -> Result<(), Part> {
        if self.unloaded == 0 {
            return Ok(());
        }
        let count = count.min(self.len);
        if count == self.len && count > NODE_GUESS {
            return self.require_all();
        }
        let mut at = self.end(!front);
        let (mut left, mut passed) = (count, 0);
        while let Some(here) = at.filter(|_| left > 0) {
            let Some(pack) = self.nodes.get(here).pack() else {
                return Err(self.ask(here, !front, left, passed));
            };
            left = left.saturating_sub(pack.count() as u64);
            passed += 1;
            at = self.step(here, !front);
        }
        Ok(())
    }

    fn end(&self, reverse: bool) -> Option<At> {
        if reverse { self.nodes.last() } else { self.nodes.first() }
    }

    fn step(&self, at: At, reverse: bool) -> Option<At> {
        if reverse { self.nodes.prev(at) } else { self.nodes.next(at) }
    }

    /// Returns a request for the nodes from a piece on that is not in memory: for more nodes the
    /// more elements are wanted and the more nodes were `passed` already.
    fn ask(&self, at: At, reverse: bool, wanted: u64, passed: usize) -> Part {
        let nodes = usize::try_from(wanted / NODE_GUESS).unwrap_or(usize::MAX);
        let mut least = END_NODES;
        if self.end(reverse) == Some(at) {
            // A client that is emptying the list will read more.
            least = (END_NODES << self.pages.min(8)).min(MAX_END_NODES);
        }
        let limit = nodes.min(passed.max(64)).clamp(least, PAGE_NODES);
        let (mut first, mut last) = (at, at);
        for _ in 1..limit {
            let far = if reverse { &mut first } else { &mut last };
            match self.step(*far, reverse) {
                Some(next) if self.nodes.get(next).pack().is_none() => *far = next,
                _ => break,
            }
        }
        let (from, to) = (self.nodes.get(first).no, self.nodes.get(last).end());
        Part::Page { range: range(from, to), reverse, limit, least: 1 }
    }

    // ---- reading -----------------------------------------------------------------------------

    /// Finds the element at a position, which is in memory then; `None` behind the last.
    pub fn seek(&self, position: u64) -> Result<Option<ListPlace>, Part> {
        if position >= self.len {
            return Ok(None);
        }
        let behind = self.len - 1 - position;
        let reverse = behind < position;
        let (mut found, mut gaps) = (None, [None, None]);
        for reverse in [reverse, !reverse] {
            let hit =
                if reverse { self.nodes.find_back(behind) } else { self.nodes.find(position) };
            match hit {
                Some((at, Some(rest))) => {
                    found = Some((at, rest, reverse));
                    break;
                }
                Some((at, None)) => gaps[usize::from(reverse)] = Some(at),
                None => {}
            }
        }
        let Some((at, rest, reverse)) = found else {
            return Err(self.ask_inside(gaps, position));
        };
        let node = self.nodes.get(at);
        let Some(pack) = node.pack() else {
            let range = range(node.no, node.end());
            return Err(Part::Page { range, reverse: false, limit: 1, least: 1 });
        };
        let rest = usize::try_from(rest).unwrap_or(0);
        let offset = if reverse { pack.count().saturating_sub(rest + 1) } else { rest };
        Ok(Some(ListPlace { at, offset }))
    }

    /// Returns a request that leads to a position between the first gap and the last one.
    fn ask_inside(&self, gaps: [Option<At>; 2], position: u64) -> Part {
        let [Some(first), Some(last)] = gaps else { return Part::All };
        let before = self.nodes.count_before(first).unwrap_or(0);
        let after = self.nodes.count_after(last).unwrap_or(0);
        let from_front = position.saturating_sub(before) + 1;
        let from_back = (self.len - position).saturating_sub(after);
        let reverse = from_back < from_front;
        let gap = if reverse { last } else { first };
        let distance = from_back.min(from_front);
        if distance <= NEAR {
            return self.ask(gap, reverse, distance, 0);
        }
        let node = self.nodes.get(gap);
        Part::Index { range: range(node.no, node.end()), by: IndexBy::Values }
    }

    /// Returns the element at a position.
    pub fn get(&self, position: u64) -> Result<Option<&[u8]>, Part> {
        Ok(self.seek(position)?.and_then(|place| self.at(place)))
    }

    /// Returns the element at a place found before.
    pub fn at(&self, place: ListPlace) -> Option<&[u8]> {
        self.nodes.get(place.at).pack()?.get(place.offset)
    }

    /// Returns the first or the last element, if it is in memory (see [`List::require_end`]).
    pub fn peek_end(&self, front: bool) -> Option<&[u8]> {
        let pack = self.nodes.get(self.end(!front)?).pack()?;
        if front { pack.iter().next() } else { pack.iter().next_back() }
    }

    /// Returns the elements from a position to the end, forward or backward; each may be missing
    /// from memory.
    pub fn iter_from(&self, position: u64, reverse: bool) -> Result<Iter<'_>, Part> {
        let left = if reverse { position + 1 } else { self.len.saturating_sub(position) };
        let Some(place) = self.seek(position)? else { return Ok(Iter::empty(self)) };
        let Some(pack) = self.nodes.get(place.at).pack() else { return Ok(Iter::empty(self)) };
        let elements =
            if reverse { pack.iter_to(place.offset + 1) } else { pack.iter_from(place.offset) };
        Ok(Iter { list: self, at: Some(place.at), elements, reverse, left, passed: 0 })
    }

    /// Returns `count` elements from a position on, all of which are in memory.
    pub fn range(
        &self,
        position: u64,
        count: u64,
        reverse: bool,
    ) -> Result<impl Iterator<Item = &[u8]>, Part> {
        if count >= self.len && count > NODE_GUESS {
            self.require_all()?;
        }
        let mut iter =
            if count == 0 { Iter::empty(self) } else { self.iter_from(position, reverse)? };
        iter.left = iter.left.min(count);
        iter.require()?;
        Ok(iter.map_while(Result::ok))
    }

    /// Returns the position of the first element from the front that equals a given one.
    pub fn find(&self, element: &[u8]) -> Result<Option<ListPlace>, Part> {
        let (mut at, mut passed) = (self.nodes.first(), 0);
        while let Some(here) = at {
            let Some(pack) = self.nodes.get(here).pack() else {
                return Err(self.ask(here, false, self.len, passed));
            };
            if let Some(offset) = pack.iter().position(|e| e == element) {
                return Ok(Some(ListPlace { at: here, offset }));
            }
            passed += 1;
            at = self.nodes.next(here);
        }
        Ok(None)
    }

    /// Finds up to `most` elements that equal a given one, searching from an end.
    pub fn matches(&self, element: &[u8], most: u64, reverse: bool) -> Result<Matches, Part> {
        let mut matches = Matches { nodes: Vec::new(), reverse };
        let (mut at, mut passed, mut left) = (self.end(reverse), 0, most);
        while let Some(here) = at.filter(|_| left > 0) {
            let node = self.nodes.get(here);
            let Some(pack) = node.pack() else {
                return Err(self.ask(here, reverse, self.len, passed));
            };
            let count = pack.iter().filter(|e| *e == element).count();
            let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
            if count > 0 {
                matches.nodes.push((node.no, count));
            }
            left -= count as u64;
            passed += 1;
            at = self.step(here, reverse);
        }
        Ok(matches)
    }
}

/// Returns the element keys from one number to before another.
fn range(from: u64, to: u64) -> ElementRange {
    ElementRange { from: from.to_be_bytes().to_vec(), to: Some(to.to_be_bytes().to_vec()) }
}

/// Iterator over elements; see [`List::iter_from`].
#[derive(Debug)]
pub struct Iter<'a> {
    list: &'a List,
    at: Option<At>,
    elements: PackElements<'a>,
    reverse: bool,
    left: u64,
    passed: usize,
}

impl<'a> Iter<'a> {
    fn empty(list: &'a List) -> Self {
        let elements = PackElements::default();
        Self { list, at: None, elements, reverse: false, left: 0, passed: 0 }
    }

    /// Checks that all remaining elements are in memory.
    fn require(&self) -> Result<(), Part> {
        let mut left = self.left.saturating_sub(self.elements.count() as u64);
        let (mut at, mut passed) = (self.at, 0);
        if self.list.unloaded == 0 {
            return Ok(());
        }
        while let Some(here) = at.and_then(|at| self.list.step(at, self.reverse))
            && left > 0
        {
            let Some(pack) = self.list.nodes.get(here).pack() else {
                return Err(self.list.ask(here, self.reverse, left, PAGE_NODES.max(passed)));
            };
            left = left.saturating_sub(pack.count() as u64);
            passed += 1;
            at = Some(here);
        }
        Ok(())
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Result<&'a [u8], Part>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        loop {
            let element =
                if self.reverse { self.elements.next_back() } else { self.elements.next() };
            if let Some(element) = element {
                self.left -= 1;
                return Some(Ok(element));
            }
            self.passed += 1;
            let at = self.list.step(self.at?, self.reverse)?;
            self.at = Some(at);
            match self.list.nodes.get(at).pack() {
                Some(pack) => self.elements = pack.iter(),
                None => {
                    return Some(Err(self.list.ask(at, self.reverse, self.left, self.passed)));
                }
            }
        }
    }
}
