//! Strings: each file declares its commands in its own `COMMANDS`.

mod lcs_table;

pub mod counters;
pub mod get;
pub mod lcs;
pub mod multi;
pub mod ranges;
pub mod set;

use super::error;
use flagstone_storage::store::Part;
use flagstone_storage::value::Str;
use flagstone_wire::resp::Reply;
use flagstone_wire::resp::reply::FRAME;
use std::ops::Range;

/// Writes a string as a bulk string; fails with its chunks that are not in memory.
pub(crate) fn bulk(out: &mut Reply, value: &Str) -> Result<(), Part> {
    match value {
        Str::Int(n) => {
            out.bulk_int(*n);
            Ok(())
        }
        other => bulk_range(out, other, 0..other.len()),
    }
}

/// Writes a range inside a string as a bulk string; fails with its chunks that are not in memory. A
/// big one is copied once, and only if there is room for it.
fn bulk_range(out: &mut Reply, value: &Str, range: Range<usize>) -> Result<(), Part> {
    match value {
        Str::Big(_) => {
            // A reply that does not fit needs no chunks.
            if value.require(range.clone()).is_err()
                && !out.foresee(range.len() + FRAME, range.len() + FRAME)
            {
                return Ok(());
            }
            let start = range.start;
            let pieces = value.pieces(range.clone())?;
            out.bulk_of(range.len(), pieces.map(|(at, piece)| (at - start, piece)));
        }
        other => out.bulk(&other.range(range)?),
    }
    Ok(())
}

/// Returns the length of a string of `len` bytes after `more` are appended, if it is at most `longest`.
fn grown_len(len: usize, more: usize, longest: usize) -> Result<usize, &'static str> {
    len.checked_add(more).filter(|&total| total <= longest).ok_or(error::STRING_TOO_LONG)
}

#[cfg(test)]
pub(super) mod tests;
