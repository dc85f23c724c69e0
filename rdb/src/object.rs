//! Objects: values of any type, as payloads have them.

use crate::{VERSION, VERSION_OLD_TYPES};

/// A value of any type that has a payload; `B` are its bytes, owned or borrowed.
#[derive(Debug, Clone, PartialEq)]
pub enum Object<B = Vec<u8>> {
    String(B),
    /// The elements from head to tail.
    List(Vec<B>),
    /// Distinct members, in any order; a listpack is dumped in this order.
    Set(SetForm, Vec<B>),
    /// Distinct members, each with its score, in any order.
    Zset(ZsetForm, Vec<(B, f64)>),
    /// Distinct fields, in any order; a small hash is dumped in this order.
    Hash(Vec<HashField<B>>),
    Stream(Box<StreamObject<B>>),
}

/// The id of a stream's entry: time in ms, and sequence.
pub type EntryId = (u64, u64);

/// An entry of a stream: its id, its fields, and whether it is deleted.
pub type StreamEntry<B = Vec<u8>> = (EntryId, Vec<StreamField<B>>, bool);

/// A field of an entry: its name (`None`: the node's in the same place), and its value.
pub type StreamField<B = Vec<u8>> = (Option<B>, B);

/// A stream. The ids of its entries ascend.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamObject<B = Vec<u8>> {
    pub nodes: Vec<StreamNode<B>>,
    /// The greatest id ever given.
    pub last_id: EntryId,
    /// The first id of the entries that are not deleted; 0-0 if there is none.
    pub first_id: EntryId,
    pub max_deleted_id: EntryId,
    pub entries_added: u64,
    pub groups: Vec<StreamGroup<B>>,
}

/// Consecutive entries of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamNode<B = Vec<u8>> {
    /// A lower bound of its entries' ids.
    pub first: EntryId,
    /// The names that entries may share.
    pub names: Vec<B>,
    pub entries: Vec<StreamEntry<B>>,
}

/// Encoding of the members of a set in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetForm {
    /// An intset: all members are integers.
    Intset,
    Listpack,
    Table,
}

/// Encoding of the members of a sorted set in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZsetForm {
    Listpack,
    Skiplist,
}

/// One field of a hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashField<B = Vec<u8>> {
    pub name: B,
    pub value: B,
    /// Expiry of the field, in milliseconds since 1970; it may be in the past, but is never zero,
    /// which stands for none in a payload.
    pub expire_at_ms: Option<u64>,
}

/// The settings that choose the encoding a value is dumped in; named as in `valkey.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub hash_max_listpack_entries: usize,
    /// Maximum length of a field's name or value in bytes.
    pub hash_max_listpack_value: usize,
    /// Size of a list's node. Positive: number of elements; -1 to -5: 4, 8, 16, 32, 64 KiB.
    pub list_max_listpack_size: i32,
    /// `rdbcompression`: LZF for strings of more than 20 bytes.
    pub compression: bool,
    /// True to use only types that Redis 7.0 knows: consumers of streams then have no active time.
    pub old_types: bool,
}

impl Limits {
    /// Returns the version of a payload, unless its type needs a newer one.
    pub(crate) fn version(&self) -> u16 {
        if self.old_types { VERSION_OLD_TYPES } else { VERSION }
    }
}

impl Default for Limits {
    /// Creates the defaults of Valkey 8.1.
    fn default() -> Self {
        Limits {
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            list_max_listpack_size: -2,
            compression: true,
            old_types: false,
        }
    }
}

/// A consumer group of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamGroup<B = Vec<u8>> {
    pub name: B,
    pub last_id: EntryId,
    pub entries_read: EntriesRead,
    /// Pending entries by ascending id.
    pub pending: Vec<StreamPending>,
    pub consumers: Vec<StreamConsumer<B>>,
}

/// The number of entries that a group has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntriesRead {
    Known(i64),
    Unknown,
    /// The payload does not have it.
    Missing,
}

/// An entry that was delivered and not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamPending {
    pub id: EntryId,
    pub delivered_ms: u64,
    pub deliveries: u64,
    /// Index in the group's consumers.
    pub consumer: usize,
}

/// A consumer of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamConsumer<B = Vec<u8>> {
    pub name: B,
    pub seen_ms: u64,
    pub active_ms: Option<u64>,
}
