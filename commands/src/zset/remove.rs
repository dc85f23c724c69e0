//! Removing ranges: ZREMRANGEBYRANK, ZREMRANGEBYSCORE, ZREMRANGEBYLEX.

use super::parse::{self, Ranks};
use super::{REMOVES, collect_members, key_arg};
use crate::{Ctx, Group, Outcome, Run, Spec, arg, flag};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{Zset, ZsetWalk};
use flagstone_wire::resp::Args;

/// Removes the members that `find` selects from the key's sorted set.
fn remove(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    event: &'static str,
    find: impl Fn(&Zset) -> Result<ZsetWalk<'_>, Part>,
) -> Outcome {
    let (db, key) = (cx.db, key_arg(args)?);
    let mut removed = 0;
    if let Some(mut entry) = cx.store.typed_mut::<Zset>(db, key)? {
        let found = match entry.typed::<Zset>() {
            Some(zset) => find(zset).and_then(collect_members).or_load(db, key)?,
            None => Vec::new(),
        };
        removed = found.len();
        if removed > 0
            && let Some(zset) = entry.typed_mut::<Zset>()
        {
            for (name, score) in &found {
                zset.remove_found(name, *score);
            }
            entry.clear_if_empty();
            entry.removal_event(NotifyFlags::ZSET, event);
        }
    }
    cx.out.count(removed);
    Ok(())
}

/// `ZREMRANGEBYRANK key start stop`
fn zremrangebyrank(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let ranks = Ranks::parse(args, 2)?;
    let (db, key) = (cx.db, key_arg(args)?);
    if let Some(mut entry) = cx.store.typed_mut::<Zset>(db, key)? {
        let len = entry.typed::<Zset>().map_or(0, Zset::len);
        if ranks.of(len) == (0, len) {
            entry.clear();
            entry.removal_event(NotifyFlags::ZSET, "zremrangebyrank");
            cx.out.int(len.cast_signed());
            return Ok(());
        }
    }
    remove(cx, args, "zremrangebyrank", |zset| {
        let (first, count) = ranks.of(zset.len());
        zset.by_rank(first, count, false)
    })
}

/// `ZREMRANGEBYSCORE key min max`
fn zremrangebyscore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let span = parse::score_span(arg(args, 2)?, arg(args, 3)?)?;
    remove(cx, args, "zremrangebyscore", |zset| zset.within(&span, 0, u64::MAX, false))
}

/// `ZREMRANGEBYLEX key min max`
fn zremrangebylex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (min, max) = parse::lex_edges(arg(args, 2)?, arg(args, 3)?)?;
    remove(cx, args, "zremrangebylex", |zset| {
        zset.within(&zset.lex_span(min, max, false)?, 0, u64::MAX, false)
    })
}

/// Common declaration of the commands that remove a range.
const REMOVE: Spec = Spec {
    group: Group::SortedSet,
    complexity: "O(M*log(N)) for M members removed of N.",
    arity: 4,
    flags: flag!(WRITE),
    keys: REMOVES,
    ..Spec::NEW
};

/// Declarations of the commands that remove ranges.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zremrangebyrank",
        since: "2.0.0",
        summary: "Removes the members in a range of ranks.",
        run: Run::Keys(zremrangebyrank),
        ..REMOVE
    },
    Spec {
        name: "zremrangebyscore",
        since: "1.2.0",
        summary: "Removes the members in a range of scores.",
        run: Run::Keys(zremrangebyscore),
        ..REMOVE
    },
    Spec {
        name: "zremrangebylex",
        since: "2.8.9",
        summary: "Removes the members in a range of names.",
        run: Run::Keys(zremrangebylex),
        ..REMOVE
    },
];
