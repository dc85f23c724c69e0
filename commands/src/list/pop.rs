//! Popping elements from the ends: LPOP, RPOP, LMPOP.

use super::{TAKES, is_front, key_arg, pop_event, shrink_or_delete};
use crate::{
    Begin, Ctx, Find, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, is_word,
};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::List;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Pops up to `count` elements from an end of a list and replies with them in an array, behind the
/// key's name if `named`. Returns false if the list does not exist.
fn pop_many(
    cx: &mut Ctx<'_>,
    key: &[u8],
    front: bool,
    count: u64,
    named: bool,
) -> Result<bool, Stop> {
    let (db, settings) = (cx.db, cx.settings);
    let Some(mut entry) = cx.store.typed_mut::<List>(db, key)? else { return Ok(false) };
    let Some(list) = entry.typed::<List>() else { return Ok(false) };
    list.require_end(front, count).or_load(db, key)?;
    let count = count.min(list.len());
    if named {
        cx.out.array(2);
        cx.out.bulk(key);
    }
    cx.out.array(count as usize);
    let first = if front { 0 } else { list.len() - 1 };
    list.range(first, count, !front).or_load(db, key)?.for_each(|element| cx.out.bulk(element));
    if count > 0
        && let Some(list) = entry.typed_mut::<List>()
    {
        list.drop_end(front, count);
        shrink_or_delete(&mut entry, settings, pop_event(front));
        if named {
            cx.say(&[pop_word(front), key, count.to_string().as_bytes()]);
        }
    }
    Ok(true)
}

/// Pops one element from an end of a list and replies with it. Returns false if the list does not
/// exist.
fn pop_one(cx: &mut Ctx<'_>, key: &[u8], front: bool) -> Result<bool, Stop> {
    pop_end(cx, key, front, false)
}

/// Pops one element from an end of a list and replies with it behind the key's name. Returns false
/// if the list does not exist.
pub(super) fn pop_one_of(cx: &mut Ctx<'_>, key: &[u8], front: bool) -> Result<bool, Stop> {
    pop_end(cx, key, front, true)
}

fn pop_end(cx: &mut Ctx<'_>, key: &[u8], front: bool, named: bool) -> Result<bool, Stop> {
    let (db, settings) = (cx.db, cx.settings);
    let Some(mut entry) = cx.store.typed_mut::<List>(db, key)? else { return Ok(false) };
    let Some(list) = entry.typed::<List>() else { return Ok(false) };
    list.require_end(front, 1).or_load(db, key)?;
    let Some(element) = list.peek_end(front) else { return Ok(false) };
    if named {
        cx.out.array(2);
        cx.out.bulk(key);
    }
    cx.out.bulk(element);
    if let Some(list) = entry.typed_mut::<List>() {
        list.drop_end(front, 1);
    }
    shrink_or_delete(&mut entry, settings, pop_event(front));
    if named {
        cx.say(&[pop_word(front), key]);
    }
    Ok(true)
}

/// Returns the command that pops from an end.
fn pop_word(front: bool) -> &'static [u8] {
    if front { b"LPOP" } else { b"RPOP" }
}

fn pop(cx: &mut Ctx<'_>, args: Args<'_>, front: bool) -> Outcome {
    let key = key_arg(args)?;
    match args.get(2) {
        None => {
            if !pop_one(cx, key, front)? {
                cx.out.null();
            }
        }
        Some(_) if args.len() > 3 => {
            return Err(error::arity(if front { "lpop" } else { "rpop" }).into());
        }
        Some(count) => {
            let count = parse_i64(count).and_then(|count| u64::try_from(count).ok());
            let count = count.ok_or("ERR value is out of range, must be positive")?;
            if !pop_many(cx, key, front, count, false)? {
                cx.out.null_array();
            }
        }
    }
    Ok(())
}

/// `LPOP key [count]`
fn lpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop(cx, args, true)
}

/// `RPOP key [count]`
fn rpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    pop(cx, args, false)
}

/// Parses a number greater than 0.
fn positive_arg(text: &[u8], error: &'static str) -> Result<u64, Stop> {
    let number = parse_i64(text).filter(|&number| number > 0);
    Ok(number.ok_or(error)?.unsigned_abs())
}

/// The arguments of LMPOP.
pub(super) struct LmpopArgs {
    /// Positions of the keys among the arguments.
    keys: std::ops::Range<usize>,
    front: bool,
    count: u64,
}

impl LmpopArgs {
    /// Parses `numkeys key… LEFT|RIGHT [COUNT count]`, from the argument `at` on.
    pub(super) fn parse(args: Args<'_>, at: usize) -> Result<Self, Stop> {
        let keys = positive_arg(arg(args, at)?, "ERR numkeys should be greater than 0")?;
        let side = usize::try_from(keys).unwrap_or(usize::MAX).saturating_add(at + 1);
        let front = is_front(args, side)?;
        let mut count = None;
        let mut option_at = side + 1;
        while let Some(option) = args.get(option_at) {
            let value = args.get(option_at + 1);
            let value = value.filter(|_| count.is_none() && is_word(option, "count"));
            let value = value.ok_or(error::SYNTAX)?;
            count = Some(positive_arg(value, "ERR count should be greater than 0")?);
            option_at += 2;
        }
        Ok(Self { keys: at + 1..side, front, count: count.unwrap_or(1) })
    }

    /// Returns the keys.
    pub(super) fn keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        args.iter().take(self.keys.end).skip(self.keys.start)
    }

    /// Pops elements from the first list that exists; returns false if none does.
    pub(super) fn pop(&self, cx: &mut Ctx<'_>, args: Args<'_>) -> Result<bool, Stop> {
        for key in self.keys(args) {
            if cx.is_here(key) && pop_many(cx, key, self.front, self.count, true)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// `LMPOP numkeys key… LEFT|RIGHT [COUNT count]`
fn lmpop(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    if !LmpopArgs::parse(args, 1)?.pop(cx, args)? {
        cx.out.null_array();
    }
    Ok(())
}

/// Common declaration of the commands that pop from an end.
const POP: Spec = Spec {
    group: Group::List,
    complexity: "O(N) where N is the number of elements returned.",
    arity: -2,
    flags: flag!(WRITE | FAST),
    keys: &[TAKES],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "lpop",
        summary: "Pops elements from the front of a list.",
        run: Run::Keys(lpop),
        ..POP
    },
    Spec {
        name: "rpop",
        summary: "Pops elements from the end of a list.",
        run: Run::Keys(rpop),
        ..POP
    },
    Spec {
        name: "lmpop",
        since: "7.0.0",
        complexity: "O(N+M) where N is the number of keys and M the number of elements returned.",
        summary: "Pops elements from an end of the first list that exists.",
        arity: -4,
        flags: flag!(WRITE),
        keys: &[KeySpec {
            begin: Begin::Index(1),
            find: Find::KeyNum { at: 0, first: 1, step: 1 },
            ..TAKES
        }],
        run: Run::Keys(lmpop),
        ..POP
    },
];
