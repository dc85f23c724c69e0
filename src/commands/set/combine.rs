//! Several sets at once: SINTER, SINTERCARD, SUNION, SDIFF, and their *STORE forms.
//!
//! Of a set that is only partly in memory no more is asked for than the others leave possible: an
//! intersection walks the smallest set and asks the others for what is left of it.

use super::{encoding, key_arg, tail};
use crate::commands::{
    Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, arg, error, flag, is_word, key,
};
use crate::config::Settings;
use crate::num::parse_i64;
use crate::resp::Args;
use flagstone_storage::Store;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Set, SetEncoding, Typed};
use std::collections::HashSet;

/// How sets are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Inter,
    Union,
    Diff,
}

/// A set with its key.
#[derive(Clone, Copy)]
struct Source<'a> {
    db: u32,
    key: &'a [u8],
    set: &'a Set,
}

/// From names for a part like this of a set's members on, the whole set is read instead of each
/// name by itself.
const MANY: u64 = 4;

/// Members of the smallest set that SINTERCARD with a limit looks at first, at least and at most.
const BLOCK: (usize, usize) = (512, 8192);

impl<'a> Source<'a> {
    /// All members.
    fn members(&self) -> Result<Vec<&'a [u8]>, Fault> {
        self.set.require_all().or_load(self.db, self.key)?;
        Ok(self.set.members())
    }

    /// Those of the names that are members, or with `!inside`, that are not.
    fn filter<'n>(&self, names: Vec<&'n [u8]>, inside: bool) -> Result<Vec<&'n [u8]>, Fault> {
        let is_many = (names.len() as u64).saturating_mul(MANY) > self.set.len();
        let known = match is_many {
            true => self.set.require_all(),
            false => self.set.require(names.iter().copied()),
        };
        known.or_load(self.db, self.key)?;
        let wanted = |name: &&[u8]| self.set.contains(name) == Ok(inside);
        Ok(names.into_iter().filter(wanted).collect())
    }
}

/// The sets of some keys; `None` for a key that does not exist.
fn sources<'a>(
    store: &'a mut Store,
    db: u32,
    keys: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<Vec<Option<Source<'a>>>, Fault> {
    for key in keys.clone() {
        store.typed::<Set>(db, key)?;
    }
    let store = &*store;
    let source = |key| {
        let set = Set::of(&store.found(db, key)?.value)?;
        Some(Source { db, key, set })
    };
    Ok(keys.map(source).collect())
}

/// The smallest set and the others, by size; `None` if a key does not exist.
fn smallest_first<'a>(sources: &[Option<Source<'a>>]) -> Option<(Source<'a>, Vec<Source<'a>>)> {
    let mut sources: Vec<Source<'a>> = sources.iter().copied().collect::<Option<_>>()?;
    sources.sort_by_key(|source| source.set.len());
    let mut sources = sources.into_iter();
    Some((sources.next()?, sources.collect()))
}

/// The members that are in all of the sets, in the order of the smallest.
fn inter<'a>(sources: &[Option<Source<'a>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, others)) = smallest_first(sources) else { return Ok(Vec::new()) };
    let names = first.members()?;
    others.iter().try_fold(names, |names, other| other.filter(names, true))
}

/// The members that are in any of the sets.
fn union<'a>(sources: &[Option<Source<'a>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for source in sources.iter().flatten() {
        names.extend(source.members()?.into_iter().filter(|name| seen.insert(*name)));
    }
    Ok(names)
}

/// What a difference is made of: the first set, and those that exist of the others; `None` if it is
/// empty whatever is in them.
fn minuend<'a>(sources: &[Option<Source<'a>>]) -> Option<(Source<'a>, Vec<Source<'a>>)> {
    let (first, others) = sources.split_first()?;
    let first = (*first)?;
    let others: Vec<Source<'a>> = others.iter().copied().flatten().collect();
    (!others.iter().any(|other| other.key == first.key)).then_some((first, others))
}

/// Whether it is less work to take the members of the others from those of the first than to look
/// for each member of the first in all others; as Redis decides it.
fn takes_away(first: Source<'_>, others: &[Source<'_>]) -> bool {
    let len = first.set.len();
    let sum: u64 = others.iter().map(|other| other.set.len()).sum();
    len * (others.len() as u64 + 1) / 2 > len + sum
}

