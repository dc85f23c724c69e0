//! Changes groups. The needed rows must be in memory (see the `require…` methods).

use super::super::id::StreamId;
use super::super::paged::PagedKey;
use super::super::pending::{PendingEntry, PendingNode};
use super::read::ConsumerNo;
use super::rows::{ConsumerKey, NameKey, Number, PendingKey};
use super::{Consumer, Group, GroupKey, Groups};
use std::collections::BTreeMap;

/// Change of one consumer's pending entries.
#[derive(Debug)]
struct ConsumerChange {
    added: u64,
    removed: u64,
    /// The least id that was added.
    low: StreamId,
}

impl Default for ConsumerChange {
    fn default() -> Self {
        Self { added: 0, removed: 0, low: StreamId::MAX }
    }
}

/// Changes of a group's consumers.
type ConsumerChanges = BTreeMap<ConsumerNo, ConsumerChange>;

impl Groups {
    // ---- groups and consumers ----------------------------------------------------------------

    /// Adds a group with a new name.
    pub fn create(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<i64>) {
        let number = self.next_group;
        self.next_group += 1;
        self.count += 1;
        self.groups.insert(GroupKey::of(name), Group::new(number, name, last_id, entries_read));
    }

    /// Sets the last delivered id, and the number of entries up to it.
    pub fn set_position(&mut self, name: &[u8], last_id: StreamId, entries_read: Option<i64>) {
        self.groups.update(&GroupKey::of(name), |group| {
            (group.last_id, group.entries_read) = (last_id, entries_read);
        });
    }

    /// Removes a group with all its rows, in memory or not.
    pub fn destroy(&mut self, name: &[u8]) {
        let Some(group) = self.groups.remove(&GroupKey::of(name)) else { return };
        let (number, next) = (group.number, group.number + 1);
        self.count -= 1;
        self.names.forget(&NameKey::first_of(number), Some(&NameKey::first_of(next)));
        self.consumers.forget(&ConsumerKey::first_of(number), Some(&ConsumerKey::first_of(next)));
        self.pending.forget(&PendingKey::first_of(number), Some(&PendingKey::first_of(next)));
        if self.stored {
            self.destroyed.push(number);
        }
    }

    /// Adds a consumer with a new name to a group, and returns its number.
    pub fn create_consumer(&mut self, group: &[u8], name: &[u8], now_ms: u64) -> ConsumerNo {
        let number = self.next_consumer;
        let Some(group) = self.groups.update(&GroupKey::of(group), |group| {
            group.consumers += 1;
            group.number
        }) else {
            return 0;
        };
        self.next_consumer += 1;
        self.names.insert(NameKey::of(group, name), Number(number));
        let consumer = Consumer {
            name: name.into(),
            seen_ms: now_ms,
            active_ms: None,
            pending: 0,
            low: StreamId::MAX,
        };
        self.consumers.insert(ConsumerKey { group, number }, consumer);
        number
    }

    /// Deletes a consumer with its pending entries, and returns their number.
    pub fn delete_consumer(&mut self, group_name: &[u8], name: &[u8]) -> u64 {
        let Ok(Some(group)) = self.group(group_name).map(Option::<&Group>::cloned) else {
            return 0;
        };
        let Ok(Some((number, consumer))) = self.consumer(&group, name) else { return 0 };
        let (pending, low) = (consumer.pending, consumer.low);
        let mut left = pending;
        // Its first entries may be acknowledged: then the group may begin later.
        let first = self.floor(&group, low).ok().flatten();
        let mut at = first.or_else(|| self.first_node(&group).ok().flatten());
        let end = PendingKey::first_of(group.number + 1);
        while let Some(key) = at.filter(|_| left > 0) {
            let next = key.after().and_then(|from| {
                self.pending.rows(from, Some(end), false).next().and_then(Result::ok)
            });
            at = next.map(|(key, _)| *key);
            let has = self
                .pending
                .get(&key)
                .ok()
                .flatten()
                .is_some_and(|node| node.iter(key.base).any(|entry| entry.consumer == number));
            if has {
                let removed = self.pending.update(&key, |node| {
                    let before = node.count();
                    node.remove_where(key.base, |entry| entry.consumer == number);
                    before - node.count()
                });
                left -= removed.unwrap_or(0) as u64;
                self.drop_if_empty(&group, key);
            }
        }
        self.names.remove(&NameKey::of(group.number, name));
        self.consumers.remove(&ConsumerKey { group: group.number, number });
        let low = self.low_of(&group);
        self.groups.update(&GroupKey::of(group_name), |group| {
            group.consumers -= 1;
            group.pending -= pending - left;
            group.low = low;
        });
        pending
    }

