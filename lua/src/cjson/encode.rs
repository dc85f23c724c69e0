//! `cjson.encode`.

use std::ffi::c_int;

use mlua::ffi;

use super::settings;
use crate::json_settings::{JsonSettings, OFF, ON};
use crate::raw::State;
use crate::vm::Scratch;
use crate::work::charge;

/// Size of the buffer for a number of [`super::MAX_PRECISION`] digits.
const NUMBER_TEXT: usize = 32;

#[derive(Clone, Copy)]
struct Encoder<'a> {
    state: State,
    settings: &'a JsonSettings,
    scratch: &'a Scratch,
}

pub(super) fn encode(state: State) -> c_int {
    let settings = settings(state).get();
    if state.top() != 1 {
        state.arg_error(1, format_args!("expected 1 argument"));
    }
    let scratch = &state.vm().scratch;
    scratch.clear();
    Encoder { state, settings: &settings, scratch }.value(0);
    scratch.push(state);
    1
}

impl Encoder<'_> {
    fn append(self, bytes: &[u8]) {
        self.scratch.append(self.state, bytes);
    }

    fn refuse(self, index: c_int, reason: &str) -> ! {
        let kind = self.state.type_name(index);
        self.state.error(format_args!("Cannot serialise {kind}: {reason}"))
    }

    /// Writes the value on top of the stack.
    fn value(self, depth: c_int) {
        let state = self.state;
        match state.kind(-1) {
            ffi::LUA_TSTRING => self.string(state.to_bytes(-1)),
            ffi::LUA_TNUMBER => self.number(-1),
            ffi::LUA_TBOOLEAN if state.to_boolean(-1) => self.append(b"true"),
            ffi::LUA_TBOOLEAN => self.append(b"false"),
            ffi::LUA_TTABLE => {
                let depth = depth + 1;
                let shallow = depth <= self.settings.encode_max_depth && !state.vm().is_deep();
                if !shallow || !state.check_stack(8) {
                    state.error(format_args!("Cannot serialise, excessive nesting ({depth})"));
                }
                match self.array_length() {
                    Some(len) if len > 0 => self.array(len, depth),
                    _ => self.object(depth),
                }
            }
            ffi::LUA_TNIL => self.append(b"null"),
            ffi::LUA_TLIGHTUSERDATA if state.is_null(-1) => self.append(b"null"),
            _ => self.refuse(-1, "type not supported"),
        }
    }

    fn string(self, bytes: &[u8]) {
        self.append(b"\"");
        let mut plain = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let short: &[u8] = match byte {
                b'"' => b"\\\"",
                b'\\' => b"\\\\",
                b'/' => b"\\/",
                0x08 => b"\\b",
                b'\t' => b"\\t",
                b'\n' => b"\\n",
                0x0c => b"\\f",
                b'\r' => b"\\r",
                0..0x20 | 0x7f => b"",
                _ => continue,
            };
            self.append(&bytes[plain..at]);
            plain = at + 1;
            if short.is_empty() {
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                self.append(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
            } else {
                self.append(short);
            }
        }
        self.append(&bytes[plain..]);
        self.append(b"\"");
    }

    fn number(self, index: c_int) {
        let number = self.state.to_number(index);
        match self.settings.encode_invalid_numbers {
            OFF if !number.is_finite() => self.refuse(index, "must not be NaN or Inf"),
            ON if number.is_nan() => return self.append(b"nan"),
            OFF | ON => {}
            _ if !number.is_finite() => return self.append(b"null"),
            _ => {}
        }
        let mut text = [0_u8; NUMBER_TEXT];
        // SAFETY: the buffer has the size that is given; `%.*g` takes an int and a double.
        let len = unsafe {
            let (text, size) = (text.as_mut_ptr().cast(), text.len());
            libc::snprintf(text, size, c"%.*g".as_ptr(), self.settings.precision, number)
        };
        self.append(&text[..usize::try_from(len).unwrap_or(0).min(NUMBER_TEXT)]);
    }

    /// Returns the greatest key of the table on top, if all keys are whole numbers of 1 or more.
    fn array_length(self) -> Option<c_int> {
        let state = self.state;
        let table = state.top();
        let (mut max, mut items) = (0_i32, 0_i64);
        state.push_nil();
        while state.next(table) {
            let key =
                state.to_number_if_number(-2).filter(|key| key.floor() == *key && *key >= 1.0);
            let Some(key) = key else {
                state.pop(2);
                return None;
            };
            if key > f64::from(max) {
                // A key beyond `int` is no array index.
                max = if key > f64::from(c_int::MAX) { c_int::MIN } else { key as c_int };
            }
            items += 1;
            state.pop(1);
            charge(state, 1);
        }
        let ratio = i64::from(self.settings.sparse_ratio);
        if ratio > 0 && i64::from(max) > items * ratio && max > self.settings.sparse_safe {
            if self.settings.sparse_convert == OFF {
                self.refuse(-1, "excessively sparse array");
            }
            return None;
        }
        Some(max)
    }

    fn array(self, len: c_int, depth: c_int) {
        self.append(b"[");
        for n in 1..=len {
            if n > 1 {
                self.append(b",");
            }
            self.state.raw_get_at(-1, n);
            self.value(depth);
            self.state.pop(1);
        }
        self.append(b"]");
    }

    fn object(self, depth: c_int) {
        let state = self.state;
        let table = state.top();
        let mut first = true;
        self.append(b"{");
        state.push_nil();
        while state.next(table) {
            if !std::mem::take(&mut first) {
                self.append(b",");
            }
            match state.kind(-2) {
                ffi::LUA_TNUMBER => {
                    self.append(b"\"");
                    self.number(-2);
                    self.append(b"\":");
                }
                ffi::LUA_TSTRING => {
                    self.string(state.to_bytes(-2));
                    self.append(b":");
                }
                _ => self.refuse(-2, "table key must be a number or string"),
            }
            self.value(depth);
            state.pop(1);
        }
        self.append(b"}");
    }
}
