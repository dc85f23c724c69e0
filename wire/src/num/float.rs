//! Parsing and formatting of doubles.

use super::grisu;
use super::longdouble::parse_hex_f64;

/// Text of a double: at most 25 bytes.
#[derive(Clone, Copy)]
pub struct FloatText {
    bytes: [u8; Self::CAPACITY],
    len: u8,
}

impl FloatText {
    const CAPACITY: usize = 32;

    const fn new() -> Self {
        Self { bytes: [0; Self::CAPACITY], len: 0 }
    }

    /// Returns the text, which is ASCII.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        let start = usize::from(self.len);
        self.bytes[start..start + text.len()].copy_from_slice(text);
        self.len += text.len() as u8;
    }

    fn push_zeros(&mut self, count: usize) {
        self.push(&b"00000000000000000000"[..count]);
    }
}

impl std::fmt::Display for FloatText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl std::fmt::Debug for FloatText {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Parses a double like C's `strtod`: decimal or hexadecimal, with an exponent or not, or infinity.
/// Spaces, NaN, overflow, and underflow to zero are refused.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let unsigned = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    match unsigned {
        [] => return None,
        [b'0', b'x' | b'X', ..] => return parse_hex_f64(text),
        _ => {}
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let overflowed = value.is_infinite() && !unsigned[0].is_ascii_alphabetic();
    let vanished = value == 0.0
        && unsigned
            .iter()
            .take_while(|byte| !matches!(byte, b'e' | b'E'))
            .any(|byte| matches!(byte, b'1'..=b'9'));
    (!value.is_nan() && !overflowed && !vanished).then_some(value)
}

/// Parses all of `text`, up to its first zero byte, exactly like C's `strtod`: spaces may lead, an
/// overflow is infinite, an empty text is 0. NaN is refused.
pub fn parse_f64_loosely(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().filter(|text| !text.is_empty());
    let Some(text) = text else { return Some(0.0) };
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let number = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    let unsigned = number.strip_prefix(b"-").or_else(|| number.strip_prefix(b"+"));
    if let [b'0', b'x' | b'X', ..] = unsigned.unwrap_or(number) {
        return parse_hex_f64(number);
    }
    let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    (!value.is_nan()).then_some(value)
}

/// Formats a double with 17 significant digits, like C's `%.17g`.
pub fn format_f64_in_full(value: f64) -> String {
    const DIGITS: usize = 17;
    if !value.is_finite() {
        return format_f64(value).to_string();
    }
    let scientific = format!("{value:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let is_plain = (-4..DIGITS as i32).contains(&exponent);
    let plain = format!("{value:.*}", (DIGITS as i32 - 1 - exponent).max(0) as usize);
    let digits = if is_plain { &plain } else { mantissa };
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    if is_plain {
        return digits.to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Formats a double so that it reads back as the same number (see `grisu`): whole numbers without a
/// point up to 2^62, others in scientific notation where plain notation would be long.
pub fn format_f64(value: f64) -> FloatText {
    let mut text = FloatText::new();
    // Exact in `f64`, and the largest magnitude printed as an integer.
    const MAX_WHOLE: f64 = (1u64 << 62) as f64;
    if value.is_nan() {
        text.push(b"nan");
    } else if value.is_infinite() {
        text.push(if value < 0.0 { b"-inf" } else { b"inf" });
    } else if value == 0.0 {
        text.push(if value.is_sign_negative() { b"-0" } else { b"0" });
    } else if value.abs() <= MAX_WHOLE && value.trunc() == value {
        text.push(itoa::Buffer::new().format(value as i64).as_bytes());
    } else {
        if value < 0.0 {
            text.push(b"-");
        }
        let decimal = grisu::digits(value.abs());
        push_decimal(&mut text, decimal.digits(), decimal.exponent);
    }
    text
}

/// Writes `digits` × 10^`exponent` in the shorter sensible notation.
fn push_decimal(text: &mut FloatText, digits: &[u8], exponent: i32) {
    let count = digits.len() as i32;
    // The power of ten of the first digit.
    let first = exponent + count - 1;
    if exponent >= 0 && first < count + 7 {
        text.push(digits);
        text.push_zeros(exponent as usize);
    } else if exponent < 0 && (exponent > -7 || first.abs() < 4) {
        if first < 0 {
            text.push(b"0.");
            text.push_zeros((-first - 1) as usize);
            text.push(digits);
        } else {
            let (whole, fraction) = digits.split_at(first as usize + 1);
            text.push(whole);
            text.push(b".");
            text.push(fraction);
        }
    } else {
        let (leading, fraction) = digits.split_at(1);
        text.push(leading);
        if !fraction.is_empty() {
            text.push(b".");
            text.push(fraction);
        }
        text.push(if first < 0 { b"e-" } else { b"e+" });
        text.push(itoa::Buffer::new().format(first.unsigned_abs()).as_bytes());
    }
}

#[cfg(test)]
#[path = "float_tests.rs"]
mod tests;
