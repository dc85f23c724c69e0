use super::*;

fn sum(a: &str, b: &str) -> Option<String> {
    let (a, b) = (LongDouble::parse(a.as_bytes())?, LongDouble::parse(b.as_bytes())?);
    Some(a.checked_add(b)?.to_string())
}

#[test]
fn sums_are_printed_for_humans() {
    let cases = [
        ("10.50", "0.1", "10.6"),
        ("5.0e3", "2.0e2", "5200"),
        ("0", "-0", "0"),
        ("-1", "1", "0"),
        ("3", "1.1", "4.1"),
        ("1", "0x1p-1", "1.5"),
        ("100", "0", "100"),
        ("1e17", "1", "100000000000000001"),
        ("-1.5", "-1.25", "-2.75"),
        ("1e-17", "0", "0.00000000000000001"),
        ("-1e-18", "0", "0"),
    ];
    for (a, b, expected) in cases {
        assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
    }
    // An integer with all its digits, beyond the precision of a double.
    #[cfg(target_arch = "x86_64")]
    assert_eq!(sum("9223372036854775807", "-1").as_deref(), Some("9223372036854775806"));
}

#[test]
fn sums_that_are_no_numbers() {
    assert_eq!(sum("inf", "1"), None);
    assert_eq!(sum("inf", "-inf"), None);
    #[cfg(target_arch = "x86_64")]
    assert_eq!(sum("1e4932", "1e4932"), None);
}

#[test]
fn accepted_and_refused_texts() {
    for text in ["1", "+1", "-.5", "5.", "1e5", "0x10", "inf", "-Infinity", "+inf", "1e300"] {
        assert!(LongDouble::parse(text.as_bytes()).is_some(), "{text}");
    }
    for text in
        ["", " 1", "1 ", "abc", "1x", "nan", "-nan", "1e", "0x", "1\0", "\0", "1e99999", "1e-99999"]
    {
        assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text}");
    }
    assert!(LongDouble::parse(&[b'1'; MAX_TEXT]).is_none());
    assert!(LongDouble::parse(&[b'1'; 4000]).is_some());
}

#[test]
fn the_largest_number_prints() {
    #[cfg(target_arch = "x86_64")]
    {
        let largest = LongDouble::parse(b"1.18973149535723176502e+4932").unwrap().to_string();
        assert_eq!(largest.len(), 4933);
    }
}

#[test]
fn other_kinds_of_numbers() {
    assert_eq!(LongDouble::from(i64::MIN).to_string(), i64::MIN.to_string());
    assert_eq!(LongDouble::from(0.5).to_string(), "0.5");
    assert_eq!(LongDouble::from(f64::NEG_INFINITY).to_string(), "-inf");
    assert_eq!(LongDouble::from(f64::INFINITY).to_string(), "inf");
    assert_eq!(LongDouble::from(f64::NAN).to_string(), "nan");
    assert_eq!(LongDouble::from(0.25).to_f64(), 0.25);
    assert_eq!(format!("{:?}", LongDouble::ZERO), "LongDouble(0)");
}
