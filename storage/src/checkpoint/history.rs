//! Records from several places, as one sequence.

use crate::journal::{
    Disk, Extract, JournalError, LocalJournal, Lsn, Options, RealDisk, Record, read_history,
    segment_begun_ms,
};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory in which dropped segments of the journal are kept, in a data directory.
pub const ARCHIVE: &str = "archive";

fn disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// Copies what the journal of a data directory and its archive have behind `after`, up to `until`.
/// The last lsn, and whether that is all there is; `None`: what follows `after` is not there any more.
pub(super) fn copy_history(
    data: &Path,
    after: Lsn,
    until: Lsn,
    to: &Path,
) -> Result<Option<(Lsn, bool)>, JournalError> {
    let (journal, archive) = (data.join("journal"), data.join(ARCHIVE));
    let mut extract = Extract::create(disk(), to, rand::random(), after)?;
    let mut epoch = 0;
    let reached = read_history(&RealDisk, &journal, &archive, after, &mut |record| {
        epoch = record.epoch;
        if record.lsn <= until { extract.push(&record) } else { Ok(()) }
    })?;
    let Some((reached, whole)) = reached else { return Ok(None) };
    let end = reached.min(until);
    extract.finish(epoch, end)?;
    Ok(Some((end, whole)))
}

/// Hands the records in these directories, each a journal, to `each`: all in order, none twice.
/// What is missing between two of them ends it. The last lsn.
pub(super) fn replay(
    dirs: &[PathBuf],
    after: Lsn,
    each: &mut dyn FnMut(&Record) -> Result<(), JournalError>,
) -> Result<Lsn> {
    let mut last = after;
    for dir in dirs {
        let options = Options { disk: disk(), ..Options::default() };
        let recovery = LocalJournal::recover(dir, options)
            .with_context(|| format!("the records in {}", dir.display()))?;
        if recovery.dropped() > last {
            break;
        }
        recovery.replay::<JournalError>(last + 1, |record| {
            last = record.lsn;
            each(record)
        })?;
        last = last.max(recovery.end());
    }
    Ok(last)
}

/// Removes archived segments of which all records are older than `since_ms`, and the oldest ones
/// until the rest has at most `max_bytes`.
pub fn prune_archive(data: &Path, since_ms: u64, max_bytes: u64) -> Result<usize> {
    let dir = data.join(ARCHIVE);
    let mut segments = Vec::new();
    for name in super::names(&dir)? {
        let path = dir.join(&name);
        let size = match std::fs::metadata(&path) {
            Ok(meta) => meta.len(),
            Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
        };
        segments.push((name, size, path));
    }
    segments.sort();
    let mut bytes: u64 = segments.iter().map(|(_, size, _)| size).sum();
    let mut removed = 0;
    for (at, (_, size, path)) in segments.iter().enumerate() {
        // What one segment begins with is not older than anything in the one before it.
        let next = segments.get(at + 1).and_then(|(.., next)| segment_begun_ms(&RealDisk, next));
        if bytes <= max_bytes && next.is_none_or(|begun_ms| begun_ms >= since_ms) {
            break;
        }
        std::fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
        bytes -= size;
        removed += 1;
    }
    Ok(removed)
}
