//! Parsing and checking of scores.

use crate::RestoreError;

/// Parses a score; NaN and texts that are no numbers are refused.
pub(crate) fn parse(text: &[u8]) -> Result<f64, RestoreError> {
    let score: f64 = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(RestoreError::BadFormat)?;
    not_nan(score)
}

/// Returns `score`, unless it is NaN.
pub(crate) fn not_nan(score: f64) -> Result<f64, RestoreError> {
    if score.is_nan() { Err(RestoreError::BadFormat) } else { Ok(score) }
}

/// Converts `score` to an integer, if it is one of at most half the range of 64 bits. Negative zero
/// gives zero.
pub(crate) fn to_integer(score: f64) -> Option<i64> {
    const BOUND: f64 = (1u64 << 62) as f64;
    let integer = score as i64;
    (score.abs() <= BOUND && integer as f64 == score).then_some(integer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read() {
        for (score, text) in [
            (1.5, "1.5"),
            (-0.25, "-0.25"),
            (0.000001, "0.000001"),
            (1e-7, "1e-7"),
            (1.25e-9, "1.25e-9"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e21, "1e+21"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(score));
        }
    }

    #[test]
    fn integers_are_those_of_at_most_62_bits() {
        assert_eq!(to_integer(-0.0), Some(0));
        assert_eq!(to_integer(-3.0), Some(-3));
        assert_eq!(to_integer((1u64 << 62) as f64), Some(1 << 62));
        assert_eq!(to_integer((1u64 << 63) as f64), None);
        assert_eq!(to_integer(0.5), None);
        assert_eq!(to_integer(f64::INFINITY), None);
    }

    #[test]
    fn no_number_is_no_score() {
        for text in ["", "nan", "-nan", "abc", "1.5x", " 1"] {
            assert_eq!(parse(text.as_bytes()), Err(RestoreError::BadFormat), "{text}");
        }
    }
}
