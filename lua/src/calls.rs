//! Calls that end with an error: `pcall`, the handler of a script's errors, functions that raise.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;

use mlua::ffi;

use crate::raw::{State, entry};
use crate::{sandbox, work};

/// The keys and arguments of a run.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub keys: &'a [&'a [u8]],
    pub args: &'a [&'a [u8]],
    /// True if they are the globals KEYS and ARGV, false if they are the function's arguments.
    pub as_globals: bool,
}

/// `function, arguments…` → `true, result` or `false, error`.
pub(crate) const RUN: mlua::lua_CFunction = entry!(run);
/// Wraps a function that returns `true, results…` or `false, error`: its first upvalue.
pub(crate) const RAISING: mlua::lua_CFunction = entry!(raising);
/// `pcall` that returns the text of an error that is a table.
pub(crate) const PCALL: mlua::lua_CFunction = entry!(pcall);
/// `xpcall` whose handler does not see the end of a run.
pub(crate) const XPCALL: mlua::lua_CFunction = entry!(xpcall);
/// The handler of the errors of a script.
pub(crate) const HANDLER: mlua::lua_CFunction = entry!(handler);

/// The globals that have the keys and arguments of a run.
pub(crate) const INPUTS: [&str; 2] = ["KEYS", "ARGV"];

/// Number of instructions charged for a value that the binding converts.
const BINDING: u64 = 8;

/// The collector's defaults, in percent.
const GC_PAUSE: c_int = 200;
const GC_STEP_MULTIPLIER: c_int = 200;

pub(crate) fn reset_collector(state: State) {
    let state = state.as_ptr();
    // SAFETY: the state is valid; these set numbers.
    unsafe {
        ffi::lua_gc(state, ffi::LUA_GCSETPAUSE, GC_PAUSE);
        ffi::lua_gc(state, ffi::LUA_GCSETSTEPMUL, GC_STEP_MULTIPLIER);
        ffi::lua_gc(state, ffi::LUA_GCRESTART, 0);
    }
}

fn run(state: State) -> c_int {
    let args = state.top() - 1;
    state.need_stack(3, "too many arguments");
    state.push_function(HANDLER, 0);
    state.insert(1);
    let status = state.protected_call(args, 1, 1);
    state.push_boolean(status == ffi::LUA_OK);
    state.replace(1);
    2
}

/// Calls the function on the stack with keys and arguments; pushes true if it ended normally, else
/// false, then its result or error. No later run sees its globals.
pub(crate) fn run_with(state: State, inputs: Inputs<'_>) {
    state.need_stack(8, "no room for a script");
    reset_collector(state);
    let mut args = 0;
    for (name, items) in INPUTS.into_iter().zip([inputs.keys, inputs.args]) {
        if inputs.as_globals {
            state.push_bytes(name.as_bytes());
            push_array(state, items);
            sandbox::set_global(state);
        } else {
            push_array(state, items);
            args += 1;
        }
    }
    state.push_function(HANDLER, 0);
    state.insert(1);
    let status = state.protected_call(args, 1, 1);
    state.push_boolean(status == ffi::LUA_OK);
    state.replace(1);
    if inputs.as_globals {
        // The names are in memory: no room is needed to remove them.
        for name in INPUTS {
            state.push_bytes(name.as_bytes());
            state.push_nil();
            sandbox::set_global(state);
        }
    }
}

fn push_array(state: State, items: &[&[u8]]) {
    state.new_table_of(c_int::try_from(items.len()).unwrap_or(0));
    for (n, item) in (1..).zip(items) {
        state.push_bytes(item);
        state.raw_set_at(-2, n);
    }
}

fn raising(state: State) -> c_int {
    let args = state.top();
    let bytes: usize = (1..=args)
        .filter(|at| state.kind(*at) == ffi::LUA_TSTRING)
        .map(|at| state.raw_len(at))
        .sum();
    work::charge(state, BINDING * u64::from(args.unsigned_abs() + 1));
    work::charge_bytes(state, bytes);
    state.need_stack(2, "too many arguments");
    state.push_value(ffi::lua_upvalueindex(1));
    state.insert(1);
    state.call(args, ffi::LUA_MULTRET);
    if !state.to_boolean(1) {
        state.set_top(2);
        state.raise();
    }
    state.top() - 1
}

