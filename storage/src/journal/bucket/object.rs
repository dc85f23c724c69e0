//! An object of the journal: a header, the floors of shards, and records or none.
//!
//! It is put only where there is none, so its contents are the epoch owner's: the oldest object
//! that is needed, and the dropped lsn of each shard.

use bytes::Bytes;
use object_store::path::Path;
use std::collections::BTreeMap;

use super::super::Lsn;
use super::super::record::{le_u32, le_u64};

/// Length of an object's header in bytes; also that of a fence.
pub(crate) const OBJECT_HEADER: usize = 128;
/// The format version written.
const VERSION: u32 = 4;
/// The version of the fence that ends a journal, and the newest one read: programs that do not know
/// such a fence refuse the journal.
pub(super) const NEWEST_VERSION: u32 = 5;
/// In a fence: no epoch follows, the journal has ended for good.
pub(super) const NO_EPOCH: u64 = u64::MAX;

const MAGIC: [u8; 8] = *b"FLAGJOBJ";
const KIND_RECORDS: u16 = 0;
const KIND_FENCE: u16 = 1;
/// The only flag.
const RELEASED: u16 = 1;
const FLOOR: usize = 10;

/// The position of an object: epochs follow one another by fences; numbers count from 1 in each
/// epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    pub(super) epoch: u64,
    pub(super) number: u64,
}

impl Position {
    /// The position of the fence that opens the very first epoch.
    pub(super) const GENESIS: Self = Self { epoch: 0, number: 1 };
    /// The position that no object is behind.
    pub(super) const LAST: Self = Self { epoch: u64::MAX, number: u64::MAX };

    pub(super) fn path(self, root: &Path) -> Path {
        let digits = |number: u64| format!("{number:020}");
        root.clone().join(digits(self.epoch)).join(digits(self.number))
    }

    /// Parses a path below the journal's root; `None` if it is no object of the journal.
    pub(super) fn of(path: &Path, root: &Path) -> Option<Self> {
        let mut parts = path.prefix_match(root)?;
        let mut digits = || parts.next()?.as_ref().parse().ok();
        let position = Self { epoch: digits()?, number: digits()? };
        parts.next().is_none().then_some(position)
    }

    pub(super) fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }

    /// Returns the last position of its epoch.
    pub(super) fn last_of_epoch(self) -> Self {
        Self { number: u64::MAX, ..self }
    }
}

/// Bounds of the data that is still needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectFloor {
    /// The oldest object that is needed.
    pub(super) first: Position,
    /// The last lsn that was dropped, of each shard that has one.
    pub(super) shards: BTreeMap<u16, Lsn>,
}

impl Default for ObjectFloor {
    fn default() -> Self {
        Self { first: Position::GENESIS, shards: BTreeMap::new() }
    }
}

impl ObjectFloor {
    /// Raises to the higher of two floors, both of which are valid.
    pub(super) fn raise(&mut self, other: &Self) {
        self.first = self.first.max(other.first);
        for (&shard, &lsn) in &other.shards {
            self.raise_shard(shard, lsn);
        }
    }

