//! Trimming a stream from its front.

use super::node::Node;
use super::{NodeLimits, Stream, StreamId};
use crate::need::Part;

/// What a trim leaves.
#[derive(Clone, Copy, Debug)]
pub enum Threshold {
    /// So many entries.
    MaxLen(u64),
    /// No entries with lesser ids.
    MinId(StreamId),
}

/// How a stream is trimmed.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    pub to: Threshold,
    /// Only whole nodes go.
    pub approximate: bool,
    /// So many entries go at most; 0: any number.
    pub limit: u64,
}

/// An entry that will be appended before the stream is trimmed.
#[derive(Clone, Copy, Debug)]
pub struct Added {
    id: StreamId,
    begins_node: bool,
}

/// What goes; see [`Stream::plan_trim`].
#[derive(Debug)]
pub struct TrimPlan {
    /// The first node that stays; `None`: all go.
    end: Option<StreamId>,
    nodes: u64,
    /// Entries that go from the first node that stays.
    front: u64,
    deleted: u64,
    /// The first entry then.
    first: StreamId,
}

impl TrimPlan {
    /// Number of entries that go.
    pub fn deleted(&self) -> u64 {
        self.deleted
    }
}

/// A node as it will be when it is trimmed.
struct View<'a> {
    first: StreamId,
    last: StreamId,
    count: u64,
    node: Option<&'a Node>,
    added: Option<StreamId>,
}

impl View<'_> {
    fn ids(&self) -> impl Iterator<Item = StreamId> {
        self.node.into_iter().flat_map(Node::iter).map(|entry| entry.id).chain(self.added)
    }
}

impl Stream {
    /// An entry with `bytes` of names and values that is to be appended.
    pub fn added(&self, id: StreamId, bytes: usize, limits: NodeLimits) -> Added {
        Added { id, begins_node: self.begins_node(bytes, limits) }
    }

    /// The nodes as they will be with an entry appended.
    fn views(&self, added: Option<Added>) -> impl Iterator<Item = Result<View<'_>, Part>> {
        let last = self.nodes.last_in_memory().map(|(key, _)| *key);
        let joins = added.filter(|added| !added.begins_node).map(|added| added.id);
        let view = move |row: Result<(&StreamId, _), Part>| {
            let (first, node): (&StreamId, &Node) = row?;
            let added = joins.filter(|_| last == Some(*first));
            Ok(View {
                first: *first,
                last: added.unwrap_or(node.last()),
                count: node.count() + u64::from(added.is_some()),
                node: Some(node),
                added,
            })
        };
        let own = added.filter(|added| added.begins_node).map(|added| {
            let added = added.id;
            Ok(View { first: added, last: added, count: 1, node: None, added: Some(added) })
        });
        self.nodes.rows(StreamId::MIN, None, false).map(view).chain(own)
    }

    /// Finds what a trim deletes, if an entry is appended before.
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
        for view in self.views(added) {
            let view = view?;
            plan.end = Some(view.first);
            plan.first = view.ids().next().unwrap_or_default();
            let is_limited = trim.limit > 0 && plan.deleted + view.count > trim.limit;
            let whole = match trim.to {
                Threshold::MaxLen(most) => len.saturating_sub(view.count) >= most,
                Threshold::MinId(least) => view.last < least,
            };
            if is_limited || matches!(trim.to, Threshold::MaxLen(most) if len <= most) {
                return Ok(plan);
            }
            if !whole {
                if !trim.approximate {
                    plan.take_front(&view, len, trim.to);
                }
                if plan.front < view.count {
                    return Ok(plan);
                }
                // Only what was deleted before comes behind.
                plan.deleted -= std::mem::take(&mut plan.front);
            }
            plan.nodes += 1;
            plan.deleted += view.count;
            len -= view.count;
        }
        Ok(TrimPlan { end: None, first: StreamId::MIN, ..plan })
    }

    /// Deletes what [`Stream::plan_trim`] found.
    pub fn trim(&mut self, plan: &TrimPlan) {
        self.len -= plan.deleted;
        self.first_id = plan.first;
        if plan.nodes > 0 {
            self.node_count -= plan.nodes;
            self.nodes.remove_before(plan.end.as_ref(), std::iter::empty());
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
        self.let_go();
    }
}

impl TrimPlan {
    /// Takes entries from the front of a node of which not all go.
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
