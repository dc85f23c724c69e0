//! The files of an engine as its manifest names them at one time, newest first.

use super::block::BlockRow;
use super::bloom::{self, Bloom};
use super::file::{Access, PointFile, Unread};
use super::packing::PackedSize;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A file in its place, with its range of keys.
#[derive(Debug)]
pub(super) struct PlacedFile {
    pub(super) first: Bytes,
    pub(super) last: Bytes,
    /// The open file; `None`: it has to be read in another way.
    pub(super) open: Option<Arc<PointFile>>,
    /// Its filter; without one, its block is read.
    pub(super) filter: Option<Arc<Bloom>>,
    /// Orders the files of all engines.
    pub(super) number: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct FileView {
    /// All rows up to this sequence number are in these files.
    pub(super) seq: u64,
    /// The files of level 0, each by itself, then the runs: newest first. Keys of a run's files
    /// ascend, and do not overlap, except that versions of one key may be in several.
    pub(super) runs: Vec<Vec<PlacedFile>>,
}

/// Place of a block on disk: its file and its offset there.
pub(super) type BlockSpot = (u64, u64);

/// Result of looking for a row in files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sought {
    /// The place of its value in the buffer.
    Value(Range<usize>),
    /// There is no such row.
    Absent,
    /// A block has to be read from the disk.
    OnDisk(BlockSpot),
    /// The row has to be read in another way.
    Elsewhere,
}

impl FileView {
    /// Returns the memory use of indexes and filters in bytes.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |file: &PlacedFile| {
            let filter = file.filter.as_ref().map_or(0, |filter| filter.bytes());
            file.open.as_ref().map_or(0, |open| open.bytes()) + filter
        };
        self.runs.iter().flatten().map(bytes).sum()
    }

    /// Returns the size of the rows in the open files.
    pub(super) fn packed_size(&self) -> PackedSize {
        let mut size = PackedSize::default();
        let open = self.runs.iter().flatten().filter_map(|file| file.open.as_ref());
        open.for_each(|file| size.add(file.size));
        size
    }

    /// Looks for the newest row of a key.
    pub(super) fn find(&self, key: &[u8], access: Access, buffer: &mut Vec<u8>) -> Sought {
        let hash = bloom::hash(key);
        for run in &self.runs {
            // After many writes level 0 has dozens of files, and most of them have nothing of the key.
            if let [file] = run.as_slice()
                && file.lacks(hash)
            {
                continue;
            }
            let end = run.partition_point(|file| *file.first <= *key);
            let Some(mut begin) = end.checked_sub(1) else { continue };
            while begin > 0 && *run[begin - 1].last >= *key {
                begin -= 1;
            }
            for file in run[begin..end].iter().filter(|file| *file.last >= *key) {
                let Some(open) = &file.open else { return Sought::Elsewhere };
                if file.lacks(hash) {
                    continue;
                }
                match open.find(key, access, buffer) {
                    Ok(BlockRow::Missing) => {}
                    Ok(BlockRow::Value(place)) => return Sought::Value(place),
                    Ok(BlockRow::Deleted) => return Sought::Absent,
                    Ok(BlockRow::Special) | Err(Unread::Unknown) => return Sought::Elsewhere,
                    Err(Unread::OnDisk(offset)) => return Sought::OnDisk((file.number, offset)),
                }
            }
        }
        Sought::Absent
    }
}

impl PlacedFile {
    /// Returns true if its filter tells that it has no row of a key with this hash.
    fn lacks(&self, hash: u64) -> bool {
        self.filter.as_ref().is_some_and(|filter| !filter.may_have(hash))
    }
}
