//! Functions of `string` whose native recursion Lua 5.1 does not bound.

use std::cell::Cell;
use std::ffi::c_int;
use std::time::{Duration, Instant};

use super::base::wrap;
use super::commands::interrupt_always;
use super::raw::{State, entry};
use super::vm::Vm;

/// Most items of a pattern for which the matcher recurses (repetitions and captures).
const MAX_PATTERN_ITEMS: usize = 1000;
/// How long functions that may take long run until the hook does.
const MAX_SPENT: Duration = Duration::from_millis(1);
/// Length of what is looked at without counting: it cannot have more items.
const SHORT_PATTERN: usize = MAX_PATTERN_ITEMS;

thread_local! {
    /// How long they have run since the hook did.
    static SPENT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

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
    timed(state, 1)
}

/// Runs the function that is an upvalue. Hooks count instructions, and to them that is one: so when
/// such calls have taken long together, the hook runs at once.
fn timed(state: State, upvalue: c_int) -> c_int {
    let began = Instant::now();
    let results = state.run_upvalue(upvalue);
    let spent = SPENT.get() + began.elapsed();
    SPENT.set(spent);
    if spent > MAX_SPENT {
        interrupt_always(state);
    }
    results
}

/// Whether the hook has come early; from now on it does not.
pub(super) fn take_early() -> bool {
    SPENT.replace(Duration::ZERO) > MAX_SPENT
}

/// Has a buffer of 8 KiB in its frame, and calls functions that may call it.
fn gsub(state: State) -> c_int {
    state.check_bytes(1);
    check_pattern(state);
    if state.vm().is_deep() {
        state.error(format_args!("stack overflow"));
    }
    timed(state, 2)
}

/// Nothing repeated is nothing, without counting.
fn rep(state: State) -> c_int {
    if state.check_bytes(1).is_empty() {
        state.check_int(2);
        state.push_bytes(b"");
        return 1;
    }
    timed(state, 1)
}
