//! Functions with which scripts call commands, and the conversion of replies to Lua values.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;

use mlua::ffi;

use crate::raw::{State, entry};
use crate::work;

/// Maximum nesting depth of replies.
const MAX_DEPTH: usize = 128;

/// Number of instructions charged for a value of a reply.
const VALUE: u64 = 4;

/// Runs a command for a script. It must not enter Lua.
pub type Caller = fn(&CallArgs<'_>) -> Called;

/// The arguments of a call.
pub struct CallArgs<'a> {
    state: State,
    count: c_int,
    _call: PhantomData<&'a ()>,
}

/// An argument of a call.
#[derive(Clone, Copy, Debug)]
pub enum CallArg<'a> {
    Text(&'a [u8]),
    Number(f64),
    Other,
}

/// Outcome of a call. Its bytes are read before the caller is called again.
#[derive(Clone, Copy, Debug)]
pub enum Called {
    /// A rendered reply.
    Reply(*const [u8]),
    /// The text of an error that is counted.
    Error(*const [u8]),
    /// The text of an error that is not counted: no command was called.
    Misused(*const [u8]),
    /// The script must end, whatever it catches.
    Ended,
}

impl CallArgs<'_> {
    pub fn iter(&self) -> impl Iterator<Item = CallArg<'_>> {
        (1..=self.count).map(|n| match self.state.kind(n) {
            ffi::LUA_TNUMBER => CallArg::Number(self.state.to_number(n)),
            ffi::LUA_TSTRING => CallArg::Text(self.state.to_bytes(n)),
            _ => CallArg::Other,
        })
    }
}

/// Pushes a function that raises the errors of commands, and one that returns them.
pub(crate) fn push_functions(state: State, caller: Caller) {
    for function in [entry!(call), entry!(pcall)] {
        state.push_light(caller as *mut c_void);
        state.push_function(function, 1);
    }
}

fn call(state: State) -> c_int {
    run(state, true)
}

fn pcall(state: State) -> c_int {
    run(state, false)
}

fn run(state: State, raises: bool) -> c_int {
    // SAFETY: the functions are made only in `push_functions`, with a `Caller` as their upvalue.
    let caller: Caller = unsafe {
        std::mem::transmute(ffi::lua_touserdata(state.as_ptr(), ffi::lua_upvalueindex(1)))
    };
    let args = CallArgs { state, count: state.top(), _call: PhantomData };
    let called = caller(&args);
    state.set_top(0);
    work::charge(state, 1);
    let fails = match called {
        // SAFETY: the caller keeps the bytes until it is called again; nothing here calls it.
        Called::Reply(reply) => unsafe {
            push_reply(state, &*reply);
            (*reply).first() == Some(&b'-')
        },
        Called::Error(text) => {
            // SAFETY: as above.
            push_error(state, unsafe { &*text }, true);
            true
        }
        Called::Misused(text) => {
            // SAFETY: as above.
            push_error(state, unsafe { &*text }, false);
            true
        }
        Called::Ended => work::end(state),
    };
    if fails && raises {
        state.raise();
    }
    1
}

/// Pushes an error as scripts see it; `is_counted`: it was counted when the command failed.
fn push_error(state: State, text: &[u8], is_counted: bool) {
    state.need_stack(3, "no room for an error");
    state.new_table();
    state.push_bytes(text);
    state.set_name(-2, "err");
    if is_counted {
        state.push_boolean(true);
        state.set_name(-2, "ignore_error_stats_update");
    }
}

/// Pushes the value of a rendered reply.
fn push_reply(state: State, reply: &[u8]) {
    if push_value(state, reply, 0).is_none() {
        state.plain_error("the reply cannot be read");
    }
}

/// Pushes the first value, and returns the bytes behind it.
fn push_value(state: State, reply: &[u8], depth: usize) -> Option<&[u8]> {
    if depth > MAX_DEPTH {
        return None;
    }
    state.need_stack(6, "the reply nests too deep");
    let (&kind, rest) = reply.split_first()?;
    let end = memchr::memchr(b'\r', rest)?;
    work::charge(state, VALUE);
    let (line, rest) = (&rest[..end], rest.get(end + 2..)?);
    match kind {
        b':' => state.push_number(number(line)? as f64),
        b'+' => push_tagged(state, "ok", line),
        b'(' => push_tagged(state, "big_number", line),
        b'-' => push_error(state, line, true),
        b'_' => state.push_nil(),
        b'#' => state.push_boolean(line == b"t"),
        b',' => {
            let double = std::str::from_utf8(line).ok()?.parse().ok()?;
            state.new_table();
            state.push_number(double);
            state.set_name(-2, "double");
        }
        b'$' | b'=' => return push_bulk(state, kind, number(line)?, rest),
        b'*' | b'>' => return push_array(state, number(line)?, rest, depth),
        b'%' => return push_pairs(state, "map", number(line)?, rest, depth),
        b'~' => return push_pairs(state, "set", number(line)?, rest, depth),
        b'|' => {
            // Scripts do not see attributes.
            let mut rest = rest;
            for _ in 0..2 * number(line)? {
                rest = push_value(state, rest, depth + 1)?;
                state.pop(1);
            }
            return push_value(state, rest, depth);
        }
        _ => return None,
    }
    Some(rest)
}

fn number(line: &[u8]) -> Option<i64> {
    flagstone_wire::num::parse_i64(line)
}

/// Pushes a table with a line as its field `name`.
fn push_tagged(state: State, name: &str, line: &[u8]) {
    state.new_table();
    state.push_bytes(line);
    state.set_name(-2, name);
}

fn push_bulk(state: State, kind: u8, len: i64, rest: &[u8]) -> Option<&[u8]> {
    let Ok(len) = usize::try_from(len) else {
        state.push_boolean(false);
        return Some(rest);
    };
    let (bytes, rest) = rest.split_at_checked(len)?;
    work::charge_bytes(state, len);
    if kind == b'$' {
        state.push_bytes(bytes);
    } else {
        let (format, text) = bytes.split_at_checked(4)?;
        state.new_table();
        state.new_table();
        state.push_bytes(text);
        state.set_name(-2, "string");
        state.push_bytes(&format[..3]);
        state.set_name(-2, "format");
        state.set_name(-2, "verbatim_string");
    }
    rest.get(2..)
}

fn push_array(state: State, len: i64, mut rest: &[u8], depth: usize) -> Option<&[u8]> {
    let Ok(len) = c_int::try_from(len) else { return None };
    if len < 0 {
        state.push_boolean(false);
        return Some(rest);
    }
    state.new_table_of(len);
    for n in 1..=len {
        rest = push_value(state, rest, depth + 1)?;
        state.raw_set_at(-2, n);
    }
    Some(rest)
}

/// Pushes a map or a set, in a table that names its kind.
fn push_pairs<'a>(
    state: State,
    name: &str,
    len: i64,
    mut rest: &'a [u8],
    depth: usize,
) -> Option<&'a [u8]> {
    state.new_table();
    state.new_table();
    for _ in 0..len {
        rest = push_value(state, rest, depth + 1)?;
        if name == "map" {
            rest = push_value(state, rest, depth + 1)?;
        } else {
            state.push_boolean(true);
        }
        state.raw_set(-3);
    }
    state.set_name(-2, name);
    Some(rest)
}
