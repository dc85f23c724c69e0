//! Passes over the blind operations of the shards: reading the rows that they have replaced, in the
//! background (RFC 12).

use super::Worker;
use super::materialise::RETRY;
use flagstone_storage::OldRows;
use flagstone_storage::partition::Stay;
use flagstone_storage::shard::{PassStates, Shard};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Passes of a shard that fail.
pub(super) struct FailedPasses {
    /// Time since when each has failed.
    pub(super) since: Instant,
    /// Time of the last one.
    pub(super) last: Instant,
    /// The error of the last one.
    pub(super) error: String,
}

impl Worker {
    /// Starts a pass for a shard if one is due; `all`: it is due if anything is unresolved.
    pub(super) fn resolve(self: &Rc<Self>, stay: Stay, all: bool) {
        let mut jobs = self.passes.jobs.borrow_mut();
        let job = jobs.entry(stay).or_default();
        if job.resolving {
            return;
        }
        if let Some(rows) = self.partition.borrow_mut().begin_pass(stay.shard, all) {
            job.resolving = true;
            tokio::task::spawn_local(self.clone().run_passes(stay, rows));
        }
    }

    /// Runs passes of a shard as long as they are due.
    async fn run_passes(self: Rc<Self>, stay: Stay, rows: OldRows) {
        let mut next = Some(rows);
        while let Some(rows) = next.take() {
            // The runtime may be shutting down: the pass is repeated when the shard is closed.
            let Ok(read) = self.node.background.spawn(rows.read()).await else { return };
            self.stats().engine.passes.fetch_add(1, Ordering::Relaxed);
            if !self.is_here(stay) {
                // Its operations are resolved where it is now.
                break;
            }
            let error = match self.end_pass(stay.shard, read) {
                Ok(due) => {
                    next = due;
                    None
                }
                Err(error) => {
                    let what = format!("replaced rows of shard {}", stay.shard);
                    self.tell_unreadable(&what, &error);
                    Some(format!("{error:#}"))
                }
            };
            let has_failed = error.is_some();
            if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
                let last = Instant::now();
                let since = job.unresolvable.take().map_or(last, |before| before.since);
                job.unresolvable = error.map(|error| FailedPasses { since, last, error });
            }
            self.passes.ended.notify_waiters();
            if has_failed {
                tokio::time::sleep(RETRY).await;
            }
        }
        if let Some(job) = self.passes.jobs.borrow_mut().get_mut(&stay) {
            job.resolving = false;
        }
        self.passes.ended.notify_waiters();
    }

    /// Returns the error of a pass that has failed and is not repeated yet.
    fn unresolvable(&self) -> Option<String> {
        let jobs = self.passes.jobs.borrow();
        let failed = jobs.values().find_map(|job| job.unresolvable.as_ref())?;
        Some(format!("ERR the data could not be read: {}", failed.error))
    }

    /// Ends a pass with the rows that were read, and begins the next one if it is due.
    fn end_pass(
        &self,
        id: u16,
        read: anyhow::Result<PassStates>,
    ) -> anyhow::Result<Option<OldRows>> {
        let mut partition = self.partition.borrow_mut();
        partition.end_pass(id, read)?;
        Ok(partition.begin_pass(id, false))
    }

    /// Waits until the counters are exact: until no operation is unresolved, whose number does not
    /// grow meanwhile. On shards of other servers it does: those are resolved that were there before.
    /// Returns the error text for the client if the replaced rows cannot be read.
    pub(super) async fn count_exactly(self: &Rc<Self>) -> Result<(), String> {
        if self.partition.borrow().unresolved() == 0 {
            return Ok(());
        }
        let _counting = self.partition.borrow_mut().begin_counting();
        let mut passes = self.partition.borrow().shards.len();
        let grows = || self.partition.borrow().shards.values().any(Shard::is_mirrored);
        while self.partition.borrow().unresolved() > 0 && (passes > 0 || !grows()) {
            let ended = self.passes.ended.notified();
            let stays: Vec<Stay> = self.partition.borrow().stays().collect();
            stays.into_iter().for_each(|stay| self.resolve(stay, true));
            if let Some(error) = self.unresolvable() {
                return Err(error);
            }
            ended.await;
            passes = passes.saturating_sub(1);
        }
        Ok(())
    }
}
