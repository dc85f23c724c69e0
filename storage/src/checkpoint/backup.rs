//! Backups: copies of checkpoints in another place.
//!
//! ```text
//! backups/<id>.json     description; written last, removed first
//! backups/<id>/…        its manifests and records
//! objects/<name>.sst    files with rows, of all backups
//! ```

use super::copy::{Copied, Copy, Progress, all, checksum, copy_tree, is_there};
use super::history::{copy_history, goes_on_from};
use super::image::{Image, ImageFile, engine_dir};
use super::scratch::Scratch;
use super::{Catalog, Checkpoint, read_description};
use crate::directory::{Location, remove_staged};
use crate::engine::trial::try_engine;
use crate::place::{Place, real_path, remove_tree, sizes};
use anyhow::{Context, Result, bail};
use futures::FutureExt;
use object_store::ObjectStoreExt;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::slice;

const BACKUPS: &str = "backups";
const OBJECTS: &str = "objects";

/// The file that is locked while a backup is made.
const LOCK: &str = "lock";

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// Its path in the place of backups.
    pub object: String,
    /// Its path in a data directory, or its file name among the records.
    pub name: String,
    pub size: u64,
    /// XXH3 (128 bits), in hexadecimal.
    pub xxh3: String,
}

impl BackupFile {
    pub(super) fn piece(&self, place: &Place) -> Result<ImageFile> {
        let sum = u128::from_str_radix(&self.xxh3, 16);
        Ok(ImageFile {
            name: self.name.clone(),
            at: place.path(&self.object),
            size: self.size,
            checksum: Some(sum.with_context(|| format!("the checksum of {}", self.object))?),
        })
    }
}

/// A backup as described in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backup {
    pub format: u32,
    pub checkpoint: Checkpoint,
    /// Files of the shards.
    pub files: Vec<BackupFile>,
    /// The checkpoint's records.
    pub records: Vec<BackupFile>,
    /// The records from the end of the previous backup's checkpoint to its own, if they still existed.
    pub history: Vec<BackupFile>,
}

impl Backup {
    pub fn id(&self) -> &str {
        &self.checkpoint.id
    }

    /// Returns the total size of its files in bytes.
    pub fn bytes(&self) -> u64 {
        let all = self.files.iter().chain(&self.records).chain(&self.history);
        all.map(|file| file.size).sum()
    }
}

/// Options of a backup.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupOptions {
    /// Number of backups of this data directory to keep, including this one; older ones are
    /// removed.
    pub keep: Option<NonZeroUsize>,
    /// True to verify the files that are there already, too.
    pub verify: bool,
}

/// Result of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupDone {
    pub id: String,
    pub bytes: u64,
    pub copied_files: usize,
    pub copied_bytes: u64,
    /// Ids of the backups that were removed.
    pub removed: Vec<String>,
    /// The moments since the backup before that cannot be restored from backups, and the reason.
    pub gap: Option<String>,
    /// True if an archive of the journal should have had the records of these.
    pub is_archiving: bool,
}

/// Returns the backups in a place, the oldest first.
pub async fn list_backups(place: &Place) -> Result<Vec<Backup>> {
    let dir = place.join(BACKUPS);
    let mut backups = Vec::new();
    for name in sizes(&dir).await?.into_keys() {
        if name.contains('/') || !name.ends_with(".json") {
            continue;
        }
        let path = dir.path(&name);
        let bytes = match dir.store().get(&path).await {
            Ok(found) => found.bytes().await?,
            Err(object_store::Error::NotFound { .. }) => continue,
            Err(error) => return Err(error).with_context(|| format!("reading {dir}/{name}")),
        };
        let backup: Backup = read_description(&format!("{dir}/{name}"), &bytes)?;
        backups.push(backup);
    }
    backups
        .sort_by(|a, b| (a.checkpoint.created_ms, a.id()).cmp(&(b.checkpoint.created_ms, b.id())));
    Ok(backups)
}

