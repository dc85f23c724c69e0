//! Reading lists: LLEN, LINDEX, LRANGE, LPOS.

use super::{key_arg, position, range_of};
use crate::{
    Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word, key,
};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::List;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// `LLEN key`
fn llen(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let list = cx.store.typed::<List>(cx.db, key_arg(args)?)?;
    cx.out.count(list.map_or(0, |list| list.len() as usize));
    Ok(())
}

/// `LINDEX key index`
fn lindex(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let Some(list) = cx.store.typed::<List>(cx.db, key)? else {
        cx.out.null();
        return Ok(());
    };
    let element = match position(list.len(), int_arg(args, 2)?) {
        Some(at) => list.get(at).or_load(cx.db, key)?,
        None => None,
    };
    cx.out.bulk_or_null(element);
    Ok(())
}

/// `LRANGE key start stop`
fn lrange(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, start, stop) = (key_arg(args)?, int_arg(args, 2)?, int_arg(args, 3)?);
    let Some(list) = cx.store.typed::<List>(cx.db, key)? else {
        cx.out.array(0);
        return Ok(());
    };
    let (first, count) = range_of(list.len(), start, stop);
    let elements = list.range(first, count, false).or_load(cx.db, key)?;
    cx.out.array(count as usize);
    elements.for_each(|element| cx.out.bulk(element));
    Ok(())
}

/// The options of LPOS.
#[derive(Debug)]
struct LposOptions {
    /// Rank, from 1 on, of the first matching element to return.
    rank: u64,
    reverse: bool,
    /// Maximum number of matches; 0: all. Without it one position is returned, not an array.
    count: Option<u64>,
    /// Maximum number of elements that are compared; 0: all.
    max_len: u64,
}

impl LposOptions {
    fn parse(args: Args<'_>) -> Result<Self, Stop> {
        let mut search = Self { rank: 1, reverse: false, count: None, max_len: 0 };
        let not_negative = |value: &[u8], error: &'static str| {
            let number = parse_i64(value).and_then(|number| u64::try_from(number).ok());
            number.ok_or_else(|| Stop::from(error))
        };
        for at in (3..args.len()).step_by(2) {
            let (option, value) = (arg(args, at)?, arg(args, at + 1)?);
            if is_word(option, "rank") {
                let rank = long_arg(args, at + 1)?;
                if rank == 0 {
                    return Err(RANK_ZERO.into());
                }
                (search.rank, search.reverse) = (rank.unsigned_abs(), rank < 0);
            } else if is_word(option, "count") {
                search.count = Some(not_negative(value, "ERR COUNT can't be negative")?);
            } else if is_word(option, "maxlen") {
                search.max_len = not_negative(value, "ERR MAXLEN can't be negative")?;
            } else {
                return Err(error::SYNTAX.into());
            }
        }
        Ok(search)
    }
}

const RANK_ZERO: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                         second ... or use negative to start from the end of the list";

/// Parses an integer argument whose negation must not overflow.
pub(super) fn long_arg(args: Args<'_>, index: usize) -> Result<i64, Stop> {
    match int_arg(args, index)? {
        i64::MIN => {
            let max = i64::MAX;
            Err(format!("ERR value is out of range, value must between -{max} and {max}").into())
        }
        number => Ok(number),
    }
}

/// `LPOS key element [RANK rank] [COUNT count] [MAXLEN len]`
fn lpos(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, wanted) = (key_arg(args)?, arg(args, 2)?);
    let search = LposOptions::parse(args)?;
    let Some(list) = cx.store.typed::<List>(cx.db, key)? else {
        match search.count {
            Some(_) => cx.out.array(0),
            None => cx.out.null(),
        }
        return Ok(());
    };
    let most = if search.max_len == 0 { list.len() } else { search.max_len };
    let first = if search.reverse { list.len() - 1 } else { 0 };
    let elements = list.iter_from(first, search.reverse).or_load(cx.db, key)?;
    let (mut matches, mut found) = (0, Vec::new());
    for (i, element) in (0..most).zip(elements) {
        if element.or_load(cx.db, key)? != wanted {
            continue;
        }
        matches += 1;
        if matches >= search.rank {
            found.push(if search.reverse { list.len() - 1 - i } else { i });
            let count = search.count.unwrap_or(1);
            if count > 0 && found.len() as u64 >= count {
                break;
            }
        }
    }
    if search.count.is_some() {
        cx.out.array(found.len());
    } else if found.is_empty() {
        cx.out.null();
    }
    found.into_iter().for_each(|at| cx.out.count(at as usize));
    Ok(())
}

/// Common declaration of the commands that read a list.
const READ: Spec = Spec {
    group: Group::List,
    flags: flag!(READONLY),
    keys: &[KeySpec::one(1, key!(RO | ACCESS))],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "llen",
        summary: "Returns the length of a list.",
        arity: 2,
        flags: flag!(READONLY | FAST),
        keys: &[KeySpec::one(1, key!(RO))],
        run: Run::Keys(llen),
        ..READ
    },
    Spec {
        name: "lindex",
        complexity: "O(N) where N is the distance to the nearer end, in nodes of elements.",
        summary: "Returns an element by its position.",
        arity: 3,
        run: Run::Keys(lindex),
        ..READ
    },
    Spec {
        name: "lrange",
        complexity: "O(S+N) where S is the distance to the nearer end, and N the number of elements returned.",
        summary: "Returns a range of elements.",
        arity: 4,
        run: Run::Keys(lrange),
        ..READ
    },
    Spec {
        name: "lpos",
        since: "6.0.6",
        complexity: "O(N) where N is the number of elements looked at.",
        summary: "Returns the positions of an element.",
        arity: -3,
        run: Run::Keys(lpos),
        ..READ
    },
];
