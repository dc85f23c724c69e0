//! This server as the primary of others (RFC 15): of Redis, Valkey, its own kind, and tools.
//!
//! A connection that sends PSYNC or SYNC is served here until it ends. The stream is begun by the
//! first of them (`begin.rs`): from then on the records of the journal have the words of their rounds.
//! A task takes the words of durable records into the backlog (`feeder.rs`), from which each
//! connection sends them (`serve.rs`). A data set is that of a checkpoint at one record (`copy.rs`);
//! the stream for its replica begins behind that record. Before the server ends, replicas get
//! everything (`parting.rs`).

mod begin;
mod copy;
mod feeder;
mod parting;
mod serve;

pub(crate) use begin::{end_of_stream, end_stream, finish_stream, resume, succeed};
pub(crate) use copy::clean;
pub(crate) use feeder::ask_for_acknowledgements;
pub(crate) use feeder::run as run_feeder;
pub(crate) use parting::see_off;
pub(crate) use serve::serve;
