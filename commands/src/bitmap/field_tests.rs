use super::*;
use proptest::prelude::*;

fn field(text: &str) -> FieldType {
    FieldType::parse(text.as_bytes()).unwrap()
}

#[test]
fn types_are_parsed() {
    assert_eq!(field("i64"), FieldType { signed: true, width: 64 });
    assert_eq!(field("u1"), FieldType { signed: false, width: 1 });
    for bad in ["", "i", "u0", "i65", "u64", "x8", "u-1", "u+1", "u08", "I8", "8", "u8 "] {
        assert_eq!(FieldType::parse(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn values_that_do_not_fit_overflow() {
    use Overflow::{Fail, Saturate, Wrap};
    for (kind, wanted, overflow, want) in [
        ("u8", 255, Fail, Some(255)),
        ("u8", 256, Wrap, Some(0)),
        ("u8", 256, Saturate, Some(255)),
        ("u8", 256, Fail, None),
        ("u8", -1, Wrap, Some(255)),
        ("u8", -1, Saturate, Some(0)),
        ("i8", 128, Wrap, Some(-128)),
        ("i8", -129, Wrap, Some(127)),
        ("i8", 128, Saturate, Some(127)),
        ("i8", -129, Saturate, Some(-128)),
        ("i64", i128::from(i64::MAX) + 1, Wrap, Some(i64::MIN)),
        ("i64", i128::from(i64::MIN) - 1, Saturate, Some(i64::MIN)),
        ("u63", i128::from(i64::MAX) + 1, Wrap, Some(0)),
        ("i1", 1, Wrap, Some(-1)),
    ] {
        assert_eq!(field(kind).fit(wanted, overflow), want, "{kind} {wanted} {overflow:?}");
    }
}

#[test]
fn numbers_to_be_set_may_be_far_off() {
    for (kind, value, want) in [
        ("u8", -1, 255),
        ("i8", -129, -128),
        ("i8", i64::MIN + 127, 127),
        ("i8", i64::MIN + 128, -128),
        ("i64", i64::MIN, i64::MIN),
        ("i63", i64::MIN, (1 << 62) - 1),
        ("i63", -(1 << 62) - 1, (1 << 62) - 1),
        ("i62", -(1 << 61) - 1, -(1 << 61)),
    ] {
        let kind_of = field(kind);
        let set = kind_of.fit(kind_of.widen(value), Overflow::Saturate);
        assert_eq!(set, Some(want), "{kind} {value}");
    }
}

proptest! {
    #[test]
    fn a_stored_number_reads_back(signed: bool, width in 1..=63u32, value: i64) {
        let kind = FieldType { signed, width };
        let (min, max) = kind.limits();
        let wanted = i128::from(value);
        let fits = (min..=max).contains(&wanted);
        prop_assert_eq!(kind.fit(wanted, Overflow::Fail), fits.then_some(value));
        for overflow in [Overflow::Wrap, Overflow::Saturate] {
            let stored = kind.fit(wanted, overflow).unwrap();
            prop_assert!((min..=max).contains(&i128::from(stored)));
            prop_assert_eq!(kind.decode(stored as u64 & low_bits(width)), stored);
        }
        let wrapped = kind.fit(wanted, Overflow::Wrap).unwrap();
        prop_assert_eq!((wanted - i128::from(wrapped)).rem_euclid(1 << width), 0);
    }
}
