//! Checkpoints of an engine: states whose files are kept as long as the checkpoint exists.

use super::{Engine, FLUSH, within};
use crate::control::Control;
use crate::encoding::{prefix_range, row};
use crate::journal::Lsn;
use crate::place::{Place, Shares, Writes, admin, beside};
use anyhow::{Context, Result, bail};
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use slatedb::admin::Admin;
use slatedb::config::{CheckpointOptions, CheckpointScope};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// Prefix of the names of SlateDB checkpoints, followed by the name of this server's checkpoint.
const NAME: &str = "flagstone ";

/// Prefix of the names of those that keep files for a branch, followed by the path of the branch.
const BRANCH: &str = "flagstone-branch ";

/// How long files are kept for a branch that is not completed.
const MAKING: Duration = Duration::from_secs(3600);

/// Time for which writes to a store have failed, after which no checkpoint waits for it.
const STUCK: Duration = Duration::from_secs(10);

/// Interval of checks for that.
const LOOK: Duration = Duration::from_millis(500);

/// A state of one shard's engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCheckpoint {
    /// SlateDB's id of the checkpoint.
    pub id: String,
    /// Number of the manifest that lists its files.
    pub manifest: u64,
    /// It has every record of the shard up to this lsn.
    pub applied: Lsn,
    /// It has no row of a later record than this.
    pub reaches: Lsn,
    /// Number of its keys, by its counters. Descriptions of earlier versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
    /// The epoch in which the shard was split from another one, in a bucket: a part of its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<u64>,
}

impl EngineCheckpoint {
    /// Returns true if the checkpoint was taken with these control rows.
    pub(crate) fn is_of(&self, control: &Control) -> bool {
        let reaches = control.reaches.max(control.applied);
        control.applied == self.applied
            && reaches == self.reaches
            && self.keys.is_none_or(|keys| keys == control.counters.keys())
    }
}

/// A SlateDB checkpoint that keeps files for a branch.
pub(crate) struct KeptFiles {
    pub(crate) id: String,
    /// Number of the manifest that lists them.
    pub(crate) manifest: u64,
}

/// Keeps the files of a checkpoint (`None`: those that the engine has now) for the branch at `path`, for
/// [`MAKING`] at first.
pub(crate) async fn keep_for_branch(
    engine: &Admin,
    id: Option<&str>,
    path: &str,
) -> Result<KeptFiles> {
    let source = id.map(str::parse).transpose().context("the id of a checkpoint")?;
    let name = Some(format!("{BRANCH}{path}"));
    let options = CheckpointOptions { lifetime: Some(MAKING), source, name };
    let made = engine.create_detached_checkpoint(&options).await?;
    Ok(KeptFiles { id: made.id.to_string(), manifest: made.manifest_id })
}

/// Keeps the files of such a checkpoint for as long as the branch needs them.
pub(crate) async fn keep_on(engine: &Admin, id: &str) -> Result<()> {
    let id = id.parse().context("the id of a checkpoint")?;
    engine.refresh_checkpoint(id, None).await?;
    Ok(())
}

/// Waits for the engine, unless writes to its store have failed for [`STUCK`]: it goes on trying
/// without end.
async fn while_writable<T>(writes: &Writes, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = pin!(work);
    loop {
        if let Ok(done) = timeout(LOOK, work.as_mut()).await {
            return done;
        }
        if let Some((_, why)) = writes.trouble().filter(|(since, _)| *since >= STUCK) {
            bail!("{why}");
        }
    }
}