/// Refuses a place of backups in the directories that are to be saved: what becomes of these becomes of
/// the backups, and some of what is in them is removed at a start.
///
/// # Errors
/// If it is one of them, or inside.
pub fn refuse_inside(from: &Location, place: &Place) -> Result<()> {
    let Some(to) = place.dir() else { return Ok(()) };
    let to = real_path(to).with_context(|| format!("{place}"))?;
    let all = [
        ("data directory", from.store.clone()),
        ("journal", from.journal()),
        ("archive of the journal", from.archive()),
    ];
    for (what, own) in all {
        let Some(Ok(dir)) = own.dir().map(Path::canonicalize) else { continue };
        if to.starts_with(&dir) {
            bail!("{place} is in {own}, the {what} that is to be saved: backups belong elsewhere");
        }
    }
    Ok(())
}

/// The lock of a local place of backups.
struct BackupLock {
    file: File,
    dir: PathBuf,
    /// True if the directory was made for it.
    made: bool,
}

impl BackupLock {
    fn path(&self) -> PathBuf {
        self.dir.join(LOCK)
    }

    /// Returns true if the file is still there: a run that has failed may just have removed it.
    fn is_there(&self) -> bool {
        let id = |found: std::io::Result<Metadata>| found.ok().map(|it| (it.dev(), it.ino()));
        let own = id(self.file.metadata());
        own.is_some() && own == id(self.path().metadata())
    }

    /// Removes the traces of a backup that has failed: nobody would know what the file is for.
    fn undo(self) {
        // Any of this may be gone, or have something in it, and then it stays.
        let _ = std::fs::remove_file(self.path());
        if self.made {
            for made in [self.dir.join(BACKUPS), self.dir.join(OBJECTS), self.dir.clone()] {
                let _ = std::fs::remove_dir(made);
            }
        }
    }
}

/// Locks a local place, so that one process at a time writes to it. In a bucket, the operator must
/// see to that.
fn lock(place: &Place) -> Result<Option<BackupLock>> {
    let Some(dir) = place.dir() else { return Ok(None) };
    let made = !dir.exists();
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    let path = dir.join(LOCK);
    let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
    let lock = BackupLock { file, dir: dir.to_owned(), made };
    match lock.file.try_lock() {
        Ok(()) if lock.is_there() => Ok(Some(lock)),
        Ok(()) | Err(std::fs::TryLockError::WouldBlock) => {
            bail!("another backup writes to {place}")
        }
        Err(std::fs::TryLockError::Error(e)) => {
            Err(e).with_context(|| format!("locking {}", path.display()))
        }
    }
}

/// A backup that is being made.
struct BackupJob<'a> {
    from: &'a Location,
    image: &'a Image,
    place: &'a Place,
    progress: &'a dyn Progress,
    /// Files with rows that earlier backups have, by object.
    known: BTreeMap<String, BackupFile>,
    /// Sizes of the files with rows that the place already had, by name.
    there: BTreeMap<String, u64>,
    verify: bool,
}

/// Copies the checkpoint `id` of a data directory to a place.
///
/// # Errors
/// If the place is in the data directory. If a file cannot be read or written, or is damaged; in a bucket also if the checkpoint is
/// removed meanwhile, as no lock keeps it there. Then the place has no such backup.
pub async fn backup(
    from: &Location,
    id: &str,
    place: &Place,
    options: BackupOptions,
    progress: &dyn Progress,
) -> Result<BackupDone> {
    refuse_inside(from, place)?;
    let lock = lock(place)?;
    let done = backup_locked(from, id, place, options, progress).await;
    if done.is_err()
        && let Some(lock) = lock
    {
        lock.undo();
    }
    done
}

