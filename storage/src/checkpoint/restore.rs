//! New data directories from checkpoints and backups.

use super::backup::{Backup, Stored, list_backups, missing};
use super::copy::{Copy, Progress, all};
use super::files::names;
use super::history::{copy_history, replay};
use super::image::{Image, Piece, engine_dir, sizes};
use super::scratch::Scratch;
use super::{Catalog, Checkpoint, FORMAT, offline_options, sync_dir};
use crate::directory::{
    Location, complete_shards, create_manifest_of, identity_of, is_data_directory,
};
use crate::engine::checkpoint::{EngineCheckpoint, admin, keep_for_branch};
use crate::journal::{BucketJournal, BucketOptions, Extract, LocalJournal, Lsn, Options, RealDisk};
use crate::place::{Place, Share, Shares};
use crate::slot::Layout;
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use slatedb::admin::Admin;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where what is needed only meanwhile is, in the new directory.
const MEANWHILE: &str = "restoring";

/// Files that a store copies at the same time.
const COPIES: usize = 16;

/// Why there is no branch there.
const ELSEWHERE: &str = "a branch is where its parent is, on a local disk or in a bucket; elsewhere use backup and restore";

/// Up to where to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsOf {
    /// To the last record that is not later, in ms since 1970.
    Time(u64),
    /// To this record.
    Lsn(Lsn),
}

impl AsOf {
    fn includes(self, lsn: Lsn, time_ms: u64) -> bool {
        match self {
            AsOf::Time(ms) => time_ms <= ms,
            AsOf::Lsn(last) => lsn <= last,
        }
    }

    /// Whether all of a checkpoint is before it.
    fn is_behind(self, checkpoint: &Checkpoint) -> bool {
        match self {
            AsOf::Time(ms) => checkpoint.created_ms <= ms,
            AsOf::Lsn(last) => checkpoint.lsn <= last,
        }
    }
}

impl FromStr for AsOf {
    type Err = anyhow::Error;

    /// `lsn:N`; seconds since 1970, with a fraction or without; or a time in UTC, as
    /// `2026-11-22T04:03:12.123`.
    fn from_str(text: &str) -> Result<Self> {
        if let Some(lsn) = text.strip_prefix("lsn:") {
            return Ok(Self::Lsn(lsn.parse().context("a number follows `lsn:`")?));
        }
        if let Ok(seconds) = text.parse::<f64>()
            && seconds.is_finite()
            && seconds >= 0.0
        {
            return Ok(Self::Time((seconds * 1000.0).round() as u64));
        }
        let plain = text.strip_suffix('Z').unwrap_or(text).replacen(' ', "T", 1);
        let time = chrono::NaiveDateTime::parse_from_str(&plain, "%Y-%m-%dT%H:%M:%S%.f");
        let time = time.context("a time is as 2026-11-22T04:03:12.123 (UTC), or seconds")?;
        let ms = u64::try_from(time.and_utc().timestamp_millis()).context("a time before 1970")?;
        Ok(Self::Time(ms))
    }
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The checkpoint or backup that it began with.
    pub id: String,
    /// The last record in it, and its time, if it had to be replayed.
    pub lsn: Lsn,
    pub time_ms: u64,
    pub bytes: u64,
}

/// Makes the data directory `to` of a backup in `from`, or of a checkpoint if `from` is a data
/// directory: `id`, or the newest one, or the newest that is not behind a moment.
///
/// # Errors
/// If there is none that is known up to that moment, if something is damaged, or if there is
/// something at `to`. Then `to` is no data directory.
pub async fn restore(
    from: &Location,
    to: &Place,
    id: Option<&str>,
    as_of: Option<AsOf>,
    progress: &dyn Progress,
) -> Result<Restored> {
    let target = Target::begin(to).await?;
    if is_data_directory(&from.store).await? {
        // It is not removed as long as this is there.
        let (image, _in_use) = from_directory(from, &target, id, as_of).await?;
        target.build(&image, as_of, Transfer::Copy, progress).await
    } else {
        let image = from_backups(&from.store, &target, id, as_of, progress).await?;
        target.build(&image, as_of, Transfer::Copy, progress).await
    }
}

