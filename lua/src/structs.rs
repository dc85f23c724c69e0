//! `struct`: values as bytes, with sizes, order and alignment given by a format.

use std::ffi::c_int;

use crate::raw::{State, entry};
use crate::vm::{Vm, push_table};
use crate::work::charge;

/// Maximum size of an integer in bytes.
const MAX_INTEGER: usize = 32;
/// Alignment of `!` without a number.
const NATIVE_ALIGN: i32 = 8;
const PADDING: [u8; MAX_INTEGER] = [0; MAX_INTEGER];

/// Pushes the library.
pub(crate) fn push(state: State, vm: *const Vm) {
    push_table(
        state,
        vm,
        &[("pack", entry!(pack)), ("unpack", entry!(unpack)), ("size", entry!(size))],
    );
}

/// A format that is being read. It ends at its first NUL.
#[derive(Clone, Copy)]
struct Format<'a> {
    state: State,
    rest: &'a [u8],
    little: bool,
    align: usize,
}

impl<'a> Format<'a> {
    fn new(state: State, text: &'a [u8]) -> Self {
        let end = memchr::memchr(0, text).unwrap_or(text.len());
        Self { state, rest: &text[..end], little: cfg!(target_endian = "little"), align: 1 }
    }

    /// Returns the next option and its size.
    fn next(&mut self) -> Option<(u8, usize)> {
        let (&option, rest) = self.rest.split_first()?;
        self.rest = rest;
        charge(self.state, 1);
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(1) as usize,
            b'i' | b'I' => {
                let size = self.number(4);
                if size as usize > MAX_INTEGER {
                    self.state.error(format_args!(
                        "integral size {size} is larger than limit of {MAX_INTEGER}"
                    ));
                }
                size as usize
            }
            _ => 0,
        };
        Some((option, size))
    }

    fn number(&mut self, default: i32) -> i32 {
        if !self.rest.first().is_some_and(u8::is_ascii_digit) {
            return default;
        }
        let mut number: i32 = 0;
        while let Some((digit, rest)) =
            self.rest.split_first().filter(|(byte, _)| byte.is_ascii_digit())
        {
            let digit = i32::from(digit - b'0');
            number = match number.checked_mul(10).and_then(|number| number.checked_add(digit)) {
                Some(number) => number,
                None => self.state.error(format_args!("integral size overflow")),
            };
            self.rest = rest;
        }
        number
    }

    /// Returns the padding before a value of this size at this offset.
    fn padding(&self, at: usize, option: u8, size: usize) -> usize {
        if size == 0 || option == b'c' {
            return 0;
        }
        let size = size.min(self.align);
        size.wrapping_sub(at & (size - 1)) & (size - 1)
    }

    /// Applies an option that stands for no value.
    fn control(&mut self, option: u8) {
        match option {
            b' ' => {}
            b'>' => self.little = false,
            b'<' => self.little = true,
            b'!' => {
                let align = self.number(NATIVE_ALIGN);
                if align <= 0 || !align.unsigned_abs().is_power_of_two() {
                    self.state.error(format_args!("alignment {align} is not a power of 2"));
                }
                self.align = align as usize;
            }
            _ => self.state.arg_error_of_byte(1, c"invalid format option '%c'", option),
        }
    }
}

fn pack(state: State) -> c_int {
    let mut format = Format::new(state, state.check_bytes(1));
    // The error text calls the first missing argument nil, not no value.
    state.push_nil();
    let scratch = &state.vm().scratch;
    scratch.clear();
    let mut arg = 2;
    let mut total: usize = 0;
    while let Some((option, mut size)) = format.next() {
        let padding = format.padding(total, option, size);
        scratch.append(state, &PADDING[..padding]);
        total = total.wrapping_add(padding);
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let bytes = integer_bytes(state.check_number(arg), size, format.little);
                scratch.append(state, &bytes[..size]);
                arg += 1;
            }
            b'x' => scratch.append(state, &[0]),
            b'f' => {
                let value = state.check_number(arg) as f32;
                let bytes = if format.little { value.to_le_bytes() } else { value.to_be_bytes() };
                scratch.append(state, &bytes);
                arg += 1;
            }
            b'd' => {
                let value = state.check_number(arg);
                let bytes = if format.little { value.to_le_bytes() } else { value.to_be_bytes() };
                scratch.append(state, &bytes);
                arg += 1;
            }
            b'c' | b's' => {
                let text = state.check_bytes(arg);
                arg += 1;
                if size == 0 {
                    size = text.len();
                }
                if text.len() < size {
                    state.arg_error(arg, format_args!("string too short"));
                }
                scratch.append(state, &text[..size]);
                if option == b's' {
                    scratch.append(state, &[0]);
                    size += 1;
                }
            }
            _ => format.control(option),
        }
        total = total.wrapping_add(size);
    }
    scratch.push(state);
    1
}

