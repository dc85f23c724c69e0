//! Checkpoints: BGSAVE, SAVE, LASTSAVE, and FLAGSTONE, whose subcommands Redis does not have.

use super::keys::{big_keys, hot_keys};
use super::split::split;
use crate::checkpoints::{begin, branch_off, take_new};
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome, Waiting};
use flagstone_commands::help::help;
use flagstone_commands::{CommandFlags, Group, acl, arg, error, flag, is_word};
use flagstone_storage::checkpoint::Catalog;
use flagstone_storage::place::Place;
use flagstone_wire::resp::{Args, Reply};
use std::path::Path;

const IN_PROGRESS: &str = "ERR Background save already in progress";

const SHARED: &str =
    "ERR checkpoints, and what is made of them, do not work in a cluster of several servers";

/// Refuses a command on checkpoints on a server of a cluster: no server has all the data.
fn alone(cx: &Call<'_>) -> Result<(), &'static str> {
    if cx.node.cluster.is_some() { Err(SHARED) } else { Ok(()) }
}

/// `LASTSAVE`: the time at which the last checkpoint was finished; before the first one, the time
/// of the start.
fn lastsave(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let at_ms = cx.node.checkpoints.stats().last_save_ms;
    cx.out.int((at_ms / 1000).cast_signed());
    Ok(())
}

/// `BGSAVE [SCHEDULE | CANCEL]`
fn bgsave(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    alone(cx)?;
    match args.len() {
        1 => {}
        2 if is_word(arg(args, 1)?, "schedule") => {}
        2 if is_word(arg(args, 1)?, "cancel") => return cancel(cx),
        _ => return Err(error::SYNTAX.into()),
    }
    if begin(cx.node).is_none() {
        return Err(IN_PROGRESS.into());
    }
    cx.out.simple(match cx.session.in_exec {
        true => "Background saving scheduled",
        false => "Background saving started",
    });
    Ok(())
}

/// `BGREWRITEAOF`: takes a checkpoint, so that a start has few records to replay, as after a
/// rewrite of the reference's file.
fn bgrewriteaof(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    alone(cx)?;
    if begin(cx.node).is_none() {
        return Err("ERR Background append only file rewriting already in progress".into());
    }
    cx.out.simple("Background append only file rewriting started");
    Ok(())
}

fn cancel(cx: &mut Call<'_>) -> CallOutcome {
    if !cx.node.checkpoints.cancel() {
        return Err("ERR Background saving is currently not in progress or scheduled".into());
    }
    cx.out.simple("Background saving cancelled");
    Ok(())
}

/// `SAVE`: only this connection waits.
fn save<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        alone(cx)?;
        let taking = begin(cx.node).ok_or(IN_PROGRESS)?;
        match taking.await {
            Ok(Ok(_)) => cx.out.ok(),
            Ok(Err(what)) => return Err(format!("ERR no checkpoint: {what}").into()),
            Err(_) => return Err("ERR the server is shutting down".into()),
        }
        Ok(())
    })
}

/// `FLAGSTONE CHECKPOINT`: takes a checkpoint, and replies with its id once it is complete.
fn checkpoint<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        alone(cx)?;
        let taken = take_new(cx.node).await.map_err(|what| format!("ERR no checkpoint: {what}"))?;
        cx.out.bulk_str(&taken.id);
        Ok(())
    })
}

/// `FLAGSTONE CHECKPOINTS`: lists the checkpoints, oldest first.
fn checkpoints<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        alone(cx)?;
        let catalog = Catalog::of(&cx.node.checkpoints.source.store);
        let listing = cx.node.background.spawn(async move { catalog.list().await });
        let all = listing.await.map_err(|_| "ERR the server is shutting down")?;
        let all = all.map_err(|what| format!("ERR {what:#}"))?;
        cx.out.array(all.len());
        for checkpoint in all {
            cx.out.map(4);
            cx.out.bulk_str("id");
            cx.out.bulk_str(&checkpoint.id);
            cx.out.bulk_str("created-ms");
            cx.out.int(checkpoint.created_ms.cast_signed());
            cx.out.bulk_str("lsn");
            cx.out.int(checkpoint.lsn.cast_signed());
            cx.out.bulk_str("record-bytes");
            cx.out.int(checkpoint.record_bytes.cast_signed());
        }
        Ok(())
    })
}

