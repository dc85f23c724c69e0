//! Runs scripts: Lua code that calls commands. A script is a unit (see [`crate::unit`]): all its
//! changes apply, or none. Its VM belongs to the thread that runs it, and keeps compiled scripts.
//! It may use the store, a unit, the node and known scripts and functions, but no worker and no
//! session.
//!
//! A script is checked after every 10,000 instructions, or native work that counts as many. After
//! 4 ms on a worker's thread it is rolled back and runs on a thread of its own; from then on it is not
//! tried in place. There it may be killed, and clients get BUSY after `busy-reply-threshold`. A script
//! that is killed, or exceeds `script-instruction-limit`, is rolled back.

mod api;
mod call;
mod run;
mod to_reply;
mod vm;

pub use run::{InputForm, ScriptCall, run};
pub use vm::{COMPILED_IN_PLACE, Uncompiled, forget_vms, with_vm};
