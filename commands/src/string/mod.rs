//! Strings: each file declares its commands in its own `COMMANDS`.

mod lcs_table;

pub mod counters;
pub mod get;
pub mod lcs;
pub mod multi;
pub mod ranges;
pub mod set;

use super::error;
use crate::DataSettings;
use flagstone_storage::store::Part;
use flagstone_storage::value::Str;
use flagstone_wire::resp::Reply;

/// Writes a string as a bulk string; fails with its chunks that are not in memory.
fn bulk(out: &mut Reply, value: &Str) -> Result<(), Part> {
    match value {
        Str::Int(n) => out.bulk_int(*n),
        other => out.bulk(&other.whole()?),
    }
    Ok(())
}

/// Returns the length of a string of `len` bytes after `more` are appended, if it is allowed.
fn grown_len(len: usize, more: usize, settings: &DataSettings) -> Result<usize, &'static str> {
    len.checked_add(more)
        .filter(|&total| total <= settings.proto_max_bulk_len)
        .ok_or(error::STRING_TOO_LONG)
}

#[cfg(test)]
pub(super) mod tests;
