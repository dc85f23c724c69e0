//! Counts, finds and moves bits in bytes. Bit 0 is the highest bit of the first byte; ranges are of
//! bits and exclude their end.

use std::ops::Range;

/// Bytes that hold any field of up to 64 bits, at whichever bit of a byte it begins.
pub(super) const FIELD_BYTES: usize = 9;

/// Returns the number of ones.
pub(super) fn count_ones(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let in_words: u64 = words.iter().map(|w| u64::from(u64::from_ne_bytes(*w).count_ones())).sum();
    let in_rest: u64 = rest.iter().map(|b| u64::from(b.count_ones())).sum();
    in_words + in_rest
}

/// Returns the number of ones in a range inside `bytes`.
pub(super) fn count_ones_in(bytes: &[u8], range: Range<u64>) -> u64 {
    if range.is_empty() {
        return 0;
    }
    let (first, last) = ((range.start / 8) as usize, ((range.end - 1) / 8) as usize);
    let before = bytes[first] & !from_bit(range.start);
    let behind = match range.end % 8 {
        0 => 0,
        _ => bytes[last] & from_bit(range.end),
    };
    count_ones(&bytes[first..=last]) - u64::from(before.count_ones() + behind.count_ones())
}

/// Returns the first bit of a range inside `bytes` that equals `bit`.
pub(super) fn find(bytes: &[u8], bit: bool, range: Range<u64>) -> Option<u64> {
    if range.is_empty() {
        return None;
    }
    // Makes the wanted bits ones.
    let flip = if bit { 0 } else { 0xFF };
    let first = (range.start / 8) as usize;
    let edge = (bytes[first] ^ flip) & from_bit(range.start);
    let (at, byte) = match edge {
        0 => {
            let next = first + 1;
            let at = next + bytes[next..].len() - skip(&bytes[next..], flip).len();
            (at, bytes.get(at)? ^ flip)
        }
        _ => (first, edge),
    };
    let found = at as u64 * 8 + u64::from(byte.leading_zeros());
    (found < range.end).then_some(found)
}

/// Returns the bytes behind the leading ones that equal `byte`.
fn skip(mut bytes: &[u8], byte: u8) -> &[u8] {
    let word = [byte; 8];
    while let Some((head, rest)) = bytes.split_first_chunk::<8>()
        && *head == word
    {
        bytes = rest;
    }
    while let Some((&head, rest)) = bytes.split_first()
        && head == byte
    {
        bytes = rest;
    }
    bytes
}

/// Returns a mask of a byte's bits from `bit` on.
fn from_bit(bit: u64) -> u8 {
    0xFF >> (bit % 8)
}

/// Returns the field of `width` (1 to 64) bits that begins `shift` (0 to 7) bits into the first
/// byte.
pub(super) fn read_field(bytes: [u8; FIELD_BYTES], shift: u32, width: u32) -> u64 {
    let field = window(bytes) >> (FIELD_BYTES as u32 * 8 - shift - width);
    field as u64 & low_bits(width)
}

/// Returns the bytes with the field set to the low `width` bits of `value`.
pub(super) fn write_field(
    bytes: [u8; FIELD_BYTES],
    shift: u32,
    width: u32,
    value: u64,
) -> [u8; FIELD_BYTES] {
    let up = FIELD_BYTES as u32 * 8 - shift - width;
    let mask = u128::from(low_bits(width)) << up;
    let value = (u128::from(value) << up) & mask;
    let whole = (window(bytes) & !mask | value).to_be_bytes();
    let mut out = [0; FIELD_BYTES];
    out.copy_from_slice(&whole[whole.len() - FIELD_BYTES..]);
    out
}

/// Returns the bytes as one big-endian number.
fn window(bytes: [u8; FIELD_BYTES]) -> u128 {
    bytes.iter().fold(0, |n, b| n << 8 | u128::from(*b))
}

/// Returns a mask of the lowest `width` (1 to 64) bits.
pub(super) fn low_bits(width: u32) -> u64 {
    u64::MAX >> (64 - width)
}

#[cfg(test)]
#[path = "bits_tests.rs"]
mod tests;
