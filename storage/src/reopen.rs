//! Reopens the engine of a shard while the server runs.
//!
//! An engine that closes itself loses the rows that it has not flushed: rows of maps that were
//! handed over and are not in memory any more. The journal has them. So a new engine is opened in
//! the same place, and given the records behind its `applied`, up to the last cut that the old one
//! had taken whole; only then it replaces the old one. The data in memory (the shard's maps, its
//! counters, decoded values) stays valid: the new engine has all rows that the old one was known to
//! have. A map that the old one had taken in part is kept, read before the engine, and handed over
//! again.
//!
//! No hand-over, sweep or checkpoint runs meanwhile: reopening has the engine's turn. Reads that
//! need the engine end with an error.

use crate::commit::split_body;
use crate::control::{Control, Generations};
use crate::encoding::row;
use crate::engine::{Closed, Engine, Turn, prefix_range};
use crate::journal::{HoldId, Journal, Lsn, Record};
use crate::materialise::write_cut;
use crate::shard::{Cut, Shard};
use anyhow::{Context, Result, bail};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// Bytes of journal rows that are handed over in one piece.
const PIECE_BYTES: usize = 8 << 20;

/// Pieces that are prepared while one is written.
const PIECES_AHEAD: usize = 1;

/// Time limit for closing the old engine.
const CLOSING: Duration = Duration::from_secs(5);

/// State of a shard whose engine is to be reopened.
pub struct Reopen {
    pub(crate) shard: u16,
    pub(crate) engine: Engine,
    pub(crate) journal: Arc<dyn Journal>,
    /// The greatest lsn that is known to be flushed.
    pub(crate) flushed: Lsn,
    /// Every record up to this lsn was in the old engine.
    pub(crate) handed: Lsn,
    pub(crate) epoch: u64,
}

/// State of an engine that was reopened.
#[derive(Debug)]
pub struct Reopened {
    /// Greatest lsn in its files.
    pub(crate) flushed: Lsn,
    /// The lsn up to which it was given all records, and the sequence number of the last batch.
    /// `None`: its files have them all.
    pub(crate) handed: Option<(Lsn, u64)>,
    /// Number of operations that it was given.
    pub(crate) ops: u64,
    /// Number of records that it was given.
    pub records: u64,
    pub(crate) generations: Generations,
}

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
        let mut turn = self.engine.turn().await;
        // Records that the new engine has not flushed must stay in the journal until it was given
        // them.
        let id = self.journal.hold(self.flushed + 1, u64::MAX);
        let held = ReplayHold { journal: self.journal.clone(), id };
        let old = self.engine.clone();
        // The old engine has failed: errors of its closing do not matter, but its tasks must end.
        let _ = tokio::time::timeout(CLOSING, old.close()).await;
        let engine = self.engine.open_again().await?;
        let rows = engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
        let control = Control::read(&rows).map_err(anyhow::Error::msg)?;
        if control.applied < self.flushed {
            bail!(
                "it has the records up to lsn {}, but those up to {} were flushed: files are missing",
                control.applied,
                self.flushed
            );
        }
        let mut reopened = Reopened {
            flushed: control.applied,
            handed: None,
            ops: 0,
            records: 0,
            generations: control.generations.clone(),
        };
        if control.applied < self.handed
            && let Err(error) = self.replay_missing(&engine, control, held.id, &mut reopened).await
        {
            let _ = tokio::time::timeout(CLOSING, engine.close()).await;
            return Err(error);
        }
        self.engine.replace(&engine);
        *turn = Turn { lsn: self.handed, ..Turn::default() };
        Ok(reopened)
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
        let (ready, mut pieces) = mpsc::channel(PIECES_AHEAD);
        let mut replay = CutBuilder { shard, reaches, ready, records: 0 };
        let (journal, handed) = (self.journal.clone(), self.handed);
        let reading = tokio::task::spawn_blocking(move || {
            if from <= handed {
                journal.read(hold, (from, handed), &mut |record| replay.take(&record))?;
            }
            replay.cut(handed)?;
            Ok::<_, anyhow::Error>(replay.records)
        });
        let mut given = Ok(());
        while let Some(cut) = pieces.recv().await {
            match write_cut(engine, cut.clone()).await {
                Ok(seq) => reopened.handed = Some((cut.lsn, seq)),
                Err(error) => {
                    given = Err(error);
                    break;
                }
            }
            reopened.ops += cut.pending.ops();
        }
        drop(pieces);
        let read = reading.await?;
        given.context("handing over what was lost")?;
        reopened.records = read.context("reading what was lost from the journal")?;
        Ok(())
    }
}

/// Builds cuts from journal records.
struct CutBuilder {
    shard: Shard,
    /// Greatest lsn of rows that the engine has already.
    reaches: Lsn,
    ready: mpsc::Sender<Arc<Cut>>,
    records: u64,
}

impl CutBuilder {
    fn take(&mut self, record: &Record) -> io::Result<()> {
        let damaged = || io::Error::other(format!("the record {} is damaged", record.lsn));
        for (id, ops) in split_body(&record.body).ok_or_else(damaged)? {
            if id == self.shard.id {
                self.records += 1;
                if self.shard.replay(record.lsn, ops) != ops.len() {
                    return Err(damaged());
                }
            }
        }
        if self.shard.pending_bytes() >= PIECE_BYTES {
            self.cut(record.lsn)?;
        }
        Ok(())
    }

    /// Emits everything up to `lsn` as a cut to write.
    fn cut(&mut self, lsn: Lsn) -> io::Result<()> {
        self.shard.cut(lsn, 0);
        let taken = self.shard.take_cut(None);
        drop(self.shard.handed_over(lsn, 0));
        if let Some(mut cut) = taken.and_then(Arc::into_inner) {
            cut.reaches = cut.reaches.max(self.reaches);
            let sent = self.ready.blocking_send(Arc::new(cut));
            sent.map_err(|_| io::Error::other("nobody takes the rows"))?;
        }
        Ok(())
    }
}
