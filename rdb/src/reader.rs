//! Reads bytes in memory.

use crate::RestoreError;
use crate::input::Input;
use std::borrow::Cow;

pub(crate) type Result<T> = std::result::Result<T, RestoreError>;

/// A position in a payload. Reads never go beyond its end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Bytes that a string may take when it is decoded.
    most: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self::within(bytes, u64::MAX)
    }

    /// Creates a reader whose strings take at most so many bytes each.
    pub(crate) fn within(bytes: &'a [u8], most: u64) -> Self {
        Reader { rest: bytes, most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of elements to allocate for when `len` are announced.
    pub(crate) fn capacity_for(&self, len: u64) -> usize {
        len.min(self.rest.len() as u64 / 2).min(1024) as usize
    }

    pub(crate) fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| RestoreError::BadFormat)?;
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(RestoreError::BadFormat)?;
        self.rest = rest;
        Ok(bytes)
    }
}

impl Input for Reader<'_> {
    type Error = RestoreError;

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(RestoreError::BadFormat)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn raw(&mut self, len: u64) -> Result<Cow<'_, [u8]>> {
        self.bytes(len).map(Cow::Borrowed)
    }

    fn admit(&self, len: u64) -> Result<()> {
        if len > self.most { Err(RestoreError::TooLarge) } else { Ok(()) }
    }

    fn most(&self) -> u64 {
        self.most
    }
}
