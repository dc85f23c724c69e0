//! The engine of one shard: a SlateDB instance without a WAL, written only by hand-overs and sweeps.

mod abandon;
pub(crate) mod branch;
pub(crate) mod checkpoint;
mod claims;
mod collector;
mod damage;
mod database;
mod fences;
mod figures;
pub(crate) mod files;
mod garbage;
pub(crate) mod machine;
mod memtables;
mod own_slots;
mod pace;
pub(crate) mod parts;
mod pause;
pub(crate) mod peek;
mod pinned;
pub(crate) mod points;
mod pread;
mod readers;
mod reads;
mod scans;
mod scheduler;
mod settings;
mod stuck;
#[cfg(test)]
mod tests;
mod ticks;
#[cfg(test)]
mod ticks_tests;
pub(crate) mod trial;
mod upkeep;

pub(crate) use claims::Claim;
pub use figures::EngineFigures;
pub use pace::MergePace;
pub use pause::HandOverPace;
pub(crate) use scans::ScanLimit;
pub use scheduler::MergePermits;
pub use settings::Compression;
pub use ticks::QuietIntervals;
pub use upkeep::Upkeep;

use crate::clock::Clock;
use crate::control::{garbage_key, garbage_value};
use crate::encoding::prefix_range;
use crate::journal::Lsn;
use crate::place::{Guarded, Place, Writes, admin};
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use collector::CollectorFilter;
#[cfg(test)]
pub(crate) use damage::DamagedFile;
pub(crate) use damage::UnreadableFile;
use damage::with_causes;
use database::Database;
use figures::Meters;
use garbage::Garbage;
use memtables::Memtables;
use object_store::path::Path;
pub(crate) use own_slots::OwnSlots;
use pace::PacedStore;
use points::{Follower, Points};
use readers::{EngineRead, Readers};
use settings::{MAX_LEVEL0, cache_policy, compactor_options, engine_settings, stale_after};
use slatedb::config::{SstBlockSize, WriteOptions};
use slatedb::db_cache::DbCache;
use slatedb::manifest::VersionedManifest;
use slatedb::{
    CloseReason, CompactorBuilder, Db, DbBuilder, GarbageCollectorBuilder, SstReader,
    VersionedCompactions, WriteBatch,
};
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use ticks::{EngineClock, Hurry};
use tokio::sync::{Mutex, MutexGuard};

/// Time limit for opening an engine in a remote store, and on a local disk.
const OPENING: Duration = Duration::from_secs(120);
const OPENING_LOCAL: Duration = Duration::from_secs(30);

/// Time limit for a read from a local disk. A damaged disk usually fails at once.
const LOCAL_READ: Duration = Duration::from_secs(30);

/// Time limit for a caller that waits for a flush or a checkpoint. The engine goes on trying.
const FLUSH: Duration = Duration::from_secs(60);

/// Size of a block of a file. The index has an entry for each block: with smaller blocks, the
/// indexes of a data set ten times the memory budget would not fit into their cache, and a read
/// that misses there has to read a whole index.
const BLOCK: SstBlockSize = SstBlockSize::Block16Kib;

/// Approximate maximum size of a batch of a hand-over in bytes.
pub const BATCH_BYTES: usize = 2 << 20;

/// An open engine; cheap to clone.
#[derive(Clone)]
pub struct Engine {
    /// The open database; exchanged when an engine that had closed itself is reopened.
    opened: Arc<RwLock<OpenDb>>,
    turn: Arc<Mutex<Turn>>,
    how: Arc<How>,
    /// The claim with which this process opens it again.
    next_claim: Arc<std::sync::Mutex<Claim>>,
}

/// An open database and its files.
#[derive(Clone)]
struct OpenDb {
    db: Database,
    /// Reader of its files.
    files: Arc<SstReader>,
    garbage: Arc<Garbage>,
    /// The sequence number of the last batch that it took.
    written: Arc<AtomicU64>,
    memtables: Arc<Memtables>,
    /// State of its writes.
    writes: Arc<Writes>,
    /// How soon merges should begin.
    hurry: Arc<Hurry>,
    /// Point reads in its files.
    points: Arc<Points>,
    /// Its running reads.
    readers: Arc<Readers>,
    /// Counters of its own work.
    meters: Arc<Meters>,
    /// The last sweep that found nothing to delete.
    clean: Arc<RwLock<Option<CleanSweep>>>,
    /// The slots whose rows count; `None`: all.
    slots: Option<OwnSlots>,
}

