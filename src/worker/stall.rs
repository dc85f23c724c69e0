//! Detects shards whose engines take no rows, logs them, and reopens engines that have closed
//! themselves.

use super::Worker;
use super::resolve::FailedPasses;
use crate::stalls::Stall;
use flagstone_storage::engine::{Closed, Engine};
use flagstone_storage::partition::Stay;
use flagstone_storage::place::tells_of_full_disk;
use flagstone_storage::shard::Reopen;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Time without progress after which an engine that has work to do is stalled, if the machine has a
/// CPU for it.
const SILENT: Duration = Duration::from_secs(5);

/// Maximum time that counts between two looks at an engine: a worker that did not look was busy
/// itself.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

/// Minimum part of the time that counts while the machine has no CPU for the engine.
const LEAST_COUNTED: f64 = 0.1;

/// Time of refused writes after which an engine is stalled.
const FAILING: Duration = Duration::from_secs(1);

/// First and last pause between attempts to open an engine again; each pause is twice the one
/// before.
const REOPEN_FIRST: Duration = Duration::from_millis(500);
const REOPEN_LAST: Duration = Duration::from_secs(30);

/// Interval at which the same error of reading is logged again, and how many different errors are
/// kept.
const REPEATED: Duration = Duration::from_secs(60);
const MAX_TOLD: usize = 16;

/// Errors of reading that were logged lately.
#[derive(Default)]
pub(super) struct RecentErrors(RefCell<HashMap<String, Instant>>);

impl RecentErrors {
    fn is_news(&self, text: &str, now: Instant) -> bool {
        let mut told = self.0.borrow_mut();
        told.retain(|_, at| now.duration_since(*at) < REPEATED);
        if told.len() >= MAX_TOLD || told.contains_key(text) {
            return false;
        }
        told.insert(text.to_owned(), now);
        true
    }
}

/// Observed state of a shard's engine.
#[derive(Default)]
pub(super) struct EngineWatch {
    silence: Silence,
    stall: Option<Stall>,
    /// Error of the last hand-over, flush or opening.
    pub(super) error: Option<String>,
    /// Time of the next attempt to open it, and the pause after that.
    reopen_at: Option<Instant>,
    pause: Duration,
}

/// How long an engine has made no progress although it has work to do.
#[derive(Debug, Default)]
struct Silence {
    /// Its progress at the last look.
    progress: u64,
    looked_at: Option<Instant>,
    /// Time without progress; less while workers wait for a CPU, as the engine then does, too.
    time: Duration,
}

impl Silence {
    /// Returns the time without progress. `progress`: that of an engine with work to do; `cpu_wait`:
    /// the part of the time that workers wait for a CPU.
    fn look(&mut self, now: Instant, progress: Option<u64>, cpu_wait: f64) -> Duration {
        let before = self.looked_at.replace(now).unwrap_or(now);
        match progress {
            Some(progress) if progress == self.progress => {
                let passed = now.saturating_duration_since(before).min(BETWEEN_LOOKS);
                self.time += passed.mul_f64((1.0 - cpu_wait).max(LEAST_COUNTED));
            }
            progress => {
                self.progress = progress.unwrap_or_default();
                self.time = Duration::ZERO;
            }
        }
        self.time
    }
}

