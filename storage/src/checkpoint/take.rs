//! Takes a checkpoint of shards that are in use.

use super::copy::{Quiet, copy_tree};
use super::scratch::Scratch;
use super::{Catalog, Checkpoint, CheckpointDivision, sync_dir};
use crate::clock::Clock;
use crate::engine::Engine;
use crate::engine::checkpoint::EngineCheckpoint;
use crate::journal::{Extract, HoldId, Journal, Lsn, RealDisk};
use crate::place::{Place, remove_dir};
use crate::slot::Layout;
use anyhow::{Context, Result, anyhow, bail};
use futures::future::{pending, try_join_all};
use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};

/// Error of a checkpoint that was cancelled.
pub const CANCELLED: &str = "it was cancelled";

/// Engines, of which there are more once a shard was split.
#[derive(Clone)]
pub struct SourceEngines(Arc<RwLock<Vec<Engine>>>);

impl From<Vec<Engine>> for SourceEngines {
    fn from(engines: Vec<Engine>) -> Self {
        Self(Arc::new(RwLock::new(engines)))
    }
}

/// The parts of a data directory that checkpoints need.
#[derive(Clone)]
pub struct CheckpointSource {
    /// Place of the shards and of the checkpoints.
    pub store: Place,
    /// Local directory in which records gather for a store that is not local.
    pub scratch: PathBuf,
    pub layout: Arc<Layout>,
    /// The salt of the data directory.
    pub origin: u32,
    pub journal: Arc<dyn Journal>,
    /// Engines of all shards of the layout, by shard.
    pub engines: SourceEngines,
    pub clock: Clock,
}

impl CheckpointSource {
    /// Returns the engines, by shard.
    pub fn engines(&self) -> Vec<Engine> {
        self.engines.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Adds the engine of a shard that was split from another one. No checkpoint may be taken meanwhile.
    pub fn add(&self, engine: Engine) {
        self.engines.0.write().unwrap_or_else(PoisonError::into_inner).push(engine);
    }
}

impl std::fmt::Debug for CheckpointSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("store", &self.store).finish_non_exhaustive()
    }
}

/// A hold that keeps records in the journal as long as it lives.
struct CheckpointHold<'a> {
    journal: &'a dyn Journal,
    id: HoldId,
}

impl Drop for CheckpointHold<'_> {
    fn drop(&mut self) {
        self.journal.release(self.id);
    }
}

/// Takes a checkpoint, which has every commit appended before the call. It fails if the journal
/// grows beyond `max_journal_bytes` meanwhile. Calls must not overlap.
pub async fn take(source: &CheckpointSource, max_journal_bytes: u64) -> Result<Checkpoint> {
    take_unless(source, max_journal_bytes, pending()).await
}

/// The same, unless `cancelled` ends before the checkpoint is whole: the error is [`CANCELLED`] then.
pub async fn take_unless(
    source: &CheckpointSource,
    max_journal_bytes: u64,
    cancelled: impl Future<Output = ()>,
) -> Result<Checkpoint> {
    let journal = &*source.journal;
    // Records that the engines have not flushed are in the journal now, and stay there.
    let held = CheckpointHold { journal, id: journal.hold(0, max_journal_bytes) };
    let catalog = Catalog::of(&source.store);
    let created_ms = source.clock.now_ms();
    let mut cancelled = pin!(cancelled);
    let id = tokio::select! {
        id = unused_id(&catalog, created_ms) => id?,
        () = cancelled.as_mut() => bail!(CANCELLED),
    };
    let made = tokio::select! {
        made = take_held(source, &catalog, &id, created_ms, held.id) => made,
        () = cancelled => Err(anyhow!(CANCELLED)),
    };
    drop(held);
    let taken = match made {
        // Nothing cuts this off: a description that is written has its checkpoint.
        Ok(made) => catalog.publish(&made).await.map(|()| made),
        Err(error) => Err(error),
    };
    match &taken {
        Ok(taken) => {
            // An engine may have made only now what an earlier checkpoint has waited for in vain.
            if let Err(error) = catalog.tidy(&source.engines(), Some(taken)).await {
                tracing::warn!("what is left of earlier checkpoints cannot be removed: {error:#}");
            }
        }
        // What cannot be removed now goes with the next checkpoint, or at the next start.
        Err(_) => drop(catalog.clean(&source.engines()).await),
    }
    taken
}

