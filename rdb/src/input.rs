//! The parts of an RDB object from any source of bytes: lengths, strings, numbers.

use crate::{RestoreError, double, integer, length, lzf};
use std::borrow::Cow;

/// A source of an object's bytes: a payload, or a file. It allocates no memory for an announced
/// length, only for existing bytes.
pub(crate) trait Input {
    type Error: From<RestoreError>;

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Self::Error>;

    /// Returns the next `len` bytes.
    fn raw(&mut self, len: u64) -> Result<Cow<'_, [u8]>, Self::Error>;

    /// Refuses a string of `len` bytes that is too long to hold in memory.
    fn admit(&self, len: u64) -> Result<(), Self::Error>;

    /// Returns how many bytes of memory one string may take when it is decoded.
    fn most(&self) -> u64 {
        u64::MAX
    }

    fn byte(&mut self) -> Result<u8, Self::Error> {
        self.array().map(|[byte]| byte)
    }

    /// Reads a length, big-endian: 6 bits, 14 bits or, after a byte for that, 32 or 64 bits.
    fn len(&mut self) -> Result<u64, Self::Error> {
        let first = self.byte()?;
        self.len_after(first)
    }

    fn len_after(&mut self, first: u8) -> Result<u64, Self::Error> {
        Ok(match first {
            0..0x40 => first.into(),
            0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(self.byte()?),
            length::BITS_32 => u32::from_be_bytes(self.array()?).into(),
            length::BITS_64 => u64::from_be_bytes(self.array()?),
            _ => return Err(RestoreError::BadFormat.into()),
        })
    }

    /// Reads a string: plain, as an integer, or compressed.
    fn string(&mut self) -> Result<Cow<'_, [u8]>, Self::Error> {
        match self.byte()? {
            length::LZF => {
                let compressed_len = self.len()?;
                let len = self.len()?;
                self.admit(len)?;
                let compressed = self.raw(compressed_len)?;
                let string = lzf::decompress(&compressed, len).ok_or(RestoreError::BadFormat)?;
                Ok(Cow::Owned(string))
            }
            first => match self.integer_after(first)? {
                Some(integer) => Ok(Cow::Owned(integer.to_string().into_bytes())),
                None => {
                    let len = self.len_after(first)?;
                    self.raw(len)
                }
            },
        }
    }

    /// Reads a string that is an integer, if its first byte says so.
    fn integer_after(&mut self, first: u8) -> Result<Option<i64>, Self::Error> {
        Ok(Some(match first {
            length::INT8 => integer::from_le(&self.array::<1>()?),
            length::INT16 => integer::from_le(&self.array::<2>()?),
            length::INT32 => integer::from_le(&self.array::<4>()?),
            _ => return Ok(None),
        }))
    }

    /// Reads a string that need not be held whole: passes its pieces to `take`.
    fn text<E: From<Self::Error>>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        take(&self.string()?)
    }

    /// Reads a score of eight bytes.
    fn binary_score(&mut self) -> Result<f64, Self::Error> {
        Ok(double::not_nan(f64::from_le_bytes(self.array()?))?)
    }

    /// Reads a score as text after a byte of length; 253 to 255 are NaN and the infinities.
    fn text_score(&mut self) -> Result<f64, Self::Error> {
        Ok(match self.byte()? {
            255 => f64::NEG_INFINITY,
            254 => f64::INFINITY,
            253 => return Err(RestoreError::BadFormat.into()),
            len => double::parse(&self.raw(len.into())?)?,
        })
    }
}
