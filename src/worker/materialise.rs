//! Background jobs of a worker's shards: hand-overs, flushes, and sweeps of dead rows.
//!
//! A shard hands its pending rows over when they are old, when they take their share of the memory,
//! when the journal has grown long, or when a checkpoint wants them. A failed hand-over is retried.
//! After a while the engine is made to flush, so that the journal can drop its segments. A shard
//! has at most one such job at a time.

use super::Worker;
use super::resolve::FailedPasses;
use super::stall::EngineWatch;
use crate::node::REPLAYED_OPS_PER_S;
use flagstone_storage::engine::{Engine, HandOverPace};
use flagstone_storage::journal::Lsn;
use flagstone_storage::latency::{LATENCY, LatencyEvent};
use flagstone_storage::materialise::{hand_over, sweep};
use flagstone_storage::partition::{Partition, Stay};
use flagstone_storage::shard::{Cut, Shard};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Interval at which the state of the shards is checked.
const PERIOD: Duration = Duration::from_millis(50);

/// Pause before a failed hand-over is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Age from which on pending rows are handed over if the journal has grown long.
const HURRIED_AGE: Duration = Duration::from_secs(5);

/// Number of operations that a start replays in about ten seconds. From three eighths of that on,
/// the journal counts as long, whatever its bytes.
const REPLAYED_OPS: u64 = 10 * REPLAYED_OPS_PER_S;

/// The same for a journal in a bucket, which a successor reads before it serves: operations, and objects, of
/// which it gets a thousand in about a second.
const READ_OPS: u64 = 10_000_000;
const READ_OBJECTS: u64 = 2048;

/// Age of handed-over rows at which the engine is made to flush.
const FLUSH_AGE: Duration = Duration::from_secs(30);

/// Interval at which dead rows are looked for.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// State of the background jobs of one shard; one runs at a time.
#[derive(Default)]
pub(super) struct ShardJob {
    pub(super) busy: bool,
    /// Lsn of the rows that are being handed over, and of those that were last.
    pub(super) handing: Option<Lsn>,
    handed: Lsn,
    /// True while the shard's keys are read into a filter, and until that may be tried again.
    scanning: bool,
    swept: Option<Instant>,
    pub(super) flushing: bool,
    /// True while passes over blind operations run, and until that may be tried again.
    pub(super) resolving: bool,
    /// The passes that fail, until one does not.
    pub(super) unresolvable: Option<FailedPasses>,
    pub(super) watched: EngineWatch,
}

/// The background jobs of a worker's shards.
#[derive(Default)]
pub(super) struct Passes {
    /// State of each shard that is here. A task that comes back for one that has left, or has come
    /// again since, finds none.
    pub(super) jobs: RefCell<HashMap<Stay, ShardJob>>,
    /// The shard that is being split.
    pub(super) splitting: Cell<Option<u16>>,
    /// Notified when a pass over blind operations ends, or a split does.
    pub(super) ended: Notify,
    /// Shards whose rows are to be flushed as soon as possible, each up to an lsn: others wait for that.
    urged: RefCell<HashMap<u16, Lsn>>,
    /// How much of the time hand-overs run.
    pace: Arc<HandOverPace>,
}

/// Returns a shard that is still here.
fn shard_at(partition: &mut Partition, stay: Stay) -> Option<&mut Shard> {
    if !partition.is_here(stay) {
        return None;
    }
    partition.shards.get_mut(&stay.shard)
}

impl Worker {
    /// Returns true if a shard has not left since.
    pub(super) fn is_here(&self, stay: Stay) -> bool {
        self.partition.borrow().is_here(stay)
    }

    /// Starts hand-overs, flushes and sweeps of the shards, until the worker ends.
    pub(crate) async fn run_materialiser(self: Rc<Self>) {
        loop {
            tokio::time::sleep(PERIOD).await;
            if self.is_stopping() {
                self.passes.pace.hurry();
                return;
            }
            self.partition.borrow_mut().observe_flushed();
            self.share_memory();
            let journal_eighths = self.journal_eighths();
            let is_short = self.node.journal.look_for_room();
            self.node.health.short_of_disk.store(is_short, Ordering::Relaxed);
            // What is flushed makes room.
            let is_refusing = !self.node.journal.is_remote() && self.node.journal.stats().refusing;
            let urges = is_refusing.then(|| self.node.journal.durable());
            for stay in self.tended() {
                urges.map(|up_to| self.urge_flush(stay.shard, up_to));
                self.reopen_if_closed(stay);
                self.tend(stay, journal_eighths);
                self.resolve(stay, false);
            }
            self.watch_shards();
            self.publish_pressure();
        }
    }

