//! Strings as numbers: INCR, DECR and their variants.

use crate::{
    CommandFlags, Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, key,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::value::{Str, Value};
use flagstone_wire::num::{LongDouble, parse_i64};
use flagstone_wire::resp::Args;

const OVERFLOW: &str = "ERR increment or decrement would overflow";
const DECREMENT_OVERFLOW: &str = "ERR decrement would overflow";
const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";

/// Returns the text of a string that may be a number; one stored in chunks is too long for a
/// number.
fn number_text(value: &Str) -> Option<&[u8]> {
    match value {
        Str::Emb(bytes) => Some(bytes),
        Str::Raw(bytes) => Some(bytes),
        Str::Int(_) | Str::Big(_) => None,
    }
}

/// Returns the integer of a value; 0 if it is absent.
fn integer(value: &Value) -> Result<i64, Stop> {
    match value {
        Value::Absent => Ok(0),
        Value::Str(Str::Int(n)) => Ok(*n),
        Value::Str(s) => number_text(s).and_then(parse_i64).ok_or(error::NOT_INTEGER.into()),
        _ => Err(error::WRONG_TYPE.into()),
    }
}

/// Returns the number of a value; 0 if it is absent.
fn float(value: Option<&Value>) -> Result<LongDouble, Stop> {
    match value {
        None | Some(Value::Absent) => Ok(LongDouble::ZERO),
        Some(Value::Str(Str::Int(n))) => Ok(LongDouble::from(*n)),
        Some(Value::Str(s)) => {
            number_text(s).and_then(LongDouble::parse).ok_or(error::NOT_FLOAT.into())
        }
        Some(_) => Err(error::WRONG_TYPE.into()),
    }
}

fn add(cx: &mut Ctx<'_>, name: &[u8], by: i64) -> Outcome {
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    let sum = integer(&entry.value)?.checked_add(by).ok_or(OVERFLOW)?;
    entry.value = Value::Str(Str::Int(sum));
    entry.event(NotifyFlags::STRING, "incrby");
    cx.out.int(sum);
    Ok(())
}

/// `INCR key`
fn incr(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    add(cx, arg(args, 1)?, 1)
}

/// `DECR key`
fn decr(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    add(cx, arg(args, 1)?, -1)
}

/// `INCRBY key increment`
fn incrby(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let by = int_arg(args, 2)?;
    add(cx, arg(args, 1)?, by)
}

/// `DECRBY key decrement`
fn decrby(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let by = int_arg(args, 2)?.checked_neg().ok_or(DECREMENT_OVERFLOW)?;
    add(cx, arg(args, 1)?, by)
}

/// `INCRBYFLOAT key increment`
fn incrbyfloat(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let name = arg(args, 1)?;
    let old = float(cx.store.peek(cx.db, name)?.map(|entry| &entry.value))?;
    let by = LongDouble::parse(arg(args, 2)?).ok_or(error::NOT_FLOAT)?;
    let sum = old.checked_add(by).ok_or(NOT_FINITE)?.to_string();
    let mut entry = cx.store.entry_mut(cx.db, name)?;
    entry.value = Value::Str(Str::text(sum.as_bytes()));
    entry.event(NotifyFlags::STRING, "incrbyfloat");
    cx.say(&[b"SET", name, sum.as_bytes(), b"KEEPTTL"]);
    cx.out.bulk_str(&sum);
    Ok(())
}

const FLAGS: CommandFlags = flag!(WRITE | DENYOOM | FAST);
const KEYS: &[KeySpec] = &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))];

/// Declarations of the commands that count.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "incr",
        group: Group::String,
        summary: "Increments the integer of a key by one; a missing key counts as 0.",
        arity: 2,
        flags: FLAGS,
        keys: KEYS,
        run: Run::Keys(incr),
        ..Spec::NEW
    },
    Spec {
        name: "decr",
        group: Group::String,
        summary: "Decrements the integer of a key by one; a missing key counts as 0.",
        arity: 2,
        flags: FLAGS,
        keys: KEYS,
        run: Run::Keys(decr),
        ..Spec::NEW
    },
    Spec {
        name: "incrby",
        group: Group::String,
        summary: "Increments the integer of a key; a missing key counts as 0.",
        arity: 3,
        flags: FLAGS,
        keys: KEYS,
        run: Run::Keys(incrby),
        ..Spec::NEW
    },
    Spec {
        name: "decrby",
        group: Group::String,
        summary: "Decrements the integer of a key; a missing key counts as 0.",
        arity: 3,
        flags: FLAGS,
        keys: KEYS,
        run: Run::Keys(decrby),
        ..Spec::NEW
    },
    Spec {
        name: "incrbyfloat",
        group: Group::String,
        since: "2.6.0",
        summary: "Increments the floating-point number of a key; a missing key counts as 0.",
        arity: 3,
        flags: FLAGS,
        keys: KEYS,
        run: Run::Keys(incrbyfloat),
        ..Spec::NEW
    },
];