/// A sweep that found nothing to delete: behind this write, with these dead generations.
struct CleanSweep {
    seq: u64,
    dead_generations: Vec<u32>,
}

/// The arguments that an engine was opened with.
#[derive(Clone)]
struct How {
    place: Place,
    cache: Arc<dyn DbCache>,
    cache_id: u64,
    clock: Clock,
    upkeep: Upkeep,
    claim: Claim,
}

/// State that only the holder of the writing turn uses.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The lsn of the last cut that was handed over.
    pub(crate) lsn: Lsn,
    pub(crate) swept: Swept,
}

/// Position at which a sweep goes on. From the beginning it would read all tombstones of the steps
/// before.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// The first D row that was not read yet.
    pub(crate) dead: Vec<u8>,
    /// A prefix, and the key before which all rows with this prefix are deleted.
    pub(crate) rows: Option<(Vec<u8>, Vec<u8>)>,
}

impl Swept {
    /// Returns the range of the remaining rows with this prefix.
    pub(crate) fn range(&self, prefix: &[u8]) -> Range<Vec<u8>> {
        let mut range = prefix_range(prefix);
        if let Some((_, from)) = self.rows.as_ref().filter(|(swept, _)| swept == prefix) {
            range.start.clone_from(from);
        }
        range
    }

    /// Notes that the rows with this prefix up to `last` are deleted.
    pub(crate) fn up_to(&mut self, prefix: Vec<u8>, last: &[u8]) {
        self.rows = Some((prefix, [last, &[0]].concat()));
    }
}

impl Engine {
    /// Opens (or creates) the engine in a place. Must run on the background runtime: its tasks stay
    /// there.
    pub async fn open(
        place: &Place,
        cache: Arc<dyn DbCache>,
        cache_id: u64,
        clock: Clock,
        upkeep: &Upkeep,
    ) -> Result<Self> {
        Self::claim(place, (cache, cache_id), clock, upkeep, Claim::Owner).await
    }

    /// Like [`open`](Self::open), if the claim holds.
    ///
    /// # Errors
    /// Also if another process has opened the engine since.
    pub(crate) async fn claim(
        place: &Place,
        (cache, cache_id): (Arc<dyn DbCache>, u64),
        clock: Clock,
        upkeep: &Upkeep,
        claim: Claim,
    ) -> Result<Self> {
        let (place, upkeep) = (place.clone(), upkeep.clone());
        let how = How { place, cache, cache_id, clock, upkeep, claim };
        Self::open_as(Arc::new(how)).await
    }

    /// Opens the same engine anew. Copies of this one use the new one after
    /// [`replace`](Self::replace).
    pub(crate) async fn open_again(&self) -> Result<Self> {
        let slots = self.opened().slots;
        let upkeep = Upkeep { must_exist: true, slots, ..self.how.upkeep.clone() };
        let claim = *self.next_claim();
        let again = Self::open_as(Arc::new(How { upkeep, claim, ..(*self.how).clone() })).await?;
        *self.next_claim() = claim.again();
        Ok(again)
    }

    async fn open_as(how: Arc<How>) -> Result<Self> {
        let place = &how.place;
        let store = Arc::new(Guarded::new(place.store(), place.dir().is_some()));
        let limit = opening_limit(&how.upkeep);
        let writes = store.writes().clone();
        // The future is large; boxed, it needs no room in the callers' futures.
        let opening = Box::pin(how.open(store));
        let opened = within(limit, &writes, opening).await;
        let context = || format!("opening the engine of {place}");
        let opened = Arc::new(RwLock::new(opened.with_context(context)?));
        let next_claim = Arc::new(std::sync::Mutex::new(how.claim.again()));
        let engine = Self { opened, turn: Arc::default(), how: how.clone(), next_claim };
        let loaded = engine.load_garbage().await.with_context(context);
        engine.or_close(loaded).await?;
        Ok(engine)
    }