/// `FLAGSTONE BRANCH place`: creates a data directory of its own from the current data. Both share
/// the files with rows, so it is on the same disk or in the same bucket.
fn branch_command<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        alone(cx)?;
        let allowed = cx.worker.settings().enable_protected_configs;
        if !allowed.allows(cx.session.client.is_local()) {
            return Err("ERR FLAGSTONE BRANCH writes a directory: it is allowed by \
                enable-protected-configs, as CONFIG SET dir is"
                .into());
        }
        let url = std::str::from_utf8(arg(args, 2)?).map_err(|_| "ERR invalid path")?;
        let to = Place::parse(url).map_err(|what| format!("ERR {what:#}"))?;
        if to.dir().is_some() && !url.starts_with("file:") && !Path::new(url).is_absolute() {
            return Err("ERR the path of a branch is absolute".into());
        }
        branch_off(cx.node, to).await.map_err(|what| format!("ERR {what}"))?;
        cx.out.ok();
        Ok(())
    })
}

fn show_help(out: &mut Reply) {
    help(
        out,
        "FLAGSTONE",
        &[
            (
                "BIGKEYS",
                "Lists the biggest keys of each type that were written or loaded: strings by bytes, \
                others by elements.",
            ),
            ("BRANCH <place>", "Makes a data directory of its own, as the data is now."),
            ("CHECKPOINT", "Takes a checkpoint and answers its id."),
            ("CHECKPOINTS", "Lists the checkpoints."),
            ("HOTKEYS", "Lists the keys that commands named most often in ten seconds."),
            (
                "SPLIT <shard> [<slot>]",
                "Makes one shard two: the slots from <slot> on, or the upper half, become another one.",
            ),
        ],
    );
}

const OWN: CommandFlags = flag!(ADMIN | NOSCRIPT | NO_MULTI);

const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "bigkeys",
        group: Group::Server,
        complexity: "O(N) where N is the number of keys returned",
        summary: "Lists the biggest keys of each type.",
        arity: 2,
        flags: OWN,
        run: Handler::Wait(big_keys),
        ..Spec::NEW
    },
    Spec {
        name: "branch",
        group: Group::Server,
        summary: "Makes a data directory of its own, as the data is now.",
        arguments: "place:string",
        arity: 3,
        flags: OWN,
        run: Handler::Wait(branch_command),
        ..Spec::NEW
    },
    Spec {
        name: "checkpoint",
        group: Group::Server,
        summary: "Takes a checkpoint and answers its id.",
        arity: 2,
        flags: OWN,
        run: Handler::Wait(checkpoint),
        ..Spec::NEW
    },
    Spec {
        name: "checkpoints",
        group: Group::Server,
        summary: "Lists the checkpoints.",
        arity: 2,
        flags: OWN,
        run: Handler::Wait(checkpoints),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        summary: "Describes the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "hotkeys",
        group: Group::Server,
        complexity: "O(N) where N is the number of keys returned",
        summary: "Lists the keys that commands name most often.",
        arity: 2,
        flags: OWN,
        run: Handler::Wait(hot_keys),
        ..Spec::NEW
    },
    Spec {
        name: "split",
        group: Group::Server,
        complexity: "O(N) where N is the number of the shard's files and of its rows written in the last seconds",
        summary: "Makes one shard two, and answers the number of the new one.",
        arguments: "shard:integer slot:integer?",
        arity: -3,
        flags: OWN.union(flag!(AT_REST)),
        run: Handler::Wait(split),
        ..Spec::NEW
    },
];

/// Declarations of the commands on checkpoints.
pub const SAVE_COMMANDS: &[Spec] = &[
    Spec {
        name: "lastsave",
        group: Group::Server,
        summary: "Answers when the last checkpoint was taken.",
        arity: 1,
        flags: flag!(LOADING | STALE | FAST),
        acl: acl!(ADMIN | DANGEROUS),
        tips: &["nondeterministic_output"],
        run: Handler::Session(lastsave),
        ..Spec::NEW
    },
    Spec {
        name: "bgsave",
        group: Group::Server,
        summary: "Takes a checkpoint in the background.",
        arity: -1,
        flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT),
        run: Handler::Session(bgsave),
        ..Spec::NEW
    },
    Spec {
        name: "bgrewriteaof",
        group: Group::Server,
        summary: "Takes a checkpoint in the background.",
        arity: 1,
        flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT),
        run: Handler::Session(bgrewriteaof),
        ..Spec::NEW
    },
    Spec {
        name: "save",
        group: Group::Server,
        complexity: "O(N) where N is the number of rows written in the last seconds",
        summary: "Takes a checkpoint and answers once it is there.",
        arity: 1,
        flags: flag!(NO_ASYNC_LOADING | ADMIN | NOSCRIPT | NO_MULTI),
        run: Handler::Wait(save),
        ..Spec::NEW
    },
    Spec {
        name: "flagstone",
        group: Group::Server,
        complexity: "Depends on subcommand.",
        summary: "Holds this server's own commands.",
        arity: -2,
        subcommands: SUBCOMMANDS,
        ..Spec::NEW
    },
];
