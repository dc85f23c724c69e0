//! RENAME, RENAMENX, MOVE and COPY.

use super::{db_arg, existing_db};
use crate::{Ctx, KeySpec, Outcome, Run, Spec, Stop, acl, arg, error, flag, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_wire::num::parse_u64;
use flagstone_wire::resp::Args;

/// Error text for a key that would be moved or copied onto itself.
const SAME_OBJECT: &str = "ERR source and destination objects are the same";

/// Renames a key; returns `false` if `nx` is set and the new name exists.
fn rename_to(cx: &mut Ctx<'_>, args: Args<'_>, nx: bool) -> Result<bool, Stop> {
    let (from, to) = (arg(args, 1)?, arg(args, 2)?);
    if cx.store.peek(cx.db, from)?.is_none() {
        return Err(error::NO_SUCH_KEY.into());
    }
    if from == to {
        return Ok(!nx);
    }
    if nx && cx.store.peek(cx.db, to)?.is_some() {
        return Ok(false);
    }
    cx.store.rename((cx.db, from), (cx.db, to))?;
    cx.notify(NotifyFlags::NEW, "new", to);
    cx.notify(NotifyFlags::GENERIC, "rename_from", from);
    cx.notify(NotifyFlags::GENERIC, "rename_to", to);
    Ok(true)
}

/// `RENAME key newkey`
fn rename(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    rename_to(cx, args, false)?;
    cx.out.ok();
    Ok(())
}

/// `RENAMENX key newkey`
fn renamenx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let renamed = rename_to(cx, args, true)?;
    cx.out.int(i64::from(renamed));
    Ok(())
}

/// `MOVE key db`
fn move_key(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    if cx.settings.cluster_enabled {
        return Err("ERR MOVE is not allowed in cluster mode".into());
    }
    let name = arg(args, 1)?;
    let db = existing_db(db_arg(args, 2)?, cx.store.databases())?;
    if db == cx.db {
        return Err(SAME_OBJECT.into());
    }
    let moves = cx.store.peek(cx.db, name)?.is_some() && cx.store.peek(db, name)?.is_none();
    if moves {
        cx.store.rename((cx.db, name), (db, name))?;
        cx.notify_in(db, NotifyFlags::NEW, "new", name);
        cx.notify(NotifyFlags::GENERIC, "move_from", name);
        cx.notify_in(db, NotifyFlags::GENERIC, "move_to", name);
    }
    cx.out.int(i64::from(moves));
    Ok(())
}

/// Returns the key in the target database of MOVE.
fn moved_key<'a>(args: Args<'a>, _db: u32, here: &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])> {
    let db = args.get(2).and_then(db_number);
    here.iter().filter_map(|&(_, key)| Some((db?, key))).collect()
}

fn db_number(arg: &[u8]) -> Option<u32> {
    parse_u64(arg).and_then(|number| u32::try_from(number).ok())
}

/// `COPY source destination [DB destination-db] [REPLACE]`
fn copy(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (from, to) = (arg(args, 1)?, arg(args, 2)?);
    let (mut db, mut replace) = (cx.db, false);
    let mut at = 3;
    while let Some(option) = args.get(at) {
        if is_word(option, "replace") {
            replace = true;
        } else if is_word(option, "db") && args.get(at + 1).is_some() {
            at += 1;
            db = existing_db(db_arg(args, at)?, cx.store.databases())?;
        } else {
            return Err(error::SYNTAX.into());
        }
        at += 1;
    }
    if (db, to) == (cx.db, from) {
        return Err(SAME_OBJECT.into());
    }
    let taken = cx.store.peek(db, to)?.is_some() && !replace;
    let Some(source) = cx.store.entry(cx.db, from)?.filter(|_| !taken) else {
        cx.out.int(0);
        return Ok(());
    };
    source.value.require_whole().or_load(cx.db, from)?;
    let (value, expire_at_ms) = (source.value.copied(), source.expire_at_ms);
    let mut target = cx.store.entry_mut(db, to)?;
    target.value = value;
    target.expire_at_ms = expire_at_ms;
    cx.notify_in(db, NotifyFlags::NEW, "new", to);
    cx.notify_in(db, NotifyFlags::GENERIC, "copy_to", to);
    cx.out.int(1);
    Ok(())
}

/// Returns the new key in the target databases of COPY; only the last DB option takes effect.
fn copied_key<'a>(args: Args<'a>, _db: u32, _here: &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])> {
    let Some(to) = args.get(2) else { return Vec::new() };
    let named = (3..args.len()).filter(|&at| args.get(at).is_some_and(|a| is_word(a, "db")));
    named.filter_map(|at| Some((args.get(at + 1).and_then(db_number)?, to))).collect()
}

/// Declarations of the commands that rename, move or copy keys.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "rename",
        summary: "Renames a key; a key of the new name is overwritten.",
        arity: 3,
        flags: flag!(WRITE),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE)), KeySpec::one(2, key!(OW | UPDATE))],
        acl: acl!(KEYSPACE),
        run: Run::Keys(rename),
        ..Spec::NEW
    },
    Spec {
        name: "renamenx",
        summary: "Renames a key unless the new name exists.",
        arity: 3,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE)), KeySpec::one(2, key!(OW | INSERT))],
        acl: acl!(KEYSPACE),
        run: Run::Keys(renamenx),
        ..Spec::NEW
    },
    Spec {
        name: "move",
        summary: "Moves a key to another database unless it exists there.",
        arity: 3,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))],
        other_db: Some(moved_key),
        acl: acl!(KEYSPACE),
        run: Run::Keys(move_key),
        ..Spec::NEW
    },
    Spec {
        name: "copy",
        since: "6.2.0",
        summary: "Copies the value and the expiry of a key to another key.",
        complexity: "O(N) in the number of elements; O(1) for strings",
        arity: -3,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(RO | ACCESS)), KeySpec::one(2, key!(OW | UPDATE))],
        other_db: Some(copied_key),
        acl: acl!(KEYSPACE),
        run: Run::Keys(copy),
        ..Spec::NEW
    },
];
