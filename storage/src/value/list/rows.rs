//! Element rows of lists, and which of them are in memory.

use super::super::collection::{Collection, PACKED_ALWAYS};
use super::super::pack::Pack;
use super::{List, ListNode, NodeState};
use crate::encoding::ElementRows;
use crate::need::{ElementRange, IndexPiece, Page, Part};
use crate::value::meta::{self, encode_list};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;

/// Returns the least number whose element key is not less than `key`.
fn number(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let n = key.len().min(8);
    bytes[..n].copy_from_slice(&key[..n]);
    u64::from_be_bytes(bytes).saturating_add(u64::from(key.len() > 8))
}

/// Returns the numbers of a range: the first one, and the one behind the last.
fn numbers(range: &ElementRange) -> (u64, u64) {
    (number(&range.from), range.to.as_deref().map_or(u64::MAX, number))
}

fn read_row((element, row): &(Bytes, Bytes)) -> Result<(u64, NodeState)> {
    let no = u64::from_be_bytes(element[..].try_into().context("a node has no number")?);
    let pack = Pack::decode(row).context("a node is damaged")?;
    Ok((no, NodeState::Loaded(pack)))
}

impl List {
    /// Applies all existing nodes with numbers in a range, ascending. Nodes already in memory are
    /// newer and stay.
    fn apply_loaded(
        &mut self,
        (from, to): (u64, u64),
        found: impl Iterator<Item = Result<(u64, NodeState)>>,
    ) -> Result<()> {
        let mut found = found.peekable();
        let first = self.nodes.last_where(from, |node| node.no <= from);
        let mut at = first.or_else(|| self.nodes.first());
        while let Some(here) = at {
            let (no, end) = (self.nodes.get(here).no, self.nodes.get(here).end());
            if no >= to {
                break;
            }
            at = self.nodes.next(here);
            if end <= from || self.nodes.get(here).pack().is_some() {
                continue;
            }
            // Earlier rows were removed since, or are in memory.
            while found.next_if(|row| row.as_ref().is_ok_and(|(row, _)| *row < no)).is_some() {}
            let mut here_found = Vec::new();
            while let Some(row) = found.next_if(|row| !matches!(row, Ok((row, _)) if *row >= end)) {
                here_found.push(row?);
            }
            if matches!(self.nodes.get(here).kind, NodeState::Cold { .. }) {
                let (_, kind) = here_found.pop().context("a node of a list is missing")?;
                self.load(here, kind)?;
                continue;
            }
            at = self.fill_gap(here, (from, to), here_found);
        }
        let complete = self.nodes.uncounted() == 0;
        let counted = || self.nodes.last().and_then(|last| self.nodes.count_before(last));
        let last = || self.nodes.last().and_then(|last| self.count_of(last));
        ensure!(
            !complete
                || counted().zip(last()).map_or(0, |(before, last)| before + last) == self.len,
            "the nodes of a list do not have its elements"
        );
        Ok(())
    }

    fn count_of(&self, at: super::At) -> Option<u64> {
        super::SequencePiece::count(self.nodes.get(at))
    }

    /// Applies a node whose count is known.
    fn load(&mut self, at: super::At, kind: NodeState) -> Result<()> {
        let NodeState::Loaded(pack) = kind else { return Ok(()) };
        ensure!(self.count_of(at) == Some(pack.count() as u64), "a node of a list has changed");
        self.bytes += pack.bytes();
        self.unloaded -= 1;
        self.nodes.update(at, |node| node.kind = NodeState::Loaded(pack));
        Ok(())
    }

    /// Fills a gap with the nodes that were found, as far as the range goes. Returns the piece
    /// behind it.
    fn fill_gap(
        &mut self,
        at: super::At,
        (from, to): (u64, u64),
        found: Vec<(u64, NodeState)>,
    ) -> Option<super::At> {
        let (gap, mut next) = self.nodes.remove(at);
        self.unloaded -= 1;
        let end = gap.end();
        let rest = |from, to| (from < to).then(|| ListNode::new(from, NodeState::Gap { end: to }));
        let before = rest(gap.no, from);
        let nodes = found.into_iter().map(|(no, kind)| ListNode::new(no, kind));
        for node in before.into_iter().chain(nodes).chain(rest(to, end)) {
            match node.pack() {
                Some(pack) => self.bytes += pack.bytes(),
                None => self.unloaded += 1,
            }
            let inserted = self.nodes.insert(next, node);
            next = self.nodes.next(inserted);
        }
        next
    }
}

