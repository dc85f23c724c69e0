//! LEB128 variable-length integers and length-prefixed bytes.

/// Appends `n` in LEB128, 1–10 bytes.
pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Reads a LEB128 integer from the front of `input`.
#[inline]
pub fn get_varint(input: &mut &[u8]) -> Option<u64> {
    let (n, rest) = split_varint(input)?;
    *input = rest;
    Some(n)
}

/// Splits off a LEB128 integer: mostly one byte. The slice goes by value, so that a caller can hold
/// it in registers.
#[inline]
fn split_varint(input: &[u8]) -> Option<(u64, &[u8])> {
    match input.split_first()? {
        (&byte, rest) if byte < 0x80 => Some((byte.into(), rest)),
        _ => split_long_varint(input),
    }
}

#[inline(never)]
fn split_long_varint(mut input: &[u8]) -> Option<(u64, &[u8])> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = input.split_first()?;
        input = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some((n, input));
        }
    }
    None
}

/// Appends the length of `bytes`, then `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads bytes written by [`put_bytes`].
#[inline]
pub fn get_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(get_varint(input)?).ok()?;
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_roundtrip() {
        for n in [0, 1, 127, 128, 300, 16383, 16384, u64::from(u32::MAX), u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, n);
            let mut input = &out[..];
            assert_eq!(get_varint(&mut input), Some(n));
            assert!(input.is_empty());
        }
        assert_eq!(get_varint(&mut &[0x80u8][..]), None);
        assert_eq!(get_bytes(&mut &[5u8, 1, 2][..]), None);
    }
}
