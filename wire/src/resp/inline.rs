//! Inline commands: a line split into arguments, with the quoting of `redis-cli`.
//!
//! Arguments are separated by white space. `"…"` knows `\n \r \t \b \a \xHH` and `\` before any
//! other byte; `'…'` knows only `\'`. A closing quote must end its argument.

use super::parse::ArgRanges;

/// A quote that is not closed, or closed in the middle of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unbalanced quotes")]
pub struct UnbalancedQuotes;

/// Splits `line` into its arguments.
///
/// Also used for configuration lines, which have the same form.
pub fn split_args(line: &[u8]) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
    let mut bytes = Vec::new();
    let mut ranges = ArgRanges::new();
    split_into(line, &mut bytes, &mut ranges)?;
    Ok(ranges.iter().map(|&(start, end)| bytes[start as usize..end as usize].to_vec()).collect())
}

/// Appends the unescaped arguments of `line` to `bytes` and their ranges in it to `ranges`.
pub(super) fn split_into(
    line: &[u8],
    bytes: &mut Vec<u8>,
    ranges: &mut ArgRanges,
) -> Result<(), UnbalancedQuotes> {
    let mut rest = skip_space(line);
    while !rest.is_empty() {
        let start = bytes.len() as u32;
        rest = skip_space(split_one(rest, bytes)?);
        ranges.push((start, bytes.len() as u32));
    }
    Ok(())
}

/// Returns true for white space of C's `isspace` in the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn skip_space(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&byte| !is_space(byte)).unwrap_or(text.len());
    &text[start..]
}

/// Appends the argument at the front of `text` to `out` and returns the rest behind it.
fn split_one<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        text = match text {
            [] | [b' ' | b'\n' | b'\r' | b'\t', ..] => return Ok(text),
            [b'"', rest @ ..] => return after_quote(double_quoted(rest, out)?),
            [b'\'', rest @ ..] => return after_quote(single_quoted(rest, out)?),
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
        };
    }
}

/// Refuses anything but white space or the end right behind a closing quote.
fn after_quote(text: &[u8]) -> Result<&[u8], UnbalancedQuotes> {
    match text.first() {
        Some(&byte) if !is_space(byte) => Err(UnbalancedQuotes),
        _ => Ok(text),
    }
}

/// Appends the bytes of `text` up to its closing double quote and returns the rest behind the
/// quote.
fn double_quoted<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        let (byte, rest) = match text {
            [] => return Err(UnbalancedQuotes),
            [b'"', rest @ ..] => return Ok(rest),
            [b'\\', b'x', high, low, rest @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                (hex_value(*high) << 4 | hex_value(*low), rest)
            }
            [b'\\', escaped, rest @ ..] => (unescape(*escaped), rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        out.push(byte);
        text = rest;
    }
}

/// Appends the bytes of `text` up to its closing single quote and returns the rest behind the
/// quote.
fn single_quoted<'a>(mut text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        let (byte, rest) = match text {
            [] => return Err(UnbalancedQuotes),
            [b'\'', rest @ ..] => return Ok(rest),
            [b'\\', b'\'', rest @ ..] => (b'\'', rest),
            [byte, rest @ ..] => (*byte, rest),
        };
        out.push(byte);
        text = rest;
    }
}

/// Returns the byte that `\` and `escaped` stand for between double quotes.
fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// Returns the value of an ASCII hex digit.
fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
#[path = "inline_tests.rs"]
mod tests;
