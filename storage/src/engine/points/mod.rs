//! Point reads in an engine's files without its iterators.
//!
//! SlateDB reads a row through a chain of boxed asynchronous iterators, which costs far more than
//! the search itself. Here a [`FileView`] has the data that a search needs of every file in the
//! manifest: the range of its keys, its block index, its filter, and an open descriptor. A row is
//! then one binary search per run, and nearly always one block, which is read in place if the
//! system has it in memory, and on a thread of its own if not.
//!
//! Files are only part of an engine: newer rows may be in its memtables. [`RecentKeys`] has the
//! keys of all rows that no file of the view has. SlateDB reads such keys, files that are not held
//! open or have another format, merge operands, and blocks that are damaged or cannot be read, so
//! that callers get its errors. So an answer from here is one that SlateDB would give. That rests
//! on these facts:
//!
//! - All batches go through [`Engine::write`](super::Engine::write), which notes their keys before
//!   it gives them to SlateDB. There is no WAL, so a memtable has nothing else. A new engine for
//!   one that closed itself begins with no keys, and gets the rows that its files lack by the same
//!   call.
//! - A memtable becomes a file of level 0 as a whole, in order, and the manifest that names the
//!   file names the last sequence number of the memtable. Keys are dropped together with the
//!   exchange of the view, so every snapshot has each row in its files or among its keys.
//! - Files do not change, and a descriptor outlives its name.
//!
//! Rows that sweeps write need no care of their own: they are noted as any others, and delete rows
//! that nothing refers to any more.

mod block;
mod bloom;
mod codec;
mod file;
mod follow;
mod packing;
mod readers;
mod recent;
#[cfg(test)]
mod tests;
mod view;

pub(super) use follow::Follower;
pub(crate) use packing::{CodecCost, PackedSize};
pub(crate) use readers::DiskReaders;

use bytes::Bytes;
use file::Access;
use packing::CodecSamples;
use recent::{KeyBits, RecentKeys};
use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use tokio::sync::oneshot;
use view::{BlockSpot, FileView, Sought};

/// Bytes of a thread's buffer for blocks that are kept.
const BUFFER: usize = 64 << 10;

/// The share of blocks that the system has in memory, of this number, below which a thread tries to
/// read only some in place: a try that fails is a system call for nothing.
const ALL_CACHED: u32 = 1 << 16;
const WORTH_TRYING: u32 = ALL_CACHED / 10;

/// Below that share it tries one block in so many.
const COLD_TRIES: u32 = 32;

/// A try counts as one part in so many of that share.
const CACHED_PARTS: u32 = 32;

thread_local! {
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// The share of blocks that were in memory lately, of [`ALL_CACHED`].
    static CACHED: Cell<u32> = const { Cell::new(ALL_CACHED) };
    /// Number of reads that were not tried in place.
    static UNTRIED: Cell<u32> = const { Cell::new(0) };
}

/// Maximum number of files that the engines of a directory hold open for point reads.
pub(crate) const MAX_FILES: usize = 512;

/// Limits of the memory that an engine holds for point reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PointLimits {
    /// Bytes of indexes and filters.
    pub(crate) bytes: usize,
    pub(crate) files: usize,
}

impl Default for PointLimits {
    fn default() -> Self {
        Self { bytes: 4 << 20, files: 64 }
    }
}

/// The state of an engine's point reads at one time.
#[derive(Debug, Default)]
struct Snapshot {
    /// `None`: everything is read in another way.
    view: Option<Arc<FileView>>,
    /// The keys of all rows that may be in memtables.
    recent: Vec<Arc<KeyBits>>,
}

/// Point reads in one open engine. See the module's description.
#[derive(Debug)]
pub(crate) struct Points {
    snapshot: RwLock<Arc<Snapshot>>,
    recent: Mutex<RecentKeys>,
    readers: Arc<DiskReaders>,
    samples: CodecSamples,
}

/// Result of a point read in memory.
pub(crate) enum Point<T> {
    /// The row was found, or it is certain that there is none.
    Known(T),
    /// It has to be read from the disk.
    OnDisk(OnDisk),
    /// It has to be read by SlateDB.
    Elsewhere,
}

/// A row to read from the disk.
pub(crate) struct OnDisk {
    snapshot: Arc<Snapshot>,
    spot: BlockSpot,
    readers: Arc<DiskReaders>,
}

/// A batch whose keys are noted.
pub(super) struct Noted<'a> {
    points: &'a Points,
    layer: u64,
}

impl Noted<'_> {
    /// Notes the sequence number under which the batch was written. A batch that failed has none,
    /// and its keys stay.
    pub(super) fn written(self, seq: u64) {
        self.points.recent().written(self.layer, seq);
    }
}

impl Points {
    /// Begins with an engine that has nothing in its memtables, and without files.
    pub(super) fn new(memtable_bytes: usize, readers: Arc<DiskReaders>) -> Self {
        let recent = Mutex::new(RecentKeys::new(memtable_bytes));
        let samples = CodecSamples::default();
        Self { snapshot: RwLock::default(), recent, readers, samples }
    }