    /// Makes all copies of this engine use another one in its place. The caller must have the turn.
    pub(crate) fn replace(&self, by: &Self) {
        let new = by.opened();
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    fn opened(&self) -> OpenDb {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn db(&self) -> Database {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).db.clone()
    }

    /// Begins a read of the database: as long as the guard lives, no file is deleted that it needs.
    fn begin_read(&self) -> (EngineRead, Database) {
        let opened = self.opened.read().unwrap_or_else(PoisonError::into_inner);
        // The read uses the files of the manifest that is known after that.
        (opened.readers.begin(), opened.db.clone())
    }

    /// Returns the epoch in which its shard was split from another one, in a bucket.
    fn made_by(&self) -> Option<u64> {
        self.how.upkeep.made_by
    }

    /// Returns the place of its files.
    pub(crate) fn place(&self) -> &Place {
        &self.how.place
    }

    /// Waits for a step of a read, within its limit.
    async fn read<T>(&self, work: impl Future<Output = Result<T, slatedb::Error>>) -> Result<T> {
        let limit = self.how.upkeep.read_limit;
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done.map_err(with_causes),
            Err(_) => Err(anyhow!("no answer within {} ms", limit.as_millis())),
        }
        .with_context(|| format!("reading {}", self.how.place))
    }

    /// Returns true if each read may be a request to a bucket.
    pub(crate) fn is_remote(&self) -> bool {
        self.how.upkeep.is_remote
    }

    /// Waits until no hand-over, sweep or checkpoint is under way; none begins while the returned
    /// guard lives.
    pub async fn alone(&self) -> impl Send + '_ {
        self.turn().await
    }

    /// Waits for the turn to write.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().await
    }

    /// Writes a batch, which must not be empty, and returns its sequence number. It is not durable
    /// before [`Engine::durable`] reaches that number.
    pub async fn write(&self, rows: Vec<(Bytes, Option<Bytes>)>) -> Result<u64> {
        self.write_deleting(rows, 0).await
    }

    /// Writes a batch that deletes rows whose values have `value_bytes` in total.
    pub(crate) async fn write_deleting(
        &self,
        rows: Vec<(Bytes, Option<Bytes>)>,
        value_bytes: u64,
    ) -> Result<u64> {
        let opened = self.opened();
        // The keys are noted before any of these rows can be in a memtable.
        let noted = opened.points.note(rows.iter().map(|(key, _)| &key[..]));
        let count = rows.len();
        let mut batch = WriteBatch::new();
        let mut garbage = value_bytes;
        let mut bytes = 0;
        for (key, value) in rows {
            bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            match value {
                Some(value) => batch.put_bytes(key, value),
                None => {
                    // Counts the row and its tombstone.
                    garbage += 2 * key.len() as u64;
                    batch.delete(key);
                }
            }
        }
        if garbage > 0 {
            batch.put_bytes(garbage_key(), garbage_value(opened.garbage.add(garbage)));
        }
        self.how.upkeep.pace.take(bytes as u64);
        let db = opened.db.writer()?;
        let handle = db.write_with_options(batch, &WriteOptions::default()).await?;
        noted.written(handle.seqnum());
        opened.written.fetch_max(handle.seqnum(), Ordering::Relaxed);
        opened.memtables.took(db, memtables::memory_of(count, bytes)).await?;
        Ok(handle.seqnum())
    }

    /// Returns the sequence number of the last write since the engine was opened; 0: none.
    pub fn written(&self) -> u64 {
        self.opened().written.load(Ordering::Relaxed)
    }

    /// Returns true if a sweep of these generations found nothing, and nothing was written since.
    pub(crate) fn is_clean(&self, dead_generations: &[u32]) -> bool {
        let OpenDb { clean, written, .. } = self.opened();
        let clean = clean.read().unwrap_or_else(PoisonError::into_inner);
        clean.as_ref().is_some_and(|clean| {
            let is_unchanged = clean.seq == written.load(Ordering::Relaxed);
            is_unchanged && clean.dead_generations == dead_generations
        })
    }

    /// Notes that a sweep that began behind the write `seq` found nothing.
    pub(crate) fn set_clean(&self, seq: u64, dead_generations: Vec<u32>) {
        let clean = self.opened().clean;
        *clean.write().unwrap_or_else(PoisonError::into_inner) =
            Some(CleanSweep { seq, dead_generations });
    }

    /// Returns the pace of the merges of all engines of its node.
    pub fn merge_pace(&self) -> &Arc<MergePace> {
        &self.how.upkeep.pace
    }

    /// Returns a number that changes when the engine takes rows, or flushes or merges some.
    pub fn progress(&self) -> u64 {
        let opened = self.opened();
        let durable = opened.db.subscribe().borrow().durable_seq;
        opened.written.load(Ordering::Relaxed) + durable + opened.writes.progress()
    }

    /// Returns the part of the room for files of level 0 that is in use: 1 when the engine cannot
    /// flush any more.
    pub fn level0_use(&self) -> f64 {
        self.level0() as f64 / MAX_LEVEL0 as f64
    }

    /// Has merges begin sooner if many files of level 0 wait.
    pub fn hurry_if_crowded(&self) {
        self.opened().hurry.set(self.level0() >= scheduler::LEVEL0_MANY);
    }

    /// Returns the number of files of level 0.
    fn level0(&self) -> usize {
        let status = self.db().subscribe();
        status.borrow().current_manifest.l0().len()
    }

    /// Returns the sequence number up to which writes are flushed.
    pub fn durable(&self) -> u64 {
        self.db().subscribe().borrow().durable_seq
    }

    /// Returns why the engine has closed itself, or `None` while it is open.
    pub fn closed(&self) -> Option<Closed> {
        let reason = self.db().subscribe().borrow().close_reason?;
        Some(if reason == CloseReason::Fenced { Closed::Fenced } else { Closed::Failed })
    }

    /// Returns for how long writes to its store have failed, and the error.
    pub fn trouble(&self) -> Option<(Duration, String)> {
        self.opened().writes.trouble()
    }

    pub async fn close(&self) -> Result<()> {
        let opened = self.opened();
        let closing = async { Ok(opened.db.close().await?) };
        let closed = within(FLUSH, &opened.writes, closing).await;
        closed.with_context(|| format!("closing {}", self.how.place))
    }
}

