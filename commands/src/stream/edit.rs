//! Changing streams: XDEL, XTRIM, XSETID.

use super::trim_options::TrimOptions;
use super::{key_arg, parse};
use crate::{
    Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word, key, tail,
};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Stream, StreamId};
use flagstone_wire::resp::Args;

/// `XDEL key id…`
fn xdel(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (name, db) = (key_arg(args)?, cx.db);
    let Some(mut entry) = cx.store.typed_mut::<Stream>(db, name)? else {
        cx.out.int(0);
        return Ok(());
    };
    let ids = tail(args, 2).map(|id| parse::id(id, 0)).collect::<Result<Vec<_>, Stop>>()?;
    let Some(stream) = entry.typed::<Stream>() else { return Ok(()) };
    let plan = stream.plan_delete(&ids).or_load(db, name)?;
    if plan.count() > 0
        && let Some(stream) = entry.typed_mut::<Stream>()
    {
        stream.delete(&plan);
        entry.event(NotifyFlags::STREAM, "xdel");
    }
    cx.out.count(plan.count() as usize);
    Ok(())
}

/// `XTRIM key MAXLEN|MINID [=|~] threshold [LIMIT count]`
fn xtrim(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (name, db) = (key_arg(args)?, cx.db);
    let options = TrimOptions::parse(args, false, cx.store.obeys(), cx.settings)?;
    let Some(mut entry) = cx.store.typed_mut::<Stream>(db, name)? else {
        cx.out.int(0);
        return Ok(());
    };
    let (Some(stream), Some(trim)) = (entry.typed::<Stream>(), options.trim) else { return Ok(()) };
    let plan = stream.plan_trim(&trim, None).or_load(db, name)?;
    if plan.deleted() > 0
        && let Some(stream) = entry.typed_mut::<Stream>()
    {
        stream.trim(&plan);
        entry.event(NotifyFlags::STREAM, "xtrim");
    }
    if plan.deleted() > 0 && cx.is_heard() {
        super::add::say(cx, args, &options, None)?;
    }
    cx.out.count(plan.deleted() as usize);
    Ok(())
}

/// The options of XSETID.
#[derive(Debug, Default)]
struct SetIdOptions {
    entries_added: Option<u64>,
    /// 0-0: keeps the current one.
    max_deleted_id: StreamId,
}

impl SetIdOptions {
    fn parse(args: Args<'_>, id: StreamId) -> Result<Self, Stop> {
        let mut options = Self::default();
        for at in (3..args.len()).step_by(2) {
            let option = arg(args, at)?;
            let value = args.get(at + 1);
            match value {
                Some(_) if is_word(option, "entriesadded") => {
                    let added = u64::try_from(int_arg(args, at + 1)?);
                    let added = added.map_err(|_| "ERR entries_added must be positive")?;
                    options.entries_added = Some(added);
                }
                Some(value) if is_word(option, "maxdeletedid") => {
                    options.max_deleted_id = parse::id(value, 0)?;
                    if id < options.max_deleted_id {
                        return Err(BELOW_GIVEN_DELETED.into());
                    }
                }
                _ => return Err(error::SYNTAX.into()),
            }
        }
        Ok(options)
    }
}

const BELOW_GIVEN_DELETED: &str =
    "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id";
const BELOW_DELETED: &str =
    "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id";
const BELOW_TOP: &str = "ERR The ID specified in XSETID is smaller than the target stream top item";
const FEWER_ADDED: &str =
    "ERR The entries_added specified in XSETID is smaller than the target stream length";

/// `XSETID key last-id [ENTRIESADDED entries-added] [MAXDELETEDID max-deleted-id]`
fn xsetid(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (name, db) = (key_arg(args)?, cx.db);
    let id = parse::id(arg(args, 2)?, 0)?;
    let options = SetIdOptions::parse(args, id)?;
    let Some(mut entry) = cx.store.typed_mut::<Stream>(db, name)? else {
        return Err(error::NO_SUCH_KEY.into());
    };
    let Some(stream) = entry.typed::<Stream>() else { return Ok(()) };
    if id < stream.max_deleted_id() {
        return Err(BELOW_DELETED.into());
    }
    if !stream.is_empty() {
        // No entry has a greater id than the last id assigned.
        let is_top = id >= stream.last_id();
        if !is_top && stream.end(true).or_load(db, name)?.is_some_and(|last| id < last.id) {
            return Err(BELOW_TOP.into());
        }
        if options.entries_added.is_some_and(|added| added < stream.len()) {
            return Err(FEWER_ADDED.into());
        }
    }
    entry.quietly();
    if let Some(stream) = entry.typed_mut::<Stream>() {
        let mut head = stream.head();
        head.last_id = id;
        head.entries_added = options.entries_added.unwrap_or(head.entries_added);
        if options.max_deleted_id != StreamId::MIN {
            head.max_deleted_id = options.max_deleted_id;
        }
        stream.set_head(head);
    }
    entry.event(NotifyFlags::STREAM, "xsetid");
    cx.out.ok();
    Ok(())
}

/// Common declaration of the commands that change a stream.
const EDIT: Spec = Spec {
    group: Group::Stream,
    since: "5.0.0",
    flags: flag!(WRITE),
    keys: &[KeySpec::one(1, key!(RW | DELETE))],
    ..Spec::NEW
};

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "xdel",
        complexity: "O(N*log(M)) for N ids in a stream of M nodes.",
        summary: "Deletes entries by their ids and returns the number of deleted ones.",
        arity: -3,
        flags: flag!(WRITE | FAST),
        run: Run::Keys(xdel),
        ..EDIT
    },
    Spec {
        name: "xtrim",
        complexity: "O(N) where N is the number of deleted entries.",
        summary: "Deletes entries from the front of a stream.",
        arity: -4,
        tips: &["nondeterministic_output"],
        run: Run::Keys(xtrim),
        ..EDIT
    },
    Spec {
        name: "xsetid",
        summary: "Sets the last id of a stream, for replication.",
        arity: -3,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(RW | UPDATE))],
        run: Run::Keys(xsetid),
        ..EDIT
    },
];
