//! Records from several places, as one sequence.

use super::{ArchiveLimits, Checkpoint};
use crate::directory::{ARCHIVE_MARK, Location, Manifest, manifest_of, peek_control};
use crate::journal::{
    BucketJournal, BucketOptions, Disk, Extract, HistoryEnd, JournalError, LocalJournal, Lsn,
    Options, RealDisk, Record, read_history, segment_begun_ms, segment_number,
};
use crate::place::Place;
use anyhow::{Context, Result};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// Records that were copied.
pub(super) struct CopiedHistory {
    /// The last lsn; `None`: the records behind the first lsn are not there.
    pub(super) end: Option<Lsn>,
    /// The reason for which they end there, if records are missing.
    pub(super) broken: Option<String>,
}

/// Copies the records between two lsns from the journal of a data directory and its archive to the
/// local directory `to`.
pub(super) async fn copy_history(
    from: &Location,
    (after, until): (Lsn, Lsn),
    to: &Path,
) -> Result<CopiedHistory> {
    // These are looked at first: a server may be writing.
    let manifest = manifest_of(&from.store).await?;
    let reaches = if until == Lsn::MAX { reached(&from.store, &manifest).await } else { 0 };
    let (salt, begun) = (manifest.salt(), manifest.epoch());
    let (journal, archive, to) = (from.journal(), from.archive(), to.to_owned());
    let (runtime, shown) = (Handle::current(), journal.to_string());
    let copying = tokio::task::spawn_blocking(move || -> Result<_> {
        let mut extract = Extract::create(disk(), &to, rand::random(), after)?;
        let mut epoch = 0;
        let mut each = |record: Record| {
            epoch = record.epoch;
            if record.lsn <= until { extract.push(&record) } else { Ok(()) }
        };
        let range = (after, until);
        let found = if let (Some(journal), Some(archive)) = (journal.dir(), archive.dir()) {
            read_history(&RealDisk, journal, archive, range, &mut each)?
        } else {
            let options = BucketOptions { salt, ..BucketOptions::default() };
            let reading =
                BucketJournal::read_history(&journal, &archive, &options, range, &mut each);
            runtime.block_on(reading)?
        };
        let end = found.last.map(|last| last.min(until));
        if let Some(end) = end {
            extract.finish(epoch, end)?;
        }
        Ok((end, found))
    });
    let (end, found) = copying.await??;
    let mut broken = found.broken.as_ref().map(ToString::to_string);
    if broken.is_none() && until == Lsn::MAX {
        broken = beyond(&shown, &found, (begun, reaches));
    }
    Ok(CopiedHistory { end, broken })
}

/// Returns the greatest lsn that any shard has rows of, as far as the shards can be read.
async fn reached(store: &Place, manifest: &Manifest) -> Lsn {
    // It is looked at in place of the server's own files, which may change meanwhile or be damaged: what is
    // restored are those of a checkpoint.
    let shared = store.with_shared().await.unwrap_or_else(|_| store.clone());
    let mut reaches = 0;
    for home in manifest.homes() {
        // The others count all the same.
        let Ok(control) = peek_control(&shared, &home).await else { continue };
        reaches = reaches.max(control.reaches).max(control.complete.unwrap_or(0));
    }
    reaches
}

/// Describes why a journal is older than its directory, as a start would; `None`: it is not.
fn beyond(journal: &str, found: &HistoryEnd, (begun, reaches): (u64, Lsn)) -> Option<String> {
    let (end, epoch) = (found.last.unwrap_or(0), found.epoch);
    let how = if epoch < begun {
        format!("it ends in epoch {epoch}, but epoch {begun} was begun")
    } else if end < reaches {
        format!("it ends at lsn {end}, but a shard reaches lsn {reaches}")
    } else {
        return None;
    };
    Some(format!("the journal {journal} is an older copy, or a part of it is missing: {how}"))
}

/// Passes the records in these directories, each a journal, to `each`: in order, none twice. A gap
/// ends the replay, between two directories or within one: backups were once made with such gaps. Returns
/// the last lsn.
pub(super) fn replay(
    dirs: &[PathBuf],
    after: Lsn,
    each: &mut dyn FnMut(&Record) -> Result<(), JournalError>,
) -> Result<Lsn> {
    let (mut last, mut epoch, mut is_cut) = (after, None, false);
    for dir in dirs {
        let options = Options { disk: disk(), ..Options::default() };
        let recovery = LocalJournal::recover(dir, options)
            .with_context(|| format!("the records in {}", dir.display()))?;
        if recovery.dropped() > last {
            break;
        }
        recovery.replay::<JournalError>(last + 1, |record| {
            is_cut |= epoch == Some(record.epoch) && record.lsn != last + 1;
            if is_cut {
                return Ok(());
            }
            (last, epoch) = (record.lsn, Some(record.epoch));
            each(record)
        })?;
        if is_cut {
            break;
        }
        last = last.max(recovery.end());
    }
    Ok(last)
}

/// Returns true if records go on from a checkpoint, and not from an older copy of its directory that was put
/// in its place: then the record at its lsn, which they have if they go on, is one that came later.
pub(super) fn goes_on_from(checkpoint: &Checkpoint, dirs: &[PathBuf]) -> Result<bool> {
    let mut goes_on = true;
    for dir in dirs {
        let recovery = LocalJournal::recover(dir, Options::default())?;
        recovery.replay::<JournalError>(checkpoint.lsn, |record| {
            let is_later = record.epoch > checkpoint.epoch
                || checkpoint.last_ms.is_some_and(|last_ms| record.time_ms > last_ms);
            goes_on &= record.lsn != checkpoint.lsn || !is_later;
            Ok(())
        })?;
    }
    Ok(goes_on)
}