/// Makes the data directory `to` of a checkpoint of the data directory in `store`, on the same disk
/// or in the same bucket. Files with rows are not read or copied for it: both have them.
///
/// # Errors
/// As of [`restore`].
pub async fn branch(store: &Place, id: &str, to: &Place) -> Result<Restored> {
    let target = Target::begin(to).await?;
    let (checkpoint, _in_use) = Catalog::of(store).open(id).await?;
    let image = Image::of_checkpoint(store, &checkpoint).await?;
    target.build(&image, None, Transfer::Share, &super::Quiet).await
}

/// Makes the data directory `to` of what another one holds, which nobody writes to: what a start
/// would find.
pub(crate) async fn branch_state(from: &Location, to: &Place) -> Result<()> {
    let place = &from.store;
    let (layout, salt) = identity_of(place).await?;
    let target = Target::begin(to).await?;
    let journal = from.journal();
    let records = match journal.dir() {
        Some(dir) => dir.to_owned(),
        None => {
            let to = target.meanwhile("records");
            copy_journal(&journal, salt, &to).await.context("copying the journal")?;
            to
        }
    };
    let recovery = LocalJournal::recover(&records, Options::default())?;
    let mut shards = Vec::new();
    for shard in 0..usize::from(layout.shards) {
        let engine = place.join(&engine_dir(shard));
        let manifest = admin(engine.store(), engine.root().as_ref()).read_manifest(None).await?;
        let manifest = manifest.with_context(|| format!("shard {shard} has no manifest"))?.id();
        shards.push(EngineCheckpoint { id: String::new(), manifest, applied: 0, reaches: 0 });
    }
    let checkpoint = Checkpoint {
        format: FORMAT,
        id: String::new(),
        created_ms: 0,
        lsn: recovery.end(),
        after: recovery.dropped(),
        epoch: recovery.max_epoch(),
        record_bytes: 0,
        origin: 0,
        seed: layout.seed,
        shards,
    };
    let image = Image::with_records(place, &checkpoint, records).await?;
    // Nothing of what it comes from is to be changed: not even kept for it.
    let transfer = if to.dir().is_some() { Transfer::Share } else { Transfer::CopyWithin };
    target.build(&image, None, transfer, &super::Quiet).await?;
    Ok(())
}

/// Writes what a journal in a bucket holds as one in the local directory `to`.
async fn copy_journal(journal: &Place, salt: u32, to: &Path) -> Result<()> {
    let options = BucketOptions { salt, ..BucketOptions::default() };
    let view = BucketJournal::look(journal, &options).await?;
    let mut extract = Extract::create(Arc::new(RealDisk), to, rand::random(), view.dropped())?;
    extract.at_least(view.max_time_ms());
    view.replay(0, |record| extract.push(record)).await?;
    extract.finish(view.epoch(), view.end())?;
    Ok(())
}

async fn from_directory(
    from: &Location,
    target: &Target,
    id: Option<&str>,
    as_of: Option<AsOf>,
) -> Result<(Image, super::InUse)> {
    let (store, catalog) = (&from.store, Catalog::of(&from.store));
    for found in catalog.list().await?.iter().rev() {
        if id.is_some_and(|id| found.id != id) {
            continue;
        }
        let (checkpoint, in_use) = catalog.open(&found.id).await?;
        let mut image = Image::of_checkpoint(store, &checkpoint).await?;
        if let Some(as_of) = as_of {
            if id.is_none() && !reaches_in(&image.records, &checkpoint, as_of)? {
                continue;
            }
            let to = target.meanwhile("0");
            let range = (checkpoint.lsn, Lsn::MAX);
            let copied = copy_history(from, range, &to).await?;
            if let Some((end, whole)) = copied {
                image.records.push(to);
                image.known = whole.then_some((end, u64::MAX));
            }
        }
        return Ok((image, in_use));
    }
    bail!("{store} has no such checkpoint: `flagstone checkpoints` lists what there is")
}

