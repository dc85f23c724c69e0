//! Changing fields: HSET, HMSET, HSETNX, HDEL, HINCRBY, HINCRBYFLOAT.

use super::{
    READS_UPDATES, UPDATES, convert_for, convert_if_long, drop_if_empty, entry_with_fields,
    hash_in, hash_or_new, key_arg, remove_field, tail,
};
use crate::{Ctx, Group, KeySpec, Names, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Field;
use flagstone_wire::num::{LongDouble, parse_i64};
use flagstone_wire::resp::Args;

/// Sets the pairs from the third argument on; returns the number of new fields.
fn set_pairs(cx: &mut Ctx<'_>, args: Args<'_>, command: &str) -> Result<usize, Stop> {
    if args.len() % 2 == 1 {
        return Err(error::arity(command).into());
    }
    let settings = cx.settings;
    let mut entry = entry_with_fields(cx, key_arg(args)?, tail(args, 2).step_by(2))?;
    let hash = hash_or_new(&mut entry)?;
    convert_for(hash, settings, tail(args, 2));
    let mut created = 0;
    let mut words = tail(args, 2);
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        created += usize::from(hash.set(name, value, 0));
    }
    convert_if_long(hash, settings);
    entry.event(NotifyFlags::HASH, "hset");
    Ok(created)
}

/// `HSET key field value…`
fn hset(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let created = set_pairs(cx, args, "hset")?;
    cx.out.count(created);
    Ok(())
}

/// `HMSET key field value…`
fn hmset(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    set_pairs(cx, args, "hmset")?;
    cx.out.ok();
    Ok(())
}

/// `HSETNX key field value`
fn hsetnx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, name, value) = (key_arg(args)?, arg(args, 2)?, arg(args, 3)?);
    let (db, settings, due_ms) = (cx.db, cx.settings, cx.due_ms());
    let mut entry = entry_with_fields(cx, key, std::iter::once(name))?;
    if let Some(hash) = hash_in(&entry)
        && hash.get(name, due_ms).or_load(db, key)?.is_some()
    {
        cx.out.int(0);
        return Ok(());
    }
    let hash = hash_or_new(&mut entry)?;
    convert_for(hash, settings, tail(args, 2));
    hash.set(name, value, 0);
    convert_if_long(hash, settings);
    entry.event(NotifyFlags::HASH, "hset");
    cx.out.int(1);
    Ok(())
}

/// `HDEL key field…`
fn hdel(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let mut deleted = 0;
    if let Some(mut entry) = cx.store.hash_mut(cx.db, key)? {
        if let Some(hash) = hash_in(&entry) {
            hash.require(tail(args, 2)).or_load(cx.db, key)?;
        }
        for name in tail(args, 2) {
            deleted += usize::from(remove_field(&mut entry, name).is_some());
        }
        if deleted > 0 {
            drop_if_empty(&mut entry);
            entry.removal_event(NotifyFlags::HASH, "hdel");
        }
    }
    cx.out.count(deleted);
    Ok(())
}

/// Replaces a field's value by the result of `change`, which gets `None` if the field does not
/// exist; the expiry stays. Returns the new value and the expiry.
fn change_field(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    event: &'static str,
    change: impl FnOnce(Option<&[u8]>) -> Result<String, Stop>,
) -> Result<(String, u64), Stop> {
    let (key, name) = (key_arg(args)?, arg(args, 2)?);
    let (db, settings, due_ms) = (cx.db, cx.settings, cx.due_ms());
    let mut entry = entry_with_fields(cx, key, std::iter::once(name))?;
    let field: Option<&Field> = match hash_in(&entry) {
        Some(hash) => hash.get(name, due_ms).or_load(db, key)?,
        None => None,
    };
    let expire_at_ms = field.map_or(0, |field| field.expire_at_ms);
    let value = change(field.map(|field| &*field.value))?;
    let hash = hash_or_new(&mut entry)?;
    convert_for(hash, settings, [name, value.as_bytes()].into_iter());
    hash.set(name, value.as_bytes(), expire_at_ms);
    convert_if_long(hash, settings);
    entry.event(NotifyFlags::HASH, event);
    Ok((value, expire_at_ms))
}

