//! The count of commands that draw elements at random: HRANDFIELD and its kin. A negative one asks
//! for that many of which some may be the same.

use super::{Stop, int_arg};
use flagstone_wire::resp::Args;

/// Most elements that one command may draw with repetition; a reply of more would not fit anywhere.
const MAX_REPEATED: u64 = 1 << 24;

/// The count at `index`.
pub(crate) fn count_arg(args: Args<'_>, index: usize) -> Result<i64, Stop> {
    let count = int_arg(args, index)?;
    if count == i64::MIN {
        let (min, max) = (-i64::MAX, i64::MAX);
        return Err(format!("ERR value is out of range, value must between {min} and {max}").into());
    }
    Ok(count)
}

/// How many elements a count asks for.
pub(crate) fn wanted(count: i64) -> Result<usize, Stop> {
    if count < 0 && count.unsigned_abs() > MAX_REPEATED {
        return Err("ERR value is out of range".into());
    }
    Ok(usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX))
}
