//! Commands on keys of any type.

mod dump;
mod expire;
mod key;
mod object;
mod relocate;
mod sort;
mod sort_values;

use super::{Ctx, ErrorText, Stop};
use flagstone_storage::Entry;
use flagstone_storage::notify::NotifyFlags;
use flagstone_wire::resp::Args;

pub use dump::COMMANDS as DUMP;
pub use dump::{old_payload_of, payload_of};
pub use expire::COMMANDS as EXPIRE;
pub use key::COMMANDS as KEY;
pub use object::COMMANDS as OBJECT;
pub use relocate::COMMANDS as RELOCATE;
pub use sort::COMMANDS as SORT;

/// Returns `take` of a key's entry; `None` if the key does not exist. Counts as a keyspace hit or
/// miss, but not as an access.
fn peek_key<T>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    take: impl FnOnce(&Entry) -> T,
) -> Result<Option<T>, Stop> {
    let found = peek_key_without_event(cx, key, take)?;
    if found.is_none() {
        cx.notify(NotifyFlags::KEY_MISS, "keymiss", key);
    }
    Ok(found)
}

/// Like [`peek_key`], but without the event for a key that does not exist.
fn peek_key_without_event<T>(
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

/// Parses a database number: like [`super::int_arg`], but within 32 bits.
fn db_arg(args: Args<'_>, index: usize) -> Result<i32, ErrorText> {
    let number = super::int_arg(args, index)?;
    i32::try_from(number).map_err(|_| {
        let (min, max) = (i32::MIN, i32::MAX);
        format!("ERR value is out of range, value must between {min} and {max}").into()
    })
}

/// Error text for a database that does not exist.
const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";

/// Checks that a database number is below `databases`, and returns it.
pub fn existing_db(number: i32, databases: u32) -> Result<u32, ErrorText> {
    let db = u32::try_from(number).ok().filter(|&db| db < databases);
    db.ok_or(DB_OUT_OF_RANGE.into())
}
