//! Consumer groups of a stream.
//!
//! A group has a row by its name. Its consumers and its pending entries (delivered and not
//! acknowledged) are found by the group's number, consumers in pending entries by theirs. Numbers
//! are never reused: the rows of a destroyed group belong to no other one, and are removed without
//! being read.

mod change;
mod progress;
mod read;
mod rows;
#[cfg(test)]
mod tests;

use super::paged::{Paged, PagedKey, PagedRow};
use super::pending::PendingNode;
use super::prefix;
use crate::encoding::{ElementRows, get_bytes, get_varint, put_bytes, put_varint};
use crate::need::{Page, Part};
use anyhow::Result;
use bytes::Bytes;
pub use read::{ConsumerNo, Delivered};
pub use rows::{Consumer, Group};
use rows::{ConsumerKey, GroupKey, NameKey, Number, PendingKey};
use std::collections::BTreeSet;

/// Approximate bytes of a packed row beside its parts of variable length.
const PACKED_GROUP: usize = 48;
const PACKED_CONSUMER: usize = 40;
const PACKED_NODE: usize = 26;

/// The consumer groups of a stream.
#[derive(Clone, Debug)]
pub struct Groups {
    count: u64,
    /// The number of the next group, and of the next consumer.
    next_group: u64,
    next_consumer: u64,
    groups: Paged<GroupKey, Group>,
    names: Paged<NameKey, Number>,
    consumers: Paged<ConsumerKey, Consumer>,
    pending: Paged<PendingKey, PendingNode>,
    /// True if the groups have rows, false if they are packed into the meta row.
    stored: bool,
    /// Numbers of groups destroyed since the last [`Groups::seal`].
    destroyed: Vec<u64>,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            count: 0,
            next_group: 1,
            next_consumer: 1,
            groups: Paged::new(&[prefix::GROUPS]),
            names: Paged::new(&[prefix::NAMES]),
            consumers: Paged::new(&[prefix::CONSUMERS]),
            pending: Paged::new(&[prefix::PENDING]),
            stored: false,
            destroyed: Vec::new(),
        }
    }
}

/// Appends all rows of a map, which are in memory.
fn pack<K: PagedKey, V: PagedRow<K>>(map: &Paged<K, V>, out: &mut Vec<u8>) {
    put_varint(out, map.loaded() as u64);
    let mut bytes = Vec::new();
    for (key, value) in map.in_memory() {
        bytes.clear();
        key.encode(&mut bytes);
        put_bytes(out, &bytes);
        bytes.clear();
        value.encode(&mut bytes);
        put_bytes(out, &bytes);
    }
}

/// Decodes the output of [`pack`] into an empty map; `None` if it is damaged.
fn unpack<K: PagedKey, V: PagedRow<K>>(map: &mut Paged<K, V>, input: &mut &[u8]) -> Option<()> {
    for _ in 0..get_varint(input)? {
        let key = K::decode(get_bytes(input)?)?;
        let value = V::decode(&key, get_bytes(input)?)?;
        map.insert(key, value);
    }
    Some(())
}

