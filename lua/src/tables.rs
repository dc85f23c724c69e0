//! Functions of `table` that may run for long.

use std::ffi::c_int;

use mlua::ffi;

use crate::base::{with_unshielded, wrap};
use crate::raw::{State, entry};
use crate::{sandbox, work};

/// Maximum distance below the first position over which `table.insert` moves elements.
const MAX_INSERT_BELOW: i64 = 1_000_000;

/// Slots of Lua's stack for sorting: it nests as deep as the number of elements has bits.
const SORT_SLOTS: c_int = 40;

/// Replaces the functions of the table on top of the stack.
pub(crate) fn replace(state: State) {
    for (name, function) in [
        ("insert", entry!(insert)),
        ("remove", entry!(remove)),
        ("concat", entry!(concat)),
        ("maxn", entry!(max_n)),
        ("foreach", entry!(with_unshielded)),
    ] {
        wrap(state, name, function);
    }
    state.push_function(entry!(sort), 0);
    state.set_name(-2, "sort");
}

/// Charges work on so many elements.
fn charge_elements(state: State, count: i64) {
    work::charge(state, u64::try_from(count).unwrap_or(0));
}

/// Returns the length of a table argument.
fn len(state: State, arg: c_int) -> i64 {
    if state.is_table(arg) { state.raw_len(arg) as i64 } else { 0 }
}

fn insert(state: State) -> c_int {
    if matches!(state.top(), 2 | 3) {
        sandbox::refuse_shield(state, 1);
    }
    if state.top() == 3 {
        let at = state.check_integer(2);
        if at < -MAX_INSERT_BELOW {
            state.arg_error(2, format_args!("position out of bounds"));
        }
        charge_elements(state, len(state, 1) - at);
    }
    state.run_upvalue(1)
}

fn remove(state: State) -> c_int {
    if state.is_number(2) {
        charge_elements(state, len(state, 1) - state.to_number(2) as i64);
    }
    state.run_upvalue(1)
}

fn concat(state: State) -> c_int {
    let (first, last) = (bound(state, 3, 1), bound(state, 4, len(state, 1)));
    // Lua's `concat` stops at the first missing element.
    let count = last.saturating_sub(first).clamp(0, c_int::MAX.into()).min(len(state, 1));
    charge_elements(state, count);
    state.run_upvalue(1)
}

/// Returns a number argument, or the default if it is missing.
fn bound(state: State, arg: c_int, default: i64) -> i64 {
    if state.is_number(arg) { state.to_number(arg) as i64 } else { default }
}

fn max_n(state: State) -> c_int {
    charge_elements(state, len(state, 1));
    state.run_upvalue(1)
}

/// `table.sort` of Lua 5.1, with the same order and the same errors, but it counts comparisons.
fn sort(state: State) -> c_int {
    state.check_table(1);
    let count = state.raw_len(1) as c_int;
    state.need_stack(SORT_SLOTS, "");
    if !matches!(state.kind(2), ffi::LUA_TNONE | ffi::LUA_TNIL) {
        state.check_function(2);
    }
    state.set_top(2);
    sort_between(state, 1, count);
    0
}

/// Sets the elements at `i` and `j` to the two values on top of the stack, and pops them.
fn set_both(state: State, i: c_int, j: c_int) {
    state.raw_set_at(1, i);
    state.raw_set_at(1, j);
}

/// Returns true if the value at an index (from the top) comes before another one.
fn comes_before(state: State, a: c_int, b: c_int) -> bool {
    work::charge(state, 1);
    if state.kind(2) == ffi::LUA_TNIL {
        if state.kind(a) == ffi::LUA_TSTRING && state.kind(b) == ffi::LUA_TSTRING {
            work::charge_bytes(state, state.raw_len(a).min(state.raw_len(b)));
        }
        return state.is_less(a, b);
    }
    state.push_value(2);
    state.push_value(a - 1);
    state.push_value(b - 2);
    state.call(2, 1);
    let result = state.to_boolean(-1);
    state.pop(1);
    result
}

fn sort_between(state: State, mut low: c_int, mut high: c_int) {
    while low < high {
        state.raw_get_at(1, low);
        state.raw_get_at(1, high);
        if comes_before(state, -1, -2) {
            set_both(state, low, high);
        } else {
            state.pop(2);
        }
        if high - low == 1 {
            break;
        }
        let middle = low + (high - low) / 2;
        state.raw_get_at(1, middle);
        state.raw_get_at(1, low);
        if comes_before(state, -2, -1) {
            set_both(state, middle, low);
        } else {
            state.pop(1);
            state.raw_get_at(1, high);
            if comes_before(state, -1, -2) {
                set_both(state, middle, high);
            } else {
                state.pop(2);
            }
        }
        if high - low == 2 {
            break;
        }
        let at = partition(state, low, high, middle);
        // The smaller part by recursion, the larger one by the loop.
        if at - low < high - at {
            sort_between(state, low, at - 1);
            low = at + 1;
        } else {
            sort_between(state, at + 1, high);
            high = at - 1;
        }
    }
}

/// Partitions the elements around the one in the middle, and returns its new position.
fn partition(state: State, low: c_int, high: c_int, middle: c_int) -> c_int {
    const INVALID: &str = "invalid order function for sorting";
    state.raw_get_at(1, middle);
    state.push_value(-1);
    state.raw_get_at(1, high - 1);
    set_both(state, middle, high - 1);
    let (mut i, mut j) = (low, high - 1);
    loop {
        i += 1;
        state.raw_get_at(1, i);
        while comes_before(state, -1, -2) {
            if i > high {
                state.error(format_args!("{INVALID}"));
            }
            state.pop(1);
            i += 1;
            state.raw_get_at(1, i);
        }
        j -= 1;
        state.raw_get_at(1, j);
        while comes_before(state, -3, -1) {
            if j < low {
                state.error(format_args!("{INVALID}"));
            }
            state.pop(1);
            j -= 1;
            state.raw_get_at(1, j);
        }
        if j < i {
            state.pop(3);
            break;
        }
        set_both(state, i, j);
    }
    state.raw_get_at(1, high - 1);
    state.raw_get_at(1, i);
    set_both(state, high - 1, i);
    i
}
