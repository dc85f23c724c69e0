//! Splitting a shard in a bucket.
//!
//! The new shard has a place of its own, with the journal's epoch in its name, and begins with the files of the
//! other one, where they are ([`branch_engine`]). A control row of the first shard's engine names all shards:
//! that row makes the one shard two. Only the process that has opened that engine last can write it, so one that
//! was taken over, and goes on with a split later, changes nothing; and a start knows the shards once it has opened
//! that engine. `flagstone.json` has a note of the row for those that read no engine, and may be behind.

use super::{ShardSplitter, SplitError};
use crate::control::division_row;
use crate::directory::{Manifest, ShardHome};
use crate::division::PartOrigin;
use crate::engine::Engine;
use crate::engine::branch::{branch_engine, remove_branch};
use crate::place::{Place, names, sizes};
use crate::shard::Shard;
use crate::slot::SplitPlan;
use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;

/// The engine of the first shard, and what it says of all.
pub(super) struct FirstShard {
    engine: Engine,
    manifest: Mutex<Manifest>,
}

impl FirstShard {
    pub(super) fn new(engine: &Engine, manifest: Manifest) -> Self {
        Self { engine: engine.clone(), manifest: Mutex::new(manifest) }
    }
}

impl ShardSplitter {
    /// See [`ShardSplitter::split`].
    pub(super) async fn split_in_bucket(
        &self,
        first: &FirstShard,
        engine: &Engine,
        plan: &SplitPlan,
    ) -> Result<Shard, SplitError> {
        let mut manifest = first.manifest.lock().await;
        let origin = PartOrigin { shard: plan.shard, epoch: self.epoch };
        let divided = manifest.clone().split(plan, Some(origin));
        let homes = divided.homes();
        let new = homes[usize::from(plan.into)].engine_place(&self.store);
        if let Some(why) = first.engine.closed() {
            let error = anyhow::anyhow!("the engine of the first shard is closed ({why:?})");
            return Err(SplitError::CalledOff(error));
        }
        let shard = match self.make_in_bucket(engine, plan, (&divided, &new)).await {
            Ok(shard) => shard,
            Err(error) => return Err(call_off(&new, error).await),
        };
        // The engine that is split is closed.
        let is_first = plan.shard == 0;
        let engine = match is_first {
            true => first.engine.open_again().await,
            false => Ok(first.engine.clone()),
        };
        let engine = match engine {
            Ok(engine) => engine,
            Err(error) => {
                let _ = shard.engine().close().await;
                return Err(call_off(&new, error).await);
            }
        };
        let noted = note(&engine, &divided).await;
        if is_first {
            let _ = engine.close().await;
        }
        noted.context("the first shard").map_err(SplitError::Unknown)?;
        *manifest = divided;
        if let Err(error) = manifest.replace(&self.store).await {
            // The next start writes it.
            tracing::warn!("flagstone.json does not name a shard that was split: {error:#}");
        }
        Ok(shard)
    }

    /// Makes the new shard, whose engine is to be in a place of its own.
    async fn make_in_bucket(
        &self,
        engine: &Engine,
        plan: &SplitPlan,
        (divided, new): (&Manifest, &Place),
    ) -> Result<Shard> {
        engine.release_shared().await?;
        if engine.place().shares_any() {
            bail!(
                "it still reads files of the shard, or of the directory, that it comes from: it can be split \
                 once they are merged, and replaced files deleted, some minutes after that"
            );
        }
        // A merge leaves the rows of the other half out in both: all files are merged soon.
        engine.count_half_as_garbage().await?;
        engine.flush().await?;
        // Who has opened the engine since owns the data: the answer to a flush does not tell.
        engine.claim_unless_taken();
        engine.close().await?;
        remove_branch(new).await.context("removing the files of an earlier try")?;
        branch_engine(engine.place(), new).await.with_context(|| format!("making {new}"))?;
        self.open_new(plan, divided).await
    }
}

/// Writes the control row that names all shards.
async fn note(first: &Engine, divided: &Manifest) -> Result<()> {
    let division = divided.division().context("a shard was split")?;
    first.write(vec![division_row(&division)]).await?;
    first.flush_as_owner().await
}

/// Removes the files of a split that failed; the next start removes those that cannot be removed now.
async fn call_off(new: &Place, error: anyhow::Error) -> SplitError {
    if let Err(left) = remove_branch(new).await {
        tracing::warn!("files are left of a split that failed: {left:#}");
    }
    SplitError::CalledOff(error)
}

/// Removes the files of shards that were never split off in a bucket, as the server that made them was killed or
/// taken over. All shards of the manifest must have been opened. If the store does not answer, the next start does it.
pub(in crate::directory) async fn remove_remains(store: &Place, manifest: &Manifest) {
    if store.dir().is_none()
        && let Err(error) = try_remove_remains(store, manifest).await
    {
        tracing::warn!("files are left of a split that was cut off: {error:#}");
    }
}

async fn try_remove_remains(store: &Place, manifest: &Manifest) -> Result<()> {
    let named: Vec<String> = manifest.homes().iter().map(ShardHome::name).collect();
    let (_, dirs) = names(store).await?;
    for dir in dirs.iter().filter(|dir| ShardHome::split_by(dir).is_some() && !named.contains(dir))
    {
        let home = store.join(dir);
        // In a directory that is used like a bucket a kill leaves directories, and files that are no objects.
        if sizes(&home).await?.is_empty() {
            continue;
        }
        remove_branch(&home.join("db")).await?;
        tracing::info!(directory = dir, "removed what was left of a split that was cut off");
    }
    Ok(())
}