impl Engine {
    /// Takes a checkpoint of everything written so far. Its files are kept until it is dropped.
    pub async fn checkpoint(&self, name: &str) -> Result<EngineCheckpoint> {
        // The turn prevents writes, so that the control rows are those of the checkpoint.
        let writes = self.opened().writes;
        // A hand-over that waits for the store has the turn.
        let having = async { Ok(self.turn().await) };
        let _turn = while_writable(&writes, having).await.with_context(|| {
            format!("waiting for the rows that are being handed over to {}", self.place())
        })?;
        while_writable(&writes, self.flush()).await?;
        let options =
            CheckpointOptions { name: Some(format!("{NAME}{name}")), ..Default::default() };
        let db = self.db();
        let making =
            async { Ok(db.writer()?.create_checkpoint(CheckpointScope::All, &options).await?) };
        let made = within(FLUSH, &writes, making).await;
        let made = made.with_context(|| format!("a checkpoint of {}", self.place()))?;
        let rows = self.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
        let control = Control::read(&rows).map_err(anyhow::Error::msg)?;
        Ok(EngineCheckpoint {
            id: made.id.to_string(),
            manifest: made.manifest_id,
            applied: control.applied,
            reaches: control.reaches.max(control.applied),
            keys: Some(control.counters.keys()),
            made_by: self.made_by(),
        })
    }

    /// Releases the files kept for the checkpoint `id`, if there are any.
    pub async fn drop_checkpoint(&self, id: &str) -> Result<()> {
        self.drop_checkpoints(|_, other| other == id).await
    }

    /// Drops all of this server's checkpoints except those with these ids.
    pub async fn keep_checkpoints(&self, ids: &BTreeSet<String>) -> Result<()> {
        self.drop_checkpoints(|name, id| name.starts_with(NAME) && !ids.contains(id)).await
    }

    /// Releases the files kept for branches that do not exist any more.
    pub(crate) async fn drop_branches(&self) -> Result<()> {
        let (store, place) = (self.place().store(), self.place());
        let admin = admin(store.clone(), place.root().as_ref());
        for checkpoint in admin.list_checkpoints(None).await.context("listing checkpoints")? {
            let Some(path) = checkpoint.name.as_deref().and_then(|name| name.strip_prefix(BRANCH))
            else {
                continue;
            };
            // A checkpoint that expires belongs to a branch in the making.
            if checkpoint.expire_time.is_some() {
                continue;
            }
            // A branch elsewhere, or a shard that was split from this one and is beside it, wherever that is now.
            let branches = [Some(Path::from(path)), beside(place.root(), path)];
            let id = checkpoint.id.to_string();
            let mut is_needed = false;
            for branch in branches.into_iter().flatten() {
                let branch = Place::within(store.clone(), branch, path);
                let shares = Shares::read(&branch).await?;
                is_needed |= shares.is_some_and(|shares| shares.has(&id));
            }
            if !is_needed {
                admin.delete_checkpoint(checkpoint.id).await.context("deleting a checkpoint")?;
                self.opened().writes.changes().note();
                tracing::info!(branch = path, engine = %place, "nothing is kept for a branch that is gone");
            }
        }
        Ok(())
    }

    /// Releases the files kept for the branch at `path`, which must not be in use, whether it exists or not.
    pub(crate) async fn drop_branch(&self, path: &Path) -> Result<()> {
        let branch = format!("{BRANCH}{path}");
        self.drop_checkpoints(|name, _| name == branch).await
    }

    /// Releases files of the engine that this one was split from, if it needs none of them any more.
    ///
    /// # Errors
    /// If the store does not answer: the call may be repeated.
    pub async fn release_shared(&self) -> Result<()> {
        self.place().release().await?;
        Ok(())
    }

    async fn drop_checkpoints(&self, gone: impl Fn(&str, &str) -> bool) -> Result<()> {
        let admin = admin(self.place().store(), self.place().root().as_ref());
        let found = admin.list_checkpoints(None).await.context("listing checkpoints")?;
        for checkpoint in found {
            let name = checkpoint.name.as_deref().unwrap_or_default();
            if gone(name, &checkpoint.id.to_string()) {
                admin.delete_checkpoint(checkpoint.id).await.context("deleting a checkpoint")?;
                // The collector deletes the files that it kept.
                self.opened().writes.changes().note();
            }
        }
        Ok(())
    }
}
