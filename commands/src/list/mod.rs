//! Lists.

pub mod blocking;
pub mod edit;
pub mod moves;
pub mod pop;
pub mod push;
pub mod read;

use super::{ErrorText, KeySpec, Stop, arg, error, is_word, key};
use crate::DataSettings;
use flagstone_rdb::NodeLimit;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::EntryMut;
use flagstone_storage::value::List;
use flagstone_wire::resp::Args;

/// Key spec of commands that pop elements and return them.
const TAKES: KeySpec = KeySpec::one(1, key!(RW | ACCESS | DELETE));

/// Returns the key, the first argument of most commands here.
fn key_arg(args: Args<'_>) -> Result<&[u8], ErrorText> {
    arg(args, 1)
}

/// Returns true if an argument is LEFT, false if it is RIGHT.
fn is_front(args: Args<'_>, index: usize) -> Result<bool, Stop> {
    match arg(args, index)? {
        word if is_word(word, "left") => Ok(true),
        word if is_word(word, "right") => Ok(false),
        _ => Err(error::SYNTAX.into()),
    }
}

/// Returns true if a "listpack" must become a "quicklist" before elements of these lengths are
/// added.
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

/// Converts the list to a "quicklist" if adding an element requires it.
fn grow(entry: &mut EntryMut<'_>, settings: &DataSettings, added: usize) {
    let needed = |list: &List| outgrows(list, settings, std::iter::once(added));
    if entry.typed().is_some_and(needed)
        && let Some(list) = entry.typed_mut::<List>()
    {
        list.set_quicklist(true);
    }
}

/// Converts a "quicklist" that has shrunk to a "listpack": if it fills at most half of one, so that
/// it does not alternate.
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

/// Returns the keyspace event of a push at an end.
fn push_event(front: bool) -> &'static str {
    if front { "lpush" } else { "rpush" }
}

/// Returns the keyspace event of a pop at an end.
fn pop_event(front: bool) -> &'static str {
    if front { "lpop" } else { "rpop" }
}

/// Finishes a removal of elements: publishes the event, and deletes the key if none is left.
fn shrink_or_delete(entry: &mut EntryMut<'_>, settings: &DataSettings, event: &'static str) {
    entry.clear_if_empty();
    entry.removal_event(NotifyFlags::LIST, event);
    shrink(entry, settings);
}

/// Converts a range of positions, negative ones counted from the end, to its first position and its
/// length, which may be 0.
fn range_of(len: u64, start: i64, stop: i64) -> (u64, u64) {
    let position = |i: i64| if i < 0 { len.saturating_sub(i.unsigned_abs()) } else { i as u64 };
    let before_first = stop < 0 && stop.unsigned_abs() > len;
    let (start, end) = (position(start), (position(stop)).min(len.saturating_sub(1)));
    if before_first || start > end || start >= len { (0, 0) } else { (start, end - start + 1) }
}

/// Converts an index, negative from the end, to a position from the front.
fn position(len: u64, index: i64) -> Option<u64> {
    if index >= 0 { Some(index as u64) } else { len.checked_sub(index.unsigned_abs()) }
}

#[cfg(test)]
mod tests;
