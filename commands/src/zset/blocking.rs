//! Popping members and waiting for them: BZPOPMIN, BZPOPMAX, BZMPOP.

use super::pop::{ZmpopArgs, pop, pop_word};
use crate::timeout::{last_arg, seconds_arg, wait_for};
use crate::{
    Awaited, Begin, Ctx, Find, Group, KeyFlags, KeySpec, Nil, Outcome, Run, Spec, arg, flag, key,
};
use flagstone_storage::value::Zset;
use flagstone_wire::resp::Args;

fn pop_from(cx: &mut Ctx<'_>, args: Args<'_>, from_max: bool) -> Outcome {
    let (until_ms, last) = last_arg(cx, args)?;
    let (db, keys) = (cx.db, args.iter().take(last).skip(1));
    for key in keys.clone() {
        if !cx.is_here(key) {
            continue;
        }
        let Some(mut entry) = cx.store.typed_mut::<Zset>(db, key)? else { continue };
        let popped = pop(&mut entry, (db, key), 1, from_max)?;
        let Some((name, score)) = popped.first() else { continue };
        cx.out.array(3);
        cx.out.bulk(key);
        cx.out.bulk(name);
        cx.out.double(*score);
        cx.say(&[pop_word(from_max), key]);
        return Ok(());
    }
    Err(wait_for(keys, Awaited::Zset, until_ms, Nil::Array))
}

/// `BZPOPMIN key… timeout`
fn bzpopmin(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop_from(cx, args, false)
}

/// `BZPOPMAX key… timeout`
fn bzpopmax(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop_from(cx, args, true)
}

/// `BZMPOP timeout numkeys key… MIN | MAX [COUNT count]`
fn bzmpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let until_ms = seconds_arg(arg(args, 1)?, cx.now_ms())?;
    let from = ZmpopArgs::parse(args, 2)?;
    if from.pop(cx, args)? {
        return Ok(());
    }
    Err(wait_for(from.keys(args), Awaited::Zset, until_ms, Nil::Array))
}

const TAKES: KeyFlags = key!(RW | ACCESS | DELETE);

/// Common declaration of the commands that wait for a member of several sorted sets.
const POP: Spec = Spec {
    group: Group::SortedSet,
    since: "5.0.0",
    complexity: "O(log(N)) with N being the number of members.",
    arity: -3,
    flags: flag!(WRITE | BLOCKING | FAST),
    keys: &[KeySpec {
        flags: TAKES,
        begin: Begin::Index(1),
        find: Find::Range { last: -2, step: 1, limit: 0 },
    }],
    blocks: |_| true,
    ..Spec::NEW
};

/// Declarations of the commands that wait for members.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "bzpopmin",
        summary: "Pops the member with the lowest score of the first nonempty sorted set, or waits for one.",
        run: Run::Keys(bzpopmin),
        ..POP
    },
    Spec {
        name: "bzpopmax",
        summary: "Pops the member with the highest score of the first nonempty sorted set, or waits for one.",
        run: Run::Keys(bzpopmax),
        ..POP
    },
    Spec {
        name: "bzmpop",
        since: "7.0.0",
        complexity: "O(K)+O(M*log(N)) for K keys and M members popped of N.",
        summary: "Pops members from the first nonempty sorted set, or waits for one.",
        arity: -5,
        flags: flag!(WRITE | BLOCKING),
        keys: &[KeySpec {
            flags: TAKES,
            begin: Begin::Index(2),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
        }],
        run: Run::Keys(bzmpop),
        ..POP
    },
];
