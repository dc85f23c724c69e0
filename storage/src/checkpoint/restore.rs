//! New data directories from checkpoints and backups.

use super::backup::{Backup, Stored, list_backups, missing};
use super::copy::{Copy, Progress, all};
use super::history::{copy_history, replay};
use super::image::{Image, Piece, engine_dir};
use super::{Catalog, Checkpoint, FORMAT, sync_dir};
use crate::directory::{create_manifest_of, is_data_directory, layout_of};
use crate::engine::checkpoint::{EngineCheckpoint, admin};
use crate::journal::{Extract, LocalJournal, Lsn, Options, RealDisk};
use crate::place::Place;
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Where what is needed only meanwhile is, in the new directory.
const MEANWHILE: &str = "restoring";

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

/// Makes the data directory `dir` of a backup in `place`, or of a checkpoint if `place` is a data
/// directory: `id`, or the newest one, or the newest that is not behind a moment.
pub async fn restore(
    place: &Place,
    dir: &Path,
    id: Option<&str>,
    as_of: Option<AsOf>,
    progress: &dyn Progress,
) -> Result<Restored> {
    let target = Target::begin(dir)?;
    match place.dir().filter(|dir| is_data_directory(dir)) {
        Some(data) => {
            let found = from_directory(place, data, &target, id, as_of).await?;
            // It is not removed as long as this is there.
            let (image, _in_use) = found;
            target.build(&image, as_of, Transfer::Copy, progress).await
        }
        None => {
            let image = from_backups(place, &target, id, as_of, progress).await?;
            target.build(&image, as_of, Transfer::Copy, progress).await
        }
    }
}

/// Makes the data directory `dir` of a checkpoint of the data directory in `place`, on the same
/// disk, without copying files with rows: both have them.
pub async fn branch(place: &Place, id: &str, dir: &Path) -> Result<Restored> {
    let data = place.dir().context("a branch is made of a data directory on a local disk")?;
    let target = Target::begin(dir)?;
    let catalog = Catalog::of(data);
    let (checkpoint, _in_use) = catalog.open(id)?;
    let image = Image::of_checkpoint(place, &checkpoint, catalog.records(id)).await?;
    target.build(&image, None, Transfer::Link, &super::Quiet).await
}

/// Makes the data directory `branch` of what `dir` holds, whose lock is held: what a start would
/// find.
pub(crate) async fn branch_state(dir: &Path, branch: &Path) -> Result<()> {
    let layout = layout_of(dir)?;
    let journal = dir.join("journal");
    let recovery = LocalJournal::recover(&journal, Options::default())?;
    let place = Place::local(dir)?;
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
    let image = Image::of_checkpoint(&place, &checkpoint, journal).await?;
    let target = Target::begin(branch)?;
    target.build(&image, None, Transfer::Link, &super::Quiet).await?;
    Ok(())
}

async fn from_directory(
    place: &Place,
    data: &Path,
    target: &Target,
    id: Option<&str>,
    as_of: Option<AsOf>,
) -> Result<(Image, super::InUse)> {
    let catalog = Catalog::of(data);
    let all = catalog.list()?;
    let fits = |c: &Checkpoint| match (id, as_of) {
        (Some(id), _) => Ok(c.id == id),
        (None, None) => Ok(true),
        (None, Some(as_of)) => reaches_in(&[catalog.records(&c.id)], c, as_of),
    };
    for checkpoint in all.iter().rev() {
        if !fits(checkpoint)? {
            continue;
        }
        let (checkpoint, in_use) = catalog.open(&checkpoint.id)?;
        let mut image =
            Image::of_checkpoint(place, &checkpoint, catalog.records(&checkpoint.id)).await?;
        if as_of.is_some() {
            let (data, to, after) = (data.to_owned(), target.meanwhile("0"), checkpoint.lsn);
            let copied = to.clone();
            let copying = move || copy_history(&data, after, Lsn::MAX, &copied);
            let copied = tokio::task::spawn_blocking(copying).await??;
            if let Some((end, whole)) = copied {
                image.records.push(to);
                image.known = whole.then_some((end, u64::MAX));
            }
        }
        return Ok((image, in_use));
    }
    bail!("{place} has no such checkpoint: `flagstone checkpoints` lists what there is")
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
        return Ok(Image { checkpoint, place, pieces: pieces?, records, known });
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
    Copy,
    Link,
}

/// A data directory that is being made. It is none before it is whole.
struct Target {
    dir: PathBuf,
    place: Place,
    _lock: fs::File,
}

impl Target {
    fn begin(dir: &Path) -> Result<Self> {
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
        Ok(Self { dir: dir.to_owned(), place: Place::local(dir)?, _lock: lock })
    }

    fn meanwhile(&self, name: &str) -> PathBuf {
        self.dir.join(MEANWHILE).join(name)
    }

    async fn build(
        &self,
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
        match transfer {
            Transfer::Copy => self.copy(image, progress).await?,
            Transfer::Link => self.link(image)?,
        }
        self.forget_checkpoints(checkpoint.shards.len()).await?;
        let salt = rand::random();
        let (dirs, after, epoch) = (image.records.clone(), checkpoint.after, checkpoint.epoch);
        let to = self.dir.join("journal");
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
        writing.await?.context("writing the journal")?;
        super::remove_dir(&self.dir.join(MEANWHILE))?;
        let shards = checkpoint.shards.len() as u16; // as it was in a data directory
        create_manifest_of(&self.dir, shards, checkpoint.seed, salt)?;
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

    fn link(&self, image: &Image) -> Result<()> {
        let from = image.place.dir().context("files of a local disk can be linked")?;
        let mut dirs = BTreeSet::new();
        for piece in &image.pieces {
            let (source, target) = (from.join(&piece.name), self.dir.join(&piece.name));
            let dir = target.parent().unwrap_or(&self.dir);
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
