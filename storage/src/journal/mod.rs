//! The node's journal: one totally ordered log of commits for all shards.
//!
//! A commit is one record, whatever number of shards it touches, so a crash leaves a prefix of
//! history over all of them. The journal is the truth; the engine is its materialisation.
//! The bytes are described in `docs/format.md`.

mod append;
mod bucket;
mod disk;
mod extract;
mod floor;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod history;
mod home;
mod local;
mod read;
mod record;
mod recovered;
mod recovery;
mod refusal;
mod room;
mod scan;
mod segment;
mod shelf;
mod sync;
mod upkeep;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::lease::Lease;
use crate::slot::NotOwned;

#[cfg(test)]
pub(crate) use bucket::OBJECT_HEADER;
pub use bucket::{
    BucketJournal, BucketOptions, BucketRecovery, BucketView, JournalCondition, JournalLook,
    JournalSight, JournalTail, TailStep,
};
pub(crate) use disk::of_link;
pub use disk::{Disk, File, RealDisk};
pub use extract::Extract;
pub use history::{HistoryEnd, check_archive, read_history, segment_begun_ms};
pub(crate) use home::HomeDisk;
pub use local::LocalJournal;
pub use read::HoldId;
pub use recovered::{Pieces, Recovered};
pub use recovery::Recovery;
pub(crate) use room::files_of;
pub(crate) use segment::segment_number;

/// Log sequence number, a commit's position in the journal: from 1 on, greater for later commits; 0
/// means "nothing".
pub type Lsn = u64;

/// The time at which an appended commit is made durable; Redis's `appendfsync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncMode {
    /// Sync as long as a commit is not durable.
    Always,
    /// Sync once per bound; appends stall when the oldest undurable commit is twice as old.
    EverySec,
    /// Sync only on request, by [`Journal::request_sync`].
    No,
}

/// A commit, as replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub lsn: Lsn,
    /// The epoch in which it was written: each start opens a greater one.
    pub epoch: u64,
    /// The committer's clock, milliseconds since 1970.
    pub time_ms: u64,
    /// The shards that it touches.
    pub shards: Vec<u16>,
    pub body: Bytes,
}

/// A part of a complete commit, as replayed: large commits come in several.
#[derive(Debug, Clone)]
pub struct CommitPiece {
    /// The commit, with this part of its body.
    pub record: Record,
    pub first: bool,
    pub last: bool,
}

/// A callback that runs after the durable lsn advanced and after the journal failed, on the thread
/// that noticed it.
pub type Subscriber = Box<dyn Fn() + Send + Sync>;

/// The reason why the journal could not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Nothing was written and no lsn consumed; the same append may succeed later.
    #[error("no space left for the journal in {}", path.display())]
    NoSpace { path: PathBuf },
    /// The same, although the disk is not full: the engines need what is free to store what the journal has.
    #[error(
        "no space left for the journal in {}: the shards need the {} MiB that are free to store what it has",
        path.display(), free >> 20
    )]
    NoRoom { path: PathBuf, free: u64 },
    /// Nothing was written and no lsn consumed.
    #[error("{doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    /// No append is accepted until a restart.
    #[error("the journal has failed: {0}")]
    Failed(String),
    /// The journal's store does not answer. Nothing was written and no lsn consumed; the same
    /// append may succeed later.
    #[error("the journal's store {place} is away: {reason}")]
    Away { place: String, reason: String },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
    /// The journal was ended for good: its data has become a cluster's.
    #[error(
        "the journal {place} has ended: its data was given to a cluster. If `flagstone cluster \
         convert` was interrupted, run it again"
    )]
    Ended { place: String },
    /// The commit cannot be represented.
    #[error("the commit is too large for the journal: {0}")]
    TooLarge(&'static str),
    /// The record has operations of a shard that is not attached. Nothing was written.
    #[error("a record for a shard that this process does not have: {0}")]
    NotOwned(#[from] NotOwned),
    /// Something durable is damaged or missing.
    #[error("the journal is damaged: {}, offset {offset}: {reason}", path.display())]
    Corrupt { path: PathBuf, offset: u64, reason: String },
    /// Written by a newer version of the program.
    #[error("{} has format version {found}; this program knows up to {known}", path.display())]
    NewerFormat { path: PathBuf, found: u32, known: u32 },
    /// Records that a reader held were dropped, as the journal had grown too large for its hold.
    #[error("the journal has grown too long to keep its records for a reader")]
    HoldBroken,
    /// A shard directory is older than records that the journal has dropped.
    #[error(
        "shard {shard} is an older copy: it holds lsn {applied}, and the journal has dropped \
         records of this shard up to {floor}"
    )]
    OlderShard { shard: u16, applied: Lsn, floor: Lsn },
}

