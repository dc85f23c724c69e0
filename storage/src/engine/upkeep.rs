//! Settings of an engine's files.

use super::pace::MergePace;
use super::points::{DiskReaders, PointLimits};
use super::scheduler::MergePermits;
use super::settings::{self, Compression};
use super::ticks::QuietIntervals;
use super::{LOCAL_READ, OwnSlots, memtables};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// See the module's description.
#[derive(Clone, Debug)]
pub struct Upkeep {
    /// Memory of a memtable in bytes before it is flushed, within bounds.
    pub memtable_bytes: usize,
    /// Bytes that merges read ahead, within bounds.
    pub merge_bytes: usize,
    /// Permits for merges, which all engines of a node share.
    pub merges: MergePermits,
    /// How much of the time they run; shared in the same way.
    pub pace: Arc<MergePace>,
    /// Number of memtables that are flushed at a time: each is in memory once more meanwhile.
    pub flushes: usize,
    /// Bytes of deleted rows below which all files are never merged because of them.
    pub least_garbage: u64,
    /// How new files are compressed, if at all.
    pub compression: Option<Compression>,
    /// Interval of checks for merges to start, and for merges that ended.
    pub poll: Duration,
    /// How long replaced files are kept: reads end long before. `None`: until no read of this
    /// process may need them any more, because no other process reads them without a checkpoint.
    pub keep_files: Option<Duration>,
    /// Interval of checks for files to delete.
    pub collect: Duration,
    /// Intervals of all these checks while nothing changes; `None`: the same.
    pub quiet: Option<QuietIntervals>,
    /// Local directory for files that were read, and the bytes it may take.
    pub disk_cache: Option<(PathBuf, u64)>,
    /// Time limit for each step of a read.
    pub read_limit: Duration,
    /// True if each read may be a request to a bucket.
    pub is_remote: bool,
    /// The slots whose rows count, if its shard was split; `None`: all.
    pub(crate) slots: Option<OwnSlots>,
    /// The epoch, or the life, that has split its shard from another one, in a bucket.
    pub(crate) made_by: Option<u64>,
    /// True if a missing engine is an error, false if it is created.
    pub must_exist: bool,
    /// How much of its files is held for point reads, if these are in a local directory.
    pub(crate) points: PointLimits,
    /// The threads that read from the disk for them.
    pub(crate) readers: Arc<DiskReaders>,
}

impl Upkeep {
    /// Returns the settings for a store in which each check is a paid request.
    pub fn remote(read_limit: Duration) -> Self {
        Self {
            poll: Duration::from_secs(5),
            keep_files: Some(Duration::from_secs(600)),
            collect: Duration::from_secs(300),
            quiet: Some(QuietIntervals::BUCKET),
            read_limit,
            is_remote: true,
            ..Self::default()
        }
    }
}

impl Default for Upkeep {
    fn default() -> Self {
        Self {
            memtable_bytes: *memtables::MEMTABLE_BYTES.end(),
            merge_bytes: settings::MOST_READ_AHEAD,
            merges: MergePermits::new(1, 1),
            pace: Arc::default(),
            flushes: 2,
            least_garbage: 8 << 20,
            compression: None,
            poll: Duration::from_millis(200),
            keep_files: None,
            collect: Duration::from_secs(2),
            quiet: None,
            disk_cache: None,
            read_limit: LOCAL_READ,
            is_remote: false,
            slots: None,
            made_by: None,
            must_exist: false,
            points: PointLimits::default(),
            readers: Arc::default(),
        }
    }
}
