//! Commands on several sorted sets: ZUNION, ZINTER, ZDIFF, their *STORE forms, ZINTERCARD. Plain
//! sets are allowed; their members have the score 1.

use super::{reply, zset_from_members};
use crate::combine::{Combinable, SetOperation, Source, combined, count_inter, sources};
use crate::{
    Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word,
    key, tail,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{OrLoad, Part};
use flagstone_storage::value::{Set, Typed, Value, Zset};
use flagstone_wire::num::{parse_f64, parse_i64};
use flagstone_wire::resp::Args;
use std::cmp::Ordering;
use std::collections::HashMap;

/// A set or a sorted set.
#[derive(Clone, Copy, Debug)]
enum Scored<'a> {
    Set(&'a Set),
    Zset(&'a Zset),
}

/// The set or sorted set of a key; `None` if the key does not exist.
type ScoredSource<'a> = Option<Source<'a, Scored<'a>>>;

impl Scored<'_> {
    /// Returns the score of a name, if it is known to be a member.
    fn score(self, name: &[u8]) -> Option<f64> {
        match self {
            Self::Set(set) => (set.contains(name) == Ok(true)).then_some(1.0),
            Self::Zset(zset) => zset.score(name).ok().flatten(),
        }
    }
}

impl<'a> Scored<'a> {
    /// Visits all members, which must be in memory, with their scores.
    fn each(self, mut visit: impl FnMut(&'a [u8], f64)) {
        match self {
            Self::Set(set) => set.iter().for_each(|name| visit(name, 1.0)),
            Self::Zset(zset) => zset.iter().for_each(|(name, score)| visit(name, score)),
        }
    }
}

impl<'a> Combinable<'a> for Scored<'a> {
    fn is(value: &Value) -> bool {
        matches!(value, Value::Set(_) | Value::Zset(_))
    }

    fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Set(set) => Some(Self::Set(set)),
            Value::Zset(zset) => Some(Self::Zset(zset)),
            _ => None,
        }
    }

    fn size(self) -> u64 {
        match self {
            Self::Set(set) => set.len(),
            Self::Zset(zset) => zset.len(),
        }
    }

    fn require<'n>(self, names: impl Iterator<Item = &'n [u8]>) -> Result<(), Part> {
        match self {
            Self::Set(set) => set.require(names),
            Self::Zset(zset) => zset.require(names),
        }
    }

    fn require_all(self) -> Result<(), Part> {
        match self {
            Self::Set(set) => set.require_all(),
            Self::Zset(zset) => zset.require_all(),
        }
    }

    fn names(self) -> Vec<&'a [u8]> {
        match self {
            Self::Set(set) => set.iter().collect(),
            Self::Zset(zset) => zset.iter().map(|(name, _)| name).collect(),
        }
    }

    fn next_names(self, skip: u64, count: usize) -> Result<Vec<&'a [u8]>, Part> {
        match self {
            Self::Set(set) => set.next_names(skip, count),
            Self::Zset(zset) => {
                zset.by_rank(skip, count as u64, false)?.map(|item| Ok(item?.0)).collect()
            }
        }
    }

    fn contains(self, name: &[u8]) -> bool {
        self.score(name).is_some()
    }
}

/// Aggregation of a member's scores in several sources.
#[derive(Clone, Copy, Debug, Default)]
enum Aggregate {
    #[default]
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn parse(word: &[u8]) -> Option<Self> {
        let all = [("SUM", Self::Sum), ("MIN", Self::Min), ("MAX", Self::Max)];
        all.into_iter().find(|(name, _)| is_word(word, name)).map(|(_, aggregate)| aggregate)
    }

    /// Aggregates two scores. The sum of infinities of opposite signs is 0, as in Redis.
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum => number_or_zero(a + b),
            Self::Min if b < a => b,
            Self::Max if b > a => b,
            Self::Min | Self::Max => a,
        }
    }
}

fn number_or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The syntax of a command of this family.
#[derive(Clone, Copy, Debug)]
struct CombineSyntax {
    name: &'static str,
    op: SetOperation,
    /// Position of the argument with the number of keys.
    count_at: usize,
    /// True if only the number of members is returned.
    count_only: bool,
}

impl CombineSyntax {
    const fn show(name: &'static str, op: SetOperation) -> Self {
        Self { name, op, count_at: 1, count_only: false }
    }

    const fn store(name: &'static str, op: SetOperation) -> Self {
        Self { name, op, count_at: 2, count_only: false }
    }

    fn stores(self) -> bool {
        self.count_at == 2
    }

    /// Returns the number of keys.
    fn count(self, args: Args<'_>) -> Result<usize, Stop> {
        let count = int_arg(args, self.count_at)?;
        if count < 1 {
            return Err(
                format!("ERR at least 1 input key is needed for '{}' command", self.name).into()
            );
        }
        let most = args.len() - self.count_at - 1;
        let count = usize::try_from(count).ok().filter(|count| *count <= most);
        count.ok_or_else(|| error::SYNTAX.into())
    }
}

