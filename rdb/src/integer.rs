//! Strings that are integers: every compact encoding stores those in binary.

/// Parses `text`, if it is exactly the way its integer is printed: no plus sign, no leading zero,
/// no `-0`.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => (),
        _ => return None,
    }
    digits.iter().try_fold(0i64, |value, &byte| {
        let digit = i64::from(byte.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        let value = value.checked_mul(10)?;
        if negative { value.checked_sub(digit) } else { value.checked_add(digit) }
    })
}

/// Decodes a two's complement little-endian integer of up to eight bytes.
pub(crate) fn from_le(bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    let len = bytes.len().min(8);
    wide[..len].copy_from_slice(&bytes[..len]);
    let unused = 64 - 8 * len.max(1) as u32;
    i64::from_le_bytes(wide) << unused >> unused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_decimals_are_integers() {
        for value in [0, 1, -1, 10, i64::MAX, i64::MIN, -100, 9_999_999_999] {
            assert_eq!(parse(value.to_string().as_bytes()), Some(value));
        }
        for text in
            ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "9223372036854775808", "1.0"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse(b"-9223372036854775809"), None);
    }

    #[test]
    fn narrow_integers_keep_their_sign() {
        assert_eq!(from_le(&[0xff]), -1);
        assert_eq!(from_le(&[0x00, 0x80, 0xff]), -32768);
        assert_eq!(from_le(&[0xff, 0x7f]), 32767);
        assert_eq!(from_le(&i64::MIN.to_le_bytes()), i64::MIN);
    }
}
