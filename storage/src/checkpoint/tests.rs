//! Tests that need no data.

use super::*;

#[test]
fn moments_are_read() {
    for (text, moment) in [
        ("2026-11-22T04:03:12.123", AsOf::Time(1_795_320_192_123)),
        ("2026-11-22 04:03:12Z", AsOf::Time(1_795_320_192_000)),
        ("1795320192", AsOf::Time(1_795_320_192_000)),
        ("1795320192.1235", AsOf::Time(1_795_320_192_124)),
        ("lsn:17", AsOf::Lsn(17)),
    ] {
        assert_eq!(text.parse::<AsOf>().unwrap(), moment, "{text}");
    }
    for text in ["", "yesterday", "-5", "lsn:", "lsn:x", "2026-11-22", "nan", "inf"] {
        assert!(text.parse::<AsOf>().is_err(), "{text}");
    }
}

#[test]
fn ids_tell_the_time() {
    assert_eq!(take::format_id(1_795_320_192_123), "20261122-040312.123");
}

#[test]
fn descriptions_of_other_formats_are_refused() {
    let read = |text: &str| read_description::<Checkpoint>("it", text.as_bytes());
    let error = format!("{:#}", read(r#"{"format": 2}"#).unwrap_err());
    assert!(error.contains("format 2"), "{error}");
    let error = format!("{:#}", read(r#"{"format": 1}"#).unwrap_err());
    assert!(error.contains("damaged"), "{error}");
}
