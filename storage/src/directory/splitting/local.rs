//! Splitting a shard in a local directory.
//!
//! The new shard's directory gets hard links to the files with rows, which are never written again, and a copy
//! of the manifest that lists them; so no directory depends on another. `unfinished` in it marks it until
//! `flagstone.json` names the slots of all shards: that write makes the one shard two. It gets its name with that
//! mark, and loses it before the mark: until then, or from then on, it is `splitting`.

use super::{Manifest, ShardSplitter, SplitError, manifest_of};
use crate::directory::new_directory::UNFINISHED;
use crate::directory::{ShardHome, create_private_dir};
use crate::engine::Engine;
use crate::place::{Place, admin, remove_dir};
use crate::shard::Shard;
use crate::slot::SplitPlan;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Name of the directory of a new shard while it has no mark.
const SPLITTING: &str = "splitting";

impl ShardSplitter {
    /// See [`ShardSplitter::split`].
    pub(super) async fn split_locally(
        &self,
        dir: &Path,
        engine: &Engine,
        plan: &SplitPlan,
    ) -> Result<Shard, SplitError> {
        let home = dir.join(ShardHome::at_creation(plan.into).name());
        vacate(dir, &home).map_err(SplitError::CalledOff)?;
        let made = self.make_locally(engine, plan, &home).await;
        let (shard, manifest) = match made {
            Ok(made) => made,
            Err(error) => return Err(call_off(dir, &home, None, error).await),
        };
        if let Err(error) = manifest.replace_local(dir) {
            let is_named = Manifest::read(&self.store).await;
            let is_named = is_named.map_or(true, |found| found.is_none_or(|it| it == manifest));
            if is_named {
                let error = error.context("flagstone.json may be lost if the machine fails");
                return Err(SplitError::Unknown(error));
            }
            return Err(call_off(dir, &home, Some(&shard), error).await);
        }
        if let Err(error) = finish(&home) {
            // The next start removes the mark.
            tracing::warn!(shard = plan.into, "the mark of a split stays: {error:#}");
        }
        Ok(shard)
    }

    /// Makes the new shard, and the manifest that names it.
    async fn make_locally(
        &self,
        engine: &Engine,
        plan: &SplitPlan,
        home: &Path,
    ) -> Result<(Shard, Manifest)> {
        let manifest = manifest_of(&self.store).await?;
        // A merge leaves the rows of the other half out in both: all files are merged soon.
        engine.count_half_as_garbage().await?;
        engine.flush().await?;
        engine.close().await?;
        let whole = self.store.join(&ShardHome::at_creation(plan.shard).name()).join("db");
        link_engine(engine.place(), whole.dir().context("a local directory")?, home).await?;
        let manifest = manifest.split(plan, None);
        Ok((self.open_new(plan, &manifest).await?, manifest))
    }
}

/// Removes the files of a split that failed; the next start removes those that cannot be removed now.
async fn call_off(
    dir: &Path,
    home: &Path,
    made: Option<&Shard>,
    error: anyhow::Error,
) -> SplitError {
    if let Some(shard) = made {
        let _ = shard.engine().close().await;
    }
    if let Err(left) = discard(dir, home) {
        tracing::warn!("files are left of a split that failed: {left:#}");
    }
    SplitError::CalledOff(error)
}

/// Sees to it that there is no directory of a new shard yet: removes what is left of a split that failed.
///
/// # Errors
/// If there is one that no split has made.
fn vacate(dir: &Path, home: &Path) -> Result<()> {
    if home.exists() && !is_marked(home) {
        bail!("{} is there, but flagstone.json does not name it: move it away", home.display());
    }
    discard(dir, home)
}

/// Removes the directory of a new shard, if it has the mark. It loses its name first, so that a kill leaves
/// none that has a name and no mark.
fn discard(dir: &Path, home: &Path) -> Result<()> {
    let splitting = dir.join(SPLITTING);
    remove_dir(&splitting)?;
    if is_marked(home) {
        fs::rename(home, &splitting).with_context(|| format!("renaming {}", home.display()))?;
        sync(dir)?;
        remove_dir(&splitting)?;
    }
    Ok(())
}

