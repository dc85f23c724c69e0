//! Popping members: ZPOPMIN, ZPOPMAX, ZMPOP.

use super::parse::count_arg;
use super::{OwnedMembers, collect_members, key_arg, reply};
use crate::{
    Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, error, flag, is_word, key,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::Zset;
use flagstone_wire::resp::Args;

/// Pops up to `count` members from an end, and removes the key with the last one.
pub(super) fn pop(
    entry: &mut EntryMut<'_>,
    (db, key): (u32, &[u8]),
    count: u64,
    from_max: bool,
) -> Result<OwnedMembers, Stop> {
    let popped = match entry.typed::<Zset>() {
        Some(zset) => {
            zset.by_rank(0, count, from_max).and_then(collect_members).or_load(db, key)?
        }
        None => OwnedMembers::new(),
    };
    if popped.is_empty() {
        return Ok(popped);
    }
    if let Some(zset) = entry.typed_mut::<Zset>() {
        for (name, score) in &popped {
            zset.remove_found(name, *score);
        }
    }
    entry.clear_if_empty();
    entry.removal_event(NotifyFlags::ZSET, if from_max { "zpopmax" } else { "zpopmin" });
    Ok(popped)
}

/// Returns the command that pops from an end.
pub(super) fn pop_word(from_max: bool) -> &'static [u8] {
    if from_max { b"ZPOPMAX" } else { b"ZPOPMIN" }
}

/// Runs `ZPOPMIN key [count]`, or ZPOPMAX.
fn pop_from(cx: &mut Ctx<'_>, args: Args<'_>, from_max: bool) -> Outcome {
    if args.len() > 3 {
        return Err(error::SYNTAX.into());
    }
    let has_count = args.len() == 3;
    let count = if has_count {
        count_arg(args, 2, 0, "ERR value is out of range, must be positive")?
    } else {
        1
    };
    let (db, key) = (cx.db, key_arg(args)?);
    let popped = match cx.store.typed_mut::<Zset>(db, key)? {
        Some(mut entry) => pop(&mut entry, (db, key), count, from_max)?,
        None => OwnedMembers::new(),
    };
    if has_count {
        reply(cx.out, &popped, true);
        return Ok(());
    }
    cx.out.array(2 * popped.len());
    for (name, score) in &popped {
        cx.out.bulk(name);
        cx.out.double(*score);
    }
    Ok(())
}

/// `ZPOPMIN key [count]`
fn zpopmin(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop_from(cx, args, false)
}

/// `ZPOPMAX key [count]`
fn zpopmax(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop_from(cx, args, true)
}

/// The arguments of ZMPOP.
pub(super) struct ZmpopArgs {
    /// Positions of the keys among the arguments.
    keys: std::ops::Range<usize>,
    count: u64,
    from_max: bool,
}

impl ZmpopArgs {
    /// Parses `numkeys key… MIN | MAX [COUNT count]`, from the argument `at` on.
    pub(super) fn parse(args: Args<'_>, mut at: usize) -> Result<Self, Stop> {
        let keys = count_arg(args, at, 1, "ERR numkeys should be greater than 0")?;
        let keys = usize::try_from(keys).ok().filter(|&keys| keys < args.len());
        let keys = at + 1..at + 1 + keys.ok_or(error::SYNTAX)?;
        at = keys.end;
        let from_max = match args.get(at) {
            Some(word) if is_word(word, "MIN") => false,
            Some(word) if is_word(word, "MAX") => true,
            _ => return Err(error::SYNTAX.into()),
        };
        let mut count = None;
        at += 1;
        while let Some(word) = args.get(at) {
            if count.is_some() || !is_word(word, "COUNT") || at + 1 == args.len() {
                return Err(error::SYNTAX.into());
            }
            count = Some(count_arg(args, at + 1, 1, "ERR count should be greater than 0")?);
            at += 2;
        }
        Ok(Self { keys, count: count.unwrap_or(1), from_max })
    }

    /// Returns the keys.
    pub(super) fn keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        args.iter().take(self.keys.end).skip(self.keys.start)
    }

    /// Pops members from the first sorted set that exists; returns false if none does.
    pub(super) fn pop(&self, cx: &mut Ctx<'_>, args: Args<'_>) -> Result<bool, Stop> {
        let db = cx.db;
        for key in self.keys(args) {
            if !cx.is_here(key) {
                continue;
            }
            let Some(mut entry) = cx.store.typed_mut::<Zset>(db, key)? else { continue };
            let popped = pop(&mut entry, (db, key), self.count, self.from_max)?;
            cx.out.array(2);
            cx.out.bulk(key);
            cx.out.array(popped.len());
            for (name, score) in &popped {
                cx.out.array(2);
                cx.out.bulk(name);
                cx.out.double(*score);
            }
            let count = popped.len().to_string();
            cx.say(&[pop_word(self.from_max), key, count.as_bytes()]);
            return Ok(true);
        }
        Ok(false)
    }
}

/// `ZMPOP numkeys key… MIN | MAX [COUNT count]`
fn zmpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    if !ZmpopArgs::parse(args, 1)?.pop(cx, args)? {
        cx.out.null_array();
    }
    Ok(())
}

/// Common declaration of the commands that pop members.
const POP: Spec = Spec {
    group: Group::SortedSet,
    since: "5.0.0",
    complexity: "O(M*log(N)) for M members popped of N.",
    arity: -2,
    flags: flag!(WRITE | FAST),
    keys: &[KeySpec::one(1, key!(RW | ACCESS | DELETE))],
    ..Spec::NEW
};

/// Declarations of the commands that pop members.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "zpopmin",
        summary: "Removes and returns the members with the lowest scores.",
        run: Run::Keys(zpopmin),
        ..POP
    },
    Spec {
        name: "zpopmax",
        summary: "Removes and returns the members with the highest scores.",
        run: Run::Keys(zpopmax),
        ..POP
    },
    Spec {
        name: "zmpop",
        since: "7.0.0",
        complexity: "O(K)+O(M*log(N)) for K keys and M members popped of N.",
        summary: "Pops members from the first of several sorted sets that exists.",
        arity: -4,
        flags: flag!(WRITE),
        keys: &[KeySpec {
            flags: key!(RW | ACCESS | DELETE),
            begin: Begin::Index(1),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
        }],
        run: Run::Keys(zmpop),
        ..POP
    },
];