/// The members of the first set that are in none of the others.
fn diff<'a>(sources: &[Option<Source<'a>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, mut others)) = minuend(sources) else { return Ok(Vec::new()) };
    let names = first.members()?;
    if takes_away(first, &others) {
        let taken = union(&others.into_iter().map(Some).collect::<Vec<_>>())?;
        let taken: HashSet<&[u8]> = taken.into_iter().collect();
        return Ok(names.into_iter().filter(|name| !taken.contains(name)).collect());
    }
    others.sort_by_key(|other| std::cmp::Reverse(other.set.len()));
    others.iter().try_fold(names, |names, other| other.filter(names, false))
}

fn combined<'a>(op: Op, sources: &[Option<Source<'a>>]) -> Result<Vec<&'a [u8]>, Fault> {
    match op {
        Op::Inter => inter(sources),
        Op::Union => union(sources),
        Op::Diff => diff(sources),
    }
}

/// The set that the *STORE commands leave of `names`, which are what the sources combine to.
fn stored(op: Op, sources: &[Option<Source<'_>>], names: &[&[u8]], settings: &Settings) -> Set {
    let build =
        |encoding, names: &[&[u8]]| encoding::build(encoding, names.iter().copied(), settings);
    match op {
        Op::Inter => {
            let smallest = smallest_first(sources).map(|(first, _)| first.set.encoding());
            let encoding = smallest.unwrap_or_default().min(SetEncoding::Listpack);
            let mut set = build(encoding, names);
            encoding::back_to_intset(&mut set, settings);
            set
        }
        Op::Diff => match minuend(sources) {
            Some((first, others)) if takes_away(first, &others) => {
                // Its encoding is that of all the members of the first.
                let mut set = build(SetEncoding::Intset, &first.set.members());
                let left: HashSet<&[u8]> = names.iter().copied().collect();
                for name in first.set.iter().filter(|name| !left.contains(name)) {
                    set.remove(name);
                }
                set
            }
            _ => build(SetEncoding::Intset, names),
        },
        Op::Union => build(SetEncoding::Intset, names),
    }
}

/// Replies with what the sets of the keys behind the command's name combine to.
fn show(cx: &mut Ctx<'_>, args: Args<'_>, op: Op) -> Outcome {
    let sources = sources(cx.store, cx.db, tail(args, 1))?;
    let mut names = combined(op, &sources)?;
    let is_intset = |source: &Source<'_>| source.set.encoding() == SetEncoding::Intset;
    if op == Op::Union && sources.iter().flatten().all(is_intset) {
        names.sort_by_cached_key(|name| parse_i64(name));
    }
    cx.out.set(names.len());
    names.iter().for_each(|name| cx.out.bulk(name));
    Ok(())
}

/// Puts what the sets of the keys from the third argument on combine to into the key before.
fn store(cx: &mut Ctx<'_>, args: Args<'_>, op: Op) -> Outcome {
    let target = key_arg(args)?;
    cx.store.peek(cx.db, target)?;
    let sources = sources(cx.store, cx.db, tail(args, 2))?;
    let names = combined(op, &sources)?;
    let set = stored(op, &sources, &names, cx.settings);
    cx.out.count(set.len() as usize);
    if set.is_empty() {
        cx.store.remove(cx.db, target)?;
        return Ok(());
    }
    let mut entry = cx.store.entry_mut(cx.db, target)?;
    entry.value = set.into_value();
    entry.expire_at_ms = 0;
    Ok(())
}

/// `SINTER key…`
fn sinter(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, Op::Inter)
}

/// `SUNION key…`
fn sunion(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, Op::Union)
}

/// `SDIFF key…`
fn sdiff(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, Op::Diff)
}

/// `SINTERSTORE destination key…`
fn sinterstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, Op::Inter)
}

/// `SUNIONSTORE destination key…`
fn sunionstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, Op::Union)
}

/// `SDIFFSTORE destination key…`
fn sdiffstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, Op::Diff)
}

