//! XINFO: information on a stream.

use super::{group, info_groups, reply_entries, reply_entry, reply_id};
use crate::help::{help, syntax};
use crate::{
    Ctx, Group, KeySpec, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word, key,
};
use flagstone_storage::store::OrLoad;
use flagstone_storage::value::{Stream, StreamId};
use flagstone_wire::resp::{Args, Reply};

/// Default COUNT of FULL.
const FULL_COUNT: u64 = 10;

/// Parses the option of XINFO STREAM; returns the COUNT of FULL, `None` without FULL.
fn full_count(args: Args<'_>) -> Result<Option<u64>, Stop> {
    let Some(option) = args.get(3) else { return Ok(None) };
    let is_count = args.get(4).is_none_or(|word| is_word(word, "count"));
    if !is_word(option, "full") || !is_count || !matches!(args.len(), 4 | 6) {
        return Err(syntax("XINFO", arg(args, 1)?).into());
    }
    if args.len() == 4 {
        return Ok(Some(FULL_COUNT));
    }
    let count = u64::try_from(int_arg(args, 5)?).unwrap_or(FULL_COUNT);
    Ok(Some(if count == 0 { u64::MAX } else { count }))
}

/// `XINFO STREAM key [FULL [COUNT count]]`
fn stream(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let (db, key) = (cx.db, arg(args, 2)?);
    let Some(stream) = cx.store.typed::<Stream>(db, key)? else {
        return Err(error::NO_SUCH_KEY.into());
    };
    let full = full_count(args)?;
    let out = &mut *cx.out;
    out.map(if full.is_some() { 9 } else { 10 });
    // A radix tree of one key has two nodes; with several keys the number depends on their ids.
    let numbers = [
        ("length", stream.len()),
        ("radix-tree-keys", stream.node_count()),
        ("radix-tree-nodes", stream.node_count() + 1),
    ];
    for (name, number) in numbers {
        out.bulk_str(name);
        out.count(number as usize);
    }
    out.bulk_str("last-generated-id");
    reply_id(out, stream.last_id());
    out.bulk_str("max-deleted-entry-id");
    reply_id(out, stream.max_deleted_id());
    out.bulk_str("entries-added");
    out.count(stream.entries_added() as usize);
    out.bulk_str("recorded-first-entry-id");
    reply_id(out, stream.first_id());
    let Some(count) = full else {
        out.bulk_str("groups");
        out.count(stream.groups().len() as usize);
        for (name, last) in [("first-entry", false), ("last-entry", true)] {
            out.bulk_str(name);
            match stream.end(last).or_load(db, key)? {
                Some(entry) => reply_entry(out, entry),
                None => out.null(),
            }
        }
        return Ok(());
    };
    out.bulk_str("entries");
    let entries = stream.range(StreamId::MIN, StreamId::MAX, count, false);
    reply_entries(out, entries.or_load(db, key)?);
    out.bulk_str("groups");
    group::reply_full(out, stream, count).or_load(db, key)?;
    Ok(())
}

/// `XINFO HELP`
fn info_help(out: &mut Reply) {
    help(
        out,
        "XINFO",
        &[
            ("CONSUMERS <key> <groupname>", "Show consumers of <groupname>."),
            ("GROUPS <key>", "Show the stream consumer groups."),
            ("STREAM <key> [FULL [COUNT <count>]", "Show information about the stream."),
        ],
    );
}

const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "consumers",
        group: Group::Stream,
        since: "5.0.0",
        summary: "Describes the consumers of a group.",
        arity: 4,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(2, key!(RO | ACCESS))],
        tips: &["nondeterministic_output"],
        run: Run::Keys(info_groups::consumers),
        ..Spec::NEW
    },
    Spec {
        name: "groups",
        group: Group::Stream,
        since: "5.0.0",
        summary: "Describes the consumer groups of a stream.",
        arity: 3,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(2, key!(RO | ACCESS))],
        run: Run::Keys(info_groups::groups),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Stream,
        since: "5.0.0",
        summary: "Lists the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Run::Help(info_help),
        ..Spec::NEW
    },
    Spec {
        name: "stream",
        group: Group::Stream,
        since: "5.0.0",
        summary: "Describes a stream.",
        arity: -3,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(2, key!(RO | ACCESS))],
        run: Run::Keys(stream),
        ..Spec::NEW
    },
];

/// Declarations of this file's commands.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "xinfo",
    group: Group::Stream,
    since: "5.0.0",
    summary: "Commands that describe streams.",
    complexity: "Depends on the subcommand",
    arity: -2,
    subcommands: SUBCOMMANDS,
    ..Spec::NEW
}];
