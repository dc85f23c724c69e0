//! The size of a key: the memory that the reference would take for it, as an estimate.
//!
//! The size follows from the meta row alone, in constant time, so that a key has the same size in
//! memory, in the journal and on disk, and the sum over all keys can be kept without reading them.
//! Constants are those of a 64-bit build of the reference with its usual allocator.

use super::meta::{BIG, EXPIRES, INTSET, TABLE};
use super::meta::{TYPE_HASH, TYPE_LIST, TYPE_SET, TYPE_STREAM, TYPE_STRING, TYPE_ZSET};
use crate::encoding::get_varint;

/// Bytes of a unit: sizes are counted in multiples of it.
pub const SIZE_UNIT: u64 = 8;

/// Greatest size of a key in bytes: as many units as fit their integer.
const GREATEST: u64 = u32::MAX as u64 * SIZE_UNIT;

/// Bytes of a key beside its name and value: entry and bucket of the table, header of the value.
const KEY: u64 = 40;

/// Bytes of an expiry: entry and bucket of another table.
const EXPIRY: u64 = 40;

/// Bytes of a header of a value.
const OBJECT: u64 = 16;

/// Maximum length of a string in one allocation with its header.
const EMBEDDED: u64 = 44;

/// Bytes of a collection beside its elements.
const COLLECTION: u64 = 64;

/// Bytes of an element of a hash, set and sorted set in a table, beside names, values and scores.
const FIELD: u64 = 72;
const MEMBER: u64 = 48;
const SCORE: u64 = 96;

/// Bytes of an element in a listpack beside the length that the row has.
const PACKED: u64 = 2;

/// Bytes that each element of a big hash, set or sorted set is assumed to take if an earlier version
/// has written the row, without their sum.
pub(super) const UNKNOWN: u64 = 32;

/// Offsets of the number of elements, and of their bytes, in the payload of a big value.
const LEN_AT: usize = 8;
const HASH_BYTES_AT: usize = 24;
const SET_BYTES_AT: usize = 16;
const LIST_BYTES_AT: usize = 32;
const ZSET_BYTES_AT: usize = 32;
/// Offset of the bytes of a big stream from the end of its payload.
const STREAM_BYTES_FROM_END: usize = 8;

