//! Splits a shard of this worker while it runs (RFC 22). Both parts stay with the worker until the next start,
//! so nothing else changes hands: clients that wait, watched and tracked keys, and entries in memory.
//!
//! Rows are flushed ahead. Then the worker's barrier keeps commands waiting while the rest is flushed, the
//! files of the new shard are made, and its engine is opened. The engine of the other one is closed
//! meanwhile, so what reads it without locks waits, too, or is repeated.

use super::Worker;
use super::materialise::Passes;
use super::rounds::refusal;
use crate::command::Patience;
use flagstone_storage::directory::{ShardSplitter, SplitError};
use flagstone_storage::encoding::SourcePosition;
use flagstone_storage::journal::Lsn;
use flagstone_storage::partition::Stay;
use flagstone_storage::shard::Shard;
use flagstone_storage::slot::SplitPlan;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a shard is flushed while it is served, before commands on it wait for the rest, or nothing is
/// done.
const AHEAD: Duration = Duration::from_secs(10);

/// How long commands may wait for the last flush. After that the shard stays whole.
const HELD: Duration = Duration::from_secs(2);

/// Pause between two looks at a flush.
const POLL: Duration = Duration::from_millis(10);

const NOT_HERE: &str = "the shard is not here";

const ENDING: &str = "the server is shutting down";

const NOT_STORED: &str =
    "its rows cannot be stored in time: the disk is full or busy, or the bucket does not answer";

/// Why a position is not stored.
const UNSTORED: &str = "ERR the changes before the position could not be stored";

/// Why nothing waits behind a long script.
const SCRIPT: &str = "a script or a function runs: end it first, or wait";

/// Scans wait as long as it lives, and jobs of the shard do not begin.
struct Splitting<'a>(&'a Passes);

impl<'a> Splitting<'a> {
    fn begin(passes: &'a Passes, shard: u16) -> Self {
        passes.splitting.set(Some(shard));
        Self(passes)
    }
}

impl Drop for Splitting<'_> {
    fn drop(&mut self) {
        self.0.splitting.set(None);
        self.0.ended.notify_waiters();
    }
}

