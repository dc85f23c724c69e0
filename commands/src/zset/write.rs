//! Changing members: ZADD, ZINCRBY, ZREM.

use super::{REMOVES, key_arg, outgrows_listpack, put};
use crate::DataSettings;
use crate::{
    Ctx, Group, KeySpec, Names, Outcome, Run, Spec, Stop, arg, error, flag, is_word, key, tail,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::{Value, Zset};
use flagstone_wire::num::parse_f64;
use flagstone_wire::resp::Args;

/// The options of ZADD.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ZaddOptions {
    /// NX: true to add only new members.
    only_new: bool,
    /// XX: true to change only existing members.
    only_old: bool,
    /// GT: true to change scores only to greater ones.
    greater: bool,
    /// LT: true to change scores only to smaller ones.
    less: bool,
    /// CH: true to count changed members, too.
    count_changed: bool,
    increment: bool,
}

impl ZaddOptions {
    /// Applies an option; returns false if the word is none.
    pub(crate) fn take(&mut self, word: &[u8]) -> bool {
        let options = [
            ("NX", &mut self.only_new),
            ("XX", &mut self.only_old),
            ("GT", &mut self.greater),
            ("LT", &mut self.less),
            ("CH", &mut self.count_changed),
            ("INCR", &mut self.increment),
        ];
        let found = options.into_iter().find(|(name, _)| is_word(word, name));
        found.map(|(_, option)| *option = true).is_some()
    }

    fn check(self, pairs: usize) -> Result<(), Stop> {
        if self.only_new && self.only_old {
            return Err("ERR XX and NX options at the same time are not compatible".into());
        }
        if (self.only_new && (self.greater || self.less)) || (self.greater && self.less) {
            return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
        }
        if self.increment && pairs > 1 {
            return Err("ERR INCR option supports a single increment-element pair".into());
        }
        Ok(())
    }

    /// Returns the new score of a member whose score is `old`, if the options allow a change.
    fn apply(self, old: Option<f64>, score: f64) -> Result<Option<f64>, Stop> {
        let Some(old) = old else { return Ok((!self.only_old).then_some(score)) };
        if self.only_new {
            return Ok(None);
        }
        let score = if self.increment { score + old } else { score };
        if score.is_nan() {
            return Err("ERR resulting score is not a number (NaN)".into());
        }
        let refused = (self.less && score >= old) || (self.greater && score <= old);
        Ok((!refused).then_some(score))
    }
}

/// Parses the pairs of scores and names from an argument on.
fn pairs_from(args: Args<'_>, first: usize) -> Result<Vec<(f64, &[u8])>, Stop> {
    let mut words = tail(args, first);
    let mut pairs = Vec::with_capacity(words.len() / 2);
    while let (Some(score), Some(name)) = (words.next(), words.next()) {
        pairs.push((parse_f64(score).ok_or(error::NOT_FLOAT)?, name));
    }
    Ok(pairs)
}

/// Result of adding pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Added {
    added: usize,
    changed: usize,
    /// The last score that was applied.
    score: Option<f64>,
}

fn add_all(
    entry: &mut EntryMut<'_>,
    pairs: &[(f64, &[u8])],
    options: ZaddOptions,
    settings: &DataSettings,
) -> Result<Added, Stop> {
    let mut done = Added::default();
    if options.only_old && entry.value.is_absent() {
        return Ok(done);
    }
    let longest = pairs.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
    if outgrows_listpack(pairs.len() as u64, longest, settings)
        && !entry.typed::<Zset>().is_some_and(Zset::is_skiplist)
    {
        match entry.recoded::<Zset>() {
            Some(zset) => zset.make_skiplist(),
            None => entry.typed_or_new::<Zset>()?.make_skiplist(),
        }
    }
    for &(score, name) in pairs {
        let old = entry.typed::<Zset>().and_then(|zset| zset.score(name).ok().flatten());
        let Some(score) = options.apply(old, score)? else { continue };
        done.score = Some(score);
        if old == Some(score) {
            continue;
        }
        put(entry.typed_or_new::<Zset>()?, name, score, settings);
        done.added += usize::from(old.is_none());
        done.changed += usize::from(old.is_some());
    }
    Ok(done)
}

