//! Data that a command misses in memory, and the reads that supply it.

use crate::slot::NotOwned;
use bytes::Bytes;

/// The reason why a command could not go on.
#[derive(Debug)]
pub enum Fault {
    /// Data is not in memory: load it, then run the command again.
    Miss(Box<Need>),
    WrongType,
    /// A unit would change an entry that the open round has changed, which could not be rolled
    /// back: close the round, then run the unit again.
    Unsettled,
    /// The key belongs to a shard that is not attached: it was given away, or never taken.
    NotOwned(NotOwned),
}

/// A key in its database.
pub type Key = (u32, Box<[u8]>);

/// Data that must be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Need {
    pub db: u32,
    pub key: Box<[u8]>,
    /// The missing part; `None`: the key itself (its meta row).
    pub part: Option<Part>,
}

/// A part of a value that is not in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Fields or members, by name.
    Fields(Vec<Box<[u8]>>),
    /// Chunks of a string, by number.
    Chunks(Vec<u32>),
    /// All elements.
    All,
    /// About `limit` elements from the beginning of a range, or `reverse` from its end. If they are
    /// large there may be fewer, but `least` rows at least.
    Page { range: ElementRange, reverse: bool, limit: usize, least: usize },
    /// An index of a range: the number of elements in each piece of it.
    Index { range: ElementRange, by: IndexBy },
    /// The earliest expiries of fields.
    Expiries,
}

/// How an index counts elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexBy {
    /// Each row is an element; a piece has so many.
    Rows(u64),
    /// Each row is a piece; its value begins with the number of its elements as a varint.
    Values,
}

/// A range of element keys, as they stand in the rows behind the version: from `from` on, before
/// `to` (`None`: to the last).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementRange {
    pub from: Vec<u8>,
    pub to: Option<Vec<u8>>,
}

/// Elements that were read from a range.
#[derive(Debug)]
pub struct Page {
    /// The range that was read completely: every element in it is in `rows`.
    pub range: ElementRange,
    /// Element keys and values, ascending.
    pub rows: Vec<(Bytes, Bytes)>,
}

/// A piece of an index: its first element key and the number of its elements.
pub type IndexPiece = (Bytes, u64);

/// Number of rows that were read for commands, by the way of reading them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointReads {
    /// Rows in files that the system has in memory.
    pub cached: u64,
    /// Rows that were read from the disk.
    pub from_disk: u64,
    /// Rows that the engine read.
    pub elsewhere: u64,
}

impl PointReads {
    pub(crate) fn add(&mut self, other: Self) {
        self.cached += other.cached;
        self.from_disk += other.from_disk;
        self.elsewhere += other.elsewhere;
    }
}

impl ElementRange {
    /// Returns true if an element key lies in the range.
    pub fn contains(&self, element: &[u8]) -> bool {
        *self.from <= *element && self.to.as_ref().is_none_or(|to| *element < **to)
    }
}

impl Part {
    /// Returns the fault that asks for this part of a key.
    pub fn of(self, db: u32, key: &[u8]) -> Fault {
        Fault::Miss(Box::new(Need { db, key: key.into(), part: Some(self) }))
    }
}

/// Turns a missing part of a key's value into the fault that asks for it.
pub trait OrLoad<T> {
    /// Turns `Err(part)` into the fault that loads that part of `key`.
    fn or_load(self, db: u32, key: &[u8]) -> Result<T, Fault>;
}

impl<T> OrLoad<T> for Result<T, Part> {
    fn or_load(self, db: u32, key: &[u8]) -> Result<T, Fault> {
        self.map_err(|part| part.of(db, key))
    }
}
