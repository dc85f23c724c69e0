//! Functions of `string` that may run for long. Those with patterns replace Lua's own, whose
//! recursion is not bounded, and whose matches cannot be ended.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use mlua::ffi;

use crate::base::wrap;
use crate::patterns::Matcher;
use crate::raw::{State, entry};
use crate::vm::Vm;
use crate::work::{self, charge_bytes};

/// Maximum number of items of a pattern for which the matcher recurses (repetitions and captures).
const MAX_PATTERN_ITEMS: usize = 1000;
/// Length up to which a pattern's items are not counted: it cannot have more.
const SHORT_PATTERN: usize = MAX_PATTERN_ITEMS;

/// Bytes with a special meaning in a pattern.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// Number of bytes produced one by one in the time of an instruction.
const MADE_BYTES: usize = 8;

/// Replaces the functions of the table on top of the stack.
pub(crate) fn replace(state: State, vm: *const Vm) {
    for (name, function) in
        [("find", entry!(find)), ("match", entry!(match_one)), ("gmatch", entry!(gmatch))]
    {
        state.push_function(function, 0);
        state.set_name(-2, name);
    }
    for name in ["upper", "lower", "reverse", "format"] {
        wrap(state, name, entry!(linear));
    }
    wrap(state, "rep", entry!(rep));
    state.push_light(vm.cast_mut().cast());
    state.push_function(entry!(gsub), 1);
    state.set_name(-2, "gsub");
    state.get_name(-1, "gmatch");
    state.set_name(-2, "gfind");
}

/// Returns the pattern argument.
fn check_pattern<'a>(state: State) -> &'a [u8] {
    let pattern = state.check_bytes(2);
    if pattern.len() > SHORT_PATTERN {
        charge_bytes(state, pattern.len());
        let items = pattern.iter().filter(|byte| b"?*+-()".contains(byte)).count();
        if items > MAX_PATTERN_ITEMS {
            state.error(format_args!("pattern too complex"));
        }
    }
    pattern
}

/// Returns the pattern without its anchor, and true if it had one.
fn anchored(pattern: &[u8]) -> (&[u8], bool) {
    pattern.strip_prefix(b"^").map_or((pattern, false), |rest| (rest, true))
}

fn find(state: State) -> c_int {
    find_or_match(state, true)
}

fn match_one(state: State) -> c_int {
    find_or_match(state, false)
}

fn find_or_match(state: State, finds: bool) -> c_int {
    let text = state.check_bytes(1);
    let pattern = check_pattern(state);
    let from = state.opt_integer(3, 1);
    // Negative positions count from the end.
    let from = if from < 0 { from.saturating_add(text.len() as i64 + 1) } else { from };
    let from = usize::try_from(from.saturating_sub(1)).unwrap_or(0).min(text.len());
    if finds && (state.to_boolean(4) || is_plain(pattern)) {
        return find_plain(state, text, pattern, from);
    }
    let (pattern, is_anchored) = anchored(pattern);
    let mut matcher = Matcher::new(state, text, pattern);
    let last = if is_anchored { from } else { text.len() };
    let found = (from..=last).find_map(|start| Some((start, matcher.match_at(start)?)));
    matcher.settle();
    match found {
        Some((start, end)) if finds => {
            state.push_number((start + 1) as f64);
            state.push_number(end as f64);
            2 + matcher.push_captures(None)
        }
        Some(whole) => matcher.push_captures(Some(whole)),
        None => {
            state.push_nil();
            1
        }
    }
}

/// Returns true if a pattern has no special bytes. Only the part before its first NUL counts.
fn is_plain(pattern: &[u8]) -> bool {
    let special = |byte: &u8| *byte == 0 || SPECIAL.contains(byte);
    pattern.iter().find(|byte| special(byte)).is_none_or(|byte| *byte == 0)
}

fn find_plain(state: State, text: &[u8], what: &[u8], from: usize) -> c_int {
    charge_bytes(state, text.len() - from + what.len());
    match memchr::memmem::find(&text[from..], what) {
        Some(at) => {
            state.push_number((from + at + 1) as f64);
            state.push_number((from + at + what.len()) as f64);
            2
        }
        None => {
            state.push_nil();
            1
        }
    }
}

fn gmatch(state: State) -> c_int {
    state.check_bytes(1);
    check_pattern(state);
    state.set_top(2);
    state.push_number(0.0);
    state.push_function(entry!(next_match), 3);
    1
}

/// Finds the next match; text, pattern and position are upvalues.
fn next_match(state: State) -> c_int {
    let upvalue = ffi::lua_upvalueindex;
    let text = state.to_bytes(upvalue(1));
    let mut matcher = Matcher::new(state, text, state.to_bytes(upvalue(2)));
    let from = state.to_number(upvalue(3)) as usize;
    let found = (from..=text.len()).find_map(|start| Some((start, matcher.match_at(start)?)));
    matcher.settle();
    let Some((start, end)) = found else { return 0 };
    // After an empty match the search continues at the next byte.
    let next = if end == start { end + 1 } else { end };
    state.push_number(next as f64);
    state.replace(upvalue(3));
    matcher.push_captures(Some((start, end)))
}

