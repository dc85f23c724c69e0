//! Contents of a new VM: Lua's libraries without the parts that scripts must not reach, and the
//! server's libraries.

use mlua::ffi;

use crate::raw::State;
use crate::vm::Vm;
use crate::{base, bit, calls, cjson, cmsgpack, coroutines, random, strings, structs, tables};

/// Globals of Lua that stay.
const GLOBALS: [&str; 28] = [
    "_G",
    "_VERSION",
    "assert",
    "collectgarbage",
    "coroutine",
    "error",
    "gcinfo",
    "getmetatable",
    "ipairs",
    "load",
    "loadstring",
    "math",
    "next",
    "os",
    "pairs",
    "pcall",
    "rawequal",
    "rawget",
    "rawset",
    "select",
    "setmetatable",
    "string",
    "table",
    "tonumber",
    "tostring",
    "type",
    "unpack",
    "xpcall",
];

/// Puts everything into the globals of a new state.
pub(crate) fn install(state: State, vm: *const Vm) {
    state.push_value(ffi::LUA_GLOBALSINDEX);
    remove_others(state, &GLOBALS);
    base::replace_globals(state);
    for (name, function) in [("loadstring", base::LOADSTRING), ("load", base::LOAD)] {
        state.push_light(vm.cast_mut().cast());
        state.push_function(function, 1);
        state.set_name(-2, name);
    }
    // The error handler, under the names that scripts may know.
    for name in ["__redis__err__handler", "__server__err__handler"] {
        state.push_function(calls::HANDLER, 0);
        state.set_name(-2, name);
    }
    state.get_name(-1, "os");
    remove_others(state, &["clock"]);
    state.pop(1);
    state.get_name(-1, "table");
    tables::replace(state);
    state.pop(1);
    state.get_name(-1, "coroutine");
    coroutines::replace(state);
    state.pop(1);
    state.get_name(-1, "string");
    strings::replace(state, vm);
    state.pop(1);
    state.get_name(-1, "math");
    random::register(state, vm);
    state.pop(1);
    for (name, push) in [
        ("bit", bit::push as fn(State, *const Vm)),
        ("struct", structs::push),
        ("cjson", cjson::push),
        ("cmsgpack", cmsgpack::push),
    ] {
        push(state, vm);
        state.set_name(-2, name);
    }
    state.pop(1);
}

/// Removes everything not in the list from the table on top of the stack.
fn remove_others(state: State, kept: &[&str]) {
    let table = state.top();
    state.push_nil();
    while state.next(table) {
        state.pop(1);
        let name = state.to_bytes(-1);
        if !kept.iter().any(|kept| kept.as_bytes() == name) {
            state.push_value(-1);
            state.push_nil();
            state.raw_set(table);
        }
    }
}
