//! Reopens the engine of a shard while the server runs.
//!
//! An engine that closes itself loses the rows that it has not flushed: rows of maps that were
//! handed over and are not in memory any more. The journal has them. So a new engine is opened in
//! the same place, and given the records behind its `applied`, up to the last cut that the old one
//! had taken whole; only then it replaces the old one. Rows that a start gave away before its replay
//! ended belong to no cut, so the start has flushed them. The data in memory (the shard's maps, its
//! counters, decoded values) stays valid: the new engine has all rows that the old one was known to
//! have. A map that the old one had taken in part is kept, read before the engine, and handed over
//! again.
//!
//! No hand-over, sweep or checkpoint runs meanwhile: reopening has the engine's turn. Reads that
//! need the engine end with an error.

use crate::commit::split_body;
use crate::control::{Control, slots_row, unclosed};
use crate::encoding::{prefix_range, row};
use crate::engine::{Closed, Engine, Turn};
use crate::journal::{HoldId, Journal, Lsn, Record};
use crate::materialise::write_cut;
use crate::shard::{Reopen, Reopened, Shard};
use anyhow::{Context, Result, bail, ensure};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of journal rows that are handed over in one piece.
const PIECE_BYTES: usize = 8 << 20;

/// How long the lease on the data may take to be renewed before an engine in a bucket is opened again.
const CLAIMING: Duration = Duration::from_secs(5);

/// A hold that keeps records in the journal as long as it lives.
struct ReplayHold {
    journal: Arc<dyn Journal>,
    id: HoldId,
}

impl Drop for ReplayHold {
    fn drop(&mut self) {
        self.journal.release(self.id);
    }
}

impl Reopen {
    /// Opens a new engine and replaces the old one with it. Must run on the background runtime.
    ///
    /// # Errors
    /// If the engine cannot be opened, or lacks data that was there before. The old one stays, and
    /// the call may be repeated.
    pub async fn run(self) -> Result<Reopened> {
        if self.engine.closed() == Some(Closed::Fenced) {
            bail!("another process has opened it: only a restart helps");
        }
        if self.lacks_records {
            bail!(
                "records that it lacks are in the journals of other servers: restart this one, and the \
                 shard is taken from these again"
            );
        }
        let mut turn = self.engine.turn().await;
        // Records that the new engine has not flushed must stay in the journal until it was given
        // them.
        let id = self.journal.hold(self.flushed + 1, u64::MAX);
        let held = ReplayHold { journal: self.journal.clone(), id };
        // The old engine has failed.
        self.engine.abandon().await;
        if self.engine.is_remote() {
            self.claim().await?;
        }
        let engine = self.engine.open_again().await?;
        let completed = self.complete(&engine, held.id).await;
        let reopened = engine.or_close(completed).await?;
        self.engine.replace(&engine);
        *turn = Turn { lsn: self.handed, ..Turn::default() };
        Ok(reopened)
    }

    /// Checks what a new engine has, and gives it what it lacks.
    async fn complete(&self, engine: &Engine, hold: HoldId) -> Result<Reopened> {
        let rows = engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
        let control = Control::read(&rows).map_err(anyhow::Error::msg)?;
        if control.applied < self.flushed {
            bail!(
                "it has the records up to lsn {}, but those up to {} were flushed: files are missing",
                control.applied,
                self.flushed
            );
        }
        let stale: Vec<_> = unclosed(&control).collect();
        if !stale.is_empty() {
            // They were deleted in the old one, but not for good.
            engine.write(stale).await?;
        }
        let kept = control.slots.clone();
        let mut reopened = Reopened {
            flushed: control.applied,
            handed: None,
            ops: 0,
            records: 0,
            generations: control.generations.clone(),
        };
        if control.applied < self.handed {
            self.replay_missing(engine, control, hold, &mut reopened).await?;
        }
        if let Some(slots) = engine.slots().filter(|slots| kept.as_ref() != Some(slots)) {
            // It was just split.
            engine.write(vec![slots_row(Some(&slots))]).await?;
        }
        Ok(reopened)
    }

    /// Lets the engine be opened again only if no other process has opened it since. Its epoch is read first: a
    /// successor opens no engine as long as the lease holds, so if it holds behind that, the epoch is this process's.
    async fn claim(&self) -> Result<()> {
        let epoch = Engine::writer_epoch(self.engine.place()).await?;
        if let Some(lease) = self.journal.lease() {
            let held = tokio::time::timeout(CLAIMING, lease.until_it_holds()).await;
            ensure!(matches!(held, Ok(Ok(()))), "another process may have the data by now");
        }
        self.engine.claim_after(epoch);
        Ok(())
    }