/// The same, while nobody else writes to the place.
async fn backup_locked(
    from: &Location,
    id: &str,
    place: &Place,
    options: BackupOptions,
    progress: &dyn Progress,
) -> Result<BackupDone> {
    if let Some(dir) = place.dir() {
        remove_staged(dir).with_context(|| format!("cleaning {place}"))?;
    }
    let catalog = Catalog::of(&from.store);
    let (checkpoint, _in_use) = catalog.open(id).await?;
    let copying = async {
        let image = Image::of_checkpoint(&from.store, &checkpoint).await?;
        backup_image(from, &image, place, options, progress).await
    };
    catalog.explained(id, copying.await).await
}

async fn backup_image(
    from: &Location,
    image: &Image,
    place: &Place,
    options: BackupOptions,
    progress: &dyn Progress,
) -> Result<BackupDone> {
    let before = list_backups(place).await?;
    let id = image.checkpoint.id.as_str();
    if before.iter().any(|other| other.id() == id) {
        bail!("{place} has a backup {id} already");
    }
    let rows = before.iter().flat_map(|b| &b.files).filter(|f| f.object.starts_with(OBJECTS));
    let known = rows.map(|file| (file.object.clone(), file.clone())).collect();
    let there = sizes(&place.join(OBJECTS)).await?;
    let making = BackupJob { from, image, place, progress, known, there, verify: options.verify };
    let mut done = match making.run(&before).await {
        Ok(done) => done,
        Err(error) => {
            if let Err(error) = making.discard().await {
                tracing::warn!("what was copied stays: {error:#}");
            }
            return Err(error);
        }
    };
    if let Some(keep) = options.keep {
        done.removed = remove_older(place, image.checkpoint.origin, keep.get()).await?;
    }
    Ok(done)
}