/// Makes everything of a checkpoint but its description.
async fn take_held(
    source: &CheckpointSource,
    catalog: &Catalog,
    id: &str,
    created_ms: u64,
    hold: HoldId,
) -> Result<Checkpoint> {
    let engines = source.engines();
    let shards = try_join_all(engines.iter().map(|engine| engine.checkpoint(id)));
    let shards: Vec<EngineCheckpoint> = shards.await.context("a checkpoint of a shard")?;
    let applied = shards.iter().map(|shard| shard.applied).min().unwrap_or(0);
    // Records dropped earlier belong to shards that have applied more.
    let after = applied.max(source.journal.oldest().saturating_sub(1));
    let CopiedRecords { lsn, last_ms, bytes } =
        copy_records(source, &catalog.records(id), hold, after)
            .await
            .context("copying the journal's records")?;
    let division = CheckpointDivision::of(&source.layout);
    Ok(Checkpoint {
        format: CheckpointDivision::format(division.as_ref()),
        id: id.to_owned(),
        created_ms,
        lsn,
        last_ms: Some(last_ms),
        after,
        epoch: source.journal.epoch(),
        record_bytes: bytes,
        origin: source.origin,
        seed: source.layout.seed,
        shards,
        division,
    })
}

/// Records of a checkpoint.
struct CopiedRecords {
    lsn: Lsn,
    /// Greatest time of a record up to `lsn`, copied or not, at least.
    last_ms: u64,
    bytes: u64,
}

/// Copies the records behind `after` to a place.
async fn copy_records(
    source: &CheckpointSource,
    to: &Place,
    hold: HoldId,
    after: Lsn,
) -> Result<CopiedRecords> {
    // No other process takes checkpoints of this data directory.
    let name = format!("checkpoint-{:08x}", source.origin);
    let scratch = || Scratch::at(source.scratch.join(name));
    let scratch = to.dir().is_none().then(scratch).transpose()?;
    let dir = scratch.as_ref().map(Scratch::path).or(to.dir()).context("a local directory")?;
    let (journal, dir) = (source.journal.clone(), dir.to_owned());
    // No row in the engines has a later time.
    let time_ms = source.clock.now_ms() + 1;
    let copying = move || extract_records(&*journal, hold, (after, time_ms), dir);
    let copied = tokio::task::spawn_blocking(copying).await??;
    if let Some(scratch) = &scratch {
        copy_tree(&Place::local(scratch.path())?, to, &Quiet).await?;
    }
    Ok(copied)
}

/// Writes the records behind `after` as a journal.
fn extract_records(
    journal: &dyn Journal,
    hold: HoldId,
    (after, time_ms): (Lsn, u64),
    dir: PathBuf,
) -> Result<CopiedRecords> {
    // No row enters an engine before its record is durable, so this is behind all rows.
    let end = journal.sync_now()?;
    let last_ms = journal.max_time_ms();
    remove_dir(&dir)?;
    let parent = dir.parent().context("a directory of checkpoints")?;
    fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
    let mut extract = Extract::create(Arc::new(RealDisk), &dir, rand::random(), after)?;
    extract.at_least(time_ms);
    if end > after {
        journal.read(hold, (after + 1, end), &mut |record| {
            extract.push(&record).map_err(std::io::Error::other)
        })?;
    }
    let bytes = extract.finish(journal.epoch(), end)?;
    sync_dir(parent)?;
    Ok(CopiedRecords { lsn: end.max(after), last_ms, bytes })
}

/// Returns an id that tells the time and is not in use.
async fn unused_id(catalog: &Catalog, mut ms: u64) -> Result<String> {
    loop {
        let id = format_id(ms);
        if !catalog.has(&id).await? {
            return Ok(id);
        }
        ms += 1;
    }
}

/// Formats a time as `20261122-040312.123`, in UTC.
pub(super) fn format_id(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(chrono::DateTime::from_timestamp_millis);
    time.map_or_else(|| ms.to_string(), |time| time.format("%Y%m%d-%H%M%S%.3f").to_string())
}
