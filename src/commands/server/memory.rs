//! MEMORY.

use super::process;
use crate::commands::help::help;
use crate::commands::{
    Call, Ctx, Group, KeySpec, Outcome, Run, Spec, arg, error, flag, is_word, key,
};
use crate::num::parse_i64;
use crate::resp::Args;
use std::sync::atomic::Ordering;

/// `MEMORY USAGE key [SAMPLES count]`: what of the key is in memory, whole.
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

/// `MEMORY STATS`
fn stats(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    let memory = process::memory();
    let sum = |counter: fn(&crate::worker::WorkerStats) -> &std::sync::atomic::AtomicU64| {
        cx.node.stats.iter().map(|stats| counter(stats).load(Ordering::Relaxed)).sum::<u64>()
    };
    let dataset = sum(|stats| &stats.hot_bytes);
    let clients: u64 = cx.node.clients.all().iter().map(|client| client.memory()).sum();
    let share = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    let numbers = [
        ("peak.allocated", memory.peak),
        ("total.allocated", memory.resident),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", clients),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", cx.node.scripts.figures().1 as u64),
        ("functions.caches", cx.node.functions.now().bytes() as u64),
        ("overhead.total", memory.resident.saturating_sub(dataset)),
        ("dataset.bytes", dataset),
        ("allocator.allocated", memory.resident),
        ("allocator.active", memory.resident),
        ("allocator.resident", memory.resident),
    ];
    let ratios = [
        ("dataset.percentage", share(dataset, memory.resident)),
        ("peak.percentage", share(memory.resident, memory.peak)),
        ("fragmentation", 1.0),
    ];
    cx.out.map(numbers.len() + ratios.len());
    for (name, value) in numbers {
        cx.out.bulk_str(name);
        cx.out.int(value.cast_signed());
    }
    for (name, value) in ratios {
        cx.out.bulk_str(name);
        cx.out.double(value);
    }
    Ok(())
}

/// `MEMORY DOCTOR`
fn doctor(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    cx.out.verbatim(*b"txt", b"Nothing to complain about: see INFO memory and INFO flagstone.\n");
    Ok(())
}

/// `MEMORY MALLOC-STATS`
fn malloc_stats(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    cx.out.bulk_str("Stats not supported for the current allocator");
    Ok(())
}

/// `MEMORY PURGE`: the allocator gives memory back by itself.
fn purge(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    cx.out.ok();
    Ok(())
}

/// `MEMORY HELP`
fn show_help(cx: &mut Call<'_>, _: Args<'_>) -> Outcome {
    help(
        cx.out,
        "MEMORY",
        &[
            ("DOCTOR", "Tells of problems with memory."),
            ("MALLOC-STATS", "Answers figures of the allocator."),
            ("PURGE", "Asks the allocator to give memory back."),
            ("STATS", "Answers what memory is used for."),
            ("USAGE <key> [SAMPLES <count>]", "Answers the bytes that a key takes in memory."),
        ],
    );
    Ok(())
}

/// The subcommands of MEMORY.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "doctor",
        group: Group::Server,
        since: "4.0.0",
        summary: "Tells of problems with memory.",
        arity: 2,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Run::Session(doctor),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "4.0.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag::LOADING | flag::STALE,
        run: Run::Session(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "malloc-stats",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on how much memory is allocated, could be slow",
        summary: "Answers figures of the allocator.",
        arity: 2,
        flags: flag::LOADING,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Run::Session(malloc_stats),
        ..Spec::NEW
    },
    Spec {
        name: "purge",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on how much memory is allocated, could be slow",
        summary: "Asks the allocator to give memory back.",
        arity: 2,
        flags: flag::LOADING,
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        run: Run::Session(purge),
        ..Spec::NEW
    },
    Spec {
        name: "stats",
        group: Group::Server,
        since: "4.0.0",
        summary: "Answers what memory is used for.",
        arity: 2,
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Run::Session(stats),
        ..Spec::NEW
    },
    Spec {
        name: "usage",
        group: Group::Server,
        since: "4.0.0",
        complexity: "O(N) where N is the number of samples.",
        summary: "Answers the bytes that a key takes in memory.",
        arity: -3,
        flags: flag::READONLY,
        keys: &[KeySpec::one(2, key::RO)],
        run: Run::Keys(usage),
        ..Spec::NEW
    },
];
