//! Streams: packed into the meta row while small, a row per node of entries when big.
//!
//! A stream may exist without entries: it has a last id, and may have consumer groups.

mod group;
mod id;
mod node;
mod paged;
mod pending;
mod rows;
#[cfg(test)]
mod tests;
mod trim;

use crate::need::Part;
pub use group::{Consumer, ConsumerNo, Delivered, Group, Groups};
pub use id::StreamId;
use node::EntryNode;
pub use node::{Fields, Names, NodeEntries, NodeLimits, StreamEntry};
use paged::{Paged, PagedRow, PagedRows};
pub use pending::PendingEntry;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering};
use trim::Cold;
pub use trim::{Added, Threshold, Trim, TrimPlan};

/// Nodes read in a row from which on the next one is read ahead.
const RUN: usize = 3;

/// Prefixes of the keys of element rows.
pub(super) mod prefix {
    pub(in crate::value) const NODES: u8 = 0;
    pub(in crate::value) const GROUPS: u8 = 1;
    /// Names of consumers.
    pub(in crate::value) const NAMES: u8 = 2;
    pub(in crate::value) const CONSUMERS: u8 = 3;
    /// Nodes of pending entries.
    pub(in crate::value) const PENDING: u8 = 4;
}

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Stream {
    nodes: Paged<StreamId, EntryNode>,
    /// Number of nodes, in memory or not.
    node_count: u64,
    /// Number of entries.
    len: u64,
    /// The id of the first entry; [`StreamId::MIN`] if there is none.
    first_id: StreamId,
    /// The greatest id ever given.
    last_id: StreamId,
    max_deleted_id: StreamId,
    /// Number of entries ever added.
    entries_added: u64,
    /// No node that is not in memory has an entry with a greater id.
    last_unread: StreamId,
    groups: Groups,
    /// Counts of nodes for the trims of a unit; dropped when nodes leave memory, which may have
    /// changed.
    cold: Vec<Cold>,
    /// 0 while packed into the meta row.
    version: u64,
    instance: Instance,
}

/// The number of a value in memory, which no other one of the process has had: a copy has one of its own.
#[derive(Debug)]
struct Instance(u64);

impl Default for Instance {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Clone for Instance {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            nodes: Paged::new(&[prefix::NODES]),
            node_count: 0,
            len: 0,
            first_id: StreamId::MIN,
            last_id: StreamId::MIN,
            max_deleted_id: StreamId::MIN,
            entries_added: 0,
            last_unread: StreamId::MIN,
            groups: Groups::default(),
            cold: Vec::new(),
            version: 0,
            instance: Instance::default(),
        }
    }
}

/// Properties of a stream beside its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// The greatest id ever given.
    pub last_id: StreamId,
    /// The greatest id of an entry deleted by its id.
    pub max_deleted_id: StreamId,
    /// Number of entries ever added.
    pub entries_added: u64,
}

/// A node of a stream.
#[derive(Debug)]
pub struct StreamNode<'a> {
    /// Lower bound of the entries' ids.
    pub first: StreamId,
    /// The names that entries may share.
    pub names: Names<'a>,
    pub entries: NodeEntries<'a>,
}

/// Entries to delete, and the first entry that remains; see [`Stream::plan_delete`].
#[derive(Debug)]
pub struct DeletePlan {
    ids: Vec<StreamId>,
    first: StreamId,
}

impl DeletePlan {
    /// Returns the number of entries to delete.
    pub fn count(&self) -> u64 {
        self.ids.len() as u64
    }
}

impl Stream {
    /// Creates a stream without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the id of the first entry; [`StreamId::MIN`] if there is none.
    pub fn first_id(&self) -> StreamId {
        self.first_id
    }

    /// Returns the greatest id ever given.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// Returns the greatest id of an entry deleted by its id.
    pub fn max_deleted_id(&self) -> StreamId {
        self.max_deleted_id
    }

