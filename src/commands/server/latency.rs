//! LATENCY: events that took long, and the distribution of the time of commands.

use super::ADMIN;
use super::latency_report::{doctor_text, graph_text};
use crate::command::{Command, registry};
use crate::commands::{Handler, Spec};
use crate::node::{Node, Times};
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{Group, arg, flag};
use flagstone_storage::latency::{LATENCY, LatencyEvent};
use flagstone_wire::resp::{Args, Reply};

/// Returns the times of a command on all workers, if it has run.
pub(super) fn times_of(node: &Node, command: &Command) -> Option<Times> {
    Times::of(
        node.figures
            .stats
            .iter()
            .filter_map(|stats| Some(&stats.by_command.get(command.id)?.times)),
    )
}

/// `LATENCY HISTORY event`
fn history(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let series = LatencyEvent::named(arg(args, 2)?).and_then(|event| LATENCY.of(event));
    let spikes = series.map(|series| series.spikes).unwrap_or_default();
    cx.out.array(spikes.len());
    for spike in spikes {
        cx.out.array(2);
        cx.out.int(spike.time_s.cast_signed());
        cx.out.int(spike.ms.cast_signed());
    }
    Ok(())
}

/// `LATENCY LATEST`
fn latest(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let all = LATENCY.all();
    cx.out.array(all.len());
    for (event, series) in all {
        let last = series.spikes.back().copied();
        cx.out.array(6);
        cx.out.bulk_str(event.name());
        for figure in [
            last.map_or(0, |spike| spike.time_s),
            last.map_or(0, |spike| spike.ms),
            series.max_ms,
            series.sum_ms,
            series.count,
        ] {
            cx.out.int(figure.cast_signed());
        }
    }
    Ok(())
}

/// `LATENCY GRAPH event`
fn graph(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let name = arg(args, 2)?;
    let found = LatencyEvent::named(name).and_then(|event| Some((event, LATENCY.of(event)?)));
    let Some((event, series)) = found else {
        let name = String::from_utf8_lossy(&name[..name.len().min(128)]);
        return Err(format!("ERR No samples available for event '{name}'").into());
    };
    let now_s = cx.node.clock.now_ms() / 1000;
    cx.out.verbatim(*b"txt", graph_text(event, &series, now_s).as_bytes());
    Ok(())
}

/// `LATENCY DOCTOR`
fn doctor(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    let now_s = cx.node.clock.now_ms() / 1000;
    let text = doctor_text(&LATENCY.all(), &cx.node.config.settings(), now_s);
    cx.out.verbatim(*b"txt", text.as_bytes());
    Ok(())
}

/// `LATENCY RESET [event …]`
fn reset(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let reset = |event: LatencyEvent| usize::from(LATENCY.reset(event));
    let count: usize = match args.len() {
        2 => LatencyEvent::ALL.into_iter().map(reset).sum(),
        _ => args.iter().skip(2).filter_map(LatencyEvent::named).map(reset).sum(),
    };
    cx.out.count(count);
    Ok(())
}

/// `LATENCY HISTOGRAM [command …]`
fn histogram(cx: &mut Call<'_>, args: Args<'_>) -> CallOutcome {
    let of = |command: &'static Command| Some((command, times_of(cx.node, command)?));
    let found: Vec<(&Command, Times)> = match args.len() {
        2 => registry::every().filter_map(of).collect(),
        _ => {
            let named = args.iter().skip(2).filter_map(registry::by_full_name);
            named.flat_map(|c| std::iter::once(c).chain(&c.subcommands)).filter_map(of).collect()
        }
    };
    cx.out.map(found.len());
    for (command, times) in found {
        cx.out.bulk_str(command.full_name);
        distribution(cx.out, &times);
    }
    Ok(())
}

/// Writes how many calls took at most how many microseconds: for each power of two below which
/// there are more than below the last, labelled as the reference does.
fn distribution(out: &mut Reply, times: &Times) {
    out.map(2);
    out.bulk_str("calls");
    out.int(times.count().cast_signed());
    out.bulk_str("histogram_usec");
    let mark = out.begin_map();
    let (mut told, mut len) = (0, 0);
    for (bound_ns, count) in times.by_power() {
        if count > told {
            // The reference counts up to the end of the cell that begins there, a 128th wide.
            out.int(((bound_ns + bound_ns / 128 - 1) / 1000_u64).cast_signed());
            out.int(count.cast_signed());
            (told, len) = (count, len + 1);
        }
    }
    out.end(mark, len);
}

/// `LATENCY HELP`
fn show_help(out: &mut Reply) {
    help(
        out,
        "LATENCY",
        &[
            ("DOCTOR", "Tells which events took long, and what may help."),
            ("GRAPH <event>", "Draws the latest spikes of a class of events."),
            ("HISTOGRAM [COMMAND ...]", "Answers how long the calls of commands took."),
            ("HISTORY <event>", "Answers times and milliseconds of the latest spikes of a class."),
            ("LATEST", "Answers the latest spike of each class."),
            ("RESET [<event> ...]", "Forgets the spikes of some classes, or of all."),
        ],
    );
}

/// Base of the declarations.
const BASE: Spec = Spec { group: Group::Server, since: "2.8.13", flags: ADMIN, ..Spec::NEW };

/// Tips of subcommands whose answer is about one server.
const OF_EACH: &[&str] =
    &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

/// Declarations of the subcommands of LATENCY.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "doctor",
        summary: "Tells which events took long, and what may help.",
        arity: 2,
        tips: OF_EACH,
        run: Handler::Session(doctor),
        ..BASE
    },
    Spec {
        name: "graph",
        summary: "Draws the latest spikes of a class of events.",
        arity: 3,
        tips: OF_EACH,
        run: Handler::Session(graph),
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
        name: "histogram",
        since: "7.0.0",
        complexity: "O(N) where N is the number of commands with latency information being \
            retrieved.",
        summary: "Answers how long the calls of commands took.",
        arity: -2,
        tips: OF_EACH,
        run: Handler::Session(histogram),
        ..BASE
    },
    Spec {
        name: "history",
        summary: "Answers the latest spikes of a class of events.",
        arity: 3,
        tips: OF_EACH,
        run: Handler::Session(history),
        ..BASE
    },
    Spec {
        name: "latest",
        summary: "Answers the latest spike of each class of events.",
        arity: 2,
        tips: OF_EACH,
        run: Handler::Session(latest),
        ..BASE
    },
    Spec {
        name: "reset",
        summary: "Forgets the spikes of some classes of events, or of all.",
        arity: -2,
        tips: &["request_policy:all_nodes", "response_policy:agg_sum"],
        run: Handler::Session(reset),
        ..BASE
    },
];