/// Returns how long an engine may take to be opened, and writes to its store may fail while it is given rows at the
/// start.
fn opening_limit(upkeep: &Upkeep) -> Duration {
    if upkeep.is_remote { OPENING } else { OPENING_LOCAL }
}

/// Returns the greatest time in an engine's metadata: files and merges that begin later must not be
/// named by an earlier time.
fn greatest_time_ms(
    manifest: Option<&VersionedManifest>,
    merges: Option<&VersionedCompactions>,
) -> u64 {
    let mut ids = Vec::new();
    if let Some(manifest) = manifest {
        ids.extend(manifest.all_sst_views().flat_map(|view| [view.id, view.sst.id.value()]));
        ids.extend(manifest.last_compacted_l0_sst_view_id());
        ids.extend(manifest.last_compacted_l0_sst_id());
    }
    for merge in merges.into_iter().flat_map(VersionedCompactions::recent_compactions) {
        ids.push(merge.id());
        ids.extend(merge.output_ssts().iter().map(|file| file.id.value()));
    }
    let tick = manifest.map_or(0, VersionedManifest::last_l0_clock_tick);
    let tick = u64::try_from(tick).unwrap_or(0);
    ids.iter().map(|id| id.timestamp_ms()).fold(tick, u64::max)
}

impl How {
    async fn open(&self, store: Arc<Guarded>) -> Result<OpenDb> {
        machine::check_cpus()?;
        let (path, upkeep) = (self.place.root().clone(), &self.upkeep);
        // The files may be from a machine whose clock was ahead; SlateDB's clock must not step
        // back.
        let admin = admin(store.clone(), path.as_ref());
        let read = tokio::try_join!(admin.read_manifest(None), admin.read_compactions(None));
        let (manifest, merges) = read.map_err(with_causes)?;
        ensure!(
            manifest.is_some() || !upkeep.must_exist,
            "{} is missing, or empty: put the directory's files in place, or restore a backup",
            self.place
        );
        self.clock.at_least(greatest_time_ms(manifest.as_ref(), merges.as_ref()));
        if let Some(manifest) = &manifest {
            fences::complete(&self.place, manifest).await?;
        }
        let writes = store.writes().clone();
        // Merges that another process has begun are taken over after a time without any change.
        if merges.iter().any(|merges| merges.recent_compactions().any(|merge| merge.active())) {
            writes.changes().note_ahead(stale_after(upkeep));
        }
        let hurry = Arc::default();
        let clock = EngineClock::new(&self.clock, upkeep, &writes, &hurry);
        let garbage = Arc::new(Garbage::new(upkeep.least_garbage));
        let meters = Arc::new(Meters::default());
        let scheduler = scheduler::Supplier {
            garbage: garbage.clone(),
            merges: upkeep.merges.clone(),
            writes: writes.clone(),
        };
        let compactor = self.compactor(&store, scheduler).with_metrics_recorder(meters.clone());
        let files = Arc::new(SstReader::new(path.clone(), store.clone(), None, None));
        let mut settings = engine_settings(upkeep);
        let readers = Arc::new(Readers::default());
        let collector = GarbageCollectorBuilder::new(path.clone(), store.clone())
            .with_options(settings.garbage_collector_options.take().unwrap_or_default())
            .with_gc_filter(Arc::new(CollectorFilter::new(upkeep, &readers)));
        let opening = self
            .builder(&store)
            .with_settings(settings)
            .with_gc_builder(collector)
            .with_sst_block_size(BLOCK)
            .with_compactor_builder(compactor)
            .with_metrics_recorder(meters.clone())
            .with_db_cache(self.cache.clone(), self.cache_id)
            .with_block_cache_policy(cache_policy(self.has_points()))
            .with_system_clock(Arc::new(clock))
            .build();
        let db = Database::Own(Box::pin(opening).await.map_err(with_causes)?);
        readers.know(db.subscribe());
        let points = Arc::new(Points::new(memtables::limit(upkeep), upkeep.readers.clone()));
        self.follow(&points, &db, &files);
        let (written, clean, slots) = (Arc::default(), Arc::default(), upkeep.slots.clone());
        let memtables = Arc::new(Memtables::new(upkeep));
        Ok(OpenDb {
            db,
            files,
            garbage,
            written,
            memtables,
            writes,
            hurry,
            points,
            readers,
            meters,
            clean,
            slots,
        })
    }

