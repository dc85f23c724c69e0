//! The pace of merges: how much of the time they may run.
//!
//! A merge takes a CPU until it ends. Where the CPUs are busy it takes that from commands, and after
//! a load of many writes, reads would be slow for minutes although nobody waits for the merges. So
//! while threads of the server wait for a CPU, merges get just the part of the time that the writers
//! need: the bytes that engines take lately, times the work that each of them makes, divided by the
//! rate of the merges themselves. They get a multiple of that while many files of level 0 wait, so that
//! these become fewer while writers go on, and at last all of the time, before an engine cannot flush.
//! Files that no writer adds to can wait: each costs a read little. If nobody waits for a CPU, merges run
//! all the time.
//!
//! A merge is slowed where it reads its sources ([`PacedStore`]): after each stretch of work it
//! pauses, and all merges of the node with it. So the part of the time is that of all together, however
//! many shards there are.
//!
//! A merge takes room on the disk before it frees some. It leaves what flushes need: without these the journal
//! keeps its segments, and a full disk would stay full.

use super::pause::SharedPause;
use crate::journal::{Disk, RealDisk, files_of};
use crate::place::Guarded;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Part of the time that a thread waits for a CPU from which on merges give way.
pub(super) const CROWDED: f64 = 0.1;

/// Least part of the time that merges run: the space of replaced rows must be freed at some time.
const LEAST: f64 = 0.06;

/// Bytes that merges read for a byte that an engine takes: once from level 0, once or twice from
/// upper runs, three times into the last run; and as much again, to be on the safe side.
const WORK: f64 = 10.0;

/// Use of the room for files of level 0 from which on merges get more than the writers need, and
/// [`CATCHING_UP`] times as much.
const LEVEL0: (f64, f64) = (0.1, 0.3);
const CATCHING_UP: f64 = 4.0;

/// Use of that room from which on merges get more time whatever writers need, and all of it.
const LEVEL0_CROWDED: (f64, f64) = (0.6, 0.8);

/// Interval at which the pace is adapted, and the looks over which the writers' rate is measured: the rows
/// of a hand-over come at once, and when writers end, merges give way soon after that.
pub(super) const LOOK: Duration = Duration::from_millis(200);
const INFLOW_LOOKS: usize = 3;

/// Seconds in which the measured rate of merges follows a change.
const MERGING_OVER_S: f64 = 1.0;

/// Factors by which the part of the time changes at each look.
pub(super) const SLOWER: f64 = 0.5;
pub(super) const FASTER: f64 = 1.5;

/// Bytes that merges leave free on the disk in any case, for manifests and tombstones.
const LEFT_FREE: u64 = 8 << 20;

/// Interval at which errors of merges are logged: the engine tries again some times a second.
const TOLD: Duration = Duration::from_secs(60);

/// The pace of the merges of a node.
#[derive(Debug)]
pub struct MergePace {
    /// Part of the time in which merges run, in permille.
    share: AtomicU64,
    /// Bytes that engines have taken, and that merges have read.
    taken: AtomicU64,
    read: AtomicU64,
    /// Microseconds for which merges ran.
    ran_us: AtomicU64,
    control: Mutex<PaceState>,
    work: SharedPause,
    /// Bytes that merges leave free on the disk.
    left_free: AtomicU64,
}

/// State of the adaptation.
#[derive(Debug)]
struct PaceState {
    /// The last looks, and what engines had taken then; the newest one is last.
    looks: VecDeque<(Instant, u64)>,
    /// The other counters at the last look.
    read: u64,
    ran_us: u64,
    /// Bytes per second that engines take lately, and that a running merge reads.
    inflow: f64,
    merging: Option<f64>,
    share: f64,
}

