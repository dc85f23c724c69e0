//! One file with rows, open for point reads: its block index in memory, and its descriptor.

use super::block::{self, BlockRow};
use super::bloom::Bloom;
use super::codec::decompress;
use super::packing::{CodecSample, PackedSize};
use crate::engine::pread::read_on;
use anyhow::{Context, Result, ensure};
use slatedb::SstIndex;
use slatedb::config::CompressionCodec;
use slatedb::manifest::{SsTableHandle, SsTableInfo};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The file format that these reads understand: SlateDB's version 2, in the last two bytes of a
/// file.
const FORMAT: u16 = 2;

/// Length of a checksum: CRC-32 (IEEE) of the bytes before it, big-endian.
const CHECKSUM: usize = 4;

/// Maximum size of a block that a worker reads from the system's memory, in bytes: the copy takes
/// its time.
const IN_PLACE_BYTES: usize = 64 << 10;

/// How a block may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Not at all: only its place is wanted.
    Locate,
    /// Only if the system has it in memory.
    InMemory,
    /// From the disk, too.
    Disk,
}

/// Reason why a block was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It has to come from the disk: its place in the file.
    OnDisk(u64),
    /// It is damaged, cannot be read, or has another format.
    Unknown,
}

/// A file that is open for point reads.
#[derive(Debug)]
pub(super) struct PointFile {
    file: File,
    codec: Option<CompressionCodec>,
    filter: Range<u64>,
    /// For each block, the end of its first key in `keys`, and its offset in the file.
    blocks: Box<[(u32, u32)]>,
    /// The lower bounds of the blocks' keys, one after the other.
    keys: Box<[u8]>,
    /// End of the last block.
    end: u32,
    /// Size of its rows; zero if the file does not tell their size before compression.
    pub(super) size: PackedSize,
}

/// Returns true if these reads understand a file with this description.
pub(super) fn is_readable(info: &SsTableInfo) -> bool {
    let usual = SsTableInfo::default();
    info.first_entry.is_some()
        && info.last_entry.is_some()
        && info.sst_type == usual.sst_type
        && info.filter_format == usual.filter_format
}