impl EngineWatch {
    /// Returns why the engine is stalled now, if it is. `waits`: it has work to do. `unread`: the rows
    /// that a hand-over has to know before cannot be read. `cpu_wait`: the part of the time that workers
    /// wait for a CPU.
    fn look(
        &mut self,
        now: Instant,
        engine: &Engine,
        (waits, unread): (bool, Option<&FailedPasses>),
        cpu_wait: f64,
    ) -> Option<String> {
        let silence = self.silence.look(now, waits.then(|| engine.progress()), cpu_wait);
        let error = || self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        match engine.closed() {
            Some(Closed::Fenced) => {
                return Some("another process has opened its files; restart the server".into());
            }
            Some(Closed::Failed) => {
                return Some(format!(
                    "its engine has closed itself, and is opened again{}",
                    error()
                ));
            }
            None => {}
        }
        if let Some((_, why)) = engine.trouble().filter(|(time, _)| *time >= FAILING) {
            return Some(why);
        }
        // One pass alone may take that long.
        if let Some(passes) = unread.filter(|it| it.last.duration_since(it.since) >= SILENT) {
            return Some(format!(
                "rows that writes have replaced cannot be read: {}",
                passes.error
            ));
        }
        (silence >= SILENT).then(|| format!("its engine takes no rows{}", error()))
    }

    /// Returns true if the engine was stalled at the last check.
    pub(super) fn is_stalled(&self) -> bool {
        self.stall.is_some()
    }

    /// Schedules the next attempt after a failed opening.
    fn back_off(&mut self) {
        self.pause = (self.pause * 2).clamp(REOPEN_FIRST, REOPEN_LAST);
        self.reopen_at = Some(Instant::now() + self.pause);
    }
}

/// Returns the reason of the engine as operators read it: the name of a file says nothing about a
/// full disk.
fn in_short(why: String) -> String {
    if tells_of_full_disk(&why) { "No space left on device".to_owned() } else { why }
}

impl Worker {
    /// Checks the shards' engines, and logs changes of their state.
    pub(super) fn watch_shards(&self) {
        let now = Instant::now();
        let partition = self.partition.borrow();
        let mut jobs = self.passes.jobs.borrow_mut();
        let (durable, cpu_wait) = (self.node.journal.durable(), self.node.cpu_wait());
        for stay in self.tended() {
            let (id, shard) = (stay.shard, &partition.shards[&stay.shard]);
            let job = jobs.entry(stay).or_default();
            // A hand-over waits for the journal first.
            let hands = job.handing.is_some_and(|lsn| lsn <= durable);
            let waits = hands || job.flushing;
            let is_held_up = !shard.is_mirrored() && shard.unresolved() > 0;
            let unread = job.unresolvable.as_ref().filter(|_| is_held_up);
            let why = job.watched.look(now, shard.engine(), (waits, unread), cpu_wait);
            let stall = match shard.broken() {
                Some(lsn) => Some(Stall {
                    why: format!("the record {lsn} of the journal cannot be understood"),
                    is_broken: true,
                }),
                None => why.map(|why| Stall { why: in_short(why), is_broken: false }),
            };
            if stall.is_some() != job.watched.stall.is_some() {
                match &stall {
                    Some(stall) => tracing::error!(
                        shard = id,
                        "a shard cannot store rows: {}; its writes are refused when too many wait, \
                        and the journal keeps all records",
                        stall.why
                    ),
                    None => tracing::info!(shard = id, "the shard stores rows again"),
                }
            }
            self.node.health.stalls.set(id, stall.as_ref(), shard.pending_bytes() as u64);
            job.watched.stall = stall;
        }
        let limit = self.node.pending_limit();
        let journal_bytes = self.node.journal.stats().bytes;
        self.node.health.stalls.weigh(limit, journal_bytes, self.settings().journal_max_size);
    }

    /// Returns true if a shard cannot store rows.
    pub(super) fn is_stalled(&self) -> bool {
        self.passes.jobs.borrow().values().any(|job| job.watched.is_stalled())
    }

    /// Logs an error of reading, but not at every read.
    pub(super) fn tell_unreadable(&self, doing: &str, error: &anyhow::Error) {
        if self.is_stopping() {
            return;
        }
        let text = format!("{doing}: {error:#}");
        if self.upkeep.told.is_news(&text, Instant::now()) {
            tracing::error!("{text}");
        }
    }