impl BackupJob<'_> {
    async fn run(&self, before: &[Backup]) -> Result<BackupDone> {
        let (files, mut done) = self.files().await?;
        let (records, bytes) = self.records(&self.image.records, "records").await?;
        done.copied_bytes += bytes;
        let (history, bytes, gap) = self.history(before).await?;
        let of_this = before.iter().filter(|b| b.checkpoint.origin == self.image.checkpoint.origin);
        let had_history = of_this.into_iter().any(|backup| !backup.history.is_empty());
        done.is_archiving = had_history || self.from.is_archiving().await?;
        done.gap = gap;
        done.copied_bytes += bytes;
        done.copied_files += records.len() + history.len();
        self.try_shards(&files).await?;
        let checkpoint = self.image.checkpoint.clone();
        let made = Backup { format: checkpoint.format, checkpoint, files, records, history };
        let (place, text) = (self.description(), crate::checked::to_vec(&made)?);
        let put = place.store().put(place.root(), text.into()).await;
        put.with_context(|| format!("writing {place}"))?;
        (done.id, done.bytes) = (made.id().to_owned(), made.bytes());
        Ok(done)
    }

    fn description(&self) -> Place {
        self.place.join(&format!("{BACKUPS}/{}.json", self.image.checkpoint.id))
    }

    /// Opens the shards with the backup's files, as a trial.
    async fn try_shards(&self, files: &[BackupFile]) -> Result<()> {
        for (shard, state) in self.image.checkpoint.shards.iter().enumerate() {
            let dir = engine_dir(shard);
            let files = files.iter().filter_map(|file| {
                let name = file.name.strip_prefix(&dir)?.strip_prefix('/')?;
                Some((name.to_owned(), self.place.path(&file.object), file.size))
            });
            let control = try_engine(self.place, files).await;
            let control =
                control.with_context(|| format!("shard {shard} of the backup does not open"))?;
            if !state.is_of(&control) {
                bail!("shard {shard} of the backup is not what the checkpoint says");
            }
        }
        Ok(())
    }

    /// Removes the files copied for a backup that failed.
    async fn discard(&self) -> Result<()> {
        let id = &self.image.checkpoint.id;
        let rows = self.image.pieces.iter().filter(|piece| piece.has_rows());
        let names = rows.filter_map(|piece| piece.name.rsplit('/').next());
        let copied = names.filter(|name| !self.there.contains_key(*name));
        let objects = copied.map(|name| self.place.join(&format!("{OBJECTS}/{name}")));
        // The description may have been written nevertheless.
        for object in std::iter::once(self.description()).chain(objects) {
            match object.store().delete(object.root()).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error).with_context(|| format!("deleting {object}")),
            }
        }
        remove_tree(&self.place.join(&format!("{BACKUPS}/{id}"))).await
    }

    /// Copies the shards' files that the place does not have.
    async fn files(&self) -> Result<(Vec<BackupFile>, BackupDone)> {
        let pieces = &self.image.pieces;
        let plan: Vec<(&ImageFile, Option<BackupFile>)> =
            pieces.iter().map(|piece| (piece, self.known_file(piece))).collect();
        let to_read = |known: &Option<BackupFile>| known.is_none() || self.verify;
        let bytes = plan.iter().filter(|(_, known)| to_read(known)).map(|(piece, _)| piece.size);
        self.progress.expect(bytes.sum());
        let each = plan.into_iter().map(|(piece, known)| self.file(piece, known).boxed());
        let stored = all(each.collect()).await?;
        let mut done = BackupDone::default();
        for (_, bytes) in stored.iter().filter(|(_, bytes)| *bytes > 0) {
            done.copied_files += 1;
            done.copied_bytes += bytes;
        }
        Ok((stored.into_iter().map(|(stored, _)| stored).collect(), done))
    }

    /// Ensures that the place has a file; returns it, and how many bytes were copied.
    async fn file(
        &self,
        piece: &ImageFile,
        known: Option<BackupFile>,
    ) -> Result<(BackupFile, u64)> {
        match known {
            Some(known) if self.is_good(&known).await? => Ok((known, 0)),
            _ => self.copy(piece).await.map(|stored| (stored, piece.size)),
        }
    }

    /// Returns earlier backups' record of a file, if the place has it with its size.
    fn known_file(&self, piece: &ImageFile) -> Option<BackupFile> {
        let name = piece.name.rsplit('/').next()?;
        let known = self.known.get(&format!("{OBJECTS}/{name}"))?;
        let is_same = known.size == piece.size && self.there.get(name) == Some(&piece.size);
        is_same.then(|| BackupFile { name: piece.name.clone(), ..known.clone() })
    }

    async fn is_good(&self, known: &BackupFile) -> Result<bool> {
        if !self.verify {
            return Ok(true);
        }
        let piece = known.piece(self.place)?;
        let found = checksum(&*self.place.store(), &piece.at).await?;
        self.progress.advance(known.size);
        if Some(found) == piece.checksum {
            return Ok(true);
        }
        tracing::warn!("{} is damaged in {}; it is copied again", known.object, self.place);
        self.progress.expect(known.size);
        Ok(false)
    }

    async fn copy(&self, piece: &ImageFile) -> Result<BackupFile> {
        let file = piece.name.rsplit('/').next().unwrap_or(&piece.name);
        let object = if piece.has_rows() {
            format!("{OBJECTS}/{file}")
        } else {
            let shard = piece.name.split('/').next().unwrap_or_default();
            format!("{BACKUPS}/{}/{shard}-{file}", self.image.checkpoint.id)
        };
        let from = self.image.place.store();
        let copy = Copy { from, to: self.place, progress: self.progress };
        let sum = copy.copy(piece, &object).await;
        let sum = sum.with_context(|| format!("copying {} to {}", piece.name, self.place))?;
        let (name, size) = (piece.name.clone(), piece.size);
        Ok(BackupFile { object, name, size, xxh3: format!("{sum:032x}") })
    }

    /// Copies directories of records, and returns their bytes.
    async fn records(&self, dirs: &[PathBuf], kind: &str) -> Result<(Vec<BackupFile>, u64)> {
        let mut stored = Vec::new();
        let to = format!("{BACKUPS}/{}/{kind}", self.image.checkpoint.id);
        for dir in dirs {
            let from = Place::local(dir)?;
            let copied = copy_tree(&from, &self.place.join(&to), self.progress).await?;
            stored.extend(copied.into_iter().map(|Copied { name, size, sum }| {
                let object = format!("{to}/{name}");
                BackupFile { object, name, size, xxh3: format!("{sum:032x}") }
            }));
        }
        let bytes = stored.iter().map(|file| file.size).sum();
        Ok((stored, bytes))
    }

    /// Copies the records between the previous backup and this one, as far as the journal or its
    /// archive still has them, so that any moment between the two can be restored. Returns them, their bytes,
    /// and the moments that they lack, with the reason.
    async fn history(&self, before: &[Backup]) -> Result<(Vec<BackupFile>, u64, Option<String>)> {
        let this = &self.image.checkpoint;
        let mut before = before.iter().map(|backup| &backup.checkpoint);
        let last = before.rfind(|c| c.origin == this.origin && c.created_ms <= this.created_ms);
        let Some(last) = last.filter(|last| last.lsn < this.after) else {
            return Ok((Vec::new(), 0, None));
        };
        let beside = Catalog::of(&self.from.store).history(&this.id);
        let scratch = beside.map_or_else(Scratch::temporary, Scratch::at)?;
        let to = scratch.path().to_owned();
        // The record at its lsn tells if the directory is still the one that it was taken of.
        let range = (last.lsn.saturating_sub(1), this.after);
        let copying = async {
            let copied = copy_history(self.from, range, &to).await?;
            let is_whole = copied.end == Some(this.after);
            if is_whole && goes_on_from(last, slice::from_ref(&to))? {
                let (stored, bytes) = self.records(&[to], "history").await?;
                return Ok((stored, bytes, None));
            }
            let why = match copied.broken.filter(|_| !is_whole) {
                Some(why) => why,
                None => format!("the records do not go on from those of {}", last.id),
            };
            let gap = format!("no moment between {} and {}: {why}", last.id, this.id);
            Ok::<_, anyhow::Error>((Vec::new(), 0, Some(gap)))
        };
        copying.await.context("copying the journal's records since the last backup")
    }
}

