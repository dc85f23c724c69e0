//! Materialising: moves pending rows to the engine, in the background.
//!
//! Rules (docs/durability.md): no row enters the engine before its lsn is durable. The first batch
//! carries `reaches`, the last one `applied` with the counters and generations of the cut. Batches
//! are awaited in order. Only the engine reports rows as flushed.

use crate::control::{
    Generations, applied_rows, counter_prefix, generations_key, no_resolved_row, reaches_row,
};
use crate::encoding::{Row, RowKey, prefix_range, row};
use crate::engine::{BATCH_BYTES, Engine, HandOverPace, Swept};
use crate::journal::{Journal, Lsn};
use crate::latency::{LATENCY, LatencyEvent};
use crate::pending::{Batch, Pending};
use crate::shard::Cut;
use crate::value::decode_entry;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// Batches that are prepared while one is written.
const BATCHES_AHEAD: usize = 2;

/// Rows of a batch.
const BATCH_ROWS: usize = 1024;

/// Interval at which a hand-over checks whether its lsn is durable.
const DURABLE_POLL: Duration = Duration::from_millis(2);

/// Maximum number of rows that one step of a sweep deletes.
const SWEEP_ROWS: usize = 4096;

/// Maximum number of steps of one sweep; the next sweep goes on.
const SWEEP_STEPS: usize = 16;

/// Hands a cut over and returns the engine's sequence number of its last batch. The same cut may be
/// handed over again; a cut older than the last is refused, because its values would replace newer
/// ones. It pauses between batches as its pace wants.
pub async fn hand_over(
    engine: Engine,
    journal: Arc<dyn Journal>,
    cut: Arc<Cut>,
    pace: Arc<HandOverPace>,
) -> Result<u64> {
    wait_durable(&*journal, cut.lsn).await?;
    let mut turn = engine.turn().await;
    if cut.lsn < turn.lsn {
        bail!("rows up to lsn {} come after those up to {}", cut.lsn, turn.lsn);
    }
    turn.lsn = cut.lsn;
    let gather = move |emit: &mut dyn FnMut(Batch)| each_hand_over_batch(&cut, BATCH_ROWS, emit);
    write_batches(&engine, Some(&*pace), gather).await
}

/// Writes a cut to an engine that has no other writer, and returns the sequence number of its last
/// batch.
pub(crate) async fn write_cut(engine: &Engine, cut: Arc<Cut>) -> Result<u64> {
    write_batches(engine, None, move |emit| each_hand_over_batch(&cut, BATCH_ROWS, emit)).await
}

/// Gives an engine rows replayed at the start up to `lsn`, which is durable, to make room for more.
/// If the start does not finish, the next one replays them again; before it finishes, the engine
/// must be flushed.
pub(crate) async fn make_room(engine: &Engine, lsn: Lsn, replayed: Pending) -> Result<()> {
    let _turn = engine.turn().await;
    let gather = move |emit: &mut dyn FnMut(Batch)| {
        let mut batch = vec![reaches_row(lsn)];
        gather_rows(&replayed, &mut batch, BATCH_ROWS, emit);
        if !batch.is_empty() {
            emit(batch);
        }
    };
    engine.unless_stuck(engine.opening_limit(), write_batches(engine, None, gather)).await?;
    Ok(())
}

/// Writes batches, some of which are gathered ahead, and returns the sequence number of the last
/// one.
async fn write_batches(
    engine: &Engine,
    pace: Option<&HandOverPace>,
    gather: impl FnOnce(&mut dyn FnMut(Batch)) + Send + 'static,
) -> Result<u64> {
    let (ready, mut batches) = mpsc::channel(BATCHES_AHEAD);
    let gathered = run_beside(move || {
        // After a failed write the receiver is gone, and the remaining batches are dropped.
        gather(&mut |batch| drop(ready.blocking_send(batch)));
    })?;
    let mut seq = 0;
    while let Some(batch) = batches.recv().await {
        // The first one does not wait: most hand-overs are small.
        if let Some(pace) = pace.filter(|_| seq != 0) {
            pace.pause().await;
        }
        let begun = Instant::now();
        seq = engine.write(batch).await?;
        LATENCY.note(LatencyEvent::EngineWriteStall, begun.elapsed());
    }
    gathered.await.context("gathering rows has failed")?;
    Ok(seq)
}

