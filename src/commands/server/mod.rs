//! Commands on the server.

mod admin;
mod command;
mod commandlog;
mod config;
mod debug;
mod debug_keys;
mod docs;
mod info;
mod keys;
mod latency;
mod latency_report;
mod memory;
mod memory_report;
mod migrate;
mod modules;
mod monitor;
mod replication;
mod save;
mod selftest;
mod split;

use crate::commands::{Handler, Spec};
use flagstone_commands::{Begin, CommandFlags, Find, Group, KeySpec, acl, flag, key};

pub use admin::ADMIN_COMMANDS;
pub use replication::REPLICATION_COMMANDS;
pub use save::SAVE_COMMANDS;
pub use selftest::SELFTEST_COMMANDS;

/// Formats bytes for people: "1.50M".
fn human(bytes: u64) -> String {
    const UNITS: [char; 6] = ['K', 'M', 'G', 'T', 'P', 'E'];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.2}{}", UNITS[unit])
}

/// Flags of most commands on the server.
const ADMIN: CommandFlags = flag!(ADMIN | NOSCRIPT | LOADING | STALE);

/// Declarations of the commands on the server.
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
        flags: ADMIN.union(flag!(PROTECTED)),
        run: Handler::Wait(debug::debug),
        ..Spec::NEW
    },
    Spec {
        name: "command",
        group: Group::Server,
        since: "2.8.13",
        complexity: "O(N) where N is the total number of commands",
        summary: "Describes all commands.",
        arity: -1,
        flags: flag!(LOADING | STALE),
        acl: acl!(CONNECTION),
        tips: &["nondeterministic_output_order"],
        subcommands: command::SUBCOMMANDS,
        run: Handler::Session(command::all),
        ..Spec::NEW
    },
    Spec {
        name: "commandlog",
        group: Group::Server,
        since: "8.1.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on the logs of slow and large commands.",
        arity: -2,
        subcommands: commandlog::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "info",
        group: Group::Server,
        summary: "Answers figures and facts of the server.",
        arity: -1,
        flags: flag!(LOADING | STALE),
        acl: acl!(DANGEROUS),
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        run: Handler::Wait(info::info),
        ..Spec::NEW
    },
    Spec {
        name: "latency",
        group: Group::Server,
        since: "2.8.13",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on events that took long.",
        arity: -2,
        subcommands: latency::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "memory",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on memory.",
        arity: -2,
        subcommands: memory::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "migrate",
        since: "2.6.0",
        complexity: "O(N) where N is the size of the values",
        summary: "Sends keys to another server, and deletes them here.",
        arity: -6,
        flags: flag!(WRITE | MOVABLE_KEYS | ALONE),
        keys: &[
            KeySpec {
                flags: key!(RW | ACCESS | DELETE),
                begin: Begin::Index(3),
                find: Find::ShownAs(
                    &Find::Range { last: 0, step: 1, limit: 0 },
                    migrate::add_single_key,
                ),
            },
            KeySpec {
                flags: key!(RW | ACCESS | DELETE | INCOMPLETE),
                begin: Begin::Keyword("KEYS", -2),
                find: Find::ShownAs(
                    &Find::Range { last: -1, step: 1, limit: 0 },
                    migrate::add_listed_keys,
                ),
            },
        ],
        acl: acl!(KEYSPACE | DANGEROUS),
        tips: &["nondeterministic_output"],
        run: Handler::Wait(migrate::migrate),
        ..Spec::NEW
    },
    Spec {
        name: "module",
        group: Group::Server,
        since: "4.0.0",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on modules.",
        arity: -2,
        subcommands: modules::SUBCOMMANDS,
        ..Spec::NEW
    },
    Spec {
        name: "monitor",
        group: Group::Server,
        summary: "Tells of every command that runs, from now on.",
        arity: 1,
        flags: ADMIN,
        run: Handler::Session(monitor::monitor),
        ..Spec::NEW
    },
    Spec {
        name: "slowlog",
        group: Group::Server,
        since: "2.2.12",
        complexity: "Depends on subcommand.",
        summary: "Holds the commands on the log of slow commands.",
        arity: -2,
        subcommands: commandlog::SLOWLOG_SUBCOMMANDS,
        ..Spec::NEW
    },
];