/// Removes old backups of a data directory, and the files that no remaining backup has.
async fn remove_older(place: &Place, origin: u32, keep: usize) -> Result<Vec<String>> {
    let backups = list_backups(place).await?;
    let of_this = backups.iter().rev().filter(|b| b.checkpoint.origin == origin);
    let gone: Vec<&str> = of_this.skip(keep).map(Backup::id).collect();
    let store = place.store();
    for id in &gone {
        store.delete(&place.path(&format!("{BACKUPS}/{id}.json"))).await?;
        let dir = place.join(&format!("{BACKUPS}/{id}"));
        for name in sizes(&dir).await?.into_keys() {
            store.delete(&dir.path(&name)).await?;
        }
    }
    let left = backups.iter().filter(|b| !gone.contains(&b.id()));
    let needed: BTreeSet<&str> =
        left.flat_map(|b| &b.files).map(|file| file.object.as_str()).collect();
    for name in sizes(&place.join(OBJECTS)).await?.into_keys() {
        let object = format!("{OBJECTS}/{name}");
        if !needed.contains(object.as_str()) {
            store.delete(&place.path(&object)).await?;
        }
    }
    Ok(gone.into_iter().map(str::to_owned).collect())
}

/// Returns the first file of a backup that is missing, or has another size.
pub(super) async fn missing(place: &Place, backup: &Backup) -> Result<Option<String>> {
    let files = backup.files.iter().chain(&backup.records).chain(&backup.history);
    let look = |file| is_missing(place, file).boxed();
    Ok(all(files.map(look).collect()).await?.into_iter().flatten().next())
}

async fn is_missing(place: &Place, file: &BackupFile) -> Result<Option<String>> {
    Ok((!is_there(place, &file.object, file.size).await?).then(|| file.object.clone()))
}
