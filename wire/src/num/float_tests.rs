use proptest::prelude::*;

use super::*;

#[test]
fn formatted() {
    let cases = [
        (0.0, "0"),
        (-0.0, "-0"),
        (1.0, "1"),
        (-3.0, "-3"),
        (3.15, "3.15"),
        (0.1, "0.1"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e17, "100000000000000000"),
        (4611686018427387904.0, "4611686018427387904"),
        (4611686018427388928.0, "4611686018427389000"),
        (5e18, "5e+18"),
        (1e20, "1e+20"),
        (1.5e300, "1.5e+300"),
        (-1.7976931348623157e308, "-1.7976931348623157e+308"),
        (0.001, "0.001"),
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (1.5e-7, "1.5e-7"),
        (1.2345e-5, "1.2345e-5"),
        (5e-324, "5e-324"),
        (1.25e-10, "1.25e-10"),
        (123456.789, "123456.789"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ];
    for (value, text) in cases {
        assert_eq!(format_f64(value).to_string(), text);
    }
    assert_eq!(format!("{:?}", format_f64(0.5)), "\"0.5\"");
}

#[test]
fn accepted() {
    let cases = [
        ("0", 0.0),
        ("-0", -0.0),
        ("+1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1E+3", 1000.0),
        ("0e5", 0.0),
        ("0x1p4", 16.0),
        ("-0X.8", -0.5),
        ("0x10", 16.0),
        ("inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
        ("+INF", f64::INFINITY),
        ("Infinity", f64::INFINITY),
        ("5e-324", 5e-324),
        ("1.7976931348623157e308", f64::MAX),
    ];
    for (text, value) in cases {
        assert_eq!(parse_f64(text.as_bytes()), Some(value), "{text}");
    }
}

#[test]
fn refused() {
    let cases = [
        "", " 1", "1 ", "nan", "-nan", "NaN", "nan(1)", ".", "+", "-", "e5", "1e", "1e+", "--1",
        "1.2.3", "1,5", "abc", "1x", "infin", "1e400", "-1e400", "1e-400", "0x", "0xg", "0x1p",
        "0x1p5000", "1\0", "1_000", "\u{661}",
    ];
    for text in cases {
        assert_eq!(parse_f64(text.as_bytes()), None, "{text}");
    }
    assert_eq!(parse_f64(b"\xff"), None);
}

proptest! {
    #[test]
    fn text_reads_back_as_the_same_number(value: f64) {
        let text = format_f64(value);
        prop_assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), Some(value.to_bits()));
    }

    #[test]
    fn any_bytes_are_fine(text: Vec<u8>) {
        let _ = parse_f64(&text);
    }
}

#[test]
fn seventeen_digits_are_as_c_prints_them() {
    for (value, text) in [
        (0.1, "0.10000000000000001"),
        (-2.5, "-2.5"),
        (0.0, "0"),
        (-0.0, "-0"),
        (100.0, "100"),
        (1e16, "10000000000000000"),
        (1e17, "1e+17"),
        (12345678901234567890.0, "1.2345678901234567e+19"),
        (0.0001, "0.0001"),
        (0.00001, "1.0000000000000001e-05"),
        (5e-324, "4.9406564584124654e-324"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(format_f64_in_full(value), text);
    }
}

#[test]
fn loose_reading_is_that_of_strtod() {
    for (text, value) in [
        (&b""[..], Some(0.0)),
        (b"  7", Some(7.0)),
        (b"1e400", Some(f64::INFINITY)),
        (b"-inf", Some(f64::NEG_INFINITY)),
        (b"0x10", Some(16.0)),
        (b"3\0x", Some(3.0)),
        (b" ", None),
        (b"7 ", None),
        (b"nan", None),
        (b"1x", None),
    ] {
        assert_eq!(parse_f64_loosely(text), value, "{text:?}");
    }
}
