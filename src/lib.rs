//! The Flagstone server: a durable Redis-compatible server.
//!
//! The path of a request: [`connection`] reads and parses it ([`flagstone_wire::resp`]), looks the
//! command up and checks it ([`commands`]), and routes it ([`routing`]) to the [`worker`] that owns
//! its keys; the connection writes the replies in order.

pub mod accept;
pub mod acl;
pub mod allocator;
pub mod blocking;
pub mod checkpoints;
pub mod cli;
pub mod clients;
mod closing;
pub mod cluster;
pub mod command;
pub mod commandlog;
pub mod commands;
pub mod config;
pub mod connection;
pub mod followers;
pub mod functions;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;
mod large;
pub mod listen;
pub mod log;
mod membership;
pub mod monitor;
pub mod node;
pub mod open_files;
pub mod outbox;
mod process;
pub mod pubsub;
pub mod rates;
pub mod replica;
pub mod replication;
pub mod routing;
pub mod scripting;
pub mod scripts;
pub mod secrets;
pub mod server;
pub mod session;
pub mod signals;
pub mod stalls;
pub mod supervisor;
pub mod tls;
pub mod traces;
pub mod tracking;
pub mod transaction;
pub mod transport;
pub mod unit;
mod version;
pub mod watch;
pub mod worker;
