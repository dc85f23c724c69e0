//! Intsets: sets of integers in one run of bytes.
//!
//! Four bytes of integer width in bytes and four of member count, little-endian; the members,
//! ascending, little-endian. Format: Valkey's `intset.c`.

use crate::RestoreError;
use crate::input::Input;
use crate::reader::{Reader, Result};

/// Returns the members of `intset`, ascending, validated.
pub(crate) fn members(intset: &[u8]) -> Result<Vec<i64>> {
    let mut reader = Reader::new(intset);
    let width = u32::from_le_bytes(reader.array()?);
    let count = u32::from_le_bytes(reader.array()?);
    if !matches!(width, 2 | 4 | 8) {
        return Err(RestoreError::BadFormat);
    }
    let members = reader.bytes(u64::from(width) * u64::from(count))?;
    let members: Vec<i64> =
        members.chunks_exact(width as usize).map(super::integer::from_le).collect();
    if reader.is_empty() && members.is_sorted_by(|a, b| a < b) {
        Ok(members)
    } else {
        Err(RestoreError::BadFormat)
    }
}

/// Returns the intset of `members`, which are ascending.
pub(crate) fn encode(members: &[i64]) -> Vec<u8> {
    let fits = |min: i64, max: i64| members.iter().all(|member| (min..=max).contains(member));
    let width = if fits(i16::MIN.into(), i16::MAX.into()) {
        2
    } else if fits(i32::MIN.into(), i32::MAX.into()) {
        4
    } else {
        8
    };
    let mut out = Vec::with_capacity(8 + width * members.len());
    out.extend_from_slice(&(width as u32).to_le_bytes());
    out.extend_from_slice(&(members.len() as u32).to_le_bytes());
    for member in members {
        out.extend_from_slice(&member.to_le_bytes()[..width]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_width_for_all() {
        for (member, len) in [(7, 12), (-32_769, 16), (1 << 31, 24)] {
            let members = if member < 0 { [member, 1] } else { [1, member] };
            let intset = encode(&members);
            assert_eq!(intset.len(), len);
            assert_eq!(super::members(&intset).unwrap(), members);
        }
    }

    #[test]
    fn disorder_and_wrong_counts_are_refused() {
        for bad in [
            &b"\x02\0\0\0\x02\0\0\0\x02\0\x01\0"[..],
            b"\x02\0\0\0\x02\0\0\0\x01\0\x01\0",
            b"\x02\0\0\0\x02\0\0\0\x01\0",
            b"\x02\0\0\0\x01\0\0\0\x01\0\x02\0",
            b"\x03\0\0\0\x01\0\0\0\x01\0\0",
            b"\x08\0\0\0\xff\xff\xff\xff",
        ] {
            assert_eq!(members(bad), Err(RestoreError::BadFormat), "{bad:?}");
        }
    }
}
