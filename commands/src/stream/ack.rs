//! Acknowledging deliveries: XACK.

use super::{group, key_arg, parse};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, flag, key, tail};
use flagstone_storage::need::Part;
use flagstone_storage::store::OrLoad;
use flagstone_wire::resp::Args;

/// `XACK key group id…`
fn xack(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name) = (cx.db, key_arg(args)?, arg(args, 2)?);
    let Some((stream, group)) = group::find(cx.store, cx.db, key, name)? else {
        cx.out.int(0);
        return Ok(());
    };
    let ids = tail(args, 3).map(|id| parse::id(id, 0)).collect::<Result<Vec<_>, Stop>>()?;
    let groups = stream.groups();
    groups.require_pending(group, ids.iter().copied()).or_load(db, key)?;
    let is_pending = |id| groups.pending_entry(group, id).map(|entry| entry.is_some());
    let any = ids.iter().try_fold(false, |any, id| Ok::<_, Part>(any || is_pending(*id)?));
    let mut removed = 0;
    if any.or_load(db, key)? {
        group::change(cx, key, None, |stream| {
            removed = stream.groups_mut().remove_pending(name, &ids);
        })?;
    }
    cx.out.count(removed as usize);
    Ok(())
}

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xack",
    group: Group::Stream,
    since: "5.0.0",
    complexity: "O(1) for each id.",
    summary: "Acknowledges entries that were delivered to a consumer of a group.",
    arity: -4,
    flags: flag!(WRITE | FAST),
    keys: &[KeySpec::one(1, key!(RW | UPDATE))],
    run: Run::Keys(xack),
    ..Spec::NEW
}];
