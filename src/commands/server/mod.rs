//! Commands on the server.

mod config;
mod debug;

use super::{Group, Run, Spec, flag};

/// Flags that most commands on the server have.
const ADMIN: u32 = flag::ADMIN | flag::NOSCRIPT | flag::LOADING | flag::STALE;

/// The commands on the server.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "config",
        group: Group::Server,
        since: "2.0.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on the configuration.",
        arity: -2,
        subcommands: config::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "debug",
        group: Group::Server,
        complexity: "Depends on subcommand.",
        summary: "Holds commands for tests of the server.",
        arity: -2,
        flags: ADMIN | flag::PROTECTED,
        run: Run::Wait(debug::debug),
        ..Spec::NEW
    },
];
