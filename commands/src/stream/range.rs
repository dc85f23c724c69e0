//! Reading ranges: XLEN, XRANGE, XREVRANGE.

use super::parse::{interval_end, interval_start};
use super::{READS, key_arg, reply_entries};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, arg, error, flag, int_arg, is_word, key};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Stream;
use flagstone_wire::resp::Args;

/// `XLEN key`
fn xlen(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let stream = cx.store.typed::<Stream>(cx.db, key_arg(args)?)?;
    cx.out.count(stream.map_or(0, |stream| stream.len() as usize));
    Ok(())
}

fn range(cx: &mut Ctx<'_>, args: Args<'_>, reverse: bool) -> Outcome {
    let (start, end) = if reverse { (3, 2) } else { (2, 3) };
    let from = interval_start(arg(args, start)?)?;
    let to = interval_end(arg(args, end)?)?;
    let mut count = None;
    let mut at = 4;
    while let Some(option) = args.get(at) {
        if !is_word(option, "count") || args.get(at + 1).is_none() {
            return Err(error::SYNTAX.into());
        }
        count = Some(u64::try_from(int_arg(args, at + 1)?).unwrap_or(0));
        at += 2;
    }
    let key = key_arg(args)?;
    let Some(stream) = cx.store.typed::<Stream>(cx.db, key)? else {
        cx.out.array(0);
        return Ok(());
    };
    if count == Some(0) {
        cx.out.null_array();
        return Ok(());
    }
    let entries = stream.range(from, to, count.unwrap_or(u64::MAX), reverse);
    reply_entries(cx.out, entries.or_load(cx.db, key)?);
    Ok(())
}

/// `XRANGE key start end [COUNT count]`
fn xrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    range(cx, args, false)
}

/// `XREVRANGE key end start [COUNT count]`
fn xrevrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    range(cx, args, true)
}

/// Common declaration of the commands that read a stream.
const READ: Spec = Spec {
    group: Group::Stream,
    since: "5.0.0",
    flags: flag!(READONLY),
    keys: &[READS],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "xlen",
        summary: "Returns the number of entries of a stream.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO))],
        run: Run::Keys(xlen),
        ..READ
    },
    Spec {
        name: "xrange",
        complexity: "O(log(N)+M) where N is the number of nodes and M the number of entries returned.",
        summary: "Returns the entries of an interval of ids.",
        arity: -4,
        run: Run::Keys(xrange),
        ..READ
    },
    Spec {
        name: "xrevrange",
        complexity: "O(log(N)+M) where N is the number of nodes and M the number of entries returned.",
        summary: "Returns the entries of an interval of ids in reverse order.",
        arity: -4,
        run: Run::Keys(xrevrange),
        ..READ
    },
];
