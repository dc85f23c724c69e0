//! Parsing of integers.

/// Digits of the longest number (`u64::MAX`).
const MAX_DIGITS: usize = 20;

/// Parses an integer in canonical form: an optional `-`, no `+`, no leading zeros, no spaces, in
/// the range of `i64`. So text that parses equals the way the number prints.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', b'0', ..] => None,
        [b'-', digits @ ..] => 0i64.checked_sub_unsigned(magnitude(digits)?),
        digits => i64::try_from(magnitude(digits)?).ok(),
    }
}

/// Parses an unsigned integer in canonical form (see [`parse_i64`]).
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    magnitude(text)
}

/// Returns the value of decimal digits without leading zeros.
#[inline]
fn magnitude(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > MAX_DIGITS || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    let mut value: u64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_integers_parse() {
        for value in [0, 1, -1, 9, 10, 123, -987, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1] {
            assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value), "{value}");
        }
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"0"), Some(0));
    }

    #[test]
    fn everything_else_is_refused() {
        let bad: &[&[u8]] = &[
            b"",
            b"-",
            b"+1",
            b" 1",
            b"1 ",
            b"01",
            b"-0",
            b"-01",
            b"00",
            b"1a",
            b"0x10",
            b"1.0",
            b"9223372036854775808",
            b"-9223372036854775809",
            b"99999999999999999999",
            b"100000000000000000000000",
            b"1\0",
            b"--1",
            b"\xb21",
        ];
        for text in bad {
            assert_eq!(parse_i64(text), None, "{}", text.escape_ascii());
        }
        for text in [&b"-1"[..], b"18446744073709551616", b"", b"+1", b"00"] {
            assert_eq!(parse_u64(text), None, "{}", text.escape_ascii());
        }
    }

    proptest::proptest! {
        #[test]
        fn text_that_parses_is_what_the_number_prints_as(text in "-?[0-9]{0,21}") {
            let parsed = parse_i64(text.as_bytes());
            let canonical = text.parse::<i64>().ok().filter(|value| value.to_string() == text);
            proptest::prop_assert_eq!(parsed, canonical);
        }
    }
}
