//! Runs scripts: Lua code that calls commands. A script is a unit (see [`crate::unit`]): all its
//! changes apply, or none. Its VM belongs to the thread that runs it, and keeps compiled scripts.
//! It may use the store, a unit, the node and known scripts and functions, but no worker and no
//! session.

mod api;
mod call;
mod run;
mod to_reply;
mod vm;

pub use run::{Job, Wanted, run};
pub use vm::{COMPILED_IN_PLACE, Uncompiled, forget_vms, with_vm};
