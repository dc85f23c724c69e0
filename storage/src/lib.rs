//! Flagstone's storage: everything between a command and the disk.
//!
//! A write mutates decoded values in the [`Store`] (the hot tier of one worker), is sealed into one
//! journal record per round, and reaches SlateDB later through the pending rows of its shard. The
//! crate knows neither RESP nor sockets.
//!
//! Way of a write: [`Store`] → [`commit`] → [`journal`] → [`pending`] → [`materialise`] → SlateDB.
//! Way of a cold read: [`Need`] → [`load`] → pending rows, then SlateDB → [`Store`].

pub mod attached;
pub mod check;
mod checked;
pub mod checkpoint;
pub mod clock;
pub mod cluster;
pub mod commit;
pub mod control;
pub mod counters;
pub mod cursor;
pub mod directory;
mod division;
pub mod encoding;
pub mod engine;
mod evict;
pub mod feed;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod journal;
mod keyspace;
pub mod latency;
pub mod lease;
pub mod load;
pub mod materialise;
pub mod need;
pub mod notes;
pub mod notify;
pub mod partition;
pub mod pending;
pub mod place;
mod prefetch;
pub mod presence;
mod reclaim;
pub mod reopen;
mod resolved;
pub mod scan;
pub mod shard;
#[cfg(test)]
pub(crate) mod simulated;
pub mod slot;
pub mod store;
mod table;
pub mod times;
pub mod value;
pub mod words;

pub use resolved::{Replaced, Resolved};
pub use shard::OldRows;
pub use slot::{KeyHash, Layout, SLOTS};
pub use store::{Fault, Need, Scope, Store};
pub use value::{Entry, Value};
