//! The body of a journal record: for each shard, puts and deletes of rows as absolute values,
//! changes of the shard's counters as deltas, and changes of generations as commands.

use crate::slot::SLOTS;
use bytes::Bytes;

use super::keys::slot_of_row;
use super::varint::{get_bytes, get_varint, put_bytes, put_varint};

const PUT: u8 = 0;
const DELETE: u8 = 1;
const GENERATION: u8 = 2;
const RESIZE: u8 = 3;
const KIND: u8 = 0b11;

/// Flag of a put of a row that does not exist yet.
const NEW: u8 = 1 << 6;

/// Flag of an operation on a meta row that may exist, although `delta` says that it does not.
const BLIND: u8 = 1 << 7;

/// A row's change of its slot's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Keys: −1, 0 or 1.
    pub keys: i8,
    /// Keys with an expiry: −1, 0 or 1.
    pub expires: i8,
}

impl Delta {
    fn encode(self) -> u8 {
        ((self.keys + 1) as u8) << 2 | ((self.expires + 1) as u8) << 4
    }

    fn decode(flags: u8) -> Self {
        Self { keys: (flags >> 2 & 3) as i8 - 1, expires: (flags >> 4 & 3) as i8 - 1 }
    }
}

/// One operation of a record's body.
#[derive(Debug, PartialEq, Eq)]
pub enum Op<'a> {
    Put {
        key: &'a [u8],
        value: &'a [u8],
        delta: Delta,
        /// True if the row is known not to exist; if false, it may or may not exist.
        new: bool,
        /// True if `delta` is that of a new row, although the row may exist (RFC 12).
        blind: bool,
    },
    Delete {
        key: &'a [u8],
        delta: Delta,
        /// Like that of a put.
        blind: bool,
    },
    /// Sets the generation of database `db`; `dead` is swept, if it is not 0.
    Generation { db: u32, generation: u32, dead: u32 },
    /// Changes the size of the keys in a slot, by units.
    Resize { generation: u32, slot: u16, units: i64 },
}

impl<'a> Op<'a> {
    /// Returns the key of the row that the operation puts or deletes.
    pub fn key(&self) -> Option<&'a [u8]> {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } => Some(key),
            Op::Generation { .. } | Op::Resize { .. } => None,
        }
    }

    /// Returns the slot whose keys it changes, if there is one.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } => slot_of_row(key),
            Op::Generation { .. } => None,
            Op::Resize { slot, .. } => Some(*slot),
        }
    }
}

/// Collects the operations of one shard.
#[derive(Debug, Default)]
pub struct OpWriter {
    /// Whole operations, of about [`PIECE`] each: growing moves few bytes, and rows may go on
    /// sharing them.
    pieces: Vec<Bytes>,
    buf: Vec<u8>,
    /// Values that others have as well, in the order of their operations.
    shared: Vec<SharedValue>,
    /// Buffers in which keys and values are built before their lengths are known.
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A value of an operation that lies in memory of its own, too.
#[derive(Debug)]
pub(crate) struct SharedValue {
    piece: usize,
    /// Where it begins in its piece.
    pub(crate) at: usize,
    pub(crate) value: Bytes,
}

/// Bytes up to which a writer is kept for the next round.
const KEEP_BYTES: usize = 1 << 20;

/// Bytes of a piece, unless it is one longer operation.
const PIECE: usize = 1 << 20;

/// Maximum size of an operation beside key and value, in bytes.
const OP_OVERHEAD: usize = 1 + 3 * 10;

impl OpWriter {
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty() && self.pieces.is_empty()
    }

