//! Reading a whole string, optionally deleting it or changing its expiry: GET, GETDEL, GETEX.

use super::bulk;
use crate::expiry::ExpiryOption;
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::words::RemovalCause;
use flagstone_wire::resp::Args;

/// Writes the string of a key, or null; returns true if the key exists.
fn read(cx: &mut Ctx<'_>, name: &[u8]) -> Result<bool, Stop> {
    let Some(value) = cx.store.string(cx.db, name)? else {
        cx.out.null();
        return Ok(false);
    };
    bulk(cx.out, value).or_load(cx.db, name)?;
    Ok(true)
}

/// `GET key`
fn get(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    read(cx, arg(args, 1)?)?;
    Ok(())
}

/// `GETDEL key`
fn getdel(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    if read(cx, name)? {
        cx.delete(name)?;
        cx.say(&[b"DEL", name]);
    }
    Ok(())
}

/// `GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds |
/// PXAT unix-time-milliseconds | PERSIST]`
fn getex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut expiry = ExpiryOption::default();
    let mut at = 2;
    while let Some(word) = args.get(at) {
        at += expiry.take("persist", word, args.get(at + 1)).ok_or(error::SYNTAX)?;
    }
    let name = arg(args, 1)?;
    if !read(cx, name)? {
        return Ok(());
    }
    let due_ms = cx.due_ms();
    let expire_at_ms = expiry.time_ms(cx.now_ms(), "getex")?;
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    match (expiry, expire_at_ms) {
        (ExpiryOption::Time(form, _), Some(at)) => {
            if form.is_absolute() && at <= due_ms {
                entry.clear();
                entry.event(NotifyFlags::EXPIRED, "expired");
                cx.say_removal(name, RemovalCause::Expired);
            } else {
                entry.expire_at_ms = at;
                entry.event(NotifyFlags::GENERIC, "expire");
                if cx.is_heard() {
                    cx.say(&[b"PEXPIREAT", name, at.to_string().as_bytes()]);
                }
            }
        }
        (ExpiryOption::Word, _) if entry.expire_at_ms != 0 => {
            entry.expire_at_ms = 0;
            entry.event(NotifyFlags::GENERIC, "persist");
            cx.say(&[b"PERSIST", name]);
        }
        _ => {}
    }
    Ok(())
}

/// Declarations of the commands that read a whole string.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        group: Group::String,
        summary: "Returns the string of a key.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO | ACCESS))],
        run: Run::Keys(get),
        ..Spec::NEW
    },
    Spec {
        name: "getdel",
        group: Group::String,
        since: "6.2.0",
        summary: "Returns the string of a key and deletes the key.",
        arity: 2,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE))],
        run: Run::Keys(getdel),
        ..Spec::NEW
    },
    Spec {
        name: "getex",
        group: Group::String,
        since: "6.2.0",
        summary: "Returns the string of a key and sets or removes the key's expiry.",
        arity: -2,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))],
        run: Run::Keys(getex),
        ..Spec::NEW
    },
];
