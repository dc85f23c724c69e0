//! Scores, ranks and counts: ZSCORE, ZMSCORE, ZCARD, ZRANK, ZREVRANK, ZCOUNT, ZLEXCOUNT.

use super::{READS, key_arg, parse, zset_of};
use crate::{Ctx, Group, KeySpec, Names, Outcome, Run, Spec, arg, error, flag, is_word, key, tail};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::Zset;
use flagstone_wire::resp::{Args, Reply};

/// `ZSCORE key member`
fn zscore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key) = (cx.db, key_arg(args)?);
    let score = match zset_of(cx, key)? {
        Some(zset) => zset.score(arg(args, 2)?).or_load(db, key)?,
        None => None,
    };
    match score {
        Some(score) => cx.out.double(score),
        None => cx.out.null(),
    }
    Ok(())
}

/// Calls `reply` for each of the members from the second argument on, with its score if it exists.
pub(crate) fn each_score(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    reply: impl Fn(&mut Reply, Option<f64>),
) -> Outcome {
    let key = key_arg(args)?;
    let zset = cx.store.typed::<Zset>(cx.db, key)?;
    if let Some(zset) = zset {
        zset.require(tail(args, 2)).or_load(cx.db, key)?;
    }
    cx.out.array(args.len() - 2);
    for name in tail(args, 2) {
        reply(cx.out, zset.and_then(|zset| zset.score(name).ok().flatten()));
    }
    Ok(())
}

/// `ZMSCORE key member…`
fn zmscore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    each_score(cx, args, |out, score| match score {
        Some(score) => out.double(score),
        None => out.null(),
    })
}

/// `ZCARD key`
fn zcard(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let len = zset_of(cx, key_arg(args)?)?.map_or(0, Zset::len);
    cx.out.int(len.cast_signed());
    Ok(())
}

/// Runs `ZRANK key member [WITHSCORE]`, from the end if `reverse`.
fn rank(cx: &mut Ctx<'_>, args: Args<'_>, reverse: bool, command: &str) -> Outcome {
    if args.len() > 4 {
        return Err(error::arity(command).into());
    }
    let with_score = match args.get(3) {
        Some(word) if !is_word(word, "WITHSCORE") => return Err(error::SYNTAX.into()),
        word => word.is_some(),
    };
    let (db, key) = (cx.db, key_arg(args)?);
    let found = match zset_of(cx, key)? {
        Some(zset) => zset.rank(arg(args, 2)?, reverse).or_load(db, key)?,
        None => None,
    };
    match found {
        Some((rank, score)) => {
            if with_score {
                cx.out.array(2);
            }
            cx.out.int(rank.cast_signed());
            if with_score {
                cx.out.double(score);
            }
        }
        None if with_score => cx.out.null_array(),
        None => cx.out.null(),
    }
    Ok(())
}

/// `ZRANK key member [WITHSCORE]`
fn zrank(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    rank(cx, args, false, "zrank")
}

/// `ZREVRANK key member [WITHSCORE]`
fn zrevrank(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    rank(cx, args, true, "zrevrank")
}

/// `ZCOUNT key min max`
fn zcount(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let span = parse::score_span(arg(args, 2)?, arg(args, 3)?)?;
    let (db, key) = (cx.db, key_arg(args)?);
    let count = match zset_of(cx, key)? {
        Some(zset) => zset.count(&span).or_load(db, key)?,
        None => 0,
    };
    cx.out.int(count.cast_signed());
    Ok(())
}

/// `ZLEXCOUNT key min max`
fn zlexcount(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (min, max) = parse::lex_edges(arg(args, 2)?, arg(args, 3)?)?;
    let (db, key) = (cx.db, key_arg(args)?);
    let count = match zset_of(cx, key)? {
        Some(zset) => {
            zset.lex_span(min, max, false).and_then(|span| zset.count(&span)).or_load(db, key)?
        }
        None => 0,
    };
    cx.out.int(count.cast_signed());
    Ok(())
}

/// Common declaration of the commands that read a sorted set.
const READ: Spec = Spec {
    group: Group::SortedSet,
    since: "1.2.0",
    flags: flag!(READONLY | FAST),
    keys: READS,
    ..Spec::NEW
};

/// Common declaration of the reading commands with logarithmic complexity.
const SEARCH: Spec = Spec {
    since: "2.0.0",
    complexity: "O(log(N)) where N is the number of members.",
    arity: -3,
    ..READ
};

/// Declarations of the commands that read scores, ranks and counts.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zscore",
        names: Some(Names::from(2, 1)),
        summary: "Returns the score of a member.",
        arity: 3,
        run: Run::Keys(zscore),
        ..READ
    },
    Spec {
        name: "zmscore",
        names: Some(Names::from(2, 1)),
        since: "6.2.0",
        complexity: "O(N) where N is the number of members named.",
        summary: "Returns the scores of members.",
        arity: -3,
        run: Run::Keys(zmscore),
        ..READ
    },
    Spec {
        name: "zcard",
        summary: "Returns the number of members.",
        arity: 2,
        keys: &[KeySpec::one(1, key!(RO))],
        run: Run::Keys(zcard),
        ..READ
    },
    Spec {
        name: "zrank",
        names: Some(Names::from(2, 2)),
        summary: "Returns the position of a member in ascending order.",
        run: Run::Keys(zrank),
        ..SEARCH
    },
    Spec {
        name: "zrevrank",
        names: Some(Names::from(2, 2)),
        summary: "Returns the position of a member in descending order.",
        run: Run::Keys(zrevrank),
        ..SEARCH
    },
    Spec {
        name: "zcount",
        summary: "Counts the members with scores in a range.",
        arity: 4,
        run: Run::Keys(zcount),
        ..SEARCH
    },
    Spec {
        name: "zlexcount",
        since: "2.8.9",
        summary: "Counts the members with names in a range.",
        arity: 4,
        run: Run::Keys(zlexcount),
        ..SEARCH
    },
];