impl Default for MergePace {
    fn default() -> Self {
        let control = PaceState {
            looks: VecDeque::with_capacity(INFLOW_LOOKS),
            read: 0,
            ran_us: 0,
            inflow: 0.0,
            merging: None,
            share: 1.0,
        };
        Self {
            share: AtomicU64::new(1000),
            taken: AtomicU64::default(),
            read: AtomicU64::default(),
            ran_us: AtomicU64::default(),
            control: Mutex::new(control),
            work: SharedPause::default(),
            left_free: AtomicU64::default(),
        }
    }
}

impl MergePace {
    /// Returns the part of the time in which merges run.
    pub fn share(&self) -> f64 {
        self.share.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Returns the bytes that engines have taken, and that merges have read.
    #[cfg(test)]
    pub(super) fn counted(&self) -> (u64, u64) {
        (self.taken.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Counts bytes that an engine takes.
    pub(super) fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Has merges leave room on the disk for flushes of so many bytes of records, unless these wait for merges: given the
    /// greatest use of an engine's room for files of level 0.
    pub fn leave_free(&self, bytes: u64, level0_use: f64) {
        let left = if level0_use < LEVEL0_CROWDED.0 { files_of(bytes) + LEFT_FREE } else { 0 };
        self.left_free.store(left, Ordering::Relaxed);
    }

    /// Checks that files in a directory may take so many bytes more.
    fn check_room(&self, dir: Option<&std::path::Path>, bytes: u64) -> Result<()> {
        let left_free = self.left_free.load(Ordering::Relaxed);
        let Some(free) = dir.filter(|_| left_free > 0).and_then(|dir| RealDisk.free(dir)) else {
            return Ok(());
        };
        if free >= left_free.saturating_add(bytes) {
            return Ok(());
        }
        let text = format!("the {} MiB that are free are left to flushes", free >> 20);
        let source = io::Error::new(io::ErrorKind::StorageFull, text).into();
        Err(object_store::Error::Generic { store: "Files", source })
    }

    /// Adapts the pace some times a second, given the part of the time that a thread which runs
    /// commands waits for a CPU, and the greatest use of an engine's room for files of level 0.
    pub fn adapt(&self, now: Instant, cpu_wait: f64, level0_use: f64) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let looked = control.looks.back().map(|(at, _)| now.saturating_duration_since(*at));
        if looked.is_some_and(|passed| passed < LOOK) {
            return;
        }
        let counters = [&self.taken, &self.read, &self.ran_us].map(|n| n.load(Ordering::Relaxed));
        control.measure(now, counters);
        let share = control.adapt(cpu_wait, level0_use);
        self.share.store((share * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Notes the work since the last read of any merge, and pauses if it is time. Other merges wait
    /// meanwhile, too.
    async fn pause(&self) {
        let part = |ran: Duration| {
            self.ran_us.fetch_add(ran.as_micros() as u64, Ordering::Relaxed);
            self.part()
        };
        self.work.pause(part).await;
    }

    /// Returns the share; it is never so small that a merge would stand still.
    fn part(&self) -> f64 {
        self.share().max(LEAST)
    }
}

impl PaceState {
    fn measure(&mut self, now: Instant, [taken, read, ran_us]: [u64; 3]) {
        if let Some((begin, before)) = self.looks.front() {
            let passed = now.saturating_duration_since(*begin).as_secs_f64();
            self.inflow = taken.saturating_sub(*before) as f64 / passed.max(LOOK.as_secs_f64());
        }
        if let Some((at, _)) = self.looks.back() {
            let ran = (ran_us - self.ran_us) as f64 / 1e6;
            if ran > 0.0 {
                let passed = now.saturating_duration_since(*at).as_secs_f64();
                let merging = (read - self.read) as f64 / ran;
                let before = self.merging.unwrap_or(merging);
                let part = passed.min(MERGING_OVER_S) / MERGING_OVER_S;
                self.merging = Some(before + (merging - before) * part);
            }
        }
        if self.looks.len() == INFLOW_LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((now, taken));
        (self.read, self.ran_us) = (read, ran_us);
    }

    fn adapt(&mut self, cpu_wait: f64, level0_use: f64) -> f64 {
        self.share = if cpu_wait > CROWDED {
            (self.share * SLOWER).max(self.needed(level0_use))
        } else {
            (self.share * FASTER).min(1.0)
        };
        self.share
    }

    /// Returns the least part of the time with which files do not pile up.
    fn needed(&self, level0_use: f64) -> f64 {
        // Until a merge has been measured, any inflow counts as much.
        let for_writers = match self.merging {
            Some(merging) if merging > 0.0 => WORK * self.inflow / merging,
            _ => self.inflow,
        };
        let part = |(from, to): (f64, f64)| ((level0_use - from) / (to - from)).clamp(0.0, 1.0);
        let catching_up = 1.0 + (CATCHING_UP - 1.0) * part(LEVEL0);
        (for_writers * catching_up).max(part(LEVEL0_CROWDED)).clamp(LEAST, 1.0)
    }
}

/// The store of the files that an engine merges.
#[derive(Debug)]
pub(super) struct PacedStore {
    inner: Arc<Guarded>,
    pace: Arc<MergePace>,
    /// The directory of the files, if they are on a local disk.
    dir: Option<PathBuf>,
    /// Time of the last line about an error.
    told: Mutex<Option<Instant>>,
}

impl PacedStore {
    pub(super) fn new(inner: Arc<Guarded>, pace: Arc<MergePace>, dir: Option<PathBuf>) -> Self {
        Self { inner, pace, dir, told: Mutex::default() }
    }

    /// Counts the bytes of a read, or logs its error.
    fn note<T>(&self, done: &Result<T>, bytes: impl Fn(&T) -> u64) {
        let error = match done {
            Ok(done) => {
                self.pace.read.fetch_add(bytes(done), Ordering::Relaxed);
                return;
            }
            Err(error) => error,
        };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|at| at.elapsed() >= TOLD) {
            *told = Some(Instant::now());
            tracing::error!("files cannot be merged, which is tried again: {error}");
        }
    }
}

impl fmt::Display for PacedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for PacedStore {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let has_rows = location.extension() == Some("sst") && options.range.is_some();
        if !has_rows {
            return self.inner.get_opts(location, options).await;
        }
        self.pace.pause().await;
        let result = self.inner.get_opts(location, options).await;
        self.note(&result, |result| result.range.end.saturating_sub(result.range.start));
        result
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.pace.pause().await;
        let parts = self.inner.get_ranges(location, ranges).await;
        self.note(&parts, |parts| parts.iter().map(|part| part.len() as u64).sum());
        parts
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if location.extension() == Some("sst") {
            let room = self.pace.check_room(self.dir.as_deref(), payload.content_length() as u64);
            self.note(&room, |()| 0);
            room?;
        }
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, options).await?;
        let (pace, dir) = (self.pace.clone(), self.dir.clone());
        Ok(Box::new(RoomyUpload { inner, pace, dir }))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

/// The upload of a file by a merge.
#[derive(Debug)]
struct RoomyUpload {
    inner: Box<dyn MultipartUpload>,
    pace: Arc<MergePace>,
    dir: Option<PathBuf>,
}

#[async_trait]
impl MultipartUpload for RoomyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.pace.check_room(self.dir.as_deref(), data.content_length() as u64) {
            Ok(()) => self.inner.put_part(data),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::pause::{STRETCH, pause_after};
    use super::*;
    use object_store::ObjectStoreExt;

    /// Looks so many times, with the given rates in bytes per second; returns the share.
    fn look(pace: &MergePace, at: &mut Instant, times: u32, rates: Rates) -> f64 {
        for _ in 0..times {
            *at += LOOK;
            let ran = LOOK.mul_f64(pace.share());
            pace.take((rates.inflow * LOOK.as_secs_f64()) as u64);
            pace.read.fetch_add((rates.merging * ran.as_secs_f64()) as u64, Ordering::Relaxed);
            pace.ran_us.fetch_add(ran.as_micros() as u64, Ordering::Relaxed);
            pace.adapt(*at, rates.cpu_wait, rates.level0_use);
        }
        pace.share()
    }

    #[derive(Clone, Copy)]
    struct Rates {
        inflow: f64,
        merging: f64,
        cpu_wait: f64,
        level0_use: f64,
    }

    const READS: Rates = Rates { inflow: 0.0, merging: 3e8, cpu_wait: 0.5, level0_use: 0.0 };

    #[test]
    fn merges_give_way_to_reads_while_cpus_are_busy() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        assert_eq!(look(&pace, &mut at, 20, Rates { cpu_wait: 0.0, ..READS }), 1.0);
        assert!((look(&pace, &mut at, 10, READS) - LEAST).abs() < 0.01);
        assert_eq!(look(&pace, &mut at, 10, Rates { cpu_wait: 0.05, ..READS }), 1.0);
    }

    #[test]
    fn merges_keep_up_with_writers() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        // Twelve million bytes a second make 120 million for merges, which read 300 million.
        let share = look(&pace, &mut at, 60, Rates { inflow: 12e6, ..READS });
        assert!((share - 0.4).abs() < 0.02, "{share}");
        assert_eq!(look(&pace, &mut at, 60, Rates { inflow: 60e6, ..READS }), 1.0);
        // The writers end, and some looks later their rows are merged in the least time.
        let looks = INFLOW_LOOKS as u32 + 4;
        let share = look(&pace, &mut at, looks, READS);
        assert!((share - LEAST).abs() < 0.01, "{share}");
    }

    #[test]
    fn rows_that_come_at_once_count_for_some_looks() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        look(&pace, &mut at, 20, READS);
        // Twelve million bytes a second on average, as above, but not at each look.
        let shares: Vec<f64> = (0..20)
            .map(|n| {
                let inflow = if n % INFLOW_LOOKS == 0 { 12e6 * INFLOW_LOOKS as f64 } else { 0.0 };
                look(&pace, &mut at, 1, Rates { inflow, ..READS })
            })
            .skip(10)
            .collect();
        assert!(shares.iter().all(|share| (share - 0.4).abs() < 0.02), "{shares:?}");
    }

    #[test]
    fn merges_catch_up_with_writers_while_files_of_level_0_wait() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        // Six million bytes a second need a fifth of the time.
        let writes = Rates { inflow: 6e6, ..READS };
        let shares = [0.05, 0.1, 0.2, 0.3].map(|level0_use| {
            let share = look(&pace, &mut at, 60, Rates { level0_use, ..writes });
            (share * 100.0).round()
        });
        assert_eq!(shares, [20.0, 20.0, 50.0, 80.0]);
        // Nobody waits for those that reads leave behind.
        let share = look(&pace, &mut at, 60, Rates { level0_use: 0.5, ..READS });
        assert!((share - LEAST).abs() < 0.01, "{share}");
    }

