//! SCRIPT: manages the scripts that the node knows.

use super::{NO_SCRIPT, add};
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome, Waiting};
use crate::scripting::{COMPILED_IN_PLACE, Uncompiled, forget_vms};
use crate::scripts::{KillResult, ScriptKind, parse_sha};
use flagstone_commands::help::help;
use flagstone_commands::{Group, arg, flag, is_word};
use flagstone_wire::resp::{Args, Reply};

/// `SCRIPT LOAD script`
fn load<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let body = arg(args, 2)?;
        let added = if body.len() > COMPILED_IN_PLACE {
            let (node, body) = (cx.node.clone(), Box::<[u8]>::from(body));
            let added = cx.node.background.spawn_blocking(move || {
                let added = add(&node, &body, true, true);
                // The thread serves others, and may rest for long.
                forget_vms();
                added
            });
            added.await.map_err(|_| "ERR the script could not be compiled")?
        } else {
            add(cx.node, body, true, false)
        };
        let script = added.map_err(Uncompiled::into_text)?;
        cx.out.bulk_str(&script.name);
        Ok(())
    })
}

/// `SCRIPT EXISTS sha1 [sha1 …]`
fn exists(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let names = args.skip(2);
    cx.out.array(names.len());
    for name in names.iter() {
        let found = parse_sha(name).and_then(|sha| cx.node.code.scripts.get(sha));
        cx.out.int(i64::from(found.is_some()));
    }
    Ok(())
}

/// `SCRIPT FLUSH [ASYNC | SYNC]`
fn flush<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let known = args.get(2).is_none_or(|word| is_word(word, "sync") || is_word(word, "async"));
        if args.len() > 3 || !known {
            return Err("ERR SCRIPT FLUSH only support SYNC|ASYNC option".into());
        }
        cx.node.code.scripts.flush();
        cx.node.code.scripts.threads.dismiss();
        cx.worker
            .peers
            .on_all(true, |_| async { forget_vms() })
            .await
            .map_err(|_| "ERR a worker is gone")?;
        cx.out.ok();
        Ok(())
    })
}

/// `SCRIPT KILL`
fn kill(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    answer_kill(cx, ScriptKind::Script)
}

/// Kills long-running code, and replies with the result.
pub(in crate::commands) fn answer_kill(cx: &mut Call<'_>, kind: ScriptKind) -> CallOutcome {
    match cx.node.code.scripts.running.kill(kind) {
        KillResult::Killed => {
            cx.out.ok();
            Ok(())
        }
        KillResult::NotBusy => Err("NOTBUSY No scripts in execution right now.".into()),
        KillResult::Unkillable => {
            Err("UNKILLABLE Sorry the script already executed write commands \
            against the dataset. You can either wait the script termination or kill the server in \
            a hard way using the SHUTDOWN NOSAVE command."
                .into())
        }
        KillResult::Other if kind == ScriptKind::Script => {
            Err(ScriptKind::Function.busy_text().into())
        }
        KillResult::Other => Err(ScriptKind::Script.busy_text().into()),
    }
}

/// `SCRIPT SHOW sha1`
fn show(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let found = parse_sha(arg(args, 2)?).and_then(|sha| cx.node.code.scripts.get(sha));
    let script = found.ok_or(NO_SCRIPT)?;
    cx.out.bulk(&script.body);
    Ok(())
}

/// `SCRIPT DEBUG YES | SYNC | NO`: there is no debugger.
fn debug(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let mode = arg(args, 2)?;
    if is_word(mode, "no") {
        cx.out.ok();
        return Ok(());
    }
    if is_word(mode, "yes") || is_word(mode, "sync") {
        return Err("ERR the debugger of scripts is not supported".into());
    }
    Err("ERR Use SCRIPT DEBUG YES/SYNC/NO".into())
}

fn show_help(out: &mut Reply) {
    help(
        out,
        "SCRIPT",
        &[
            ("DEBUG (YES|SYNC|NO)", "Set the debug mode for subsequent scripts executed."),
            (
                "EXISTS <sha1> [<sha1> ...]",
                "Return information about the existence of the scripts in the script cache.",
            ),
            ("FLUSH [ASYNC|SYNC]", "Flush the Lua scripts cache. Very dangerous on replicas."),
            ("KILL", "Kill the currently executing Lua script."),
            ("LOAD <script>", "Load a script into the scripts cache without executing it."),
            ("SHOW <sha1>", "Show a script from the scripts cache."),
        ],
    );
}

const SUBCOMMAND: Spec =
    Spec { group: Group::Scripting, since: "2.6.0", flags: flag!(NOSCRIPT), ..Spec::NEW };

const ALL_NODES: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "load",
        complexity: "O(N) with N being the length in bytes of the script body.",
        summary: "Adds a script without running it.",
        arity: 3,
        flags: flag!(NOSCRIPT | STALE),
        tips: ALL_NODES,
        run: Handler::Wait(load),
        ..SUBCOMMAND
    },
    Spec {
        name: "exists",
        complexity: "O(N) with N being the number of scripts to check.",
        summary: "Answers which scripts are known.",
        arity: -3,
        tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
        run: Handler::Session(exists),
        ..SUBCOMMAND
    },
    Spec {
        name: "flush",
        complexity: "O(N) with N being the number of scripts in cache",
        summary: "Forgets all scripts.",
        arity: -2,
        tips: ALL_NODES,
        run: Handler::Wait(flush),
        ..SUBCOMMAND
    },
    Spec {
        name: "kill",
        summary: "Ends the scripts that have been running for long and have not written.",
        arity: 2,
        flags: flag!(NOSCRIPT | ALLOW_BUSY),
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        run: Handler::Session(kill),
        ..SUBCOMMAND
    },
    Spec {
        name: "show",
        since: "8.0.0",
        summary: "Answers the text of a script.",
        arity: 3,
        run: Handler::Session(show),
        ..SUBCOMMAND
    },
    Spec {
        name: "debug",
        since: "3.2.0",
        summary: "Is there for clients that turn debugging off.",
        arity: 3,
        run: Handler::Session(debug),
        ..SUBCOMMAND
    },
    Spec {
        name: "help",
        since: "5.0.0",
        summary: "Answers what there is.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..SUBCOMMAND
    },
];
