//! All bytes on disk, except the journal's own framing: row keys, meta rows, element values, the
//! body of a journal record. `docs/format.md` describes them.

mod keys;
mod library;
pub(crate) mod meta;
mod ops;
mod rows;
mod varint;

pub use keys::{MAX_KEY, Row, RowKey, row};
pub use library::{Function, Library, MAX_LIBRARY_NAME};
pub use meta::{MetaError, decode_entry, decode_field, encode_field, encode_meta};
pub(crate) use meta::{encode_hash, encode_list, encode_set, encode_zset};
pub use ops::{Delta, Op, OpReader, OpWriter};
pub(crate) use rows::ElementRows;
pub use varint::{get_bytes, get_varint, put_bytes, put_varint};
