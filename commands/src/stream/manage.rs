//! XGROUP: creating and removing consumer groups and consumers.

use super::group::{self, no_group_of_key};
use super::parse;
use crate::help::{help, syntax};
use crate::{Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, flag, int_arg, is_word, key};
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{Fault, OrLoad};
use flagstone_storage::value::{Stream, StreamId, Typed, Value};
use flagstone_wire::resp::{Args, Reply};

const NO_KEY: &str = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you \
                      may want to use the MKSTREAM option to create an empty stream automatically.";

/// The options of XGROUP CREATE and SETID.
#[derive(Debug, Default)]
struct GroupOptions {
    make_stream: bool,
    entries_read: Option<i64>,
}

impl GroupOptions {
    fn parse(args: Args<'_>, of_create: bool) -> Result<Self, Stop> {
        let mut options = Self::default();
        let mut at = 5;
        while let Some(option) = args.get(at) {
            if of_create && is_word(option, "mkstream") {
                options.make_stream = true;
                at += 1;
            } else if is_word(option, "entriesread") && at + 1 < args.len() {
                options.entries_read = match int_arg(args, at + 1)? {
                    -1 => None,
                    read @ 0.. => Some(read),
                    _ => return Err("ERR value for ENTRIESREAD must be positive or -1".into()),
                };
                at += 2;
            } else {
                return Err(unknown(args).into());
            }
        }
        Ok(options)
    }
}

fn unknown(args: Args<'_>) -> String {
    syntax("XGROUP", args.get(1).unwrap_or_default())
}

/// `XGROUP CREATE key group id|$ [MKSTREAM] [ENTRIESREAD entries]`
fn create(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name, id) = (cx.db, arg(args, 2)?, arg(args, 3)?, arg(args, 4)?);
    let options = GroupOptions::parse(args, true)?;
    let mut entry = cx.store.entry_mut(db, key)?;
    let none = Stream::new();
    let stream = match &entry.value {
        Value::Absent if !options.make_stream => return Err(NO_KEY.into()),
        Value::Absent => &none,
        value => Stream::of(value).ok_or(Fault::WrongType)?,
    };
    if args.len() > 8 {
        return Err(unknown(args).into());
    }
    let id = if id == b"$" { stream.last_id() } else { parse::id(id, 0)? };
    if stream.groups().group(name).or_load(db, key)?.is_some() {
        return Err("BUSYGROUP Consumer Group name already exists".into());
    }
    if entry.is_live() {
        entry.quietly();
    }
    let stream = entry.typed_or_new::<Stream>()?;
    stream.groups_mut().create(name, id, options.entries_read);
    entry.event(NotifyFlags::STREAM, "xgroup-create");
    cx.out.ok();
    Ok(())
}

/// Returns a stream that is to be changed: a missing key is no miss of a reader.
fn require_stream<'a>(cx: &'a mut Ctx<'_>, key: &[u8]) -> Result<&'a Stream, Stop> {
    let entry = cx.store.peek(cx.db, key)?.ok_or(NO_KEY)?;
    Ok(Stream::of(&entry.value).ok_or(Fault::WrongType)?)
}

/// Returns the last id of a stream that has the group.
fn require_group(cx: &mut Ctx<'_>, key: &[u8], name: &[u8]) -> Result<StreamId, Stop> {
    let db = cx.db;
    let stream = require_stream(cx, key)?;
    let group = stream.groups().group(name).or_load(db, key)?;
    if group.is_none() {
        return Err(no_group_of_key(key, name).into());
    }
    Ok(stream.last_id())
}

/// `XGROUP SETID key group id|$ [ENTRIESREAD entries]`
fn set_id(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, name, id) = (arg(args, 2)?, arg(args, 3)?, arg(args, 4)?);
    let options = GroupOptions::parse(args, false)?;
    let last_id = require_group(cx, key, name)?;
    if !matches!(args.len(), 5 | 7) {
        return Err(unknown(args).into());
    }
    let id = if id == b"$" { last_id } else { parse::bound(id, 0)? };
    group::change(cx, key, Some("xgroup-setid"), |stream| {
        stream.groups_mut().set_position(name, id, options.entries_read);
    })?;
    cx.out.ok();
    Ok(())
}

/// `XGROUP DESTROY key group`
fn destroy(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key, name) = (cx.db, arg(args, 2)?, arg(args, 3)?);
    let stream = require_stream(cx, key)?;
    let exists = stream.groups().group(name).or_load(db, key)?.is_some();
    if exists {
        let event = Some("xgroup-destroy");
        group::change(cx, key, event, |stream| stream.groups_mut().destroy(name))?;
    }
    cx.out.int(i64::from(exists));
    Ok(())
}