impl Worker {
    /// Flushes a shard that is served, so that little is left to flush while commands wait, and lets merges
    /// make room for that.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) async fn flush_ahead(&self, shard: u16) -> Result<(), String> {
        let (end, begun) = (self.node.journal.end(), Instant::now());
        loop {
            let flushed = self.urge_flush(shard, end);
            let is_crowded =
                self.level0_of(shard).is_some_and(|part| part > ShardSplitter::CROWDED);
            if flushed.is_none_or(|lsn| lsn >= end) && !is_crowded {
                return Ok(());
            }
            // A server that leaves its cluster flushes its shards, and stops after that.
            if self.is_stopping() {
                return Err(ENDING.into());
            }
            if begun.elapsed() > AHEAD {
                return match is_crowded {
                    true => Err("too many files of its engine wait to be merged".into()),
                    false => Ok(()),
                };
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Splits a shard at a slot, or in its middle, and returns the number of the new one. It runs to its end
    /// even if the caller is gone.
    ///
    /// # Errors
    /// The reason why the shard is whole as before, or why the server ends.
    pub(crate) async fn split_shard(
        self: Rc<Self>,
        shard: u16,
        at: Option<u16>,
        splitter: Arc<ShardSplitter>,
    ) -> Result<u16, String> {
        let _under_way = self.node.ending.coordinator();
        let _turn = self.node.checkpoints.turn.lock().await;
        let plan = SplitPlan::new(&self.node.layout, shard, at).map_err(|why| why.to_string())?;
        let begun = Instant::now();
        if self.node.health.stalls.list().contains(&shard) {
            return Err("it cannot store rows at present".into());
        }
        self.flush_ahead(shard).await?;
        while !splitter.has_room() && begun.elapsed() < AHEAD && !self.is_stopping() {
            tokio::time::sleep(POLL).await;
        }
        let held = Instant::now();
        let (whole, granted) = self.lock_all(Patience::Short);
        granted.await.map_err(|_| SCRIPT)?;
        self.commit();
        let stay = self.partition.borrow().stay(plan.shard).ok_or(NOT_HERE)?;
        self.be_still(stay).await?;
        let splitting = Splitting::begin(&self.passes, plan.shard);
        let split = self.make_two(&plan, splitter).await;
        self.open_again(plan.shard).await;
        drop((splitting, whole));
        split?;
        let into = plan.into;
        let (held_ms, took_ms) = (held.elapsed().as_millis(), begun.elapsed().as_millis());
        tracing::info!(shard, into, held_ms, took_ms, "split a shard");
        Ok(into)
    }

    /// Waits until everything of a shard is flushed and no job of it is running, while no command runs.
    async fn be_still(self: &Rc<Self>, stay: Stay) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            // Nothing is left to flush when this is asked for, or it is asked for again.
            self.urge_flush(stay.shard, Lsn::MAX - 1);
            self.partition.borrow_mut().observe_flushed();
            self.tend(stay, self.journal_eighths());
            let is_flushed =
                self.partition.borrow().shards.get(&stay.shard).is_some_and(Shard::is_flushed);
            if is_flushed && !self.has_job(stay) {
                return Ok(());
            }
            if self.is_stopping() || begun.elapsed() > HELD {
                self.urge_flush(stay.shard, 0);
                return Err(if self.is_stopping() { ENDING } else { NOT_STORED }.into());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Has the files of the new shard made, and takes it.
    async fn make_two(
        self: &Rc<Self>,
        plan: &SplitPlan,
        splitter: Arc<ShardSplitter>,
    ) -> Result<(), String> {
        let engine = self.partition.borrow().shards.get(&plan.shard).map(|it| it.engine().clone());
        let (engine, planned) = (engine.ok_or(NOT_HERE)?, plan.clone());
        let splitting = async move { splitter.split(&engine, &planned).await };
        let upper = match self.node.background.spawn(splitting).await {
            Ok(Ok(upper)) => upper,
            Ok(Err(SplitError::CalledOff(error))) => return Err(format!("{error:#}")),
            Ok(Err(error @ SplitError::Unknown(_))) => return Err(self.end(&error.to_string())),
            // The runtime is shutting down.
            Err(_) => return Err(ENDING.into()),
        };
        let engine = upper.engine().clone();
        self.node.give_shard(plan.into, self.id);
        let taken = self.partition.borrow_mut().split(plan, upper);
        if let Err(refused) = taken {
            return Err(self.end(&refused.why.to_string()));
        }
        self.node.engines.add(plan.into, engine.clone());
        self.node.checkpoints.source.add(engine);
        self.commit_soon();
        Ok(())
    }

    /// Ends the server: `flagstone.json` names two shards, or may do so, and this process has one.
    fn end(&self, why: &str) -> String {
        tracing::error!("a shard was split, and cannot be served as two: the server ends: {why}");
        self.node.ending.fail(why);
        format!("the server ends: {why}")
    }

    /// Opens the engine of a shard again. If that fails it is tried again later.
    async fn open_again(self: &Rc<Self>, shard: u16) {
        let Some(stay) = self.partition.borrow().stay(shard) else { return };
        let Some(plan) = self.partition.borrow_mut().reopen(shard) else { return };
        {
            let mut jobs = self.passes.jobs.borrow_mut();
            jobs.retain(|job, _| job.shard != shard);
            jobs.entry(stay).or_default().busy = true;
        }
        let reopening = tokio::task::spawn_local(self.clone().reopen(stay, plan, false));
        // It goes on by itself if the store is away.
        let limit = self.node.config.settings().store_timeout_ms;
        let _ = tokio::time::timeout(Duration::from_millis(limit), reopening).await;
    }

    /// Waits until a shard is not being split.
    pub(super) async fn split_ended(&self, shard: u16) {
        loop {
            let ended = self.passes.ended.notified();
            if self.passes.splitting.get() != Some(shard) {
                return;
            }
            ended.await;
        }
    }

    /// Stores a position in the stream of another server by itself, in the first shard of this worker. That is no
    /// command, and the worker's barrier does not hold it: it waits by itself while that shard is being split, whose
    /// rows are flushed by then.
    ///
    /// # Errors
    /// Returns the reason if the open round or the position could not be stored: the position counts changes
    /// that may be in that round, and must not be stored without them.
    pub(crate) async fn put_source(&self, source: &SourcePosition) -> Result<Lsn, String> {
        let first = self.partition.borrow().shards.keys().next().copied();
        if let Some(first) = first {
            self.split_ended(first).await;
        }
        // The changes of the open round, and its position, are older: their record comes first.
        if !self.commit() {
            return Err(UNSTORED.into());
        }
        let now_ms = self.node.clock.now_ms();
        let stored = self.partition.borrow_mut().put_source(now_ms, source);
        stored.map_err(|error| refusal(&error).text)
    }

    /// Returns true if a shard is being split, or was split since this stay.
    pub(super) fn is_split(&self, shard: u16, since: Option<Stay>) -> bool {
        let now = self.partition.borrow().stay(shard);
        self.passes.splitting.get() == Some(shard) || (now.is_some() && now != since)
    }
}
