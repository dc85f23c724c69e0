//! Handlers of commands that run others, or have a special form as part of a unit.

use super::{Unit, UnitOutcome};
use crate::command::Command;
use flagstone_commands::Ctx;
use flagstone_wire::resp::Args;
use std::sync::OnceLock;

/// A handler that runs other commands as one, or is one of these.
pub type UnitHandler = fn(&mut Ctx<'_>, &Unit<'_>, Args<'_>) -> UnitOutcome;

static HANDLERS: OnceLock<Vec<Option<UnitHandler>>> = OnceLock::new();

/// Installs the handlers of the commands, by [`Command::id`]. Further calls have no effect.
pub fn install(handlers: Vec<Option<UnitHandler>>) {
    let _ = HANDLERS.set(handlers);
}

/// Returns the handler of a command, if it runs others or has a special form as part of a unit.
pub fn handler(command: &Command) -> Option<UnitHandler> {
    HANDLERS.get()?.get(command.id).copied().flatten()
}
