//! RDB: the payloads of DUMP and RESTORE, and files ([`mod@file`]).
//!
//! A payload is one object in the encoding of an RDB file, then two bytes of RDB version and eight
//! bytes of CRC-64 of all before, both little-endian. Reading takes every encoding from Redis 2.4
//! up to Valkey 8.1 and the hashes with field expiry of Redis 8.0, and always validates in full
//! (as `sanitize-dump-payload yes` does there, and more strictly: trailing bytes and scores that
//! are no numbers are refused). Writing uses the encoding of Valkey 8.1: RDB version 11, except
//! hashes with field expiry, which only Redis 8.0 knows (version 12).
//!
//! FUNCTION DUMP and RESTORE have libraries of functions in place of the object.
//!
//! Format: `rdb.h` and `rdb.c` of Valkey 8.1.1 and Redis 8.0; there is no other specification.

mod codes;
mod commands;
mod crc64;
mod double;
mod dump;
mod error;
pub mod file;
mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod input;
mod integer;
mod intset;
mod listpack;
mod lzf;
mod object;
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

pub use codes::FOOTER_LEN;
pub(crate) use codes::{
    FIELD_EXPIRY_MAX_MS, VERSION, VERSION_FIELD_EXPIRY, VERSION_FOREIGN_MAX, VERSION_OLD_TYPES,
    length, module_opcode, object_type, opcode, quicklist_node,
};
pub use commands::{CommandSink, Expect, LargeValue, with_restore};
pub use dump::{NodeLimit, dump};
pub use error::RestoreError;
pub use functions::{dump_functions, restore_functions};
pub use object::{
    EntriesRead, EntryId, HashField, Limits, Object, SetForm, StreamConsumer, StreamEntry,
    StreamField, StreamGroup, StreamNode, StreamObject, StreamPending, ZsetForm,
};
pub use parts::{Kind, Part, Sink, StreamHead};
pub use restore::{
    Allowance, PART_OVERHEAD, restore, restore_newer, restore_packing, restore_within,
};