/// `HINCRBY key field increment`
fn hincrby(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let increment = int_arg(args, 3)?;
    let mut sum = 0;
    change_field(cx, args, "hincrby", |value| {
        let value = match value {
            Some(text) => parse_i64(text).ok_or("ERR hash value is not an integer")?,
            None => 0,
        };
        sum = value.checked_add(increment).ok_or("ERR increment or decrement would overflow")?;
        Ok(sum.to_string())
    })?;
    cx.out.int(sum);
    Ok(())
}

/// `HINCRBYFLOAT key field increment`
fn hincrbyfloat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let increment = LongDouble::parse(arg(args, 3)?).ok_or(error::NOT_FLOAT)?;
    if !increment.is_finite() {
        return Err("ERR value is NaN or Infinity".into());
    }
    let (sum, expire_at_ms) = change_field(cx, args, "hincrbyfloat", |value| {
        let value = match value {
            Some(text) => LongDouble::parse(text).ok_or("ERR hash value is not a float")?,
            None => LongDouble::ZERO,
        };
        let sum = value.checked_add(increment);
        Ok(sum.ok_or("ERR increment would produce NaN or Infinity")?.to_string())
    })?;
    if cx.is_heard() {
        let (key, name) = (key_arg(args)?, arg(args, 2)?);
        cx.say(&[b"HSET", key, name, sum.as_bytes()]);
        if expire_at_ms != 0 {
            // HSET has removed the expiry. Redis 7.4 has no command that sets a value and keeps it.
            let at_ms = expire_at_ms.to_string();
            cx.say(&[b"HPEXPIREAT", key, at_ms.as_bytes(), b"FIELDS", b"1", name]);
        }
    }
    cx.out.bulk_str(&sum);
    Ok(())
}

/// Common declaration of the commands that change a hash.
const WRITE: Spec = Spec {
    group: Group::Hash,
    since: "2.0.0",
    flags: flag!(WRITE | DENYOOM | FAST),
    keys: UPDATES,
    ..Spec::NEW
};

/// Declarations of the commands that change fields.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "hset",
        names: Some(Names::from(2, 2)),
        complexity: "O(N) where N is the number of fields set.",
        summary: "Sets fields to values.",
        arity: -4,
        run: Run::Keys(hset),
        ..WRITE
    },
    Spec {
        name: "hmset",
        names: Some(Names::from(2, 2)),
        complexity: "O(N) where N is the number of fields set.",
        summary: "Sets fields to values; HSET does the same.",
        arity: -4,
        run: Run::Keys(hmset),
        ..WRITE
    },
    Spec {
        name: "hsetnx",
        names: Some(Names::from(2, 2)),
        summary: "Sets a field that does not exist.",
        arity: 4,
        keys: &[KeySpec::one(1, key!(RW | INSERT))],
        run: Run::Keys(hsetnx),
        ..WRITE
    },
    Spec {
        name: "hdel",
        names: Some(Names::from(2, 1)),
        complexity: "O(N) where N is the number of fields removed.",
        summary: "Removes fields, and the key with the last one.",
        arity: -3,
        flags: flag!(WRITE | FAST),
        keys: &[KeySpec::one(1, key!(RW | DELETE))],
        run: Run::Keys(hdel),
        ..WRITE
    },
    Spec {
        name: "hincrby",
        names: Some(Names::from(2, 2)),
        summary: "Increments a field's integer.",
        arity: 4,
        keys: READS_UPDATES,
        run: Run::Keys(hincrby),
        ..WRITE
    },
    Spec {
        name: "hincrbyfloat",
        names: Some(Names::from(2, 2)),
        since: "2.6.0",
        summary: "Increments a field's floating-point number.",
        arity: 4,
        keys: READS_UPDATES,
        run: Run::Keys(hincrbyfloat),
        ..WRITE
    },
];