/// Whether what `as_of` asks for is a cut over all shards of a checkpoint with these records.
fn reaches_in(dirs: &[PathBuf], checkpoint: &Checkpoint, as_of: AsOf) -> Result<bool> {
    if as_of.is_behind(checkpoint) {
        return Ok(true);
    }
    Ok(cut(dirs, checkpoint, Some(as_of))?.lsn >= checkpoint.reaches().max(checkpoint.after + 1))
}

async fn from_backups(
    place: &Place,
    target: &Target,
    id: Option<&str>,
    as_of: Option<AsOf>,
    progress: &dyn Progress,
) -> Result<Image> {
    let backups = list_backups(place).await?;
    let origin = match id {
        Some(id) => backups.iter().find(|b| b.id() == id),
        None => backups.last(),
    };
    let origin = origin.with_context(|| match id {
        Some(id) => format!("{place} has no backup {id}"),
        None => format!("{place} has no backups"),
    })?;
    let origin = origin.checkpoint.origin;
    let mut of_one: Vec<&Backup> =
        backups.iter().filter(|b| b.checkpoint.origin == origin).collect();
    of_one.sort_by_key(|b| b.checkpoint.lsn);
    let mut fetching = Fetching { place, target, progress, number: 0 };
    for (at, backup) in of_one.iter().enumerate().rev() {
        if id.is_some_and(|id| backup.id() != id) {
            continue;
        }
        if let Some(object) = missing(place, backup).await? {
            bail!("backup {}: {object} is missing in {place}, or has another size", backup.id());
        }
        let mut records = Vec::new();
        fetching.fetch(&backup.records, &mut records).await?;
        let mut known = Some((backup.checkpoint.lsn, backup.checkpoint.created_ms));
        if let Some(as_of) = as_of {
            if !reaches_in(&records, &backup.checkpoint, as_of)? {
                if id.is_some() {
                    bail!("backup {} is of later than that", backup.id());
                }
                continue;
            }
            for later in &of_one[at + 1..] {
                if !later.history.is_empty() {
                    fetching.fetch(&later.history, &mut records).await?;
                }
                fetching.fetch(&later.records, &mut records).await?;
                known = Some((later.checkpoint.lsn, later.checkpoint.created_ms));
                if !as_of.is_behind(&later.checkpoint) {
                    break;
                }
            }
        }
        let pieces: Result<Vec<Piece>> = backup.files.iter().map(|f| f.piece(place)).collect();
        let (checkpoint, place) = (backup.checkpoint.clone(), place.clone());
        return Ok(Image { checkpoint, place, pieces: pieces?, records, _scratch: None, known });
    }
    bail!("all backups in {place} are of later than that")
}

/// Copies records of backups into the new directory.
struct Fetching<'a> {
    place: &'a Place,
    target: &'a Target,
    progress: &'a dyn Progress,
    /// Directories so far.
    number: usize,
}

impl Fetching<'_> {
    async fn fetch(&mut self, stored: &[Stored], dirs: &mut Vec<PathBuf>) -> Result<()> {
        self.number += 1;
        let (place, progress) = (self.place, self.progress);
        let dir = self.target.meanwhile(&self.number.to_string());
        let local = Place::local(&dir)?;
        progress.expect(stored.iter().map(|file| file.size).sum());
        let copy = |file| {
            let copy = Copy { from: place.store(), to: &local, progress };
            copy_stored(copy, file, place).boxed()
        };
        all(stored.iter().map(copy).collect()).await?;
        dirs.push(dir);
        Ok(())
    }
}

async fn copy_stored(copy: Copy<'_>, file: &Stored, place: &Place) -> Result<()> {
    let copied = copy.copy(&file.piece(place)?, &file.name).await;
    copied.with_context(|| format!("copying {} from {place}", file.object))?;
    Ok(())
}

async fn copy_piece(copy: Copy<'_>, piece: &Piece, place: &Place) -> Result<()> {
    let copied = copy.copy(piece, &piece.name).await;
    copied.with_context(|| format!("copying {} from {place}", piece.name))?;
    Ok(())
}

