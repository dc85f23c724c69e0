//! Bitmaps: strings seen as bits. Bit 0 is the highest bit of the first byte.

mod bits;
mod combine;
mod field;
mod range;
mod single;

use super::{Ctx, Group, KeySpec, Run, Spec, Stop, error, flag, key};
use flagstone_storage::value::{Entry, Str, Value};

const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// Parses a bit offset, which must lie inside the longest string that is allowed.
fn bit_offset(cx: &Ctx<'_>, text: &[u8]) -> Result<u64, Stop> {
    scaled_offset(cx, text, 1)
}

/// Parses an offset in units of `scale` bits, and returns it in bits.
fn scaled_offset(cx: &Ctx<'_>, text: &[u8], scale: u64) -> Result<u64, Stop> {
    let limit = cx.longest_string() as u64;
    flagstone_wire::num::parse_i64(text)
        .and_then(|n| u64::try_from(n).ok())
        .and_then(|n| n.checked_mul(scale))
        .filter(|&n| n / 8 < limit)
        .ok_or_else(|| BAD_OFFSET.into())
}

/// Returns an entry's string; `None` if the key does not exist.
pub(super) fn string_of(entry: &Entry) -> Result<Option<&Str>, Stop> {
    match &entry.value {
        Value::Absent => Ok(None),
        Value::Str(s) => Ok(Some(s)),
        _ => Err(error::WRONG_TYPE.into()),
    }
}

/// Declarations of the commands on bitmaps.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "setbit",
        group: Group::Bitmap,
        since: "2.2.0",
        summary: "Sets or clears one bit of a string, lengthening it as needed.",
        arity: 4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))],
        run: Run::Keys(single::setbit),
        ..Spec::NEW
    },
    Spec {
        name: "getbit",
        group: Group::Bitmap,
        since: "2.2.0",
        summary: "Returns one bit of a string.",
        arity: 3,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(single::getbit),
        ..Spec::NEW
    },
    Spec {
        name: "bitcount",
        group: Group::Bitmap,
        since: "2.6.0",
        complexity: "O(N)",
        summary: "Counts the ones in a string or in a range of it.",
        arity: -2,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(range::bitcount),
        ..Spec::NEW
    },
    Spec {
        name: "bitpos",
        group: Group::Bitmap,
        since: "2.8.7",
        complexity: "O(N)",
        summary: "Finds the first one or the first zero in a string.",
        arity: -3,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(range::bitpos),
        ..Spec::NEW
    },
    Spec {
        name: "bitop",
        group: Group::Bitmap,
        since: "2.6.0",
        complexity: "O(N)",
        summary: "Combines strings bit by bit and stores the result.",
        arity: -4,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(2, key!(OW | UPDATE)), KeySpec::to_end(3, 1, key!(RO | ACCESS))],
        run: Run::Keys(combine::bitop),
        ..Spec::NEW
    },
    Spec {
        name: "bitfield",
        group: Group::Bitmap,
        since: "3.2.0",
        complexity: "O(1) for each operation",
        summary: "Reads, sets and adds to integers of any width inside a string.",
        arity: -2,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RW | UPDATE | ACCESS | VARIABLE_FLAGS))],
        key_access: Some(field::bitfield_access),
        run: Run::Keys(field::bitfield),
        ..Spec::NEW
    },
    Spec {
        name: "bitfield_ro",
        group: Group::Bitmap,
        since: "6.0.0",
        complexity: "O(1) for each operation",
        summary: "Reads integers of any width inside a string.",
        arity: -2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(field::bitfield_ro),
        ..Spec::NEW
    },
];
