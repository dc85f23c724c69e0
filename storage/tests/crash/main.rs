//! The storage under kill -9: random histories, and every step of the background's work, compared
//! with a model of the records appended to the journal.
//!
//! `FLAGSTONE_SEEDS=n` runs n seeds of the random histories, `FLAGSTONE_SEED=s` begins at seed s.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod backups;
mod bank;
mod blind;
mod broken_history;
mod bucket;
mod checkpoints;
mod copies;
mod errors;
mod histories;
mod image;
mod lists;
mod lives;
mod model;
mod remote_splits;
mod reopen;
mod sets;
mod splits;
mod steps;
mod store;
mod streams;
mod verify;
mod world;