/// `XGROUP CREATECONSUMER key group consumer`
fn create_consumer(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, name, consumer) = (arg(args, 2)?, arg(args, 3)?, arg(args, 4)?);
    require_group(cx, key, name)?;
    let (db, now_ms) = (cx.db, cx.now_ms());
    let Some((stream, group)) = group::find_to_change(cx.store, cx.db, key, name)? else {
        return Ok(());
    };
    let exists = stream.groups().consumer(group, consumer).or_load(db, key)?.is_some();
    if !exists {
        group::change(cx, key, group::creation_event(group::NEW), |stream| {
            stream.groups_mut().create_consumer(name, consumer, now_ms);
        })?;
    }
    cx.out.int(i64::from(!exists));
    Ok(())
}

/// `XGROUP DELCONSUMER key group consumer`
fn delete_consumer(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (key, name, consumer) = (arg(args, 2)?, arg(args, 3)?, arg(args, 4)?);
    require_group(cx, key, name)?;
    let db = cx.db;
    let Some((stream, group)) = group::find_to_change(cx.store, cx.db, key, name)? else {
        return Ok(());
    };
    let groups = stream.groups();
    groups.require_delete_consumer(group, consumer).or_load(db, key)?;
    let mut pending = 0;
    if groups.consumer(group, consumer).or_load(db, key)?.is_some() {
        group::change(cx, key, Some("xgroup-delconsumer"), |stream| {
            pending = stream.groups_mut().delete_consumer(name, consumer);
        })?;
    }
    cx.out.count(pending as usize);
    Ok(())
}

/// `XGROUP HELP`
fn group_help(out: &mut Reply) {
    help(
        out,
        "XGROUP",
        &[
            (
                "CREATE <key> <groupname> <id|$> [option]",
                "Create a new consumer group. GroupOptions are:",
            ),
            ("    * MKSTREAM", "  Create the empty stream if it does not exist."),
            (
                "    * ENTRIESREAD entries_read",
                "  Set the group's entries_read counter (internal use).",
            ),
            (
                "CREATECONSUMER <key> <groupname> <consumer>",
                "Create a new consumer in the specified group.",
            ),
            ("DELCONSUMER <key> <groupname> <consumer>", "Remove the specified consumer."),
            ("DESTROY <key> <groupname>", "Remove the specified group."),
            (
                "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
                "Set the current group ID and entries_read counter.",
            ),
        ],
    );
}

/// Common declaration of the subcommands that change a stream.
const CHANGE: Spec =
    Spec { group: Group::Stream, since: "5.0.0", flags: flag!(WRITE), ..Spec::NEW };

const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "create",
        summary: "Creates a consumer group.",
        arity: -5,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(2, key!(RW | INSERT))],
        run: Run::Keys(create),
        ..CHANGE
    },
    Spec {
        name: "createconsumer",
        since: "6.2.0",
        summary: "Creates a consumer in a group.",
        arity: 5,
        flags: flag!(WRITE | DENYOOM),
        keys: &[KeySpec::one(2, key!(RW | INSERT))],
        run: Run::Keys(create_consumer),
        ..CHANGE
    },
    Spec {
        name: "delconsumer",
        summary: "Deletes a consumer with its pending entries.",
        complexity: "O(N) where N is the number of entries that are pending in the group.",
        arity: 5,
        keys: &[KeySpec::one(2, key!(RW | DELETE))],
        run: Run::Keys(delete_consumer),
        ..CHANGE
    },
    Spec {
        name: "destroy",
        summary: "Deletes a consumer group.",
        complexity: "O(N) where N is the number of nodes of pending entries in memory.",
        arity: 4,
        keys: &[KeySpec::one(2, key!(RW | DELETE))],
        run: Run::Keys(destroy),
        ..CHANGE
    },
    Spec {
        name: "help",
        summary: "Lists the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Run::Help(group_help),
        ..CHANGE
    },
    Spec {
        name: "setid",
        summary: "Sets the last delivered id of a group.",
        arity: -5,
        keys: &[KeySpec::one(2, key!(RW | UPDATE))],
        run: Run::Keys(set_id),
        ..CHANGE
    },
];

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xgroup",
    group: Group::Stream,
    since: "5.0.0",
    summary: "Commands that create and delete consumer groups.",
    complexity: "Depends on the subcommand",
    arity: -2,
    subcommands: SUBCOMMANDS,
    ..Spec::NEW
}];
