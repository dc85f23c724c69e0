//! The bytes of a file: read once, counted, checksummed, and recorded for a second pass on request.

use super::{FileError, FileResult};
use crate::input::Input;
use crate::{RestoreError, crc64, length, lzf};
use crc::{Digest, Table};
use std::borrow::Cow;
use std::io::{self, Read};

/// Size of a read in bytes.
const BUFFER_LEN: usize = 256 << 10;
/// Maximum length of a string that is held in memory, in bytes: an element, or a packed node.
const STRING_MAX: u64 = 512 << 20;
/// Maximum length of a piece of a string that is passed at once, in bytes.
const PIECE_MAX: usize = 1 << 20;

/// A position in a file.
pub(super) struct Source<R> {
    file: R,
    buffer: Vec<u8>,
    /// Offset in the buffer of the bytes not consumed, and of the consumed bytes not checksummed.
    at: usize,
    summed: usize,
    digest: Digest<'static, u64, Table<16>>,
    /// Offset in the file; replayed bytes count as read.
    offset: u64,
    /// Bytes consumed since recording began, and their bound.
    record: Option<(Vec<u8>, usize)>,
    /// Bytes to consume again.
    replay: Vec<u8>,
    replay_at: usize,
}

impl<R: Read> Source<R> {
    pub(super) fn new(file: R) -> Self {
        Source {
            file,
            buffer: Vec::with_capacity(BUFFER_LEN),
            at: 0,
            summed: 0,
            digest: crc64::digest(),
            offset: 0,
            record: None,
            replay: Vec::new(),
            replay_at: 0,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the bytes not consumed, and the rest of the file.
    pub(super) fn into_rest(self) -> impl Read {
        io::Cursor::new(self.buffer[self.at..].to_vec()).chain(self.file)
    }

    /// Returns the checksum of all consumed bytes.
    pub(super) fn checksum(&mut self) -> u64 {
        self.sum();
        self.digest.clone().finalize()
    }

    fn sum(&mut self) {
        self.digest.update(&self.buffer[self.summed..self.at]);
        self.summed = self.at;
    }

    /// Returns the next bytes, at least one; none at the end of the file.
    pub(super) fn fill(&mut self) -> FileResult<&[u8]> {
        if self.replay_at < self.replay.len() {
            return Ok(&self.replay[self.replay_at..]);
        }
        if self.at == self.buffer.len() {
            self.sum();
            self.buffer.clear();
            (self.at, self.summed) = (0, 0);
            self.file.by_ref().take(BUFFER_LEN as u64).read_to_end(&mut self.buffer)?;
        }
        Ok(&self.buffer[self.at..])
    }

    /// Consumes `len` of the next bytes.
    pub(super) fn consume(&mut self, len: usize) -> FileResult<()> {
        self.offset += len as u64;
        if self.replay_at < self.replay.len() {
            self.replay_at += len;
            return Ok(());
        }
        if let Some((record, max_len)) = &mut self.record {
            record.extend_from_slice(&self.buffer[self.at..self.at + len]);
            if record.len() > *max_len {
                self.at += len;
                return Err(FileError::Large);
            }
        }
        self.at += len;
        Ok(())
    }

    /// Records the bytes consumed from here on; consuming more than `max_len` is
    /// [`FileError::Large`].
    pub(super) fn record(&mut self, max_len: usize) {
        self.record = Some((Vec::new(), max_len));
    }

    /// Returns the bytes consumed since recording began.
    pub(super) fn recorded(&mut self) -> Vec<u8> {
        self.record.take().map(|(record, _)| record).unwrap_or_default()
    }

    /// Goes back to the beginning of the recording.
    pub(super) fn rewind(&mut self) {
        self.replay = self.recorded();
        self.replay_at = 0;
        self.offset -= self.replay.len() as u64;
    }

    /// Passes the next `len` bytes to `take` in pieces.
    fn pieces<E: From<FileError>>(
        &mut self,
        len: u64,
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut left = len;
        while left > 0 {
            let next = self.fill()?;
            if next.is_empty() {
                return Err(FileError::Truncated.into());
            }
            let piece =
                &next[..next.len().min(PIECE_MAX).min(usize::try_from(left).unwrap_or(PIECE_MAX))];
            take(piece)?;
            let piece_len = piece.len();
            self.consume(piece_len)?;
            left -= piece_len as u64;
        }
        Ok(())
    }

    /// Passes the `len` bytes to `take` that the next `compressed_len` bytes decompress to.
    fn decompressed_pieces<E: From<FileError>>(
        &mut self,
        compressed_len: u64,
        len: u64,
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bad = || E::from(FileError::Bad(RestoreError::BadFormat));
        let (mut compressed, mut out) = (Vec::new(), Vec::new());
        let (mut left, mut given) = (compressed_len, 0);
        loop {
            if left > 0 && compressed.len() < lzf::MAX_RUN {
                let more = left.min(BUFFER_LEN as u64);
                compressed.extend_from_slice(&self.raw(more)?);
                left -= more;
            }
            let mut rest = &compressed[..];
            while rest.len() >= if left > 0 { lzf::MAX_RUN } else { 1 } && out.len() < PIECE_MAX {
                rest = lzf::decompress_run(rest, &mut out, usize::MAX).ok_or_else(bad)?;
            }
            let used = compressed.len() - rest.len();
            compressed.drain(..used);
            let is_last = left == 0 && compressed.is_empty();
            // Bytes that may be referred to are kept.
            let ready = if is_last { out.len() } else { out.len().saturating_sub(lzf::WINDOW) };
            given += ready as u64;
            if given > len {
                return Err(bad());
            }
            take(&out[..ready])?;
            out.drain(..ready);
            if is_last {
                return if given == len { Ok(()) } else { Err(bad()) };
            }
        }
    }
}

impl<R: Read> Input for Source<R> {
    type Error = FileError;

    fn array<const N: usize>(&mut self) -> FileResult<[u8; N]> {
        let mut array = [0; N];
        let mut filled = 0;
        while filled < N {
            let next = self.fill()?;
            if next.is_empty() {
                return Err(FileError::Truncated);
            }
            let len = next.len().min(N - filled);
            array[filled..filled + len].copy_from_slice(&next[..len]);
            self.consume(len)?;
            filled += len;
        }
        Ok(array)
    }

    fn raw(&mut self, len: u64) -> FileResult<Cow<'_, [u8]>> {
        self.admit(len)?;
        let len = usize::try_from(len).map_err(|_| FileError::Truncated)?;
        if len == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        let is_replayed = self.replay_at < self.replay.len();
        if self.fill()?.len() >= len {
            self.consume(len)?;
            let (bytes, end) =
                if is_replayed { (&self.replay, self.replay_at) } else { (&self.buffer, self.at) };
            return Ok(Cow::Borrowed(&bytes[end - len..end]));
        }
        let mut bytes = Vec::new();
        self.pieces::<FileError>(len as u64, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(Cow::Owned(bytes))
    }

    fn admit(&self, len: u64) -> FileResult<()> {
        match &self.record {
            Some((_, max_len)) if len > *max_len as u64 => Err(FileError::Large),
            _ if len > STRING_MAX => Err(FileError::LongString(len)),
            _ => Ok(()),
        }
    }

    fn text<E: From<FileError>>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let first = self.byte()?;
        if first == length::LZF {
            let compressed_len = self.len()?;
            let len = self.len()?;
            return self.decompressed_pieces(compressed_len, len, &mut take);
        }
        match self.integer_after(first)? {
            Some(integer) => take(integer.to_string().as_bytes()),
            None => {
                let len = self.len_after(first)?;
                self.pieces(len, &mut take)
            }
        }
    }
}
