//! Listpacks: small collections in one run of bytes, since Redis 7.
//!
//! Four bytes of total length and two of element count (65535: unknown), little-endian; the
//! elements; a byte 255. An element is an encoding byte that tells its type, its content, and the
//! length of both in one to five bytes of seven bits each, to be read backwards. Format: the
//! listpack specification of its author (github.com/antirez/listpack) and Valkey's `listpack.c`.

use crate::input::Input;
use crate::reader::{Reader, Result};
use crate::{RestoreError, integer};
use std::borrow::Cow;

const HEADER_LEN: usize = 6;
const END: u8 = 0xff;
/// Element count in the header if it needs more than 16 bits.
const COUNT_UNKNOWN: u16 = u16::MAX;
/// Maximum size of a listpack in bytes.
pub(crate) const MAX_LEN: usize = 1 << 30;

/// Elements packed in one run of bytes.
pub(crate) trait Packed<'a> {
    /// Returns the next element, or `None` at the end, when everything has been validated.
    fn element(&mut self) -> Result<Option<Element<'a>>>;

    /// Returns the next element, which must exist.
    fn more(&mut self) -> Result<Element<'a>> {
        self.element()?.ok_or(RestoreError::BadFormat)
    }
}

/// An element of a listpack or a ziplist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    Text(&'a [u8]),
    Integer(i64),
}

impl<'a> Element<'a> {
    pub(crate) fn into_cow(self) -> Cow<'a, [u8]> {
        match self {
            Element::Text(text) => Cow::Borrowed(text),
            Element::Integer(integer) => Cow::Owned(integer.to_string().into_bytes()),
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Element::Text(text) => text.to_vec(),
            Element::Integer(integer) => integer.to_string().into_bytes(),
        }
    }
}

/// Iterator over a listpack.
pub(crate) struct ListpackIter<'a> {
    reader: Reader<'a>,
    /// The count in the header.
    count: u16,
    seen: usize,
}

impl<'a> ListpackIter<'a> {
    pub(crate) fn new(listpack: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(listpack);
        let total_len = u32::from_le_bytes(reader.array()?);
        let count = u16::from_le_bytes(reader.array()?);
        if total_len as usize != listpack.len() || listpack.len() <= HEADER_LEN {
            return Err(RestoreError::BadFormat);
        }
        Ok(ListpackIter { reader, count, seen: 0 })
    }
}

impl<'a> Packed<'a> for ListpackIter<'a> {
    fn element(&mut self) -> Result<Option<Element<'a>>> {
        let encoding = self.reader.byte()?;
        if encoding != END {
            self.seen += 1;
            return element(&mut self.reader, encoding).map(Some);
        }
        let count_is_right = self.count == COUNT_UNKNOWN || usize::from(self.count) == self.seen;
        let is_sound = self.reader.is_empty() && count_is_right;
        if is_sound { Ok(None) } else { Err(RestoreError::BadFormat) }
    }
}

/// Returns the elements of `listpack`, validated.
pub(crate) fn elements(listpack: &[u8]) -> Result<Vec<Element<'_>>> {
    let mut iter = ListpackIter::new(listpack)?;
    let mut elements = Vec::with_capacity(iter.reader.capacity_for(iter.count.into()));
    while let Some(element) = iter.element()? {
        elements.push(element);
    }
    Ok(elements)
}

/// Returns the element that begins with `encoding`, up to the next.
fn element<'a>(reader: &mut Reader<'a>, encoding: u8) -> Result<Element<'a>> {
    let (element, len) = match encoding {
        0..0x80 => (Element::Integer(encoding.into()), 1),
        0x80..0xc0 => text(reader, (encoding & 0x3f).into(), 1)?,
        0xc0..0xe0 => {
            let unsigned = i64::from(encoding & 0x1f) << 8 | i64::from(reader.byte()?);
            (Element::Integer(unsigned << (64 - 13) >> (64 - 13)), 2)
        }
        0xe0..0xf0 => {
            let len = u64::from(encoding & 0x0f) << 8 | u64::from(reader.byte()?);
            text(reader, len, 2)?
        }
        0xf0 => {
            let len = u32::from_le_bytes(reader.array()?);
            text(reader, len.into(), 5)?
        }
        0xf1..=0xf4 => {
            let len = [2, 3, 4, 8][usize::from(encoding - 0xf1)];
            (Element::Integer(integer::from_le(reader.bytes(len)?)), 1 + len)
        }
        _ => return Err(RestoreError::BadFormat),
    };
    let (expected, expected_len) = back_len(len);
    if reader.bytes(expected_len as u64)? == &expected[..expected_len] {
        Ok(element)
    } else {
        Err(RestoreError::BadFormat)
    }
}

