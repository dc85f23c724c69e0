//! How a command runs: its handler, and where that is called.

use super::Call;
use crate::node::Node;
use crate::routing::Databases;
use crate::scripting::Flags;
use crate::unit::Unit;
use flagstone_commands::{Ctx, HelpWriter, KeysHandler, Outcome, Run, Runner};
use flagstone_wire::resp::Args;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// A handler on the connection, with the session and the node at hand; it never waits.
pub type SessionHandler = fn(&mut Call<'_>, Args<'_>) -> Outcome;

/// A handler on the connection that may wait: for workers, the journal, a time.
pub type WaitHandler = for<'a> fn(&'a mut Call<'_>, Args<'a>) -> Waiting<'a>;

/// A handler on all databases, which it changes or walks over: alone, or as part of a unit. It may
/// wait for workers.
pub type DatabasesHandler = for<'a> fn(&'a mut Databases<'_>, Args<'a>) -> Waiting<'a>;

/// A handler that runs other commands as one, or is one of them (see [`crate::unit`]).
pub type UnitHandler = fn(&mut Ctx<'_>, &Unit<'_>, Args<'_>) -> Outcome;

/// Finds what a script says of itself in the arguments of the command that runs it, or in the node.
pub type FlagsFinder = fn(&Node, Args<'_>) -> Option<Flags>;

/// The future of a command that may wait.
pub type Waiting<'a> = Pin<Box<dyn Future<Output = Outcome> + 'a>>;

/// How a command is routed.
#[derive(Clone, Copy)]
pub enum Route {
    /// To the store of the worker that owns its keys; when the keys belong to several workers, to a
    /// workspace of entries that these lend (see `routing`).
    Keys(KeysHandler),
    /// The same for a command that runs others.
    Unit(UnitHandler),
    /// The same for one that runs a script.
    Script { run: UnitHandler, flags: FlagsFinder },
    /// To the connection.
    Session(SessionHandler),
    /// To the connection; as part of a unit, where it needs neither session nor node, to that.
    Either { alone: SessionHandler, in_unit: UnitHandler },
    /// To the connection, which waits for it.
    Wait(WaitHandler),
    /// To all workers.
    Databases(DatabasesHandler),
    /// To the connection, which shows a text.
    Help(HelpWriter),
    /// Nowhere: it has subcommands only.
    Container,
}

impl Route {
    /// Whether the command runs on the store of its keys.
    pub fn is_on_keys(&self) -> bool {
        matches!(self, Self::Keys(_) | Self::Unit(_) | Self::Script { .. })
    }

    /// Whether the command never waits for anything but its connection.
    pub fn is_on_session(&self) -> bool {
        matches!(self, Self::Session(_) | Self::Either { .. } | Self::Help(_))
    }

    /// The handler of a command that runs others.
    pub fn unit_handler(&self) -> Option<UnitHandler> {
        match *self {
            Self::Unit(handler) | Self::Script { run: handler, .. } => Some(handler),
            _ => None,
        }
    }

    /// Runs a command that is on the session; `None` if it is not.
    pub fn run_on_session(&self, call: &mut Call<'_>, args: Args<'_>) -> Option<Outcome> {
        match *self {
            Self::Session(handler) | Self::Either { alone: handler, .. } => {
                Some(handler(call, args))
            }
            Self::Help(write) => {
                write(call.out);
                Some(Ok(()))
            }
            _ => None,
        }
    }
}

impl Runner for Route {
    const CONTAINER: Self = Self::Container;

    fn is_container(&self) -> bool {
        matches!(self, Self::Container)
    }

    fn runs_others(&self) -> bool {
        self.unit_handler().is_some()
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

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Keys(_) => "Keys",
            Self::Unit(_) => "Unit",
            Self::Script { .. } => "Script",
            Self::Session(_) => "Session",
            Self::Either { .. } => "Either",
            Self::Wait(_) => "Wait",
            Self::Databases(_) => "Databases",
            Self::Help(_) => "Help",
            Self::Container => "Container",
        })
    }
}
