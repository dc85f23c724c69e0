//! Where a command runs.

use flagstone_commands::{HelpWriter, KeysHandler, Run, Runner};

/// How a command is routed.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    /// To the store of the worker that owns its keys; when the keys belong to several workers, to a
    /// workspace of entries that these lend (see `routing`).
    Keys(KeysHandler),
    /// The same for a command that runs others (see [`crate::unit`]).
    Unit,
    /// The same for a command that runs a script.
    Script,
    /// To the connection, which never waits for it.
    Session,
    /// To the connection; as part of a unit, where it needs neither session nor node, to that.
    Either,
    /// To the connection, which waits for it.
    Wait,
    /// To all workers.
    Databases,
    /// To the connection, which shows a text.
    Help(HelpWriter),
    /// Nowhere: it has subcommands only.
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
