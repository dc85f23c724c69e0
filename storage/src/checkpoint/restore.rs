//! Restoring: makes new data directories from checkpoints and backups.

use super::backup::{Backup, BackupFile, list_backups, missing};
use super::choice::origin_reaching;
use super::copy::{Copy, Progress, all};
use super::history::{copy_history, goes_on_from, known_time_ms, replay};
use super::image::{Image, ImageFile};
use super::target::TargetDirectory;
use super::{Catalog, Checkpoint, CheckpointDivision, InUse};
use crate::directory::{Location, manifest_of};
use crate::engine::Engine;
use crate::engine::checkpoint::EngineCheckpoint;
use crate::journal::{BucketJournal, BucketOptions, Extract, LocalJournal, Lsn, Options, RealDisk};
use crate::place::{Place, admin, remove_tree};
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use futures::future::try_join_all;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// The moment to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsOf {
    /// The last record that is not later, in ms since 1970.
    Time(u64),
    /// This record.
    Lsn(Lsn),
}

impl AsOf {
    fn includes(self, lsn: Lsn, time_ms: u64) -> bool {
        match self {
            AsOf::Time(ms) => time_ms <= ms,
            AsOf::Lsn(last) => lsn <= last,
        }
    }

    /// Returns true if it is not before the begin of a checkpoint, or not before its lsn.
    pub(super) fn is_behind(self, checkpoint: &Checkpoint) -> bool {
        match self {
            AsOf::Time(ms) => checkpoint.created_ms <= ms,
            AsOf::Lsn(last) => checkpoint.lsn <= last,
        }
    }

    /// Returns true if no record of a checkpoint may be later, but records behind it may still be included: a
    /// checkpoint may be named by a time that its next records do not reach.
    fn includes_records_of(self, checkpoint: &Checkpoint) -> bool {
        let AsOf::Time(ms) = self else { return self.is_behind(checkpoint) };
        checkpoint.last_ms.unwrap_or(checkpoint.created_ms) <= ms
    }

    /// Returns true if it is later than a checkpoint.
    pub(super) fn is_later_than(self, checkpoint: &Checkpoint) -> bool {
        match self {
            AsOf::Time(ms) => checkpoint.created_ms < ms,
            AsOf::Lsn(last) => checkpoint.lsn < last,
        }
    }

    /// Returns true if it includes all of a checkpoint, the records of which are the first of `dirs`:
    /// also those that came while it was taken.
    fn includes_all_of(self, checkpoint: &Checkpoint, dirs: &[PathBuf]) -> Result<bool> {
        let AsOf::Time(ms) = self else { return Ok(self.is_behind(checkpoint)) };
        let last_ms = checkpoint.last_ms.map_or_else(|| known_time_ms(dirs), Ok)?;
        Ok(self.is_behind(checkpoint) && last_ms <= ms)
    }
}

impl FromStr for AsOf {
    type Err = anyhow::Error;

    /// Parses `lsn:N`, seconds since 1970 with or without a fraction, or a time in UTC such as
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

/// Result of a restore.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Id of the checkpoint or backup that the restore began with.
    pub id: String,
    /// The last record restored, and its time, if it had to be replayed.
    pub lsn: Lsn,
    pub time_ms: u64,
    pub bytes: u64,
}

/// Makes the data directory `to` from a backup in `from`, or from a checkpoint if `from` is a data
/// directory: the one with `id`, or the newest, or the newest that is not behind the moment.
///
/// # Errors
/// If none reaches that moment, if a file is damaged, or if `to` is not empty. Then nothing is left
/// at `to`.
pub async fn restore(
    from: &Location,
    to: &Place,
    id: Option<&str>,
    as_of: Option<AsOf>,
    progress: &dyn Progress,
) -> Result<Restored> {
    let mut target = TargetDirectory::begin(to).await?;
    let restored = target.restore(from, id, as_of, progress).await;
    target.end(restored).await
}

/// Makes the data directory `to` from a checkpoint of the data directory in `store`, on the same
/// disk or in the same bucket. Files with rows are neither read nor copied: both directories share
/// them.
///
/// # Errors
/// As of [`restore`].
pub async fn branch(store: &Place, id: &str, to: &Place) -> Result<Restored> {
    let mut target = TargetDirectory::begin(to).await?;
    let made = target.branch(store, id).await;
    target.end(made).await
}

