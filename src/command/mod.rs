//! A command as those know it that route and run it: its declaration, where it runs, and a request
//! for it. Its handler, if it is one of the server's own, is known to those who call that.

pub mod registry;
mod request;
mod route;

pub use request::{OwnedCommand, Request};
pub use route::Route;

/// A command or subcommand as it is looked up.
pub type Command = flagstone_commands::registry::Command<Route>;
