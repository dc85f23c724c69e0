//! Runs scripts: Lua that calls commands. A script is a unit (see [`crate::unit`]): all that it does
//! counts, or nothing. Its VM belongs to the thread that runs it, and keeps what it has compiled.

mod api;
mod call;
mod run;
mod to_reply;
mod vm;

pub use run::{Job, Wanted, run};
pub use vm::{COMPILED_IN_PLACE, Uncompiled, forget_vms, with_vm};