/// Replaces matches. It has a buffer of 8 KiB in its frame, and calls functions that may call it.
fn gsub(state: State) -> c_int {
    let text = state.check_bytes(1);
    let pattern = check_pattern(state);
    if state.vm().is_deep() {
        state.error(format_args!("stack overflow"));
    }
    let kind = state.kind(3);
    let max = i64::from(state.opt_integer(4, text.len() as i64 + 1) as c_int);
    if !matches!(kind, ffi::LUA_TNUMBER | ffi::LUA_TSTRING | ffi::LUA_TFUNCTION | ffi::LUA_TTABLE) {
        state.arg_error(3, format_args!("string/function/table expected"));
    }
    let (pattern, is_anchored) = anchored(pattern);
    let mut matcher = Matcher::new(state, text, pattern);
    let mut buffer = MaybeUninit::<ffi::luaL_Buffer>::uninit();
    let mut result = Buffer::begin(state, &mut buffer);
    // Text between matches stays unchanged.
    let (mut at, mut copied, mut count) = (0, 0, 0);
    while count < max {
        let end = matcher.match_at(at);
        if let Some(end) = end {
            count += 1;
            result.add(&text[copied..at]);
            add_replacement(state, &matcher, &mut result, at, end);
            copied = end;
        }
        match end {
            Some(end) if end > at => at = end,
            _ if at < text.len() => at += 1,
            _ => break,
        }
        if is_anchored {
            break;
        }
    }
    matcher.settle();
    result.add(&text[copied..]);
    result.push();
    state.push_number(count as f64);
    2
}

/// Appends the replacement of the match from `start` to `end`.
fn add_replacement(
    state: State,
    matcher: &Matcher<'_>,
    result: &mut Buffer,
    start: usize,
    end: usize,
) {
    match state.kind(3) {
        ffi::LUA_TFUNCTION => {
            state.push_value(3);
            let args = matcher.push_captures(Some((start, end)));
            state.call(args, 1);
        }
        ffi::LUA_TTABLE => {
            matcher.push_capture(0, start, end);
            state.get(3);
        }
        _ => return add_template(state, matcher, result, start, end),
    }
    if !state.to_boolean(-1) {
        state.pop(1);
        matcher.push_whole(start, end);
    } else if !matches!(state.kind(-1), ffi::LUA_TSTRING | ffi::LUA_TNUMBER) {
        let kind = state.type_name(-1);
        state.error(format_args!("invalid replacement value (a {kind})"));
    }
    result.add_value();
}

/// Appends a replacement string, in which `%1` is the first capture.
fn add_template(
    state: State,
    matcher: &Matcher<'_>,
    result: &mut Buffer,
    start: usize,
    end: usize,
) {
    let template = state.to_bytes(3);
    charge_bytes(state, template.len());
    let mut rest = template;
    while let Some(at) = memchr::memchr(b'%', rest) {
        result.add(&rest[..at]);
        let byte = rest.get(at + 1).copied().unwrap_or(0);
        match byte {
            b'0' => {
                matcher.push_whole(start, end);
                result.add_value();
            }
            b'1'..=b'9' => {
                matcher.push_capture(usize::from(byte - b'1'), start, end);
                result.add_value();
            }
            other => result.add(&[other]),
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    result.add(rest);
}

/// Lua's own string buffer: it keeps bytes that do not fit into the frame on Lua's stack.
pub(crate) struct Buffer {
    state: State,
    buffer: *mut ffi::luaL_Buffer,
}

// SAFETY of all blocks below: `begin` initialises the buffer, which is in a frame that outlives
// this; between two calls the stack is as the buffer has left it.
impl Buffer {
    pub(crate) fn begin(state: State, room: &mut MaybeUninit<ffi::luaL_Buffer>) -> Self {
        let buffer = room.as_mut_ptr();
        // SAFETY: see above.
        unsafe { ffi::luaL_buffinit(state.as_ptr(), buffer) };
        Self { state, buffer }
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        work::charge(self.state, (bytes.len() / MADE_BYTES) as u64);
        // SAFETY: see above.
        unsafe { ffi::luaL_addlstring(self.buffer, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Pops a string or a number, and adds it.
    pub(crate) fn add_value(&mut self) {
        charge_bytes(self.state, self.state.raw_len(-1));
        // SAFETY: see above; the value is on top.
        unsafe { ffi::luaL_addvalue(self.buffer) };
    }

    /// Pushes the string.
    pub(crate) fn push(self) {
        // SAFETY: see above.
        unsafe { ffi::luaL_pushresult(self.buffer) };
    }
}

/// Runs an upvalue, a function that goes through its strings once.
fn linear(state: State) -> c_int {
    let strings = (1..=state.top()).filter(|at| state.kind(*at) == ffi::LUA_TSTRING);
    let bytes: usize = strings.map(|at| state.raw_len(at)).sum();
    work::charge(state, (bytes / MADE_BYTES) as u64);
    state.run_upvalue(1)
}

/// Repeats a string; an empty result needs no counting.
fn rep(state: State) -> c_int {
    let len = state.check_bytes(1).len();
    let times = usize::try_from(state.check_int(2)).unwrap_or(0);
    if len == 0 {
        state.push_bytes(b"");
        return 1;
    }
    work::charge(state, (len.saturating_mul(times) / MADE_BYTES) as u64);
    state.run_upvalue(1)
}
