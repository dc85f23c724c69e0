//! Finds a row in a block of a file, as SlateDB 0.18 writes it in format version 2 (its
//! `format/block_v2.rs` and `format/row_codec_v2.rs`).
//!
//! A block is its rows, then the offsets of every sixteenth row (the restarts, big-endian u16), and
//! their number (u16). A row is `shared varint | unshared varint | value length varint | rest of the
//! key | value | seq u64 | flags u8 | [expiry i64] | [creation i64]`: its key begins with as many
//! bytes of the key before it as `shared` says; at a restart with none. Rows are in the order of
//! their keys, those of one key newest first.

use std::cmp::Ordering;
use std::ops::Range;

/// Row flags: the row deletes its key; it has an expiry; a time of its creation; it is an operand
/// of a merge.
const TOMBSTONE: u8 = 1;
const HAS_EXPIRY: u8 = 2;
const HAS_CREATION: u8 = 4;
const MERGE_OPERAND: u8 = 8;

/// Bytes of a row's sequence number and of a timestamp.
const NUMBER: usize = 8;

/// State of a key in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockRow {
    /// The place of its value in the block.
    Value(Range<usize>),
    Deleted,
    /// The block has no row of the key.
    Missing,
    /// A row that has to be read in another way: an operand of a merge, one with an expiry, or one
    /// of a later format.
    Special,
}

/// Returns the newest row of a key in a block; `None` if the block is not well-formed.
pub(super) fn find(block: &[u8], key: &[u8]) -> Option<BlockRow> {
    let (rest, count) = block.split_last_chunk()?;
    let count = usize::from(u16::from_be_bytes(*count));
    let data_end = rest.len().checked_sub(2 * count)?;
    let (rows, restarts) = rest.split_at(data_end);
    let restart = |n: usize| {
        let bytes: [u8; 2] = restarts.get(2 * n..2 * n + 2)?.try_into().ok()?;
        rows.get(usize::from(u16::from_be_bytes(bytes))..)
    };
    // The first restart whose key is not before the wanted one.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        let head = RowHead::parse(restart(middle)?).filter(|head| head.shared == 0)?;
        if head.suffix < key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // Rows of the key may begin before that one.
    let mut rest = restart(low.saturating_sub(1))?;
    // Bytes that the key of the row before shares with the wanted key, which is greater.
    let mut common = 0;
    while !rest.is_empty() {
        let head = RowHead::parse(rest)?;
        if head.shared <= common {
            let wanted = &key[head.shared..];
            let same = wanted.iter().zip(head.suffix).take_while(|(a, b)| a == b).count();
            match head.suffix[same..].cmp(&wanted[same..]) {
                Ordering::Less => common = head.shared + same,
                Ordering::Equal => return head.row(rows.len() - head.rest.len()),
                Ordering::Greater => return Some(BlockRow::Missing),
            }
        }
        // Otherwise it differs from the wanted key where the row before does.
        rest = head.next()?;
    }
    Some(BlockRow::Missing)
}

/// A row's lengths and its part of the key.
struct RowHead<'a> {
    shared: usize,
    suffix: &'a [u8],
    value_len: usize,
    /// From the value on.
    rest: &'a [u8],
}

impl<'a> RowHead<'a> {
    fn parse(row: &'a [u8]) -> Option<Self> {
        let (shared, row) = varint(row)?;
        let (unshared, row) = varint(row)?;
        let (value_len, row) = varint(row)?;
        let (suffix, rest) = row.split_at_checked(unshared)?;
        Some(Self { shared, suffix, value_len, rest })
    }

    fn flags(&self) -> Option<u8> {
        self.rest.get(self.value_len.checked_add(NUMBER)?).copied()
    }

    /// Returns the row, whose value begins at `at` in the block.
    fn row(&self, at: usize) -> Option<BlockRow> {
        Some(match self.flags()? & !HAS_CREATION {
            0 => BlockRow::Value(at..at + self.value_len),
            TOMBSTONE => BlockRow::Deleted,
            _ => BlockRow::Special,
        })
    }

    /// Returns the rows behind this one.
    fn next(&self) -> Option<&'a [u8]> {
        let flags = self.flags()?;
        if flags & !(TOMBSTONE | HAS_EXPIRY | HAS_CREATION | MERGE_OPERAND) != 0 {
            return None;
        }
        let times = usize::from(flags & HAS_EXPIRY != 0) + usize::from(flags & HAS_CREATION != 0);
        self.rest.get(self.value_len + NUMBER + 1 + NUMBER * times..)
    }
}

/// Splits a varint of up to 32 bits off: seven bits a byte, lowest first.
fn varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut number = 0_u32;
    for (n, byte) in bytes.iter().enumerate().take(5) {
        number |= u32::from(byte & 0x7f).checked_shl(7 * n as u32)?;
        if byte & 0x80 == 0 {
            return Some((number as usize, &bytes[n + 1..]));
        }
    }
    None
}
