//! Lua's C interface in the form that these libraries use.
//!
//! They are C functions and not callbacks of the binding, for exact error texts (position, name of
//! the function, number of the argument) and because each value that a callback touches costs a
//! protected call.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::{self, Write};

use mlua::ffi;
use mlua::lua_State;

/// Bytes up to which error texts are composed here.
const MAX_TEXT: usize = 256;

/// Slots of Lua's stack that stay free for an error when it is full.
const SPARE_SLOTS: c_int = 4;

/// A Lua state, in the frame of a C function called by Lua.
///
/// Methods that allocate or check may raise a Lua error, which leaves all Rust frames up to the
/// interpreter by `longjmp`: values not dropped by then never are. So no frame that holds a `State`
/// owns anything that has to be dropped. Longer-lived data is in the shared state (`vm.rs`).
#[derive(Clone, Copy)]
pub(crate) struct State(*mut lua_State);

/// A C function for [`State::push_function`] from a `fn(State) -> c_int`.
macro_rules! entry {
    ($body:path) => {{
        unsafe extern "C-unwind" fn entry(state: *mut mlua::lua_State) -> std::ffi::c_int {
            // SAFETY: Lua calls this with a valid state; the body owns nothing that is dropped.
            $body(unsafe { $crate::raw::State::new(state) })
        }
        entry as mlua::lua_CFunction
    }};
}
pub(crate) use entry;

/// Text of bounded length; the rest is cut off. A NUL follows it.
struct Text {
    bytes: [u8; MAX_TEXT + 1],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let n = s.len().min(MAX_TEXT - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

// SAFETY of all blocks below: `self.0` is valid, as `new` demands. Lua checks indices of values
// that do not exist; each function leaves as many free slots as Lua promises to a C function
// (LUA_MINSTACK), or has asked for them with `check_stack`.
impl State {
    /// # Safety
    ///
    /// The state is valid while the value is used, and no frame between the interpreter and the
    /// uses of the value owns anything that has to be dropped.
    pub(crate) unsafe fn new(state: *mut lua_State) -> Self {
        Self(state)
    }

    pub(crate) fn as_ptr(self) -> *mut lua_State {
        self.0
    }

    pub(crate) fn top(self) -> c_int {
        // SAFETY: see above.
        unsafe { ffi::lua_gettop(self.0) }
    }

    pub(crate) fn set_top(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_settop(self.0, index) }
    }

    pub(crate) fn pop(self, n: c_int) {
        self.set_top(-n - 1);
    }

    /// Makes room for `n` more values; returns false if there is none.
    pub(crate) fn check_stack(self, n: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_checkstack(self.0, n.saturating_add(SPARE_SLOTS)) != 0 }
    }

    /// Makes room for `n` more values, or raises the error "stack overflow (`what`)".
    pub(crate) fn need_stack(self, n: c_int, what: &str) {
        if !self.check_stack(n) {
            self.error(format_args!("stack overflow ({what})"));
        }
    }

    pub(crate) fn kind(self, index: c_int) -> c_int {
        // SAFETY: see above.
        unsafe { ffi::lua_type(self.0, index) }
    }

    pub(crate) fn is_table(self, index: c_int) -> bool {
        self.kind(index) == ffi::LUA_TTABLE
    }