/// The options behind the keys.
#[derive(Debug, Default)]
struct CombineOptions {
    /// One weight for each key.
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Maximum of the count; 0: none.
    limit: u64,
}

impl CombineOptions {
    /// Parses the words from `at` on, behind `count` keys.
    fn parse(
        args: Args<'_>,
        mut at: usize,
        count: usize,
        syntax: CombineSyntax,
    ) -> Result<Self, Stop> {
        let mut options = Self { weights: vec![1.0; count], ..Self::default() };
        let weighs = syntax.op != SetOperation::Diff && !syntax.count_only;
        while let Some(word) = args.get(at) {
            let left = args.len() - at - 1;
            if weighs && left >= count && is_word(word, "WEIGHTS") {
                for (weight, text) in options.weights.iter_mut().zip(tail(args, at + 1)) {
                    *weight = parse_f64(text).ok_or("ERR weight value is not a float")?;
                }
                at += count;
            } else if weighs && left >= 1 && is_word(word, "AGGREGATE") {
                options.aggregate = Aggregate::parse(arg(args, at + 1)?).ok_or(error::SYNTAX)?;
                at += 1;
            } else if !syntax.stores() && !syntax.count_only && is_word(word, "WITHSCORES") {
                options.with_scores = true;
            } else if syntax.count_only && left >= 1 && is_word(word, "LIMIT") {
                options.limit = parse_i64(arg(args, at + 1)?)
                    .and_then(|limit| u64::try_from(limit).ok())
                    .ok_or("ERR LIMIT can't be negative")?;
                at += 1;
            } else {
                return Err(error::SYNTAX.into());
            }
            at += 1;
        }
        Ok(options)
    }

    /// Returns the score of a member of an intersection or difference, starting with that in the first
    /// source. If weight times score is not a number, 0 replaces it, except for the further scores, as in
    /// Redis.
    fn score(&self, name: &[u8], sources: &[(f64, Scored<'_>)]) -> f64 {
        let mut scores = sources.iter().filter_map(|(weight, source)| {
            let score = source.score(name)?;
            Some(weight * score)
        });
        let first = number_or_zero(scores.next().unwrap_or(0.0));
        scores.fold(first, |sum, score| self.aggregate.apply(sum, score))
    }
}

/// Returns the existing sources with their weights, the smallest first.
fn by_size<'a>(sources: &[ScoredSource<'a>], options: &CombineOptions) -> Vec<(f64, Scored<'a>)> {
    let all = options.weights.iter().zip(sources);
    let mut by_size: Vec<(f64, Scored<'a>)> =
        all.filter_map(|(weight, source)| Some((*weight, (*source)?.members))).collect();
    by_size.sort_by_key(|(_, source)| source.size());
    by_size
}

/// Returns the members of the sources, in any order. Each source is walked once: there may be many
/// thousands. If weight times score is not a number, 0 replaces it, as in Redis.
fn union<'a>(
    sources: &[ScoredSource<'a>],
    options: &CombineOptions,
) -> Result<Vec<(&'a [u8], f64)>, Stop> {
    for source in sources.iter().flatten() {
        source.members.require_all().or_load(source.db, source.key)?;
    }
    let mut scores: HashMap<&'a [u8], f64> = HashMap::new();
    for (weight, source) in by_size(sources, options) {
        source.each(|name, score| {
            let score = number_or_zero(weight * score);
            scores
                .entry(name)
                .and_modify(|sum| *sum = options.aggregate.apply(*sum, score))
                .or_insert(score);
        });
    }
    Ok(scores.into_iter().collect())
}

/// Returns the members of the combined sources, in order.
fn members<'a>(
    op: SetOperation,
    sources: &[ScoredSource<'a>],
    options: &CombineOptions,
) -> Result<Vec<(&'a [u8], f64)>, Stop> {
    let mut members = if op == SetOperation::Union {
        union(sources, options)?
    } else {
        let names = combined(op, sources)?;
        // The scores of a difference are those of its first source.
        let counts = if op == SetOperation::Diff { &sources[..1] } else { sources };
        let by_size = by_size(counts, options);
        names.into_iter().map(|name| (name, options.score(name, &by_size))).collect()
    };
    members.sort_unstable_by(|(name, score), (other, other_score)| {
        score.partial_cmp(other_score).unwrap_or(Ordering::Equal).then_with(|| name.cmp(other))
    });
    Ok(members)
}

/// `COMMAND numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`
fn show(cx: &mut Ctx<'_>, args: Args<'_>, syntax: CombineSyntax) -> Outcome {
    let count = syntax.count(args)?;
    let sources: Vec<ScoredSource<'_>> = sources(cx.store, cx.db, tail(args, 2).take(count))?;
    let options = CombineOptions::parse(args, 2 + count, count, syntax)?;
    if syntax.count_only {
        cx.out.count(count_inter(&sources, options.limit)?);
    } else {
        reply(cx.out, &members(syntax.op, &sources, &options)?, options.with_scores);
    }
    Ok(())
}

/// `COMMAND destination numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX]`
fn store(cx: &mut Ctx<'_>, args: Args<'_>, syntax: CombineSyntax) -> Outcome {
    let (target, count) = (arg(args, 1)?, syntax.count(args)?);
    cx.store.peek(cx.db, target)?;
    let sources: Vec<ScoredSource<'_>> = sources(cx.store, cx.db, tail(args, 3).take(count))?;
    let options = CombineOptions::parse(args, 3 + count, count, syntax)?;
    let zset = zset_from_members(&members(syntax.op, &sources, &options)?, cx.settings);
    cx.out.count(zset.len() as usize);
    Ok(cx.put_result(target, zset.into_value(), NotifyFlags::ZSET, syntax.name)?)
}

/// `ZUNION numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`
fn zunion(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, CombineSyntax::show("zunion", SetOperation::Union))
}

