//! Trimming a stream from its front.

use super::node::EntryNode;
use super::{NodeLimits, Stream, StreamId};
use crate::need::{IndexBy, Part};
use std::collections::BTreeSet;

/// Limit on the entries that remain.
#[derive(Clone, Copy, Debug)]
pub enum Threshold {
    /// At most so many entries.
    MaxLen(u64),
    /// No entries with lesser ids.
    MinId(StreamId),
}

/// Arguments of a trim.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    pub to: Threshold,
    /// True if only whole nodes are removed.
    pub approximate: bool,
    /// Maximum number of entries to remove; 0: no limit.
    pub limit: u64,
}

/// An entry that will be appended before the stream is trimmed.
#[derive(Clone, Copy, Debug)]
pub struct Added {
    id: StreamId,
    begins_node: bool,
}

/// Entries to remove; see [`Stream::plan_trim`].
#[derive(Debug)]
pub struct TrimPlan {
    /// The first node that remains; `None`: none does.
    end: Option<StreamId>,
    nodes: u64,
    /// Number of entries to remove from that node.
    front: u64,
    deleted: u64,
    /// Id of the first entry after the trim.
    first: StreamId,
}

impl TrimPlan {
    /// Returns the number of entries to remove.
    pub fn deleted(&self) -> u64 {
        self.deleted
    }
}

/// Nodes that are not in memory, with their numbers of entries, in a range from which tens of
/// thousands of entries are to be removed.
#[derive(Clone, Debug)]
pub(super) struct Cold {
    from: StreamId,
    to: Option<StreamId>,
    nodes: Vec<(StreamId, u64)>,
}

impl Cold {
    /// Creates the counts of the nodes from an id to before another (`None`: to the last).
    pub(super) fn new(from: StreamId, to: Option<StreamId>, nodes: Vec<(StreamId, u64)>) -> Self {
        Self { from, to, nodes }
    }

    pub(super) fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<(StreamId, u64)>()
    }

    fn covers(&self, id: StreamId) -> bool {
        self.from <= id && self.to.is_none_or(|to| id < to)
    }

    /// Returns true if it has all that another one has.
    pub(super) fn replaces(&self, other: &Self) -> bool {
        let reaches = self.to.is_none_or(|to| other.to.is_some_and(|other| other <= to));
        self.from <= other.from && reaches
    }

    /// Returns the first node from an id on before another, and the id with which the next one
    /// begins.
    fn next(
        &self,
        from: StreamId,
        to: Option<StreamId>,
    ) -> Option<(StreamId, u64, Option<StreamId>)> {
        let at = self.nodes.partition_point(|(first, _)| *first < from);
        let (first, count) = *self.nodes.get(at)?;
        let behind = self.nodes.get(at + 1).map(|(first, _)| *first);
        to.is_none_or(|to| first < to).then_some((first, count, behind))
    }

    /// Takes the nodes before an id (`None`: all).
    fn take_before(&mut self, end: Option<StreamId>) -> impl Iterator<Item = StreamId> + '_ {
        let is_before = |(first, _): &(StreamId, u64)| end.is_none_or(|end| *first < end);
        let count = self.nodes.partition_point(is_before);
        self.nodes.drain(..count).map(|(first, _)| first)
    }
}

/// Number of entries to remove from which on nodes that are not in memory are counted, not read.
const READ_MAX: u64 = 16_384;

/// A node as it will be at the time of the trim.
struct View<'a> {
    first: StreamId,
    count: u64,
    /// `None`: the node is not in memory, or does not exist yet.
    node: Option<&'a EntryNode>,
    /// Id of an entry that is added to it.
    added: Option<StreamId>,
    /// True if it is not in memory, and all ids below its successor's are below the threshold.
    followed: bool,
}

impl View<'_> {
    fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.node.into_iter().flat_map(EntryNode::iter).map(|entry| entry.id).chain(self.added)
    }

    fn is_cold(&self) -> bool {
        self.node.is_none() && self.added.is_none()
    }

    /// Returns true if all its entries are below an id.
    fn is_below(&self, least: StreamId) -> bool {
        match self.added.or(self.node.map(EntryNode::last)) {
            Some(last) => last < least,
            None => self.followed,
        }
    }
}

impl Stream {
    /// Returns an entry with `bytes` of names and values that will be appended.
    pub fn added(&self, id: StreamId, bytes: usize, limits: NodeLimits) -> Added {
        Added { id, begins_node: self.begins_node(bytes, limits) }
    }

