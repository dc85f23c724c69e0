//! MGET, MSET and MSETNX: commands on several strings.

use super::bulk;
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, error, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Str, Value};
use flagstone_wire::resp::Args;
use flagstone_wire::resp::reply::FRAME;

/// Makes room for the strings of keys at once: if there is too little, none of them is loaded or copied.
fn reserve(cx: &mut Ctx<'_>, names: Args<'_>) -> Outcome {
    let (mut all, mut greatest, mut is_here) = (0, 0, true);
    for name in names.iter() {
        if let Some(Value::Str(s)) = cx.store.peek(cx.db, name)?.map(|entry| &entry.value) {
            let size = s.len() + FRAME;
            all += size;
            greatest = size.max(greatest);
            is_here &= s.require(0..s.len()).is_ok();
        }
    }
    match is_here {
        true => cx.out.reserve(all, greatest),
        false => _ = cx.out.foresee(all, greatest),
    }
    Ok(())
}

/// `MGET key [key …]`
fn mget(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    cx.out.array(args.len() - 1);
    let mut is_reserved = false;
    for (at, name) in args.iter().enumerate().skip(1) {
        let mut value = cx.store.entry(cx.db, name)?.map(|entry| &entry.value);
        if !is_reserved && matches!(value, Some(Value::Str(Str::Big(_)))) {
            is_reserved = true;
            reserve(cx, args.skip(at))?;
            value = cx.store.peek(cx.db, name)?.map(|entry| &entry.value);
        }
        match value {
            Some(Value::Str(s)) => bulk(cx.out, s).or_load(cx.db, name)?,
            _ => cx.out.null(),
        }
    }
    Ok(())
}

/// Returns the keys and values behind the command's name.
fn pairs<'a>(args: Args<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    (1..args.len()).step_by(2).filter_map(move |i| Some((args.get(i)?, args.get(i + 1)?)))
}

/// Returns true if any of the keys exists. Afterwards all of them are in memory.
fn any_exists(cx: &mut Ctx<'_>, args: Args<'_>) -> Result<bool, Stop> {
    let mut found = false;
    for (name, _) in pairs(args) {
        found |= cx.store.peek(cx.db, name)?.is_some();
    }
    Ok(found)
}

fn set_one(cx: &mut Ctx<'_>, name: &[u8], value: &[u8]) -> Outcome {
    let mut entry = cx.store.replace(cx.db, name, value, 0)?;
    entry.event(NotifyFlags::STRING, "set");
    Ok(())
}

fn check_pairs(args: Args<'_>, command: &str) -> Outcome {
    if args.len().is_multiple_of(2) {
        return Err(error::arity(command).into());
    }
    Ok(())
}

/// `MSET key value [key value …]`
fn mset(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    check_pairs(args, "mset")?;
    let hashes = cx.store.can_replace(cx.db, pairs(args).map(|(name, _)| name))?;
    for ((name, value), at) in pairs(args).zip(hashes) {
        cx.store.hint(name, at);
        set_one(cx, name, value)?;
    }
    cx.out.ok();
    Ok(())
}

/// `MSETNX key value [key value …]`
fn msetnx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    check_pairs(args, "msetnx")?;
    let free = !any_exists(cx, args)?;
    if free {
        pairs(args).try_for_each(|(name, value)| set_one(cx, name, value))?;
    }
    cx.out.int(i64::from(free));
    Ok(())
}

/// Declarations of the commands on several strings.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "mget",
        group: Group::String,
        complexity: "O(N) with N the number of keys.",
        summary: "Returns the strings of several keys atomically.",
        arity: -2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::to_end(1, 1, key!(RO | ACCESS))],
        tips: &["request_policy:multi_shard"],
        run: Run::Keys(mget),
        ..Spec::NEW
    },
    Spec {
        name: "mset",
        group: Group::String,
        since: "1.0.1",
        complexity: "O(N) with N the number of keys.",
        summary: "Sets several keys to strings atomically.",
        arity: -3,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::to_end(1, 2, key!(OW | UPDATE))],
        tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
        run: Run::Keys(mset),
        ..Spec::NEW
    },
    Spec {
        name: "msetnx",
        group: Group::String,
        since: "1.0.1",
        complexity: "O(N) with N the number of keys.",
        summary: "Sets several keys to strings atomically, if none of them exists.",
        arity: -3,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::to_end(1, 2, key!(OW | INSERT))],
        run: Run::Keys(msetnx),
        ..Spec::NEW
    },
];
