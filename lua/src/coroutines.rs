//! `coroutine.resume` and `coroutine.wrap`. Each coroutine counts its own instructions, so a resume
//! counts as the instructions that the hook may have missed; and none keeps the end of a run to
//! itself.

use std::ffi::c_int;

use crate::base::wrap;
use crate::raw::{State, entry};
use crate::work::{self, HOOK_EVERY};

/// Replaces the functions of the table on top of the stack.
pub(crate) fn replace(state: State) {
    wrap(state, "resume", entry!(resume));
    wrap(state, "wrap", entry!(make_wrapped));
}

fn charge_resume(state: State) {
    work::charge(state, u64::from(HOOK_EVERY.unsigned_abs()));
}

fn resume(state: State) -> c_int {
    charge_resume(state);
    let results = state.run_upvalue(1);
    work::rethrow_end(state);
    results
}

/// Wraps the function that Lua makes, which has one upvalue, the coroutine; this one has the same
/// upvalue, and Lua's function behind it.
fn make_wrapped(state: State) -> c_int {
    state.run_upvalue(1);
    let made = state.top();
    state.push_upvalue(made, 1);
    state.push_value(made);
    state.push_function(entry!(wrapped), 2);
    1
}

fn wrapped(state: State) -> c_int {
    charge_resume(state);
    state.run_upvalue(2)
}
