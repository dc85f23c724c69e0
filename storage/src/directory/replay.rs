//! Replaying the journal at a start.

use crate::commit::BodyReader;
use crate::encoding::{Library, OpReader, SourcePosition};
use crate::engine::Engine;
use crate::feed::FEED;
use crate::journal::{CommitPiece, Lsn, Recovered};
use crate::materialise::make_room;
use crate::partition::LIBRARIES_SHARD;
use crate::pending::Batch;
use crate::shard::Shard;
use crate::slot::{Layout, SLOTS};
use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns how many bytes of operations are whole.
fn decoded(ops: &[u8]) -> usize {
    let mut reader = OpReader::new(ops);
    reader.by_ref().for_each(drop);
    ops.len() - reader.left()
}

/// Replays records of journals that some shards do not have.
#[derive(Default)]
pub(crate) struct StartReplay {
    /// Control rows of the engines that are not true any more.
    stale: Vec<(Engine, Batch)>,
    /// Bytes of rows from which on the engines get them.
    bytes: usize,
    /// The shards of the directory; `None`: some are elsewhere.
    layout: Option<Arc<Layout>>,
    /// The engines that got some, by shard: they are flushed at the end.
    given: BTreeMap<u16, Engine>,
    /// Bytes of records since the rows were last counted.
    unchecked: usize,
    /// The libraries of functions; those in replayed rows join when the rows are given away.
    pub(super) libraries: BTreeMap<Box<[u8]>, Library>,
    /// The last position in the stream of another server, likewise.
    pub(super) source: SourcePosition,
}

impl StartReplay {
    /// `stale`: control rows that records make untrue; `bytes` of rows from which on the engines get
    /// them; `layout`: the shards, if all are of one directory.
    pub(crate) fn new(
        stale: Vec<(Engine, Batch)>,
        bytes: usize,
        layout: Option<Arc<Layout>>,
    ) -> Self {
        Self { stale, bytes, layout, ..Self::default() }
    }

    /// Merges the records that each shard has not applied, and returns their number. A shard that
    /// was closed cleanly has applied all up to the journal's end of that time, even if its last
    /// record is far before. `applied`: the last lsn of each shard that it has, in their order.
    pub(crate) async fn run(
        &mut self,
        recovery: &Recovered,
        shards: &mut [Shard],
        applied: &[Lsn],
    ) -> Result<u64> {
        let from = applied.iter().min().map_or(1, |lsn| lsn + 1);
        let ids = shards.iter().enumerate();
        let places: BTreeMap<u16, usize> = ids.map(|(at, shard)| (shard.id, at)).collect();
        let (mut records, mut is_counted, mut body) = (0, false, BodyReader::default());
        let mut pieces = recovery.pieces(from);
        while let Some(CommitPiece { record, first, last }) = pieces.next().await? {
            let lsn = record.lsn;
            if first {
                (is_counted, body) = (false, BodyReader::default());
            }
            let mut is_merged = false;
            let taken = body.take(&record.body, &mut |id, ops| {
                if id == FEED {
                    return Some(ops.len());
                }
                let Some(&at) = places.get(&id).or_else(|| places.get(&self.whole_of(ops)?)) else {
                    return Some(self.layout.as_ref().map_or(ops.len(), |_| decoded(ops)));
                };
                let is_new = lsn > applied[at];
                is_merged |= is_new;
                Some(if is_new { shards[at].replay(lsn, ops) } else { ops.len() })
            });
            records += u64::from(is_merged && !is_counted);
            is_counted |= is_merged;
            if taken.is_none() || (last && !body.is_done()) {
                bail!("the journal record {lsn} is damaged");
            }
            self.unchecked += record.body.len();
            if self.unchecked >= self.bytes / 8 {
                self.unchecked = 0;
                self.make_room(recovery, shards, lsn).await?;
            }
        }
        self.flush_given().await?;
        Ok(records)
    }

    /// Returns the shard that has the rows of operations of a shard which was split from it later. `None`: some
    /// shards are elsewhere, or no operation is on a slot. Those on databases are in the record of the whole
    /// shard, too.
    fn whole_of(&self, ops: &[u8]) -> Option<u16> {
        let layout = self.layout.as_ref()?;
        let slot = OpReader::new(ops).find_map(|op| op.slot())?;
        (slot < SLOTS).then(|| layout.shard_of(slot))
    }

    /// Gives the engines the replayed rows, if these take too many bytes.
    async fn make_room(
        &mut self,
        recovery: &Recovered,
        shards: &mut [Shard],
        lsn: Lsn,
    ) -> Result<()> {
        if shards.iter().map(Shard::pending_bytes).sum::<usize>() < self.bytes {
            return Ok(());
        }
        recovery.settle()?;
        self.delete_stale().await?;
        self.take_libraries(shards)?;
        self.take_source(shards)?;
        let making: Vec<_> = shards.iter_mut().filter(|shard| shard.pending_rows() > 0).collect();
        self.given.extend(making.iter().map(|shard| (shard.id, shard.engine().clone())));
        let making = making.into_iter().map(|shard| async move {
            shard.resolve_all().await?;
            let replayed = shard.take_replayed(lsn);
            make_room(shard.engine(), lsn, replayed).await
        });
        try_join_all(making).await?;
        Ok(())
    }

    /// Flushes the rows that the engines got. They are in no map any more, and no hand-over has
    /// noted them: a reopened engine gets only records that were handed over, so it would lack
    /// them.
    async fn flush_given(&mut self) -> Result<()> {
        let given = std::mem::take(&mut self.given);
        let flushing = given
            .values()
            .map(|engine| engine.unless_stuck(engine.opening_limit(), engine.flush()));
        try_join_all(flushing).await?;
        Ok(())
    }

    pub(crate) async fn delete_stale(&mut self) -> Result<()> {
        for (engine, rows) in self.stale.drain(..).filter(|(_, rows)| !rows.is_empty()) {
            engine.write(rows).await?;
            engine.flush().await?;
        }
        Ok(())
    }

    /// Writes what [`delete_stale`](Self::delete_stale) does, and flushes rows only: deletes come to the files with the
    /// rows of later records, or are made again when the engine is reopened. Until then the rows that they are of are
    /// true, together with the records behind them.
    pub(crate) async fn write_stale(&mut self) -> Result<()> {
        for (engine, rows) in self.stale.drain(..).filter(|(_, rows)| !rows.is_empty()) {
            let has_rows = rows.iter().any(|(_, value)| value.is_some());
            engine.write(rows).await?;
            if has_rows {
                engine.flush().await?;
            }
        }
        Ok(())
    }

    /// Takes the position in the stream of another server from the pending rows, if it is there.
    pub(super) fn take_source(&mut self, shards: &[Shard]) -> Result<()> {
        let whole = shards.iter().try_for_each(|shard| shard.apply_source(&mut self.source));
        whole.context("a position in a stream in the journal is damaged")
    }

    /// Applies the changes of libraries that are pending.
    pub(super) fn take_libraries(&mut self, shards: &[Shard]) -> Result<()> {
        let found = shards.iter().find(|shard| shard.id == LIBRARIES_SHARD);
        let Some(shard) = found else { return Ok(()) };
        let whole = shard.apply_libraries(&mut self.libraries);
        whole.context("a library of functions in the journal is damaged")
    }
}