/// Removes a branch that nobody uses any more, or what is there of it, and the checkpoints by which the engines of
/// its parent, which are these, keep files for it.
///
/// # Errors
/// If the store does not answer: the call may be repeated.
pub async fn discard_branch(engines: &[Engine], branch: &Place) -> Result<()> {
    let removed = remove_tree(branch).await;
    // A local branch has links to the files. In a bucket the parent would keep them until its next start.
    if branch.dir().is_none() {
        try_join_all(engines.iter().map(|engine| engine.drop_branch(branch.root()))).await?;
    }
    removed
}

/// Makes the data directory `to` from the present state of another one that has no writer, as a
/// start would find it.
pub(crate) async fn branch_state(from: &Location, to: &Place) -> Result<()> {
    let mut target = TargetDirectory::begin(to).await?;
    let made = target.branch_state(from).await;
    target.end(made).await
}

/// Returns the image of a directory without a writer: its shards as they are, and its journal.
pub(super) async fn image_of_state(from: &Location, target: &TargetDirectory) -> Result<Image> {
    let place = &from.store;
    let manifest = manifest_of(place).await?;
    let (layout, salt) = (manifest.layout(), manifest.salt());
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
    for home in manifest.homes() {
        let engine = home.engine_place(place);
        let listed = admin(engine.store(), engine.root().as_ref()).read_manifest(None).await?;
        let manifest = listed.with_context(|| format!("shard {} has no manifest", home.id))?.id();
        let (id, keys, made_by) = (String::new(), None, home.maker());
        shards.push(EngineCheckpoint { id, manifest, applied: 0, reaches: 0, keys, made_by });
    }
    let division = CheckpointDivision::of(&layout);
    let checkpoint = Checkpoint {
        format: CheckpointDivision::format(division.as_ref()),
        id: String::new(),
        created_ms: 0,
        lsn: recovery.end(),
        last_ms: None,
        after: recovery.dropped(),
        epoch: recovery.max_epoch(),
        record_bytes: 0,
        origin: 0,
        seed: layout.seed,
        shards,
        division,
    };
    Image::with_records(place, &checkpoint, records).await
}

/// Writes the records of a journal in a bucket as a journal in the local directory `to`.
async fn copy_journal(journal: &Place, salt: u32, to: &Path) -> Result<()> {
    let options = BucketOptions { salt, ..BucketOptions::default() };
    let view = BucketJournal::view(journal, &options).await?;
    let mut extract = Extract::create(Arc::new(RealDisk), to, rand::random(), view.dropped())?;
    extract.at_least(view.max_time_ms());
    view.replay(0, |record| extract.push(record)).await?;
    extract.finish(view.epoch(), view.end())?;
    Ok(())
}

pub(super) async fn from_directory(
    from: &Location,
    target: &TargetDirectory,
    id: Option<&str>,
    as_of: Option<AsOf>,
) -> Result<(Image, InUse)> {
    let (store, catalog) = (&from.store, Catalog::of(&from.store));
    for found in catalog.list().await?.iter().rev() {
        if id.is_some_and(|id| found.id != id) {
            continue;
        }
        let (checkpoint, in_use) = catalog.open(&found.id).await?;
        let mut image = Image::of_checkpoint(store, &checkpoint).await?;
        if let Some(as_of) = as_of {
            if !reaches_in(&image.records, &checkpoint, as_of)? {
                if id.is_some() {
                    bail!("checkpoint {} is of later than that", checkpoint.id);
                }
                continue;
            }
            let to = target.meanwhile("0");
            let range = (checkpoint.lsn, Lsn::MAX);
            let copied = copy_history(from, range, &to).await?;
            if let Some(end) = copied.end {
                image.records.push(to);
                // Behind damage nobody knows what there was: only records before it tell of later ones.
                if copied.broken.is_none() {
                    image.known = Some((end, u64::MAX));
                }
            }
            image.broken = copied.broken;
        }
        return Ok((image, in_use));
    }
    match id {
        Some(id) => bail!("{store} has no checkpoint {id}: `flagstone checkpoints` lists them"),
        None if as_of.is_some() => bail!("all checkpoints in {store} are of later than that"),
        None => bail!("{store} has no checkpoint"),
    }
}

/// Returns true if, with these records, `as_of` gives a cut over all shards of a checkpoint.
pub(super) fn reaches_in(dirs: &[PathBuf], checkpoint: &Checkpoint, as_of: AsOf) -> Result<bool> {
    if as_of.includes_all_of(checkpoint, dirs)? {
        return Ok(true);
    }
    Ok(cut(dirs, checkpoint, Some(as_of))?.lsn >= checkpoint.reaches().max(checkpoint.after + 1))
}

