//! Pushing elements at the ends: LPUSH, RPUSH, LPUSHX, RPUSHX.

use super::{key_arg, outgrows, push_event};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::List;
use flagstone_wire::resp::Args;

/// Pushes the elements from the third argument on; with `only_existing`, not to a new list.
fn push(cx: &mut Ctx<'_>, args: Args<'_>, front: bool, only_existing: bool) -> Outcome {
    let (key, db, settings) = (key_arg(args)?, cx.db, cx.settings);
    let mut entry = if only_existing {
        let Some(entry) = cx.store.typed_mut::<List>(db, key)? else {
            cx.out.int(0);
            return Ok(());
        };
        entry
    } else {
        cx.store.entry_mut(db, key)?
    };
    if let Some(list) = entry.typed::<List>() {
        list.require_push(front).or_load(db, key)?;
    }
    let list = entry.typed_or_new::<List>()?;
    if outgrows(list, settings, args.iter().skip(2).map(<[u8]>::len)) {
        list.set_quicklist(true);
    }
    args.iter().skip(2).for_each(|element| list.push(element, front));
    cx.out.count(list.len() as usize);
    entry.event(NotifyFlags::LIST, push_event(front));
    Ok(())
}

/// `LPUSH key element…`
fn lpush(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    push(cx, args, true, false)
}

/// `RPUSH key element…`
fn rpush(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    push(cx, args, false, false)
}

/// `LPUSHX key element…`
fn lpushx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    push(cx, args, true, true)
}

/// `RPUSHX key element…`
fn rpushx(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    push(cx, args, false, true)
}

/// Common declaration of the commands that push at an end.
const PUSH: Spec = Spec {
    group: Group::List,
    complexity: "O(N) where N is the number of elements added.",
    arity: -3,
    flags: flag!(WRITE | DENYOOM | FAST),
    keys: &[KeySpec::one(1, key!(RW | INSERT))],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "lpush",
        summary: "Pushes elements at the front of a list.",
        run: Run::Keys(lpush),
        ..PUSH
    },
    Spec {
        name: "rpush",
        summary: "Pushes elements at the end of a list.",
        run: Run::Keys(rpush),
        ..PUSH
    },
    Spec {
        name: "lpushx",
        since: "2.2.0",
        summary: "Pushes elements at the front of an existing list.",
        run: Run::Keys(lpushx),
        ..PUSH
    },
    Spec {
        name: "rpushx",
        since: "2.2.0",
        summary: "Pushes elements at the end of an existing list.",
        run: Run::Keys(rpushx),
        ..PUSH
    },
];