impl JournalError {
    /// Creates an I/O error at `path`; a lack of space becomes [`JournalError::NoSpace`].
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace { path },
            _ => Self::Io { doing, path, source },
        }
    }

    fn corrupt(path: PathBuf, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { path, offset, reason: reason.into() }
    }
}

/// Statistics for INFO and for choosing the shards to flush.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Number of segments that hold records, including the open one.
    pub segments: usize,
    /// Number of prepared segments.
    pub spares: usize,
    /// Number of dropped segments that the archive did not take yet. In a bucket: of dropped objects, while the store
    /// refuses to archive or delete them.
    pub left: usize,
    /// Bytes in use in all segments.
    pub bytes: u64,
    /// Bytes in use in segments with records that engines have not flushed, if their files share its disk.
    pub unflushed: u64,
    /// Bytes in memory that wait for a remote store.
    pub waiting_bytes: u64,
    /// True if the last append was refused, for lack of space or by an error.
    pub last_refused: bool,
    /// True while writes are refused: since an append was, no space has been found.
    pub refusing: bool,
    /// Number of commits since the start.
    pub appends: u64,
    /// Bytes appended since the start, headers included.
    pub appended_bytes: u64,
    /// Number of syncs since the start.
    pub syncs: u64,
    /// Upper bound of each shard's bytes of records above its flushed `applied`, counted by whole
    /// segments. A record of several shards counts for each. Shards without any are left out.
    pub backlog: Vec<(u16, u64)>,
    /// The shards that keep the oldest segment from being dropped.
    pub holders: Vec<u16>,
}

/// The node's journal.
pub trait Journal: Send + Sync {
    /// Appends one commit: `time_ms` is the committer's clock, `shards` the shards that it touches,
    /// its body the concatenation of `body`. When it returns, a local journal has passed the commit
    /// to the kernel, so that it outlives the process, and a journal in a bucket has it in memory;
    /// it is durable once [`durable`](Self::durable) has reached the returned lsn.
    ///
    /// After an error nothing of the commit is in the journal and no lsn is consumed.
    fn append(&self, time_ms: u64, shards: &[u16], body: &[&[u8]]) -> Result<Lsn, JournalError>;

    /// Returns the last lsn appended.
    fn end(&self) -> Lsn;

    /// Returns the greatest time of a commit appended, in this epoch or before.
    fn max_time_ms(&self) -> u64;

    /// Returns the greatest lsn up to which every commit is durable. Wait-free.
    fn durable(&self) -> Lsn;

    /// Requests that everything up to `lsn` is made durable soon, in any mode.
    fn request_sync(&self, lsn: Lsn);

    /// Makes everything appended before the call durable, on the calling thread, and returns the
    /// durable lsn.
    fn sync_now(&self) -> Result<Lsn, JournalError>;

    /// Changes the mode; a stricter one also applies to commits already appended.
    fn set_mode(&self, mode: SyncMode);

    /// Changes how long commits gather in a bucket before an object is put for them, also for those
    /// that gather now. A local journal gathers only for its syncs.
    fn set_commit_window(&self, _window: Duration) {}

    /// Returns how long commits gather.
    fn commit_window(&self) -> Duration {
        Duration::ZERO
    }

    /// Adds a callback. It must be short, and must neither append nor subscribe.
    fn subscribe(&self, subscriber: Subscriber);

    /// Returns why the journal accepts no more writes, if it does not: a sync failed, or a failed
    /// append could not be wiped. Only a restart helps.
    fn failed(&self) -> Option<String>;

    /// Returns true if it is in a store over a network, for which a worker's thread must not wait.
    fn is_remote(&self) -> bool {
        false
    }

    /// Looks for room on its disk. Returns true if there is some for what engines have not flushed, but hardly for
    /// more: what adds data should be refused, so that what removes it is not. It counts as refusing then, and
    /// prepared segments are removed. Commits are refused once there is no room at all.
    fn look_for_room(&self) -> bool {
        false
    }