    #[test]
    fn merges_get_all_of_the_time_before_an_engine_cannot_flush() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        let share = look(&pace, &mut at, 10, Rates { level0_use: 0.7, ..READS });
        assert!((share - 0.5).abs() < 0.01, "{share}");
        assert_eq!(look(&pace, &mut at, 10, Rates { level0_use: 0.8, ..READS }), 1.0);
    }

    #[test]
    fn before_a_merge_was_measured_writers_count_fully() {
        let (pace, mut at) = (MergePace::default(), Instant::now());
        let unmeasured = Rates { inflow: 1e5, merging: 0.0, ..READS };
        assert_eq!(look(&pace, &mut at, 10, unmeasured), 1.0);
    }

    #[test]
    fn a_merge_leaves_room_for_flushes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let pace = Arc::new(MergePace::default());
        let inner = Guarded::new(Arc::new(object_store::memory::InMemory::new()), true);
        let store = PacedStore::new(Arc::new(inner), pace.clone(), Some(std::env::temp_dir()));
        let put = |name: &str| {
            let payload = || PutPayload::from(vec![7; 1000]);
            let whole = runtime.block_on(store.put(&Path::from(name), payload()));
            let parts = runtime.block_on(async {
                let mut upload = store.put_multipart(&Path::from(name)).await?;
                upload.put_part(payload()).await?;
                upload.complete().await
            });
            (whole.is_ok(), parts.is_ok())
        };
        pace.leave_free(1 << 60, 0.0);
        assert_eq!(put("a.sst"), (false, false));
        assert!(put("a.manifest").0);
        // A flush waits for merges.
        pace.leave_free(1 << 60, 0.9);
        assert_eq!(put("b.sst"), (true, true));
        pace.leave_free(0, 0.0);
        assert_eq!(put("c.sst"), (true, true));
    }

    #[test]
    fn a_merge_pauses_where_it_reads() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pace = Arc::new(MergePace::default());
        let inner = Guarded::new(Arc::new(object_store::memory::InMemory::new()), true);
        let store = PacedStore::new(Arc::new(inner), pace.clone(), None);
        let path = Path::from("a.sst");
        runtime.block_on(store.put(&path, vec![7; 1000].into())).unwrap();
        let read = |share| {
            pace.share.store(share, Ordering::Relaxed);
            runtime
                .block_on(async { pace.work.0.lock().await.since = Instant::now() - 2 * STRETCH });
            let begun = Instant::now();
            let bytes = runtime.block_on(store.get_range(&path, 100..400)).unwrap();
            assert_eq!(bytes.len(), 300);
            begun.elapsed()
        };
        // The longest stretch counts, and three times as long is the pause.
        assert!(read(250) >= 3 * STRETCH);
        read(1000);
        assert_eq!((pace.counted(), pace.ran_us.load(Ordering::Relaxed)), ((0, 600), 100_000));
        // Other files are not those of a merge.
        runtime.block_on(store.put(&Path::from("0.manifest"), vec![7; 10].into())).unwrap();
        runtime.block_on(store.get(&Path::from("0.manifest"))).unwrap();
        assert_eq!(pace.counted(), (0, 600));
    }

    #[test]
    fn the_merges_of_all_engines_pause_together() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pace = Arc::new(MergePace::default());
        let store = || {
            let inner = Guarded::new(Arc::new(object_store::memory::InMemory::new()), true);
            PacedStore::new(Arc::new(inner), pace.clone(), None)
        };
        let (one, other, path) = (store(), store(), Path::from("a.sst"));
        runtime.block_on(async {
            for store in [&one, &other] {
                store.put(&path, vec![7; 1000].into()).await.unwrap();
            }
            pace.share.store(250, Ordering::Relaxed);
            pace.work.0.lock().await.since = Instant::now() - 2 * STRETCH;
            let begun = Instant::now();
            let read = async |store: &PacedStore| {
                store.get_range(&path, 0..10).await.unwrap();
                begun.elapsed()
            };
            let (first, second) = tokio::join!(read(&one), read(&other));
            // The other one has not worked, and yet waits for the pause of the first one.
            assert!(first >= 3 * STRETCH && second >= 3 * STRETCH, "{first:?}, {second:?}");
        });
    }

    #[test]
    fn a_pause_is_as_long_as_the_share_asks_for() {
        let pace = MergePace::default();
        assert_eq!(pause_after(STRETCH, pace.part()), Duration::ZERO);
        pace.share.store(250, Ordering::Relaxed);
        assert_eq!(pause_after(STRETCH, pace.part()), 3 * STRETCH);
        pace.share.store(0, Ordering::Relaxed);
        assert!(pause_after(STRETCH, pace.part()) < STRETCH.mul_f64(1.0 / LEAST));
    }
}
