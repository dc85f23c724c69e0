//! Segments: files of a fixed size, each with a header of one sector and records behind it.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, File, write_zeros};
use super::record::{le_u32, le_u64};
use super::{JournalError, Lsn};

/// Length of a segment header in bytes: one sector, which a disk writes whole or not at all.
pub(super) const SEGMENT_HEADER: usize = 512;
/// Offset of the first record.
pub(super) const FIRST_RECORD: u64 = SEGMENT_HEADER as u64;
/// The format version written, and the newest one read.
pub(super) const VERSION: u32 = 4;

const MAGIC: [u8; 8] = *b"FLAGJRNL";
const SUFFIX: &str = ".seg";
const UNFINISHED: &str = "prepare.tmp";

/// Facts about a segment and about the segment before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Its number, as in the file name. Numbers grow and are never used again.
    pub(super) number: u64,
    pub(super) epoch: u64,
    /// The next lsn when the segment was begun.
    pub(super) first_lsn: Lsn,
    /// The number of the segment before it; 0 if it is the journal's first.
    pub(super) prev_number: u64,
    pub(super) prev_epoch: u64,
    /// The last whole commit before it.
    pub(super) prev_lsn: Lsn,
    /// CRC of the last record before it.
    pub(super) prev_crc: u32,
    pub(super) salt: u32,
    /// The greatest durable lsn known when the segment was begun.
    pub(super) durable: Lsn,
    /// The greatest time in the journal when the segment was begun.
    pub(super) time_ms: u64,
    /// Length to which the file was filled in advance; 0: the file ends with its last record.
    pub(super) size: u64,
}

/// Result of reading the first sector of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoundHeader {
    Valid(SegmentHeader),
    Newer(u32),
    /// No valid header: not begun yet, or damaged.
    Absent,
}

impl SegmentHeader {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first_lsn.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.prev_number.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.prev_epoch.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.prev_lsn.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.prev_crc.to_le_bytes());
        bytes[68..72].copy_from_slice(&self.salt.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.durable.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.time_ms.to_le_bytes());
        bytes[88..96].copy_from_slice(&self.size.to_le_bytes());
        let crc = header_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; SEGMENT_HEADER]) -> FoundHeader {
        if bytes[0..8] != MAGIC || le_u32(bytes, 12) != header_crc(bytes) {
            return FoundHeader::Absent;
        }
        let version = le_u32(bytes, 8);
        if version > VERSION {
            return FoundHeader::Newer(version);
        }
        // Lsns begin at 1, even if a checksum of other bytes matches.
        let first_lsn = le_u64(bytes, 32);
        if first_lsn == 0 {
            return FoundHeader::Absent;
        }
        FoundHeader::Valid(Self {
            number: le_u64(bytes, 16),
            epoch: le_u64(bytes, 24),
            first_lsn,
            prev_number: le_u64(bytes, 40),
            prev_epoch: le_u64(bytes, 48),
            prev_lsn: le_u64(bytes, 56),
            prev_crc: le_u32(bytes, 64),
            salt: le_u32(bytes, 68),
            durable: le_u64(bytes, 72),
            time_ms: le_u64(bytes, 80),
            size: le_u64(bytes, 88),
        })
    }

    /// Reads the header of the segment `number`. A header from an earlier life of the file, under
    /// another number, counts as absent.
    pub(super) fn read(file: &dyn File, number: u64) -> io::Result<FoundHeader> {
        if file.size()? < FIRST_RECORD {
            return Ok(FoundHeader::Absent);
        }
        let mut bytes = [0; SEGMENT_HEADER];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(match Self::decode(&bytes) {
            FoundHeader::Valid(header) if header.number != number => FoundHeader::Absent,
            found => found,
        })
    }

    pub(super) fn write(&self, file: &dyn File) -> io::Result<()> {
        file.write_all_at(&mut [IoSlice::new(&self.encode())], 0)
    }
}

/// Computes the CRC of everything but the CRC itself; its offset and extent are the same in every
/// version.
fn header_crc(bytes: &[u8; SEGMENT_HEADER]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}

pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}{SUFFIX}"))
}

/// Parses the number from a segment's file name.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if digits.len() != 16 || !digits.bytes().all(hex) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok().filter(|number| *number > 0)
}

/// Creates the file of segment `number`, full of zeros, durable under its name but not begun. It is
/// written, not only allocated, so that a sync has no metadata to write.
pub(super) fn prepare_segment(
    disk: &dyn Disk,
    dir: &Path,
    number: u64,
    size: u64,
) -> Result<Arc<dyn File>, JournalError> {
    let unfinished = dir.join(UNFINISHED);
    let prepared = (|| {
        let file = disk.create(&unfinished)?;
        write_zeros(&*file, 0, size)?;
        file.sync()?;
        disk.rename(&unfinished, &segment_path(dir, number))?;
        disk.sync_dir(dir)?;
        Ok(file)
    })();
    prepared.map_err(|error| {
        // Frees the space; the next attempt overwrites a leftover file.
        let _ = disk.remove(&unfinished);
        JournalError::io("preparing a journal segment in", dir, error)
    })
}

/// A segment's records by shard.
#[derive(Debug, Clone, Default)]
pub(super) struct ShardSpans(Vec<ShardSpan>);

#[derive(Debug, Clone, Copy, Default)]
struct ShardSpan {
    last: Lsn,
    bytes: u64,
}

impl ShardSpans {
    /// Adds `bytes` of the commit `lsn`, which touches `shards`.
    pub(super) fn add(&mut self, shards: &[u16], lsn: Lsn, bytes: u64) {
        for &shard in shards {
            let at = usize::from(shard);
            if self.0.len() <= at {
                self.0.resize(at + 1, ShardSpan::default());
            }
            self.0[at] = ShardSpan { last: lsn, bytes: self.0[at].bytes + bytes };
        }
    }

    /// Returns the last lsn of each shard in it.
    pub(super) fn last(&self) -> impl Iterator<Item = (u16, Lsn)> {
        self.iter().map(|(shard, span)| (shard, span.last))
    }

    /// Returns the last commit of which a part is in it, 0 if there is none.
    pub(super) fn newest(&self) -> Lsn {
        self.last().map(|(_, lsn)| lsn).max().unwrap_or(0)
    }

    /// Returns the bytes of each shard that has a record in it above its flushed lsn.
    pub(super) fn held(&self, flushed: &[Lsn]) -> impl Iterator<Item = (u16, u64)> {
        self.iter()
            .filter(|(shard, span)| span.last > flushed_of(flushed, *shard))
            .map(|(shard, span)| (shard, span.bytes))
    }

    fn iter(&self) -> impl Iterator<Item = (u16, ShardSpan)> {
        // Indices are shard numbers, so they fit.
        (0..=u16::MAX).zip(self.0.iter().copied()).filter(|(_, span)| span.last > 0)
    }
}

fn flushed_of(flushed: &[Lsn], shard: u16) -> Lsn {
    flushed.get(usize::from(shard)).copied().unwrap_or(0)
}
