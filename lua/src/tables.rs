//! Functions of `table` that may run for long.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use mlua::ffi;

use crate::raw::{State, entry};
use crate::strings::Buffer;
use crate::{sandbox, work};

/// Maximum distance below the first position over which `table.insert` moves elements.
const MAX_INSERT_BELOW: c_int = 1_000_000;

/// Slots of Lua's stack for sorting: it nests as deep as the number of elements has bits.
const SORT_SLOTS: c_int = 40;

/// Replaces the functions of the table on top of the stack by ones that do the same as Lua's, with the
/// same errors, but count their steps: the length that Lua finds for a table with gaps may be 2^29 with
/// thirty elements in it.
pub(crate) fn replace(state: State) {
    for (name, function) in [
        ("insert", entry!(insert)),
        ("remove", entry!(remove)),
        ("concat", entry!(concat)),
        ("maxn", entry!(max_n)),
        ("foreach", entry!(for_each)),
        ("foreachi", entry!(for_each_index)),
        ("sort", entry!(sort)),
    ] {
        state.push_function(function, 0);
        state.set_name(-2, name);
    }
}

/// Returns the length of the table argument, as a C `int`.
fn check_len(state: State) -> c_int {
    state.check_table(1);
    state.raw_len(1) as c_int
}

fn insert(state: State) -> c_int {
    if matches!(state.top(), 2 | 3) {
        sandbox::refuse_shield(state, 1);
    }
    let end = check_len(state).wrapping_add(1);
    let at = match state.top() {
        2 => end,
        3 => state.check_int(2),
        _ => state.error(format_args!("wrong number of arguments to 'insert'")),
    };
    if at < -MAX_INSERT_BELOW {
        state.arg_error(2, format_args!("position out of bounds"));
    }
    for from in (at..end).rev() {
        move_element(state, from, from + 1);
    }
    state.raw_set_at(1, at);
    0
}

fn remove(state: State) -> c_int {
    let end = check_len(state);
    let at = state.opt_integer(2, end.into()) as c_int;
    if !(1..=end).contains(&at) {
        return 0;
    }
    state.raw_get_at(1, at);
    for to in at..end {
        move_element(state, to + 1, to);
    }
    state.push_nil();
    state.raw_set_at(1, end);
    1
}

/// Copies an element of the table argument to another index. A table grows for new keys, even for nil:
/// so a gap is left as it is.
fn move_element(state: State, from: c_int, to: c_int) {
    work::charge_heavy(state, 1);
    state.raw_get_at(1, from);
    if state.kind(-1) == ffi::LUA_TNIL {
        state.raw_get_at(1, to);
        let is_gap = state.kind(-1) == ffi::LUA_TNIL;
        state.pop(1);
        if is_gap {
            return state.pop(1);
        }
    }
    state.raw_set_at(1, to);
}

fn concat(state: State) -> c_int {
    let separator: &[u8] = match state.kind(2) {
        ffi::LUA_TNONE | ffi::LUA_TNIL => &[],
        _ => state.check_bytes(2),
    };
    state.check_table(1);
    let first = state.opt_integer(3, 1) as c_int;
    let last = match state.kind(4) {
        ffi::LUA_TNONE | ffi::LUA_TNIL => state.raw_len(1) as c_int,
        _ => state.check_int(4),
    };
    let mut buffer = MaybeUninit::<ffi::luaL_Buffer>::uninit();
    let mut result = Buffer::begin(state, &mut buffer);
    for at in first..=last {
        work::charge(state, 1);
        state.raw_get_at(1, at);
        if !matches!(state.kind(-1), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
            let kind = state.type_name(-1);
            state.error(format_args!("invalid value ({kind}) at index {at} in table for 'concat'"));
        }
        result.add_value();
        if at < last {
            result.add(separator);
        }
    }
    result.push();
    1
}

fn max_n(state: State) -> c_int {
    state.check_table(1);
    let mut max: f64 = 0.0;
    state.push_nil();
    while state.next(1) {
        work::charge(state, 1);
        state.pop(1);
        if state.kind(-1) == ffi::LUA_TNUMBER {
            let key = state.to_number(-1);
            if key > max {
                max = key;
            }
        }
    }
    state.push_number(max);
    1
}

fn for_each(state: State) -> c_int {
    if sandbox::push_unshielded(state, 1) {
        state.replace(1);
    }
    state.check_table(1);
    state.check_function(2);
    state.push_nil();
    while state.next(1) {
        work::charge(state, 1);
        state.push_value(2);
        state.push_value(-3);
        state.push_value(-3);
        state.call(2, 1);
        if state.kind(-1) != ffi::LUA_TNIL {
            return 1;
        }
        state.pop(2);
    }
    0
}

fn for_each_index(state: State) -> c_int {
    let end = check_len(state);
    state.check_function(2);
    for at in 1..=end {
        work::charge(state, 1);
        state.push_value(2);
        state.push_number(at.into());
        state.raw_get_at(1, at);
        state.call(2, 1);
        if state.kind(-1) != ffi::LUA_TNIL {
            return 1;
        }
        state.pop(1);
    }
    0
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
