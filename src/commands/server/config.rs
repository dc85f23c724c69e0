//! CONFIG: shows, changes and rewrites the configuration.

use super::ADMIN;
use crate::acl::quoted_rules;
use crate::commands::{Handler, Spec};
use crate::config::{Change, RewriteScope, set_failed};
use crate::log;
use crate::node::Node;
use crate::open_files;
use crate::replication;
use crate::routing::{Call, CallOutcome, Waiting};
use crate::tls;
use crate::worker::Worker;
use flagstone_commands::help::help;
use flagstone_commands::{Group, error, flag};
use flagstone_wire::resp::{Args, Reply};
use std::rc::Rc;

/// Beginning of the names of directives about TLS.
const TLS: &str = "tls-";

/// Maximum number of parameters of CONFIG GET. A look at the whole table for each of a million takes
/// seconds, in which the worker would serve nobody else.
const MAX_ASKED: usize = 1024;

/// `CONFIG GET parameter [parameter …]`
fn get(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let patterns: Vec<&[u8]> = args.skip(2).iter().take(MAX_ASKED + 1).collect();
    if patterns.len() > MAX_ASKED {
        return Err(format!("ERR CONFIG GET takes at most {MAX_ASKED} parameters").into());
    }
    let found = cx.node.config.get(&patterns);
    cx.out.map(found.len());
    for (name, value) in found {
        cx.out.bulk_str(&name);
        cx.out.bulk_str(&value);
    }
    Ok(())
}

/// `CONFIG SET parameter value [parameter value …]`: all changes are in effect when it is answered,
/// or none.
fn set<'a>(cx: &'a mut Call<'_>, args: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let words: Vec<&[u8]> = args.iter().skip(2).collect();
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(error::SYNTAX.into());
        }
        let pairs: Vec<_> = pairs.iter().map(|&[name, value]| (name, value)).collect();
        let node = cx.node;
        let _alone = node.configuring.lock().await;
        let change = node.config.prepare(&pairs, cx.session.client.is_local())?;
        carry_out(node, &change).await?;
        for notice in &change.notices {
            tracing::warn!("CONFIG SET: {notice}");
        }
        let syncs = ["appendfsync", "repl-ack"].iter().any(|name| change.changed.contains(name));
        let gathers = change.changed.contains(&"journal-commit-window-ms");
        let password = change.changed.contains(&"requirepass");
        let limits = (change.changed.iter())
            .any(|name| name.starts_with("maxmemory") || *name == "import-mode");
        node.config.commit(change);
        if password {
            let settings = node.config.settings();
            let password = settings.requirepass.as_deref().map(str::as_bytes);
            node.access.accounts.set_default_password(password);
        }
        if syncs {
            node.apply_appendfsync();
        }
        if gathers {
            node.apply_commit_window();
        }
        node.apply_latency_threshold();
        node.apply_import_mode();
        node.apply_lazy_removals();
        node.apply_repl_ack();
        replication::review_succession(node, &cx.worker.peers).await?;
        if limits {
            let look = |worker: Rc<Worker>| async move {
                worker.look_at_data_set();
                // The evictor has its first turn before the next command.
                tokio::task::yield_now().await;
            };
            cx.worker.peers.on_all(true, look).await.map_err(|_| "ERR a worker is gone")?;
            // Not before: other connections would close clients, and count this request, as Valkey does not.
            Node::limit_client_memory(&node.config.settings());
            node.clients.look_again();
        }
        cx.out.ok();
        Ok(())
    })
}

/// Carries out the parts of a change that the system may refuse, the least certain ones first.
async fn carry_out(node: &Node, change: &Change) -> Result<(), String> {
    let settings = &change.settings;
    let changes = |name: &&str| change.changed.contains(name);
    if changes(&"maxclients")
        && let Err(fitting) = open_files::make_room(settings.maxclients)
    {
        let reason = format!(
            "The operating system is not able to handle the specified number of clients, try with \
            {fitting}"
        );
        return Err(set_failed("maxclients", &reason));
    }
    if changes(&"loglevel") && !log::is_settable() {
        return Err(set_failed("loglevel", log::FIXED));
    }
    // Files are read again even if their names stay.
    let old_tls = match change.named.iter().any(|name| name.starts_with(TLS)) {
        true => {
            let loaded = tls::load(settings).map_err(|error| {
                tracing::warn!("CONFIG SET {error}");
                let reason = format!("Unable to update TLS configuration. {}", error.reason);
                set_failed(error.directive, &reason)
            })?;
            Some(node.ports.tls.replace(loaded))
        }
        false => None,
    };
    if let Some(name) = ["port", "tls-port", "bind"].iter().find(|name| changes(name)) {
        let reason = match *name {
            "bind" => "Failed to bind to specified addresses.",
            _ => "Unable to listen on this port. Check server logs.",
        };
        if let Err(error) = node.listen(settings.clone()).await {
            tracing::warn!("CONFIG SET {name}: {error}");
            if let Some(old) = old_tls {
                node.ports.tls.replace(old);
            }
            return Err(set_failed(name, reason));
        }
    }
    if changes(&"loglevel") {
        log::set_level(settings.loglevel);
    }
    log::set_format(settings.log_format);
    Ok(())
}

/// `CONFIG RESETSTAT`
fn resetstat<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let reset = |worker: Rc<Worker>| async move { worker.reset_stats() };
        cx.worker.peers.on_all(true, reset).await.map_err(|_| "ERR a worker is gone")?;
        cx.node.reset_stats();
        cx.out.ok();
        Ok(())
    })
}

/// `CONFIG REWRITE`
fn rewrite(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    rewrite_file(cx, RewriteScope::Changed)
}

/// Rewrites the configuration file, with the users that it has.
pub(super) fn rewrite_file(cx: &mut Call<'_>, scope: RewriteScope) -> CallOutcome {
    let settings = cx.node.config.settings();
    // With a file of users, the configuration has none.
    let accounts = match settings.aclfile {
        Some(_) => Vec::new(),
        None => cx.node.access.accounts.all(),
    };
    let users: Vec<String> =
        accounts.iter().map(|account| quoted_rules(&account.name, &account.user())).collect();
    cx.node.config.rewrite_with_users(Some(&users), scope)?;
    cx.out.ok();
    Ok(())
}

/// `CONFIG HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "CONFIG",
        &[
            ("GET <pattern>", "Answers the parameters that match, with their values."),
            ("SET <directive> <value>", "Changes parameters: all that are given, or none."),
            ("RESETSTAT", "Puts the counters of INFO back to zero."),
            ("REWRITE", "Writes the values in effect into the configuration file."),
        ],
    );
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
        run: Handler::Session(get),
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
        run: Handler::Wait(set),
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
        run: Handler::Wait(resetstat),
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
        run: Handler::Session(rewrite),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "5.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
];
