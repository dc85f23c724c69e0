use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// Returns the bits of bytes one by one.
fn naive(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().flat_map(|b| (0..8).map(move |i| b >> (7 - i) & 1 == 1)).collect()
}

/// Generates bytes that are mostly runs of zeros or ones.
fn runs() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0u8), 6 => Just(0xFF), 1 => any::<u8>()];
    vec((byte, 1..12usize), 1..8)
        .prop_map(|runs| runs.into_iter().flat_map(|(b, n)| std::iter::repeat_n(b, n)).collect())
}

fn range_in(len: usize, a: prop::sample::Index, b: prop::sample::Index) -> Range<u64> {
    let (a, b) = (a.index(len * 8 + 1) as u64, b.index(len * 8 + 1) as u64);
    a.min(b)..a.max(b)
}

#[test]
fn ones_are_counted() {
    assert_eq!(count_ones(b""), 0);
    assert_eq!(count_ones(&[0xFF; 8]), 64);
    assert_eq!(count_ones(&[0x81; 19]), 38);
    for (range, want) in [(0..0, 0), (0..8, 4), (0..4, 4), (4..12, 4), (3..5, 1), (5..16, 8)] {
        assert_eq!(count_ones_in(&[0xF0, 0xFF], range.clone()), want, "{range:?}");
    }
}

#[test]
fn bits_are_found() {
    let bytes = [0xFF, 0xF0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for (bit, range, want) in [
        (true, 0..96, Some(0)),
        (false, 0..96, Some(12)),
        (false, 0..12, None),
        (true, 12..96, Some(95)),
        (true, 12..95, None),
        (false, 95..96, None),
        (true, 5..5, None),
        (false, 13..96, Some(13)),
    ] {
        assert_eq!(find(&bytes, bit, range.clone()), want, "{bit} in {range:?}");
    }
}

#[test]
fn fields_are_read_and_written() {
    let bytes = [0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0, 0x55];
    for (shift, width, want) in [
        (0, 8, 0x12),
        (4, 8, 0x23),
        (7, 1, 0),
        (0, 64, 0x1234_5678_9ABC_DEF0),
        (4, 64, 0x2345_6789_ABCD_EF05),
        (3, 5, 0x12),
    ] {
        assert_eq!(read_field(bytes, shift, width), want, "{width} bits from {shift}");
    }
    assert_eq!(write_field([0; 9], 7, 5, 23), [0x01, 0x70, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(write_field([0; 9], 6, 2, u64::MAX), [0x03, 0, 0, 0, 0, 0, 0, 0, 0]);
}

proptest! {
    #[test]
    fn counting_agrees_with_the_model(
        bytes in runs(), a in any::<prop::sample::Index>(), b in any::<prop::sample::Index>(),
    ) {
        let range = range_in(bytes.len(), a, b);
        let model = naive(&bytes)[range.start as usize..range.end as usize]
            .iter().filter(|bit| **bit).count();
        prop_assert_eq!(count_ones_in(&bytes, range), model as u64);
    }

    #[test]
    fn finding_agrees_with_the_model(
        bytes in runs(),
        bit in any::<bool>(),
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
    ) {
        let range = range_in(bytes.len(), a, b);
        let all = naive(&bytes);
        let model = range.clone().find(|&at| all[at as usize] == bit);
        prop_assert_eq!(find(&bytes, bit, range), model);
    }

    #[test]
    fn fields_agree_with_the_model(
        bytes in any::<[u8; FIELD_BYTES]>(), shift in 0..8u32, width in 1..=64u32, value: u64,
    ) {
        let field = shift as usize..(shift + width) as usize;
        let number = |bits: &[bool]| bits.iter().fold(0, |n, bit| n << 1 | u64::from(*bit));
        let before = naive(&bytes);
        prop_assert_eq!(read_field(bytes, shift, width), number(&before[field.clone()]));
        let after = naive(&write_field(bytes, shift, width, value));
        prop_assert_eq!(number(&after[field.clone()]), value & low_bits(width));
        prop_assert_eq!(&after[..field.start], &before[..field.start]);
        prop_assert_eq!(&after[field.end..], &before[field.end..]);
    }
}
