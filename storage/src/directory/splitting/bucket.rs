//! Splitting a shard in a bucket.
//!
//! The new shard has a place of its own, with the journal's epoch in its name, and begins with the files of the
//! other one, where they are ([`branch_engine`]). A control row of the first shard's engine names all shards:
//! that row makes the one shard two. Only the process that has opened that engine last can write it, so one that
//! was taken over, and goes on with a split later, changes nothing; and a start knows the shards once it has opened
//! that engine. `flagstone.json` has a note of the row for those that read no engine, and may be behind.
//!
//! Commands wait meanwhile, so the store has a time limit. What it has not done by then is undone behind that, and
//! the next split waits for it.

use super::{ShardSplitter, SplitError};
use crate::control::division_row;
use crate::directory::{Manifest, ShardHome};
use crate::division::PartOrigin;
use crate::engine::Engine;
use crate::engine::branch::{branch_engine, remove_branch};
use crate::place::{Place, names, sizes};
use crate::shard::Shard;
use crate::slot::SplitPlan;
use anyhow::{Context, Result, anyhow, bail};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// The engine of the first shard, and what it says of all.
pub(super) struct FirstShard {
    engine: Engine,
    manifest: Arc<Mutex<Manifest>>,
    /// Time limit for the store.
    limit: Duration,
}

impl FirstShard {
    pub(super) fn new(engine: &Engine, manifest: Manifest, limit: Duration) -> Self {
        Self { engine: engine.clone(), manifest: Arc::new(Mutex::new(manifest)), limit }
    }

    /// See [`ShardSplitter::has_room`].
    pub(super) fn has_room(&self) -> bool {
        self.engine.hurry_if_crowded();
        self.engine.level0_use() <= ShardSplitter::CROWDED
    }

    fn away(&self) -> anyhow::Error {
        anyhow!("the store has not done it within {} ms", self.limit.as_millis())
    }
}

/// The new shard, while it is made.
type Making = JoinHandle<Result<Shard>>;

impl ShardSplitter {
    /// See [`ShardSplitter::split`].
    pub(super) async fn split_in_bucket(
        self: &Arc<Self>,
        first: &FirstShard,
        engine: &Engine,
        plan: &SplitPlan,
    ) -> Result<Shard, SplitError> {
        let deadline = Instant::now() + first.limit;
        let lock = timeout_at(deadline, first.manifest.clone().lock_owned()).await;
        let called_off = |error| Err(SplitError::CalledOff(error));
        let Ok(manifest) = lock else {
            return called_off(first.away().context("an earlier split is still being undone"));
        };
        if let Some(why) = first.engine.closed() {
            return called_off(anyhow!("the engine of the first shard is closed ({why:?})"));
        }
        if !first.has_room() {
            return called_off(anyhow!(
                "too many files of the first shard's engine wait to be merged"
            ));
        }
        match timeout_at(deadline, close_to_split(engine)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return called_off(error),
            Err(_) => return called_off(first.away()),
        }
        let origin = PartOrigin { shard: plan.shard, epoch: self.epoch };
        let divided = manifest.clone().split(plan, Some(origin));
        let new = divided.homes()[usize::from(plan.into)].engine_place(&self.store);
        let undone = Undoing { manifest, new };
        let made =
            self.clone().make_in_bucket(engine.place().clone(), plan.clone(), divided.clone());
        let mut making: Making = tokio::spawn(made);
        let shard = match timeout_at(deadline, &mut making).await {
            Ok(Ok(Ok(shard))) => shard,
            Ok(Ok(Err(error))) => return Err(undone.begin(None, error)),
            Ok(Err(ended)) => return Err(undone.begin(None, ended.into())),
            Err(_) => return Err(undone.begin(Some(making), first.away())),
        };
        // The engine that is split is closed.
        let is_first = plan.shard == 0;
        let engine = match is_first {
            true => timeout_at(deadline, first.engine.open_again()).await,
            false => Ok(Ok(first.engine.clone())),
        };
        let engine = match engine.unwrap_or_else(|_| Err(first.away())) {
            Ok(engine) => engine,
            Err(error) => {
                let made = tokio::spawn(async { Ok(shard) });
                return Err(undone.begin(Some(made), error));
            }
        };
        let noted = timeout(first.limit, note(&engine, &divided)).await;
        let noted = noted.unwrap_or_else(|_| Err(first.away()));
        noted.context("the first shard").map_err(SplitError::Unknown)?;
        if is_first {
            // It is opened again for good.
            tokio::spawn(async move { engine.close().await });
        }
        undone.keep(divided, self.store.clone());
        Ok(shard)
    }

    /// Makes the new shard from the closed engine in `from`.
    async fn make_in_bucket(
        self: Arc<Self>,
        from: Place,
        plan: SplitPlan,
        divided: Manifest,
    ) -> Result<Shard> {
        let new = divided.homes()[usize::from(plan.into)].engine_place(&self.store);
        remove_branch(&new).await.context("removing the files of an earlier try")?;
        branch_engine(&from, &new).await.with_context(|| format!("making {new}"))?;
        self.open_new(&plan, &divided).await
    }
}

/// Flushes and closes the engine of a shard that is to be split. It may be dropped at any time.
async fn close_to_split(engine: &Engine) -> Result<()> {
    engine.release_shared().await?;
    if engine.place().shares_any() {
        bail!(
            "it still reads files of the shard, or of the directory, that it comes from: it can be split \
             once they are merged, and replaced files deleted, ten minutes and more after that"
        );
    }
    // A merge leaves the rows of the other half out in both: all files are merged soon.
    engine.count_half_as_garbage().await?;
    engine.flush().await?;
    // Who has opened the engine since owns the data: the answer to a flush does not tell.
    engine.claim_unless_taken();
    engine.close().await
}

/// Writes the control row that names all shards.
async fn note(first: &Engine, divided: &Manifest) -> Result<()> {
    let division = divided.division().context("a shard was split")?;
    first.write(vec![division_row(&division)]).await?;
    first.flush_as_owner().await
}

/// A split that may be undone. No other one begins before that.
struct Undoing {
    manifest: OwnedMutexGuard<Manifest>,
    new: Place,
}

impl Undoing {
    /// Begins to remove the files of a split that failed; the next start removes those that cannot be removed.
    fn begin(self, making: Option<Making>, error: anyhow::Error) -> SplitError {
        tokio::spawn(async move {
            if let Some(making) = making
                && let Ok(Ok(shard)) = making.await
            {
                let _ = shard.engine().close().await;
            }
            if let Err(left) = remove_branch(&self.new).await {
                tracing::warn!("files are left of a split that failed: {left:#}");
            }
            drop(self.manifest);
        });
        SplitError::CalledOff(error)
    }

    /// Notes the shards that there are now.
    fn keep(mut self, divided: Manifest, store: Place) {
        *self.manifest = divided;
        tokio::spawn(async move {
            if let Err(error) = self.manifest.replace(&store).await {
                // The next start writes it.
                tracing::warn!("flagstone.json does not name a shard that was split: {error:#}");
            }
        });
    }
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
