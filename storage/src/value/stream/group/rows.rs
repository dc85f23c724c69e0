//! The rows of groups: keys and values.

use super::super::id::StreamId;
use super::super::paged::{PagedKey, PagedRow};
use super::super::pending::PendingNode;
use crate::encoding::{RowKey, get_bytes, get_varint, put_bytes, put_varint};
use crate::value::KeyBuf;

/// The name of a group in a row key (see [`RowKey::ordered_name`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::value) struct GroupKey(pub(super) KeyBuf);

/// A group's number and the name of a consumer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::value) struct NameKey {
    pub(super) group: u64,
    pub(super) name: KeyBuf,
}

/// A group's number and a consumer's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::value) struct ConsumerKey {
    pub(super) group: u64,
    pub(super) number: u64,
}

/// A group's number and the lower bound of the ids of a node of pending entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::value) struct PendingKey {
    pub(super) group: u64,
    pub(super) base: StreamId,
}

fn ordered(name: &[u8]) -> KeyBuf {
    KeyBuf::from_slice(&RowKey::ordered_name(name))
}

/// Returns a name that its row's key does not hold.
fn long_name(name: &[u8]) -> Option<Box<[u8]>> {
    RowKey::name_is_digested(name).then(|| name.into())
}

/// Returns the least greater name.
fn name_after(name: &KeyBuf) -> KeyBuf {
    let mut after = name.clone();
    after.push(0);
    after
}

fn name_heap(name: &KeyBuf) -> usize {
    if name.spilled() { name.capacity() } else { 0 }
}

impl GroupKey {
    pub(super) fn of(name: &[u8]) -> Self {
        Self(ordered(name))
    }
}

impl NameKey {
    pub(super) fn of(group: u64, name: &[u8]) -> Self {
        Self { group, name: ordered(name) }
    }

    /// Returns the least key of a group.
    pub(super) fn first_of(group: u64) -> Self {
        Self { group, name: KeyBuf::new() }
    }
}

impl ConsumerKey {
    /// Returns the least key of a group.
    pub(super) fn first_of(group: u64) -> Self {
        Self { group, number: 0 }
    }
}

impl PendingKey {
    /// Returns the least key of a group.
    pub(super) fn first_of(group: u64) -> Self {
        Self { group, base: StreamId::MIN }
    }
}

impl PagedKey for GroupKey {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self(KeyBuf::from_slice(bytes)))
    }

    fn at_least(bytes: &[u8]) -> Option<Self> {
        Self::decode(bytes)
    }

    fn first() -> Self {
        Self(KeyBuf::new())
    }

    fn after(&self) -> Option<Self> {
        Some(Self(name_after(&self.0)))
    }

    fn heap(&self) -> usize {
        name_heap(&self.0)
    }
}

impl PagedKey for NameKey {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.to_be_bytes());
        out.extend_from_slice(&self.name);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (group, name) = bytes.split_first_chunk::<8>()?;
        Some(Self { group: u64::from_be_bytes(*group), name: KeyBuf::from_slice(name) })
    }

    fn at_least(bytes: &[u8]) -> Option<Self> {
        let mut group = [0; 8];
        let n = bytes.len().min(8);
        group[..n].copy_from_slice(&bytes[..n]);
        Some(Self {
            group: u64::from_be_bytes(group),
            name: KeyBuf::from_slice(bytes.get(8..).unwrap_or_default()),
        })
    }

    fn first() -> Self {
        Self::first_of(0)
    }

    fn after(&self) -> Option<Self> {
        Some(Self { group: self.group, name: name_after(&self.name) })
    }

    fn heap(&self) -> usize {
        name_heap(&self.name)
    }
}

/// Converts to an id, which has two numbers too.
impl From<ConsumerKey> for StreamId {
    fn from(key: ConsumerKey) -> Self {
        Self::new(key.group, key.number)
    }
}

impl From<StreamId> for ConsumerKey {
    fn from(id: StreamId) -> Self {
        Self { group: id.ms, number: id.seq }
    }
}

impl PagedKey for ConsumerKey {
    fn encode(&self, out: &mut Vec<u8>) {
        StreamId::from(*self).encode(out);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        StreamId::decode(bytes).map(Into::into)
    }

    fn at_least(bytes: &[u8]) -> Option<Self> {
        StreamId::at_least(bytes).map(Into::into)
    }

    fn first() -> Self {
        Self::first_of(0)
    }

    fn after(&self) -> Option<Self> {
        StreamId::from(*self).next().map(Into::into)
    }
}

impl PagedKey for PendingKey {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.to_be_bytes());
        self.base.encode(out);
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (group, base) = bytes.split_first_chunk::<8>()?;
        Some(Self { group: u64::from_be_bytes(*group), base: StreamId::decode(base)? })
    }

    fn at_least(bytes: &[u8]) -> Option<Self> {
        let mut whole = [0; 24];
        let n = bytes.len().min(24);
        whole[..n].copy_from_slice(&bytes[..n]);
        let key = Self::decode(&whole)?;
        if bytes.len() > 24 { key.after() } else { Some(key) }
    }

    fn first() -> Self {
        Self::first_of(0)
    }

    fn after(&self) -> Option<Self> {
        match self.base.next() {
            Some(base) => Some(Self { group: self.group, base }),
            None => self.group.checked_add(1).map(Self::first_of),
        }
    }
}