/// Returns a time that no record of the first of these directories has behind it, nor any that the engines
/// had when it was written.
pub(super) fn known_time_ms(dirs: &[PathBuf]) -> Result<u64> {
    let Some(dir) = dirs.first() else { return Ok(0) };
    Ok(LocalJournal::recover(dir, Options::default())?.max_time_ms())
}

/// Removes files that are too old from an archive, and then the oldest until the rest has at most so many
/// bytes. Returns the number of files removed.
pub async fn prune_archive(archive: &Place, limits: ArchiveLimits) -> Result<usize> {
    match archive.dir().map(Path::to_owned) {
        Some(dir) => {
            let pruning = move || prune_segments(&dir, limits);
            tokio::task::spawn_blocking(pruning).await?
        }
        None => prune_objects(archive, limits).await,
    }
}

/// Returns the time up to which the oldest segment in an archive has records; `None` if there is none, and
/// in a bucket, where ages do not count by this server's clock.
pub async fn oldest_archived_ms(archive: &Place) -> Result<Option<u64>> {
    let Some(dir) = archive.dir().map(Path::to_owned) else { return Ok(None) };
    let looking = move || -> Result<_> {
        let segments = archived_segments(&dir)?;
        let begun_ms = segments.iter().filter_map(|path| segment_begun_ms(&RealDisk, path));
        Ok(begun_ms.take(2).last())
    };
    tokio::task::spawn_blocking(looking).await?
}

/// Returns the paths of the segments in an archive, the oldest first.
fn archived_segments(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut names = match RealDisk.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        names => names.with_context(|| format!("reading {}", dir.display()))?,
    };
    names.retain(|name| segment_number(name).is_some());
    names.sort();
    Ok(names.iter().map(|name| dir.join(name)).collect())
}

/// Objects are as old as their copies in the archive, which are made when the journal drops them. Their
/// times are those of the store: the newest one tells what time it is there, at least.
async fn prune_objects(archive: &Place, limits: ArchiveLimits) -> Result<usize> {
    let ArchiveLimits { kept_ms, max_bytes, .. } = limits;
    let store = archive.store();
    let listing: Vec<_> = store.list(Some(archive.root())).try_collect().await?;
    let unsigned = |at: i64| u64::try_from(at).unwrap_or(0);
    let mut objects: Vec<_> = listing
        .into_iter()
        .map(|meta| (meta.location, meta.size, unsigned(meta.last_modified.timestamp_millis())))
        .collect();
    let newest_ms = objects.iter().map(|(.., modified_ms)| *modified_ms).max();
    let since_ms = newest_ms.unwrap_or(0).saturating_sub(kept_ms);
    if kept_ms != 0 {
        let mark = archive.path(ARCHIVE_MARK);
        objects.retain(|(path, ..)| *path != mark);
    }
    // Names sort as positions do.
    objects.sort();
    let mut bytes: u64 = objects.iter().map(|(_, size, _)| size).sum();
    let gone = objects.into_iter().take_while(|(_, size, modified_ms)| {
        let goes = bytes > max_bytes || kept_ms == 0 || *modified_ms < since_ms;
        bytes -= if goes { *size } else { 0 };
        goes
    });
    let gone: Vec<_> = gone.map(|(path, ..)| Ok(path)).collect();
    let removed = gone.len();
    store.delete_stream(stream::iter(gone).boxed()).try_for_each(|_| async { Ok(()) }).await?;
    Ok(removed)
}

/// Segments are as old as their records.
fn prune_segments(dir: &Path, limits: ArchiveLimits) -> Result<usize> {
    let ArchiveLimits { now_ms, kept_ms, max_bytes } = limits;
    let since_ms = now_ms.saturating_sub(kept_ms);
    let mut segments = Vec::new();
    for path in archived_segments(dir)? {
        let meta = std::fs::metadata(&path);
        let size = meta.with_context(|| format!("reading {}", path.display()))?.len();
        segments.push((path, size));
    }
    let mut bytes: u64 = segments.iter().map(|(_, size)| size).sum();
    let mut removed = 0;
    for (at, (path, size)) in segments.iter().enumerate() {
        // A segment begins with a record that is not older than any record in the segments before
        // it. The next one may be damaged: it must not keep those before it for ever.
        let begun_behind_ms = || {
            let mut behind = segments[at + 1..].iter();
            behind.find_map(|(next, _)| segment_begun_ms(&RealDisk, next))
        };
        let is_old = || begun_behind_ms().is_some_and(|begun_ms| begun_ms < since_ms);
        if bytes <= max_bytes && kept_ms != 0 && !is_old() {
            break;
        }
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        bytes -= size;
        removed += 1;
    }
    if kept_ms == 0 {
        // It stays if anything else is in it.
        let _ = std::fs::remove_dir(dir);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_is_older_than_its_directory_is_noticed() {
        let found = |last, epoch| HistoryEnd { last, epoch, broken: None };
        let told = |found, others| beyond("place", &found, others).unwrap_or_default();
        assert_eq!(told(found(Some(9), 3), (3, 9)), "");
        assert_eq!(told(found(Some(9), 4), (3, 8)), "");
        assert!(told(found(Some(9), 2), (3, 9)).contains("in epoch 2, but epoch 3 was begun"));
        assert!(told(found(Some(8), 3), (3, 9)).contains("at lsn 8, but a shard reaches lsn 9"));
    }
}
