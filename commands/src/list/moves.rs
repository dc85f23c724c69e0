//! Moving elements between lists: LMOVE, RPOPLPUSH.

use super::{TAKES, grow, is_front, key_arg, pop_event, push_event, shrink_or_delete};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, flag, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{EntryMut, OrLoad};
use flagstone_storage::value::List;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::Args;

/// Moves an element from an end of a list to an end of another, or of the same. Returns false if
/// there is no element.
pub(super) fn move_element(
    cx: &mut Ctx<'_>,
    args: Args<'_>,
    from_front: bool,
    to_front: bool,
) -> Result<bool, Stop> {
    let (from, to, db, settings) = (key_arg(args)?, arg(args, 2)?, cx.db, cx.settings);
    let source = cx.store.typed_mut::<List>(db, from)?;
    let Some(list) = source.as_ref().and_then(EntryMut::typed::<List>) else {
        return Ok(false);
    };
    list.require_end(from_front, 1).or_load(db, from)?;
    let element = list.peek_end(from_front).unwrap_or_default().to_vec();
    // As in Redis, an integer from a "quicklist" has length 0 for the encoding of the other list.
    let is_number = list.is_quicklist() && parse_i64(&element).is_some();
    let target = cx.store.typed_mut::<List>(db, to)?;
    if let Some(list) = target.as_ref().and_then(EntryMut::typed::<List>) {
        list.require_push(to_front).or_load(db, to)?;
    }
    let changes = cx.store.stats.changes;
    if let Some(mut source) = cx.store.typed_mut::<List>(db, from)?
        && let Some(list) = source.typed_mut::<List>()
    {
        list.drop_end(from_front, 1);
    }
    let mut target = cx.store.entry_mut(db, to)?;
    target.typed_or_new::<List>()?;
    grow(&mut target, settings, if is_number { 0 } else { element.len() });
    target.typed_or_new::<List>()?.push(&element, to_front);
    target.event(NotifyFlags::LIST, push_event(to_front));
    if let Some(mut source) = cx.store.typed_mut::<List>(db, from)? {
        shrink_or_delete(&mut source, settings, pop_event(from_front));
    }
    // A move counts as one change.
    cx.store.stats.changes = changes + 1;
    cx.out.bulk(&element);
    Ok(true)
}

fn move_or_null(cx: &mut Ctx<'_>, args: Args<'_>, from_front: bool, to_front: bool) -> Outcome {
    if !move_element(cx, args, from_front, to_front)? {
        cx.out.null();
    }
    Ok(())
}

/// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`
fn lmove(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (from_front, to_front) = (is_front(args, 3)?, is_front(args, 4)?);
    move_or_null(cx, args, from_front, to_front)
}

/// `RPOPLPUSH source destination`
fn rpoplpush(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    move_or_null(cx, args, false, true)
}

/// Common declaration of the commands that move an element.
pub(super) const MOVE: Spec = Spec {
    group: Group::List,
    flags: flag!(WRITE | DENYOOM),
    keys: &[TAKES, KeySpec::one(2, key!(RW | INSERT))],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "lmove",
        since: "6.2.0",
        summary: "Moves an element from an end of a list to an end of another.",
        arity: 5,
        run: Run::Keys(lmove),
        ..MOVE
    },
    Spec {
        name: "rpoplpush",
        since: "1.2.0",
        summary: "Moves an element from the end of a list to the front of another.",
        arity: 3,
        run: Run::Keys(rpoplpush),
        ..MOVE
    },
];