    /// Returns the number of entries ever added.
    pub fn entries_added(&self) -> u64 {
        self.entries_added
    }

    /// Returns the number of nodes.
    pub fn node_count(&self) -> u64 {
        self.node_count
    }

    /// Returns a number that differs from that of each stream which was in its place before, also of one
    /// with the same entries. One that is read from disk again has another one.
    pub fn instance(&self) -> u64 {
        self.instance.0
    }

    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    pub fn groups_mut(&mut self) -> &mut Groups {
        &mut self.groups
    }

    // ---- reading -----------------------------------------------------------------------------

    /// Returns the nodes that may have entries from one id to another.
    fn nodes_in(
        &self,
        from: StreamId,
        to: StreamId,
        reverse: bool,
    ) -> Result<PagedRows<'_, StreamId, EntryNode>, Part> {
        let start = match self.nodes.floor(&from.min(self.last_id)) {
            _ if from <= self.first_id => StreamId::MIN,
            Ok(node) => node.map_or(StreamId::MIN, |(key, _)| *key),
            // A gap may end between the first id of a node in it and the node's entries: that the id
            // is in no gap does not tell that its entry is in memory.
            Err(_) if from > self.last_unread.min(self.last_id) => from,
            Err(part) => return Err(part),
        };
        // An empty range if it has no entries.
        let is_empty = from > to || from > self.last_id || to < self.first_id || self.len == 0;
        let end = if is_empty { Some(start) } else { to.next() };
        Ok(self.nodes.rows(start, end, reverse))
    }

    /// Checks that the first `count` entries of a range of ids (both ends included), or `reverse`
    /// the last ones, are in memory.
    pub fn require(
        &self,
        from: StreamId,
        to: StreamId,
        count: u64,
        reverse: bool,
    ) -> Result<(), Part> {
        if count == 0 || self.nodes.is_whole() {
            return Ok(());
        }
        let mut found = 0;
        for row in self.nodes_in(from, to, reverse)? {
            let (first, node) = row?;
            found += if *first >= from && node.last() <= to {
                node.count()
            } else {
                node.iter().filter(|entry| (from..=to).contains(&entry.id)).count() as u64
            };
            if found >= count {
                break;
            }
        }
        Ok(())
    }

    /// Returns the entries of a range of ids (both ends included), forward or backward; each may be
    /// missing from memory.
    pub fn entries(
        &self,
        from: StreamId,
        to: StreamId,
        reverse: bool,
    ) -> Result<StreamEntries<'_>, Part> {
        let nodes = self.nodes_in(from, to, reverse)?;
        Ok(StreamEntries { nodes, from, to, reverse, here: SmallVec::new() })
    }

    /// Returns the first `count` entries of a range of ids, or `reverse` the last ones, all of
    /// which are in memory.
    pub fn range(
        &self,
        from: StreamId,
        to: StreamId,
        count: u64,
        reverse: bool,
    ) -> Result<impl Iterator<Item = StreamEntry<'_>>, Part> {
        self.require(from, to, count, reverse)?;
        let entries = self.entries(from, to, reverse)?;
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(entries.map_while(Result::ok).take(count))
    }

    /// Returns the entry of an id.
    pub fn get(&self, id: StreamId) -> Result<Option<StreamEntry<'_>>, Part> {
        self.get_behind(None, id)
    }

    /// Returns the entry of an id after that of `before` was read: the more nodes in a row were
    /// read, the more of the next ones are read at once.
    pub fn get_behind(
        &self,
        before: Option<StreamId>,
        id: StreamId,
    ) -> Result<Option<StreamEntry<'_>>, Part> {
        if id < self.first_id || id > self.last_id || self.len == 0 {
            return Ok(None);
        }
        let find = |node| EntryNode::get(node, id);
        let near = self.nodes.floor_in_memory(&id);
        // The rows behind the node that has it do not matter.
        if let Some(entry) = near.and_then(|(_, node)| find(node)) {
            return Ok(Some(entry));
        }
        match self.nodes.floor(&id) {
            Ok(row) => Ok(row.and_then(|(_, node)| find(node))),
            Err(part) => {
                let ahead = near.and_then(|near| self.read_ahead(near, before, id));
                Err(ahead.unwrap_or(part))
            }
        }
    }

    /// Returns the part to read to find an id behind a node, if it is likely to be next to it.
    fn read_ahead(
        &self,
        (key, node): (&StreamId, &EntryNode),
        before: Option<StreamId>,
        id: StreamId,
    ) -> Option<Part> {
        let covers = |id: StreamId| (*key..=node.last()).contains(&id);
        let run = if before.is_some_and(covers) { self.nodes.run_up_to(key) } else { 0 };
        (covers(id) || run >= RUN).then(|| self.nodes.part_behind(key, run)).flatten()
    }

    /// Returns the first entry, or `last` the last one.
    pub fn end(&self, last: bool) -> Result<Option<StreamEntry<'_>>, Part> {
        self.entries(StreamId::MIN, StreamId::MAX, last)?.next().transpose()
    }

    /// Returns the nodes, all of which must be in memory.
    pub fn nodes(&self) -> Result<impl Iterator<Item = StreamNode<'_>>, Part> {
        self.nodes.require_whole()?;
        Ok(self.nodes.in_memory().map(|(first, node)| StreamNode {
            first: *first,
            names: node.names(),
            entries: node.iter(),
        }))
    }

    // ---- changing ----------------------------------------------------------------------------

    /// Returns true if an entry with `bytes` of names and values begins a new node when it is
    /// appended. It does if the last node is not in memory.
    fn begins_node(&self, bytes: usize, limits: NodeLimits) -> bool {
        let last = self.nodes.last_in_memory();
        last.is_none_or(|(_, node)| !node.has_room(bytes, limits))
    }

    /// Appends an entry with an id greater than the last one. Nothing need be in memory.
    pub fn append<'a>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
        limits: NodeLimits,
    ) {
        let bytes = fields.clone().map(|(name, value)| name.len() + value.len()).sum();
        let last = self.nodes.last_in_memory().map(|(key, _)| *key);
        if self.begins_node(bytes, limits) {
            if let Some(last) = last.filter(|_| self.version == 0) {
                // The node does not grow any more.
                self.nodes.update(&last, EntryNode::shrink);
            }
            let mut node = EntryNode::new(id, fields.clone().map(|(name, _)| name));
            node.push(id, fields);
            self.nodes.insert(id, node);
            self.node_count += 1;
        } else if let Some(last) = last {
            self.nodes.update(&last, |node| node.push(id, fields));
        }
        if self.len == 0 {
            self.first_id = id;
        }
        self.len += 1;
        self.last_id = id;
        // A RESTORE payload may hold any number.
        self.entries_added = self.entries_added.wrapping_add(1);
    }

    /// Returns the properties beside the entries.
    pub fn head(&self) -> StreamHead {
        let Self { last_id, max_deleted_id, entries_added, .. } = *self;
        StreamHead { last_id, max_deleted_id, entries_added }
    }

    /// Sets the properties beside the entries. No entry may have a greater id than the last id.
    pub fn set_head(&mut self, head: StreamHead) {
        self.last_id = head.last_id;
        self.max_deleted_id = head.max_deleted_id;
        self.entries_added = head.entries_added;
    }

    /// Appends a node of entries, some of which are deleted, as another server has packed it. The
    /// ids of the others must be greater than those of all entries. Returns its bytes in memory.
    pub fn push_node<'a, F>(
        &mut self,
        first: StreamId,
        names: impl ExactSizeIterator<Item = &'a [u8]>,
        entries: impl Iterator<Item = (StreamId, F, bool)>,
    ) -> usize
    where
        F: ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + Clone,
    {
        let mut node = EntryNode::new(first, names);
        for (id, fields, is_deleted) in entries {
            if is_deleted {
                node.skip_deleted(id, fields);
                continue;
            }
            node.push(id, fields);
            if self.len == 0 && node.count() == 1 {
                self.first_id = id;
            }
        }
        if node.count() == 0 {
            return 0;
        }
        node.shrink();
        let bytes = size_of::<StreamId>() + size_of::<EntryNode>() + node.heap();
        self.len += node.count();
        self.node_count += 1;
        self.nodes.insert(first, node);
        bytes
    }

    /// Finds which of some ids have entries.
    pub fn plan_delete(&self, ids: &[StreamId]) -> Result<DeletePlan, Part> {
        let mut found = Vec::with_capacity(ids.len());
        let mut before = None;
        for id in ids {
            if self.get_behind(before.replace(*id), *id)?.is_some() {
                found.push(*id);
            }
        }
        found.sort_unstable();
        found.dedup();
        let mut first = self.first_id;
        if found.first() == Some(&first) {
            let mut left = found.iter().peekable();
            first = StreamId::MIN;
            for entry in self.entries(self.first_id, StreamId::MAX, false)? {
                let id = entry?.id;
                if left.next_if(|gone| **gone == id).is_none() {
                    first = id;
                    break;
                }
            }
        }
        Ok(DeletePlan { ids: found, first })
    }

    /// Deletes the entries found by [`Stream::plan_delete`].
    pub fn delete(&mut self, plan: &DeletePlan) {
        let mut ids = &plan.ids[..];
        while let Some(id) = ids.first() {
            // Where [`Stream::get_behind`] has found it. Whether other rows follow before the id need
            // not be known.
            let Some((key, node)) = self.nodes.floor_in_memory(id) else {
                ids = &ids[1..];
                continue;
            };
            let (key, last) = (*key, node.last());
            let (here, rest) = ids.split_at(ids.partition_point(|id| *id <= last).max(1));
            let changed = self.nodes.update(&key, |node| {
                let deleted = node.delete(|id| here.binary_search(&id).is_ok());
                (deleted as usize, node.count())
            });
            let Some((deleted, left)) = changed else { return };
            // The node may have ended with a greater id than the next one begins with: XSETID
            // allows ids to be given again.
            ids = if deleted < here.len() { &ids[deleted.max(1)..] } else { rest };
            self.len -= deleted as u64;
            if left == 0 {
                self.nodes.remove(&key);
                self.node_count -= 1;
            }
        }
        self.first_id = plan.first;
        self.max_deleted_id = self.max_deleted_id.max(plan.ids.last().copied().unwrap_or_default());
        self.drop_rows();
    }

    /// Drops the rows of a stream without entries and groups: they are dead.
    fn drop_rows(&mut self) {
        if self.len == 0 && self.groups.is_empty() {
            self.nodes = Paged::new(&[prefix::NODES]);
            self.node_count = 0;
            self.cold.clear();
            self.groups.drop_rows();
            self.version = 0;
        }
    }
}

/// Iterator over entries; see [`Stream::entries`].
#[derive(Debug)]
pub struct StreamEntries<'a> {
    nodes: PagedRows<'a, StreamId, EntryNode>,
    from: StreamId,
    to: StreamId,
    reverse: bool,
    /// Entries of the present node, the next one last.
    here: SmallVec<[StreamEntry<'a>; 8]>,
}

impl<'a> Iterator for StreamEntries<'a> {
    type Item = Result<StreamEntry<'a>, Part>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.here.is_empty() {
            match self.nodes.next()? {
                Ok((_, node)) => {
                    let range = self.from..=self.to;
                    self.here.extend(node.iter().filter(|entry| range.contains(&entry.id)));
                    if !self.reverse {
                        self.here.reverse();
                    }
                }
                Err(part) => return Some(Err(part)),
            }
        }
        self.here.pop().map(Ok)
    }
}
