//! Routes of commands.

use flagstone_commands::{HelpWriter, KeysHandler, Run, Runner};

/// Route of a command: the place where it runs.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    /// The store of the worker that owns its keys; if they belong to several workers, a workspace
    /// of entries that these lend (see `routing`).
    Keys(KeysHandler),
    /// Like `Keys`, for a command that runs other commands (see [`crate::unit`]).
    Unit,
    /// Like `Keys`, for a command that runs a script.
    Script,
    /// The connection, which never waits for it.
    Session,
    /// The connection; in a unit, which has neither session nor node, the unit.
    Either,
    /// The connection, which waits for it.
    Wait,
    /// All workers.
    Databases,
    /// The connection, which shows a text.
    Help(HelpWriter),
    /// None: the command has subcommands only.
    Container,
}

impl Route {
    /// Returns true if the command runs on the store of its keys.
    pub fn is_on_keys(&self) -> bool {
        matches!(self, Self::Keys(_) | Self::Unit | Self::Script)
    }

    /// Returns true if the command runs on its connection and never waits.
    pub fn is_on_session(&self) -> bool {
        matches!(self, Self::Session | Self::Either | Self::Help(_))
    }
}

impl Runner for Route {
    const CONTAINER: Self = Self::Container;

    fn is_container(&self) -> bool {
        matches!(self, Self::Container)
    }

    fn runs_others(&self) -> bool {
        matches!(self, Self::Unit | Self::Script)
    }
}

impl From<Run> for Route {
    fn from(run: Run) -> Self {
        match run {
            Run::Keys(handler) => Self::Keys(handler),
            Run::Help(write) => Self::Help(write),
            Run::Container => Self::Container,
        }
    }
}
