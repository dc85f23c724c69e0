//! Commands on keys whatever they hold.

mod dump;
mod expire;
mod key;
mod object;
mod relocate;
mod sort;

use super::{Ctx, Stop};
use flagstone_storage::Entry;
use flagstone_storage::notify::NotifyFlags;
use flagstone_wire::resp::Args;

pub use dump::COMMANDS as DUMP;
pub use expire::COMMANDS as EXPIRE;
pub use key::COMMANDS as KEY;
pub use object::COMMANDS as OBJECT;
pub use relocate::COMMANDS as RELOCATE;
pub use sort::COMMANDS as SORT;

/// What `take` finds in a key's entry; `None` when the key does not exist. Counts as a keyspace hit
/// or miss, but not as an access.
fn look<T>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    take: impl FnOnce(&Entry) -> T,
) -> Result<Option<T>, Stop> {
    let found = look_quietly(cx, key, take)?;
    if found.is_none() {
        cx.notify(NotifyFlags::KEY_MISS, "keymiss", key);
    }
    Ok(found)
}

/// The same without telling that a key does not exist.
fn look_quietly<T>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    take: impl FnOnce(&Entry) -> T,
) -> Result<Option<T>, Stop> {
    let found = cx.store.peek(cx.db, key)?.map(take);
    match found {
        Some(_) => cx.store.stats.hits += 1,
        None => cx.store.stats.misses += 1,
    }
    Ok(found)
}

/// What an error text shows of an argument: what stands before the first zero byte.
pub fn shown(arg: &[u8]) -> &[u8] {
    arg.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// An argument that counts databases, as [`super::int_arg`] but within 32 bits.
fn db_arg(args: Args<'_>, index: usize) -> Result<i32, Stop> {
    let number = super::int_arg(args, index)?;
    i32::try_from(number).map_err(|_| {
        let (min, max) = (i32::MIN, i32::MAX);
        format!("ERR value is out of range, value must between {min} and {max}").into()
    })
}

/// The error text for a database that does not exist.
const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";

/// The database of a number, of which there are `databases`.
pub fn existing_db(number: i32, databases: u32) -> Result<u32, Stop> {
    let db = u32::try_from(number).ok().filter(|&db| db < databases);
    db.ok_or(Stop::from(DB_OUT_OF_RANGE))
}
