//! The table of all commands. The program installs it at its start, from the declarations of the
//! families, which stand above every room that looks a command up.

use super::{Command, Route};
use flagstone_commands::registry::Registry;
use flagstone_wire::resp::Args;
use fnv::FnvHashMap;
use std::sync::OnceLock;

static REGISTRY: OnceLock<Registry<Route>> = OnceLock::new();

/// Installs the program's table. Further calls have no effect.
pub fn install(registry: Registry<Route>) {
    let _ = REGISTRY.set(registry);
}

/// # Panics
/// If no table was installed.
fn registry() -> &'static Registry<Route> {
    // Unit tests have no program that installs it.
    #[cfg(test)]
    let _installed = crate::commands::install(&[]);
    REGISTRY.get().expect("the program installs its commands before it serves any")
}

/// Returns all commands that have a name, family by family.
pub fn all() -> &'static [&'static Command] {
    registry().all()
}

/// Returns a command by the name of its declaration, whatever clients call it.
pub fn declared(name: &str) -> Option<&'static Command> {
    every().find(|command| command.full_name == name)
}

/// Returns the command or subcommand ("container|name") that a rule of access control means, ignoring
/// case: rules have the names of declarations, so that a file of users does not depend on the names
/// by which clients call the commands.
pub fn of_rule(name: &[u8]) -> Option<&'static Command> {
    static DECLARED: OnceLock<FnvHashMap<&str, &Command>> = OnceLock::new();
    let names = || every().map(|command| (command.full_name, command)).collect();
    let name = name.to_ascii_lowercase();
    DECLARED.get_or_init(names).get(std::str::from_utf8(&name).ok()?).copied()
}

/// Returns the name by which clients know a command; `None` if it was taken away.
pub fn name_of(command: &Command) -> Option<&'static [u8]> {
    registry().name_of(command)
}

/// Returns all commands and subcommands.
pub fn every() -> impl Iterator<Item = &'static Command> {
    registry().by_id().iter().copied()
}

/// Returns all commands that have a name, and their subcommands.
pub fn listed() -> impl Iterator<Item = &'static Command> {
    all().iter().flat_map(|command| std::iter::once(*command).chain(&command.subcommands))
}

/// Returns the command or subcommand with this [`Command::id`].
pub fn by_id(id: usize) -> Option<&'static Command> {
    registry().by_id().get(id).copied()
}

/// Returns the number of commands and subcommands: all ids are below.
pub fn count() -> usize {
    registry().by_id().len()
}

/// Returns the command with a name, ignoring case.
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    registry().lookup(name)
}

/// Returns the command with a name, or the subcommand with a name "container|name", ignoring case.
pub fn by_full_name(name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|&byte| byte == b'|') {
        None => lookup(name),
        Some(at) => lookup(&name[..at])?.subcommand(&name[at + 1..]),
    }
}

/// Returns the command or subcommand that the arguments name by the names of the declarations,
/// whatever clients call it.
pub fn resolve_declared(args: Args<'_>) -> Option<&'static Command> {
    registry().resolve_declared(args)
}

/// Returns the command or subcommand that the arguments name.
pub fn resolve(args: Args<'_>) -> Option<&'static Command> {
    registry().resolve(args)
}
