//! Commands on several sets: SINTER, SINTERCARD, SUNION, SDIFF, and their *STORE forms.

use super::{encoding, key_arg, tail};
use crate::DataSettings;
use crate::combine::{
    SetOperation, Source, combined, count_inter, difference_sources, smallest_first, sources,
    subtracts_union,
};
use crate::{Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, arg, error, flag, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::value::{Set, SetEncoding, Typed};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;
use std::collections::HashSet;

/// The set of a key; `None` if the key does not exist.
type SetSource<'a> = Option<Source<'a, &'a Set>>;

/// Returns the set that a *STORE command stores: the members `names`, in the encoding that follows
/// from the sources.
fn stored(
    op: SetOperation,
    sources: &[SetSource<'_>],
    names: &[&[u8]],
    settings: &DataSettings,
) -> Set {
    let build =
        |encoding, names: &[&[u8]]| encoding::build(encoding, names.iter().copied(), settings);
    match op {
        SetOperation::Inter => {
            let smallest = smallest_first(sources).map(|(first, _)| first.members.encoding());
            let encoding = smallest.unwrap_or_default().min(SetEncoding::Listpack);
            let mut set = build(encoding, names);
            encoding::back_to_intset(&mut set, settings);
            set
        }
        SetOperation::Diff => match difference_sources(sources) {
            Some((first, others)) if subtracts_union(first, &others) => {
                // The encoding is that of a set of all the first source's members.
                let mut set = build(SetEncoding::Intset, &first.members.members());
                let left: HashSet<&[u8]> = names.iter().copied().collect();
                for name in first.members.iter().filter(|name| !left.contains(name)) {
                    set.remove(name);
                }
                set
            }
            _ => build(SetEncoding::Intset, names),
        },
        SetOperation::Union => build(SetEncoding::Intset, names),
    }
}

/// Combines the sets of the keys behind the command's name, and replies with the members.
fn show(cx: &mut Ctx<'_>, args: Args<'_>, op: SetOperation) -> Outcome {
    let sources: Vec<SetSource<'_>> = sources(cx.store, cx.db, tail(args, 1))?;
    let mut names = combined(op, &sources)?;
    let is_intset = |source: &Source<'_, &Set>| source.members.encoding() == SetEncoding::Intset;
    if op == SetOperation::Union && sources.iter().flatten().all(is_intset) {
        names.sort_by_cached_key(|name| parse_i64(name));
    }
    cx.out.set(names.len());
    names.iter().for_each(|name| cx.out.bulk(name));
    Ok(())
}

/// Combines the sets of the keys from the third argument on, and stores the result in the second.
fn store(cx: &mut Ctx<'_>, args: Args<'_>, op: SetOperation) -> Outcome {
    let target = key_arg(args)?;
    cx.store.peek(cx.db, target)?;
    let sources: Vec<SetSource<'_>> = sources(cx.store, cx.db, tail(args, 2))?;
    let names = combined(op, &sources)?;
    let set = stored(op, &sources, &names, cx.settings);
    cx.out.count(set.len() as usize);
    let event = match op {
        SetOperation::Inter => "sinterstore",
        SetOperation::Union => "sunionstore",
        SetOperation::Diff => "sdiffstore",
    };
    Ok(cx.put_result(target, set.into_value(), NotifyFlags::SET, event)?)
}

/// `SINTER key…`
fn sinter(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, SetOperation::Inter)
}

/// `SUNION key…`
fn sunion(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, SetOperation::Union)
}

/// `SDIFF key…`
fn sdiff(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    show(cx, args, SetOperation::Diff)
}

/// `SINTERSTORE destination key…`
fn sinterstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, SetOperation::Inter)
}

/// `SUNIONSTORE destination key…`
fn sunionstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, SetOperation::Union)
}

/// `SDIFFSTORE destination key…`
fn sdiffstore(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    store(cx, args, SetOperation::Diff)
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
    let sources: Vec<SetSource<'_>> = sources(cx.store, cx.db, tail(args, 2).take(count))?;
    cx.out.count(count_inter(&sources, limit)?);
    Ok(())
}

/// Returns the key spec of keys from `first` to the end, which are read.
const fn all_from(first: usize) -> KeySpec {
    KeySpec::to_end(first, 1, key!(RO | ACCESS))
}

/// Common declaration of the commands that reply with a set.
const SHOW: Spec = Spec {
    group: Group::Set,
    complexity: "O(N) where N is the number of members in all sets.",
    arity: -2,
    flags: flag!(READONLY),
    keys: &[all_from(1)],
    tips: &["nondeterministic_output_order"],
    ..Spec::NEW
};

/// Common declaration of the commands that store a set.
const STORE: Spec = Spec {
    arity: -3,
    flags: flag!(WRITE | DENYOOM),
    keys: &[KeySpec::one(1, key!(OW | UPDATE)), all_from(2)],
    tips: &[],
    ..SHOW
};

const INTER_COMPLEXITY: &str =
    "O(N*M) where N is the size of the smallest set and M the number of sets.";

/// Declarations of the commands on several sets.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "sinter",
        complexity: INTER_COMPLEXITY,
        summary: "Returns the intersection of several sets.",
        run: Run::Keys(sinter),
        ..SHOW
    },
    Spec {
        name: "sintercard",
        since: "7.0.0",
        complexity: INTER_COMPLEXITY,
        summary: "Returns the number of members in the intersection of several sets.",
        arity: -3,
        keys: &[KeySpec {
            flags: key!(RO | ACCESS),
            begin: Begin::Index(1),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
        }],
        tips: &[],
        run: Run::Keys(sintercard),
        ..SHOW
    },
    Spec {
        name: "sunion",
        summary: "Returns the union of several sets.",
        run: Run::Keys(sunion),
        ..SHOW
    },
    Spec {
        name: "sdiff",
        summary: "Returns the difference of a set and several others.",
        run: Run::Keys(sdiff),
        ..SHOW
    },
    Spec {
        name: "sinterstore",
        complexity: INTER_COMPLEXITY,
        summary: "Stores the intersection of several sets.",
        run: Run::Keys(sinterstore),
        ..STORE
    },
    Spec {
        name: "sunionstore",
        summary: "Stores the union of several sets.",
        run: Run::Keys(sunionstore),
        ..STORE
    },
    Spec {
        name: "sdiffstore",
        summary: "Stores the difference of a set and several others.",
        run: Run::Keys(sdiffstore),
        ..STORE
    },
];
