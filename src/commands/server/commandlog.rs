//! COMMANDLOG and SLOWLOG: the logs of commands that were slow or large.

use crate::commandlog::LogKind;
use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{Group, arg, flag};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};

/// Number of entries that SLOWLOG GET returns by default.
const DEFAULT_COUNT: usize = 10;

/// Returns the log that an argument names.
fn kind(word: &[u8]) -> Result<LogKind, &'static str> {
    let named = |kind: &LogKind| kind.name().as_bytes().eq_ignore_ascii_case(word);
    LogKind::ALL
        .into_iter()
        .find(named)
        .ok_or("ERR type should be one of the following: slow, large-request, large-reply")
}

/// Returns the number of entries that an argument asks for.
fn count(word: &[u8]) -> Result<usize, &'static str> {
    match parse_i64(word) {
        Some(-1) => Ok(usize::MAX),
        Some(count @ 0..) => Ok(count as usize),
        _ => Err("ERR count should be greater than or equal to -1"),
    }
}

/// `COMMANDLOG GET count type`
fn get(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let count = count(arg(args, 2)?)?;
    let kind = kind(arg(args, 3)?)?;
    show(cx, kind, count);
    Ok(())
}

/// `COMMANDLOG LEN type`
fn len(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let kind = kind(arg(args, 2)?)?;
    cx.out.count(cx.node.figures.command_logs.of(kind).len());
    Ok(())
}

/// `COMMANDLOG RESET type`
fn reset(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let kind = kind(arg(args, 2)?)?;
    cx.node.figures.command_logs.of(kind).clear();
    cx.out.ok();
    Ok(())
}

/// `SLOWLOG GET [count]`
fn get_slow(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let count = match args.len() {
        2 => DEFAULT_COUNT,
        _ => count(arg(args, 2)?)?,
    };
    show(cx, LogKind::Slow, count);
    Ok(())
}

/// `SLOWLOG LEN`
fn len_slow(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.count(cx.node.figures.command_logs.of(LogKind::Slow).len());
    Ok(())
}

/// `SLOWLOG RESET`
fn reset_slow(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.node.figures.command_logs.of(LogKind::Slow).clear();
    cx.out.ok();
    Ok(())
}

/// Writes the latest entries of a log.
fn show(cx: &mut Call<'_>, kind: LogKind, count: usize) {
    let entries = cx.node.figures.command_logs.of(kind).latest(count);
    cx.out.array(entries.len());
    for entry in entries {
        cx.out.array(6);
        cx.out.int(entry.id.cast_signed());
        cx.out.int(entry.time_s.cast_signed());
        cx.out.int(entry.value.cast_signed());
        cx.out.array(entry.args.len());
        for kept in &entry.args {
            cx.out.bulk(kept);
        }
        cx.out.bulk_str(&entry.addr);
        cx.out.bulk_str(&entry.name);
    }
}

/// `COMMANDLOG HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "COMMANDLOG",
        &[
            (
                "GET <count> <type>",
                "Answers the latest entries of a log (-1 for all): id, time, microseconds (slow) \
                or bytes (large-request, large-reply), arguments, address and name of the \
                connection.",
            ),
            ("LEN <type>", "Answers how many there are."),
            ("RESET <type>", "Forgets them."),
        ],
    );
}

/// `SLOWLOG HELP`
fn show_slow_help(out: &mut Reply) {
    help(
        out,
        "SLOWLOG",
        &[
            (
                "GET [<count>]",
                "Answers the latest slow commands (10, -1 for all): id, time, microseconds, \
                arguments, address and name of the connection.",
            ),
            ("LEN", "Answers how many there are."),
            ("RESET", "Forgets them."),
        ],
    );
}

/// Base of the declarations of COMMANDLOG's subcommands.
const BASE: Spec = Spec {
    group: Group::Server,
    since: "8.1.0",
    flags: flag!(ADMIN | LOADING | STALE),
    ..Spec::NEW
};

/// Declarations of the subcommands of COMMANDLOG.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        complexity: "O(N) where N is the number of entries returned",
        summary: "Answers the latest entries of a log of commands.",
        arity: 4,
        tips: &["request_policy:all_nodes", "nondeterministic_output"],
        run: Handler::Session(get),
        ..BASE
    },
    Spec {
        name: "help",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..BASE
    },
    Spec {
        name: "len",
        summary: "Answers how many entries a log of commands has.",
        arity: 3,
        tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
        run: Handler::Session(len),
        ..BASE
    },
    Spec {
        name: "reset",
        complexity: "O(N) where N is the number of entries in the commandlog",
        summary: "Forgets the entries of a log of commands.",
        arity: 3,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Handler::Session(reset),
        ..BASE
    },
];

/// Declarations of the subcommands of SLOWLOG.
pub(super) const SLOWLOG_SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        since: "2.2.12",
        complexity: "O(N) where N is the number of entries returned",
        summary: "Answers the latest slow commands.",
        arity: -2,
        tips: &["request_policy:all_nodes", "nondeterministic_output"],
        run: Handler::Session(get_slow),
        ..BASE
    },
    Spec {
        name: "help",
        since: "6.2.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_slow_help),
        ..BASE
    },
    Spec {
        name: "len",
        since: "2.2.12",
        summary: "Answers how many slow commands are kept.",
        arity: 2,
        tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
        run: Handler::Session(len_slow),
        ..BASE
    },
    Spec {
        name: "reset",
        since: "2.2.12",
        complexity: "O(N) where N is the number of entries in the slowlog",
        summary: "Forgets the slow commands.",
        arity: 2,
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Handler::Session(reset_slow),
        ..BASE
    },
];