/// A consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number, unique among all past and future groups of the stream.
    pub(super) number: u64,
    pub(super) last_id: StreamId,
    pub(super) entries_read: Option<i64>,
    pub(super) consumers: u64,
    pub(super) pending: u64,
    /// Lower bound of its nodes of pending entries; the greatest id if it never had one.
    pub(super) low: StreamId,
    /// The name, if the row's key has a digest.
    pub(super) name: Option<Box<[u8]>>,
}

impl Group {
    pub(super) fn new(
        number: u64,
        name: &[u8],
        last_id: StreamId,
        entries_read: Option<i64>,
    ) -> Self {
        let name = long_name(name);
        let low = StreamId::MAX;
        Self { number, last_id, entries_read, consumers: 0, pending: 0, low, name }
    }

    /// Returns the last delivered id.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// Returns the number of entries in the stream up to [`Group::last_id`], if that is known.
    pub fn entries_read(&self) -> Option<i64> {
        self.entries_read
    }

    /// Returns the number of consumers.
    pub fn consumers(&self) -> u64 {
        self.consumers
    }

    /// Returns the number of entries that were delivered and not acknowledged.
    pub fn pending(&self) -> u64 {
        self.pending
    }
}

impl PagedRow<GroupKey> for Group {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.number);
        out.extend_from_slice(&self.last_id.to_bytes());
        // Incremented, so that 0 can represent an unknown number.
        put_varint(out, self.entries_read.map_or(0, |n| (n as u64).wrapping_add(1)));
        put_varint(out, self.consumers);
        put_varint(out, self.pending);
        out.extend_from_slice(&self.low.to_bytes());
        out.extend_from_slice(self.name.as_deref().unwrap_or_default());
    }

    fn decode(_: &GroupKey, mut row: &[u8]) -> Option<Self> {
        Some(Self {
            number: get_varint(&mut row)?,
            last_id: StreamId::take(&mut row)?,
            entries_read: get_varint(&mut row)?.checked_sub(1).map(|n| n as i64),
            consumers: get_varint(&mut row)?,
            pending: get_varint(&mut row)?,
            low: StreamId::take(&mut row)?,
            name: (!row.is_empty()).then(|| row.into()),
        })
    }

    fn heap(&self) -> usize {
        self.name.as_ref().map_or(0, |name| name.len())
    }
}

/// The number of a consumer.
#[derive(Clone, Copy, Debug)]
pub(in crate::value) struct Number(pub(super) u64);

impl PagedRow<NameKey> for Number {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0);
    }

    fn decode(_: &NameKey, mut row: &[u8]) -> Option<Self> {
        let number = get_varint(&mut row)?;
        row.is_empty().then_some(Self(number))
    }

    fn heap(&self) -> usize {
        0
    }
}

/// A consumer of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub(super) name: Box<[u8]>,
    pub(super) seen_ms: u64,
    pub(super) active_ms: Option<u64>,
    pub(super) pending: u64,
    /// Lower bound of its pending ids.
    pub(super) low: StreamId,
}

impl Consumer {
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the time of its last request, in ms since the Unix epoch.
    pub fn seen_ms(&self) -> u64 {
        self.seen_ms
    }

    /// Returns the time at which it last got entries, in ms since the Unix epoch.
    pub fn active_ms(&self) -> Option<u64> {
        self.active_ms
    }

    /// Returns a lower bound of its pending ids.
    pub fn first_pending(&self) -> StreamId {
        self.low
    }

    /// Returns the number of entries that were delivered to it and not acknowledged.
    pub fn pending(&self) -> u64 {
        self.pending
    }
}

impl PagedRow<ConsumerKey> for Consumer {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.name);
        put_varint(out, self.seen_ms);
        put_varint(out, self.active_ms.map_or(0, |ms| ms.saturating_add(1)));
        put_varint(out, self.pending);
        put_varint(out, self.low.ms);
        put_varint(out, self.low.seq);
    }

    fn decode(_: &ConsumerKey, mut row: &[u8]) -> Option<Self> {
        let consumer = Self {
            name: get_bytes(&mut row)?.into(),
            seen_ms: get_varint(&mut row)?,
            active_ms: get_varint(&mut row)?.checked_sub(1),
            pending: get_varint(&mut row)?,
            low: StreamId::new(get_varint(&mut row)?, get_varint(&mut row)?),
        };
        row.is_empty().then_some(consumer)
    }

    fn heap(&self) -> usize {
        self.name.len()
    }
}

impl PagedRow<PendingKey> for PendingNode {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(key: &PendingKey, row: &[u8]) -> Option<Self> {
        Self::read(key.base, row)
    }

    fn heap(&self) -> usize {
        self.memory()
    }
}