/// Up to where records go.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The last record to restore, and its time if it was read.
    lsn: Lsn,
    time_ms: u64,
    /// The last one that is there.
    end: Lsn,
    /// One that is not to be restored follows.
    is_followed: bool,
}

fn cut(dirs: &[PathBuf], checkpoint: &Checkpoint, as_of: Option<AsOf>) -> Result<Cut> {
    let lsn = match as_of {
        Some(as_of) if !as_of.is_behind(checkpoint) => checkpoint.after,
        _ => checkpoint.lsn,
    };
    let mut cut = Cut { lsn, time_ms: 0, end: 0, is_followed: false };
    cut.end = replay(dirs, checkpoint.after, &mut |record| {
        let wanted = as_of.is_none_or(|as_of| as_of.includes(record.lsn, record.time_ms));
        cut.is_followed = !wanted;
        if wanted {
            cut.lsn = cut.lsn.max(record.lsn);
            cut.time_ms = cut.time_ms.max(record.time_ms);
        }
        Ok(())
    })?;
    Ok(cut)
}

/// Refuses a moment of which not everything is known, and records that do not make a cut.
fn refuse_unknown(image: &Image, cut: Cut, as_of: Option<AsOf>) -> Result<()> {
    let checkpoint = &image.checkpoint;
    let is_known = match as_of {
        None => cut.end >= checkpoint.lsn,
        Some(AsOf::Lsn(asked)) => cut.end >= asked,
        Some(AsOf::Time(ms)) => {
            let known = image.known;
            cut.is_followed || known.is_some_and(|(lsn, to_ms)| cut.end >= lsn && ms <= to_ms)
        }
    };
    if !is_known {
        bail!(
            "not everything up to then is known: the records behind {} end at lsn {}",
            checkpoint.id,
            cut.end
        );
    }
    if cut.lsn < checkpoint.reaches() {
        bail!("{} is of later than that", checkpoint.id);
    }
    Ok(())
}

/// The greatest time that the first of these directories of records knows of.
fn known_time_ms(dirs: &[PathBuf]) -> Result<u64> {
    let Some(dir) = dirs.first() else { return Ok(0) };
    Ok(LocalJournal::recover(dir, Options::default())?.max_time_ms())
}

/// How files with rows come to the new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transfer {
    /// They are read and written, and compared.
    Copy,
    /// By hard links, or in a bucket by knowing where they are.
    Share,
    /// The store of both copies them.
    CopyWithin,
}

/// A data directory that is being made. It is none before it is whole.
struct Target {
    place: Place,
    scratch: Scratch,
    _lock: Option<fs::File>,
}

