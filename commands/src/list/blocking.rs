//! Popping elements and waiting for them: BLPOP, BRPOP, BLMPOP, BLMOVE, BRPOPLPUSH.

use super::moves::{self, MOVE};
use super::pop::{LmpopArgs, pop_one_of};
use super::{TAKES, is_front};
use crate::timeout::{last_arg, seconds_arg, wait_for};
use crate::{Awaited, Begin, Ctx, Find, Group, KeySpec, Nil, Outcome, Run, Spec, arg, flag, tail};
use flagstone_wire::resp::Args;

fn pop(cx: &mut Ctx<'_>, args: Args<'_>, front: bool) -> Outcome {
    let (until_ms, last) = last_arg(cx, args)?;
    let keys = args.iter().take(last).skip(1);
    for key in keys.clone() {
        if cx.is_here(key) && pop_one_of(cx, key, front)? {
            return Ok(());
        }
    }
    Err(wait_for(keys, Awaited::List, until_ms, Nil::Array))
}

/// `BLPOP key… timeout`
fn blpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop(cx, args, true)
}

/// `BRPOP key… timeout`
fn brpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop(cx, args, false)
}

/// `BLMPOP timeout numkeys key… LEFT|RIGHT [COUNT count]`
fn blmpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let until_ms = seconds_arg(arg(args, 1)?, cx.now_ms())?;
    let from = LmpopArgs::parse(args, 2)?;
    if from.pop(cx, args)? {
        return Ok(());
    }
    Err(wait_for(from.keys(args), Awaited::List, until_ms, Nil::Array))
}

fn move_element(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    from_front: bool,
    to_front: bool,
    timeout: usize,
) -> Outcome {
    let until_ms = seconds_arg(arg(args, timeout)?, cx.now_ms())?;
    if moves::move_element(cx, args, from_front, to_front)? {
        let (from, to) = (arg(args, 1)?, arg(args, 2)?);
        match (args.get(3), args.get(4)) {
            (Some(from_end), Some(to_end)) if timeout == 5 => {
                cx.say(&[b"LMOVE", from, to, from_end, to_end]);
            }
            _ => cx.say(&[b"RPOPLPUSH", from, to]),
        }
        return Ok(());
    }
    Err(wait_for(tail(args, 1).take(1), Awaited::List, until_ms, Nil::Bulk))
}

/// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`
fn blmove(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (from_front, to_front) = (is_front(args, 3)?, is_front(args, 4)?);
    move_element(cx, args, from_front, to_front, 5)
}

/// `BRPOPLPUSH source destination timeout`
fn brpoplpush(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    move_element(cx, args, false, true, 3)
}

/// Common declaration of the commands that wait for an element of several lists.
const POP: Spec = Spec {
    group: Group::List,
    since: "2.0.0",
    complexity: "O(N) where N is the number of keys.",
    arity: -3,
    flags: flag!(WRITE | BLOCKING),
    keys: &[KeySpec { find: Find::Range { last: -2, step: 1, limit: 0 }, ..TAKES }],
    blocks: |_| true,
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "blpop",
        summary: "Pops the first element of the first nonempty list, or waits for one.",
        run: Run::Keys(blpop),
        ..POP
    },
    Spec {
        name: "brpop",
        summary: "Pops the last element of the first nonempty list, or waits for one.",
        run: Run::Keys(brpop),
        ..POP
    },
    Spec {
        name: "blmpop",
        since: "7.0.0",
        complexity: "O(N+M) where N is the number of keys and M the number of elements returned.",
        summary: "Pops elements from an end of the first nonempty list, or waits for one.",
        arity: -5,
        keys: &[KeySpec {
            begin: Begin::Index(2),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
            ..TAKES
        }],
        run: Run::Keys(blmpop),
        ..POP
    },
    Spec {
        name: "blmove",
        since: "6.2.0",
        summary: "Moves an element from an end of a list to an end of another, or waits for one.",
        arity: 6,
        flags: MOVE.flags.union(flag!(BLOCKING)),
        blocks: |_| true,
        run: Run::Keys(blmove),
        ..MOVE
    },
    Spec {
        name: "brpoplpush",
        since: "2.2.0",
        summary: "Moves the last element of a list to the front of another, or waits for one.",
        arity: 4,
        flags: MOVE.flags.union(flag!(BLOCKING)),
        blocks: |_| true,
        run: Run::Keys(brpoplpush),
        ..MOVE
    },
];
