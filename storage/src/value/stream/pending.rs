//! Packed pending entries: the contents of one node of a group's list of delivered, unacknowledged
//! entries.
//!
//! ```text
//! entry  ms varint | seq varint | time zigzag varint | deliveries varint | consumer varint
//! ```
//!
//! `ms` is the difference between the entry's id and that before it, for the first entry between
//! its id and the node's base; where it is 0, `seq` is a difference too, else the number itself.
//! `time` is the difference to the time before, which for the first entry is 0.

use super::id::StreamId;
use crate::encoding::{get_varint, put_varint};

/// Maximum size of a node in bytes.
const NODE_BYTES: usize = 2048;

/// Maximum size of an entry in bytes: five varints.
const ENTRY_MAX: usize = 5 * 10;

/// An entry that was delivered to a consumer and not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingEntry {
    pub id: StreamId,
    /// Time of its last delivery, in ms since the Unix epoch.
    pub delivered_ms: u64,
    pub deliveries: u64,
    /// The number of the consumer to which it was delivered.
    pub consumer: u64,
}

/// Pending entries by id, ascending. The ids begin at the node's base, which is stored elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::value) struct PendingNode {
    bytes: Vec<u8>,
    count: usize,
    /// Its last entry; the base, and time 0, if there is none.
    last: PendingEntry,
}

/// Iterator over the entries of a node, with their offsets.
#[derive(Clone, Debug)]
pub(in crate::value) struct PendingIter<'a> {
    rest: &'a [u8],
    before: PendingEntry,
}

/// Encodes a signed difference as an unsigned number, small if the difference is small.
fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)) as u64
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1) as i64 ^ -((n & 1) as i64)
}

/// Appends an entry behind another one.
fn put_entry(out: &mut Vec<u8>, before: &PendingEntry, entry: &PendingEntry) {
    let ms = entry.id.ms - before.id.ms;
    put_varint(out, ms);
    put_varint(out, if ms == 0 { entry.id.seq - before.id.seq } else { entry.id.seq });
    put_varint(out, zigzag(entry.delivered_ms.wrapping_sub(before.delivered_ms) as i64));
    put_varint(out, entry.deliveries);
    put_varint(out, entry.consumer);
}

/// Decodes an entry behind another one.
fn get_entry(input: &mut &[u8], before: &PendingEntry) -> Option<PendingEntry> {
    let ms = get_varint(input)?;
    let seq = get_varint(input)?;
    let id = StreamId {
        ms: before.id.ms.checked_add(ms)?,
        seq: if ms == 0 { before.id.seq.checked_add(seq)? } else { seq },
    };
    let delivered_ms = before.delivered_ms.wrapping_add(unzigzag(get_varint(input)?) as u64);
    Some(PendingEntry {
        id,
        delivered_ms,
        deliveries: get_varint(input)?,
        consumer: get_varint(input)?,
    })
}

/// Returns the entry that stands before the first one of a node.
fn base_entry(base: StreamId) -> PendingEntry {
    PendingEntry { id: base, ..PendingEntry::default() }
}

impl Iterator for PendingIter<'_> {
    type Item = PendingEntry;

    fn next(&mut self) -> Option<PendingEntry> {
        self.before = get_entry(&mut self.rest, &self.before)?;
        Some(self.before)
    }
}

/// Position of an entry in a node, existing or not.
struct EntrySlot {
    /// Its offset, and the entry before it.
    start: usize,
    before: PendingEntry,
    /// The entry with this id, if there is one, and the offset of its end.
    found: Option<(PendingEntry, usize)>,
}

impl PendingNode {
    /// Creates a node of entries with ids from `base` on, which are ascending.
    pub(in crate::value) fn of(
        base: StreamId,
        entries: impl IntoIterator<Item = PendingEntry>,
    ) -> Self {
        let mut node = Self { last: base_entry(base), ..Self::default() };
        entries.into_iter().for_each(|entry| node.push(&entry));
        node
    }

    pub(in crate::value) fn count(&self) -> usize {
        self.count
    }

