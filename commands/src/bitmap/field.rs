//! BITFIELD and BITFIELD_RO: integers of 1 to 64 bits at any offset in a string.

use super::bits::{FIELD_BYTES, low_bits, read_field, write_field};
use super::{scaled_offset, string_of};
use crate::{Ctx, KeyFlags, Outcome, Stop, arg, error, int_arg, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{Entry, Str, Value};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::ops::Range;

const BAD_TYPE: &str = "ERR Invalid bitfield type. Use something like i16 u8. \
                        Note that u64 is not supported but i64 is.";

/// Treatment of a value that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// The type of a field: its width in bits, at most 64, unsigned at most 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FieldType {
    pub(super) signed: bool,
    pub(super) width: u32,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Get,
    Set(i64),
    Add(i64),
}

/// One operation of a BITFIELD command.
#[derive(Clone, Copy, Debug)]
struct FieldOperation {
    action: Action,
    field: FieldType,
    /// Offset in bits.
    offset: u64,
    overflow: Overflow,
}

/// Returns BITFIELD's access to its key: it only reads it if all operations are GET. Of arguments that
/// are not understood it is not known.
pub(super) fn bitfield_access(args: Args<'_>) -> KeyFlags {
    let mut at = 2;
    while let Some(word) = args.get(at) {
        let left = args.len() - at - 1;
        if is_word(word, "get") && left >= 2 {
            at += 3;
        } else if is_word(word, "overflow") && left >= 1 {
            at += 2;
        } else {
            return key!(RW | ACCESS | UPDATE);
        }
    }
    key!(RO | ACCESS)
}

/// `BITFIELD key [GET type offset | [OVERFLOW WRAP|SAT|FAIL] SET type offset value |
/// INCRBY type offset increment ...]`
pub(super) fn bitfield(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let ops = parse_ops(cx, args)?;
    if ops.iter().any(FieldOperation::writes) {
        write(cx, arg(args, 1)?, &ops)
    } else {
        read(cx, args, &ops)
    }
}

/// `BITFIELD_RO key [GET type offset ...]`
pub(super) fn bitfield_ro(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let ops = parse_ops(cx, args)?;
    if ops.iter().any(FieldOperation::writes) {
        return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
    }
    read(cx, args, &ops)
}

fn parse_ops(cx: &Ctx<'_>, args: Args<'_>) -> Result<Vec<FieldOperation>, Stop> {
    let mut ops = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while at < args.len() {
        let word = arg(args, at)?;
        let left = args.len() - at - 1;
        if is_word(word, "overflow") && left >= 1 {
            overflow = Overflow::parse(arg(args, at + 1)?)?;
            at += 2;
            continue;
        }
        let operands = match word {
            _ if is_word(word, "get") => 2,
            _ if is_word(word, "set") || is_word(word, "incrby") => 3,
            _ => return Err(error::SYNTAX.into()),
        };
        if left < operands {
            return Err(error::SYNTAX.into());
        }
        let field = FieldType::parse(arg(args, at + 1)?).ok_or(BAD_TYPE)?;
        let offset = match arg(args, at + 2)? {
            [b'#', number @ ..] => scaled_offset(cx, number, u64::from(field.width))?,
            number => scaled_offset(cx, number, 1)?,
        };
        let action = match operands {
            2 => Action::Get,
            _ if is_word(word, "set") => Action::Set(int_arg(args, at + 3)?),
            _ => Action::Add(int_arg(args, at + 3)?),
        };
        ops.push(FieldOperation { action, field, offset, overflow });
        at += 1 + operands;
    }
    Ok(ops)
}

/// Runs operations that only read.
fn read(cx: &mut Ctx<'_>, args: Args<'_>, ops: &[FieldOperation]) -> Outcome {
    let name = arg(args, 1)?;
    let s = cx.store.string(cx.db, name)?;
    require(s, ops, 0).or_load(cx.db, name)?;
    cx.out.array(ops.len());
    for op in ops {
        let value = op.field.decode(op.bits(op.bytes(s).or_load(cx.db, name)?));
        cx.out.int(value);
    }
    Ok(())
}

/// Runs operations of which some write. The string is lengthened for all of them, even those that
/// do not write in the end.
fn write(cx: &mut Ctx<'_>, name: &[u8], ops: &[FieldOperation]) -> Outcome {
    let len = ops.iter().filter(|op| op.writes()).map(FieldOperation::end_byte).max().unwrap_or(0);
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let s = string_of(&entry)?;
    // Behind the first change nothing may be missing.
    require(s, ops, len).or_load(cx.db, name)?;
    let is_longer = s.is_none_or(|s| s.len() < len);
    if is_longer {
        grow(&mut entry, len).or_load(cx.db, name)?;
    }
    cx.out.array(ops.len());
    let mut changed = false;
    for op in ops {
        let bytes = op.bytes(string_of(&entry)?).or_load(cx.db, name)?;
        let old = op.field.decode(op.bits(bytes));
        let (wanted, reply_old) = match op.action {
            Action::Get => {
                cx.out.int(old);
                continue;
            }
            Action::Set(value) => (op.field.widen(value), true),
            Action::Add(by) => (i128::from(old) + i128::from(by), false),
        };
        let Some(new) = op.field.fit(wanted, op.overflow) else {
            cx.out.null();
            continue;
        };
        if new != old
            && let Value::Str(s) = &mut entry.value
        {
            let bytes = write_field(bytes, op.shift(), op.field.width, new as u64);
            let at = op.byte_range();
            s.write_at(at.start, &bytes[..at.len()]).or_load(cx.db, name)?;
        }
        changed |= is_longer || new != old;
        cx.out.int(if reply_old { old } else { new });
    }
    entry.creation_event();
    if changed {
        entry.event(NotifyFlags::STRING, "setbit");
    }
    Ok(())
}