impl Groups {
    /// Returns the number of groups.
    pub fn len(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of groups ever created, also of those that are gone.
    pub fn created(&self) -> u64 {
        self.next_group - 1
    }

    /// Returns the approximate memory use in bytes, in constant time.
    pub(super) fn memory(&self) -> usize {
        self.groups.memory() + self.names.memory() + self.consumers.memory() + self.pending.memory()
    }

    /// Returns the approximate bytes that they take in the meta row of a packed stream, in constant
    /// time.
    pub(super) fn packed_bytes(&self) -> usize {
        // A consumer's name is counted twice, for its two rows.
        self.groups.loaded() * PACKED_GROUP
            + self.consumers.loaded() * PACKED_CONSUMER
            + self.pending.loaded() * PACKED_NODE
            + self.groups.heap()
            + 2 * self.consumers.heap()
            + self.pending.heap()
    }

    /// Checks that all groups are in memory.
    pub(super) fn require_whole(&self) -> Result<(), Part> {
        self.groups.require_whole()?;
        self.names.require_whole()?;
        self.consumers.require_whole()?;
        self.pending.require_whole()
    }

    /// Gives the groups rows from now on.
    pub(super) fn unpack(&mut self) {
        self.stored = true;
        self.groups.unpack();
        self.names.unpack();
        self.consumers.unpack();
        self.pending.unpack();
    }

    /// Detaches the groups from their rows. All must be in memory.
    pub(super) fn detach(&mut self) {
        self.stored = false;
        self.destroyed.clear();
        self.groups.detach();
        self.names.detach();
        self.consumers.detach();
        self.pending.detach();
    }

    /// Drops the rows of a stream without groups, known or not: they are dead.
    pub(super) fn drop_rows(&mut self) {
        let Self { next_group, next_consumer, .. } = *self;
        *self = Self { next_group, next_consumer, ..Self::default() };
    }

    /// Writes the rows that changed.
    pub(super) fn seal(&mut self, rows: &mut ElementRows<'_>) {
        for number in self.destroyed.drain(..) {
            for prefix in [prefix::NAMES, prefix::CONSUMERS, prefix::PENDING] {
                rows.dead(&[&[prefix][..], &number.to_be_bytes()].concat());
            }
        }
        self.groups.seal(rows);
        self.names.seal(rows);
        self.consumers.seal(rows);
        self.pending.seal(rows);
    }

    /// Appends the groups' part of the meta row: everything, or (`stored`) only the data that finds
    /// their rows.
    pub(super) fn encode(&self, out: &mut Vec<u8>, stored: bool) {
        put_varint(out, self.count);
        put_varint(out, self.next_group);
        put_varint(out, self.next_consumer);
        if !stored && self.count > 0 {
            pack(&self.groups, out);
            pack(&self.names, out);
            pack(&self.consumers, out);
            pack(&self.pending, out);
        }
    }

    /// Decodes the output of [`Groups::encode`].
    pub(super) fn decode(input: &mut &[u8], stored: bool) -> Option<Self> {
        let mut groups = Self {
            count: get_varint(input)?,
            next_group: get_varint(input)?,
            next_consumer: get_varint(input)?,
            ..Self::default()
        };
        match (stored, groups.count > 0) {
            (false, false) => {}
            (false, true) => {
                unpack(&mut groups.groups, input)?;
                unpack(&mut groups.names, input)?;
                unpack(&mut groups.consumers, input)?;
                unpack(&mut groups.pending, input)?;
                if groups.groups.loaded() as u64 != groups.count {
                    return None;
                }
            }
            (true, false) => groups.unpack(),
            (true, true) => {
                groups.stored = true;
                groups.groups = Paged::away(&[prefix::GROUPS], GroupKey::first(), None);
                let (from, to) = (1, groups.next_group);
                let name = |group| NameKey::first_of(group);
                groups.names = Paged::away(&[prefix::NAMES], name(from), Some(name(to)));
                let consumer = |group| ConsumerKey::first_of(group);
                groups.consumers =
                    Paged::away(&[prefix::CONSUMERS], consumer(from), Some(consumer(to)));
                let pending = |group| PendingKey::first_of(group);
                groups.pending = Paged::away(&[prefix::PENDING], pending(from), Some(pending(to)));
            }
        }
        Some(groups)
    }

    /// Applies all rows, including those left by destroyed groups.
    pub(super) fn apply_all(&mut self, rows: &[(Bytes, Bytes)]) -> Result<()> {
        self.groups.apply_all(rows)?;
        let live: BTreeSet<u64> = self.groups.in_memory().map(|(_, group)| group.number).collect();
        let is_live = |(element, _): &&(Bytes, Bytes)| {
            let number = element.get(1..9).and_then(|bytes| bytes.try_into().ok());
            number.is_some_and(|bytes| live.contains(&u64::from_be_bytes(bytes)))
        };
        let theirs = |prefix: u8| -> Vec<(Bytes, Bytes)> {
            let from = rows.partition_point(|(element, _)| element.first() < Some(&prefix));
            let rows = rows[from..].iter();
            let rows = rows.take_while(|(element, _)| element.first() == Some(&prefix));
            rows.filter(is_live).cloned().collect()
        };
        self.names.apply_all(&theirs(prefix::NAMES))?;
        self.consumers.apply_all(&theirs(prefix::CONSUMERS))?;
        self.pending.apply_all(&theirs(prefix::PENDING))
    }

    /// Applies a page, which may belong to other rows.
    pub(super) fn apply_page(&mut self, page: &Page) -> Result<()> {
        self.groups.apply_page(page)?;
        self.names.apply_page(page)?;
        self.consumers.apply_page(page)?;
        self.pending.apply_page(page)
    }

    /// Returns true if hardly any rows are in memory.
    pub(super) fn has_few_in_memory(&self) -> bool {
        self.groups.has_few_in_memory()
            && self.names.has_few_in_memory()
            && self.consumers.has_few_in_memory()
            && self.pending.has_few_in_memory()
    }

    /// Drops rows that are in the journal from memory, examining up to `steps`.
    pub(super) fn shed(&mut self, steps: usize) {
        // Rows that every command uses are few, and stay the longest.
        let quarter = steps.div_ceil(4);
        self.pending.shed(steps);
        self.consumers.shed(quarter);
        self.names.shed(quarter);
        self.groups.shed(quarter);
    }
}