impl PointFile {
    /// Opens the file at `path`, whose index was read.
    ///
    /// # Errors
    /// If it cannot be opened, is damaged, or has another format.
    pub(super) fn open(path: &Path, handle: &SsTableHandle, index: &SstIndex) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let info = &handle.info;
        let length = file.metadata()?.len();
        let mut footer = [0; 2];
        let at = length.checked_sub(footer.len() as u64).context("it is empty")?;
        file.read_exact_at(&mut footer, at)?;
        ensure!(u16::from_be_bytes(footer) == FORMAT, "it has another format");
        advise_random(&file);
        let end = if info.filter_len > 0 { info.filter_offset } else { info.index_offset };
        let end = u32::try_from(end).context("it is larger than 4 GiB")?;
        let (mut blocks, mut keys) = (Vec::with_capacity(index.len()), Vec::new());
        for (offset, key) in index.iter() {
            keys.extend_from_slice(key);
            blocks.push((u32::try_from(keys.len())?, u32::try_from(offset)?));
        }
        let ends = blocks.iter().skip(1).map(|(_, offset)| *offset).chain([end]);
        let is_ordered = blocks.iter().zip(ends).all(|((_, offset), end)| *offset < end);
        ensure!(!blocks.is_empty() && is_ordered, "its index is damaged");
        Ok(Self {
            file,
            codec: info.compression_codec,
            filter: info.filter_offset..info.filter_offset + info.filter_len,
            blocks: blocks.into(),
            keys: keys.into(),
            end,
            size: PackedSize::default(),
        })
    }

    /// Notes the bytes of its rows' keys and values.
    pub(super) fn with_plain_bytes(self, plain: u64) -> Self {
        Self { size: PackedSize { plain, packed: u64::from(self.end) }, ..self }
    }

    /// Measures the compression of a block; `None` if blocks are not compressed.
    pub(super) fn sample(&self) -> Option<CodecSample> {
        let codec = self.codec?;
        let (first, end) = (self.blocks.first()?.1, self.blocks.get(1).map_or(self.end, |b| b.1));
        let mut block = vec![0; (end - first) as usize];
        self.file.read_exact_at(&mut block, u64::from(first)).ok()?;
        block.truncate(block.len().checked_sub(CHECKSUM)?);
        CodecSample::take(codec, block)
    }

    /// Returns the memory use of the index in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.keys.len() + size_of_val(&*self.blocks)
    }

    /// Reads the file's filter; `None` if it has none that is understood.
    pub(super) fn read_filter(&self) -> Result<Option<Bloom>> {
        let length = usize::try_from(self.filter.end - self.filter.start)?;
        if length == 0 {
            return Ok(None);
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, self.filter.start)?;
        let valid = is_valid(&bytes) && unpack(self.codec, &mut bytes);
        ensure!(valid, "its filter is damaged");
        Ok(Bloom::parse(&bytes))
    }

    fn first_key(&self, block: usize) -> &[u8] {
        let start = block.checked_sub(1).map_or(0, |before| self.blocks[before].0);
        &self.keys[start as usize..self.blocks[block].0 as usize]
    }

    /// Returns the blocks that may have rows of a key, in the order of their ages, newest first:
    /// nearly always one. The index has a lower bound of each block's keys, above all keys of the
    /// block before, except that versions of one key may begin in one block and end in another.
    fn blocks_of(&self, key: &[u8]) -> Range<usize> {
        let (mut low, mut high) = (0, self.blocks.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.first_key(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut first = low;
        while first > 0 && self.first_key(first - 1) == key {
            first -= 1;
        }
        first.saturating_sub(1)..low
    }

    /// Finds the newest row of a key. The place of its value is one in `buffer`.
    pub(super) fn find(
        &self,
        key: &[u8],
        access: Access,
        buffer: &mut Vec<u8>,
    ) -> Result<BlockRow, Unread> {
        for block in self.blocks_of(key) {
            self.read_block(block, access, buffer)?;
            match block::find(buffer, key).ok_or(Unread::Unknown)? {
                BlockRow::Missing => {}
                row => return Ok(row),
            }
        }
        Ok(BlockRow::Missing)
    }

    /// Reads a block into `buffer`.
    fn read_block(&self, block: usize, access: Access, buffer: &mut Vec<u8>) -> Result<(), Unread> {
        let offset = self.blocks[block].1;
        let end = self.blocks.get(block + 1).map_or(self.end, |next| next.1);
        let length = (end - offset) as usize;
        let offset = u64::from(offset);
        let in_place = access == Access::InMemory && length <= IN_PLACE_BYTES;
        if !in_place && access != Access::Disk {
            return Err(Unread::OnDisk(offset));
        }
        buffer.clear();
        while buffer.len() < length {
            let rest = length - buffer.len();
            match read_on(&self.file, buffer, rest, offset, in_place) {
                Ok(0) => return Err(Unread::Unknown),
                Ok(_) if in_place && buffer.len() < length => return Err(Unread::OnDisk(offset)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if in_place => return Err(Unread::OnDisk(offset)),
                Err(_) => return Err(Unread::Unknown),
            }
        }
        if !is_valid(buffer) || !unpack(self.codec, buffer) {
            return Err(Unread::Unknown);
        }
        Ok(())
    }
}

/// Returns true if the checksum at the end of some bytes is theirs.
fn is_valid(bytes: &[u8]) -> bool {
    bytes
        .split_last_chunk::<CHECKSUM>()
        .is_some_and(|(data, checksum)| crc32fast::hash(data) == u32::from_be_bytes(*checksum))
}

/// Takes the checksum off, and decompresses the bytes before it. Returns false if they are damaged.
fn unpack(codec: Option<CompressionCodec>, bytes: &mut Vec<u8>) -> bool {
    bytes.truncate(bytes.len().saturating_sub(CHECKSUM));
    codec.is_none_or(|codec| decompress(codec, bytes).is_some())
}

/// Tells the system that reads have no order: it need not read ahead.
fn advise_random(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{Advice, fadvise};
        // Reads without the advice are only slower.
        let _ = fadvise(file, 0, None, Advice::Random);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
