//! Makes a data directory from an image.

use super::copy::{Copy, Progress, all, all_of};
use super::history::{known_time_ms, replay};
use super::image::{Image, ImageFile, engine_dir, engine_of};
use super::restore::AsOf;
use super::restore::{Restored, cut, from_backups, from_directory, image_of_state, refuse_unknown};
use super::scratch::Scratch;
use super::{Catalog, Checkpoint, offline_options, sync_dir};
use crate::control::Control;
use crate::directory::{Location, Manifest, NewDirectory, complete_shards, is_data_directory};
use crate::engine::checkpoint::{keep_for_branch, keep_on};
use crate::engine::trial::try_engine;
use crate::journal::{Extract, Lsn, RealDisk};
use crate::place::{Place, Share, Shares, admin, sizes};
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use object_store::ObjectStoreExt;
use slatedb::admin::Admin;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that a store copies at the same time.
const COPIES: usize = 16;

/// Error text for a branch in another store than its parent.
const ELSEWHERE: &str = "a branch is where its parent is, on a local disk or in a bucket; elsewhere use backup and restore";

/// Returns the state in an engine's control rows, for messages.
fn described(control: &Control) -> String {
    let keys = control.counters.keys();
    let Control { applied, reaches, complete, .. } = control;
    format!("{keys} keys, applied {applied}, reaches {reaches}, complete {complete:?}")
}

/// How the new directory gets files with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// Reads, writes and compares them.
    Copy,
    /// Shares them by hard links or, in a bucket, by references to their locations.
    Share,
    /// Has the store that holds both copy them.
    CopyWithin,
}

/// A data directory in the making. It does not count as one before it is whole.
pub(super) struct TargetDirectory {
    new: NewDirectory,
    place: Place,
    /// Directory for temporary files.
    scratch: Scratch,
    /// Engines of the parent, with the checkpoints in them that keep its files for a branch.
    kept: Vec<(Admin, String)>,
}

impl TargetDirectory {
    pub(super) async fn begin(place: &Place) -> Result<Self> {
        let new = NewDirectory::begin(place).await?;
        match new.work_dir().map_or_else(Scratch::temporary, Scratch::at) {
            Ok(scratch) => Ok(Self { place: new.place().clone(), new, scratch, kept: Vec::new() }),
            Err(error) => new.end(Err(error)).await,
        }
    }

    /// Ends the making: removes the directory unless it is whole.
    pub(super) async fn end<T>(self, made: Result<T>) -> Result<T> {
        drop(self.scratch);
        if made.is_err() {
            for (engine, checkpoint) in &self.kept {
                // Such checkpoints expire by themselves, but later.
                if let Ok(id) = checkpoint.parse() {
                    let _ = engine.delete_checkpoint(id).await;
                }
            }
        }
        self.new.end(made).await
    }

