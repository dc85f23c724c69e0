//! Ziplists: small collections in one run of bytes, before Redis 7.
//!
//! Four bytes of total length, four of the last entry's offset, two of entry count (65535:
//! unknown), little-endian; the entries; a byte 255. An entry is the length of the one before it
//! (one byte, or 254 and four bytes little-endian), an encoding, and its contents. Format: Valkey's
//! `ziplist.c`.

use crate::input::Input;
use crate::listpack::{Element, Packed};
use crate::reader::{Reader, Result};
use crate::{RestoreError, integer};

const HEADER_LEN: usize = 10;
const END: u8 = 0xff;
const COUNT_UNKNOWN: u16 = u16::MAX;
const LONG_PREVIOUS: u8 = 0xfe;

/// Iterator over a ziplist.
pub(crate) struct ZiplistIter<'a> {
    reader: Reader<'a>,
    /// The last entry's offset in the header.
    last_offset: u32,
    count: u16,
    seen: usize,
    /// Offset and length of the last entry returned.
    offset: usize,
    previous_len: usize,
    len: usize,
}

impl<'a> ZiplistIter<'a> {
    pub(crate) fn new(ziplist: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(ziplist);
        let total_len = u32::from_le_bytes(reader.array()?);
        let last_offset = u32::from_le_bytes(reader.array()?);
        let count = u16::from_le_bytes(reader.array()?);
        if total_len as usize != ziplist.len() {
            return Err(RestoreError::BadFormat);
        }
        let (offset, len) = (HEADER_LEN, ziplist.len());
        Ok(ZiplistIter { reader, last_offset, count, seen: 0, offset, previous_len: 0, len })
    }

    fn end(&self) -> Result<()> {
        let last_offset = self.last_offset as usize;
        let last_is_right =
            if self.seen == 0 { last_offset < self.len } else { last_offset == self.offset };
        let count_is_right = self.count == COUNT_UNKNOWN || usize::from(self.count) == self.seen;
        let is_sound = last_is_right && count_is_right && self.reader.is_empty();
        if is_sound { Ok(()) } else { Err(RestoreError::BadFormat) }
    }
}

impl<'a> Packed<'a> for ZiplistIter<'a> {
    fn element(&mut self) -> Result<Option<Element<'a>>> {
        let first = self.reader.byte()?;
        if first == END {
            return self.end().map(|()| None);
        }
        let stated = match first {
            LONG_PREVIOUS => (u32::from_le_bytes(self.reader.array()?), 5),
            len => (len.into(), 1),
        };
        if stated.0 as usize != self.previous_len {
            return Err(RestoreError::BadFormat);
        }
        let (element, len) = element(&mut self.reader)?;
        self.offset += self.previous_len;
        self.previous_len = stated.1 + len;
        self.seen += 1;
        Ok(Some(element))
    }
}

/// Reads an entry from its encoding on; returns it with the bytes that it takes.
fn element<'a>(reader: &mut Reader<'a>) -> Result<(Element<'a>, usize)> {
    let encoding = reader.byte()?;
    let integer_len = match encoding {
        0..0x40 => return text(reader, encoding.into(), 1),
        0x40..0x80 => {
            let len = u32::from(encoding & 0x3f) << 8 | u32::from(reader.byte()?);
            return text(reader, len, 2);
        }
        0x80..0xc0 => {
            let len = u32::from_be_bytes(reader.array()?);
            return text(reader, len, 5);
        }
        0xc0 => 2,
        0xd0 => 4,
        0xe0 => 8,
        0xf0 => 3,
        0xfe => 1,
        0xf1..=0xfd => return Ok((Element::Integer(i64::from(encoding & 0x0f) - 1), 1)),
        _ => return Err(RestoreError::BadFormat),
    };
    let integer = integer::from_le(reader.bytes(integer_len as u64)?);
    Ok((Element::Integer(integer), 1 + integer_len))
}

fn text<'a>(reader: &mut Reader<'a>, len: u32, head: usize) -> Result<(Element<'a>, usize)> {
    Ok((Element::Text(reader.bytes(len.into())?), head + len as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(ziplist: &[u8]) -> Result<Vec<Element<'_>>> {
        let mut iter = ZiplistIter::new(ziplist)?;
        std::iter::from_fn(|| iter.element().transpose()).collect()
    }

    /// Entries "ab", 5, -2, 300.
    const GOOD: &[u8] = b"\x18\0\0\0\x13\0\0\0\x04\0\
        \0\x02ab\
        \x04\xf6\
        \x02\xfe\xfe\
        \x03\xc0\x2c\x01\
        \xff";

    #[test]
    fn entries_of_every_kind() {
        let expected = [
            Element::Text(b"ab"),
            Element::Integer(5),
            Element::Integer(-2),
            Element::Integer(300),
        ];
        assert_eq!(elements(GOOD).unwrap(), expected);
        for (at, byte) in [(0, 1), (4, 18), (8, 5), (10, 1), (11, 3), (14, 5), (23, 0xfe)] {
            let mut bad = GOOD.to_vec();
            bad[at] = byte;
            assert_eq!(elements(&bad), Err(RestoreError::BadFormat), "{at}");
        }
    }
}
