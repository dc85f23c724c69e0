//! Reads groups, some of which may not be in memory.

use super::super::id::StreamId;
use super::super::pending::PendingEntry;
use super::rows::{ConsumerKey, NameKey, PendingKey};
use super::{Consumer, Group, GroupKey, Groups};
use crate::need::Part;
use std::collections::BTreeSet;

/// A consumer's number.
pub type ConsumerNo = u64;

/// Entries delivered to a consumer, in order of their ids.
pub type Delivered = Vec<PendingEntry>;

/// Ids of a walk that are collected before its result is allocated for more.
const SOME: usize = 64;

impl Groups {
    /// Returns the group with a name.
    pub fn group(&self, name: &[u8]) -> Result<Option<&Group>, Part> {
        if self.is_empty() {
            return Ok(None);
        }
        self.groups.get(&GroupKey::of(name))
    }

    /// Returns the groups with their names, ordered by name; each may be missing from memory.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&[u8], &Group), Part>> {
        let rows = self.groups.rows(GroupKey::of(b""), None, false);
        rows.map(|row| row.map(|(key, group)| (group.name.as_deref().unwrap_or(&key.0), group)))
    }

    /// Returns the consumer with a name in a group.
    pub fn consumer(
        &self,
        group: &Group,
        name: &[u8],
    ) -> Result<Option<(ConsumerNo, &Consumer)>, Part> {
        if group.consumers == 0 {
            return Ok(None);
        }
        let Some(number) = self.names.get(&NameKey::of(group.number, name))? else {
            return Ok(None);
        };
        let consumer = self.consumer_of(group, number.0)?;
        Ok(consumer.map(|consumer| (number.0, consumer)))
    }

    /// Returns the consumer with a number in a group.
    pub fn consumer_of(
        &self,
        group: &Group,
        number: ConsumerNo,
    ) -> Result<Option<&Consumer>, Part> {
        self.consumers.get(&ConsumerKey { group: group.number, number })
    }

    /// Returns the consumers of a group, in the order of their names.
    pub fn consumers(&self, group: &Group) -> Result<Vec<(ConsumerNo, &Consumer)>, Part> {
        let (number, next) = (group.number, group.number + 1);
        let rows = ConsumerKey::first_of(number)..ConsumerKey::first_of(next);
        for row in self.consumers.rows(rows.start, Some(rows.end), false) {
            row?;
        }
        let names = NameKey::first_of(number)..NameKey::first_of(next);
        let mut consumers = Vec::new();
        for row in self.names.rows(names.start, Some(names.end), false) {
            let (_, number) = row?;
            if let Some(consumer) = self.consumer_of(group, number.0)? {
                consumers.push((number.0, consumer));
            }
        }
        Ok(consumers)
    }

    // ---- pending entries ---------------------------------------------------------------------

    /// Returns the node of a group that would hold an id.
    pub(super) fn floor(&self, group: &Group, id: StreamId) -> Result<Option<PendingKey>, Part> {
        if id < group.low || group.low == StreamId::MAX {
            return Ok(None);
        }
        let from = PendingKey { group: group.number, base: group.low };
        let to = match id.next() {
            Some(base) => PendingKey { group: group.number, base },
            None => PendingKey::first_of(group.number + 1),
        };
        let row = self.pending.rows(from, Some(to), true).next().transpose()?;
        Ok(row.map(|(key, _)| *key))
    }

    /// Returns the pending entry with an id.
    pub fn pending_entry(&self, group: &Group, id: StreamId) -> Result<Option<PendingEntry>, Part> {
        let Some(key) = self.floor(group, id)? else { return Ok(None) };
        Ok(self.pending.get(&key)?.and_then(|node| node.get(key.base, id)))
    }

    /// Returns the pending entries of a group from an id on; each may be missing from memory.
    pub fn pending_from(
        &self,
        group: &Group,
        from: StreamId,
    ) -> Result<impl Iterator<Item = Result<PendingEntry, Part>>, Part> {
        let first = PendingKey { group: group.number, base: group.low };
        let start = self.floor(group, from)?.unwrap_or(first);
        let end = PendingKey::first_of(group.number + 1);
        // A group without pending entries needs no reads.
        let end = if group.pending == 0 { start } else { end };
        let nodes = self.pending.rows(start, Some(end), false);
        let entries = nodes.flat_map(|row| {
            let (node, missing) = match row {
                Ok((key, node)) => (Some(node.iter(key.base).map(Ok)), None),
                Err(part) => (None, Some(Err(part))),
            };
            node.into_iter().flatten().chain(missing)
        });
        let is_before = move |entry: &Result<PendingEntry, Part>| match entry {
            Ok(entry) => entry.id < from,
            Err(_) => false,
        };
        Ok(entries.skip_while(is_before))
    }

    /// Returns the last pending entry of a group.
    pub fn last_pending(&self, group: &Group) -> Result<Option<PendingEntry>, Part> {
        if group.pending == 0 {
            return Ok(None);
        }
        let first = PendingKey { group: group.number, base: group.low };
        let end = PendingKey::first_of(group.number + 1);
        for row in self.pending.rows(first, Some(end), true) {
            let (_, node) = row?;
            if !node.is_empty() {
                return Ok(Some(node.last()));
            }
        }
        Ok(None)
    }

    /// Returns up to `limit` entries from an id on that are pending with one consumer.
    pub fn pending_of(
        &self,
        group: &Group,
        number: ConsumerNo,
        from: StreamId,
        limit: u64,
    ) -> Result<Delivered, Part> {
        let mut found = Vec::new();
        let Some(consumer) = self.consumer_of(group, number)? else { return Ok(found) };
        // Bounds the number of entries by the consumer's.
        let limit = limit.min(consumer.pending);
        if limit == 0 {
            return Ok(found);
        }
        found.reserve(usize::try_from(limit).unwrap_or(SOME).min(SOME));
        for entry in self.pending_from(group, from.max(consumer.low))? {
            let entry = entry?;
            if entry.consumer == number {
                found.push(entry);
                if found.len() as u64 >= limit {
                    break;
                }
            }
        }
        Ok(found)
    }

    // ---- before changes ----------------------------------------------------------------------

    /// Checks that all rows needed to add, change and remove entries with these ids are in memory.
    pub fn require_pending(
        &self,
        group: &Group,
        ids: impl Iterator<Item = StreamId>,
    ) -> Result<(), Part> {
        let mut ids: Vec<_> = ids.collect();
        ids.sort_unstable();
        let (mut consumers, mut left) = (BTreeSet::new(), &ids[..]);
        while let Some(id) = left.first() {
            let key = match self.floor(group, *id)? {
                Some(key) => key,
                None => match self.first_node(group)? {
                    Some(key) => key,
                    None => break,
                },
            };
            let Some(node) = self.pending.get(&key)? else { break };
            let here = left.partition_point(|id| *id <= node.last().id);
            let (here, behind) = left.split_at(here.max(1));
            // It must be known, too, that no node lies between them.
            self.floor(group, here[here.len() - 1])?;
            if *id <= node.last().id {
                let found = node.iter(key.base).filter(|it| here.binary_search(&it.id).is_ok());
                consumers.extend(found.map(|entry| entry.consumer));
            }
            left = behind;
        }
        consumers.into_iter().try_for_each(|number| self.consumer_of(group, number).map(drop))
    }

    /// Returns the first node of a group.
    pub(super) fn first_node(&self, group: &Group) -> Result<Option<PendingKey>, Part> {
        if group.low == StreamId::MAX {
            return Ok(None);
        }
        let first = PendingKey { group: group.number, base: group.low };
        let end = PendingKey::first_of(group.number + 1);
        let row = self.pending.rows(first, Some(end), false).next().transpose()?;
        Ok(row.map(|(key, _)| *key))
    }

    /// Checks that all rows needed to delete a consumer are in memory.
    pub fn require_delete_consumer(&self, group: &Group, name: &[u8]) -> Result<(), Part> {
        let Some((number, consumer)) = self.consumer(group, name)? else { return Ok(()) };
        let mut left = consumer.pending;
        if left == 0 {
            return Ok(());
        }
        for entry in self.pending_from(group, consumer.low)? {
            left -= u64::from(entry?.consumer == number);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}