    /// Returns the total size of the operations in bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum::<usize>() + self.buf.len()
    }

    /// Returns the operations as bytes: first the full pieces, then the last one, which is still
    /// open.
    pub fn pieces(&self) -> (&[Bytes], &[u8]) {
        (&self.pieces, &self.buf)
    }

    /// Returns the shared values of a piece, given by its number.
    pub(crate) fn shared(&self, piece: usize) -> &[SharedValue] {
        let from = self.shared.partition_point(|value| value.piece < piece);
        let end = self.shared.partition_point(|value| value.piece <= piece);
        &self.shared[from..end]
    }

    /// Returns the operations.
    #[cfg(test)]
    pub(crate) fn read(&self) -> impl Iterator<Item = Op<'_>> {
        let pieces = self.pieces.iter().map(|piece| &piece[..]).chain([&self.buf[..]]);
        pieces.flat_map(OpReader::new)
    }

    /// Reserves so many bytes, in a new piece if the open one lacks the room.
    fn reserve(&mut self, bytes: usize) {
        if self.buf.len() + bytes + OP_OVERHEAD > PIECE && !self.buf.is_empty() {
            self.next_piece();
        }
    }

    #[cold]
    fn next_piece(&mut self) {
        let full = std::mem::replace(&mut self.buf, Vec::with_capacity(PIECE));
        self.pieces.push(full.into());
    }

    /// Returns an empty writer with this one's memory, or `None` if that is too much to keep.
    #[must_use]
    pub fn recycled(mut self) -> Option<Self> {
        let bytes = self.buf.capacity() + self.key.capacity() + self.value.capacity();
        self.buf.clear();
        self.pieces.clear();
        self.shared.clear();
        (bytes <= KEEP_BYTES).then_some(self)
    }

    /// Puts a row whose key and value are built in place, and returns the length of the key's row and
    /// the value. If `delta` adds a key, the row is new, unless the put is blind.
    pub fn put_built(
        &mut self,
        delta: Delta,
        blind: bool,
        key: impl FnOnce(&mut Vec<u8>),
        value: impl FnOnce(&mut Vec<u8>),
    ) -> &[u8] {
        self.key.clear();
        key(&mut self.key);
        self.value.clear();
        value(&mut self.value);
        let flag = match blind {
            true => BLIND,
            false if delta.keys > 0 => NEW,
            false => 0,
        };
        self.reserve(self.key.len() + self.value.len());
        self.buf.push(PUT | delta.encode() | flag);
        put_bytes(&mut self.buf, &self.key);
        put_bytes(&mut self.buf, &self.value);
        &self.value
    }

    /// Puts a row without a change of counters; `new`: it does not exist, which must be certain.
    pub fn put(&mut self, key: &[u8], value: &[u8], new: bool) {
        self.reserve(key.len() + value.len());
        self.buf.push(PUT | Delta::default().encode() | if new { NEW } else { 0 });
        put_bytes(&mut self.buf, key);
        put_bytes(&mut self.buf, value);
    }

    /// Like [`put`](Self::put); the pending row gets the value's memory.
    pub(crate) fn put_shared(&mut self, key: &[u8], value: Bytes, new: bool) {
        self.put(key, &value, new);
        let at = self.buf.len() - value.len();
        self.shared.push(SharedValue { piece: self.pieces.len(), at, value });
    }

    pub fn delete(&mut self, key: &[u8], delta: Delta) {
        self.reserve(key.len());
        self.buf.push(DELETE | delta.encode());
        put_bytes(&mut self.buf, key);
    }

    /// Deletes a meta row that may exist; the counters are those without it.
    pub fn delete_blindly(&mut self, key: &[u8]) {
        self.reserve(key.len());
        self.buf.push(DELETE | Delta::default().encode() | BLIND);
        put_bytes(&mut self.buf, key);
    }

    /// Changes the size of the keys in a slot of a generation.
    pub fn resize(&mut self, generation: u32, slot: u16, units: i64) {
        self.reserve(0);
        self.buf.push(RESIZE);
        put_varint(&mut self.buf, u64::from(generation));
        put_varint(&mut self.buf, u64::from(slot));
        put_varint(&mut self.buf, zigzag(units));
    }

    pub fn generation(&mut self, db: u32, generation: u32, dead: u32) {
        self.buf.push(GENERATION);
        put_varint(&mut self.buf, u64::from(db));
        put_varint(&mut self.buf, u64::from(generation));
        put_varint(&mut self.buf, u64::from(dead));
    }
}

/// Returns the number that stands for a signed one: small numbers for small amounts.
pub(crate) fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63).cast_unsigned()
}

/// Returns the signed number.
pub(crate) fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -(n & 1).cast_signed()
}

/// Decodes the operations of one shard; returns `None` at damage (see [`OpReader::is_done`]).
#[derive(Debug)]
pub struct OpReader<'a> {
    rest: &'a [u8],
}