/// `ZINTER numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX] [WITHSCORES]`
fn zinter(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, CombineSyntax::show("zinter", SetOperation::Inter))
}

/// `ZINTERCARD numkeys key… [LIMIT limit]`
fn zintercard(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(
        cx,
        args,
        CombineSyntax {
            count_only: true,
            ..CombineSyntax::show("zintercard", SetOperation::Inter)
        },
    )
}

/// `ZDIFF numkeys key… [WITHSCORES]`
fn zdiff(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, CombineSyntax::show("zdiff", SetOperation::Diff))
}

/// `ZUNIONSTORE destination numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX]`
fn zunionstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, CombineSyntax::store("zunionstore", SetOperation::Union))
}

/// `ZINTERSTORE destination numkeys key… [WEIGHTS weight…] [AGGREGATE SUM | MIN | MAX]`
fn zinterstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, CombineSyntax::store("zinterstore", SetOperation::Inter))
}

/// `ZDIFFSTORE destination numkeys key…`
fn zdiffstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, CombineSyntax::store("zdiffstore", SetOperation::Diff))
}

/// Returns the key spec of keys behind their number, which are read.
const fn counted_keys(at: usize) -> KeySpec {
    KeySpec {
        flags: key!(RO | ACCESS),
        begin: Begin::Index(at),
        find: Find::KeyNum { at: 0, first: 1, step: 1 },
    }
}

const UNION_COMPLEXITY: &str =
    "O(N+M*log(M)) for N members in all sorted sets, and M in the result.";
const INTER_COMPLEXITY: &str =
    "O(N*K+M*log(M)) for N members in the smallest of K sorted sets, and M in the result.";
const DIFF_COMPLEXITY: &str =
    "O(N*K+M*log(M)) for N members in the first of K sorted sets, and M in the result.";

/// Common declaration of the commands that reply with members.
const SHOW: Spec = Spec {
    group: Group::SortedSet,
    since: "6.2.0",
    arity: -3,
    flags: flag!(READONLY),
    keys: &[counted_keys(1)],
    ..Spec::NEW
};

/// Common declaration of the commands that store members.
const STORE: Spec = Spec {
    arity: -4,
    flags: flag!(WRITE | DENYOOM),
    keys: &[KeySpec::one(1, key!(OW | UPDATE)), counted_keys(2)],
    ..SHOW
};

/// Declarations of the commands on several sorted sets.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zunion",
        complexity: UNION_COMPLEXITY,
        summary: "Returns the union of several sorted sets.",
        run: Run::Keys(zunion),
        ..SHOW
    },
    Spec {
        name: "zinter",
        complexity: INTER_COMPLEXITY,
        summary: "Returns the intersection of several sorted sets.",
        run: Run::Keys(zinter),
        ..SHOW
    },
    Spec {
        name: "zintercard",
        since: "7.0.0",
        complexity: "O(N*K) for N members in the smallest of K sorted sets.",
        summary: "Returns the number of members in the intersection of several sorted sets.",
        run: Run::Keys(zintercard),
        ..SHOW
    },
    Spec {
        name: "zdiff",
        complexity: DIFF_COMPLEXITY,
        summary: "Returns the difference of a sorted set and several others.",
        run: Run::Keys(zdiff),
        ..SHOW
    },
    Spec {
        name: "zunionstore",
        since: "2.0.0",
        complexity: UNION_COMPLEXITY,
        summary: "Stores the union of several sorted sets.",
        run: Run::Keys(zunionstore),
        ..STORE
    },
    Spec {
        name: "zinterstore",
        since: "2.0.0",
        complexity: INTER_COMPLEXITY,
        summary: "Stores the intersection of several sorted sets.",
        run: Run::Keys(zinterstore),
        ..STORE
    },
    Spec {
        name: "zdiffstore",
        complexity: DIFF_COMPLEXITY,
        summary: "Stores the difference of a sorted set and several others.",
        run: Run::Keys(zdiffstore),
        ..STORE
    },
];

#[cfg(test)]
#[path = "combine_tests.rs"]
mod tests;