    pub(in crate::value) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns its memory use in bytes.
    pub(in crate::value) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns true if there is room for one more entry.
    pub(in crate::value) fn has_room(&self) -> bool {
        self.bytes.len() + ENTRY_MAX <= NODE_BYTES
    }

    /// Returns the entry with the greatest id, if there is one.
    pub(in crate::value) fn last(&self) -> PendingEntry {
        self.last
    }

    pub(in crate::value) fn iter(&self, base: StreamId) -> PendingIter<'_> {
        PendingIter { rest: &self.bytes, before: base_entry(base) }
    }

    /// Returns the entry with an id.
    pub(in crate::value) fn get(&self, base: StreamId, id: StreamId) -> Option<PendingEntry> {
        self.slot(base, id).found.map(|(entry, _)| entry)
    }

    /// Appends an entry with a greater id than all others.
    fn push(&mut self, entry: &PendingEntry) {
        put_entry(&mut self.bytes, &self.last, entry);
        self.last = *entry;
        self.count += 1;
    }

    fn slot(&self, base: StreamId, id: StreamId) -> EntrySlot {
        if !self.is_empty() && id > self.last.id {
            return EntrySlot { start: self.bytes.len(), before: self.last, found: None };
        }
        let mut iter = self.iter(base);
        loop {
            let (start, before) = (self.bytes.len() - iter.rest.len(), iter.before);
            match iter.next() {
                Some(entry) if entry.id < id => {}
                found => {
                    let end = self.bytes.len() - iter.rest.len();
                    let found = found.filter(|entry| entry.id == id).map(|entry| (entry, end));
                    return EntrySlot { start, before, found };
                }
            }
        }
    }

    /// Inserts an entry, and returns the one with the same id that it replaces.
    pub(in crate::value) fn put(
        &mut self,
        base: StreamId,
        entry: PendingEntry,
    ) -> Option<PendingEntry> {
        let slot = self.slot(base, entry.id);
        self.splice(&slot, Some(entry));
        slot.found.map(|(old, _)| old)
    }

    /// Removes the entry with an id, and returns it.
    pub(in crate::value) fn remove(
        &mut self,
        base: StreamId,
        id: StreamId,
    ) -> Option<PendingEntry> {
        let slot = self.slot(base, id);
        slot.found?;
        self.splice(&slot, None);
        slot.found.map(|(old, _)| old)
    }

    /// Replaces or removes the entry at a position, and rewrites later entries as far as they
    /// depend on it.
    fn splice(&mut self, slot: &EntrySlot, entry: Option<PendingEntry>) {
        let (old, end) = match slot.found {
            Some((old, end)) => (old, end),
            None => (slot.before, slot.start),
        };
        let mut bytes = Vec::new();
        let mut before = slot.before;
        if let Some(entry) = entry {
            put_entry(&mut bytes, &before, &entry);
            before = entry;
        }
        let mut rest = &self.bytes[end..];
        match get_entry(&mut rest, &old) {
            Some(next) => put_entry(&mut bytes, &before, &next),
            None => self.last = before,
        }
        let end = self.bytes.len() - rest.len();
        self.bytes.splice(slot.start..end, bytes);
        self.count += usize::from(entry.is_some());
        self.count -= usize::from(slot.found.is_some());
    }

    /// Drops the entries for which `drop` returns true.
    pub(in crate::value) fn remove_where(
        &mut self,
        base: StreamId,
        mut drop: impl FnMut(&PendingEntry) -> bool,
    ) {
        *self = Self::of(base, self.iter(base).filter(|entry| !drop(entry)));
    }

    /// Keeps the first half of the entries, and returns the others with the base of their node.
    pub(in crate::value) fn split(&mut self, base: StreamId) -> Option<(StreamId, Self)> {
        let half = self.count / 2;
        let tail_base = self.iter(base).nth(half)?.id;
        let tail = Self::of(tail_base, self.iter(base).skip(half));
        let head = Self::of(base, self.iter(base).take(half));
        *self = head;
        Some((tail_base, tail))
    }

    /// Releases memory that is not needed while the node stays as it is.
    pub(in crate::value) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Returns the value of its row.
    pub(in crate::value) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Decodes a row; `None` if it is damaged.
    pub(in crate::value) fn read(base: StreamId, row: &[u8]) -> Option<Self> {
        let mut node = Self { bytes: row.to_vec(), count: 0, last: base_entry(base) };
        let mut rest = row;
        while !rest.is_empty() {
            let entry = get_entry(&mut rest, &node.last)?;
            if node.count > 0 && entry.id <= node.last.id {
                return None;
            }
            node.last = entry;
            node.count += 1;
        }
        Some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const BASE: StreamId = StreamId { ms: 1000, seq: 7 };

    fn check(node: &PendingNode, model: &BTreeMap<StreamId, PendingEntry>) {
        assert!(node.iter(BASE).eq(model.values().copied()));
        assert_eq!(node.count(), model.len());
        if let Some((id, _)) = model.last_key_value() {
            assert_eq!(node.last().id, *id);
        }
        assert_eq!(PendingNode::read(BASE, node.as_bytes()).as_ref(), Some(node));
    }

    #[test]
    fn a_node_is_as_a_map() {
        use rand::{RngExt, SeedableRng, rngs::SmallRng};
        let mut rng = SmallRng::seed_from_u64(11);
        let (mut node, mut model) = (PendingNode::of(BASE, []), BTreeMap::new());
        for _ in 0..4000 {
            let ms = BASE.ms + rng.random_range(0..6) * rng.random_range(0..3);
            let seq = rng.random_range(0..12) + if ms == BASE.ms { BASE.seq } else { 0 };
            let id = StreamId { ms, seq };
            let entry = PendingEntry {
                id,
                delivered_ms: [0, 5, u64::MAX, 1 << 40][rng.random_range(0..4)],
                deliveries: rng.random_range(0..300),
                consumer: rng.random_range(1..4),
            };
            match rng.random_range(0..8) {
                0..=3 => assert_eq!(node.put(BASE, entry), model.insert(id, entry)),
                4..=6 => assert_eq!(node.remove(BASE, id), model.remove(&id)),
                _ if rng.random_range(0..8) == 0 => {
                    node.remove_where(BASE, |entry| entry.consumer == 1);
                    model.retain(|_, entry| entry.consumer != 1);
                }
                _ => assert_eq!(node.get(BASE, id), model.get(&id).copied()),
            }
            check(&node, &model);
        }
    }

    #[test]
    fn a_node_is_split_in_halves() {
        let entry = |n| PendingEntry { id: StreamId { ms: 1000, seq: n }, ..Default::default() };
        let mut node = PendingNode::of(BASE, (7..20).map(entry));
        let all: Vec<_> = node.iter(BASE).collect();
        let (base, tail) = node.split(BASE).unwrap();
        assert_eq!(base, tail.iter(base).next().unwrap().id);
        assert!(node.iter(BASE).chain(tail.iter(base)).eq(all));
        assert_eq!((node.count(), tail.count()), (6, 7));
    }

    #[test]
    fn pending_entries_of_a_queue_take_a_few_bytes_each() {
        let entry = |n: u64| PendingEntry {
            id: StreamId { ms: 1_700_000_000_000 + n, seq: 0 },
            delivered_ms: 1_700_000_000_000 + n,
            deliveries: 1,
            consumer: 3,
        };
        let node = PendingNode::of(entry(0).id, (0..100).map(entry));
        assert!(node.as_bytes().len() < 100 * 6, "{}", node.as_bytes().len());
    }

    #[test]
    fn damaged_rows_are_refused() {
        // Cut off; the same id twice; an id beyond the last.
        let over = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 1, 1];
        for row in [&[1, 0, 0, 1][..], &[1, 0, 0, 1, 1, 0, 0, 0, 1, 1], &over] {
            assert_eq!(PendingNode::read(BASE, row), None);
        }
        assert_eq!(PendingNode::read(BASE, &[1, 0, 0, 1, 1]).map(|node| node.count()), Some(1));
    }
}