    /// Opens the engine of a shard again, if it has closed itself and no job is running.
    pub(super) fn reopen_if_closed(self: &Rc<Self>, stay: Stay) {
        let mut partition = self.partition.borrow_mut();
        let mut jobs = self.passes.jobs.borrow_mut();
        let job = jobs.entry(stay).or_default();
        let Some(shard) = partition.shards.get(&stay.shard) else { return };
        let is_due = job.watched.reopen_at.is_none_or(|at| at <= Instant::now());
        if job.busy || job.flushing || !is_due || shard.engine().closed() != Some(Closed::Failed) {
            return;
        }
        if let Some(plan) = partition.reopen(stay.shard) {
            job.busy = true;
            tokio::task::spawn_local(self.clone().reopen(stay, plan, true));
        }
    }

    /// Opens an engine that is closed again, and tells of that if it had closed itself.
    pub(super) async fn reopen(self: Rc<Self>, stay: Stay, plan: Reopen, had_closed_itself: bool) {
        // The runtime may be shutting down.
        let Ok(done) = self.node.background.spawn(plan.run()).await else { return };
        let id = stay.shard;
        let mut jobs = self.passes.jobs.borrow_mut();
        // The shard has not left: none does while its engine is opened.
        let Some(job) = jobs.get_mut(&stay) else { return };
        job.busy = false;
        match done {
            Ok(reopened) => {
                let records = reopened.records;
                self.partition.borrow_mut().reopened(id, reopened);
                job.watched.error = None;
                (job.watched.reopen_at, job.watched.pause) = (None, Duration::ZERO);
                if had_closed_itself {
                    tracing::warn!(
                        shard = id,
                        records,
                        "an engine that had closed itself is open again"
                    );
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                if job.watched.error.as_ref() != Some(&error) {
                    tracing::error!(shard = id, "opening an engine again: {error}");
                }
                job.watched.error = Some(error);
                job.watched.back_off();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_silent_only_while_it_could_run() {
        let (begun, step) = (Instant::now(), Duration::from_millis(50));
        let silent_after = |cpu_wait: f64, progress: &dyn Fn(u32) -> Option<u64>| {
            let mut silence = Silence::default();
            (0..4000).find(|n| silence.look(begun + step * *n, progress(*n), cpu_wait) >= SILENT)
        };
        assert!(silent_after(0.0, &|_| Some(7)).is_some_and(|n| (100..=102).contains(&n)));
        assert!(silent_after(0.5, &|_| Some(7)).is_some_and(|n| (200..=202).contains(&n)));
        assert!(silent_after(1.0, &|_| Some(7)).is_some_and(|n| (1000..=1010).contains(&n)));
        assert_eq!(silent_after(0.0, &|n| Some(u64::from(n / 50))), None, "it goes on");
        assert_eq!(silent_after(0.0, &|n| (n % 60 != 0).then_some(7)), None, "it has pauses");
        // The worker itself was busy for a minute.
        let mut silence = Silence::default();
        silence.look(begun, Some(7), 0.0);
        silence.look(begun + step, Some(7), 0.0);
        assert!(silence.look(begun + Duration::from_secs(60), Some(7), 0.0) < SILENT);
    }

    #[test]
    fn a_full_disk_is_told_without_the_name_of_a_file() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(in_short(format!("writing db/1.sst: {full}")), "No space left on device");
        assert_eq!(in_short("writing db/1.sst: gone".to_owned()), "writing db/1.sst: gone");
    }

    #[test]
    fn errors_of_reading_are_told_once_a_minute_and_not_too_many() {
        let (told, now) = (RecentErrors::default(), Instant::now());
        assert!(told.is_news("one", now));
        assert!(!told.is_news("one", now + REPEATED / 2));
        assert!(told.is_news("two", now + REPEATED / 2));
        assert!(told.is_news("one", now + REPEATED));
        let many = (0..100).filter(|n| told.is_news(&n.to_string(), now + REPEATED));
        assert_eq!(many.count(), MAX_TOLD - 2);
    }
}