/// Reads a text of `len` bytes; returns it with the length of the element, including its `head`
/// bytes before the text.
fn text<'a>(reader: &mut Reader<'a>, len: u64, head: u64) -> Result<(Element<'a>, u64)> {
    Ok((Element::Text(reader.bytes(len)?), head + len))
}

/// Encodes the length of an element as stored behind it; returns the bytes and their number.
fn back_len(len: u64) -> ([u8; 5], usize) {
    let count = match len {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    };
    let mut bytes = [0; 5];
    for (i, byte) in bytes[..count].iter_mut().enumerate() {
        let more = if i > 0 { 0x80 } else { 0 };
        *byte = (len >> (7 * (count - 1 - i))) as u8 & 0x7f | more;
    }
    (bytes, count)
}

/// A listpack being written.
pub(crate) struct Listpack {
    bytes: Vec<u8>,
    count: usize,
}

impl Listpack {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes.push(END);
        Listpack { bytes, count: 0 }
    }

    /// Returns the bytes with header and end.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Appends `text`, in binary if it is an integer.
    pub(crate) fn push(&mut self, text: &[u8]) {
        match integer::parse(text) {
            Some(integer) => self.push_integer(integer),
            None => self.push_text(text),
        }
    }

    fn push_text(&mut self, text: &[u8]) {
        let len = text.len() as u32;
        match len {
            0..64 => self.push_element(&[0x80 | len as u8], text),
            64..4096 => self.push_element(&(0xe000 | len as u16).to_be_bytes(), text),
            _ => {
                let [a, b, c, d] = len.to_le_bytes();
                self.push_element(&[0xf0, a, b, c, d], text);
            }
        }
    }

    pub(crate) fn push_integer(&mut self, integer: i64) {
        let bytes = integer.to_le_bytes();
        match integer {
            0..=127 => self.push_element(&bytes[..1], &[]),
            -4096..=4095 => {
                self.push_element(&[0xc0 | bytes[1] & 0x1f, bytes[0]], &[]);
            }
            -0x8000..=0x7fff => self.push_element(&[0xf1], &bytes[..2]),
            -0x80_0000..=0x7f_ffff => self.push_element(&[0xf2], &bytes[..3]),
            -0x8000_0000..=0x7fff_ffff => self.push_element(&[0xf3], &bytes[..4]),
            _ => self.push_element(&[0xf4], &bytes),
        }
    }

    fn push_element(&mut self, head: &[u8], body: &[u8]) {
        let (back, back_count) = back_len((head.len() + body.len()) as u64);
        self.bytes.pop();
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(body);
        self.bytes.extend_from_slice(&back[..back_count]);
        self.bytes.push(END);
        self.count += 1;
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let total_len = self.bytes.len() as u32;
        let count = u16::try_from(self.count).unwrap_or(COUNT_UNKNOWN);
        self.bytes[..4].copy_from_slice(&total_len.to_le_bytes());
        self.bytes[4..HEADER_LEN].copy_from_slice(&count.to_le_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_comes_back() {
        let mut listpack = Listpack::new();
        let mut expected = Vec::new();
        for shift in 0..63 {
            for integer in [1i64 << shift, (1 << shift) - 1, -(1 << shift), -(1 << shift) - 1] {
                listpack.push(integer.to_string().as_bytes());
                expected.push(integer.to_string().into_bytes());
            }
        }
        for len in [0, 1, 63, 64, 125, 126, 127, 4095, 4096, 16_377, 16_378, 16_379, 2_097_150] {
            listpack.push(&vec![b'x'; len]);
            expected.push(vec![b'x'; len]);
        }
        let bytes = listpack.finish();
        let elements = elements(&bytes).unwrap();
        let found: Vec<_> = elements.into_iter().map(Element::into_bytes).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn more_elements_than_the_header_can_count() {
        let mut listpack = Listpack::new();
        (0..70_000).for_each(|i| listpack.push_integer(i));
        let bytes = listpack.finish();
        assert_eq!(bytes[4..6], [0xff, 0xff]);
        assert_eq!(elements(&bytes).unwrap().len(), 70_000);
    }

    #[test]
    fn wrong_lengths_and_counts_are_refused() {
        let mut listpack = Listpack::new();
        listpack.push(b"ab");
        let good = listpack.finish();
        assert_eq!(good, b"\x0b\0\0\0\x01\0\x82ab\x03\xff");
        for (at, byte) in [(0, 10), (4, 2), (6, 0x83), (6, 0xf5), (9, 4), (10, 0)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(elements(&bad), Err(RestoreError::BadFormat), "{at}");
        }
        assert!(elements(&good[..10]).is_err());
        assert!(elements(&[]).is_err());
    }
}