    pub(super) fn raise_shard(&mut self, shard: u16, lsn: Lsn) {
        let floor = self.shards.entry(shard).or_insert(0);
        *floor = lsn.max(*floor);
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObjectHeader {
    pub(super) salt: u32,
    pub(super) at: Position,
    /// Random number of the process that wrote it.
    pub(super) nonce: u64,
    /// The epoch that a fence opens, or [`NO_EPOCH`]; 0 if the object is no fence.
    pub(super) opens: u64,
    /// True in the last object of an owner that has released the journal.
    pub(super) released: bool,
    /// The last whole commit at the object's end.
    pub(super) last: Lsn,
    /// The lsn up to which everything was known to be stored when it was written, ...
    pub(super) durable: Lsn,
    /// ... and the number of its epoch up to which objects were.
    pub(super) published: u64,
    /// The greatest time in this object and all before it.
    pub(super) time_ms: u64,
    /// CRC of the last record before it in its epoch.
    pub(super) prev_crc: u32,
    pub(super) records_crc: u32,
    pub(super) records_len: u64,
    pub(super) floor: ObjectFloor,
}

/// The reason why an object cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it has format version {0}")]
    Newer(u32),
    #[error("{0}")]
    Damaged(&'static str),
}

impl ObjectHeader {
    pub(super) fn is_fence(&self) -> bool {
        self.opens != 0
    }

    /// Returns the header's bytes, including the floors of shards.
    pub(super) fn encode(&self) -> Bytes {
        let floors = &self.floor.shards;
        let mut bytes = vec![0; OBJECT_HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        let version = if self.opens == NO_EPOCH { NEWEST_VERSION } else { VERSION };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let kind = if self.is_fence() { KIND_FENCE } else { KIND_RECORDS };
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        let flags = if self.released { RELEASED } else { 0 };
        bytes[18..20].copy_from_slice(&flags.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.salt.to_le_bytes());
        let first = self.floor.first;
        let numbers = [self.at.epoch, self.at.number, self.nonce, self.opens];
        let numbers = numbers.into_iter().chain([first.epoch, first.number, self.last]);
        let numbers = numbers.chain([self.durable, self.published, self.time_ms]);
        for (at, number) in (24..).step_by(8).zip(numbers) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[104..108].copy_from_slice(&self.prev_crc.to_le_bytes());
        bytes[108..112].copy_from_slice(&self.records_crc.to_le_bytes());
        bytes[112..120].copy_from_slice(&self.records_len.to_le_bytes());
        bytes[120..124].copy_from_slice(&(floors.len() as u32).to_le_bytes());
        for (shard, lsn) in floors {
            bytes.extend_from_slice(&shard.to_le_bytes());
            bytes.extend_from_slice(&lsn.to_le_bytes());
        }
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes.into()
    }

    /// Decodes a whole object: returns its header and its records.
    pub(super) fn decode(object: &Bytes) -> Result<(Self, Bytes), Unreadable> {
        let damaged = |what| Err(Unreadable::Damaged(what));
        if object.len() < OBJECT_HEADER || object[0..8] != MAGIC {
            return damaged("this is no object of a journal");
        }
        let version = le_u32(object, 8);
        if version > NEWEST_VERSION {
            return Err(Unreadable::Newer(version));
        }
        let floors_len = FLOOR.saturating_mul(le_u32(object, 120) as usize);
        let Some(head) = object.get(..OBJECT_HEADER.saturating_add(floors_len)) else {
            return damaged("it is cut off");
        };
        if le_u32(object, 12) != header_crc(head) {
            return damaged("the checksum of its header is wrong");
        }
        let records = object.slice(head.len()..);
        if records.len() as u64 != le_u64(object, 112) {
            return damaged("its length is wrong");
        }
        if le_u32(object, 108) != crc32c::crc32c(&records) {
            return damaged("the checksum of its records is wrong");
        }
        let floors = head[OBJECT_HEADER..].chunks_exact(FLOOR);
        let floors = floors.map(|f| (u16::from_le_bytes([f[0], f[1]]), le_u64(f, 2)));
        let position = |at| Position { epoch: le_u64(object, at), number: le_u64(object, at + 8) };
        let header = Self {
            salt: le_u32(object, 20),
            at: position(24),
            nonce: le_u64(object, 40),
            opens: le_u64(object, 48),
            released: le_u16(object, 18) == RELEASED,
            floor: ObjectFloor { first: position(56), shards: floors.collect() },
            last: le_u64(object, 72),
            durable: le_u64(object, 80),
            published: le_u64(object, 88),
            time_ms: le_u64(object, 96),
            prev_crc: le_u32(object, 104),
            records_crc: le_u32(object, 108),
            records_len: le_u64(object, 112),
        };
        let is_fence = le_u16(object, 16) == KIND_FENCE;
        if is_fence != header.is_fence() || le_u16(object, 18) > RELEASED {
            return damaged("its kind is unknown");
        }
        Ok((header, records))
    }
}

fn le_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn header_crc(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..12]), &head[16..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> ObjectHeader {
        ObjectHeader {
            salt: 1,
            at: Position { epoch: 2, number: 3 },
            nonce: 4,
            opens: 0,
            released: true,
            last: 5,
            durable: 6,
            published: 7,
            time_ms: 8,
            prev_crc: 9,
            records_crc: crc32c::crc32c(b"records"),
            records_len: 7,
            floor: ObjectFloor {
                first: Position { epoch: 1, number: 12 },
                shards: [(0, 10), (300, 11)].into(),
            },
        }
    }

    #[test]
    fn objects_survive_encoding_and_damage_is_seen() {
        let header = header();
        let object: Bytes = [&header.encode()[..], b"records"].concat().into();
        let (found, records) = ObjectHeader::decode(&object).unwrap();
        assert_eq!((found, &*records), (header, &b"records"[..]));
        for at in 0..object.len() {
            let mut damaged = object.to_vec();
            damaged[at] ^= 1;
            assert!(ObjectHeader::decode(&damaged.into()).is_err(), "byte {at}");
            assert!(ObjectHeader::decode(&object.slice(..at)).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn names_sort_as_positions_and_strangers_have_none() {
        let root = Path::from("a/journal");
        let at = Position { epoch: 3, number: 1 << 40 };
        assert_eq!(Position::of(&at.path(&root), &root), Some(at));
        assert!(at.path(&root) < at.next().path(&root));
        for other in ["a/journal/3", "a/journal/x/1", "a/journal/3/1/2", "b/journal/3/1"] {
            assert_eq!(Position::of(&Path::from(other), &root), None, "{other}");
        }
    }
}
