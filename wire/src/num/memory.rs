//! Memory sizes in configuration values.

/// Parses bytes: digits and a unit, in any case. `k`, `m` and `g` are powers of 1000; `kb`, `mb`
/// and `gb` powers of 1024; `b` or no unit means bytes.
///
/// `None` if it has another form, or exceeds `u64`.
pub fn parse_memory(text: &str) -> Option<u64> {
    let digits_end = text.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        let cases = [
            ("0", 0),
            ("123", 123),
            ("007", 7),
            ("1b", 1),
            ("1k", 1000),
            ("1kb", 1024),
            ("2KB", 2048),
            ("1m", 1_000_000),
            ("1Mb", 1 << 20),
            ("1g", 1_000_000_000),
            ("1gb", 1 << 30),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_memory(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "kb",
            "-1",
            "+1",
            "1 kb",
            "1kbb",
            "1tb",
            "1.5gb",
            "18446744073709551616",
            "99999999999gb",
        ] {
            assert_eq!(parse_memory(text), None, "{text}");
        }
    }
}