    /// Returns the error of the journal's store if the oldest commit has waited for it too long.
    /// Appends are refused until it answers; waiting commits may become durable then.
    fn away(&self) -> Option<JournalError> {
        None
    }

    /// Returns true if requests to a remote store fail at present: an attempt has, and none has succeeded
    /// since.
    fn is_in_trouble(&self) -> bool {
        false
    }

    /// Returns the lease to confirm before a reply leaves, if another server may take the journal
    /// over at any time; a local journal is locked instead.
    fn lease(&self) -> Option<Arc<Lease>> {
        None
    }

    /// Returns the number up to which all objects of the epoch are stored, of a journal in a bucket.
    fn published(&self) -> u64 {
        0
    }

    /// Returns true if another server has taken the journal over: the data in memory may be stale.
    fn is_taken_over(&self) -> bool {
        false
    }

    /// Notes that the rows of `shard` up to `applied` are flushed in its engine, so that records
    /// may be dropped.
    fn flushed(&self, shard: u16, applied: Lsn);

    /// Returns the oldest lsn whose record is whole in the journal, or the next one if it holds
    /// none.
    fn oldest(&self) -> Lsn;

    fn stats(&self) -> JournalStats;

    /// Keeps the existing records from `from` on until [`release`](Self::release), or until the
    /// journal has more than `max_bytes`.
    fn hold(&self, from: Lsn, max_bytes: u64) -> HoldId;

    fn release(&self, hold: HoldId);

    /// Passes the commits of a range (first and last lsn, inclusive) to `each`, in order. They must
    /// have been appended, and be kept by `hold`. It waits for disks and networks: call it on a
    /// blocking thread of a Tokio runtime.
    ///
    /// # Errors
    /// [`JournalError::HoldBroken`] if they are not kept any more; [`JournalError::Corrupt`];
    /// [`JournalError::Away`]; [`JournalError::Io`], also for errors of `each`.
    fn read(
        &self,
        hold: HoldId,
        range: (Lsn, Lsn),
        each: &mut dyn FnMut(Record) -> io::Result<()>,
    ) -> Result<(), JournalError>;

    /// Returns the epoch, which is greater for each start.
    fn epoch(&self) -> u64;

    /// Syncs everything, marks the end and accepts no more appends. Returns the durable lsn.
    fn close(&self) -> Result<Lsn, JournalError>;
}

/// Options of a local journal.
#[derive(Clone)]
pub struct Options {
    /// Size of a segment file in bytes; at least [`Options::MIN_SEGMENT`]. Existing segments of
    /// another size stay readable.
    pub segment_bytes: u64,
    /// Age of an undurable commit in [`SyncMode::EverySec`] at which a sync starts.
    pub everysec_bound: Duration,
    pub mode: SyncMode,
    /// True if the committer calls [`Journal::sync_now`] itself: in [`SyncMode::Always`] the sync
    /// thread then acts on requests only, so that a commit is not synced twice.
    pub inline_sync: bool,
    /// Random number for a new directory. Clients do not know it, so the values they store cannot
    /// be taken for journal records.
    pub salt: u32,
    /// Directory for dropped segments; `None`: they are reused.
    pub archive: Option<PathBuf>,
    /// True if the engines are on the same disk: then it leaves room for their files.
    pub leaves_room: bool,
    pub disk: Arc<dyn Disk>,
}

impl Options {
    /// The smallest segment, in bytes.
    pub const MIN_SEGMENT: u64 = 4096;
    /// Number of segments prepared ahead: not more, so that dropped ones are reused and none is
    /// written anew.
    pub(crate) const READY: usize = 1;
    /// Minimum and maximum number of prepared and recycled segments that are kept: as many as were
    /// dropped at once, since the next round will need as many.
    pub(crate) const SPARES: RangeInclusive<usize> = 2..=16;

    /// Returns the greatest body of one part of a commit, in bytes.
    pub(crate) fn max_part(&self) -> usize {
        usize::try_from((self.segment_bytes / 4).min(8 << 20)).unwrap_or(8 << 20)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            everysec_bound: Duration::from_millis(1000),
            mode: SyncMode::Always,
            inline_sync: false,
            salt: 0,
            archive: None,
            leaves_room: false,
            disk: Arc::new(RealDisk),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("segment_bytes", &self.segment_bytes)
            .field("everysec_bound", &self.everysec_bound)
            .field("mode", &self.mode)
            .field("inline_sync", &self.inline_sync)
            .finish_non_exhaustive()
    }
}
