//! FCALL and FUNCTION: commands on functions and their libraries.

mod call;
mod change;
mod show;
mod store;

use super::scripting::{EVALUATES, READ_ONLY};
use crate::commands::{Handler, Spec};
use flagstone_commands::{Group, flag};

const SUBCOMMAND: Spec =
    Spec { group: Group::Scripting, since: "7.0.0", flags: flag!(NOSCRIPT), ..Spec::NEW };

const ALL_SHARDS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "load",
        complexity: "O(1) (considering compilation time is redundant)",
        summary: "Adds a library.",
        arity: -3,
        flags: flag!(NOSCRIPT | AT_REST | WRITE | DENYOOM),
        tips: ALL_SHARDS,
        run: Handler::Wait(change::load),
        ..SUBCOMMAND
    },
    Spec {
        name: "delete",
        summary: "Removes a library and its functions.",
        arity: 3,
        flags: flag!(NOSCRIPT | AT_REST | WRITE),
        tips: ALL_SHARDS,
        run: Handler::Wait(change::delete),
        ..SUBCOMMAND
    },
    Spec {
        name: "flush",
        complexity: "O(N) where N is the number of functions deleted",
        summary: "Removes all libraries.",
        arity: -2,
        flags: flag!(NOSCRIPT | AT_REST | WRITE),
        tips: ALL_SHARDS,
        run: Handler::Wait(change::flush),
        ..SUBCOMMAND
    },
    Spec {
        name: "restore",
        complexity: "O(N) where N is the number of functions on the payload",
        summary: "Adds the libraries of a payload.",
        arity: -3,
        flags: flag!(NOSCRIPT | AT_REST | WRITE | DENYOOM),
        tips: ALL_SHARDS,
        run: Handler::Wait(change::restore),
        ..SUBCOMMAND
    },
    Spec {
        name: "dump",
        complexity: "O(N) where N is the number of functions",
        summary: "Answers all libraries as a payload.",
        arity: 2,
        flags: flag!(NOSCRIPT | LIBRARIES),
        run: Handler::Session(show::dump),
        ..SUBCOMMAND
    },
    Spec {
        name: "list",
        complexity: "O(N) where N is the number of functions",
        summary: "Answers what libraries there are.",
        arity: -2,
        tips: &["nondeterministic_output_order"],
        flags: flag!(NOSCRIPT | LIBRARIES),
        run: Handler::Session(show::list),
        ..SUBCOMMAND
    },
    Spec {
        name: "stats",
        summary: "Answers which function runs, and how many there are.",
        arity: 2,
        flags: flag!(NOSCRIPT | ALLOW_BUSY),
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Handler::Session(show::stats),
        ..SUBCOMMAND
    },
    Spec {
        name: "kill",
        summary: "Ends the functions that have been running for long and have not written.",
        arity: 2,
        flags: flag!(NOSCRIPT | ALLOW_BUSY),
        tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
        run: Handler::Session(show::kill),
        ..SUBCOMMAND
    },
    Spec {
        name: "help",
        summary: "Answers what there is.",
        arity: 2,
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show::show_help),
        ..SUBCOMMAND
    },
];

/// Declarations of the commands on functions.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "fcall",
        since: "7.0.0",
        complexity: "Depends on the function that is executed.",
        summary: "Calls a function.",
        flags: EVALUATES.flags.union(flag!(LIBRARIES)),
        run: Handler::Script {
            run: |cx, unit, args| call::fcall(cx, unit, args, false),
            flags: call::flags,
        },
        ..EVALUATES
    },
    Spec {
        name: "fcall_ro",
        complexity: "Depends on the function that is executed.",
        summary: "Calls a function that does not write.",
        flags: READ_ONLY.flags.union(flag!(LIBRARIES)),
        run: Handler::Script {
            run: |cx, unit, args| call::fcall(cx, unit, args, true),
            flags: call::flags,
        },
        ..READ_ONLY
    },
    Spec {
        name: "function",
        group: Group::Scripting,
        since: "7.0.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on functions.",
        arity: -2,
        subcommands: SUBCOMMANDS,
        run: Handler::Container,
        ..Spec::NEW
    },
];