    pub(super) fn meanwhile(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub(super) async fn restore(
        &mut self,
        from: &Location,
        id: Option<&str>,
        as_of: Option<AsOf>,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        if is_data_directory(&from.store).await? {
            // The checkpoint is not removed as long as `_in_use` lives.
            let (image, _in_use) = from_directory(from, self, id, as_of).await?;
            self.build(&image, as_of, Transfer::Copy, progress).await
        } else {
            let image = from_backups(&from.store, self, id, as_of, progress).await?;
            self.build(&image, as_of, Transfer::Copy, progress).await
        }
    }

    pub(super) async fn branch(&mut self, store: &Place, id: &str) -> Result<Restored> {
        let catalog = Catalog::of(store);
        let (checkpoint, _in_use) = catalog.open(id).await?;
        let sharing = async {
            let image = Image::of_checkpoint(store, &checkpoint).await?;
            self.build(&image, None, Transfer::Share, &super::Quiet).await
        };
        catalog.explained(id, sharing.await).await
    }

    pub(super) async fn branch_state(&mut self, from: &Location) -> Result<()> {
        let image = image_of_state(from, self).await?;
        // The source must not change: not even by a checkpoint that keeps its files.
        let is_local = self.place.dir().is_some();
        let transfer = if is_local { Transfer::Share } else { Transfer::CopyWithin };
        self.build(&image, None, transfer, &super::Quiet).await.map(drop)
    }

    async fn build(
        &mut self,
        image: &Image,
        as_of: Option<AsOf>,
        transfer: Transfer,
        progress: &dyn Progress,
    ) -> Result<Restored> {
        let checkpoint = &image.checkpoint;
        let (dirs, described) = (image.records.clone(), checkpoint.clone());
        let cutting = tokio::task::spawn_blocking(move || cut(&dirs, &described, as_of));
        let cut = cutting.await??;
        refuse_unknown(image, cut, as_of)?;
        let end = cut.lsn;
        match (transfer, self.place.dir()) {
            (Transfer::Copy, _) => self.copy(image, progress).await?,
            (Transfer::Share, Some(dir)) => link(image, dir)?,
            (Transfer::Share, None) => self.share(image).await?,
            (Transfer::CopyWithin, _) => self.copy_within(image, &image.pieces).await?,
        }
        self.forget_checkpoints(checkpoint.shards.len()).await?;
        let new = Manifest::of(&checkpoint.layout()?);
        let manifest = self.add_records(image, new, end).await?;
        self.verify(checkpoint, end).await?;
        for (engine, checkpoint) in &self.kept {
            keep_on(engine, checkpoint).await?;
        }
        self.new.prove().await?;
        manifest.store(&self.place).await?;
        Ok(Restored {
            id: checkpoint.id.clone(),
            lsn: end,
            time_ms: cut.time_ms,
            bytes: image.bytes(),
        })
    }

    /// Adds the records of an image up to `end` to its shards; in a bucket, adds their identity,
    /// too.
    async fn add_records(&self, image: &Image, manifest: Manifest, end: Lsn) -> Result<Manifest> {
        let salt = manifest.salt();
        if let Some(dir) = self.place.dir() {
            write_journal(image, &dir.join("journal"), salt, end).await?;
            return Ok(manifest);
        }
        // A journal belongs to one server at a time, and the place of a journal beside a bucket is
        // not known yet. So the shards are made complete without one.
        let journal = self.meanwhile("journal");
        write_journal(image, &journal, salt, end).await?;
        let journal = Some(Place::local(&journal)?);
        let location = Location { store: self.place.clone(), journal };
        let completing = complete_shards(offline_options(&location).await?, manifest.clone());
        completing.await.context("completing the shards")?;
        Ok(manifest.with_all_identified())
    }

    /// Opens each shard as a start would, as a trial: it must have the checkpoint's state or, in a
    /// bucket, all records up to `end`.
    async fn verify(&self, checkpoint: &Checkpoint, end: Lsn) -> Result<()> {
        let is_local = self.place.dir().is_some();
        for (shard, state) in checkpoint.shards.iter().enumerate() {
            let engine = self.place.join(&engine_dir(shard));
            let files = sizes(&engine).await?;
            let files = files.into_iter().map(|(name, size)| {
                let at = engine.path(&name);
                (name, at, size)
            });
            let control = try_engine(&engine, files).await;
            let control = control.with_context(|| format!("shard {shard} cannot be opened"))?;
            let is_whole = match is_local {
                // A state without a checkpoint has no description to compare.
                true => state.id.is_empty() || state.is_of(&control),
                false => control.complete.is_some_and(|lsn| lsn >= end),
            };
            if !is_whole {
                let found = described(&control);
                bail!("shard {shard} has {found}; {} says {state:?}, end {end}", checkpoint.id);
            }
        }
        Ok(())
    }

    async fn copy(&self, image: &Image, progress: &dyn Progress) -> Result<()> {
        progress.expect(image.bytes());
        let copy = |piece| {
            let copy = Copy { from: image.place.store(), to: &self.place, progress };
            copy_piece(copy, piece, &image.place).boxed()
        };
        all(image.pieces.iter().map(copy).collect()).await?;
        Ok(())
    }

    /// Shares the files of an image: they are visible here without being copied. Files that its
    /// place itself shares are copied by the store, and so are the manifests. Checkpoints of the
    /// parent's engines keep the files until the branch exists.
    async fn share(&mut self, image: &Image) -> Result<()> {
        let is_own = |piece: &ImageFile| piece.has_rows() && !image.shares(piece);
        let (own, of_others): (Vec<_>, Vec<_>) = image.pieces.iter().cloned().partition(is_own);
        self.copy_within(image, &of_others).await?;
        let mut shares = BTreeMap::new();
        for (shard, state) in image.checkpoint.shards.iter().enumerate() {
            let (dir, engine) = (engine_dir(shard), engine_of(&image.place, shard, state));
            let names = own.iter().filter_map(|piece| {
                Some((piece.name.strip_prefix(&dir)?.strip_prefix('/')?.to_owned(), piece.size))
            });
            let files: BTreeMap<_, _> = names.collect();
            if files.is_empty() {
                continue;
            }
            let admin = admin(engine.store(), engine.root().as_ref());
            let path = self.place.root().as_ref();
            let kept = keep_for_branch(&admin, Some(&state.id), path).await;
            let checkpoint = kept.with_context(|| format!("keeping files of {engine}"))?.id;
            let share =
                Share { engine: engine.root().to_string(), checkpoint: checkpoint.clone(), files };
            shares.insert(self.place.path(&dir).to_string(), share);
            self.kept.push((admin, checkpoint));
        }
        Shares::new(shares).write(&self.place).await?;
        self.place = self.place.with_shared().await?;
        Ok(())
    }

    /// Has the store copy files of an image: the bytes are not read here.
    async fn copy_within(&self, image: &Image, pieces: &[ImageFile]) -> Result<()> {
        if !self.place.is_in_store_of(&image.place) {
            bail!("{} is in another store than {}: {ELSEWHERE}", self.place, image.place);
        }
        let store = self.new.claimed(&image.place).store();
        let copy = |piece: &ImageFile| {
            let (store, from, to) = (store.clone(), piece.at.clone(), self.place.path(&piece.name));
            let copying = async move {
                let copied = store.copy(&from, &to).await;
                copied.with_context(|| format!("copying {from} to {to}"))
            };
            copying.boxed()
        };
        all_of(COPIES, pieces.iter().map(copy).collect()).await?;
        let there = sizes(&self.place).await?;
        match pieces.iter().find(|piece| there.get(&piece.name) != Some(&piece.size)) {
            Some(piece) => bail!("{} is not in {} as it was copied", piece.name, self.place),
            None => Ok(()),
        }
    }

    /// Deletes the parent's checkpoints from the copied manifests, as their files are not here.
    async fn forget_checkpoints(&self, shards: usize) -> Result<()> {
        for shard in 0..shards {
            let engine = self.place.join(&engine_dir(shard));
            let admin = admin(engine.store(), engine.root().as_ref());
            for checkpoint in admin.list_checkpoints(None).await? {
                admin.delete_checkpoint(checkpoint.id).await?;
            }
        }
        Ok(())
    }
}

/// Writes the records of an image up to `end` as the journal in `to`.
async fn write_journal(image: &Image, to: &Path, salt: u32, end: Lsn) -> Result<()> {
    let (dirs, to) = (image.records.clone(), to.to_owned());
    let (after, epoch) = (image.checkpoint.after, image.checkpoint.epoch);
    let writing = tokio::task::spawn_blocking(move || -> Result<()> {
        let mut extract = Extract::create(Arc::new(RealDisk), &to, salt, after)?;
        // The engines refuse to open at an earlier time than that of their rows.
        extract.at_least(known_time_ms(&dirs)?);
        replay(&dirs, after, &mut |record| {
            if record.lsn <= end { extract.push(record) } else { Ok(()) }
        })?;
        extract.finish(epoch, end)?;
        Ok(())
    });
    writing.await?.context("writing the journal")
}

/// Links the files of an image into the directory `to`, on the same disk.
fn link(image: &Image, to: &Path) -> Result<()> {
    let Some(from) = image.place.dir() else {
        bail!("{}: {ELSEWHERE}", to.display());
    };
    let mut dirs = BTreeSet::new();
    for piece in &image.pieces {
        let (source, target) = (from.join(&piece.name), to.join(&piece.name));
        let dir = target.parent().unwrap_or(to);
        if dirs.insert(dir.to_owned()) {
            fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        }
        // Manifests are small; only files with rows are never written again.
        let made = match piece.has_rows() {
            true => fs::hard_link(&source, &target),
            false => fs::copy(&source, &target).map(drop),
        };
        made.with_context(|| {
            format!(
                "linking {} to {}: a branch is on the same disk as its parent",
                source.display(),
                target.display()
            )
        })?;
    }
    dirs.iter().try_for_each(|dir| sync_dir(dir))
}

async fn copy_piece(copy: Copy<'_>, piece: &ImageFile, place: &Place) -> Result<()> {
    let copied = copy.copy(piece, &piece.name).await;
    copied.with_context(|| format!("copying {} from {place}", piece.name))?;
    Ok(())
}
