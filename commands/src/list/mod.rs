//! Lists.

pub mod blocking;
pub mod edit;
pub mod moves;
pub mod pop;
pub mod push;
pub mod read;

use super::{KeySpec, Stop, arg, error, is_word, key};
use crate::DataSettings;
use flagstone_rdb::NodeLimit;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::EntryMut;
use flagstone_storage::value::List;
use flagstone_wire::resp::Args;

/// The key of commands that take elements out and answer them.
const TAKES: KeySpec = KeySpec::one(1, key::RW | key::ACCESS | key::DELETE);

/// The key, which is the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], Stop> {
    arg(args, 1)
}

/// Whether an argument names the front of a list: LEFT, not RIGHT.
fn is_front(args: Args<'_>, index: usize) -> Result<bool, Stop> {
    match arg(args, index)? {
        word if is_word(word, "left") => Ok(true),
        word if is_word(word, "right") => Ok(false),
        _ => Err(error::SYNTAX.into()),
    }
}

/// Whether a "listpack" must become a "quicklist" before elements of these lengths are added.
fn outgrows(
    list: &List,
    settings: &DataSettings,
    added: impl ExactSizeIterator<Item = usize>,
) -> bool {
    if list.is_quicklist() {
        return false;
    }
    let limit = NodeLimit::new(settings.list_max_listpack_size);
    let len = list.len() + added.len() as u64;
    let bytes = list.listpack_bytes() + added.sum::<usize>() as u64;
    bytes > limit.bytes as u64 || len > limit.count as u64
}

/// Makes the list a "quicklist" if that is needed for adding an element.
fn grow(entry: &mut EntryMut<'_>, settings: &DataSettings, added: usize) {
    let needed = |list: &List| outgrows(list, settings, std::iter::once(added));
    if entry.typed().is_some_and(needed)
        && let Some(list) = entry.typed_mut::<List>()
    {
        list.set_quicklist(true);
    }
}

/// Makes a "quicklist" that has shrunk a "listpack": when it fills half of one at most, so that it
/// does not go back and forth.
fn shrink(entry: &mut EntryMut<'_>, settings: &DataSettings) {
    let limit = NodeLimit::new(settings.list_max_listpack_size);
    let bytes = if settings.list_max_listpack_size < 0 { limit.bytes / 2 } else { limit.bytes };
    let fits = |list: &List| {
        list.is_quicklist()
            && list.listpack_bytes() <= bytes as u64
            && list.len() <= (limit.count / 2) as u64
    };
    if entry.typed().is_some_and(fits)
        && let Some(list) = entry.typed_mut::<List>()
    {
        list.set_quicklist(false);
    }
}

/// The keyspace event of elements put in at an end.
fn pushed(front: bool) -> &'static str {
    if front { "lpush" } else { "rpush" }
}

/// The keyspace event of elements taken out at an end.
fn popped(front: bool) -> &'static str {
    if front { "lpop" } else { "rpop" }
}

/// Elements were taken out: deletes the key with the last one, and tells of it.
fn shrink_or_delete(entry: &mut EntryMut<'_>, settings: &DataSettings, event: &'static str) {
    entry.clear_if_empty();
    entry.removal_event(NotifyFlags::LIST, event);
    shrink(entry, settings);
}

/// A range of positions, which from the end are negative: where it begins, and its length, which
/// may be 0.
fn range_of(len: u64, start: i64, stop: i64) -> (u64, u64) {
    let position = |i: i64| if i < 0 { len.saturating_sub(i.unsigned_abs()) } else { i as u64 };
    let before_first = stop < 0 && stop.unsigned_abs() > len;
    let (start, end) = (position(start), (position(stop)).min(len.saturating_sub(1)));
    if before_first || start > end || start >= len { (0, 0) } else { (start, end - start + 1) }
}

/// A position counted from the front.
fn position(len: u64, index: i64) -> Option<u64> {
    if index >= 0 { Some(index as u64) } else { len.checked_sub(index.unsigned_abs()) }
}

#[cfg(test)]
mod tests;
