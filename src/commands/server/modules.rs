//! MODULE: this server has no modules.

use crate::commands::{Handler, Spec};
use crate::routing::{Call, CallOutcome};
use flagstone_commands::help::help;
use flagstone_commands::{CommandFlags, Group, flag};
use flagstone_wire::resp::{Args, Reply};

const NO_MODULES: &str = "ERR this server loads no modules";

/// `MODULE LIST`
fn list(cx: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    cx.out.array(0);
    Ok(())
}

/// `MODULE LOAD`, `MODULE LOADEX`, `MODULE UNLOAD`
fn refuse(_: &mut Call<'_>, _: Args<'_>) -> CallOutcome {
    Err(NO_MODULES.into())
}

/// `MODULE HELP`
fn show_help(out: &mut Reply) {
    let lines = [("LIST", "Return a list of loaded modules: there are none.")];
    help(out, "MODULE", &lines);
}

/// Flags of the subcommands that would load or unload a module.
const LOADS: CommandFlags = flag!(ADMIN | NOSCRIPT | NO_ASYNC_LOADING);

/// Common declaration of the subcommands.
const SUB: Spec =
    Spec { group: Group::Server, since: "4.0.0", complexity: "O(1)", arity: 2, ..Spec::NEW };

/// Declarations of the subcommands of MODULE.
pub(super) const SUBCOMMANDS: &[Spec] = &[
    Spec {
        name: "help",
        since: "5.0.0",
        summary: "Lists the subcommands.",
        flags: flag!(LOADING | STALE),
        run: Handler::Help(show_help),
        ..SUB
    },
    Spec {
        name: "list",
        summary: "Lists the loaded modules.",
        flags: flag!(ADMIN | NOSCRIPT),
        tips: &["nondeterministic_output_order"],
        run: Handler::Session(list),
        ..SUB
    },
    Spec {
        name: "load",
        arity: -3,
        summary: "Loads a module.",
        flags: LOADS,
        run: Handler::Session(refuse),
        ..SUB
    },
    Spec {
        name: "loadex",
        since: "7.0.0",
        arity: -3,
        summary: "Loads a module with parameters.",
        flags: LOADS,
        run: Handler::Session(refuse),
        ..SUB
    },
    Spec {
        name: "unload",
        arity: 3,
        summary: "Unloads a module.",
        flags: LOADS,
        run: Handler::Session(refuse),
        ..SUB
    },
];
