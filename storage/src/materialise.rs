//! From pending rows to the engine, in the background.
//!
//! Rules (docs/durability.md): no row enters the engine before its lsn is durable. The first batch
//! carries `reaches`, the last one `applied` with the counters and generations of the cut.
//! Batches are awaited in order. "Flushed" is what the engine says, nothing else.

use crate::control::{applied_rows, counter_prefix, reaches_row};
use crate::encoding::{Row, RowKey, decode_entry, row};
use crate::engine::{BATCH_BYTES, Engine, prefix_range};
use crate::journal::Journal;
use crate::shard::Cut;
use anyhow::{Result, bail};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

/// How often a hand-over looks whether its lsn is durable.
const DURABLE_POLL: Duration = Duration::from_millis(2);

/// Rows that one step of a sweep deletes at most.
const SWEEP_ROWS: usize = 4096;

/// Steps of one sweep at most; the next one goes on.
const SWEEP_STEPS: usize = 16;

/// Hands a cut over; the engine's sequence number of its last batch.
pub async fn hand_over(engine: Engine, journal: Arc<dyn Journal>, cut: Arc<Cut>) -> Result<u64> {
    wait_durable(&*journal, cut.lsn).await?;
    let gathered = cut.clone();
    let batches = tokio::task::spawn_blocking(move || gathered.pending.batches(BATCH_ROWS)).await?;
    let mut first = vec![reaches_row(cut.lsn)];
    for batch in batches {
        let mut bytes = 0;
        for row in batch {
            bytes += row.0.len() + row.1.as_ref().map_or(0, Bytes::len);
            first.push(row);
            if bytes >= BATCH_BYTES {
                engine.write(std::mem::take(&mut first)).await?;
                bytes = 0;
            }
        }
        if !first.is_empty() {
            engine.write(std::mem::take(&mut first)).await?;
        }
    }
    first.extend(applied_rows(cut.lsn, cut.epoch, &cut.generations, &cut.counters));
    engine.write(first).await
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

/// Deletes rows that nobody can reach any more: elements of dead versions, and everything of dead
/// generations. To be called only when all that was handed over is flushed, so that no replay
/// brings such rows back. Generations of which nothing is left come back, and whether there is
/// more to do.
pub async fn sweep(engine: &Engine, dead_generations: Vec<u32>) -> Result<(Vec<u32>, bool)> {
    let mut swept = Vec::new();
    let mut steps = 0;
    for generation in dead_generations {
        while !sweep_generation(engine, generation).await? {
            steps += 1;
            if steps >= SWEEP_STEPS {
                return Ok((swept, true));
            }
        }
        swept.push(generation);
    }
    let dead = engine.scan(prefix_range(&[row::DEAD]), SWEEP_ROWS).await?;
    for (key, _) in &dead {
        let Some(Row::Dead { slot, version }) = Row::parse(key) else { continue };
        while !sweep_version(engine, key, slot, version).await? {
            steps += 1;
            if steps >= SWEEP_STEPS {
                return Ok((swept, true));
            }
        }
    }
    Ok((swept, dead.len() == SWEEP_ROWS))
}

/// Deletes some element rows of a dead version, and its D row with the last of them.
async fn sweep_version(engine: &Engine, key: &Bytes, slot: u16, version: u64) -> Result<bool> {
    let mut head = Vec::new();
    RowKey::elements(&mut head, slot, version);
    let rows = engine.scan(prefix_range(&head), SWEEP_ROWS).await?;
    let done = rows.len() < SWEEP_ROWS;
    let mut batch: Vec<(Bytes, Option<Bytes>)> = rows.into_iter().map(|(k, _)| (k, None)).collect();
    if done {
        batch.push((key.clone(), None));
    }
    engine.write(batch).await?;
    Ok(done)
}

/// Deletes some meta rows of a dead generation with their expiry rows, leaving D rows for their
/// elements; true when none is left.
async fn sweep_generation(engine: &Engine, generation: u32) -> Result<bool> {
    let mut head = vec![row::META];
    head.extend_from_slice(&generation.to_be_bytes());
    let rows = engine.scan(prefix_range(&head), SWEEP_ROWS).await?;
    let done = rows.len() < SWEEP_ROWS;
    let mut batch = Vec::with_capacity(rows.len() + 1);
    for (key, value) in rows {
        if let Some(Row::Meta { slot, key: name, .. }) = Row::parse(&key)
            && let Ok(entry) = decode_entry(name, 0, &value)
        {
            let version = entry.value.version();
            if version != 0 {
                batch.push((RowKey::dead(slot, version).into(), Some(Bytes::new())));
            }
            let times = [(entry.expire_at_ms, false), (entry.value.fields_expire_at_ms(), true)];
            for (at_ms, fields) in times.into_iter().filter(|(at_ms, _)| *at_ms != 0) {
                batch.push((RowKey::time(at_ms, slot, generation, fields, name).into(), None));
            }
        }
        batch.push((key, None));
    }
    if done {
        for (key, _) in engine.scan(prefix_range(&counter_prefix(generation)), SWEEP_ROWS).await? {
            batch.push((key, None));
        }
    }
    if !batch.is_empty() {
        engine.write(batch).await?;
    }
    Ok(done)
}
