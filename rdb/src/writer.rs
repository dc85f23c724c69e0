//! Writes the parts of an RDB object: lengths, strings.

use crate::{FOOTER_LEN, crc64, integer, length, lzf};

/// Maximum length of strings that are not compressed.
const COMPRESS_ABOVE: usize = 20;
/// Minimum number of bytes that compression must save.
const COMPRESS_SAVES: usize = 4;
/// Maximum length of the text of an integer that is stored in binary.
const INTEGER_TEXT_MAX: usize = 11;

/// A payload being written.
pub(crate) struct Writer {
    out: Vec<u8>,
    compression: bool,
    /// Created for the first string to compress.
    compressor: Option<lzf::Compressor>,
}

impl Writer {
    pub(crate) fn new(object_type: u8, compression: bool) -> Self {
        Writer { out: vec![object_type], ..Writer::empty(compression) }
    }

    pub(crate) fn empty(compression: bool) -> Self {
        Writer { out: Vec::new(), compression, compressor: None }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn len(&mut self, len: u64) {
        if len < 1 << 6 {
            self.out.push(len as u8);
        } else if len < 1 << 14 {
            self.bytes(&(0x4000 | len as u16).to_be_bytes());
        } else if let Ok(len) = u32::try_from(len) {
            self.out.push(length::BITS_32);
            self.bytes(&len.to_be_bytes());
        } else {
            self.out.push(length::BITS_64);
            self.bytes(&len.to_be_bytes());
        }
    }

    /// Writes a string in its shortest encoding: an integer of up to 32 bits, LZF, or plain.
    pub(crate) fn string(&mut self, string: &[u8]) {
        if string.len() <= INTEGER_TEXT_MAX
            && let Some(value) = integer::parse(string).and_then(|value| i32::try_from(value).ok())
        {
            return self.integer(value);
        }
        if self.compression && string.len() > COMPRESS_ABOVE && self.compressed_string(string) {
            return;
        }
        self.len(string.len() as u64);
        self.bytes(string);
    }

    fn integer(&mut self, value: i32) {
        if let Ok(value) = i8::try_from(value) {
            self.out.push(length::INT8);
            self.bytes(&value.to_le_bytes());
        } else if let Ok(value) = i16::try_from(value) {
            self.out.push(length::INT16);
            self.bytes(&value.to_le_bytes());
        } else {
            self.out.push(length::INT32);
            self.bytes(&value.to_le_bytes());
        }
    }

    /// Writes a compressed string and returns true, if compression saves enough.
    fn compressed_string(&mut self, string: &[u8]) -> bool {
        let compressor = self.compressor.get_or_insert_with(lzf::Compressor::new);
        let Some(compressed) = compressor.compress(string, string.len() - COMPRESS_SAVES) else {
            return false;
        };
        self.out.push(length::LZF);
        self.len(compressed.len() as u64);
        self.len(string.len() as u64);
        self.bytes(&compressed);
        true
    }

    /// Returns the bytes written.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// Returns the payload, with its footer.
    pub(crate) fn finish(mut self, version: u16) -> Vec<u8> {
        self.out.reserve_exact(FOOTER_LEN);
        self.bytes(&version.to_le_bytes());
        let checksum = crc64::checksum(&self.out);
        self.bytes(&checksum.to_le_bytes());
        self.out
    }
}
