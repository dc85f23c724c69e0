//! Ranges: ZRANGE and its older forms, ZRANGESTORE.

use super::parse::{self, Ranks};
use super::{OwnedMembers, READS, collect_members, outgrows_listpack, put, reply, zset_of};
use crate::DataSettings;
use crate::{
    Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word, key,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{LexEdge, Span, Typed, Zset, ZsetWalk};
use flagstone_wire::resp::Args;

/// Order that a range refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RangeOrder {
    Rank,
    Score,
    Lex,
}

/// A range of members.
#[derive(Debug)]
enum ZsetRange<'a> {
    Ranks(Ranks),
    Scores(Span),
    Names(LexEdge<'a>, LexEdge<'a>),
}

/// The options implied by a command's name.
#[derive(Clone, Copy, Debug, Default)]
struct RangeSyntax {
    by: Option<RangeOrder>,
    reverse: Option<bool>,
    /// True if the command stores the members, and takes no WITHSCORES.
    store: bool,
}

/// The options behind the range.
#[derive(Clone, Copy, Debug)]
struct RangeOptions {
    by: RangeOrder,
    reverse: bool,
    with_scores: bool,
    skip: i64,
    /// Maximum number of members; negative: all.
    count: i64,
}

#[derive(Debug)]
struct RangeQuery<'a> {
    key: &'a [u8],
    range: ZsetRange<'a>,
    options: RangeOptions,
}

impl RangeOptions {
    fn parse(args: Args<'_>, mut at: usize, syntax: RangeSyntax) -> Result<Self, Stop> {
        let (mut by, mut reverse) = (syntax.by, syntax.reverse);
        let (mut with_scores, mut skip, mut count) = (false, 0, -1);
        while let Some(word) = args.get(at) {
            if !syntax.store && is_word(word, "WITHSCORES") {
                with_scores = true;
            } else if is_word(word, "LIMIT") && at + 2 < args.len() {
                (skip, count) = (int_arg(args, at + 1)?, int_arg(args, at + 2)?);
                at += 2;
            } else if reverse.is_none() && is_word(word, "REV") {
                reverse = Some(true);
            } else if by.is_none() && is_word(word, "BYLEX") {
                by = Some(RangeOrder::Lex);
            } else if by.is_none() && is_word(word, "BYSCORE") {
                by = Some(RangeOrder::Score);
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        let by = by.unwrap_or(RangeOrder::Rank);
        if count != -1 && by == RangeOrder::Rank {
            return Err("ERR syntax error, LIMIT is only supported in combination with either \
                        BYSCORE or BYLEX"
                .into());
        }
        if with_scores && by == RangeOrder::Lex {
            return Err(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX".into()
            );
        }
        Ok(Self { by, reverse: reverse.unwrap_or(false), with_scores, skip, count })
    }
}

impl<'a> RangeQuery<'a> {
    /// Parses `key min max [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`, from the key
    /// at `at` on.
    fn parse(args: Args<'a>, at: usize, syntax: RangeSyntax) -> Result<Self, Stop> {
        let options = RangeOptions::parse(args, at + 3, syntax)?;
        let (mut min, mut max) = (arg(args, at + 1)?, arg(args, at + 2)?);
        if options.reverse {
            (min, max) = (max, min);
        }
        let range = match options.by {
            RangeOrder::Rank => ZsetRange::Ranks(Ranks::parse(args, at + 1)?),
            RangeOrder::Score => ZsetRange::Scores(parse::score_span(min, max)?),
            RangeOrder::Lex => {
                let (min, max) = parse::lex_edges(min, max)?;
                ZsetRange::Names(min, max)
            }
        };
        Ok(Self { key: arg(args, at)?, range, options })
    }

    /// Returns the members of the range.
    fn walk<'z>(&self, zset: &'z Zset) -> Result<ZsetWalk<'z>, Part> {
        let reverse = self.options.reverse;
        match &self.range {
            ZsetRange::Ranks(ranks) => {
                let (first, count) = ranks.of(zset.len());
                zset.by_rank(first, count, reverse)
            }
            ZsetRange::Scores(span) => self.limited(zset, span),
            ZsetRange::Names(min, max) => self.limited(zset, &zset.lex_span(*min, *max, reverse)?),
        }
    }

    /// Returns the members that LIMIT selects from the range. A negative offset selects none from a
    /// listpack; in a skiplist it counts from the end of the range, as in Redis.
    fn limited<'z>(&self, zset: &'z Zset, span: &Span) -> Result<ZsetWalk<'z>, Part> {
        let RangeOptions { skip, count, reverse, .. } = self.options;
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let skip = match u64::try_from(skip) {
            Ok(skip) => Some(skip),
            Err(_) if !zset.is_skiplist() => None,
            Err(_) => zset.count(span)?.checked_sub(skip.unsigned_abs()),
        };
        match skip {
            Some(skip) => zset.within(span, skip, count, reverse),
            None => zset.within(&Span::none(), 0, 0, reverse),
        }
    }
}