    /// Returns true for a number, or a string that is one.
    pub(crate) fn is_number(self, index: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_isnumber(self.0, index) != 0 }
    }

    /// Returns the name of the type of a value.
    pub(crate) fn type_name(self, index: c_int) -> &'static str {
        match self.kind(index) {
            ffi::LUA_TNONE => "no value",
            ffi::LUA_TNIL => "nil",
            ffi::LUA_TBOOLEAN => "boolean",
            ffi::LUA_TNUMBER => "number",
            ffi::LUA_TSTRING => "string",
            ffi::LUA_TTABLE => "table",
            ffi::LUA_TFUNCTION => "function",
            ffi::LUA_TTHREAD => "thread",
            _ => "userdata",
        }
    }

    pub(crate) fn to_number(self, index: c_int) -> f64 {
        // SAFETY: see above.
        unsafe { ffi::lua_tonumber(self.0, index) }
    }

    /// Returns the number at `index`, if it is a number and not a string.
    pub(crate) fn to_number_if_number(self, index: c_int) -> Option<f64> {
        (self.kind(index) == ffi::LUA_TNUMBER).then(|| self.to_number(index))
    }

    /// Returns true if a light userdata is the null address: JSON's null.
    pub(crate) fn is_null(self, index: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_touserdata(self.0, index).is_null() }
    }

    pub(crate) fn to_boolean(self, index: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_toboolean(self.0, index) != 0 }
    }

    /// Returns the string at `index`; a number is converted in its place. Valid as long as it stays
    /// there.
    pub(crate) fn to_bytes<'a>(self, index: c_int) -> &'a [u8] {
        let mut len = 0;
        // SAFETY: see above.
        let bytes = unsafe { ffi::lua_tolstring(self.0, index, &mut len) };
        if bytes.is_null() {
            return &[];
        }
        // SAFETY: Lua gives the address of `len` bytes, which stay while the value is on the
        // stack; the callers use them no longer.
        unsafe { std::slice::from_raw_parts(bytes.cast(), len) }
    }

    /// Returns the string argument `arg`, or raises an error.
    pub(crate) fn check_bytes<'a>(self, arg: c_int) -> &'a [u8] {
        // SAFETY: see above.
        unsafe { ffi::luaL_checklstring(self.0, arg, std::ptr::null_mut()) };
        self.to_bytes(arg)
    }

    pub(crate) fn check_number(self, arg: c_int) -> f64 {
        // SAFETY: see above.
        unsafe { ffi::luaL_checknumber(self.0, arg) }
    }

    pub(crate) fn check_integer(self, arg: c_int) -> i64 {
        // SAFETY: see above.
        unsafe { ffi::luaL_checkinteger(self.0, arg) }
    }

    /// Returns an integer argument as a C `int`.
    pub(crate) fn check_int(self, arg: c_int) -> c_int {
        self.check_integer(arg) as c_int
    }

    pub(crate) fn opt_integer(self, arg: c_int, default: i64) -> i64 {
        // SAFETY: see above.
        unsafe { ffi::luaL_optinteger(self.0, arg, default) }
    }

    pub(crate) fn check_table(self, arg: c_int) {
        // SAFETY: see above.
        unsafe { ffi::luaL_checktype(self.0, arg, ffi::LUA_TTABLE) }
    }

    pub(crate) fn check_function(self, arg: c_int) {
        // SAFETY: see above.
        unsafe { ffi::luaL_checktype(self.0, arg, ffi::LUA_TFUNCTION) }
    }

    pub(crate) fn check_any(self, arg: c_int) {
        // SAFETY: see above.
        unsafe { ffi::luaL_checkany(self.0, arg) }
    }

    /// Returns the length of a table or string, without metamethods.
    pub(crate) fn raw_len(self, index: c_int) -> usize {
        // SAFETY: see above.
        unsafe { ffi::lua_objlen(self.0, index) }
    }

    pub(crate) fn push_nil(self) {
        // SAFETY: see above.
        unsafe { ffi::lua_pushnil(self.0) }
    }

    pub(crate) fn push_boolean(self, value: bool) {
        // SAFETY: see above.
        unsafe { ffi::lua_pushboolean(self.0, c_int::from(value)) }
    }

    pub(crate) fn push_number(self, value: f64) {
        // SAFETY: see above.
        unsafe { ffi::lua_pushnumber(self.0, value) }
    }

    pub(crate) fn push_bytes(self, bytes: &[u8]) {
        // SAFETY: see above; Lua copies the bytes.
        unsafe { ffi::lua_pushlstring_(self.0, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub(crate) fn push_light(self, pointer: *mut c_void) {
        // SAFETY: see above; the pointer is a value only.
        unsafe { ffi::lua_pushlightuserdata(self.0, pointer) }
    }

    pub(crate) fn push_value(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_pushvalue(self.0, index) }
    }

    /// Pops `n` values, and pushes a function that has them as upvalues.
    pub(crate) fn push_function(self, function: mlua::lua_CFunction, n: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_pushcclosure(self.0, function, n) }
    }

    pub(crate) fn new_table(self) {
        // SAFETY: see above.
        unsafe { ffi::lua_createtable(self.0, 0, 0) }
    }

    /// Pushes a table with room for so many elements.
    pub(crate) fn new_table_of(self, elements: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_createtable(self.0, elements, 0) }
    }

    pub(crate) fn insert(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_insert(self.0, index) }
    }

    pub(crate) fn replace(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_replace(self.0, index) }
    }

    pub(crate) fn remove(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_remove(self.0, index) }
    }

    /// Pops a key, and pushes its value as scripts see it.
    pub(crate) fn get(self, index: c_int) {
        // SAFETY: see above; the callers have seen that it is a table.
        unsafe { ffi::lua_gettable_(self.0, index) }
    }

    /// Returns true if one value is less than another, as scripts compare them.
    pub(crate) fn is_less(self, left: c_int, right: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_lessthan(self.0, left, right) != 0 }
    }

    /// Returns the memory of the VM in KiB.
    pub(crate) fn used_kib(self) -> u64 {
        // SAFETY: see above.
        let kib = unsafe { ffi::lua_gc(self.0, ffi::LUA_GCCOUNT, 0) };
        u64::try_from(kib).unwrap_or(0)
    }

    /// Pops a key, and pushes its value.
    pub(crate) fn raw_get(self, index: c_int) {
        // SAFETY: see above; the callers have seen that it is a table.
        unsafe { ffi::lua_rawget_(self.0, index) }
    }

    pub(crate) fn raw_get_at(self, index: c_int, n: c_int) {
        // SAFETY: see above; the callers have seen that it is a table.
        unsafe { ffi::lua_rawgeti_(self.0, index, n) }
    }

    /// Pops a key and a value, and sets them.
    pub(crate) fn raw_set(self, index: c_int) {
        // SAFETY: see above; the callers have made the table.
        unsafe { ffi::lua_rawset(self.0, index) }
    }

    pub(crate) fn raw_set_at(self, index: c_int, n: c_int) {
        // SAFETY: see above; the callers have made the table.
        unsafe { ffi::lua_rawseti_(self.0, index, n) }
    }

    /// Pops a value, and sets it under a name.
    pub(crate) fn set_name(self, index: c_int, name: &str) {
        let index = if index < 0 { index - 1 } else { index };
        self.push_bytes(name.as_bytes());
        self.insert(-2);
        self.raw_set(index);
    }

    /// Pushes the value under a name.
    pub(crate) fn get_name(self, index: c_int, name: &str) {
        let index = if index < 0 { index - 1 } else { index };
        self.push_bytes(name.as_bytes());
        self.raw_get(index);
    }

    /// Pops a key; pushes the next one and its value, unless there is none.
    pub(crate) fn next(self, index: c_int) -> bool {
        // SAFETY: see above; the callers have seen that it is a table, and the key is from it.
        unsafe { ffi::lua_next(self.0, index) != 0 }
    }

    /// Pushes the metatable of a value, if it has one.
    pub(crate) fn metatable(self, index: c_int) -> bool {
        // SAFETY: see above.
        unsafe { ffi::lua_getmetatable(self.0, index) != 0 }
    }

    /// Pops a table, and makes it the metatable.
    pub(crate) fn set_metatable(self, index: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_setmetatable(self.0, index) };
    }

    pub(crate) fn call(self, args: c_int, results: c_int) {
        // SAFETY: see above.
        unsafe { ffi::lua_call(self.0, args, results) }
    }

    /// Calls in protected mode; `handler` is the index of the error handler, or 0.
    pub(crate) fn protected_call(self, args: c_int, results: c_int, handler: c_int) -> c_int {
        // SAFETY: see above.
        unsafe { ffi::lua_pcall(self.0, args, results, handler) }
    }

    /// Returns the C function at an index, if it is one.
    pub(crate) fn to_c_function(self, index: c_int) -> Option<mlua::lua_CFunction> {
        // SAFETY: see above.
        unsafe { ffi::lua_tocfunction(self.0, index) }
    }

    /// Runs a C function, an upvalue, in this frame.
    pub(crate) fn run_upvalue(self, n: c_int) -> c_int {
        match self.to_c_function(ffi::lua_upvalueindex(n)) {
            // SAFETY: a C function of Lua's own libraries that uses no upvalues, in a frame with
            // the arguments that it is called with.
            Some(function) => unsafe { function(self.0) },
            None => self.error(format_args!("function is gone")),
        }
    }

    /// Pushes an upvalue of the function at an index.
    pub(crate) fn push_upvalue(self, index: c_int, n: c_int) {
        // SAFETY: see above.
        if unsafe { ffi::lua_getupvalue(self.0, index, n) }.is_null() {
            self.push_nil();
        }
    }

    /// Raises an error with the position of the caller before the text.
    pub(crate) fn error(self, text: fmt::Arguments<'_>) -> ! {
        // SAFETY: see above.
        unsafe { ffi::luaL_where(self.0, 1) };
        self.push_text(text);
        // SAFETY: see above; two strings are on the stack.
        unsafe { ffi::lua_concat(self.0, 2) };
        self.raise()
    }

    /// Raises an error with the text alone.
    pub(crate) fn plain_error(self, text: &str) -> ! {
        self.push_text(format_args!("{text}"));
        self.raise()
    }

    /// Raises "bad argument #… to … (…)".
    pub(crate) fn arg_error(self, arg: c_int, text: fmt::Arguments<'_>) -> ! {
        self.push_text(text);
        let text: *const c_char = self.to_bytes(-1).as_ptr().cast();
        // SAFETY: see above; strings of Lua end with NUL.
        unsafe { ffi::luaL_argerror(self.0, arg, text) };
        self.raise()
    }

    /// Like [`arg_error`](Self::arg_error), with a text that has one `%c`, for any byte.
    pub(crate) fn arg_error_of_byte(self, arg: c_int, format: &CStr, byte: u8) -> ! {
        // SAFETY: see above; the caller's format takes one `int`.
        unsafe {
            let text = ffi::lua_pushfstring(self.0, format.as_ptr(), c_int::from(byte));
            ffi::luaL_argerror(self.0, arg, text);
        }
        self.raise()
    }

    /// Raises "bad argument #… to … (`expected` expected, got …)".
    pub(crate) fn type_error(self, arg: c_int, expected: &CStr) -> ! {
        // SAFETY: see above.
        unsafe { ffi::luaL_typerror(self.0, arg, expected.as_ptr()) };
        self.raise()
    }

    /// Raises the value on top of the stack.
    pub(crate) fn raise(self) -> ! {
        // SAFETY: see above.
        unsafe { ffi::lua_error(self.0) }
    }

    /// Pushes a text. Lua finds room for it even when a script has used up its stack.
    fn push_text(self, arguments: fmt::Arguments<'_>) {
        let mut text = Text { bytes: [0; MAX_TEXT + 1], len: 0 };
        // A `Text` accepts everything.
        let _ = text.write_fmt(arguments);
        // SAFETY: see above; the text ends with NUL, and Lua copies it.
        unsafe {
            ffi::lua_pushfstring(self.0, c"%s".as_ptr(), text.bytes.as_ptr().cast::<c_char>())
        };
    }
}
