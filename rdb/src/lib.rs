//! RDB: the payloads of DUMP and RESTORE, and files ([`mod@file`]).
//!
//! A payload is one object in the encoding of an RDB file, then two bytes of RDB version and eight
//! bytes of CRC-64 of all before, both little-endian. Reading takes every encoding from Redis 2.4
//! up to Valkey 8.1 and the hashes with field expiry of Redis 8.0, and always validates in full
//! (what `sanitize-dump-payload yes` does there, and more: trailing bytes and scores that are no
//! numbers are refused). Writing gives what Valkey 8.1 gives for the same value: RDB version 11,
//! except hashes with field expiry, which only Redis 8.0 knows (version 12).
//!
//! FUNCTION DUMP and RESTORE have libraries of functions in place of the object.
//!
//! Format: `rdb.h` and `rdb.c` of Valkey 8.1.1 and Redis 8.0; there is no other specification.

mod crc64;
mod double;
mod dump;
pub mod file;
mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod input;
mod integer;
mod intset;
mod listpack;
mod lzf;
mod parts;
mod reader;
mod restore;
mod stream;
mod stream_groups;
#[cfg(test)]
mod tests;
mod walk;
mod writer;
mod ziplist;
mod zipmap;

use thiserror::Error;

pub use dump::{NodeLimit, dump};
pub use functions::{dump_functions, restore_functions};
pub use parts::{
    EntriesRead, Kind, Part, Sink, StreamConsumer, StreamGroup, StreamHead, StreamPending,
};
pub use restore::{restore, restore_newer};

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
    /// Expiry of the field, in milliseconds since 1970; it may be in the past.
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
}

impl Default for Limits {
    /// Creates the defaults of Valkey 8.1.
    fn default() -> Self {
        Limits {
            hash_max_listpack_entries: 512,
            hash_max_listpack_value: 64,
            list_max_listpack_size: -2,
            compression: true,
        }
    }
}

/// The reason why a payload was refused; the client gets the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RestoreError {
    #[error("ERR DUMP payload version or checksum are wrong")]
    BadChecksumOrVersion,
    #[error("ERR Bad data format")]
    BadFormat,
    /// A module's value, given as its RDB type.
    #[error("ERR Bad data format")]
    Unsupported(u8),
}

/// The RDB version that Valkey 8.1 and Redis 7.2 write.
const VERSION: u16 = 11;
/// The RDB version that Redis 7.4 and 8.0 write.
const VERSION_FIELD_EXPIRY: u16 = 12;
/// The last RDB version that Valkey leaves to other servers; those versions are not understood.
const VERSION_FOREIGN_MAX: u16 = 79;
/// Bytes of version and checksum at a payload's end.
pub const FOOTER_LEN: usize = 10;
/// Maximum expiry of a hash field in Redis 8.0, in milliseconds since 1970.
const FIELD_EXPIRY_MAX_MS: u64 = 0xffff_ffff_fffe;

/// The first byte of a payload: the type of the object and its encoding.
mod object_type {
    pub(crate) const STRING: u8 = 0;
    pub(crate) const LIST: u8 = 1;
    pub(crate) const SET: u8 = 2;
    pub(crate) const ZSET: u8 = 3;
    pub(crate) const HASH: u8 = 4;
    pub(crate) const ZSET_2: u8 = 5;
    pub(crate) const MODULE_PRE_GA: u8 = 6;
    pub(crate) const MODULE_2: u8 = 7;
    pub(crate) const HASH_ZIPMAP: u8 = 9;
    pub(crate) const LIST_ZIPLIST: u8 = 10;
    pub(crate) const SET_INTSET: u8 = 11;
    pub(crate) const ZSET_ZIPLIST: u8 = 12;
    pub(crate) const HASH_ZIPLIST: u8 = 13;
    pub(crate) const LIST_QUICKLIST: u8 = 14;
    pub(crate) const STREAM_LISTPACKS: u8 = 15;
    pub(crate) const HASH_LISTPACK: u8 = 16;
    pub(crate) const ZSET_LISTPACK: u8 = 17;
    pub(crate) const LIST_QUICKLIST_2: u8 = 18;
    pub(crate) const STREAM_LISTPACKS_2: u8 = 19;
    pub(crate) const SET_LISTPACK: u8 = 20;
    pub(crate) const STREAM_LISTPACKS_3: u8 = 21;
    /// The last type common to Redis and later versions of Valkey; greater ones differ in meaning.
    pub(crate) const LAST_COMMON: u8 = STREAM_LISTPACKS_3;
    /// The form that release candidates of Redis 7.4 wrote.
    pub(crate) const HASH_METADATA_PRE_GA: u8 = 22;
    pub(crate) const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
    pub(crate) const HASH_METADATA: u8 = 24;
    pub(crate) const HASH_LISTPACK_EX: u8 = 25;
}

/// The first byte of items other than keys.
mod opcode {
    /// Size of a slot: its number, keys, keys with an expiry.
    pub(crate) const SLOT_INFO: u8 = 244;
    /// A library follows: its code.
    pub(crate) const FUNCTION: u8 = 245;
    /// A library as release candidates of Redis 7.0 wrote it.
    pub(crate) const FUNCTION_PRE_GA: u8 = 246;
    /// Data of a module beside keys.
    pub(crate) const MODULE_AUX: u8 = 247;
    /// Seconds since the next key was used.
    pub(crate) const IDLE: u8 = 248;
    /// The access counter of the next key.
    pub(crate) const FREQ: u8 = 249;
    /// A name and a value with information about the file.
    pub(crate) const AUX: u8 = 250;
    /// Number of keys of the database, and of keys with an expiry.
    pub(crate) const RESIZE: u8 = 251;
    /// Expiry of the next key.
    pub(crate) const EXPIRE_MS: u8 = 252;
    pub(crate) const EXPIRE_S: u8 = 253;
    /// The number of the database of the following keys.
    pub(crate) const DATABASE: u8 = 254;
    pub(crate) const END: u8 = 255;
}

/// The first byte of each part of a module's value.
mod module_opcode {
    pub(crate) const END: u64 = 0;
    pub(crate) const SIGNED: u64 = 1;
    pub(crate) const UNSIGNED: u64 = 2;
    pub(crate) const FLOAT: u64 = 3;
    pub(crate) const DOUBLE: u64 = 4;
    pub(crate) const STRING: u64 = 5;
}

/// Form of a quicklist node.
mod quicklist_node {
    /// A single element.
    pub(crate) const PLAIN: u64 = 1;
    /// A listpack of elements.
    pub(crate) const PACKED: u64 = 2;
}

/// The first byte of an RDB length and of a string that is not stored as it is.
mod length {
    pub(crate) const BITS_32: u8 = 0x80;
    pub(crate) const BITS_64: u8 = 0x81;
    pub(crate) const INT8: u8 = 0xc0;
    pub(crate) const INT16: u8 = 0xc1;
    pub(crate) const INT32: u8 = 0xc2;
    pub(crate) const LZF: u8 = 0xc3;
}

/// Returns true if no two `items` are equal.
fn distinct<'a>(items: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    let mut seen = std::collections::HashSet::with_capacity(items.len());
    items.into_iter().all(|item| seen.insert(item))
}
