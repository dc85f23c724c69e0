//! Basic functions in place of Lua's own: those that would bypass metatables recognise shields,
//! those that compile accept text only, and none reaches anything that the interpreter does not
//! check.

use std::ffi::{CStr, c_char, c_int, c_void};

use mlua::ffi;

use crate::calls;
use crate::raw::{State, entry};
use crate::{sandbox, work};

/// Maximum number of values that `unpack` returns (Lua's LUAI_MAXCSTACK, which Lua checks with too
/// narrow a number).
const MAX_UNPACKED: i64 = 8000;
/// Number of bytes compiled between two checks of a run.
const PIECE: usize = 4096;
/// Instructions that compiling a byte counts as.
const COMPILED_BYTE: u64 = 4;
/// Instructions that collecting a KiB of garbage counts as.
const COLLECTED_KIB: u64 = 64;

/// Replaces the functions of the table on top of the stack, which are Lua's own.
pub(crate) fn replace_globals(state: State) {
    // These check the arguments, then run Lua's own function, which is their upvalue.
    for (name, function) in [
        ("rawset", entry!(rawset)),
        ("rawget", entry!(with_unshielded)),
        ("next", entry!(with_unshielded)),
        ("setmetatable", entry!(setmetatable)),
        ("getmetatable", entry!(getmetatable)),
        ("unpack", entry!(unpack)),
        ("collectgarbage", entry!(collect)),
    ] {
        wrap(state, name, function);
    }
    state.get_name(-1, "next");
    state.push_function(entry!(pairs), 1);
    state.set_name(-2, "pairs");
    for (name, function) in [("pcall", calls::PCALL), ("xpcall", calls::XPCALL)] {
        state.push_function(function, 0);
        state.set_name(-2, name);
    }
}

/// Replaces the function under `name` with `function`, whose upvalue the old one becomes.
pub(crate) fn wrap(state: State, name: &str, function: mlua::lua_CFunction) {
    state.get_name(-1, name);
    state.push_function(function, 1);
    state.set_name(-2, name);
}

fn rawset(state: State) -> c_int {
    if state.top() >= 3 {
        sandbox::refuse_shield(state, 1);
    }
    state.run_upvalue(1)
}

fn setmetatable(state: State) -> c_int {
    if matches!(state.kind(2), ffi::LUA_TNIL | ffi::LUA_TTABLE) {
        sandbox::refuse_shield(state, 1);
    }
    state.run_upvalue(1)
}

fn with_unshielded(state: State) -> c_int {
    if sandbox::push_unshielded(state, 1) {
        state.replace(1);
    }
    state.run_upvalue(1)
}

fn getmetatable(state: State) -> c_int {
    if sandbox::push_unshielded(state, 1) {
        state.metatable(1);
        state.get_name(-1, "__metatable");
        return 1;
    }
    state.run_upvalue(1)
}

fn pairs(state: State) -> c_int {
    state.check_table(1);
    state.push_value(ffi::lua_upvalueindex(1));
    state.push_value(1);
    state.push_nil();
    3
}

fn unpack(state: State) -> c_int {
    state.check_table(1);
    let first = i64::from(state.opt_integer(2, 1) as c_int);
    let last = match state.kind(3) {
        ffi::LUA_TNONE | ffi::LUA_TNIL => state.raw_len(1) as i64,
        _ => i64::from(state.check_int(3)),
    };
    if last - first >= MAX_UNPACKED {
        state.error(format_args!("too many results to unpack"));
    }
    work::charge(state, u64::try_from(last - first).unwrap_or(0));
    state.run_upvalue(1)
}

fn collect(state: State) -> c_int {
    work::charge(state, state.used_kib() * COLLECTED_KIB);
    state.run_upvalue(1)
}

/// The text that [`ffi::lua_load`] reads.
struct Source {
    lead: usize,
    rest: *const u8,
    len: usize,
}

/// A blank put before text that would be taken for bytecode; the result is a syntax error.
const LEAD: &[u8] = b" ";