/// Checks that the operations' bytes are in memory, and those before its end if the string grows to `len`
/// bytes; requests all missing chunks at once.
fn require(s: Option<&Str>, ops: &[FieldOperation], len: usize) -> Result<(), Part> {
    let Some(s) = s else { return Ok(()) };
    let end = if len > s.len() { s.len().saturating_sub(1)..s.len() } else { 0..0 };
    let ranges = ops.iter().map(|op| op.stored_range(s));
    let mut missing = Vec::new();
    for range in ranges.chain([end]) {
        match s.require(range) {
            Ok(()) => {}
            Err(Part::Chunks(chunks)) => missing.extend(chunks),
            Err(part) => return Err(part),
        }
    }
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() { Ok(()) } else { Err(Part::Chunks(missing)) }
}

fn grow(entry: &mut Entry, len: usize) -> Result<(), Part> {
    if entry.value.is_absent() {
        entry.value = Value::Str(Str::from_vec(Vec::new()));
    }
    match &mut entry.value {
        Value::Str(s) => s.grow(len),
        _ => Ok(()),
    }
}

impl FieldOperation {
    fn writes(&self) -> bool {
        !matches!(self.action, Action::Get)
    }

    /// Returns the bit of its first byte at which the field begins.
    fn shift(&self) -> u32 {
        (self.offset % 8) as u32
    }

    fn end_byte(&self) -> usize {
        (self.offset + u64::from(self.field.width)).div_ceil(8) as usize
    }

    /// Returns the range of bytes that the field overlaps.
    fn byte_range(&self) -> Range<usize> {
        (self.offset / 8) as usize..self.end_byte()
    }

    /// Returns the part of the field's bytes that is inside the string.
    fn stored_range(&self, s: &Str) -> Range<usize> {
        let range = self.byte_range();
        range.start.min(s.len())..range.end.min(s.len())
    }

    /// Returns the field's bytes; zeros beyond the string's end.
    fn bytes(&self, s: Option<&Str>) -> Result<[u8; FIELD_BYTES], Part> {
        let mut bytes = [0; FIELD_BYTES];
        if let Some(s) = s {
            let start = (self.offset / 8) as usize;
            for (at, piece) in s.pieces(self.stored_range(s))? {
                bytes[at - start..at - start + piece.len()].copy_from_slice(&piece);
            }
        }
        Ok(bytes)
    }

    fn bits(&self, bytes: [u8; FIELD_BYTES]) -> u64 {
        read_field(bytes, self.shift(), self.field.width)
    }
}

impl Overflow {
    fn parse(word: &[u8]) -> Result<Self, Stop> {
        match word {
            _ if is_word(word, "wrap") => Ok(Self::Wrap),
            _ if is_word(word, "sat") => Ok(Self::Saturate),
            _ if is_word(word, "fail") => Ok(Self::Fail),
            _ => Err("ERR Invalid OVERFLOW type specified".into()),
        }
    }
}

impl FieldType {
    /// Parses a type: `u1` to `u63`, `i1` to `i64`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (signed, max, digits) = match text {
            [b'i', digits @ ..] => (true, 64, digits),
            [b'u', digits @ ..] => (false, 63, digits),
            _ => return None,
        };
        let width = parse_i64(digits).filter(|n| (1..=max).contains(n))?;
        Some(Self { signed, width: width as u32 })
    }

    /// Returns the number that the field's bits encode.
    pub(super) fn decode(self, bits: u64) -> i64 {
        let unused = 64 - self.width;
        if self.signed { (bits << unused) as i64 >> unused } else { bits as i64 }
    }

    /// Returns the number that saturation compares with the field's limits: for an unsigned field a
    /// negative value counts as a very large one, as it does for a signed field when its distance
    /// from the field's maximum exceeds 64 bits (Redis computes it in 64 bits).
    pub(super) fn widen(self, value: i64) -> i128 {
        let (_, max) = self.limits();
        let is_far = max - i128::from(value) > i128::from(i64::MAX);
        if !self.signed || is_far && self.width < 64 {
            i128::from(value as u64)
        } else {
            i128::from(value)
        }
    }

    /// Returns the number that is stored for `wanted`; `None` if it does not fit and `overflow` is
    /// FAIL.
    pub(super) fn fit(self, wanted: i128, overflow: Overflow) -> Option<i64> {
        let (min, max) = self.limits();
        match overflow {
            _ if (min..=max).contains(&wanted) => Some(wanted as i64),
            Overflow::Wrap => Some(self.decode(wanted as u64 & low_bits(self.width))),
            Overflow::Saturate => Some(wanted.clamp(min, max) as i64),
            Overflow::Fail => None,
        }
    }

    fn limits(self) -> (i128, i128) {
        if self.signed {
            let half = 1i128 << (self.width - 1);
            (-half, half - 1)
        } else {
            (0, (1i128 << self.width) - 1)
        }
    }
}

#[cfg(test)]
#[path = "field_tests.rs"]
mod tests;