    /// Gives an engine the records of the old one that it lacks.
    async fn replay_missing(
        &self,
        engine: &Engine,
        control: Control,
        hold: HoldId,
        reopened: &mut Reopened,
    ) -> Result<()> {
        let from = (control.applied + 1).max(self.journal.oldest());
        let reaches = control.reaches;
        let shard = Shard::new(self.shard, engine.clone(), self.epoch, control, 0);
        let runtime = tokio::runtime::Handle::current();
        let given = Given { shard, reaches, seq: None, ops: 0, records: 0 };
        let mut replay = CutBuilder { given: Some(given), runtime, error: None };
        let (journal, handed) = (self.journal.clone(), self.handed);
        let reading = tokio::task::spawn_blocking(move || {
            let mut take = |record: Record| replay.take(&record);
            let read = if from <= handed {
                journal.read(hold, (from, handed), &mut take).map_err(anyhow::Error::new)
            } else {
                Ok(())
            };
            let read = read.and_then(|()| Ok(replay.cut(handed)?));
            if let Some(error) = replay.error {
                return Err(error.context("handing over what was lost"));
            }
            read.context("reading what was lost from the journal")?;
            replay.given.context("handing over what was lost was broken off")
        });
        let given = reading.await??;
        reopened.handed = given.seq.map(|seq| (self.handed, seq));
        (reopened.ops, reopened.records) = (given.ops, given.records);
        Ok(())
    }
}

/// A new engine, and the rows that it was given.
struct Given {
    /// Replays the records that the engine lacks.
    shard: Shard,
    /// Greatest lsn of rows that the engine had from the beginning.
    reaches: Lsn,
    /// The sequence number of the last batch.
    seq: Option<u64>,
    ops: u64,
    records: u64,
}

impl Given {
    /// Gives everything up to `lsn` to the engine, in which blind operations find all rows that
    /// were given before.
    async fn give(&mut self, lsn: Lsn) -> Result<()> {
        self.shard.resolve_all().await?;
        self.shard.cut(lsn, 0);
        let taken = self.shard.take_cut(None);
        drop(self.shard.handed_over(lsn, 0));
        if let Some(mut cut) = taken.and_then(Arc::into_inner) {
            cut.reaches = cut.reaches.max(self.reaches);
            self.ops += cut.pending.ops();
            let engine = self.shard.engine().clone();
            self.seq = Some(write_cut(&engine, Arc::new(cut)).await?);
        }
        Ok(())
    }
}

/// Replays records of the journal into a new engine, on a thread that may block.
struct CutBuilder {
    /// `None` while the engine is given something, and if that fails.
    given: Option<Given>,
    runtime: tokio::runtime::Handle,
    /// The reason why the engine could not be given something.
    error: Option<anyhow::Error>,
}

impl CutBuilder {
    fn take(&mut self, record: &Record) -> io::Result<()> {
        let damaged = || io::Error::other(format!("the record {} is damaged", record.lsn));
        let Some(given) = &mut self.given else { return Ok(()) };
        for (id, ops) in split_body(&record.body).ok_or_else(damaged)? {
            if id == given.shard.id {
                given.records += 1;
                if given.shard.replay(record.lsn, ops) != ops.len() {
                    return Err(damaged());
                }
            }
        }
        if given.shard.pending_bytes() >= PIECE_BYTES {
            self.cut(record.lsn)?;
        }
        Ok(())
    }

    /// Gives everything up to `lsn` to the engine, and waits for that. The journal's reader may be
    /// on a runtime of its own here, so the work is done elsewhere.
    fn cut(&mut self, lsn: Lsn) -> io::Result<()> {
        let Some(mut given) = self.given.take() else { return Ok(()) };
        let (done, outcome) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let outcome = given.give(lsn).await;
            // No task waits if the reader has ended.
            let _ = done.send(outcome.map(|()| given));
        });
        let failed = |error| {
            self.error = Some(error);
            io::Error::other("the engine does not take the rows")
        };
        let outcome = outcome.recv().unwrap_or_else(|error| Err(error.into()));
        self.given = Some(outcome.map_err(failed)?);
        Ok(())
    }
}