/// Makes the directory of a shard with the files of another one's engine, which is closed, and is in the
/// directory `from`.
async fn link_engine(engine: &Place, from: &Path, home: &Path) -> Result<()> {
    mark(home)?;
    let to = home.join("db");
    for dir in [&to, &to.join("compacted"), &to.join("manifest")] {
        create_private_dir(dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let from = from.to_owned();
    let listed = admin(engine.store(), engine.root().as_ref()).read_manifest(None).await?;
    let listed = listed.with_context(|| format!("{engine} has no manifest"))?;
    let names = listed.all_sst_views().map(|view| format!("{}.sst", view.sst.id.value()));
    let rows: Vec<String> = names.map(|name| format!("compacted/{name}")).collect();
    let manifest = format!("manifest/{:020}.manifest", listed.id());
    let place = Place::local(&to)?;
    let linking = tokio::task::spawn_blocking(move || {
        for name in &rows {
            match fs::hard_link(from.join(name), to.join(name)) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                linked => linked.with_context(|| format!("linking {name}"))?,
            }
        }
        let copied = to.join(&manifest);
        fs::copy(from.join(&manifest), &copied).with_context(|| format!("copying {manifest}"))?;
        File::open(&copied)?.sync_all().with_context(|| format!("syncing {manifest}"))?;
        [&to.join("compacted"), &to.join("manifest"), &to].iter().try_for_each(|dir| sync(dir))
    });
    linking.await??;
    sync(home)?;
    // Checkpoints name manifests that are not here.
    let own = admin(place.store(), place.root().as_ref());
    for checkpoint in own.list_checkpoints(None).await? {
        own.delete_checkpoint(checkpoint.id).await?;
    }
    Ok(())
}

fn sync(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("syncing {}", dir.display()))
}

/// Makes the directory of a shard that `flagstone.json` does not name yet, with the mark.
fn mark(home: &Path) -> Result<()> {
    let dir = home.parent().context("the data directory")?;
    let splitting = dir.join(SPLITTING);
    create_private_dir(&splitting).with_context(|| format!("creating {}", splitting.display()))?;
    let mark = splitting.join(UNFINISHED);
    let made = File::create(&mark).and_then(|file| file.sync_all());
    made.with_context(|| format!("creating {}", mark.display()))?;
    sync(&splitting)?;
    fs::rename(&splitting, home).with_context(|| format!("creating {}", home.display()))?;
    sync(dir)
}

/// Removes the mark of a shard's directory that `flagstone.json` names.
fn finish(home: &Path) -> Result<()> {
    let mark = home.join(UNFINISHED);
    fs::remove_file(&mark).with_context(|| format!("removing {}", mark.display()))?;
    sync(home)
}

/// Removes what splits have left that a kill has cut off, and refuses directories of shards that
/// `flagstone.json` does not name.
///
/// # Errors
/// If there is one that is no such remains: `flagstone.json` is an older copy then.
pub(in crate::directory) fn end_splits(dir: &Path, manifest: &Manifest) -> Result<()> {
    if let Some(problem) = unnamed_shards(dir, manifest)?.first() {
        bail!("{problem}");
    }
    remove_dir(&dir.join(SPLITTING))?;
    for (id, home) in shard_homes(dir)?.into_iter().filter(|(_, home)| is_marked(home)) {
        if id < manifest.shards() {
            finish(&home)?;
        } else {
            discard(dir, &home)?;
            tracing::info!(shard = id, "removed what was left of a split that was cut off");
        }
    }
    Ok(())
}

/// Returns a problem for each directory of a shard that `flagstone.json` does not name, and that is not what a
/// split has left.
pub(crate) fn unnamed_shards(dir: &Path, manifest: &Manifest) -> Result<Vec<String>> {
    let shards = manifest.shards();
    let homes = shard_homes(dir)?.into_iter();
    let unnamed = homes.filter(|(id, home)| *id >= shards && !is_marked(home)).map(|(_, home)| {
        format!(
            "{} is there, but flagstone.json has {shards} shards, the first of which is shard 0: put the \
             newest copy of flagstone.json in place, or move that directory away if it is of other data",
            home.display()
        )
    });
    Ok(unnamed.collect())
}

fn is_marked(home: &Path) -> bool {
    home.join(UNFINISHED).exists()
}

/// Returns the directories of shards, with their numbers.
fn shard_homes(dir: &Path) -> Result<Vec<(u16, PathBuf)>> {
    let listing = || format!("listing {}", dir.display());
    let mut homes = Vec::new();
    for entry in fs::read_dir(dir).with_context(listing)? {
        let name = entry.with_context(listing)?.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("shard-")?.parse().ok());
        homes.extend(id.map(|id| (id, dir.join(name))).filter(|(_, home)| home.is_dir()));
    }
    Ok(homes)
}