    /// Returns the shards whose engines are open, or are to be: one that is being split has its engine closed.
    pub(super) fn tended(&self) -> Vec<Stay> {
        let splitting = self.passes.splitting.get();
        self.partition.borrow().stays().filter(|it| splitting != Some(it.shard)).collect()
    }

    /// Has the rows of a shard flushed as soon as possible, up to an lsn. Returns the lsn up to which
    /// everything is flushed, the greatest one if nothing is left; `None`: the shard is not here.
    pub(crate) fn urge_flush(&self, id: u16, up_to: Lsn) -> Option<Lsn> {
        let partition = self.partition.borrow();
        let whole = |shard: &Shard| shard.unflushed_ops() == 0;
        let reached = |shard: &Shard| if whole(shard) { Lsn::MAX } else { shard.flushed() };
        let flushed = partition.shards.get(&id).map(reached);
        let mut urged = self.passes.urged.borrow_mut();
        match flushed.filter(|lsn| *lsn < up_to) {
            Some(_) => urged.insert(id, up_to),
            None => urged.remove(&id),
        };
        flushed
    }

    /// Returns the lsn up to which a shard's engine has stored everything for sure; `None`: it is not here.
    pub(crate) fn stored_of(&self, id: u16) -> Option<Lsn> {
        self.partition.borrow().shards.get(&id).map(Shard::flushed)
    }

    /// Returns the lsn up to which others wait for a shard to be flushed.
    fn urged(&self, shard: &Shard) -> Option<Lsn> {
        let urged = self.passes.urged.borrow();
        urged.get(&shard.id).copied().filter(|up_to| shard.flushed() < *up_to)
    }

    /// Returns the part of the room for files of level 0 that a shard's engine uses; `None`: it is not
    /// here.
    pub(crate) fn level0_of(&self, id: u16) -> Option<f64> {
        self.partition.borrow().shards.get(&id).map(|shard| shard.engine().level0_use())
    }

    /// Returns true if a shard is here.
    pub(crate) fn has_shard(&self, id: u16) -> bool {
        self.partition.borrow().shards.contains_key(&id)
    }

    /// Starts a job for a shard if one is due. `journal_eighths`: how long the journal is.
    pub(super) fn tend(self: &Rc<Self>, stay: Stay, journal_eighths: u64) {
        let mut partition = self.partition.borrow_mut();
        let id = stay.shard;
        let Some(shard) = partition.shards.get(&id) else { return };
        let interval = Duration::from_millis(self.settings().handover_interval_ms);
        let share = self.shard_share(partition.shards.len());
        let due = match shard.age() {
            age if age >= interval => true,
            // At a high write rate the journal, and with it the next start, would become long.
            // Rows that the engine has, and has yet to flush, are as long in the journal: the flush comes first.
            age if age >= HURRIED_AGE => journal_eighths >= 3 && shard.unflushed_age().is_none(),
            _ => false,
        };
        shard.engine().hurry_if_crowded();
        let urged = self.urged(shard);
        // Later rows would put the flush off: there are some at each look while clients write.
        let handed = self.passes.jobs.borrow().get(&stay).map_or(0, |job| job.handed);
        let is_wanted =
            urged.is_some_and(|up_to| handed < up_to) || self.node.checkpoints.wants_rows();
        let due = due || is_wanted || shard.pending_bytes() >= share;
        if due && shard.can_cut() {
            let begun = Instant::now();
            partition.cut(id);
            LATENCY.note(LatencyEvent::HandOver, begun.elapsed());
        }
        let mut all = self.passes.jobs.borrow_mut();
        let job = all.entry(stay).or_default();
        if !job.scanning
            && let Some((presence, engine, dead)) = partition.begin_scan(id)
        {
            job.scanning = true;
            let scan = async move { presence.scan(&engine, &dead).await };
            tokio::task::spawn_local(self.clone().scan_keys(stay, scan));
        }
        if job.busy {
            return;
        }
        // Repeats a hand-over that failed because the engine closed itself.
        let again = || partition.shards.get(&id)?.handing();
        if let Some(cut) = again().or_else(|| partition.take_cut(id)) {
            job.busy = true;
            job.handing = Some(cut.lsn);
            tokio::task::spawn_local(self.clone().hand_over(stay, cut));
            return;
        }
        let Some(shard) = partition.shards.get(&id) else { return };
        let full = journal_eighths >= 3;
        match shard.unflushed_age() {
            Some(age) if (age >= FLUSH_AGE || full || urged.is_some()) && !job.flushing => {
                job.flushing = true;
                tokio::task::spawn_local(self.clone().flush(stay));
            }
            Some(_) => {}
            None if shard.may_sweep()
                && job.swept.is_none_or(|at| at.elapsed() >= SWEEP_PERIOD) =>
            {
                job.busy = true;
                tokio::task::spawn_local(self.clone().sweep(stay));
            }
            None => {}
        }
    }