    /// Returns the first node from an id on as it will be with an entry appended; `left` entries
    /// may still be removed.
    fn view(
        &self,
        mut from: StreamId,
        added: Option<Added>,
        left: u64,
        to: Threshold,
    ) -> Result<Option<View<'_>>, Part> {
        loop {
            let part = match self.nodes.rows(from, None, false).next() {
                Some(Ok((first, node))) => return Ok(Some(self.view_of(*first, node, added))),
                Some(Err(part)) => part,
                None => {
                    let own = added.filter(|added| added.begins_node && added.id >= from);
                    return Ok(own.map(|Added { id, .. }| View {
                        first: id,
                        count: 1,
                        node: None,
                        added: Some(id),
                        followed: false,
                    }));
                }
            };
            let Part::Page { range, .. } = &part else { return Err(part) };
            let Some((gap, end)) = self.nodes.keys_of(range) else { return Err(part) };
            let Some(cold) = self.cold.iter().find(|cold| cold.covers(gap)) else {
                let count = (left > READ_MAX).then(|| self.count_part(gap, to)).flatten();
                return Err(count.unwrap_or(part));
            };
            if let Some((first, count, behind)) = cold.next(gap, end) {
                let followed = match to {
                    Threshold::MinId(least) => behind.is_some_and(|behind| behind <= least),
                    Threshold::MaxLen(_) => false,
                };
                return Ok(Some(View { first, count, node: None, added: None, followed }));
            }
            match (end, cold.to) {
                (Some(end), Some(counted)) => from = end.min(counted),
                (end, counted) => match end.or(counted) {
                    Some(end) => from = end,
                    None => return Ok(None),
                },
            }
        }
    }

    fn view_of<'a>(
        &'a self,
        first: StreamId,
        node: &'a EntryNode,
        added: Option<Added>,
    ) -> View<'a> {
        let is_last = || self.nodes.last_in_memory().is_some_and(|(last, _)| *last == first);
        let added = added.filter(|added| !added.begins_node && is_last()).map(|added| added.id);
        let count = node.count() + u64::from(added.is_some());
        View { first, count, node: Some(node), added, followed: false }
    }

    /// Returns a request for the counts of the nodes from an id on that may be removed.
    fn count_part(&self, from: StreamId, threshold: Threshold) -> Option<Part> {
        let to = match threshold {
            Threshold::MinId(least) => Some(least),
            Threshold::MaxLen(_) => None,
        };
        let range = to.is_none_or(|to| from < to).then(|| self.nodes.range_of(&from, to.as_ref()));
        range.map(|range| Part::Index { range, by: IndexBy::Values })
    }

    /// Finds the entries that a trim deletes, if an entry is appended before.
    pub fn plan_trim(&self, trim: &Trim, added: Option<Added>) -> Result<TrimPlan, Part> {
        let mut len = self.len + u64::from(added.is_some());
        let start = self.nodes.low().copied().or(added.map(|added| added.id));
        let first = if self.len > 0 { Some(self.first_id) } else { added.map(|added| added.id) };
        let first = first.unwrap_or_default();
        let mut plan = TrimPlan { end: start, nodes: 0, front: 0, deleted: 0, first };
        let is_done = match trim.to {
            Threshold::MaxLen(most) => len <= most,
            Threshold::MinId(least) => first >= least,
        };
        if is_done || len == 0 {
            return Ok(plan);
        }
        let mut from = Some(StreamId::MIN);
        while let Some(at) = from
            && let Some(view) = self.view(at, added, trim.left(len, plan.deleted), trim.to)?
        {
            let whole = match trim.to {
                Threshold::MaxLen(most) => len.saturating_sub(view.count) >= most,
                Threshold::MinId(least) => view.is_below(least),
            };
            let is_limited = trim.limit > 0 && plan.deleted + view.count > trim.limit;
            let is_done = matches!(trim.to, Threshold::MaxLen(most) if len <= most);
            if view.is_cold() && (is_limited || is_done || !whole) {
                // The node at the end of the trim is read.
                self.nodes.get(&view.first)?;
            }
            plan.end = Some(view.first);
            plan.first = view.ids().next().unwrap_or_default();
            if is_limited || is_done {
                return Ok(plan);
            }
            if !whole {
                if !trim.approximate {
                    plan.take_front(&view, len, trim.to);
                }
                if plan.front < view.count {
                    return Ok(plan);
                }
                // Only entries deleted earlier are behind it.
                plan.deleted -= std::mem::take(&mut plan.front);
            }
            plan.nodes += 1;
            plan.deleted += view.count;
            len -= view.count;
            from = view.first.next();
        }
        Ok(TrimPlan { end: None, first: StreamId::MIN, ..plan })
    }

    /// Deletes the entries found by [`Stream::plan_trim`].
    pub fn trim(&mut self, plan: &TrimPlan) {
        self.len -= plan.deleted;
        self.first_id = plan.first;
        if plan.nodes > 0 {
            let mean = self.nodes.whole_bytes() / self.node_count.max(1);
            self.node_count -= plan.nodes;
            let cold = self.cold.iter_mut().flat_map(|cold| cold.take_before(plan.end));
            let unread: BTreeSet<_> = cold.collect();
            self.nodes.remove_before(plan.end.as_ref(), unread.into_iter(), mean);
        }
        if let Some(key) = plan.end.filter(|_| plan.front > 0) {
            let mut left = plan.front;
            self.nodes.update(&key, |node| {
                node.delete(|_| {
                    let goes = left > 0;
                    left = left.saturating_sub(1);
                    goes
                })
            });
        }
        self.drop_rows();
    }
}

impl Trim {
    /// Returns how many more entries may be removed, of `len`, after `deleted` ones.
    fn left(&self, len: u64, deleted: u64) -> u64 {
        let most = match self.to {
            Threshold::MaxLen(most) => len.saturating_sub(most),
            Threshold::MinId(_) => len,
        };
        if self.limit > 0 { most.min(self.limit.saturating_sub(deleted)) } else { most }
    }
}

impl TrimPlan {
    /// Removes entries from the front of a node that partly remains.
    fn take_front(&mut self, view: &View<'_>, len: u64, to: Threshold) {
        self.front = match to {
            Threshold::MaxLen(most) => len.saturating_sub(most),
            Threshold::MinId(least) => view.ids().take_while(|id| *id < least).count() as u64,
        };
        self.deleted += self.front;
        let front = usize::try_from(self.front).unwrap_or(usize::MAX);
        self.first = view.ids().nth(front).unwrap_or_default();
    }
}
