//! `cmsgpack`: MessagePack.

use std::ffi::c_int;

use mlua::ffi;

use crate::raw::{State, entry};
use crate::vm::{Scratch, Vm, push_table};
use crate::work::{charge, charge_bytes};

/// Tables nested deeper are packed as nil.
const MAX_NESTING: u32 = 16;

const TOO_MANY: &str = "too many return values at once; use unpack_one or unpack_limit instead.";

/// Pushes the library.
pub(crate) fn push(state: State, vm: *const Vm) {
    push_table(
        state,
        vm,
        &[
            ("pack", entry!(pack)),
            ("unpack", entry!(unpack)),
            ("unpack_one", entry!(unpack_one)),
            ("unpack_limit", entry!(unpack_limit)),
        ],
    );
    for (name, text) in [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Redis Ltd."),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ] {
        state.push_bytes(text.as_bytes());
        state.set_name(-2, name);
    }
}

fn pack(state: State) -> c_int {
    let args = state.top();
    if args == 0 {
        state.arg_error(0, format_args!("MessagePack pack needs input."));
    }
    let packer = Packer { state, scratch: &state.vm().scratch };
    packer.scratch.clear();
    for arg in 1..=args {
        state.need_stack(1, "in function mp_check");
        state.push_value(arg);
        packer.value(0);
    }
    packer.scratch.push(state);
    1
}

#[derive(Clone, Copy)]
struct Packer<'a> {
    state: State,
    scratch: &'a Scratch,
}

impl Packer<'_> {
    fn append(self, bytes: &[u8]) {
        self.scratch.append(self.state, bytes);
    }

    /// Pops a value, and packs it.
    fn value(self, level: u32) {
        let state = self.state;
        match state.kind(-1) {
            ffi::LUA_TSTRING => self.string(state.to_bytes(-1)),
            ffi::LUA_TBOOLEAN => self.append(&[if state.to_boolean(-1) { 0xc3 } else { 0xc2 }]),
            ffi::LUA_TNUMBER => self.number(state.to_number(-1)),
            ffi::LUA_TTABLE if level < MAX_NESTING => match self.array_length() {
                Some(len) => self.array(len, level),
                None => self.map(level),
            },
            _ => self.append(&[0xc0]),
        }
        state.pop(1);
    }

    fn string(self, bytes: &[u8]) {
        match bytes.len() {
            len @ 0..32 => self.append(&[0xa0 | len as u8]),
            len @ 32..=0xff => self.append(&[0xd9, len as u8]),
            len => self.length(0xda, 0xdb, len),
        }
        self.append(bytes);
    }

    /// Writes a length in 16 bits behind one code, or in 32 bits behind another.
    fn length(self, short: u8, long: u8, len: usize) {
        if let Ok(len) = u16::try_from(len) {
            self.append(&[short]);
            self.append(&len.to_be_bytes());
        } else {
            self.append(&[long]);
            self.append(&(len as u32).to_be_bytes());
        }
    }

    fn number(self, number: f64) {
        let integer = number as i64;
        // 2^63 is no `i64`, though the conversion yields the nearest one.
        if number.is_finite() && integer as f64 == number && number < 9_223_372_036_854_775_808.0 {
            return self.integer(integer);
        }
        let narrow = number as f32;
        if f64::from(narrow) == number {
            self.append(&[0xca]);
            self.append(&narrow.to_be_bytes());
        } else {
            self.append(&[0xcb]);
            self.append(&number.to_be_bytes());
        }
    }

    fn integer(self, n: i64) {
        let bytes = n.to_be_bytes();
        let (code, len) = match n {
            -32..=127 => return self.append(&bytes[7..]),
            128..=0xff => (0xcc, 1),
            0x100..=0xffff => (0xcd, 2),
            0x1_0000..=0xffff_ffff => (0xce, 4),
            0x1_0000_0000.. => (0xcf, 8),
            -128..-32 => (0xd0, 1),
            -0x8000..-128 => (0xd1, 2),
            -0x8000_0000..-0x8000 => (0xd2, 4),
            ..-0x8000_0000 => (0xd3, 8),
        };
        self.append(&[code]);
        self.append(&bytes[8 - len..]);
    }

    /// Returns the number of elements, if the keys are 1 to that number. The table is on top.
    fn array_length(self) -> Option<usize> {
        let state = self.state;
        let top = state.top();
        state.need_stack(2, "in function table_is_an_array");
        let (mut count, mut max) = (0_i32, 0_i32);
        state.push_nil();
        while state.next(top) {
            state.pop(1);
            let key = state
                .to_number_if_number(-1)
                .filter(|key| *key > 0.0 && key.is_finite() && f64::from(*key as i32) == *key);
            let Some(key) = key else {
                state.set_top(top);
                return None;
            };
            max = max.max(key as i32);
            count += 1;
            charge(state, 1);
        }
        (max == count).then(|| state.raw_len(top))
    }

    fn array(self, len: usize, level: u32) {
        match len {
            0..16 => self.append(&[0x90 | len as u8]),
            _ => self.length(0xdc, 0xdd, len),
        }
        self.state.need_stack(1, "in function mp_encode_lua_table_as_array");
        for n in 1..=len {
            self.state.raw_get_at(-1, n as c_int);
            self.value(level + 1);
        }
    }

    fn map(self, level: u32) {
        let state = self.state;
        let table = state.top();
        state.need_stack(3, "in function mp_encode_lua_table_as_map");
        let mut len = 0;
        state.push_nil();
        while state.next(table) {
            state.pop(1);
            len += 1;
            charge(state, 1);
        }
        match len {
            0..16 => self.append(&[0x80 | len as u8]),
            _ => self.length(0xde, 0xdf, len),
        }
        state.push_nil();
        while state.next(table) {
            state.push_value(-2);
            self.value(level + 1);
            self.value(level + 1);
        }
    }
}

