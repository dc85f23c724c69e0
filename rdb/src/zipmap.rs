//! Zipmaps: small hashes in one run of bytes, before Redis 2.6.
//!
//! A byte of field count (254: unknown); pairs of name and value; a byte 255. Both have a
//! length before them (one byte, or 254 and four bytes little-endian), the value's followed by a
//! byte that tells how many unused bytes come after the value. Format: Valkey's `zipmap.c`.

use crate::RestoreError;
use crate::input::Input;
use crate::reader::{Reader, Result};

const LONG: u8 = 254;
const END: u8 = 255;

/// Returns the fields of `zipmap`, each a name and a value, validated.
pub(crate) fn fields(zipmap: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut reader = Reader::new(zipmap);
    let count = reader.byte()?;
    let mut fields = Vec::with_capacity(reader.capacity_for(count.into()));
    loop {
        let first = reader.byte()?;
        if first == END {
            break;
        }
        let name_len = len(&mut reader, first)?;
        let name = reader.bytes(name_len)?;
        let first = reader.byte()?;
        let value_len = len(&mut reader, first)?;
        let unused = reader.byte()?;
        let value = reader.bytes(value_len)?;
        reader.bytes(unused.into())?;
        fields.push((name, value));
    }
    let count_is_right = count == LONG || usize::from(count) == fields.len();
    if reader.is_empty() && count_is_right { Ok(fields) } else { Err(RestoreError::BadFormat) }
}

fn len(reader: &mut Reader<'_>, first: u8) -> Result<u64> {
    match first {
        END => Err(RestoreError::BadFormat),
        LONG => Ok(u32::from_le_bytes(reader.array()?).into()),
        len => Ok(len.into()),
    }
}
