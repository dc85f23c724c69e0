//! The count argument of commands that draw elements at random, such as HRANDFIELD. A negative
//! count allows the same element to be drawn repeatedly.

use super::{Stop, int_arg};
use flagstone_wire::resp::{Args, Reply};

/// Maximum number of elements that a command draws with repetition; a longer reply would fit in no
/// client's memory.
const MAX_REPEATED: u64 = 1 << 24;

/// Parses the count at `index`.
pub(crate) fn count_arg(args: Args<'_>, index: usize) -> Result<i64, Stop> {
    let count = int_arg(args, index)?;
    if count == i64::MIN {
        let (min, max) = (-i64::MAX, i64::MAX);
        return Err(format!("ERR value is out of range, value must between {min} and {max}").into());
    }
    Ok(count)
}

/// Returns the number of elements to draw for a count.
pub(crate) fn draw_count(count: i64) -> Result<usize, Stop> {
    if count < 0 && count.unsigned_abs() > MAX_REPEATED {
        return Err("ERR value is out of range".into());
    }
    Ok(usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX))
}

/// Writes each of the elements as they are drawn, until there is no room for the reply.
pub(crate) fn write_each<T>(
    out: &mut Reply,
    drawn: impl Iterator<Item = T>,
    write: impl Fn(&mut Reply, T),
) {
    for one in drawn {
        write(out, one);
        if out.is_lost() {
            break;
        }
    }
}