/// Returns the size that the allocator gives for a request.
fn allocated(bytes: u64) -> u64 {
    match bytes {
        0..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

/// Bounds a number that a row claims: from here on, the size is the greatest one anyway, and the
/// arithmetic has room.
fn claimed(number: u64) -> u64 {
    number.min(GREATEST)
}

fn number_at(payload: &[u8], at: usize) -> Option<u64> {
    payload.get(at..)?.first_chunk().map(|bytes| claimed(u64::from_be_bytes(*bytes)))
}

/// Returns the size of a string of so many bytes.
fn string(len: u64) -> u64 {
    if len <= EMBEDDED { allocated(OBJECT + 4 + len) } else { OBJECT + allocated(len + 6) }
}

/// Returns the size of the value in a meta row's payload.
fn value(kind: u8, flags: u8, payload: &[u8]) -> u64 {
    let is_big = flags & BIG != 0;
    if kind == TYPE_STRING && !is_big {
        return string(payload.len() as u64);
    }
    let len = if is_big {
        number_at(payload, LEN_AT).unwrap_or(0)
    } else {
        claimed(get_varint(&mut &payload[..]).unwrap_or(0))
    };
    let stored = |at: usize| match is_big {
        true => number_at(payload, at).unwrap_or(UNKNOWN * len),
        false => payload.len() as u64,
    };
    let is_table = flags & TABLE != 0;
    let elements = |each: u64, bytes: u64| match is_table {
        true => COLLECTION + OBJECT + bytes + each * len,
        false => OBJECT + bytes + PACKED * len,
    };
    match kind {
        TYPE_STRING => string(len),
        TYPE_HASH => elements(FIELD, stored(HASH_BYTES_AT)),
        TYPE_SET if flags & INTSET != 0 => OBJECT + stored(SET_BYTES_AT),
        TYPE_SET => elements(MEMBER, stored(SET_BYTES_AT)),
        TYPE_ZSET => elements(SCORE, stored(ZSET_BYTES_AT)),
        TYPE_LIST if is_big => COLLECTION + stored(LIST_BYTES_AT),
        TYPE_LIST => elements(PACKED, stored(0)),
        TYPE_STREAM if is_big => {
            let at = payload.len().saturating_sub(STREAM_BYTES_FROM_END);
            4 * COLLECTION + number_at(payload, at).unwrap_or(0)
        }
        TYPE_STREAM => 4 * COLLECTION + payload.len() as u64,
        _ => 0,
    }
}

/// Returns the size of a key with a name of so many bytes and this meta row, in units.
pub fn row_units(name: usize, row: &[u8]) -> u32 {
    let [kind, flags, rest @ ..] = row else { return 0 };
    let expires = flags & EXPIRES != 0;
    let payload = if expires { rest.get(8..).unwrap_or_default() } else { rest };
    let bytes = KEY
        + allocated(name as u64 + 2)
        + if expires { EXPIRY } else { 0 }
        + value(*kind, *flags, payload);
    u32::try_from(bytes.div_ceil(SIZE_UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Entry, Hash, Set, SetEncoding, Str, Value, Zset};
    use crate::value::{decode_entry, encode_meta};

    fn units(value: Value, expire_at_ms: u64) -> u32 {
        let mut entry = Entry::absent(b"key", 1);
        (entry.value, entry.expire_at_ms) = (value, expire_at_ms);
        let mut row = Vec::new();
        encode_meta(&mut row, &entry);
        let units = row_units(3, &row);
        assert_eq!(decode_entry(b"key", 1, &row).unwrap().stored.units, units);
        units
    }

    #[test]
    fn sizes_are_those_of_the_allocator() {
        let found: Vec<u64> = [1, 8, 9, 128, 129, 160, 1000, 5000].map(allocated).into();
        assert_eq!(found, [8, 8, 16, 128, 160, 160, 1024, 5120]);
    }

    #[test]
    fn a_damaged_row_that_claims_too_much_has_the_greatest_size() {
        for kind in [TYPE_STRING, TYPE_HASH, TYPE_SET, TYPE_LIST, TYPE_ZSET, TYPE_STREAM] {
            for flags in [BIG, BIG | TABLE, BIG | EXPIRES] {
                let row = [&[kind, flags][..], &[0xff; 96]].concat();
                assert_eq!(row_units(3, &row), u32::MAX, "type {kind}, flags {flags}");
                // Without a sum of the bytes.
                row_units(3, &row[..18]);
            }
            for flags in [0, TABLE] {
                row_units(3, &[&[kind, flags][..], &[0xff; 9], &[1]].concat());
            }
        }
    }

    #[test]
    fn more_takes_more() {
        let string = |len: usize| units(Value::Str(Str::new(&vec![b'x'; len])), 0);
        assert!(string(1) < string(40) && string(40) < string(400));
        assert!(string(10_000) * 8 >= 10_000);
        assert!(units(Value::Str(Str::new(b"x")), 5) > string(1));
    }

    #[test]
    fn the_elements_count_whether_they_are_packed_or_not() {
        let mut hash = Hash::new();
        let mut set = Set::new(SetEncoding::Table);
        let mut zset = Zset::new(true);
        for n in 0..300u32 {
            let name = [n.to_be_bytes(), [b'n'; 4]].concat();
            hash.set(&name, &[b'v'; 100], 0);
            set.add(&name);
            zset.set(&name, f64::from(n));
        }
        hash.make_table();
        for (value, least) in [
            (Value::Hash(Box::new(hash)), 300 * (108 + FIELD)),
            (Value::Set(Box::new(set)), 300 * (8 + MEMBER)),
            (Value::Zset(Box::new(zset)), 300 * (16 + SCORE)),
        ] {
            let mut big = value.copied();
            big.unpack(9);
            let sizes = [units(value, 0), units(big, 0)].map(|units| u64::from(units) * SIZE_UNIT);
            assert!(sizes.iter().all(|size| (least..least * 5 / 4).contains(size)), "{sizes:?}");
        }
    }
}