    /// Notes a request of a consumer; `active`: it got entries.
    pub fn note_request(&mut self, group: &[u8], number: ConsumerNo, now_ms: u64, active: bool) {
        let Ok(Some(group)) = self.group(group) else { return };
        let key = ConsumerKey { group: group.number, number };
        self.consumers.update(&key, |consumer| {
            consumer.seen_ms = now_ms;
            if active {
                consumer.active_ms = Some(now_ms);
            }
        });
    }

    /// Sets the time at which a consumer last got entries.
    pub fn set_active(&mut self, group: &[u8], number: ConsumerNo, active_ms: Option<u64>) {
        let Ok(Some(group)) = self.group(group) else { return };
        let key = ConsumerKey { group: group.number, number };
        self.consumers.update(&key, |consumer| consumer.active_ms = active_ms);
    }

    /// Notes that a consumer has no pending entries before an id.
    pub fn raise_low(&mut self, group: &[u8], number: ConsumerNo, low: StreamId) {
        let Ok(Some(group)) = self.group(group) else { return };
        let key = ConsumerKey { group: group.number, number };
        self.consumers.update(&key, |consumer| consumer.low = consumer.low.max(low));
    }

    // ---- pending entries ---------------------------------------------------------------------

    /// Makes entries pending; entries with the same ids are replaced.
    pub fn put_pending(&mut self, group_name: &[u8], entries: &[PendingEntry]) {
        let Ok(Some(group)) = self.group(group_name).map(Option::<&Group>::cloned) else { return };
        let mut group = group;
        let mut changes = ConsumerChanges::new();
        for entry in entries {
            let old = self.put_one(&mut group, *entry);
            if old.is_none_or(|old| old.consumer != entry.consumer) {
                if let Some(old) = old {
                    changes.entry(old.consumer).or_default().removed += 1;
                }
                let change = changes.entry(entry.consumer).or_default();
                change.added += 1;
                change.low = change.low.min(entry.id);
            }
            group.pending += u64::from(old.is_none());
        }
        self.settle(group_name, &group, changes);
    }

    /// Removes pending entries, and returns how many existed.
    pub fn remove_pending(&mut self, group_name: &[u8], ids: &[StreamId]) -> u64 {
        let Ok(Some(group)) = self.group(group_name).map(Option::<&Group>::cloned) else {
            return 0;
        };
        let mut group = group;
        let mut changes = ConsumerChanges::new();
        let before = group.pending;
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        let mut left = &ids[..];
        while let Some(id) = left.first() {
            let last = self.floor(&group, *id).ok().flatten().and_then(|key| {
                self.pending.get(&key).ok().flatten().map(|node| (key, node.last().id))
            });
            let here = last.map_or(0, |(_, last)| left.partition_point(|id| *id <= last));
            let (here, behind) = left.split_at(here.max(1));
            left = behind;
            let removed = last.map(|(key, _)| self.remove_some(&group, key, here));
            for old in removed.unwrap_or_default() {
                changes.entry(old.consumer).or_default().removed += 1;
                group.pending -= 1;
            }
        }
        if group.pending == before {
            return 0;
        }
        group.low = self.low_of(&group);
        self.settle(group_name, &group, changes);
        before - group.pending
    }

