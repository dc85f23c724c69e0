//! C's `long double`, for INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Their results depend on the platform's extended precision, which Rust does not have; the
//! arithmetic is in `longdouble.c`.

use std::ffi::{c_char, c_int, c_longlong};
use std::fmt;

/// Maximum length of a text that is read or written, in bytes.
const MAX_TEXT: usize = 5 * 1024;

/// A C `long double`.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub struct LongDouble([u8; 16]);

unsafe extern "C" {
    fn flagstone_ld_parse(text: *const c_char, len: usize, out: *mut LongDouble) -> c_int;
    fn flagstone_double_parse(text: *const c_char, len: usize, out: *mut f64) -> c_int;
    fn flagstone_ld_from_integer(value: c_longlong, out: *mut LongDouble);
    fn flagstone_ld_from_double(value: f64, out: *mut LongDouble);
    fn flagstone_ld_add(a: *const LongDouble, b: *const LongDouble, out: *mut LongDouble);
    fn flagstone_ld_is_finite(value: *const LongDouble) -> c_int;
    fn flagstone_ld_to_double(value: *const LongDouble) -> f64;
    fn flagstone_ld_format(value: *const LongDouble, buf: *mut c_char, size: usize) -> usize;
}

impl LongDouble {
    /// Zero: all bits clear, on every platform.
    pub const ZERO: Self = Self([0; 16]);

    /// Parses a number like C's `strtold`, including infinity. Spaces, NaN, text of 5 KiB or more,
    /// overflow, and underflow to zero are refused.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = Terminated::new(text)?;
        let mut value = Self::ZERO;
        // SAFETY: `text` is NUL-terminated behind its length; `value` has the size and alignment
        // of a long double (the C side asserts the size).
        let ok = unsafe { flagstone_ld_parse(text.as_ptr(), text.len, &mut value) };
        (ok != 0).then_some(value)
    }

    /// Returns the sum, if it is finite.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let mut sum = Self::ZERO;
        // SAFETY: all three are valid, aligned long doubles.
        unsafe { flagstone_ld_add(&self, &other, &mut sum) };
        sum.is_finite().then_some(sum)
    }

    /// Returns true if it is neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        // SAFETY: `self` is a valid, aligned long double.
        unsafe { flagstone_ld_is_finite(&self) != 0 }
    }

    /// Returns the nearest double.
    pub fn to_f64(self) -> f64 {
        // SAFETY: `self` is a valid, aligned long double.
        unsafe { flagstone_ld_to_double(&self) }
    }
}

impl From<i64> for LongDouble {
    fn from(value: i64) -> Self {
        let mut out = Self::ZERO;
        // SAFETY: `out` is a valid, aligned long double.
        unsafe { flagstone_ld_from_integer(value, &mut out) };
        out
    }
}

impl From<f64> for LongDouble {
    fn from(value: f64) -> Self {
        let mut out = Self::ZERO;
        // SAFETY: `out` is a valid, aligned long double.
        unsafe { flagstone_ld_from_double(value, &mut out) };
        out
    }
}

/// Plain decimal notation: up to 17 decimals, no trailing zeros, `-0` as `0`.
impl fmt::Display for LongDouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_finite() {
            let value = self.to_f64();
            return formatter.write_str(match value {
                _ if value.is_nan() => "nan",
                _ if value < 0.0 => "-inf",
                _ => "inf",
            });
        }
        let mut buf = [0u8; MAX_TEXT];
        // SAFETY: `self` is a valid, aligned long double, and `buf` has `buf.len()` bytes.
        let len = unsafe { flagstone_ld_format(self, buf.as_mut_ptr().cast(), buf.len()) };
        let text = std::str::from_utf8(&buf[..len]).map_err(|_| fmt::Error)?;
        let text = match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.'),
            false => text,
        };
        formatter.write_str(if text == "-0" { "0" } else { text })
    }
}

impl fmt::Debug for LongDouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "LongDouble({self})")
    }
}

/// Parses a hexadecimal double by the C library's rules; see [`super::parse_f64`].
pub(super) fn parse_hex_f64(text: &[u8]) -> Option<f64> {
    let text = Terminated::new(text)?;
    let mut value = 0.0;
    // SAFETY: `text` is NUL-terminated behind its length; `value` is a valid double.
    let ok = unsafe { flagstone_double_parse(text.as_ptr(), text.len, &mut value) };
    (ok != 0).then_some(value)
}

/// A copy of some text with a NUL behind it.
struct Terminated {
    bytes: [u8; MAX_TEXT],
    len: usize,
}

impl Terminated {
    /// Copies a text; `None` if it is empty or too long.
    fn new(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() >= MAX_TEXT {
            return None;
        }
        let mut bytes = [0; MAX_TEXT];
        bytes[..text.len()].copy_from_slice(text);
        Some(Self { bytes, len: text.len() })
    }

    fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }
}

#[cfg(test)]
#[path = "longdouble_tests.rs"]
mod tests;
