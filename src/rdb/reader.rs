//! Reading the parts of an RDB object: lengths, strings, numbers.

use std::borrow::Cow;

use super::{RestoreError, double, integer, length, lzf};

pub(super) type Result<T> = std::result::Result<T, RestoreError>;

/// A position in a payload. Every read takes no more than is there.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// How many elements to take memory for when `len` are announced.
    pub(super) fn capacity_for(&self, len: u64) -> usize {
        len.min(self.rest.len() as u64 / 2).min(1024) as usize
    }

    pub(super) fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| RestoreError::BadFormat)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(RestoreError::BadFormat)?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(RestoreError::BadFormat)?;
        self.rest = rest;
        Ok(*bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    /// A length, big-endian: 6 bits, 14 bits, or after a byte that says so 32 or 64 bits.
    pub(super) fn len(&mut self) -> Result<u64> {
        let first = self.byte()?;
        self.len_after(first)
    }

    fn len_after(&mut self, first: u8) -> Result<u64> {
        match first {
            0..0x40 => Ok(first.into()),
            0x40..0x80 => Ok(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            length::BITS_32 => Ok(u32::from_be_bytes(self.array()?).into()),
            length::BITS_64 => Ok(u64::from_be_bytes(self.array()?)),
            _ => Err(RestoreError::BadFormat),
        }
    }

    /// A string: as it is, as an integer, or compressed.
    pub(super) fn string(&mut self) -> Result<Cow<'a, [u8]>> {
        let integer_len = match self.byte()? {
            length::INT8 => 1,
            length::INT16 => 2,
            length::INT32 => 4,
            length::LZF => return self.compressed_string().map(Cow::Owned),
            first => {
                let len = self.len_after(first)?;
                return self.bytes(len).map(Cow::Borrowed);
            }
        };
        let integer = integer::from_le(self.bytes(integer_len)?);
        Ok(Cow::Owned(integer.to_string().into_bytes()))
    }

    fn compressed_string(&mut self) -> Result<Vec<u8>> {
        let compressed_len = self.len()?;
        let len = self.len()?;
        let compressed = self.bytes(compressed_len)?;
        lzf::decompress(compressed, len).ok_or(RestoreError::BadFormat)
    }

    /// A score of eight bytes.
    pub(super) fn binary_score(&mut self) -> Result<f64> {
        double::not_nan(f64::from_le_bytes(self.array()?))
    }

    /// A score as text after a byte of length; 253 to 255 stand for NaN and the infinities.
    pub(super) fn text_score(&mut self) -> Result<f64> {
        match self.byte()? {
            255 => Ok(f64::NEG_INFINITY),
            254 => Ok(f64::INFINITY),
            253 => Err(RestoreError::BadFormat),
            len => double::parse(self.bytes(len.into())?),
        }
    }
}