    /// Writes the changes of a group and its consumers.
    fn settle(&mut self, name: &[u8], group: &Group, changes: ConsumerChanges) {
        self.groups.update(&GroupKey::of(name), |row| {
            (row.pending, row.low) = (group.pending, group.low);
        });
        for (number, change) in changes {
            let key = ConsumerKey { group: group.number, number };
            self.consumers.update(&key, |consumer| {
                if consumer.pending == 0 {
                    consumer.low = StreamId::MAX;
                }
                consumer.pending = (consumer.pending + change.added).saturating_sub(change.removed);
                consumer.low = consumer.low.min(change.low);
            });
        }
    }

    fn put_one(&mut self, group: &mut Group, entry: PendingEntry) -> Option<PendingEntry> {
        let key = match self.floor(group, entry.id) {
            Ok(floor) => floor.or_else(|| self.begin_earlier(group, entry.id)),
            // The node before is not in memory, as the one behind it was just removed. It ends before this entry.
            Err(_) => None,
        };
        let Some(key) = key else {
            self.add_node(group, entry.id, PendingNode::of(entry.id, [entry]));
            return None;
        };
        let node = self.pending.get(&key).ok().flatten()?;
        if node.has_room() || node.get(key.base, entry.id).is_some() {
            return self.pending.update(&key, |node| node.put(key.base, entry)).flatten();
        }
        if entry.id > node.last().id {
            // The full node will hardly grow any more.
            self.pending.update(&key, PendingNode::shrink);
            self.add_node(group, entry.id, PendingNode::of(entry.id, [entry]));
            return None;
        }
        let (base, tail) = self.pending.update(&key, |node| node.split(key.base)).flatten()?;
        self.add_node(group, base, tail);
        self.put_one(group, entry)
    }

    /// Extends the first node of a group to an id before it, if it has room.
    fn begin_earlier(&mut self, group: &mut Group, id: StreamId) -> Option<PendingKey> {
        let key = self.first_node(group).ok().flatten()?;
        let node = self.pending.get(&key).ok().flatten().filter(|node| node.has_room())?;
        let node = PendingNode::of(id, node.iter(key.base));
        self.pending.remove(&key);
        self.add_node(group, id, node);
        Some(PendingKey { group: group.number, base: id })
    }

    fn add_node(&mut self, group: &mut Group, base: StreamId, node: PendingNode) {
        if base < group.low {
            // The map may not know that nothing is there.
            let low = PendingKey { group: group.number, base: group.low };
            self.pending.cover(&PendingKey::first_of(group.number), Some(&low));
            group.low = base;
        }
        self.pending.insert(PendingKey { group: group.number, base }, node);
    }

    /// Removes the entries of some ids, which ascend, from a node, and returns the removed entries.
    fn remove_some(
        &mut self,
        group: &Group,
        key: PendingKey,
        ids: &[StreamId],
    ) -> Vec<PendingEntry> {
        let node = self.pending.get(&key).ok().flatten();
        let is_meant = |entry: &PendingEntry| ids.binary_search(&entry.id).is_ok();
        let found = node.into_iter().flat_map(|node| node.iter(key.base));
        let found: Vec<_> = found.filter(is_meant).collect();
        match &found[..] {
            [] => return found,
            [entry] => drop(self.pending.update(&key, |node| node.remove(key.base, entry.id))),
            _ => drop(self.pending.update(&key, |node| node.remove_where(key.base, is_meant))),
        }
        self.drop_if_empty(group, key);
        found
    }

    /// Removes an empty node, but not the last one of a group: a queue that is emptied again and
    /// again rewrites the same row.
    fn drop_if_empty(&mut self, group: &Group, key: PendingKey) {
        if !self.pending.get(&key).ok().flatten().is_some_and(PendingNode::is_empty) {
            return;
        }
        let end = PendingKey::first_of(group.number + 1);
        let behind = key.after().map(|from| self.pending.rows(from, Some(end), false).next());
        if !matches!(behind, Some(None)) {
            self.pending.remove(&key);
        }
    }

    /// Returns a lower bound of a group's pending ids.
    fn low_of(&self, group: &Group) -> StreamId {
        self.first_node(group).ok().flatten().map_or(group.low, |key| key.base)
    }
}
