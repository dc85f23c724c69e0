//! A second engine in a bucket that begins with the files of another one: it reads them where they are, as a
//! branch does (RFC 8), and a checkpoint in the other one keeps them.

use super::checkpoint::{keep_for_branch, keep_on};
use crate::place::{Place, SHARED, Share, Shares, admin, put, read, remove_tree, sizes};
use anyhow::{Context, Result, bail};
use object_store::ObjectStoreExt;
use std::collections::BTreeMap;

/// Makes the files of an engine in `to` that has what the one in `from` has, which is closed.
///
/// # Errors
/// If that one reads files of another one itself, or if the store does not answer. Some files may be left.
pub(crate) async fn branch_engine(from: &Place, to: &Place) -> Result<()> {
    if shares_files(from).await? {
        bail!(
            "{from} still reads files of the shard that it was split from: it can be split once they are \
             merged"
        );
    }
    let parent = admin(from.store(), from.root().as_ref());
    let checkpoint = keep_for_branch(&parent, None, to.root().as_ref()).await?;
    let manifest = parent.read_manifest(Some(checkpoint.manifest)).await?;
    let manifest = manifest.context("the manifest of the checkpoint is missing")?;
    let listed = sizes(&from.join("compacted")).await?;
    let mut files = BTreeMap::new();
    for view in manifest.all_sst_views() {
        let name = format!("{}.sst", view.sst.id.value());
        let size = listed.get(&name).with_context(|| format!("{name} is missing"))?;
        files.insert(format!("compacted/{name}"), *size);
    }
    let share = Share { engine: from.root().to_string(), checkpoint: checkpoint.id.clone(), files };
    let engines = BTreeMap::from([(to.root().to_string(), share)]);
    Shares::new(engines).create(to).await?;
    let name = format!("manifest/{:020}.manifest", checkpoint.manifest);
    let bytes = read(&from.join(&name)).await?.context("the manifest of the checkpoint is gone")?;
    put(&to.stamping().join(&name), bytes).await?;
    // Checkpoints name manifests that are not here.
    let own = admin(to.store(), to.root().as_ref());
    for found in own.list_checkpoints(None).await? {
        own.delete_checkpoint(found.id).await?;
    }
    keep_on(&parent, &checkpoint.id).await
}

/// Returns true if an engine reads files of another one.
pub(crate) async fn shares_files(engine: &Place) -> Result<bool> {
    Ok(Shares::read(engine).await?.is_some_and(|shares| shares.shared().next().is_some()))
}

/// Removes the files of such an engine, which nobody needs, and the checkpoint that keeps those which it shares.
///
/// # Errors
/// If the store does not answer: some may be left.
pub(crate) async fn remove_branch(engine: &Place) -> Result<()> {
    let Some(shares) = Shares::read(engine).await? else {
        return remove_tree(engine).await;
    };
    for share in shares.shared() {
        share.release(engine.store()).await?;
    }
    // The list goes last: it names the checkpoint.
    remove_tree(&engine.join("manifest")).await?;
    engine.store().delete(&engine.path(SHARED)).await?;
    remove_tree(engine).await
}