    /// Returns the eighths of its maximum that the journal has.
    pub(super) fn journal_eighths(&self) -> u64 {
        (self.journal_use() * 8.0) as u64
    }

    /// Returns the part of its maximum that the journal has, in bytes, operations or objects.
    fn journal_use(&self) -> f64 {
        let stats = self.node.journal.stats();
        let (objects, most_ops) = match self.node.journal.is_remote() {
            true => (stats.segments as u64, READ_OPS),
            false => (0, REPLAYED_OPS),
        };
        let most = self.settings().journal_max_size;
        let parts =
            [(stats.bytes, most), (self.node.unflushed_ops(), most_ops), (objects, READ_OBJECTS)];
        parts.into_iter().map(|(is, most)| is as f64 / most as f64).fold(0.0, f64::max)
    }

    /// Returns the engine of a shard that is still here.
    fn engine_of(&self, stay: Stay) -> Option<Engine> {
        let partition = self.partition.borrow();
        let shard = partition.shards.get(&stay.shard).filter(|_| partition.is_here(stay))?;
        Some(shard.engine().clone())
    }

    async fn hand_over(self: Rc<Self>, stay: Stay, cut: Arc<Cut>) {
        let Some(engine) = self.engine_of(stay) else { return };
        let mut handed = None;
        while handed.is_none() && engine.closed().is_none() && self.is_here(stay) {
            let (journal, pace) = (self.node.journal.clone(), self.passes.pace.clone());
            let job = hand_over(engine.clone(), journal, cut.clone(), pace);
            let outcome = match self.node.background.spawn(job).await {
                Ok(Ok(seq)) => {
                    handed = Some(seq);
                    None
                }
                Ok(Err(error)) => Some(format!("handing rows over: {error:#}")),
                // The runtime is shutting down.
                Err(_) => return,
            };
            let failed = outcome.is_some();
            self.note_outcome(stay, outcome);
            if failed {
                tokio::time::sleep(RETRY).await;
            }
        }
        let lsn = cut.lsn;
        drop(cut);
        if let Some(seq) = handed {
            let begun = Instant::now();
            let mut partition = self.partition.borrow_mut();
            let shard = shard_at(&mut partition, stay);
            let freed = shard.and_then(|shard| shard.handed_over(lsn, seq));
            drop(partition);
            LATENCY.note(LatencyEvent::HandOver, begun.elapsed());
            self.node.background.spawn_blocking(move || drop(freed));
        }
        if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
            job.busy = false;
            job.handing = None;
            job.handed = job.handed.max(lsn);
        }
    }

    /// Records the end of a hand-over or a flush. An error is logged once, until one succeeds.
    fn note_outcome(&self, stay: Stay, error: Option<String>) {
        let mut jobs = self.passes.jobs.borrow_mut();
        let Some(job) = jobs.get_mut(&stay) else { return };
        if let Some(error) = &error
            && job.watched.error.is_none()
        {
            tracing::error!(shard = stay.shard, "{error}; trying again");
        }
        job.watched.error = error;
    }

    /// Reads the keys of a shard into a filter.
    async fn scan_keys(
        self: Rc<Self>,
        stay: Stay,
        scan: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        // The runtime may be shutting down.
        let Ok(scanned) = self.node.background.spawn(scan).await else { return };
        self.split_ended(stay.shard).await;
        if !self.is_here(stay) {
            return;
        }
        self.partition.borrow_mut().end_scan(stay.shard, scanned.is_ok());
        if let Err(error) = scanned {
            let what = format!("the keys of shard {}, for their filter", stay.shard);
            self.tell_unreadable(&what, &error);
            tokio::time::sleep(RETRY).await;
        }
        if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
            job.scanning = false;
        }
    }

    async fn flush(self: Rc<Self>, stay: Stay) {
        if let Some(engine) = self.engine_of(stay) {
            let flushed = self.node.background.spawn(async move { engine.flush().await }).await;
            if let Ok(flushed) = flushed {
                let error = flushed.err().map(|error| format!("{error:#}"));
                let failed = error.is_some();
                self.note_outcome(stay, error);
                if failed {
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
            job.flushing = false;
        }
    }

    async fn sweep(self: Rc<Self>, stay: Stay) {
        let plan = shard_at(&mut self.partition.borrow_mut(), stay).map(|shard| {
            (shard.engine().clone(), shard.generations().dead.iter().copied().collect::<Vec<_>>())
        });
        let mut more = false;
        if let Some((engine, dead)) = plan {
            let job = async move { sweep(&engine, dead).await };
            match self.node.background.spawn(job).await {
                Ok(Ok((swept, rest))) => {
                    more = rest;
                    if let Some(shard) = shard_at(&mut self.partition.borrow_mut(), stay) {
                        shard.swept(&swept);
                    }
                }
                Ok(Err(error)) if self.is_here(stay) => {
                    let what = format!("sweeping dead rows of shard {}", stay.shard);
                    self.tell_unreadable(&what, &error);
                }
                // The engine may be closed elsewhere.
                Ok(Err(_)) => {}
                Err(_) => return,
            }
        }
        if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
            job.busy = false;
            job.swept = (!more).then(Instant::now);
        }
    }

    /// Returns true if a job of a shard is running.
    pub(super) fn has_job(&self, stay: Stay) -> bool {
        let jobs = self.passes.jobs.borrow();
        jobs.get(&stay).is_some_and(|job| job.busy || job.flushing || job.resolving)
    }

    /// Waits until no job of the shards is running. Returns false if that takes too long, if a shard
    /// cannot store rows, or if the stop does not wait for that.
    pub(super) async fn jobs_done(&self, within: Duration) -> bool {
        let begun = Instant::now();
        while self.passes.jobs.borrow().values().any(|job| job.busy || job.flushing) {
            let is_hurried = self.node.ending.is_hurried();
            if is_hurried || self.is_stalled() || begun.elapsed() > within {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        !self.is_stalled()
    }

    /// Returns the greatest use of the room for files of level 0, of the engines that are not
    /// stalled: at 1 an engine flushes nothing more.
    fn level0_use(&self) -> f64 {
        let (partition, jobs) = (self.partition.borrow(), self.passes.jobs.borrow());
        let works = |stay: &Stay| jobs.get(stay).is_none_or(|job| !job.watched.is_stalled());
        let shards = partition.stays().filter(works).map(|stay| &partition.shards[&stay.shard]);
        shards.map(|shard| shard.engine().level0_use()).fold(0.0, f64::max)
    }

    fn publish_pressure(&self) {
        let partition = self.partition.borrow();
        let (stats, bytes) = (&self.stats().engine, partition.pending_bytes() as u64);
        stats.pending_bytes.store(bytes, Ordering::Relaxed);
        stats.unflushed_ops.store(partition.unflushed_ops(), Ordering::Relaxed);
        stats.handed.store(partition.handed(), Ordering::Relaxed);
        stats.unresolved.store(partition.unresolved() as u64, Ordering::Relaxed);
        stats.filter_bytes.store(partition.presence_bytes() as u64, Ordering::Relaxed);
        stats.publish_reads(partition.point_reads(), partition.point_bytes());
        stats.level0_permille.store((self.level0_use() * 1000.0) as u64, Ordering::Relaxed);
        let limit = self.node.pending_limit();
        let total = self.node.health.stalls.counted(self.node.pending_bytes(), limit);
        let pending = total as f64 / limit.max(1) as f64;
        let debt = pending.max(self.node.level0_use()).max(self.node.health.data_set.debt());
        let now = Instant::now();
        self.node.pressure.pace.adapt(now, debt);
        let wait = (self.upkeep.cpu_wait.part(now) * 1000.0) as u64;
        self.stats().cpu_wait_permille.store(wait, Ordering::Relaxed);
        if let Some(pace) = self.node.merge_pace() {
            let (journal, level0_use) = (self.node.journal.stats(), self.node.level0_use());
            pace.leave_free(journal.unflushed, level0_use);
            pace.adapt(now, self.node.cpu_wait(), level0_use);
        }
        let is_urged = partition.shards.values().any(|shard| self.urged(shard).is_some());
        if is_urged || self.node.checkpoints.wants_rows() {
            self.passes.pace.hurry();
        } else {
            self.passes.pace.adapt(now, self.node.cpu_wait(), (pending, self.journal_use()));
        }
        let since = &self.node.health.pressure_since_ms;
        let waiting = self.node.journal.stats().waiting_bytes;
        let waits = waiting > self.node.pressure.budget.journal as u64 / 2
            && !self.node.health.is_cut_off();
        let is_full = total > limit;
        let progress =
            if is_full { partition.engine_progress() } else { self.node.journal.durable() };
        let moves = self.upkeep.progress.replace(progress) != progress;
        if !is_full && !waits {
            since.store(0, Ordering::Relaxed);
        } else if moves || since.load(Ordering::Relaxed) == 0 {
            since.store(self.node.clock.now_ms(), Ordering::Relaxed);
        }
    }
}
