//! `cjson`: JSON, and its settings.

mod decode;
mod encode;

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use mlua::ffi;

use crate::json_settings::{JsonSettings, MAX_PRECISION, OFF, ON};
use crate::raw::{State, entry};
use crate::vm::Vm;

/// Pushes the library.
pub(super) fn push(state: State, vm: *const Vm) {
    // SAFETY: `vm` lives as long as the Lua state, and so do the settings in it.
    let settings = unsafe { &raw const (*vm).json };
    state.push_light(settings.cast_mut().cast());
    push_with_settings(state, vm);
}

/// Pops the address of settings, and pushes a table of functions that use them.
fn push_with_settings(state: State, vm: *const Vm) {
    let settings = state.top();
    state.new_table();
    for (name, function) in [
        ("encode", entry!(encode::encode)),
        ("decode", entry!(decode::decode)),
        ("encode_sparse_array", entry!(encode_sparse_array)),
        ("encode_max_depth", entry!(encode_max_depth)),
        ("decode_max_depth", entry!(decode_max_depth)),
        ("encode_number_precision", entry!(encode_number_precision)),
        ("encode_keep_buffer", entry!(encode_keep_buffer)),
        ("encode_invalid_numbers", entry!(encode_invalid_numbers)),
        ("decode_invalid_numbers", entry!(decode_invalid_numbers)),
        ("new", entry!(new)),
    ] {
        state.push_light(vm.cast_mut().cast());
        state.push_value(settings);
        state.push_function(function, 2);
        state.set_name(-2, name);
    }
    state.push_light(ptr::null_mut());
    state.set_name(-2, "null");
    for (name, text) in [("_NAME", "cjson"), ("_VERSION", "2.1.0")] {
        state.push_bytes(text.as_bytes());
        state.set_name(-2, name);
    }
    state.remove(settings);
}

fn new(state: State) -> c_int {
    state.set_top(0);
    // SAFETY: the state is valid. Lua's blocks are aligned for any of the fields; the block lives
    // as long as a function that has it as an upvalue.
    unsafe {
        let settings = ffi::lua_newuserdata(state.as_ptr(), size_of::<Cell<JsonSettings>>());
        settings.cast::<Cell<JsonSettings>>().write(Cell::new(JsonSettings::default()));
    }
    push_with_settings(state, state.vm());
    1
}

fn settings<'a>(state: State) -> &'a Cell<JsonSettings> {
    // SAFETY: the functions of this library have settings as their second upvalue, in the VM or in
    // a block that lives as long as the function.
    unsafe {
        &*ffi::lua_touserdata(state.as_ptr(), ffi::lua_upvalueindex(2)).cast::<Cell<JsonSettings>>()
    }
}

/// Returns the settings after checking that there are at most `args` arguments; missing ones are
/// nil.
fn settings_for(state: State, args: c_int) -> &'static Cell<JsonSettings> {
    if state.top() > args {
        state.arg_error(args + 1, format_args!("found too many arguments"));
    }
    state.set_top(args);
    settings(state)
}

/// Sets a number, if one is given, and pushes its value.
fn number(
    state: State,
    arg: c_int,
    field: fn(&mut JsonSettings) -> &mut c_int,
    min: c_int,
    max: c_int,
) {
    let all = settings(state);
    let mut changed = all.get();
    if state.kind(arg) != ffi::LUA_TNIL {
        let value = state.check_int(arg);
        if value < min || value > max {
            state.arg_error(1, format_args!("expected integer between {min} and {max}"));
        }
        *field(&mut changed) = value;
        all.set(changed);
    }
    state.push_number(f64::from(*field(&mut changed)));
}

/// Sets one of `off`, `on` (or booleans), and `null` where it is allowed, and pushes its value.
fn choice(state: State, arg: c_int, field: fn(&mut JsonSettings) -> &mut c_int, with_null: bool) {
    const NAMES: [&CStr; 3] = [c"off", c"on", c"null"];
    let all = settings(state);
    let mut changed = all.get();
    if state.kind(arg) != ffi::LUA_TNIL {
        let value = if state.kind(arg) == ffi::LUA_TBOOLEAN {
            c_int::from(state.to_boolean(arg))
        } else {
            let mut names: [*const c_char; 4] = [ptr::null(); 4];
            let count = if with_null { 3 } else { 2 };
            for (name, text) in names.iter_mut().zip(&NAMES[..count]) {
                *name = text.as_ptr();
            }
            // SAFETY: the state is valid; the list ends with null.
            unsafe { ffi::luaL_checkoption(state.as_ptr(), arg, ptr::null(), names.as_ptr()) }
        };
        *field(&mut changed) = value;
        all.set(changed);
    }
    match *field(&mut changed) {
        OFF => state.push_boolean(false),
        ON => state.push_boolean(true),
        _ => state.push_bytes(b"null"),
    }
}

fn encode_sparse_array(state: State) -> c_int {
    settings_for(state, 3);
    choice(state, 1, |all| &mut all.sparse_convert, false);
    number(state, 2, |all| &mut all.sparse_ratio, 0, c_int::MAX);
    number(state, 3, |all| &mut all.sparse_safe, 0, c_int::MAX);
    3
}

fn encode_max_depth(state: State) -> c_int {
    settings_for(state, 1);
    number(state, 1, |all| &mut all.encode_max_depth, 1, c_int::MAX);
    1
}

fn decode_max_depth(state: State) -> c_int {
    settings_for(state, 1);
    number(state, 1, |all| &mut all.decode_max_depth, 1, c_int::MAX);
    1
}

fn encode_number_precision(state: State) -> c_int {
    settings_for(state, 1);
    number(state, 1, |all| &mut all.precision, 1, MAX_PRECISION);
    1
}

/// Sets `encode_keep_buffer`, and pushes it; it has no effect, as there is one buffer per VM.
fn encode_keep_buffer(state: State) -> c_int {
    settings_for(state, 1);
    choice(state, 1, |all| &mut all.encode_keep_buffer, false);
    1
}

fn encode_invalid_numbers(state: State) -> c_int {
    settings_for(state, 1);
    choice(state, 1, |all| &mut all.encode_invalid_numbers, true);
    1
}

fn decode_invalid_numbers(state: State) -> c_int {
    settings_for(state, 1);
    choice(state, 1, |all| &mut all.decode_invalid_numbers, false);
    1
}