    /// Has the files for point reads held open, if there are such reads.
    fn follow(&self, points: &Arc<Points>, db: &Database, files: &Arc<SstReader>) {
        if let Some(dir) = self.place.dir().filter(|_| self.has_points()) {
            let follower = Follower {
                points: points.clone(),
                status: db.subscribe(),
                reader: files.clone(),
                dir: dir.to_owned(),
                limits: self.upkeep.points,
            };
            tokio::spawn(follower.run());
        }
    }

    /// Returns the builder of an engine that is opened as it is claimed.
    fn builder(&self, store: &Arc<Guarded>) -> DbBuilder<Path> {
        let builder = Db::builder(self.place.root().clone(), store.clone())
            .with_filter_policies(settings::level0_filters());
        match self.claim {
            Claim::After(epoch) => builder.with_expected_epoch(epoch),
            Claim::Owner => builder,
        }
    }

    fn compactor(
        &self,
        store: &Arc<Guarded>,
        scheduler: scheduler::Supplier,
    ) -> CompactorBuilder<Path> {
        let upkeep = &self.upkeep;
        let dir = self.place.dir().map(PathBuf::from);
        let paced = PacedStore::new(store.clone(), upkeep.pace.clone(), dir);
        let compactor = CompactorBuilder::new(self.place.root().clone(), Arc::new(paced))
            .with_options(compactor_options(upkeep))
            .with_scheduler_supplier(Arc::new(scheduler));
        match &upkeep.slots {
            Some(slots) => compactor.with_compaction_filter_supplier(Arc::new(slots.clone())),
            None => compactor,
        }
    }

    /// Returns true if files are held open for point reads.
    fn has_points(&self) -> bool {
        self.place.dir().is_some() && !self.upkeep.is_remote
    }
}

/// The reason why an engine has closed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Another process has opened it, and owns it now.
    Fenced,
    /// An error that it could not survive; it may be reopened.
    Failed,
}

/// Waits for the engine within a limit, as the engine retries writes to its store without end.
async fn within<T>(
    limit: Duration,
    writes: &Writes,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => {
            let why = writes.trouble().map(|(_, why)| format!(": {why}")).unwrap_or_default();
            Err(anyhow!("it was not done within {} s{why}", limit.as_secs()))
        }
    }
}
