//! Changing members: SADD, SREM, SMOVE.

use super::{encoding, key_arg, tail};
use crate::DataSettings;
use crate::{Ctx, Group, KeySpec, Names, Outcome, Run, Spec, Stop, arg, error, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::{Set, SetEncoding, Typed};
use flagstone_wire::resp::Args;

/// Returns the key's entry for writing, whether or not it exists, with all rows in memory that
/// adding `names` needs.
fn entry_for_adding<'a, 'n>(
    cx: &'a mut Ctx<'_>,
    key: &[u8],
    names: impl Iterator<Item = &'n [u8]> + Clone,
) -> Result<EntryMut<'a>, Stop> {
    let (db, settings) = (cx.db, cx.settings);
    let entry = cx.store.entry_mut(db, key)?;
    match entry.typed::<Set>() {
        Some(set) => encoding::require(set, names, settings).or_load(db, key)?,
        None if entry.value.is_absent() => {}
        None => return Err(error::WRONG_TYPE.into()),
    }
    Ok(entry)
}

/// Adds members to an entry of [`entry_for_adding`], which holds a set or nothing; returns the
/// number of new ones. If there is none and the encoding stays, the entry is unchanged.
fn add_all<'n>(
    entry: &mut EntryMut<'_>,
    names: impl ExactSizeIterator<Item = &'n [u8]> + Clone,
    settings: &DataSettings,
) -> usize {
    let Some(first) = names.clone().next() else { return 0 };
    match entry.typed::<Set>() {
        None => entry.value = encoding::new_for(first, names.len(), settings).into_value(),
        Some(set) => {
            let is_outgrown = encoding::is_outgrown_by(set, names.len(), settings);
            let has_all = names.clone().all(|name| set.contains(name) == Ok(true));
            if is_outgrown && let Some(set) = entry.recoded::<Set>() {
                set.set_encoding(SetEncoding::Table);
            }
            if has_all {
                return 0;
            }
        }
    }
    let Some(set) = entry.typed_mut::<Set>() else { return 0 };
    names.filter(|name| encoding::add(set, name, settings)).count()
}

/// Removes a member that is in memory, and the key with the last one; returns true if the member
/// existed.
fn remove(entry: &mut EntryMut<'_>, name: &[u8]) -> bool {
    let is_member = entry.typed::<Set>().is_some_and(|set| set.contains(name) == Ok(true));
    if is_member {
        entry.typed_mut::<Set>().map(|set| set.remove(name));
        entry.clear_if_empty();
    }
    is_member
}

/// `SADD key member…`
fn sadd(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let settings = cx.settings;
    let mut entry = entry_for_adding(cx, key_arg(args)?, tail(args, 2))?;
    let added = add_all(&mut entry, tail(args, 2), settings);
    if added > 0 {
        entry.event(NotifyFlags::SET, "sadd");
    }
    cx.out.count(added);
    Ok(())
}

/// `SREM key member…`
fn srem(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let mut removed = 0;
    if let Some(mut entry) = cx.store.typed_mut::<Set>(cx.db, key)? {
        if let Some(set) = entry.typed::<Set>() {
            set.require(tail(args, 2)).or_load(cx.db, key)?;
        }
        removed = tail(args, 2).filter(|name| remove(&mut entry, name)).count();
        if removed > 0 {
            entry.removal_event(NotifyFlags::SET, "srem");
        }
    }
    cx.out.count(removed);
    Ok(())
}

/// `SMOVE source destination member`
fn smove(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (from, to, name) = (key_arg(args)?, arg(args, 2)?, arg(args, 3)?);
    let settings = cx.settings;
    let is_member = match cx.store.typed_mut::<Set>(cx.db, from)? {
        Some(source) => {
            let contains = source.typed::<Set>().map(|set| set.contains(name));
            // A wrong type of the other key is an error even if there is nothing to move.
            if from != to {
                cx.store.typed_mut::<Set>(cx.db, to)?;
            }
            contains.transpose().or_load(cx.db, from)?.unwrap_or(false)
        }
        None => false,
    };
    if is_member && from != to {
        entry_for_adding(cx, to, std::iter::once(name))?;
        if let Some(mut source) = cx.store.typed_mut::<Set>(cx.db, from)? {
            remove(&mut source, name);
            source.removal_event(NotifyFlags::SET, "srem");
        }
        let mut target = entry_for_adding(cx, to, std::iter::once(name))?;
        if add_all(&mut target, std::iter::once(name), settings) > 0 {
            target.event(NotifyFlags::SET, "sadd");
        }
    }
    cx.out.int(i64::from(is_member));
    Ok(())
}

/// Common declaration of the commands that change members.
const WRITE: Spec = Spec { group: Group::Set, flags: flag!(WRITE | FAST), ..Spec::NEW };

/// Declarations of the commands that change members.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "sadd",
        names: Some(Names::from(2, 1)),
        complexity: "O(N) where N is the number of members named.",
        summary: "Adds members to a set, which is created if it is missing.",
        arity: -3,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(RW | INSERT))],
        run: Run::Keys(sadd),
        ..WRITE
    },
    Spec {
        name: "srem",
        names: Some(Names::from(2, 1)),
        complexity: "O(N) where N is the number of members named.",
        summary: "Removes members, and the key with the last one.",
        arity: -3,
        keys: &[KeySpec::one(1, key!(RW | DELETE))],
        run: Run::Keys(srem),
        ..WRITE
    },
    Spec {
        name: "smove",
        names: Some(Names::from(3, 1)),
        summary: "Moves a member from one set to another.",
        arity: 4,
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE)), KeySpec::one(2, key!(RW | INSERT))],
        run: Run::Keys(smove),
        ..WRITE
    },
];
