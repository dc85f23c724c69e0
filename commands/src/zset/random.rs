//! ZRANDMEMBER.

use super::{READS, key_arg, reply, reply_each};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, draws, error, flag, is_word};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Zset;
use flagstone_wire::resp::Args;

/// `ZRANDMEMBER key [count [WITHSCORES]]`
fn zrandmember(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    if args.len() == 2 {
        let drawn = match cx.store.typed::<Zset>(cx.db, key)? {
            Some(zset) => zset.draw(1).or_load(cx.db, key)?.next(),
            None => None,
        };
        cx.out.bulk_or_null(drawn.map(|(name, _)| name));
        return Ok(());
    }
    let count = draws::count_arg(args, 2)?;
    if args.len() > 4 || (args.len() == 4 && !is_word(arg(args, 3)?, "WITHSCORES")) {
        return Err(error::SYNTAX.into());
    }
    let with_scores = args.len() == 4;
    if with_scores && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err("ERR value is out of range".into());
    }
    let wanted = draws::draw_count(count)?;
    let drawn = match cx.store.typed::<Zset>(cx.db, key)? {
        None => Vec::new(),
        Some(zset) if count < 0 => {
            let drawn = zset.draw(wanted).or_load(cx.db, key)?;
            reply_each(cx.out, drawn, with_scores);
            return Ok(());
        }
        Some(zset) if wanted as u64 >= zset.len() && wanted > 1 => {
            let all = zset.by_rank(0, u64::MAX, zset.is_skiplist());
            all.and_then(Iterator::collect).or_load(cx.db, key)?
        }
        Some(zset) => zset.sample(wanted).or_load(cx.db, key)?,
    };
    reply(cx.out, &drawn, with_scores);
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "zrandmember",
    group: Group::SortedSet,
    since: "6.2.0",
    complexity: "O(N) where N is the number of members returned.",
    summary: "Returns members drawn at random.",
    arity: -2,
    flags: flag!(READONLY),
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(zrandmember),
    ..Spec::NEW
}];