/// `SINTERCARD numkeys key… [LIMIT limit]`
fn sintercard(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let count = parse_i64(arg(args, 1)?).filter(|&count| count >= 1);
    let count = count.ok_or("ERR numkeys should be greater than 0")?;
    let count = usize::try_from(count).ok().filter(|count| *count <= args.len() - 2);
    let count = count.ok_or("ERR Number of keys can't be greater than number of args")?;
    let mut limit = 0;
    let mut at = 2 + count;
    while let Some(word) = args.get(at) {
        let value = args.get(at + 1).filter(|_| is_word(word, "LIMIT")).ok_or(error::SYNTAX)?;
        limit = parse_i64(value)
            .and_then(|limit| u64::try_from(limit).ok())
            .ok_or("ERR LIMIT can't be negative")?;
        at += 2;
    }
    let sources = sources(cx.store, cx.db, tail(args, 2).take(count))?;
    let found = match limit {
        0 => inter(&sources)?.len(),
        _ => count_up_to(&sources, usize::try_from(limit).unwrap_or(usize::MAX))?,
    };
    cx.out.count(found);
    Ok(())
}

/// The number of members that are in all sets, or `limit` if there are more. As long as it may
/// do with less, it does not ask for all.
fn count_up_to(sources: &[Option<Source<'_>>], limit: usize) -> Result<usize, Fault> {
    let Some((first, others)) = smallest_first(sources) else { return Ok(0) };
    let mut block = limit.clamp(BLOCK.0, BLOCK.1);
    first.set.require_some(block).or_load(first.db, first.key)?;
    let mut names = first.set.iter();
    let mut found = 0;
    loop {
        let some: Vec<&[u8]> = names.by_ref().take(block).collect();
        if some.is_empty() {
            // Of what is in memory it is too few.
            first.set.require_all().or_load(first.db, first.key)?;
            return Ok(found);
        }
        let left = others.iter().try_fold(some, |some, other| other.filter(some, true))?;
        found += left.len();
        if found >= limit {
            return Ok(limit);
        }
        block = block.saturating_mul(2);
    }
}

/// The keys from `first` to the end, which are read.
const fn all_from(first: usize) -> KeySpec {
    KeySpec::to_end(first, 1, key::RO | key::ACCESS)
}

/// A command that replies with a set.
const SHOW: Spec = Spec {
    group: Group::Set,
    complexity: "O(N) where N is the number of members in all sets.",
    arity: -2,
    flags: flag::READONLY,
    keys: &[all_from(1)],
    tips: &["nondeterministic_output_order"],
    ..Spec::NEW
};

/// One that stores it.
const STORE: Spec = Spec {
    arity: -3,
    flags: flag::WRITE | flag::DENYOOM,
    keys: &[KeySpec::one(1, key::OW | key::UPDATE), all_from(2)],
    tips: &[],
    ..SHOW
};

const INTER_COMPLEXITY: &str =
    "O(N*M) where N is the size of the smallest set and M the number of sets.";

/// The commands on several sets.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "sinter",
        complexity: INTER_COMPLEXITY,
        summary: "Returns the members that are in all of several sets.",
        run: Run::Keys(sinter),
        ..SHOW
    },
    Spec {
        name: "sintercard",
        since: "7.0.0",
        complexity: INTER_COMPLEXITY,
        summary: "Returns how many members are in all of several sets.",
        arity: -3,
        keys: &[KeySpec {
            flags: key::RO | key::ACCESS,
            begin: Begin::Index(1),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
        }],
        tips: &[],
        run: Run::Keys(sintercard),
        ..SHOW
    },
    Spec {
        name: "sunion",
        summary: "Returns the members that are in any of several sets.",
        run: Run::Keys(sunion),
        ..SHOW
    },
    Spec {
        name: "sdiff",
        summary: "Returns the members of a set that are in none of several others.",
        run: Run::Keys(sdiff),
        ..SHOW
    },
    Spec {
        name: "sinterstore",
        complexity: INTER_COMPLEXITY,
        summary: "Stores the members that are in all of several sets.",
        run: Run::Keys(sinterstore),
        ..STORE
    },
    Spec {
        name: "sunionstore",
        summary: "Stores the members that are in any of several sets.",
        run: Run::Keys(sunionstore),
        ..STORE
    },
    Spec {
        name: "sdiffstore",
        summary: "Stores the members of a set that are in none of several others.",
        run: Run::Keys(sdiffstore),
        ..STORE
    },
];
