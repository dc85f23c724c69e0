//! Checkpoints of an engine: states of it whose files stay for as long as they are named.

use super::{Engine, FLUSH, prefix_range, within};
use crate::control::Control;
use crate::encoding::row;
use crate::journal::Lsn;
use crate::place::{Place, Shares};
use anyhow::{Context, Result};
use object_store::ObjectStore;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::{CheckpointOptions, CheckpointScope};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Names of SlateDB checkpoints begin with this, before the name of ours.
const NAME: &str = "flagstone ";

/// So do those that keep files for a branch, before the path of the branch.
const BRANCH: &str = "flagstone-branch ";

/// How long a checkpoint lives for a branch that does not come to be.
const MAKING: Duration = Duration::from_secs(3600);

/// A state of one shard's engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCheckpoint {
    /// SlateDB's id of it.
    pub id: String,
    /// The manifest that names its files.
    pub manifest: u64,
    /// Every record of the shard up to here is in it.
    pub applied: Lsn,
    /// None of its rows is of a later record.
    pub reaches: Lsn,
    /// How many keys it has, by its counters. Descriptions of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<u64>,
}

impl EngineCheckpoint {
    /// Returns true if these control rows are those that it was taken with.
    pub(crate) fn is_of(&self, control: &Control) -> bool {
        let reaches = control.reaches.max(control.applied);
        control.applied == self.applied
            && reaches == self.reaches
            && self.keys.is_none_or(|keys| keys == control.counters.keys())
    }
}

/// Returns an engine that may be open elsewhere, by its files.
pub(crate) fn admin(store: Arc<dyn ObjectStore>, path: &str) -> Admin {
    AdminBuilder::new(path, store).build()
}

/// Keeps the files of a checkpoint for the branch at `path`, for [`MAKING`] at first.
pub(crate) async fn keep_for_branch(engine: &Admin, id: &str, path: &str) -> Result<String> {
    let options = CheckpointOptions {
        lifetime: Some(MAKING),
        source: Some(id.parse().context("the id of a checkpoint")?),
        name: Some(format!("{BRANCH}{path}")),
    };
    Ok(engine.create_detached_checkpoint(&options).await?.id.to_string())
}

impl Engine {
    /// Takes a checkpoint of what is written now. It stays until it is dropped.
    pub async fn checkpoint(&self, name: &str) -> Result<EngineCheckpoint> {
        // Nobody writes meanwhile, so that the control rows are those of the checkpoint.
        let _turn = self.turn().await;
        self.flush().await?;
        let options =
            CheckpointOptions { name: Some(format!("{NAME}{name}")), ..Default::default() };
        let (db, writes) = (self.db(), self.opened().writes);
        let making = async { Ok(db.create_checkpoint(CheckpointScope::All, &options).await?) };
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
        })
    }

    /// Gives up what it keeps for the checkpoint `id`, if it still does.
    pub async fn drop_checkpoint(&self, id: &str) -> Result<()> {
        self.drop_checkpoints(|_, other| other == id).await
    }

    /// Gives up all checkpoints of ours but those with these ids.
    pub async fn keep_checkpoints(&self, ids: &BTreeSet<String>) -> Result<()> {
        self.drop_checkpoints(|name, id| name.starts_with(NAME) && !ids.contains(id)).await
    }

    /// Gives up what is kept for branches that are not there any more.
    pub(crate) async fn drop_branches(&self) -> Result<()> {
        let (store, place) = (self.place().store(), self.place());
        let admin = admin(store.clone(), place.root().as_ref());
        for checkpoint in admin.list_checkpoints(None).await.context("listing checkpoints")? {
            let Some(path) = checkpoint.name.as_deref().and_then(|name| name.strip_prefix(BRANCH))
            else {
                continue;
            };
            // One that has an end is for a branch that is being made.
            if checkpoint.expire_time.is_some() {
                continue;
            }
            let branch = Place::within(store.clone(), Path::from(path), path);
            let shares = Shares::read(&branch).await?;
            if !shares.is_some_and(|shares| shares.has(&checkpoint.id.to_string())) {
                admin.delete_checkpoint(checkpoint.id).await.context("deleting a checkpoint")?;
                tracing::info!(branch = path, engine = %place, "nothing is kept for a branch that is gone");
            }
        }
        Ok(())
    }

    async fn drop_checkpoints(&self, gone: impl Fn(&str, &str) -> bool) -> Result<()> {
        let admin = admin(self.place().store(), self.place().root().as_ref());
        let found = admin.list_checkpoints(None).await.context("listing checkpoints")?;
        for checkpoint in found {
            let name = checkpoint.name.as_deref().unwrap_or_default();
            if gone(name, &checkpoint.id.to_string()) {
                admin.delete_checkpoint(checkpoint.id).await.context("deleting a checkpoint")?;
            }
        }
        Ok(())
    }
}
