//! SLOWLOG: the log of slow commands.

use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{Group, arg, flag};
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, Reply};

/// Number of entries that GET returns by default.
const DEFAULT_COUNT: usize = 10;

/// `SLOWLOG GET [count]`
fn get(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let count = match args.len() {
        2 => DEFAULT_COUNT,
        _ => match parse_i64(arg(args, 2)?) {
            Some(-1) => usize::MAX,
            Some(count @ 0..) => count as usize,
            _ => return Err("ERR count should be greater than or equal to -1".into()),
        },
    };
    let entries = cx.node.slowlog.latest(count);
    cx.out.array(entries.len());
    for entry in entries {
        cx.out.array(6);
        cx.out.int(entry.id.cast_signed());
        cx.out.int(entry.time_s.cast_signed());
        cx.out.int(entry.duration_us.cast_signed());
        cx.out.array(entry.args.len());
        for kept in &entry.args {
            cx.out.bulk(kept);
        }
        cx.out.bulk_str(&entry.addr);
        cx.out.bulk_str(&entry.name);
    }
    Ok(())
}

/// `SLOWLOG LEN`
fn len(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.count(cx.node.slowlog.len());
    Ok(())
}

/// `SLOWLOG RESET`
fn reset(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.node.slowlog.clear();
    cx.out.ok();
    Ok(())
}

/// `SLOWLOG HELP`
fn show_help(out: &mut Reply) {
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

/// Declarations of the subcommands of SLOWLOG.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "get",
        group: Group::Server,
        since: "2.2.12",
        complexity: "O(N) where N is the number of entries returned",
        summary: "Answers the latest slow commands.",
        arity: -2,
        flags: flag!(ADMIN | LOADING | STALE),
        tips: &["request_policy:all_nodes", "nondeterministic_output"],
        run: Handler::Session(get),
        ..Spec::NEW
    },
    Spec {
        name: "help",
        group: Group::Server,
        since: "6.2.0",
        summary: "Tells the subcommands.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..Spec::NEW
    },
    Spec {
        name: "len",
        group: Group::Server,
        since: "2.2.12",
        summary: "Answers how many slow commands are kept.",
        arity: 2,
        flags: flag!(ADMIN | LOADING | STALE),
        tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
        run: Handler::Session(len),
        ..Spec::NEW
    },
    Spec {
        name: "reset",
        group: Group::Server,
        since: "2.2.12",
        complexity: "O(N) where N is the number of entries in the slowlog",
        summary: "Forgets the slow commands.",
        arity: 2,
        flags: flag!(ADMIN | LOADING | STALE),
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        run: Handler::Session(reset),
        ..Spec::NEW
    },
];