/// Runs `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member…`, with options that are set
/// already.
fn add(cx: &mut Ctx<'_>, args: Args<'_>, mut options: ZaddOptions) -> Outcome {
    let mut first = 2;
    while args.get(first).is_some_and(|word| options.take(word)) {
        first += 1;
    }
    let words = args.len() - first;
    if words == 0 || words % 2 == 1 {
        return Err(error::SYNTAX.into());
    }
    options.check(words / 2)?;
    add_pairs(cx, key_arg(args)?, &pairs_from(args, first)?, options)
}

/// Adds pairs of scores and names, and replies.
pub(crate) fn add_pairs(
    cx: &mut Ctx<'_>,
    key: &[u8],
    pairs: &[(f64, &[u8])],
    options: ZaddOptions,
) -> Outcome {
    let settings = cx.settings;
    let mut entry = cx.store.entry_mut(cx.db, key)?;
    match &entry.value {
        Value::Absent => {}
        Value::Zset(zset) => {
            zset.require(pairs.iter().map(|(_, name)| *name)).or_load(cx.db, key)?;
        }
        _ => return Err(error::WRONG_TYPE.into()),
    }
    let done = add_all(&mut entry, pairs, options, settings)?;
    if done.added + done.changed > 0 {
        entry.event(NotifyFlags::ZSET, if options.increment { "zincr" } else { "zadd" });
    }
    match done.score {
        Some(score) if options.increment => cx.out.double(score),
        None if options.increment => cx.out.null(),
        _ if options.count_changed => cx.out.count(done.added + done.changed),
        _ => cx.out.count(done.added),
    }
    Ok(())
}

/// `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member…`
fn zadd(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    add(cx, args, ZaddOptions::default())
}

/// `ZINCRBY key increment member`
fn zincrby(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    add(cx, args, ZaddOptions { increment: true, ..ZaddOptions::default() })
}

/// `ZREM key member…`
fn zrem(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = arg(args, 1)?;
    let mut removed = 0;
    if let Some(mut entry) = cx.store.typed_mut::<Zset>(cx.db, key)? {
        if let Some(zset) = entry.typed::<Zset>() {
            zset.require(tail(args, 2)).or_load(cx.db, key)?;
        }
        for name in tail(args, 2) {
            let is_there = |zset: &Zset| zset.score(name).is_ok_and(|score| score.is_some());
            if entry.typed::<Zset>().is_some_and(is_there) {
                entry.typed_mut::<Zset>().map(|zset| zset.remove(name));
                removed += 1;
            }
        }
        entry.clear_if_empty();
        if removed > 0 {
            entry.removal_event(NotifyFlags::ZSET, "zrem");
        }
    }
    cx.out.count(removed);
    Ok(())
}

/// Common declaration of the commands that add members.
const ADD: Spec = Spec {
    group: Group::SortedSet,
    since: "1.2.0",
    complexity: "O(log(N)) for each member, N being how many the sorted set has.",
    arity: -4,
    flags: flag!(WRITE | DENYOOM | FAST),
    ..Spec::NEW
};

/// Declarations of the commands that change members.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zadd",
        names: Some(Names::behind(&["NX", "XX", "GT", "LT", "CH", "INCR"], 3, 2).scored()),
        summary: "Adds members with their scores, or changes scores.",
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(zadd),
        ..ADD
    },
    Spec {
        name: "zincrby",
        names: Some(Names::from(3, 1)),
        summary: "Increments a member's score.",
        arity: 4,
        keys: &[KeySpec::one(1, key!(RW | ACCESS | UPDATE))],
        run: Run::Keys(zincrby),
        ..ADD
    },
    Spec {
        name: "zrem",
        names: Some(Names::from(2, 1)),
        complexity: "O(M*log(N)) for M members removed of N.",
        summary: "Removes members, and the key with the last one.",
        arity: -3,
        flags: flag!(WRITE | FAST),
        keys: REMOVES,
        run: Run::Keys(zrem),
        ..ADD
    },
];
