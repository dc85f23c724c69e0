//! CONFIG.

use super::ADMIN;
use crate::commands::help::help;
use crate::commands::{Call, Group, Outcome, Run, Spec, Waiting, error, flag};
use crate::resp::Args;
use crate::routing;
use crate::worker::Worker;
use std::rc::Rc;

/// `CONFIG GET parameter [parameter …]`
fn get(cx: &mut Call<'_>, args: Args<'_>) -> Outcome {
    let patterns: Vec<&[u8]> = args.iter().skip(2).collect();
    let found = cx.node.config.get(&patterns);
    cx.out.map(found.len());
    for (name, value) in found {
        cx.out.bulk_str(&name);
        cx.out.bulk_str(&value);
    }
    Ok(())
}

/// `CONFIG SET parameter value [parameter value …]`
fn set(cx: &mut Call<'_>, args: Args<'_>) -> Outcome {
    let words: Vec<&[u8]> = args.iter().skip(2).collect();
    let (pairs, rest) = words.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(error::SYNTAX.into());
    }
    let pairs: Vec<_> = pairs.iter().map(|&[name, value]| (name, value)).collect();
    let changed = cx.node.config.set(&pairs, cx.session.client.is_local())?;
    if changed.contains(&"appendfsync") {
        cx.node.apply_appendfsync();
    }
    cx.node.look_at_memory(&cx.node.config.settings());
    cx.out.ok();
    Ok(())
}

/// `CONFIG RESETSTAT`
fn resetstat<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let reset = |worker: Rc<Worker>| async move { worker.reset_stats() };
        routing::on_all(cx.node, true, reset).await.map_err(|_| "ERR a worker is gone")?;
        cx.node.reset_stats();
        cx.out.ok();
        Ok(())
    })
}

/// `CONFIG REWRITE`
fn rewrite(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    cx.node.config.rewrite()?;
    cx.out.ok();
    Ok(())
}

/// `CONFIG HELP`
fn show_help(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    help(
        cx.out,
        "CONFIG",
        &[
            ("GET <pattern>", "Answers the parameters that match, with their values."),
            ("SET <directive> <value>", "Changes parameters: all that are given, or none."),
            ("RESETSTAT", "Puts the counters of INFO back to zero."),
            ("REWRITE", "Writes the values in effect into the configuration file."),
        ],
    );
    Ok(())
}

pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        group: Group::Server,
        since: "2.0.0",
        complexity: "O(N) when N is the number of configuration parameters provided",
        summary: "Answers parameters with their values in effect.",
        arity: -3,
        flags: ADMIN,
        run: Run::Session(get),
        ..Spec::NEW
    },
    Spec {
        name: "set",
        group: Group::Server,
        since: "2.0.0",
        complexity: "O(N) when N is the number of configuration parameters provided",
        summary: "Changes parameters while the server runs.",
        arity: -4,
        flags: ADMIN,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Run::Session(set),
        ..Spec::NEW
    },
    Spec {
        name: "resetstat",
        group: Group::Server,
        since: "2.0.0",
        summary: "Puts the counters of INFO back to zero.",
        arity: 2,
        flags: ADMIN,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Run::Wait(resetstat),
        ..Spec::NEW
    },
    Spec {
        name: "rewrite",
        group: Group::Server,
        since: "2.8.0",
        summary: "Writes the values in effect into the configuration file.",
        arity: 2,
        flags: ADMIN,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Run::Session(rewrite),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "5.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag::LOADING | flag::STALE,
        run: Run::Session(show_help),
        ..Spec::NEW
    },
];
