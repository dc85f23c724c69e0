//! BITCOUNT and BITPOS: commands on ranges of bits.

use super::bits;
use crate::{Ctx, Outcome, Stop, arg, error, int_arg, is_word};
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::Str;
use flagstone_storage::value::string::CHUNK;
use flagstone_wire::resp::Args;
use std::ops::Range;

/// A range as given by a client: inclusive, negative positions count from the end.
struct RangeArgs {
    start: i64,
    end: Option<i64>,
    in_bits: bool,
}

impl RangeArgs {
    /// Parses the range in the arguments from `at` on, `[start [end [BIT|BYTE]]]`.
    fn parse(args: Args<'_>, at: usize) -> Result<Self, Stop> {
        if args.len() == at {
            return Ok(Self { start: 0, end: None, in_bits: false });
        }
        if args.len() > at + 3 {
            return Err(error::SYNTAX.into());
        }
        let start = int_arg(args, at)?;
        let in_bits = match args.get(at + 2) {
            Some(unit) if is_word(unit, "bit") => true,
            Some(unit) if !is_word(unit, "byte") => return Err(error::SYNTAX.into()),
            _ => false,
        };
        let end = if args.len() > at + 1 { Some(int_arg(args, at + 1)?) } else { None };
        Ok(Self { start, end, in_bits })
    }

    /// Returns the range's bits in a string of `len` bytes; empty if there are none.
    fn bits(&self, len: usize) -> Range<u64> {
        let total = if self.in_bits { len as i64 * 8 } else { len as i64 };
        let from_end = |n: i64| if n < 0 { (total + n).max(0) } else { n };
        let start = from_end(self.start);
        let end = from_end(self.end.unwrap_or(-1)).min(total - 1);
        if start > end {
            return 0..0;
        }
        let unit = if self.in_bits { 1 } else { 8 };
        start as u64 * unit..(end as u64 + 1) * unit
    }
}

/// `BITCOUNT key [start [end [BIT|BYTE]]]`
pub(super) fn bitcount(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let given = RangeArgs::parse(args, 2)?;
    let count = match cx.store.string(cx.db, name)? {
        Some(s) => count_in(s, &given).or_load(cx.db, name)?,
        None => 0,
    };
    cx.out.int(count as i64);
    Ok(())
}

fn count_in(s: &Str, given: &RangeArgs) -> Result<u64, Part> {
    // If both positions are before the beginning, in the wrong order, the range is empty: clamped,
    // it would be the first bit.
    if given.start < 0 && given.end.is_some_and(|end| end < 0 && given.start > end) {
        return Ok(0);
    }
    let range = given.bits(s.len());
    let pieces = s.pieces(bytes_of(&range))?;
    Ok(pieces
        .map(|(at, bytes)| bits::count_ones_in(&bytes, bits_in_piece(&range, at, &bytes)))
        .sum())
}

/// `BITPOS key bit [start [end [BIT|BYTE]]]`
pub(super) fn bitpos(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let bit = match int_arg(args, 2)? {
        0 => false,
        1 => true,
        _ => return Err("ERR The bit argument must be 1 or 0.".into()),
    };
    let given = RangeArgs::parse(args, 3)?;
    let found = match cx.store.string(cx.db, name)? {
        Some(s) => {
            let range = given.bits(s.len());
            match find(s, bit, range.clone()).or_load(cx.db, name)? {
                Some(at) => at as i64,
                // Without an end in the arguments, zeros follow the string.
                None if !bit && given.end.is_none() && !range.is_empty() => range.end as i64,
                None => -1,
            }
        }
        None if bit => -1,
        None => 0,
    };
    cx.out.int(found);
    Ok(())
}

/// Returns the first bit of a range that equals `bit`. Missing chunks of a big string are requested
/// in growing steps, because the bit may come early.
fn find(s: &Str, bit: bool, range: Range<u64>) -> Result<Option<u64>, Part> {
    let bytes = bytes_of(&range);
    let (mut from, mut step) = (bytes.start, CHUNK);
    while from < bytes.end {
        let to = (from / CHUNK * CHUNK + step).min(bytes.end);
        let found = find_stored(s, bit, &range, from..to)?;
        if found.is_some() {
            return Ok(found);
        }
        (from, step) = (to, step * 2);
    }
    Ok(None)
}

/// Returns the first such bit in some bytes of the string.
fn find_stored(
    s: &Str,
    bit: bool,
    range: &Range<u64>,
    bytes: Range<usize>,
) -> Result<Option<u64>, Part> {
    let mut seen = bytes.start;
    for (at, piece) in s.pieces(bytes.clone())? {
        if !bit && seen < at {
            break;
        }
        if let Some(found) = bits::find(&piece, bit, bits_in_piece(range, at, &piece)) {
            return Ok(Some(at as u64 * 8 + found));
        }
        seen = at + piece.len();
    }
    // Holes are zeros.
    Ok((!bit && seen < bytes.end).then(|| range.start.max(seen as u64 * 8)))
}

/// Returns the range of bytes that a range of bits overlaps.
fn bytes_of(range: &Range<u64>) -> Range<usize> {
    (range.start / 8) as usize..range.end.div_ceil(8) as usize
}

/// Returns the bits of a piece at byte `at` that are in a range of the string's bits.
fn bits_in_piece(range: &Range<u64>, at: usize, piece: &[u8]) -> Range<u64> {
    let base = at as u64 * 8;
    let len = piece.len() as u64 * 8;
    range.start.saturating_sub(base)..range.end.saturating_sub(base).min(len)
}
