//! The commands of the server itself, one file or folder per family; those on keys are in the crate
//! `commands`. A family's file ends in its `COMMANDS`, the declarations of its commands;
//! [`install`] collects all of them. A handler may name every room of the server below it; no other
//! room names a handler.

pub mod acl;
pub mod cluster;
pub mod connection;
pub mod databases;
pub mod functions;
mod handler;
pub mod pubsub;
pub mod scripting;
pub mod server;
pub mod transactions;

pub use handler::{Handler, install};

/// Declaration of a command of the server.
pub type Spec = flagstone_commands::Spec<Handler>;
