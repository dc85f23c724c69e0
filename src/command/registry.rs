//! The table of all commands. The program installs it at its start, from the declarations of the
//! families, which stand above everything that looks a command up.

use super::{Command, Route};
use flagstone_commands::registry::Registry;
use flagstone_wire::resp::Args;
use std::sync::OnceLock;

static REGISTRY: OnceLock<Registry<Route>> = OnceLock::new();

/// Makes a table the program's. A later one is not taken.
pub fn install(registry: Registry<Route>) {
    let _ = REGISTRY.set(registry);
}

/// # Panics
/// If no table was installed.
fn registry() -> &'static Registry<Route> {
    // Unit tests have no program that does it.
    #[cfg(test)]
    crate::commands::install();
    REGISTRY.get().expect("the program installs its commands before it serves any")
}

/// All commands, family by family.
pub fn all() -> &'static [Command] {
    registry().all()
}

/// All commands and subcommands.
pub fn every() -> impl Iterator<Item = &'static Command> {
    registry().by_id().iter().copied()
}

/// The command or subcommand with this [`Command::id`].
pub fn by_id(id: usize) -> Option<&'static Command> {
    registry().by_id().get(id).copied()
}

/// How many commands and subcommands there are: their ids are below.
pub fn count() -> usize {
    registry().by_id().len()
}

/// The command of a name in any case.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    registry().lookup(name)
}

/// The command or subcommand that arguments name.
pub fn resolve(args: Args<'_>) -> Option<&'static Command> {
    registry().resolve(args)
}