/// Runs a job on a thread of its own, which may wait for the engine: the engine needs the threads for
/// blocking work, to flush what it has. Returns the end of the job.
fn run_beside(job: impl FnOnce() + Send + 'static) -> Result<oneshot::Receiver<()>> {
    let (ended, has_ended) = oneshot::channel();
    let thread = thread::Builder::new().name("hand-over".to_owned()).spawn(move || {
        job();
        let _ = ended.send(());
    });
    let _thread = thread.context("starting a thread for rows that are handed over")?;
    #[cfg(test)]
    crate::simulated::settle(_thread);
    Ok(has_ended)
}

/// Emits the batches of a hand-over in the order in which they must be written: about `rows` rows
/// each.
pub fn each_hand_over_batch(cut: &Cut, rows: usize, emit: &mut dyn FnMut(Batch)) {
    let mut batch = vec![reaches_row(cut.reaches)];
    gather_rows(&cut.pending, &mut batch, rows, emit);
    batch.extend(applied_rows(cut.lsn, cut.epoch, &cut.generations, &cut.counters));
    if cut.pending.resolved().is_some_and(|resolved| resolved.lsn <= cut.lsn) {
        batch.push(no_resolved_row());
    }
    emit(batch);
}

/// Emits batches of pending rows; the first one begins with the rows in `batch`.
fn gather_rows(pending: &Pending, batch: &mut Batch, rows: usize, emit: &mut dyn FnMut(Batch)) {
    pending.each_batch(rows, &mut |rows| {
        let mut bytes = 0;
        for row in rows {
            if bytes >= BATCH_BYTES {
                emit(std::mem::take(batch));
                bytes = 0;
            }
            bytes += row.0.len() + row.1.as_ref().map_or(0, Bytes::len);
            batch.push(row);
        }
        emit(std::mem::take(batch));
    });
}

async fn wait_durable(journal: &dyn Journal, lsn: u64) -> Result<()> {
    while journal.durable() < lsn {
        if let Some(reason) = journal.failed() {
            bail!("the journal has failed: {reason}");
        }
        journal.request_sync(lsn);
        tokio::time::sleep(DURABLE_POLL).await;
    }
    Ok(())
}

/// Deletes unreachable rows: elements of dead versions, and all rows of dead generations. Must be
/// called only when everything handed over is flushed, so that no replay brings such rows back; a
/// generation whose end was not handed over is left alone. Returns the generations of which nothing
/// is left, and whether more remains to be swept. At the end the engine may ask for a merge of its
/// files, to free the space.
pub async fn sweep(engine: &Engine, dead_generations: Vec<u32>) -> Result<(Vec<u32>, bool)> {
    let mut turn = engine.turn().await;
    let (mut swept, mut more) = (Vec::new(), false);
    // In a bucket each look at the rows is a request.
    if !engine.is_clean(&dead_generations) {
        let begun = engine.written();
        (swept, more) = sweep_some(engine, &mut turn.swept, dead_generations.clone()).await?;
        if !more && swept.is_empty() {
            engine.set_clean(begun, dead_generations);
        }
    }
    if !more {
        engine.check_garbage().await?;
    }
    Ok((swept, more))
}

async fn sweep_some(
    engine: &Engine,
    place: &mut Swept,
    dead_generations: Vec<u32>,
) -> Result<(Vec<u32>, bool)> {
    let handed_over = match engine.get(&generations_key()).await? {
        Some(row) => Generations::decode(&row).context("the generations row is damaged")?.dead,
        None => BTreeSet::new(),
    };
    let mut swept = Vec::new();
    let mut steps = 0;
    for generation in dead_generations.into_iter().filter(|g| handed_over.contains(g)) {
        while !sweep_generation(engine, place, generation).await? {
            steps += 1;
            if steps >= SWEEP_STEPS {
                return Ok((swept, true));
            }
        }
        swept.push(generation);
    }
    let mut range = prefix_range(&[row::DEAD]);
    range.start = std::mem::take(&mut place.dead).max(range.start);
    let dead = engine.scan(range, SWEEP_ROWS).await?;
    for (key, _) in &dead {
        let Some(Row::Dead { slot, version, prefix }) = Row::parse(key) else { continue };
        let mut head = Vec::new();
        RowKey::elements(&mut head, slot, version);
        head.extend_from_slice(prefix);
        while !sweep_elements(engine, place, key, head.clone()).await? {
            steps += 1;
            if steps >= SWEEP_STEPS {
                place.dead = key.to_vec();
                return Ok((swept, true));
            }
        }
    }
    let more = dead.len() == SWEEP_ROWS;
    if let Some((key, _)) = dead.last().filter(|_| more) {
        place.dead = key.to_vec();
    }
    Ok((swept, more))
}