pub(super) async fn from_backups(
    place: &Place,
    target: &TargetDirectory,
    id: Option<&str>,
    as_of: Option<AsOf>,
    progress: &dyn Progress,
) -> Result<Image> {
    let backups = list_backups(place).await?;
    let origin = match id {
        Some(id) => {
            let named = backups.iter().find(|b| b.id() == id);
            named.with_context(|| format!("{place} has no backup {id}"))?.checkpoint.origin
        }
        None => origin_reaching(&backups, as_of).with_context(|| format!("{place}"))?,
    };
    // By time: lsns may go back with the directory.
    let of_one: Vec<&Backup> = backups.iter().filter(|b| b.checkpoint.origin == origin).collect();
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
        let mut broken = None;
        if let Some(as_of) = as_of {
            if !reaches_in(&records, &backup.checkpoint, as_of)? {
                if id.is_some() {
                    bail!("backup {} is of later than that", backup.id());
                }
                continue;
            }
            for (before, later) in of_one[at..].iter().zip(&of_one[at + 1..]) {
                let fetched = records.len();
                if !later.history.is_empty() {
                    fetching.fetch(&later.history, &mut records).await?;
                }
                fetching.fetch(&later.records, &mut records).await?;
                let before = &before.checkpoint;
                if later.history.is_empty() && later.checkpoint.after > before.lsn {
                    let id = later.id();
                    broken = Some(format!("backup {id} was made without the records before it"));
                }
                if later.checkpoint.lsn < before.lsn || !goes_on_from(before, &records[fetched..])?
                {
                    records.truncate(fetched);
                    let id = later.id();
                    broken = Some(format!(
                        "backup {id} is of an older copy of the directory, which was put in its place"
                    ));
                    break;
                }
                known = Some((later.checkpoint.lsn, later.checkpoint.created_ms));
                if !as_of.includes_records_of(&later.checkpoint) {
                    break;
                }
            }
        }
        let pieces: Result<Vec<ImageFile>> = backup.files.iter().map(|f| f.piece(place)).collect();
        let (checkpoint, place) = (backup.checkpoint.clone(), place.clone());
        let pieces = pieces?;
        return Ok(Image { checkpoint, place, pieces, records, _scratch: None, known, broken });
    }
    bail!("all backups of that data directory in {place} are of later than that")
}

/// Copies records of backups into the new directory.
struct Fetching<'a> {
    place: &'a Place,
    target: &'a TargetDirectory,
    progress: &'a dyn Progress,
    /// Number of directories so far.
    number: usize,
}

impl Fetching<'_> {
    async fn fetch(&mut self, stored: &[BackupFile], dirs: &mut Vec<PathBuf>) -> Result<()> {
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

async fn copy_stored(copy: Copy<'_>, file: &BackupFile, place: &Place) -> Result<()> {
    let copied = copy.copy(&file.piece(place)?, &file.name).await;
    copied.with_context(|| format!("copying {} from {place}", file.object))?;
    Ok(())
}

/// End of the records to restore.
#[derive(Clone, Copy, Debug)]
pub(super) struct RestoreCut {
    /// The last record to restore, and its time if it was read.
    pub(super) lsn: Lsn,
    pub(super) time_ms: u64,
    /// The last record that exists.
    end: Lsn,
    /// True if a record follows that is not to be restored.
    is_followed: bool,
}

pub(super) fn cut(
    dirs: &[PathBuf],
    checkpoint: &Checkpoint,
    as_of: Option<AsOf>,
) -> Result<RestoreCut> {
    let lsn = match as_of {
        Some(as_of) if !as_of.includes_all_of(checkpoint, dirs)? => checkpoint.after,
        _ => checkpoint.lsn,
    };
    let mut cut = RestoreCut { lsn, time_ms: 0, end: 0, is_followed: false };
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

/// Refuses a moment up to which not all records are known, and records that do not make a cut.
pub(super) fn refuse_unknown(image: &Image, cut: RestoreCut, as_of: Option<AsOf>) -> Result<()> {
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
        let (id, end) = (&checkpoint.id, cut.end);
        let known =
            format!("not everything up to then is known: the records behind {id} end at lsn {end}");
        match &image.broken {
            Some(why) => bail!("{known} ({why}). `--as-of lsn:{end}` restores what is known"),
            None => bail!("{known}"),
        }
    }
    if cut.lsn < checkpoint.reaches() {
        bail!("{} is of later than that", checkpoint.id);
    }
    Ok(())
}