    fn recent(&self) -> MutexGuard<'_, RecentKeys> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Exchanges the view, if one is given, and publishes it with the noted keys.
    fn publish(&self, recent: &RecentKeys, view: Option<Option<Arc<FileView>>>) {
        let mut snapshot = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        let view = view.unwrap_or_else(|| snapshot.view.clone());
        *snapshot = Arc::new(Snapshot { view, recent: recent.bits() });
    }

    /// Exchanges the view. `None`: there is none, until the next.
    fn exchange(&self, view: Option<FileView>) {
        let mut recent = self.recent();
        if let Some(view) = &view {
            recent.flushed(view.seq);
        }
        self.publish(&recent, Some(view.map(Arc::new)));
    }

    /// Notes the keys of a batch, which must not be written before.
    pub(super) fn note<'a>(&self, keys: impl ExactSizeIterator<Item = &'a [u8]>) -> Noted<'_> {
        let mut recent = self.recent();
        let (layer, bits, is_new) = recent.begin(keys.len());
        if is_new {
            self.publish(&recent, None);
        }
        drop(recent);
        recent::note(&bits, keys);
        Noted { points: self, layer }
    }

    /// Looks for a row, and passes its value, or `None` if there is no such row, to `take`. Reads a
    /// block only if the system has it in memory, and only if `tries`.
    pub(crate) fn find<T>(
        &self,
        key: &[u8],
        tries: bool,
        take: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Point<T> {
        let snapshot = self.snapshot();
        let access = if tries && is_worth_trying() { Access::InMemory } else { Access::Locate };
        with_buffer(|buffer| match snapshot.find(key, access, buffer) {
            Sought::Value(place) => {
                note_try(access, true);
                Point::Known(take(Some(&buffer[place])))
            }
            Sought::Absent => Point::Known(take(None)),
            Sought::OnDisk(spot) => {
                note_try(access, false);
                Point::OnDisk(OnDisk { snapshot, spot, readers: self.readers.clone() })
            }
            Sought::Elsewhere => Point::Elsewhere,
        })
    }

    /// Returns the size of the rows in the open files.
    pub(super) fn packed_size(&self) -> PackedSize {
        self.snapshot().view.as_ref().map_or_else(PackedSize::default, |view| view.packed_size())
    }

    /// Returns the cost of compression, by the files that were opened.
    pub(super) fn codec_cost(&self) -> CodecCost {
        self.samples.cost()
    }

    /// Returns the memory use of the view and the noted keys, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let snapshot = self.snapshot();
        let recent: usize = snapshot.recent.iter().map(|bits| bits.bytes()).sum();
        snapshot.view.as_ref().map_or(0, |view| view.bytes()) + recent
    }
}

/// A row's value, or that it is absent; `None`: SlateDB has to read it.
pub(crate) type DiskRow = Option<Option<Bytes>>;

/// Rows that are being read from the disk, each with its number among those that were asked for.
pub(crate) type DiskRows = oneshot::Receiver<Vec<(usize, DiskRow)>>;

/// Begins to read rows from the disk. Each receiver gets some of them, or an error if no thread
/// could be started.
pub(crate) fn read_from_disk(rows: Vec<(usize, Vec<u8>, OnDisk)>) -> Vec<DiskRows> {
    let readers = rows.first().map(|(_, _, row)| row.readers.clone());
    readers.map_or_else(Vec::new, |readers| readers.read(rows))
}

/// Returns true if a block is likely enough to be in the system's memory, or if that is to be found
/// out.
fn is_worth_trying() -> bool {
    if CACHED.get() >= WORTH_TRYING {
        return true;
    }
    let untried = UNTRIED.get().wrapping_add(1);
    UNTRIED.set(untried);
    untried.is_multiple_of(COLD_TRIES)
}

/// Notes if the block that was tried in place was in memory.
fn note_try(access: Access, was_cached: bool) {
    if access == Access::InMemory {
        let share = CACHED.get();
        let gain = if was_cached { ALL_CACHED / CACHED_PARTS } else { 0 };
        CACHED.set(share - share / CACHED_PARTS + gain);
    }
}

/// Runs `work` with this thread's buffer.
fn with_buffer<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    BLOCK.with_borrow_mut(|buffer| {
        let done = work(buffer);
        if buffer.capacity() > BUFFER {
            *buffer = Vec::new();
        }
        done
    })
}

impl Snapshot {
    fn find(&self, key: &[u8], access: Access, buffer: &mut Vec<u8>) -> Sought {
        let Some(view) = &self.view else { return Sought::Elsewhere };
        if !self.recent.is_empty() {
            let hash = recent::hash(key);
            if self.recent.iter().any(|bits| bits.may_have(hash)) {
                return Sought::Elsewhere;
            }
        }
        view.find(key, access, buffer)
    }
}