/// Deletes some of the element rows that begin with `head`, which the D row `key` marks as dead,
/// and with the last of them the D row.
async fn sweep_elements(
    engine: &Engine,
    place: &mut Swept,
    key: &Bytes,
    head: Vec<u8>,
) -> Result<bool> {
    let (mut batch, mut value_bytes) = (Batch::new(), 0);
    let walk = engine.walk(place.range(&head), |key, value| {
        // The key of a row may keep the whole block.
        batch.push((Bytes::copy_from_slice(&key), None));
        value_bytes += value.len() as u64;
        batch.len() < SWEEP_ROWS
    });
    let done = walk.await?.is_none();
    let last = batch.last().map(|(key, _)| key.clone());
    if done {
        batch.push((key.clone(), None));
    }
    engine.write_deleting(batch, value_bytes).await?;
    if let Some(last) = last {
        place.up_to(head, &last);
    }
    Ok(done)
}

/// Deletes some meta rows of a dead generation with their expiry rows, leaving D rows for their
/// elements; returns true when no meta row is left.
async fn sweep_generation(engine: &Engine, place: &mut Swept, generation: u32) -> Result<bool> {
    let mut head = vec![row::META];
    head.extend_from_slice(&generation.to_be_bytes());
    let (mut batch, mut value_bytes, mut rows, mut last) = (Batch::new(), 0, 0, None);
    let walk = engine.walk(place.range(&head), |key, value| {
        value_bytes += value.len() as u64;
        rows += 1;
        if let Some(Row::Meta { slot, key: name, .. }) = Row::parse(&key)
            && let Ok(entry) = decode_entry(name, 0, &value)
        {
            let version = entry.value.version();
            if version != 0 {
                batch.push((RowKey::dead(slot, version).into(), Some(Bytes::new())));
            }
            for (at_ms, fields) in entry.state().times() {
                batch.push((RowKey::time(at_ms, slot, generation, fields, name).into(), None));
            }
        }
        let key = Bytes::copy_from_slice(&key);
        last = Some(key.clone());
        batch.push((key, None));
        rows < SWEEP_ROWS
    });
    let done = walk.await?.is_none();
    if done {
        for (key, _) in engine.scan(prefix_range(&counter_prefix(generation)), SWEEP_ROWS).await? {
            batch.push((key, None));
        }
    }
    if !batch.is_empty() {
        engine.write_deleting(batch, value_bytes).await?;
    }
    if let Some(last) = last {
        place.up_to(head, &last);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use crate::pending::Pending;

    #[test]
    fn no_batch_of_a_hand_over_is_empty() {
        // The last row fills its batch: by itself, or with those before it.
        for (rows, size) in [(1, BATCH_BYTES), (8, BATCH_BYTES / 8), (3, BATCH_BYTES / 2), (0, 0)] {
            let mut pending = Pending::default();
            for n in 0..rows {
                let mut key = Vec::new();
                RowKey::elements(&mut key, 1, 9);
                key.push(n);
                pending.set(&key, Some(&vec![0; size]), false);
            }
            let cut = Cut {
                pending,
                lsn: 7,
                reaches: 7,
                epoch: 1,
                generations: Generations::default(),
                counters: Counters::default(),
            };
            let mut batches = Vec::new();
            each_hand_over_batch(&cut, usize::from(rows).max(1), &mut |batch| batches.push(batch));
            assert!(batches.iter().all(|batch| !batch.is_empty()));
            let elements = batches.iter().flatten().filter(|(key, _)| key[0] == row::ELEMENT);
            assert_eq!(elements.count(), usize::from(rows));
            assert_eq!(batches[0][0], reaches_row(7));
            let last = batches.last().expect("one at least");
            assert!(
                last.iter()
                    .any(|row| *row == applied_rows(7, 1, &cut.generations, &cut.counters)[0])
            );
        }
    }
}