/// Maximum number of nodes in memory that counts as hardly any.
const FEW: usize = 16;

impl Collection for List {
    fn type_name(&self) -> &'static str {
        "list"
    }

    fn encoding(&self) -> &'static str {
        if self.quicklist { "quicklist" } else { "listpack" }
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn memory(&self) -> usize {
        // Sequences are a quarter empty on average.
        let node = size_of::<ListNode>() * 4 / 3;
        size_of::<Self>() + self.nodes.len() * node + self.bytes + self.dirty.capacity() * 8
    }

    fn require_whole(&self) -> Result<(), Part> {
        self.require_all()
    }

    fn is_too_big(&self) -> bool {
        self.bytes > PACKED_ALWAYS
    }

    fn unpack(&mut self, version: u64) {
        self.version = version;
        let mut at = self.nodes.first();
        while let Some(here) = at {
            let no = self.nodes.update(here, |node| {
                node.dirty = true;
                node.no
            });
            self.dirty.push(no);
            at = self.nodes.next(here);
        }
    }

    fn detach(&mut self) {
        self.seal_with(|_, _| ());
        self.version = 0;
    }

    fn seal(&mut self, rows: &mut ElementRows<'_>) {
        let mut value = Vec::new();
        self.seal_with(|no, node| match node {
            Some(ListNode { full: true, kind: NodeState::Loaded(pack), .. }) => {
                rows.put_shared(&no.to_be_bytes(), pack.share(), false);
            }
            Some(node) => {
                value.clear();
                node.pack().into_iter().for_each(|pack| pack.encode(&mut value));
                rows.put(&no.to_be_bytes(), &value, false);
            }
            None => rows.delete(&no.to_be_bytes()),
        });
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_list(out, self);
    }

    fn kind(&self) -> (u8, u8) {
        (meta::TYPE_LIST, if self.quicklist { meta::TABLE } else { 0 })
    }

    fn apply_all(&mut self, rows: Vec<(Bytes, Bytes)>) -> Result<()> {
        self.apply_loaded((0, u64::MAX), rows.iter().map(read_row))
    }

    fn apply_page(&mut self, page: Page) -> Result<()> {
        self.pages = self.pages.saturating_add(1);
        self.apply_loaded(numbers(&page.range), page.rows.iter().map(read_row))
    }

    fn apply_index(&mut self, range: &ElementRange, pieces: Vec<IndexPiece>) -> Result<()> {
        let node = |(element, count): IndexPiece| Ok((number(&element), NodeState::Cold { count }));
        self.apply_loaded(numbers(range), pieces.into_iter().map(node))
    }

    fn has_few_in_memory(&self) -> bool {
        self.nodes.len() - self.unloaded <= FEW
    }

    fn shed(&mut self, steps: usize) {
        if self.version == 0 {
            return;
        }
        let hand = self.hand;
        let mut at = self.nodes.last_where(hand, |node| node.no <= hand).or(self.nodes.first());
        for _ in 0..steps.min(self.nodes.len()) {
            let Some(here) = at else { break };
            at = self.nodes.next(here).or(self.nodes.first());
            let node = self.nodes.get(here);
            let is_end = self.nodes.first() == Some(here) || self.nodes.last() == Some(here);
            if let Some(pack) = node.pack().filter(|_| !is_end && !node.dirty) {
                self.bytes -= pack.bytes();
                self.unloaded += 1;
                let count = pack.count() as u64;
                self.nodes.update(here, |node| node.kind = NodeState::Cold { count });
            }
        }
        self.hand = at.map_or(0, |at| self.nodes.get(at).no);
    }
}

impl List {
    /// Calls `row` for each node that changed or was removed, and marks it as journaled.
    fn seal_with(&mut self, mut row: impl FnMut(u64, Option<&mut ListNode>)) {
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.sort_unstable();
        dirty.dedup();
        for no in dirty.drain(..) {
            let at = self.nodes.last_where(no, |node| node.no <= no);
            let Some(at) = at.filter(|at| self.nodes.get(*at).no == no) else {
                row(no, None);
                continue;
            };
            self.nodes.update(at, |node| {
                row(no, Some(node));
                (node.dirty, node.full) = (false, false);
            });
        }
        dirty.shrink_to(16);
        self.dirty = dirty;
    }
}
