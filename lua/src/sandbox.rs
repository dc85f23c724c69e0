//! Tables that scripts can read but not change.
//!
//! Lua 5.1 has no read-only tables. To be read-only, a table is *shielded*: scripts only ever get
//! an empty table in its place, whose metatable finds everything in the real one (`__index`, a
//! table, so that look-ups stay in the interpreter) and refuses writes (`__newindex`).
//! `getmetatable` does not show this metatable, and the functions that bypass metatables (`rawset`,
//! `next`, …) are replaced by ones that recognise shields (`base.rs`).

use std::ffi::{c_int, c_void};

use mlua::ffi;

use crate::raw::{State, entry};

/// Error text of a write.
const READ_ONLY: &str = "Attempt to modify a readonly table";

/// Keys in the registry and in metatables: addresses, which scripts cannot make.
static MARK: u8 = 0;
static SHIELDS: u8 = 0;
static GLOBALS: u8 = 0;
static VIEW: u8 = 0;

/// Pushes the real table behind the shield at `index` (positive); returns false if it is no shield.
pub(crate) fn push_unshielded(state: State, index: c_int) -> bool {
    if !state.is_table(index) || !state.metatable(index) {
        return false;
    }
    push_key(state, &MARK);
    state.raw_get(-2);
    if state.is_table(-1) {
        state.remove(-2);
        true
    } else {
        state.pop(2);
        false
    }
}

/// Raises the error of a write if the value at `index` is a shield. The text has no position before
/// it, as no line of a script has written.
pub(crate) fn refuse_shield(state: State, index: c_int) {
    if push_unshielded(state, index) {
        state.plain_error(READ_ONLY);
    }
}

/// Pushes the shield of the table at `index` (positive). All tables in it become shields too.
pub(crate) fn shield(state: State, index: c_int) {
    state.need_stack(8, "tables nest too deep");
    if push_unshielded(state, index) {
        state.pop(1);
        state.push_value(index);
        return;
    }
    push_shields(state);
    state.push_value(index);
    state.raw_get(-2);
    if state.is_table(-1) {
        state.remove(-2);
        return;
    }
    state.pop(1);
    state.new_table();
    let proxy = state.top();
    state.push_value(index);
    state.push_value(proxy);
    state.raw_set(proxy - 1);
    push_shield_metatable(state, index);
    state.set_metatable(proxy);
    shield_values(state, index);
    state.set_top(proxy);
    state.remove(proxy - 1);
}

fn push_shield_metatable(state: State, index: c_int) {
    state.new_table();
    push_key(state, &MARK);
    state.push_value(index);
    state.raw_set(-3);
    state.push_value(index);
    state.set_name(-2, "__index");
    state.push_function(entry!(refuse_write), 0);
    state.set_name(-2, "__newindex");
    if state.metatable(index) {
        let own = state.top();
        shield(state, own);
        state.remove(own);
        state.set_name(-2, "__metatable");
    }
}

fn shield_values(state: State, index: c_int) {
    state.push_nil();
    while state.next(index) {
        if state.is_table(-1) {
            let value = state.top();
            shield(state, value);
            state.remove(value);
            // The key exists, so that the walk may go on.
            state.push_value(-2);
            state.insert(-2);
            state.raw_set(index);
        } else {
            state.pop(1);
        }
    }
}

fn refuse_write(state: State) -> c_int {
    state.error(format_args!("{READ_ONLY}"))
}

/// Gives the table at `index` a metatable that makes reading a missing key an error.
pub(crate) fn make_strict(state: State, index: c_int) {
    state.new_table();
    state.push_function(entry!(nonexistent), 0);
    state.set_name(-2, "__index");
    state.set_metatable(index);
}

fn nonexistent(state: State) -> c_int {
    if state.top() != 2 {
        state.error(format_args!("Wrong number of arguments to luaProtectedTableError"));
    }
    if !matches!(state.kind(2), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
        state.error(format_args!(
            "Second argument to luaProtectedTableError must be a string or number"
        ));
    }
    let name = state.to_bytes(2).as_ptr();
    // SAFETY: the state is valid; strings of Lua end with NUL.
    unsafe {
        ffi::luaL_error(
            state.as_ptr(),
            c"Script attempted to access nonexistent global variable '%s'".as_ptr(),
            name.cast::<std::ffi::c_char>(),
        )
    };
    state.raise()
}

/// Shields the globals, and makes the shield the environment of everything compiled from now on.
pub(crate) fn seal(state: State) {
    state.push_value(ffi::LUA_GLOBALSINDEX);
    let globals = state.top();
    push_key(state, &GLOBALS);
    state.push_value(globals);
    state.raw_set(ffi::LUA_REGISTRYINDEX);
    // `_G` becomes the shield itself when its values are shielded.
    make_strict(state, globals);
    shield(state, globals);
    let proxy = state.top();
    push_key(state, &VIEW);
    state.metatable(proxy);
    state.raw_set(ffi::LUA_REGISTRYINDEX);
    shield_strings(state);
    state.push_value(proxy);
    state.replace(ffi::LUA_GLOBALSINDEX);
}

/// Replaces the metatable of strings with a read-only copy for scripts.
fn shield_strings(state: State) {
    state.push_bytes(b"");
    if !state.metatable(-1) {
        return;
    }
    let real = state.top();
    state.new_table();
    let copy = state.top();
    state.get_name(real, "__index");
    state.set_name(copy, "__index");
    shield(state, copy);
    state.set_name(real, "__metatable");
}

/// Pops value and name, and sets a global.
pub(crate) fn set_global(state: State) {
    push_key(state, &GLOBALS);
    state.raw_get(ffi::LUA_REGISTRYINDEX);
    if !state.is_table(-1) {
        state.pop(1);
        state.push_value(ffi::LUA_GLOBALSINDEX);
    }
    state.insert(-3);
    state.raw_set(-3);
    state.pop(1);
}

/// With a table as the only value on the stack, looks globals up there; with nil, in the real ones.
pub(crate) fn restrict_globals(state: State) {
    push_key(state, &VIEW);
    state.raw_get(ffi::LUA_REGISTRYINDEX);
    if !state.is_table(-1) {
        state.error(format_args!("globals are not sealed"));
    }
    if state.is_table(1) {
        state.push_value(1);
    } else {
        push_key(state, &GLOBALS);
        state.raw_get(ffi::LUA_REGISTRYINDEX);
    }
    state.set_name(-2, "__index");
    state.set_top(0);
}

fn push_key(state: State, key: &'static u8) {
    state.push_light(std::ptr::from_ref(key).cast::<c_void>().cast_mut());
}

/// Pushes the table of shields by their tables, creating it if it is missing. It keeps neither alive:
/// libraries that are loaded anew leave theirs.
fn push_shields(state: State) {
    push_key(state, &SHIELDS);
    state.raw_get(ffi::LUA_REGISTRYINDEX);
    if !state.is_table(-1) {
        state.pop(1);
        state.new_table();
        state.new_table();
        state.push_bytes(b"kv");
        state.set_name(-2, "__mode");
        state.set_metatable(-2);
        push_key(state, &SHIELDS);
        state.push_value(-2);
        state.raw_set(ffi::LUA_REGISTRYINDEX);
    }
}
