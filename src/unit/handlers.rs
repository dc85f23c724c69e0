//! The handlers of commands that run others, or have a form of their own as part of a unit.

use super::{Unit, UnitOutcome};
use crate::command::Command;
use flagstone_commands::Ctx;
use flagstone_wire::resp::Args;
use std::sync::OnceLock;

/// A handler that runs other commands as one, or is one of them.
pub type UnitHandler = fn(&mut Ctx<'_>, &Unit<'_>, Args<'_>) -> UnitOutcome;

static HANDLERS: OnceLock<Vec<Option<UnitHandler>>> = OnceLock::new();

/// Makes these the handlers of the commands, by [`Command::id`]. Later ones are not taken.
pub fn install(handlers: Vec<Option<UnitHandler>>) {
    let _ = HANDLERS.set(handlers);
}

/// The handler of a command, if it runs others or is part of a unit in a form of its own.
pub fn handler(command: &Command) -> Option<UnitHandler> {
    HANDLERS.get()?.get(command.id).copied().flatten()
}
