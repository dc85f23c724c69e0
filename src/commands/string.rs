//! Strings.

use super::{Ctx, Group, KeySpec, Outcome, Run, Spec, arg, flag, key};
use crate::resp::Args;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Str, Value};

/// `GET key`
fn get(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    match cx.store.string(cx.db, name)? {
        Some(s) => cx.out.bulk(&s.whole().or_load(cx.db, name)?),
        None => cx.out.null(),
    }
    Ok(())
}

/// `SET key value`
fn set(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut entry = cx.store.entry_mut(cx.db, arg(args, 1)?)?;
    entry.value = Value::Str(Str::new(arg(args, 2)?));
    entry.expire_at_ms = 0;
    cx.out.ok();
    Ok(())
}

/// The string commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        group: Group::String,
        summary: "Returns the string a key holds.",
        arity: 2,
        flags: flag::READONLY | flag::FAST,
        keys: &[KeySpec::one(1, key::RO | key::ACCESS)],
        run: Run::Keys(get),
        ..Spec::NEW
    },
    Spec {
        name: "set",
        group: Group::String,
        summary: "Sets a key to a string, whatever it held.",
        arity: -3,
        flags: flag::WRITE | flag::DENYOOM,
        keys: &[KeySpec {
            flags: key::RW | key::ACCESS | key::UPDATE | key::VARIABLE_FLAGS,
            ..KeySpec::one(1, 0)
        }],
        run: Run::Keys(set),
        ..Spec::NEW
    },
];