/// Returns the lowest `size` bytes of an integer; those above 8 are zeros.
fn integer_bytes(number: f64, size: usize, little: bool) -> [u8; MAX_INTEGER] {
    // Values out of range are converted like on x86-64.
    let value = if number < 0.0 {
        (number as i64).cast_unsigned()
    } else if number.is_nan() {
        1 << 63
    } else if number >= 18_446_744_073_709_551_616.0 {
        0
    } else {
        number as u64
    };
    let mut bytes = [0; MAX_INTEGER];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    if !little {
        bytes[..size].reverse();
    }
    bytes
}

fn integer(bytes: &[u8], little: bool, signed: bool) -> f64 {
    let add = |so_far: u64, byte: &u8| (so_far << 8) | u64::from(*byte);
    let value = if little { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) };
    if !signed {
        return value as f64;
    }
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32).wrapping_mul(8).wrapping_sub(1));
    let value = if value & mask == 0 { value } else { value | mask };
    value.cast_signed() as f64
}

fn unpack(state: State) -> c_int {
    let mut format = Format::new(state, state.check_bytes(1));
    let data = state.check_bytes(2);
    let position = state.opt_integer(3, 1).cast_unsigned() as usize;
    if position == 0 {
        state.arg_error(3, format_args!("offset must be 1 or greater"));
    }
    let mut at = position - 1;
    let mut results = 0;
    while let Some((option, mut size)) = format.next() {
        at = at.wrapping_add(format.padding(at, option, size));
        let mut bytes = piece(state, data, at, size);
        state.need_stack(2, "too many results");
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                state.push_number(integer(bytes, format.little, option.is_ascii_lowercase()));
                results += 1;
            }
            b'x' => {}
            b'f' | b'd' => {
                state.push_number(float(bytes, format.little));
                results += 1;
            }
            b'c' => {
                if size == 0 {
                    if results == 0 || !state.is_number(-1) {
                        state.error(format_args!("format 'c0' needs a previous size"));
                    }
                    let number = state.to_number(-1);
                    size = if number < 0.0 { usize::MAX } else { number as usize };
                    state.pop(1);
                    results -= 1;
                    bytes = piece(state, data, at, size);
                }
                state.push_bytes(bytes);
                results += 1;
            }
            b's' => {
                let rest = data.get(at..).unwrap_or_default();
                let Some(end) = memchr::memchr(0, rest) else {
                    state.error(format_args!("unfinished string in data"));
                };
                size = end + 1;
                state.push_bytes(&rest[..end]);
                results += 1;
            }
            _ => format.control(option),
        }
        at = at.wrapping_add(size);
    }
    state.push_number(at.wrapping_add(1) as f64);
    results + 1
}

/// Returns the `size` bytes at an offset, or raises an error if there are fewer.
fn piece(state: State, data: &[u8], at: usize, size: usize) -> &[u8] {
    match at.checked_add(size).and_then(|end| data.get(at..end)) {
        Some(bytes) => bytes,
        None => state.arg_error(2, format_args!("data string too short")),
    }
}

fn float(bytes: &[u8], little: bool) -> f64 {
    let mut ordered = [0; 8];
    let ordered = &mut ordered[..bytes.len()];
    ordered.copy_from_slice(bytes);
    if little {
        ordered.reverse();
    }
    match *ordered {
        [a, b, c, d] => f64::from(f32::from_be_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => f64::from_be_bytes([a, b, c, d, e, f, g, h]),
        _ => 0.0,
    }
}

fn size(state: State) -> c_int {
    let mut format = Format::new(state, state.check_bytes(1));
    let mut total: usize = 0;
    while let Some((option, size)) = format.next() {
        total = total.wrapping_add(format.padding(total, option, size));
        if option == b's' {
            state.arg_error(1, format_args!("option 's' has no fixed size"));
        } else if option == b'c' && size == 0 {
            state.arg_error(1, format_args!("option 'c0' has no fixed size"));
        }
        if !option.is_ascii_alphanumeric() {
            format.control(option);
        }
        total = total.wrapping_add(size);
    }
    state.push_number(total as f64);
    1
}