impl<'a> OpReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Returns the number of bytes behind the last operation that was read.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns true if everything was read; false after damage.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    fn read(&mut self) -> Option<Op<'a>> {
        let mut rest = self.rest;
        let (&flags, after) = rest.split_first()?;
        rest = after;
        let blind = flags & BLIND != 0;
        if blind && flags & NEW != 0 {
            return None;
        }
        let op = match flags & KIND {
            PUT => Op::Put {
                key: get_bytes(&mut rest)?,
                value: get_bytes(&mut rest)?,
                delta: Delta::decode(flags),
                new: flags & NEW != 0,
                blind,
            },
            DELETE => Op::Delete { key: get_bytes(&mut rest)?, delta: Delta::decode(flags), blind },
            GENERATION => Op::Generation {
                db: u32::try_from(get_varint(&mut rest)?).ok()?,
                generation: u32::try_from(get_varint(&mut rest)?).ok()?,
                dead: u32::try_from(get_varint(&mut rest)?).ok()?,
            },
            RESIZE if flags == RESIZE => Op::Resize {
                generation: u32::try_from(get_varint(&mut rest)?).ok()?,
                slot: u16::try_from(get_varint(&mut rest)?).ok().filter(|slot| *slot < SLOTS)?,
                units: unzigzag(get_varint(&mut rest)?),
            },
            _ => return None,
        };
        self.rest = rest;
        Some(op)
    }
}

impl<'a> Iterator for OpReader<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_roundtrip() {
        let mut writer = OpWriter::default();
        let delta = Delta { keys: 1, expires: -1 };
        writer.put_built(delta, false, |key| key.push(b'k'), |value| value.push(b'v'));
        writer.put_built(delta, true, |key| key.push(b'k'), |value| value.push(b'v'));
        writer.put(b"k3", b"", false);
        writer.delete(b"k2", Delta::default());
        writer.delete_blindly(b"k2");
        writer.generation(3, 9, 4);
        writer.resize(9, 16383, -5);
        writer.resize(9, 0, i64::MAX);
        let mut reader = OpReader::new(writer.pieces().1);
        for (new, blind) in [(true, false), (false, true)] {
            let put = Op::Put { key: &b"k"[..], value: b"v", delta, new, blind };
            assert_eq!(reader.next(), Some(put));
        }
        let delta = Delta::default();
        let other = Op::Put { key: b"k3", value: b"", delta, new: false, blind: false };
        assert_eq!(reader.next(), Some(other));
        for blind in [false, true] {
            assert_eq!(reader.next(), Some(Op::Delete { key: b"k2", delta, blind }));
        }
        assert_eq!(reader.next(), Some(Op::Generation { db: 3, generation: 9, dead: 4 }));
        for (slot, units) in [(16383, -5), (0, i64::MAX)] {
            assert_eq!(reader.next(), Some(Op::Resize { generation: 9, slot, units }));
        }
        assert_eq!(reader.next(), None);
        assert!(reader.is_done());
    }

    #[test]
    fn no_row_is_new_and_may_exist() {
        let mut writer = OpWriter::default();
        writer.put_built(Delta { keys: 1, expires: 0 }, true, |_| {}, |_| {});
        let mut bytes = writer.pieces().1.to_vec();
        assert!(OpReader::new(&bytes).next().is_some());
        bytes[0] |= NEW;
        assert_eq!(OpReader::new(&bytes).next(), None);
    }

    #[test]
    fn pieces_hold_whole_operations() {
        let mut writer = OpWriter::default();
        let value = |n: usize| vec![n as u8; (n * 7919) % 40_000];
        for n in 0..300usize {
            writer.put(&n.to_be_bytes(), &value(n), false);
        }
        writer.put(b"long", &vec![1; 3 * PIECE], false);
        writer.delete(b"gone", Delta::default());
        let (pieces, last) = writer.pieces();
        assert!(pieces.len() > 5 && pieces.iter().filter(|piece| piece.len() > PIECE).count() == 1);
        let all: Vec<&[u8]> = pieces.iter().map(|piece| &piece[..]).chain([last]).collect();
        assert_eq!(writer.len(), all.concat().len());
        let mut count = 0usize;
        for piece in all {
            let mut reader = OpReader::new(piece);
            for op in reader.by_ref() {
                if let Op::Put { key, value: found, .. } = op
                    && key != b"long"
                {
                    assert_eq!((key, found), (&count.to_be_bytes()[..], &value(count)[..]));
                    count += 1;
                }
            }
            assert!(reader.is_done());
        }
        assert_eq!(count, 300);
        assert!(writer.recycled().is_none_or(|writer| writer.is_empty()));
    }
}
