//! Shards whose engines take no rows: noticed, told in the log, and opened again where that helps.

use super::Worker;
use crate::stalls::Stall;
use flagstone_storage::engine::{Closed, Engine};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// An engine that has something to do and makes no progress for so long is stalled.
const SILENT: Duration = Duration::from_secs(5);

/// So is one whose store has refused all writes for so long.
const FAILING: Duration = Duration::from_secs(1);

/// Pauses between tries to open an engine again: each is twice as long as the one before.
const REOPEN_FIRST: Duration = Duration::from_millis(500);
const REOPEN_LAST: Duration = Duration::from_secs(30);

/// An error of reading that comes again and again is told once in so long, and so many are.
const REPEATED: Duration = Duration::from_secs(60);
const MAX_TOLD: usize = 16;

/// Errors of reading that were told lately.
#[derive(Default)]
pub(super) struct Told(RefCell<HashMap<String, Instant>>);

impl Told {
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

/// What is known of a shard's engine.
#[derive(Default)]
pub(super) struct Watched {
    /// Its progress when it was looked at last, and since when it is that.
    progress: u64,
    since: Option<Instant>,
    stall: Option<Stall>,
    /// Why the last hand-over, flush or opening failed.
    pub(super) error: Option<String>,
    /// When it may be opened again, and the pause before the next try.
    reopen_at: Option<Instant>,
    pause: Duration,
}

impl Watched {
    /// Whether it is stalled now. `waits`: it has something to do.
    fn look(&mut self, now: Instant, engine: &Engine, waits: bool) -> Option<String> {
        let progress = engine.progress();
        if !waits || self.since.is_none() || progress != self.progress {
            self.progress = progress;
            self.since = Some(now);
        }
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
        let silent = self.since.is_some_and(|since| now.duration_since(since) >= SILENT);
        silent.then(|| format!("its engine takes no rows{}", error()))
    }

    /// An opening has failed: when the next one may be.
    fn back_off(&mut self) {
        self.pause = (self.pause * 2).clamp(REOPEN_FIRST, REOPEN_LAST);
        self.reopen_at = Some(Instant::now() + self.pause);
    }
}

impl Worker {
    /// Looks how the shards fare, and says so where that has changed.
    pub(super) fn watch_shards(&self) {
        let now = Instant::now();
        let partition = self.partition.borrow();
        let mut jobs = self.jobs.borrow_mut();
        let durable = self.node.journal.durable();
        for (id, shard) in &partition.shards {
            let job = jobs.entry(*id).or_default();
            // A hand-over first waits for the journal.
            let hands = job.handing.is_some_and(|lsn| lsn <= durable);
            let waits = hands || job.flushing;
            let why = job.watched.look(now, shard.engine(), waits);
            let stall = match shard.broken() {
                Some(lsn) => Some(Stall {
                    why: format!("the record {lsn} of the journal cannot be understood"),
                    is_broken: true,
                }),
                None => why.map(|why| Stall { why, is_broken: false }),
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
            self.node.health.stalls.set(*id, stall.as_ref(), shard.pending_bytes() as u64);
            job.watched.stall = stall;
        }
        let limit = self.node.pending_limit();
        let journal_bytes = self.node.journal.stats().bytes;
        self.node.health.stalls.weigh(limit, journal_bytes, self.settings().journal_max_size);
    }

    /// Whether a shard cannot store rows.
    pub(super) fn is_stalled(&self) -> bool {
        self.jobs.borrow().values().any(|job| job.watched.stall.is_some())
    }

    /// Something could not be read: the log says so, but not for every read.
    pub(super) fn tell_unreadable(&self, doing: &str, error: &anyhow::Error) {
        if self.is_stopping() {
            return;
        }
        let text = format!("{doing}: {error:#}");
        if self.told.is_news(&text, Instant::now()) {
            tracing::error!("{text}");
        }
    }

    /// Opens the engine of a shard again, if it has closed itself and nothing is under way.
    pub(super) fn reopen_if_closed(self: &Rc<Self>, id: u16) {
        let mut partition = self.partition.borrow_mut();
        let mut jobs = self.jobs.borrow_mut();
        let job = jobs.entry(id).or_default();
        let Some(shard) = partition.shards.get(&id) else { return };
        let is_due = job.watched.reopen_at.is_none_or(|at| at <= Instant::now());
        if job.busy || job.flushing || !is_due || shard.engine().closed() != Some(Closed::Failed) {
            return;
        }
        if let Some(plan) = partition.reopen(id) {
            job.busy = true;
            tokio::task::spawn_local(self.clone().reopen(id, plan));
        }
    }

    async fn reopen(self: Rc<Self>, id: u16, plan: flagstone_storage::reopen::Reopen) {
        // The runtime may be ending.
        let Ok(done) = self.node.background.spawn(plan.run()).await else { return };
        let mut jobs = self.jobs.borrow_mut();
        let job = jobs.entry(id).or_default();
        job.busy = false;
        match done {
            Ok(reopened) => {
                let records = reopened.records;
                self.partition.borrow_mut().reopened(id, reopened);
                job.watched.error = None;
                (job.watched.reopen_at, job.watched.pause) = (None, Duration::ZERO);
                tracing::warn!(
                    shard = id,
                    records,
                    "an engine that had closed itself is open again"
                );
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
    fn errors_of_reading_are_told_once_a_minute_and_not_too_many() {
        let (told, now) = (Told::default(), Instant::now());
        assert!(told.is_news("one", now));
        assert!(!told.is_news("one", now + REPEATED / 2));
        assert!(told.is_news("two", now + REPEATED / 2));
        assert!(told.is_news("one", now + REPEATED));
        let many = (0..100).filter(|n| told.is_news(&n.to_string(), now + REPEATED));
        assert_eq!(many.count(), MAX_TOLD - 2);
    }
}
