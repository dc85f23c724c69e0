//! The commands, one file or folder per family. A family's file ends in its `COMMANDS`, the
//! declarations of its commands; [`registry`] puts them together.

pub mod bitmap;
pub mod combine;
pub mod connection;
pub mod context;
pub mod draws;
#[cfg(test)]
mod events_tests;
pub mod expiry;
pub mod functions;
pub mod generic;
pub mod geo;
pub mod hash;
pub mod help;
pub mod hyperloglog;
pub mod list;
pub mod pubsub;
pub mod registry;
pub mod scan;
pub mod scripting;
pub mod server;
pub mod set;
pub mod spec;
pub mod stream;
pub mod string;
#[cfg(test)]
mod testing;
pub mod timeout;
pub mod transactions;
pub mod zset;

pub use context::{
    Awaited, Block, Call, Ctx, Misses, Nil, Outcome, Stop, arg, error, int_arg, is_word, tail,
};
pub use spec::{Begin, Find, Group, KeyRange, KeySpec, Names, Run, Spec, Waiting, acl, flag, key};
