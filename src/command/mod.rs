//! Commands as routing and workers see them: the declaration, the route, and a request. The
//! handlers of the server's own commands are known to their callers alone.

mod outcome;
pub mod registry;
mod request;
mod route;

pub use outcome::{Answer, Outcome, RoundError, aborted_by};
pub use request::{Invocation, OwnedCommand, Patience, Request};
pub use route::Route;

/// A command or subcommand, as lookups return it.
pub type Command = flagstone_commands::registry::Command<Route>;
