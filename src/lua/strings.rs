//! Functions of `string` whose native recursion Lua 5.1 does not bound.

use std::ffi::c_int;

use super::base::wrap;
use super::raw::{State, entry};
use super::vm::Vm;

/// Most items of a pattern for which the matcher recurses (repetitions and captures).
const MAX_PATTERN_ITEMS: usize = 1000;
/// Length of what is looked at without counting: it cannot have more items.
const SHORT_PATTERN: usize = MAX_PATTERN_ITEMS;

/// Replaces the functions of the table on top of the stack.
pub(super) fn replace(state: State, vm: *const Vm) {
    for name in ["find", "match", "gmatch"] {
        wrap(state, name, entry!(with_pattern));
    }
    wrap(state, "rep", entry!(rep));
    state.push_light(vm.cast_mut().cast());
    state.get_name(-2, "gsub");
    state.push_function(entry!(gsub), 2);
    state.set_name(-2, "gsub");
    state.get_name(-1, "gmatch");
    state.set_name(-2, "gfind");
}

fn check_pattern(state: State) {
    let pattern = state.check_bytes(2);
    if pattern.len() <= SHORT_PATTERN {
        return;
    }
    let items = pattern.iter().filter(|byte| b"?*+-()".contains(byte)).count();
    if items > MAX_PATTERN_ITEMS {
        state.error(format_args!("pattern too complex"));
    }
}

fn with_pattern(state: State) -> c_int {
    state.check_bytes(1);
    check_pattern(state);
    state.run_upvalue(1)
}

/// Has a buffer of 8 KiB in its frame, and calls functions that may call it.
fn gsub(state: State) -> c_int {
    state.check_bytes(1);
    check_pattern(state);
    if state.vm().is_deep() {
        state.error(format_args!("stack overflow"));
    }
    state.run_upvalue(2)
}

/// Nothing repeated is nothing, without counting.
fn rep(state: State) -> c_int {
    if state.check_bytes(1).is_empty() {
        state.check_int(2);
        state.push_bytes(b"");
        return 1;
    }
    state.run_upvalue(1)
}
