//! The commands of the server itself, one file or folder per family; those on keys are in the crate
//! `commands`. A family's file ends in its `COMMANDS`, the declarations of its commands;
//! [`registry`] puts all together.

mod call;
pub mod connection;
pub mod databases;
pub mod functions;
pub mod pubsub;
pub mod registry;
mod route;
pub mod scripting;
pub mod server;
pub mod transactions;

pub use call::Call;
pub use route::{
    DatabasesHandler, FlagsFinder, Route, SessionHandler, UnitHandler, WaitHandler, Waiting,
};

/// A command of the server.
pub type Spec = flagstone_commands::Spec<Route>;
