//! Reading fields: HGET, HMGET, HGETALL, HKEYS, HVALS, HLEN, HSTRLEN, HEXISTS.

use super::{LOOKS, READS, key_arg, remove_expired, tail};
use crate::{Ctx, Group, Names, Outcome, Run, Spec, arg, flag};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Field;
use flagstone_wire::resp::reply::FRAME;
use flagstone_wire::resp::{Args, Reply};

/// Approximate bytes of fields that HMGET loads at once: in between it looks whether they fit into its
/// reply.
const LOADED_AT_ONCE: u64 = 8 << 20;

/// Replies with the result of `reply` for one field, and removes the field if it has expired.
fn one_field(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    reply: impl FnOnce(&mut Reply, Option<&Field>),
) -> Outcome {
    let (key, name) = (key_arg(args)?, arg(args, 2)?);
    let due_ms = cx.due_ms();
    let Some(hash) = cx.store.hash(cx.db, key)? else {
        reply(cx.out, None);
        return Ok(());
    };
    let field = hash.peek(name).or_load(cx.db, key)?;
    let expired = field.is_some_and(|field| field.is_expired(due_ms));
    reply(cx.out, field.filter(|_| !expired));
    if expired {
        remove_expired(cx, key, std::iter::once(name), Some("hexpired"))?;
    }
    Ok(())
}

/// `HGET key field`
fn hget(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    one_field(cx, args, |out, field| out.bulk_or_null(field.map(|field| &*field.value)))
}

/// `HSTRLEN key field`
fn hstrlen(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    one_field(cx, args, |out, field| out.count(field.map_or(0, |field| field.value.len())))
}

/// `HEXISTS key field`
fn hexists(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    one_field(cx, args, |out, field| out.int(i64::from(field.is_some())))
}

/// `HMGET key field…`
fn hmget(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let due_ms = cx.due_ms();
    let hash = cx.store.hash(cx.db, key)?;
    if let Some(hash) = hash
        && let Err(part) = hash.require_some_of(tail(args, 2), LOADED_AT_ONCE)
    {
        let known = || tail(args, 2).filter_map(|name| hash.get(name, due_ms).ok()?);
        let sizes = || known().map(|field| field.value.len() + FRAME);
        if !cx.out.foresee(sizes().sum(), sizes().max().unwrap_or_default()) {
            return Ok(());
        }
        return Err(part.of(cx.db, key).into());
    }
    cx.out.array(args.len() - 2);
    let Some(hash) = hash else {
        tail(args, 2).for_each(|_| cx.out.null());
        return Ok(());
    };
    for name in tail(args, 2) {
        let field = hash.get(name, due_ms).or_load(cx.db, key)?;
        cx.out.bulk_or_null(field.map(|field| &*field.value));
    }
    if hash.is_due(due_ms) {
        remove_expired(cx, key, tail(args, 2), Some("hexpired"))?;
    }
    Ok(())
}

/// The part of each field that HGETALL and its variants return.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldPart {
    Names,
    Values,
    Both,
}

fn all_fields(cx: &mut Ctx<'_>, args: Args<'_>, part: FieldPart) -> Outcome {
    let key = key_arg(args)?;
    let due_ms = cx.due_ms();
    let hash = cx.store.hash(cx.db, key)?;
    if let Some(hash) = hash
        && let Err(missing) = hash.require_all()
    {
        // A reply that does not fit needs no fields.
        if part == FieldPart::Both && !cx.out.foresee_at_least(hash.least_reply(due_ms)) {
            return Ok(());
        }
        return Err(missing.of(cx.db, key).into());
    }
    let len = hash.map_or(0, |hash| hash.live_len(due_ms)) as usize;
    if part == FieldPart::Both {
        cx.out.map(len);
    } else {
        cx.out.array(len);
    }
    let Some(hash) = hash else { return Ok(()) };
    for (name, field) in hash.iter().filter(|(_, field)| !field.is_expired(due_ms)) {
        if part != FieldPart::Values {
            cx.out.bulk(name);
        }
        if part != FieldPart::Names {
            cx.out.bulk(&field.value);
        }
    }
    Ok(())
}

/// `HGETALL key`
fn hgetall(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    all_fields(cx, args, FieldPart::Both)
}

/// `HKEYS key`
fn hkeys(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    all_fields(cx, args, FieldPart::Names)
}

/// `HVALS key`
fn hvals(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    all_fields(cx, args, FieldPart::Values)
}

/// `HLEN key`
fn hlen(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let len = cx.store.hash(cx.db, key_arg(args)?)?.map_or(0, |hash| hash.len());
    cx.out.count(len as usize);
    Ok(())
}

/// Common declaration of the commands that read a hash.
const READ: Spec =
    Spec { group: Group::Hash, since: "2.0.0", flags: flag!(READONLY), keys: READS, ..Spec::NEW };

/// Declarations of the commands that read fields.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "hget",
        names: Some(Names::from(2, 1)),
        summary: "Returns the value of a field.",
        arity: 3,
        flags: flag!(READONLY | FAST),
        run: Run::Keys(hget),
        ..READ
    },
    Spec {
        name: "hmget",
        names: Some(Names::from(2, 1)),
        complexity: "O(N) where N is the number of fields asked for.",
        summary: "Returns the values of fields.",
        arity: -3,
        flags: flag!(READONLY | FAST),
        run: Run::Keys(hmget),
        ..READ
    },
    Spec {
        name: "hgetall",
        complexity: "O(N) where N is the size of the hash.",
        summary: "Returns all fields with their values.",
        arity: 2,
        tips: &["nondeterministic_output_order"],
        run: Run::Keys(hgetall),
        ..READ
    },
    Spec {
        name: "hkeys",
        complexity: "O(N) where N is the size of the hash.",
        summary: "Returns the names of all fields.",
        arity: 2,
        tips: &["nondeterministic_output_order"],
        run: Run::Keys(hkeys),
        ..READ
    },
    Spec {
        name: "hvals",
        complexity: "O(N) where N is the size of the hash.",
        summary: "Returns the values of all fields.",
        arity: 2,
        tips: &["nondeterministic_output_order"],
        run: Run::Keys(hvals),
        ..READ
    },
    Spec {
        name: "hlen",
        summary: "Returns the number of fields.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: LOOKS,
        run: Run::Keys(hlen),
        ..READ
    },
    Spec {
        name: "hstrlen",
        names: Some(Names::from(2, 1)),
        since: "3.2.0",
        summary: "Returns the length of a field's value.",
        arity: 3,
        flags: flag!(READONLY | FAST),
        keys: LOOKS,
        run: Run::Keys(hstrlen),
        ..READ
    },
    Spec {
        name: "hexists",
        names: Some(Names::from(2, 1)),
        summary: "Tests if a field exists.",
        arity: 3,
        flags: flag!(READONLY | FAST),
        keys: LOOKS,
        run: Run::Keys(hexists),
        ..READ
    },
];