/// The reason why input cannot be unpacked.
enum Broken {
    Short,
    Format,
}

#[derive(Clone, Copy)]
struct Unpacker<'a> {
    state: State,
    rest: &'a [u8],
}

impl<'a> Unpacker<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Broken::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Broken::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn length16(&mut self) -> Result<usize, Broken> {
        Ok(usize::from(u16::from_be_bytes(self.number()?)))
    }

    fn length32(&mut self) -> Result<usize, Broken> {
        Ok(u32::from_be_bytes(self.number()?) as usize)
    }

    /// Pushes the next value.
    fn value(&mut self) -> Result<(), Broken> {
        let [code] = self.number()?;
        let state = self.state;
        charge(state, 1);
        state.need_stack(1, TOO_MANY);
        let number = match code {
            0xcc => f64::from(u8::from_be_bytes(self.number()?)),
            0xcd => f64::from(u16::from_be_bytes(self.number()?)),
            0xce => f64::from(u32::from_be_bytes(self.number()?)),
            0xd0 => f64::from(i8::from_be_bytes(self.number()?)),
            0xd1 => f64::from(i16::from_be_bytes(self.number()?)),
            0xd2 => f64::from(i32::from_be_bytes(self.number()?)),
            // Unsigned integers are read as Lua's integers, too, which are signed.
            0xcf | 0xd3 => i64::from_be_bytes(self.number()?) as f64,
            0xca => f64::from(f32::from_be_bytes(self.number()?)),
            0xcb => f64::from_be_bytes(self.number()?),
            0x00..=0x7f | 0xe0..=0xff => f64::from(code.cast_signed()),
            _ => return self.other(code),
        };
        state.push_number(number);
        Ok(())
    }

    fn other(&mut self, code: u8) -> Result<(), Broken> {
        let state = self.state;
        match code {
            0xc0 => state.push_nil(),
            0xc2 | 0xc3 => state.push_boolean(code == 0xc3),
            0xd9 | 0xda | 0xdb | 0xa0..=0xbf => {
                let len = match code {
                    0xd9 => usize::from(u8::from_be_bytes(self.number()?)),
                    0xda => self.length16()?,
                    0xdb => self.length32()?,
                    _ => usize::from(code & 0x1f),
                };
                let bytes = self.take(len)?;
                charge_bytes(state, bytes.len());
                state.push_bytes(bytes);
            }
            0xdc => self.length16().and_then(|len| self.array(len))?,
            0xdd => self.length32().and_then(|len| self.array(len))?,
            0x90..=0x9f => self.array(usize::from(code & 0xf))?,
            0xde => self.length16().and_then(|len| self.map(len))?,
            0xdf => self.length32().and_then(|len| self.map(len))?,
            0x80..=0x8f => self.map(usize::from(code & 0xf))?,
            _ => return Err(Broken::Format),
        }
        Ok(())
    }

    /// Pushes a table, with room for a value.
    fn table(&self, function: &str) {
        self.state.new_table();
        let room = if self.state.vm().is_deep() { c_int::MAX } else { 1 };
        self.state.need_stack(room, function);
    }

    /// Reads an array; with a false length, the input ends before the array does.
    fn array(&mut self, len: usize) -> Result<(), Broken> {
        self.table("in function mp_decode_to_lua_array");
        for n in 1..=len {
            self.state.push_number(n as f64);
            self.value()?;
            self.state.raw_set(-3);
        }
        Ok(())
    }

    fn map(&mut self, len: usize) -> Result<(), Broken> {
        self.table("in function mp_decode_to_lua_hash");
        for _ in 0..len {
            self.value()?;
            self.value()?;
            self.state.raw_set(-3);
        }
        Ok(())
    }
}

fn unpack_values(state: State, limit: i64, offset: i64) -> c_int {
    let data = state.check_bytes(1);
    let all = limit == 0 && offset == 0;
    if offset < 0 || limit < 0 {
        state.error(format_args!(
            "Invalid request to unpack with offset of {} and limit of {}.",
            offset as c_int,
            data.len() as c_int
        ));
    }
    let Some(rest) = data.get(offset as usize..) else {
        state.error(format_args!(
            "Start offset {} greater than input length {}.",
            offset as c_int,
            data.len() as c_int
        ));
    };
    let limit = if all { i64::from(c_int::MAX) } else { limit };
    let mut unpacker = Unpacker { state, rest };
    let mut count: c_int = 0;
    while !unpacker.rest.is_empty() && i64::from(count) < limit {
        match unpacker.value() {
            Ok(()) => count += 1,
            Err(Broken::Short) => state.error(format_args!("Missing bytes in input.")),
            Err(Broken::Format) => state.error(format_args!("Bad data format in input.")),
        }
    }
    if all {
        return count;
    }
    state.need_stack(1, "in function mp_unpack_full");
    let next = data.len() - unpacker.rest.len();
    state.push_number(if unpacker.rest.is_empty() { -1.0 } else { next as f64 });
    state.insert(2);
    count + 1
}

fn unpack(state: State) -> c_int {
    unpack_values(state, 0, 0)
}

fn unpack_one(state: State) -> c_int {
    let offset = state.opt_integer(2, 0);
    state.set_top(state.top().min(1));
    unpack_values(state, 1, offset)
}

fn unpack_limit(state: State) -> c_int {
    let limit = state.check_integer(2);
    let offset = state.opt_integer(3, 0);
    state.set_top(1);
    unpack_values(state, limit, offset)
}
