//! All commands: those on keys and those of the server.

use super::{Route, Spec};
use crate::node::Node;
use flagstone_commands::registry::Registry;
use flagstone_commands::{FAMILIES, flag};
use flagstone_wire::resp::Args;
use std::sync::LazyLock;

/// A command or subcommand as it is looked up.
pub type Command = flagstone_commands::registry::Command<Route>;

/// The declarations of the server's own families.
const SERVER_FAMILIES: &[&[Spec]] = &[
    super::connection::COMMANDS,
    super::server::COMMANDS,
    super::server::ADMIN_COMMANDS,
    super::server::SAVE_COMMANDS,
    super::server::SELFTEST_COMMANDS,
    super::pubsub::COMMANDS,
    super::transactions::COMMANDS,
    super::scripting::COMMANDS,
    super::functions::COMMANDS,
    super::databases::WHOLE,
    super::databases::SCAN,
];

static REGISTRY: LazyLock<Registry<Route>> = LazyLock::new(|| {
    let on_keys = FAMILIES.iter().copied().flatten();
    let on_keys: Vec<Spec> = on_keys.map(flagstone_commands::Spec::with_runner).collect();
    Registry::new(on_keys.leak().iter().chain(SERVER_FAMILIES.iter().copied().flatten()))
});

/// The flags of a command with these arguments: where it runs a script that says what it does, that
/// counts.
pub fn flags(command: &Command, node: &Node, args: Args<'_>) -> u32 {
    let own = command.spec.flags;
    let Route::Script { flags, .. } = command.spec.run else { return own };
    flags(node, args).map_or(own, |script| script.command_flags(own))
}

/// Whether the reply of a command may show data, and not only the state of the server.
pub fn shows_data(command: &Command) -> bool {
    let spec = command.spec;
    match spec.run {
        Route::Keys(_) | Route::Unit(_) | Route::Script { .. } | Route::Databases(_) => true,
        Route::Wait(_) => !spec.has(flag::STALE),
        Route::Session(_) | Route::Either { .. } | Route::Help(_) | Route::Container => false,
    }
}

/// All commands, family by family.
pub fn all() -> &'static [Command] {
    REGISTRY.all()
}

/// All commands and subcommands.
pub fn every() -> impl Iterator<Item = &'static Command> {
    REGISTRY.by_id().iter().copied()
}

/// The command or subcommand with this [`Command::id`].
pub fn by_id(id: usize) -> Option<&'static Command> {
    REGISTRY.by_id().get(id).copied()
}

/// How many commands and subcommands there are: their ids are below.
pub fn count() -> usize {
    REGISTRY.by_id().len()
}

/// The command of a name in any case.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    REGISTRY.lookup(name)
}

/// The command or subcommand that arguments name.
pub fn resolve(args: Args<'_>) -> Option<&'static Command> {
    REGISTRY.resolve(args)
}
