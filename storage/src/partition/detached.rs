//! A shard that belongs to no partition: it comes from one, and can be attached again, or be closed.

use crate::control::{complete_row, presence_key, slots_row};
use crate::journal::{Journal, Lsn};
use crate::materialise::hand_over;
use crate::shard::Shard;
use crate::store::RemovedEntries;
use anyhow::{Result, bail};
use std::ops::Range;
use std::sync::Arc;

/// A shard that was detached.
#[derive(Debug)]
pub struct DetachedShard {
    shard: Shard,
    entries: RemovedEntries,
    /// The oldest and the newest open hold of a coordinator, at a stop: it may bring a record.
    held: Option<(u64, u64)>,
}

impl DetachedShard {
    pub(super) fn new(shard: Shard, entries: RemovedEntries) -> Self {
        Self { shard, entries, held: None }
    }

    /// Creates the shard of a partition that stops.
    pub(super) fn at_stop(shard: Shard, held: Option<(u64, u64)>) -> Self {
        Self { shard, entries: RemovedEntries::default(), held }
    }

    /// Returns the shard's number.
    pub fn id(&self) -> u16 {
        self.shard.id
    }

    /// Returns the lsn up to which its engine has stored everything.
    pub fn stored(&self) -> Lsn {
        self.shard.flushed()
    }

    /// Takes the entries that were in memory, to be dropped elsewhere.
    pub fn take_entries(&mut self) -> RemovedEntries {
        std::mem::take(&mut self.entries)
    }

    /// Returns the shard, to be attached again: the move is called off.
    pub fn into_shard(self) -> Shard {
        self.shard
    }

    /// Resolves its blind operations, hands all pending rows over, and flushes them. Must run on the
    /// background runtime. It can be attached again afterwards, whatever the outcome, and if this is dropped.
    ///
    /// # Errors
    /// If something cannot be read or stored; the call may be repeated.
    pub async fn flush(&mut self, journal: &Arc<dyn Journal>) -> Result<()> {
        self.hand_over(journal).await?;
        self.flush_engine(&**journal).await
    }

    /// Like [`close`](Self::close), for a shard that is to have fewer slots, and to be opened again. Who reads its
    /// files with an older map, in which it has more, is told by a row that it lacks some.
    ///
    /// # Errors
    /// See [`close`](Self::close).
    pub async fn close_to_split(
        mut self,
        journal: &Arc<dyn Journal>,
        slots: Range<u16>,
    ) -> Result<()> {
        self.hand_over(journal).await?;
        self.shard.engine().expect_halves(slots_row(Some(&slots))).await?;
        self.close(journal).await
    }

    /// Hands all pending rows over, flushes and closes the engine. The shard's directory is then
    /// complete without the journal. Must run on the background runtime.
    ///
    /// # Errors
    /// If something cannot be read or stored: the journal keeps the records that the engine lacks.
    pub async fn close(mut self, journal: &Arc<dyn Journal>) -> Result<()> {
        if self.shard.is_mirrored() {
            // There is nothing that its owner has not.
            return self.shard.engine().close().await;
        }
        self.hand_over(journal).await?;
        let engine = self.shard.engine().clone();
        if self.held.is_none() {
            if let Some(presence) = self.shard.presence() {
                for (layer, piece, value) in presence.pieces() {
                    engine.write(vec![(presence_key(layer, piece), Some(value.into()))]).await?;
                }
            }
            engine.write(vec![complete_row(journal.end(), journal.epoch())]).await?;
        }
        self.flush_engine(&**journal).await?;
        engine.close().await
    }

    async fn hand_over(&mut self, journal: &Arc<dyn Journal>) -> Result<()> {
        let shard = &mut self.shard;
        if let Some(lsn) = shard.broken() {
            bail!("the record {lsn} of the journal could not be understood");
        }
        // A pass that the stop has interrupted is repeated.
        shard.abort_pass();
        shard.resolve_all().await?;
        let (oldest, newest) = self.held.unzip();
        // A hand-over that was interrupted is repeated: rows are absolute.
        for _ in 0..2 {
            if shard.can_cut() {
                shard.cut(journal.end(), newest.unwrap_or(0));
            }
            let Some(cut) = shard.take_cut(oldest).or_else(|| shard.handing()) else { continue };
            let (engine, pace) = (shard.engine().clone(), Arc::default());
            let seq = hand_over(engine, journal.clone(), cut.clone(), pace).await?;
            shard.handed_over(cut.lsn, seq);
        }
        Ok(())
    }

    async fn flush_engine(&mut self, journal: &dyn Journal) -> Result<()> {
        self.shard.engine().flush().await?;
        if let Some(applied) = self.shard.observe_flushed() {
            journal.flushed(self.shard.id, applied);
        }
        Ok(())
    }
}