impl Target {
    async fn begin(place: &Place) -> Result<Self> {
        let Some(dir) = place.dir() else {
            place.preflight().await?;
            let (files, dirs) = names(place).await?;
            if let Some(name) = files.iter().chain(&dirs).next() {
                bail!("{place} holds {name}: a place without anything is needed");
            }
            return Ok(Self { place: place.clone(), scratch: Scratch::temporary()?, _lock: None });
        };
        fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
        let lock = crate::directory::lock(dir)?;
        for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
            let name = entry?.file_name();
            if name != "lock" {
                bail!(
                    "{} holds {}: a new directory is needed, or an empty one",
                    dir.display(),
                    name.to_string_lossy()
                );
            }
        }
        let scratch = Scratch::at(dir.join(MEANWHILE))?;
        Ok(Self { place: place.clone(), scratch, _lock: Some(lock) })
    }

    fn meanwhile(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    async fn build(
        mut self,
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
        let mut kept = Vec::new();
        match (transfer, self.place.dir()) {
            (Transfer::Copy, _) => self.copy(image, progress).await?,
            (Transfer::Share, Some(dir)) => link(image, dir)?,
            (Transfer::Share, None) => kept = self.share(image).await?,
            (Transfer::CopyWithin, _) => self.copy_within(image, &image.pieces).await?,
        }
        self.forget_checkpoints(checkpoint.shards.len()).await?;
        let layout = Layout {
            shards: checkpoint.shards.len() as u16, // as it was in a data directory
            seed: checkpoint.seed,
        };
        let salt = rand::random();
        match self.place.dir() {
            Some(dir) => write_journal(image, &dir.join("journal"), salt, end).await?,
            None => {
                // A journal is of one server at a time, and in a bucket nobody can say where it will
                // be. So the shards are made to need none.
                let journal = self.meanwhile("journal");
                write_journal(image, &journal, salt, end).await?;
                let journal = Some(Place::local(&journal)?);
                let location = Location { store: self.place.clone(), journal };
                let completing = complete_shards(offline_options(&location).await?, &layout, salt);
                completing.await.context("completing the shards")?;
            }
        }
        for (engine, checkpoint) in kept {
            let id = checkpoint.parse().context("the id of a checkpoint")?;
            engine.refresh_checkpoint(id, None).await?;
        }
        // Before it is a data directory.
        drop(self.scratch);
        create_manifest_of(&self.place, &layout, salt).await?;
        Ok(Restored {
            id: checkpoint.id.clone(),
            lsn: end,
            time_ms: cut.time_ms,
            bytes: image.bytes(),
        })
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

    /// Makes the files of an image be seen here where they are. Those that its place shares itself
    /// are copied by the store, and the manifests, too. The engines, and the checkpoints in them that
    /// keep the files until there is a branch.
    async fn share(&mut self, image: &Image) -> Result<Vec<(Admin, String)>> {
        let (own, of_others): (Vec<_>, Vec<_>) =
            image.pieces.iter().cloned().partition(|p| p.has_rows() && !image.place.shares(&p.at));
        self.copy_within(image, &of_others).await?;
        let mut kept = Vec::new();
        let mut engines = BTreeMap::new();
        for (shard, state) in image.checkpoint.shards.iter().enumerate() {
            let dir = engine_dir(shard);
            let engine = image.place.join(&dir);
            let names = own.iter().filter_map(|piece| {
                Some((piece.name.strip_prefix(&dir)?.strip_prefix('/')?.to_owned(), piece.size))
            });
            let files: BTreeMap<_, _> = names.collect();
            if files.is_empty() {
                continue;
            }
            let admin = admin(engine.store(), engine.root().as_ref());
            let path = self.place.root().as_ref();
            let checkpoint = keep_for_branch(&admin, &state.id, path).await;
            let checkpoint = checkpoint.with_context(|| format!("keeping files of {engine}"))?;
            let share =
                Share { engine: engine.root().to_string(), checkpoint: checkpoint.clone(), files };
            engines.insert(self.place.path(&dir).to_string(), share);
            kept.push((admin, checkpoint));
        }
        Shares::new(engines).write(&self.place).await?;
        self.place = self.place.with_shared().await?;
        Ok(kept)
    }

    /// Has the store copy files of an image: what it copies is not read here.
    async fn copy_within(&self, image: &Image, pieces: &[Piece]) -> Result<()> {
        if !self.place.is_in_store_of(&image.place) {
            bail!("{} is in another store than {}: {ELSEWHERE}", self.place, image.place);
        }
        let store = image.place.store();
        let copy = |piece: &Piece| {
            let (store, from, to) = (store.clone(), piece.at.clone(), self.place.path(&piece.name));
            async move {
                let copied = store.copy(&from, &to).await;
                copied.with_context(|| format!("copying {from} to {to}"))
            }
        };
        let copies = stream::iter(pieces.iter().map(copy)).buffer_unordered(COPIES);
        copies.try_collect::<()>().await?;
        let there = sizes(&self.place).await?;
        match pieces.iter().find(|piece| there.get(&piece.name) != Some(&piece.size)) {
            Some(piece) => bail!("{} is not in {} as it was copied", piece.name, self.place),
            None => Ok(()),
        }
    }

    /// The copied manifests name checkpoints of the parent, which are not here.
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
        // The engines refuse to open at a time before that of what they have.
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
        // Manifests are small, and only files with rows are never written again.
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
