//! MEMORY: memory of keys and of the process.

use super::info::keyspace;
use super::memory_report::{MemoryFigures, doctor_text};
use crate::allocator;
use crate::commands::{Handler, Spec};
use crate::node::Node;
use crate::process;
use crate::routing::{Call, CallOutcome, Waiting};
use crate::worker::Worker;
use flagstone_commands::help::help;
use flagstone_commands::{Ctx, Group, KeySpec, Outcome, arg, error, flag, is_word, key};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// `MEMORY USAGE key [SAMPLES count]`: the whole part of the key that is in memory.
fn usage(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let mut at = 3;
    while let Some(option) = args.get(at) {
        let count = args.get(at + 1).filter(|_| is_word(option, "samples"));
        let count = parse_i64(count.ok_or(error::SYNTAX)?).ok_or(error::NOT_INTEGER)?;
        if count < 0 {
            return Err(error::SYNTAX.into());
        }
        at += 2;
    }
    match cx.store.peek(cx.db, arg(args, 2)?)? {
        Some(entry) => cx.out.count(entry.memory()),
        None => cx.out.null(),
    }
    Ok(())
}

/// A figure of MEMORY STATS.
enum Figure {
    Number(u64),
    Ratio(f64),
}
use Figure::{Number, Ratio};

/// `MEMORY STATS`
fn stats<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let keys: u64 = keyspace(cx.worker).await?.iter().map(|(keys, _)| keys).sum();
        let figures = figures(cx.node, keys);
        cx.out.map(figures.len());
        for (name, figure) in figures {
            cx.out.bulk_str(name);
            match figure {
                Number(number) => cx.out.int(number.cast_signed()),
                Ratio(ratio) => cx.out.double(ratio),
            }
        }
        Ok(())
    })
}

/// Returns the figures; those of the allocator are the operating system's figures of the process.
fn figures(node: &Node, keys: u64) -> Vec<(&'static str, Figure)> {
    let memory = process::memory();
    let dataset: u64 =
        node.figures.stats.iter().map(|stats| stats.store.hot_bytes.load(Ordering::Relaxed)).sum();
    let clients: u64 = node.clients.all().iter().map(|client| client.memory()).sum();
    let kept = node.config.settings().repl_backlog_size as u64;
    let (backlog, for_slow) = node.followers.memory(kept);
    let share = |part: u64, whole: u64| Ratio(part as f64 * 100.0 / whole.max(1) as f64);
    vec![
        ("peak.allocated", Number(memory.peak)),
        ("total.allocated", Number(memory.resident)),
        ("startup.allocated", Number(0)),
        ("replication.backlog", Number(backlog)),
        ("clients.slaves", Number(for_slow)),
        ("clients.normal", Number(clients)),
        ("cluster.links", Number(0)),
        ("aof.buffer", Number(0)),
        ("lua.caches", Number(node.code.scripts.figures().1 as u64)),
        ("functions.caches", Number(node.code.functions.now().bytes() as u64)),
        ("overhead.db.hashtable.rehashing", Number(0)),
        ("overhead.total", Number(memory.resident.saturating_sub(dataset))),
        ("db.dict.rehashing.count", Number(0)),
        ("keys.count", Number(keys)),
        ("keys.bytes-per-key", Number(dataset / keys.max(1))),
        ("dataset.bytes", Number(dataset)),
        ("dataset.percentage", share(dataset, memory.resident)),
        ("peak.percentage", share(memory.resident, memory.peak)),
        ("allocator.allocated", Number(memory.resident)),
        ("allocator.active", Number(memory.resident)),
        ("allocator.resident", Number(memory.resident)),
        ("allocator.muzzy", Number(0)),
        ("allocator-fragmentation.ratio", Ratio(1.0)),
        ("allocator-fragmentation.bytes", Number(0)),
        ("allocator-rss.ratio", Ratio(1.0)),
        ("allocator-rss.bytes", Number(0)),
        ("rss-overhead.ratio", Ratio(1.0)),
        ("rss-overhead.bytes", Number(0)),
        ("fragmentation", Ratio(1.0)),
        ("fragmentation.bytes", Number(0)),
    ]
}

/// `MEMORY DOCTOR`
fn doctor(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let (node, settings) = (cx.node, cx.node.config.settings());
    let used = process::memory();
    let clients_limit = Node::client_memory_limit(&settings).all;
    let vms = node.code.scripts.vms.bytes.load(Ordering::Relaxed);
    let figures = MemoryFigures {
        resident: used.resident,
        peak: used.peak,
        budget: settings.memory_budget,
        values_share: node.pressure.budget.hot as u64,
        squeezed: node.pressure.squeeze.bytes(),
        pending: node.pending_bytes(),
        pending_limit: node.pending_limit(),
        clients: node.clients.all().iter().map(|client| client.memory()).sum(),
        clients_limit: if clients_limit == 0 { u64::MAX } else { clients_limit },
        scripts: (vms + node.code.scripts.figures().1 + node.code.functions.now().bytes()) as u64,
    };
    cx.out.verbatim(*b"txt", doctor_text(&figures).as_bytes());
    Ok(())
}

/// `MEMORY MALLOC-STATS`
fn malloc_stats(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.verbatim(*b"txt", allocator::report().as_bytes());
    Ok(())
}

/// `MEMORY PURGE`: each worker gives its free memory back to the system.
fn purge<'a>(cx: &'a mut Call<'_>, _: Args<'a>) -> Waiting<'a> {
    Box::pin(async move {
        let purge = |_: Rc<Worker>| async move { allocator::purge() };
        cx.worker.peers.on_all(true, purge).await.map_err(|_| "ERR a worker is gone")?;
        cx.out.ok();
        Ok(())
    })
}

/// `MEMORY HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "MEMORY",
        &[
            ("DOCTOR", "Tells of problems with memory."),
            ("MALLOC-STATS", "Answers figures of the allocator."),
            ("PURGE", "Asks the allocator to give memory back."),
            ("STATS", "Answers what memory is used for."),
            ("USAGE <key> [SAMPLES <count>]", "Answers the bytes that a key takes in memory."),
        ],
    );
}

/// Declarations of the subcommands of MEMORY.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "doctor",
        group: Group::Server,
        since: "4.0.0",
        summary: "Tells of problems with memory.",
        arity: 2,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Handler::Session(doctor),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "4.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "malloc-stats",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on how much memory is allocated, could be slow",
        summary: "Answers figures of the allocator.",
        arity: 2,
        flags: flag!(LOADING),
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Handler::Session(malloc_stats),
        ..Spec::NEW
    },
    Spec {
        name: "purge",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on how much memory is allocated, could be slow",
        summary: "Asks the allocator to give memory back.",
        arity: 2,
        flags: flag!(LOADING),
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        run: Handler::Wait(purge),
        ..Spec::NEW
    },
    Spec {
        name: "stats",
        group: Group::Server,
        since: "4.0.0",
        summary: "Answers what memory is used for.",
        arity: 2,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Handler::Wait(stats),
        ..Spec::NEW
    },
    Spec {
        name: "usage",
        group: Group::Server,
        since: "4.0.0",
        complexity: "O(N) where N is the number of samples.",
        summary: "Answers the bytes that a key takes in memory.",
        arity: -3,
        flags: flag!(READONLY),
        keys: &[KeySpec::one(2, key!(RO))],
        run: Handler::Keys(usage),
        ..Spec::NEW
    },
];
