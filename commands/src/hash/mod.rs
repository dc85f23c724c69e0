//! Hashes.
//!
//! An expired field stays until something removes it: a command that asks for it by name,
//! HRANDFIELD, or the active expiry. Until then it is hidden, but HLEN counts it, and HDEL and HSET
//! find it; all as in Redis 8.

mod expiry;
pub mod extended;
pub mod random;
pub mod read;
pub mod scan;
pub mod ttl;
pub mod write;

use super::{Ctx, ErrorText, KeySpec, Outcome, Stop, arg, error, is_word, key, tail};
use crate::DataSettings;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::{Field, Hash, Value};
use flagstone_storage::words::NAMES_AT_ONCE;
use flagstone_wire::resp::Args;

/// Key spec of commands that read fields.
const READS: &[KeySpec] = &[KeySpec::one(1, key!(RO | ACCESS))];
/// Key spec of commands that return only lengths or existence.
const LOOKS: &[KeySpec] = &[KeySpec::one(1, key!(RO))];
/// Key spec of commands that change fields.
const UPDATES: &[KeySpec] = &[KeySpec::one(1, key!(RW | UPDATE))];
/// Key spec of commands that return fields and change them.
const READS_UPDATES: &[KeySpec] = &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))];

/// Returns the hash of an entry, created if the key does not exist.
fn hash_or_new<'a>(entry: &'a mut EntryMut<'_>) -> Result<&'a mut Hash, Stop> {
    if entry.value.is_absent() {
        entry.value = Value::Hash(Box::new(Hash::new()));
    }
    entry.as_hash_mut().ok_or_else(|| error::WRONG_TYPE.into())
}

/// Returns the key's entry for writing, whether or not it exists, with all `names` in memory.
fn entry_with_fields<'a, 'n>(
    cx: &'a mut Ctx<'_>,
    key: &[u8],
    names: impl Iterator<Item = &'n [u8]> + Clone,
) -> Result<EntryMut<'a>, Stop> {
    let (db, due_ms) = (cx.db, cx.due_ms());
    let mut entry = cx.store.entry_mut(db, key)?;
    let mut expired = Vec::new();
    match &entry.value {
        Value::Absent => {}
        Value::Hash(hash) => {
            hash.require(names.clone()).or_load(db, key)?;
            if hash.is_due(due_ms) {
                let is_expired = |name: &&[u8]| {
                    let field = hash.peek(name).ok().flatten();
                    field.is_some_and(|field| field.is_expired(due_ms))
                };
                expired.extend(names.filter(is_expired));
            }
        }
        _ => return Err(error::WRONG_TYPE.into()),
    }
    if !expired.is_empty() {
        // The command sees none of them; a replica, which leaves expiry to this server, would.
        entry.say_expired(&expired);
    }
    Ok(entry)
}

/// Returns the hash of an entry that has one.
fn hash_in<'a>(entry: &'a EntryMut<'_>) -> Option<&'a Hash> {
    match &entry.value {
        Value::Hash(hash) => Some(hash),
        _ => None,
    }
}

/// Removes a field that is in memory, expired or not.
fn remove_field(entry: &mut EntryMut<'_>, name: &[u8]) -> Option<Field> {
    hash_in(entry)?.peek(name).ok()??;
    entry.as_hash_mut()?.remove(name)
}

/// Deletes the key if its hash is empty.
fn drop_if_empty(entry: &mut EntryMut<'_>) {
    if hash_in(entry).is_some_and(Hash::is_empty) {
        entry.clear();
    }
}

/// Removes the expired fields among `names`, and the key with its last field, unless expired ones
/// are only hidden. Publishes `event` for
/// the fields. The names must be in memory.
fn remove_expired<'n>(
    cx: &mut Ctx<'_>,
    key: &[u8],
    names: impl Iterator<Item = &'n [u8]>,
    event: Option<&'static str>,
) -> Outcome {
    if cx.store.keeps_expired() {
        return Ok(());
    }
    let due_ms = cx.due_ms();
    let Some(mut entry) = cx.store.hash_mut(cx.db, key)? else { return Ok(()) };
    let mut removed = Vec::new();
    for name in names {
        let field = hash_in(&entry).and_then(|hash| hash.peek(name).ok().flatten());
        if field.is_some_and(|field| field.is_expired(due_ms)) {
            remove_field(&mut entry, name);
            removed.push(name);
        }
    }
    if !removed.is_empty() {
        drop_if_empty(&mut entry);
        if let Some(event) = event {
            entry.event(NotifyFlags::HASH, event);
        }
        entry.deletion_event();
        cx.store.stats.expired_fields += removed.len() as u64;
        cx.store.words.fields(cx.db, key, removed.into_iter());
        cx.store.words.excuse();
    }
    Ok(())
}

/// Says a command on fields of a hash, if there are any: `words`, their number, and their names.
fn say_fields(cx: &mut Ctx<'_>, words: &[&[u8]], names: &[&[u8]]) {
    if !names.is_empty() {
        let count = names.len().to_string();
        cx.say(&[words, &[b"FIELDS", count.as_bytes()], names].concat());
    }
}

/// Says that fields of a hash were deleted, if there are any.
fn say_deleted(cx: &mut Ctx<'_>, key: &[u8], names: &[&[u8]]) {
    if cx.is_heard() {
        for names in names.chunks(NAMES_AT_ONCE) {
            cx.say(&[&[b"HDEL", key][..], names].concat());
        }
    }
}

/// Converts the hash to a "hashtable" if the names and values to be set are too long or too many
/// for a listpack.
fn convert_for<'n>(
    hash: &mut Hash,
    settings: &DataSettings,
    mut args: impl ExactSizeIterator<Item = &'n [u8]>,
) {
    if !hash.is_table()
        && (args.len() / 2 > settings.hash_max_listpack_entries
            || args.any(|arg| arg.len() > settings.hash_max_listpack_value))
    {
        hash.make_table();
    }
}

/// Converts the hash to a "hashtable" if it has too many fields for a listpack.
fn convert_if_long(hash: &mut Hash, settings: &DataSettings) {
    if !hash.is_table() && hash.len() > settings.hash_max_listpack_entries as u64 {
        hash.make_table();
    }
}

/// Returns the position of the first name of `FIELDS count name…`, which must stand at `at` and
/// extend to the end; `not_a_count` is the error for a count that is no positive integer.
fn fields_from(args: Args<'_>, at: usize, not_a_count: &'static str) -> Result<usize, Stop> {
    if !args.get(at).is_some_and(|word| is_word(word, "FIELDS")) {
        return Err("ERR Mandatory argument FIELDS is missing or not at the right position".into());
    }
    let count =
        args.get(at + 1).and_then(flagstone_wire::num::parse_i64).filter(|&count| count >= 1);
    let count = count.ok_or(not_a_count)?;
    if usize::try_from(count) != Ok(args.len() - at - 2) {
        return Err("ERR The `numfields` parameter must match the number of arguments".into());
    }
    Ok(at + 2)
}

/// Error for an invalid count behind FIELDS.
const NOT_A_COUNT: &str = "ERR Number of fields must be a positive integer";

/// Returns the key, the first argument of every command here.
fn key_arg(args: Args<'_>) -> Result<&[u8], ErrorText> {
    arg(args, 1)
}

#[cfg(test)]
mod tests;