fn pcall(state: State) -> c_int {
    state.check_any(1);
    let args = state.top() - 1;
    state.need_stack(2, "too many arguments");
    state.push_boolean(true);
    state.insert(1);
    if state.protected_call(args, ffi::LUA_MULTRET, 0) != ffi::LUA_OK {
        work::rethrow_end(state);
        if state.is_table(-1) {
            state.get_name(-1, "err");
            if matches!(state.kind(-1), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
                state.replace(-2);
            } else {
                state.pop(1);
            }
        }
        state.push_boolean(false);
        state.replace(1);
    }
    state.top()
}

fn xpcall(state: State) -> c_int {
    state.check_any(2);
    state.set_top(2);
    // A handler in C is not interrupted, and sees who raised the error.
    if state.kind(2) == ffi::LUA_TFUNCTION && state.to_c_function(2).is_none() {
        state.push_function(entry!(handle), 1);
    }
    state.insert(1);
    let status = state.protected_call(0, ffi::LUA_MULTRET, 1);
    if status != ffi::LUA_OK {
        work::rethrow_end(state);
    }
    state.push_boolean(status == ffi::LUA_OK);
    state.replace(1);
    state.top()
}

/// Runs a script's error handler, its upvalue. In the frame of the interpreter's hook, which ends a
/// run, no hook would interrupt it.
fn handle(state: State) -> c_int {
    if work::is_ended() {
        return 1;
    }
    state.push_value(ffi::lua_upvalueindex(1));
    state.insert(1);
    state.call(state.top() - 1, 1);
    1
}

/// Converts the error to a table, and notes where it was raised.
fn handler(state: State) -> c_int {
    state.set_top(1);
    if !state.is_table(1) {
        state.push_bytes(b"ERR ");
        push_text_of(state, 1);
        // SAFETY: the state is valid, two strings are on top.
        unsafe { ffi::lua_concat(state.as_ptr(), 2) };
        state.new_table();
        state.insert(-2);
        state.set_name(-2, "err");
        state.replace(1);
    } else if sandbox::push_unshielded(state, 1) {
        state.set_top(1);
        return 1;
    }
    let mut info = MaybeUninit::<ffi::lua_Debug>::zeroed();
    let info = info.as_mut_ptr();
    // An error of a C function is located at its call.
    let (is_lua, is_c) = (place(state, 1, info), is_c(info));
    if is_lua && (!is_c || place(state, 2, info)) {
        // SAFETY: `place` has filled it; `source` is a string of Lua.
        let (source, line) = unsafe { (CStr::from_ptr((*info).source), (*info).currentline) };
        state.push_bytes(source.to_bytes());
        state.set_name(1, "source");
        state.push_number(f64::from(line));
        state.set_name(1, "line");
    }
    state.set_top(1);
    1
}

/// Pushes the result of `tostring`.
fn push_text_of(state: State, index: c_int) {
    match state.kind(index) {
        ffi::LUA_TSTRING | ffi::LUA_TNUMBER => {
            state.push_value(index);
            state.to_bytes(-1);
        }
        ffi::LUA_TBOOLEAN if state.to_boolean(index) => state.push_bytes(b"true"),
        ffi::LUA_TBOOLEAN => state.push_bytes(b"false"),
        ffi::LUA_TNIL => state.push_bytes(b"nil"),
        _ => {
            // SAFETY: the state is valid. Userdata are errors of the binding, which has given
            // them `__tostring`.
            let called =
                unsafe { ffi::luaL_callmeta(state.as_ptr(), index, c"__tostring".as_ptr()) };
            if called == 0 {
                state.push_bytes(state.type_name(index).as_bytes());
            }
        }
    }
}

/// Fills `info` for the function at a level, if there is one.
fn place(state: State, level: c_int, info: *mut ffi::lua_Debug) -> bool {
    let state = state.as_ptr();
    // SAFETY: the state is valid, `info` is the caller's.
    unsafe {
        ffi::lua_getstack(state, level, info) != 0
            && ffi::lua_getinfo(state, c"nSl".as_ptr(), info) != 0
    }
}

fn is_c(info: *const ffi::lua_Debug) -> bool {
    // SAFETY: the caller has zeroed or filled it; `what` is a string of Lua if not null.
    unsafe { !(*info).what.is_null() && CStr::from_ptr((*info).what).to_bytes() == b"C" }
}
