//! The file `floor`: the journal's first segment, its progress, and per shard the last dropped lsn.
//!
//! It is made durable before a segment is recycled: without it a missing first segment, or a shard
//! directory older than the dropped records, would go unnoticed. So would a missing last segment:
//! the file notes that one soon after it was begun.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::record::{le_u32, le_u64};
use super::{JournalError, Lsn};

const MAGIC: [u8; 8] = *b"FLAGFLOR";
const VERSION: u32 = 2;
const FIXED: usize = 56;
/// Bytes of the fixed fields in version 1, which has no newest segment.
const FIXED_1: usize = 48;
const ENTRY: usize = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct JournalFloor {
    /// The number of the first segment that belongs to the journal.
    pub(super) first_segment: u64,
    /// The newest segment that was durably begun when this was written.
    pub(super) newest_segment: u64,
    /// The last lsn whose record was dropped, at least in part.
    pub(super) dropped: Lsn,
    /// The journal's salt.
    pub(super) salt: u32,
    /// The last dropped lsn of each shard that has one.
    pub(super) shards: BTreeMap<u16, Lsn>,
}

pub(super) fn floor_path(dir: &Path) -> PathBuf {
    dir.join("floor")
}

impl JournalFloor {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_segment.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.dropped.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.salt.to_le_bytes());
        bytes[40..48].copy_from_slice(&(self.shards.len() as u64).to_le_bytes());
        bytes[48..56].copy_from_slice(&self.newest_segment.to_le_bytes());
        for (shard, lsn) in &self.shards {
            bytes.extend_from_slice(&shard.to_le_bytes());
            bytes.extend_from_slice(&lsn.to_le_bytes());
        }
        let crc = file_crc(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, JournalError> {
        let damaged = |reason| Err(JournalError::corrupt(path.to_path_buf(), 0, reason));
        if bytes.len() < FIXED_1 || bytes[0..8] != MAGIC {
            return damaged("this is no floor file");
        }
        if le_u32(bytes, 12) != file_crc(bytes) {
            return damaged("its checksum is wrong");
        }
        let version = le_u32(bytes, 8);
        if version > VERSION {
            let path = path.to_path_buf();
            return Err(JournalError::NewerFormat { path, found: version, known: VERSION });
        }
        let (newest_segment, entries) = match version {
            ..VERSION => (0, &bytes[FIXED_1..]),
            VERSION.. if bytes.len() < FIXED => return damaged("its length is wrong"),
            VERSION.. => (le_u64(bytes, FIXED_1), &bytes[FIXED..]),
        };
        if !entries.len().is_multiple_of(ENTRY)
            || (entries.len() / ENTRY) as u64 != le_u64(bytes, 40)
        {
            return damaged("its length is wrong");
        }
        let shards = entries
            .chunks_exact(ENTRY)
            .map(|entry| (u16::from_le_bytes([entry[0], entry[1]]), le_u64(entry, 2)))
            .collect();
        Ok(Self {
            first_segment: le_u64(bytes, 16),
            newest_segment,
            dropped: le_u64(bytes, 24),
            salt: le_u32(bytes, 32),
            shards,
        })
    }

    /// Reads the floor of the journal in `dir`; `None` if the journal was never started.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> Result<Option<Self>, JournalError> {
        let path = floor_path(dir);
        let read = || -> io::Result<Vec<u8>> {
            let file = disk.open(&path)?;
            let longest = FIXED + ENTRY * (usize::from(u16::MAX) + 1);
            let size = usize::try_from(file.size()?).unwrap_or(usize::MAX).min(longest + 1);
            let mut bytes = vec![0; size];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Self::decode(&bytes, &path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(JournalError::io("reading", &path, error)),
        }
    }

    /// Durably replaces the file.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> Result<(), JournalError> {
        let path = floor_path(dir);
        let unfinished = dir.join("floor.tmp");
        let write = || {
            let file = disk.create(&unfinished)?;
            file.write_all_at(&mut [IoSlice::new(&self.encode())], 0)?;
            file.sync()?;
            disk.rename(&unfinished, &path)?;
            disk.sync_dir(dir)
        };
        write().map_err(|error| JournalError::io("writing", &path, error))
    }
}

fn file_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..])
}
