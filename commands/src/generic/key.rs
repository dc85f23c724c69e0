//! DEL, EXISTS, TOUCH, TYPE and UNLINK.

use super::peek_key;
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, acl, arg, flag, key};
use flagstone_wire::resp::Args;

/// `DEL key [key ...]`, `UNLINK key [key ...]`
fn del(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    if args.len() > 2 {
        for name in args.iter().skip(1) {
            cx.store.peek(cx.db, name)?;
        }
    }
    let mut deleted = 0;
    for name in args.iter().skip(1) {
        deleted += usize::from(cx.delete(name)?);
    }
    cx.out.count(deleted);
    Ok(())
}

/// `EXISTS key [key ...]`
fn exists(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut found = 0;
    for name in args.iter().skip(1) {
        found += usize::from(peek_key(cx, name, |_| ())?.is_some());
    }
    cx.out.count(found);
    Ok(())
}

/// `TOUCH key [key ...]`
fn touch(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut found = 0;
    for name in args.iter().skip(1) {
        found += usize::from(cx.store.exists_touching(cx.db, name)?);
    }
    cx.out.count(found);
    Ok(())
}

/// `TYPE key`
fn type_of(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let found = peek_key(cx, arg(args, 1)?, |entry| entry.value.type_name())?;
    cx.out.simple(found.unwrap_or("none"));
    Ok(())
}

/// Tips for cluster clients: spread the command over the nodes, sum the replies.
const SUMMED: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];

/// Common declaration of the commands that count keys.
const COUNT: Spec = Spec {
    complexity: "O(N) in the number of keys",
    arity: -2,
    flags: flag!(READONLY | FAST),
    keys: &[KeySpec::to_end(1, 1, key!(RO))],
    acl: acl!(KEYSPACE),
    tips: SUMMED,
    ..Spec::NEW
};

/// Common declaration of the commands that delete keys.
const DELETE: Spec =
    Spec { flags: flag!(WRITE), keys: &[KeySpec::to_end(1, 1, key!(RM | DELETE))], ..COUNT };

/// Declarations of the commands that look up or delete keys.
pub const COMMANDS: &[Spec] = &[
    Spec { name: "del", summary: "Deletes keys of any type.", run: Run::Keys(del), ..DELETE },
    Spec {
        name: "unlink",
        since: "4.0.0",
        summary: "Deletes keys; their memory is freed later.",
        flags: flag!(WRITE | FAST),
        run: Run::Keys(del),
        ..DELETE
    },
    Spec {
        name: "exists",
        summary: "Returns the number of the given keys that exist.",
        run: Run::Keys(exists),
        ..COUNT
    },
    Spec {
        name: "touch",
        since: "3.2.1",
        summary: "Updates the access time of keys and returns the number of those that exist.",
        run: Run::Keys(touch),
        ..COUNT
    },
    Spec {
        name: "type",
        group: Group::Generic,
        summary: "Returns the type of the value of a key.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO))],
        acl: acl!(KEYSPACE),
        run: Run::Keys(type_of),
        ..Spec::NEW
    },
];
