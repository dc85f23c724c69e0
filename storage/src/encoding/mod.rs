//! Bytes of rows that know no value: row keys, libraries, the body of a journal record.
//! `value/meta.rs` has those of values, and `docs/format.md` describes all of them.

mod keys;
mod library;
mod ops;
mod rows;
mod source;
mod varint;

pub(crate) use keys::slot_of_row;
pub use keys::{MAX_KEY, Row, RowKey, prefix_range, row};
pub use library::{Function, Library, MAX_LIBRARY_NAME};
pub use ops::{Delta, Op, OpReader, OpWriter};
pub(crate) use ops::{SharedValue, unzigzag, zigzag};
pub(crate) use rows::ElementRows;
pub use source::{FormerStream, MAX_FORMERS, SourceExtent, SourcePosition};
pub use varint::{get_bytes, get_varint, put_bytes, put_varint};