fn show(cx: &mut Ctx<'_>, args: Args<'_>, syntax: RangeSyntax) -> Outcome {
    let query = RangeQuery::parse(args, 1, syntax)?;
    let members: Vec<(&[u8], f64)> = match cx.store.typed::<Zset>(cx.db, query.key)? {
        Some(zset) => {
            let found = query.walk(zset).and_then(Iterator::collect);
            found.or_load(cx.db, query.key)?
        }
        None => Vec::new(),
    };
    reply(cx.out, &members, query.options.with_scores);
    Ok(())
}

/// `ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`
fn zrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax::default())
}

/// `ZREVRANGE key start stop [WITHSCORES]`
fn zrevrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax { by: Some(RangeOrder::Rank), reverse: Some(true), store: false })
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`
fn zrangebyscore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax { by: Some(RangeOrder::Score), reverse: Some(false), store: false })
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`
fn zrevrangebyscore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax { by: Some(RangeOrder::Score), reverse: Some(true), store: false })
}

/// `ZRANGEBYLEX key min max [LIMIT offset count]`
fn zrangebylex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax { by: Some(RangeOrder::Lex), reverse: Some(false), store: false })
}

/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`
fn zrevrangebylex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, RangeSyntax { by: Some(RangeOrder::Lex), reverse: Some(true), store: false })
}

/// Returns a sorted set built by adding the members one by one. As in Redis, a negative zero
/// becomes a positive one while it is a listpack, and the number of members is known in advance
/// only for a range of ranks.
fn stored(members: &OwnedMembers, by: RangeOrder, settings: &DataSettings) -> Zset {
    let count = if by == RangeOrder::Rank { members.len() as u64 } else { 0 };
    let mut zset = Zset::new(outgrows_listpack(count, 0, settings));
    for (name, score) in members {
        put(&mut zset, name, *score, settings);
    }
    zset
}

/// `ZRANGESTORE destination source min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]`
fn zrangestore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let query = RangeQuery::parse(args, 2, RangeSyntax { store: true, ..RangeSyntax::default() })?;
    let (db, settings) = (cx.db, cx.settings);
    let members = match zset_of(cx, query.key)? {
        Some(zset) => query.walk(zset).and_then(collect_members).or_load(db, query.key)?,
        None => Vec::new(),
    };
    let destination = arg(args, 1)?;
    cx.out.count(members.len());
    let zset = stored(&members, query.options.by, settings);
    Ok(cx.put_result(destination, zset.into_value(), NotifyFlags::ZSET, "zrangestore")?)
}

/// Common declaration of the commands that read a range.
const RANGE: Spec = Spec {
    group: Group::SortedSet,
    complexity: "O(log(N)+M) for M members returned of N.",
    arity: -4,
    flags: flag!(READONLY),
    keys: READS,
    ..Spec::NEW
};

/// Declarations of the commands that read ranges.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zrange",
        since: "1.2.0",
        summary: "Returns the members in a range of ranks, scores or names.",
        run: Run::Keys(zrange),
        ..RANGE
    },
    Spec {
        name: "zrevrange",
        since: "1.2.0",
        summary: "Returns the members in a range of ranks, in descending order.",
        run: Run::Keys(zrevrange),
        ..RANGE
    },
    Spec {
        name: "zrangebyscore",
        since: "1.0.5",
        summary: "Returns the members in a range of scores.",
        run: Run::Keys(zrangebyscore),
        ..RANGE
    },
    Spec {
        name: "zrevrangebyscore",
        since: "2.2.0",
        summary: "Returns the members in a range of scores, in descending order.",
        run: Run::Keys(zrevrangebyscore),
        ..RANGE
    },
    Spec {
        name: "zrangebylex",
        since: "2.8.9",
        summary: "Returns the members in a range of names.",
        run: Run::Keys(zrangebylex),
        ..RANGE
    },
    Spec {
        name: "zrevrangebylex",
        since: "2.8.9",
        summary: "Returns the members in a range of names, in descending order.",
        run: Run::Keys(zrevrangebylex),
        ..RANGE
    },
    Spec {
        name: "zrangestore",
        since: "6.2.0",
        complexity: "O(log(N)+M) for M members stored of N.",
        summary: "Stores the members in a range as another sorted set.",
        arity: -5,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(1, key!(OW | UPDATE)), KeySpec::one(2, key!(RO | ACCESS))],
        run: Run::Keys(zrangestore),
        ..RANGE
    },
];