unsafe extern "C-unwind" fn read(
    state: *mut mlua::lua_State,
    source: *mut c_void,
    size: *mut usize,
) -> *const c_char {
    // SAFETY: `load_text` gives its `Source`, Lua the address of a size.
    let (source, size) = unsafe { (&mut *source.cast::<Source>(), &mut *size) };
    if source.lead > 0 {
        *size = std::mem::take(&mut source.lead);
        return LEAD.as_ptr().cast();
    }
    let piece = source.len.min(PIECE);
    // SAFETY: Lua calls this with a valid state, and an error skips no destructor here.
    work::charge(unsafe { State::new(state) }, piece as u64 * COMPILED_BYTE);
    let begin = source.rest;
    // SAFETY: `piece` is at most the length of the rest of the text.
    source.rest = unsafe { begin.add(piece) };
    source.len -= piece;
    *size = piece;
    begin.cast()
}

/// Pushes the compiled text, or the message of an error. It never runs bytecode, and reads
/// everything from memory, as Lua's parser does not keep the chunk's name alive while a reader
/// runs. It reads piece by piece, as the parser's time may grow with the square of the length
/// (`break`, `elseif`).
pub(crate) fn load_text(state: State, text: &[u8], name: &CStr) -> bool {
    let bytecode = text.first() == Some(&ffi::LUA_SIGNATURE[0]);
    let lead = if bytecode { LEAD.len() } else { 0 };
    let mut source = Source { lead, rest: text.as_ptr(), len: text.len() };
    let data = std::ptr::from_mut(&mut source).cast();
    // SAFETY: the state is valid; source and name outlive the call.
    unsafe { ffi::lua_load(state.as_ptr(), read, data, name.as_ptr()) == ffi::LUA_OK }
}

/// `loadstring` and `load`, with the VM as their upvalue.
pub(crate) const LOADSTRING: mlua::lua_CFunction = entry!(loadstring);
pub(crate) const LOAD: mlua::lua_CFunction = entry!(load);

fn loadstring(state: State) -> c_int {
    let text = state.check_bytes(1);
    let name = chunk_name(state, 2, text);
    loaded(state, load_text(state, text, name))
}

/// `load`: concatenates the pieces first.
fn load(state: State) -> c_int {
    state.check_function(1);
    let name = chunk_name(state, 2, b"=(load)\0");
    state.set_top(2);
    state.new_table();
    let scratch = &state.vm().scratch;
    let mut total: usize = 0;
    for n in 1.. {
        state.push_value(1);
        work::charge(state, 1);
        if state.protected_call(0, 1, 0) != ffi::LUA_OK {
            return loaded(state, false);
        }
        match state.kind(-1) {
            ffi::LUA_TNIL => break,
            ffi::LUA_TSTRING if total > scratch.limit() => {
                state.plain_error("not enough memory");
            }
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER if state.to_bytes(-1).is_empty() => break,
            ffi::LUA_TSTRING | ffi::LUA_TNUMBER => {
                total += state.raw_len(-1);
                state.raw_set_at(3, n);
            }
            _ => {
                state.push_bytes(b"reader function must return a string");
                return loaded(state, false);
            }
        }
    }
    scratch.clear();
    for n in 1.. {
        state.raw_get_at(3, n);
        if state.kind(-1) == ffi::LUA_TNIL {
            break;
        }
        scratch.append(state, state.to_bytes(-1));
        state.pop(1);
    }
    scratch.push(state);
    let text = state.to_bytes(-1);
    loaded(state, load_text(state, text, name))
}

/// Returns an argument as the name of a chunk; Lua's strings end with NUL, and so does `default`.
fn chunk_name(state: State, arg: c_int, default: &[u8]) -> &CStr {
    let bytes = match state.kind(arg) {
        ffi::LUA_TNONE | ffi::LUA_TNIL => default,
        _ => state.check_bytes(arg),
    };
    // SAFETY: a NUL follows or is in the bytes.
    unsafe { CStr::from_ptr(bytes.as_ptr().cast()) }
}

fn loaded(state: State, done: bool) -> c_int {
    if done {
        return 1;
    }
    work::rethrow_end(state);
    state.push_nil();
    state.insert(-2);
    2
}
