//! Reads a journal by its files, some of which may be in an archive, while another process may be
//! writing it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::floor::JournalFloor;
use super::read::Assembly;
use super::scan::{Met, SegmentChain, SegmentWalk};
use super::segment::{FoundHeader, SegmentHeader, segment_number, segment_path};
use super::{JournalError, Lsn, Record};

/// Passes the records behind `after` in the segments of `journal` and `archive` to `each`, in
/// order, as far as they are whole and none is missing. Returns the last lsn, and whether it is the
/// end; `None`: the records behind `after` do not exist any more.
pub fn read_history(
    disk: &dyn Disk,
    journal: &Path,
    archive: &Path,
    after: Lsn,
    each: &mut dyn FnMut(Record) -> Result<(), JournalError>,
) -> Result<Option<(Lsn, bool)>, JournalError> {
    let Some(floor) = JournalFloor::read(disk, journal)? else { return Ok(None) };
    let mut headers: BTreeMap<u64, (SegmentHeader, PathBuf)> = BTreeMap::new();
    // A segment moves from the journal to the archive, never back.
    for dir in [journal, archive] {
        for number in numbers(disk, dir)? {
            let path = segment_path(dir, number);
            let Ok(file) = disk.open(&path) else { continue };
            let found = SegmentHeader::read(&*file, number);
            if let FoundHeader::Valid(header) =
                found.map_err(|e| JournalError::io("reading", &path, e))?
            {
                headers.insert(number, (header, path));
            }
        }
    }
    // The commit behind `after` may begin in an earlier segment than it ends in.
    let begins = headers.values().rev().find(|(h, _)| h.first_lsn <= after).map(|(h, _)| h.number);
    let begins = begins.or_else(|| headers.keys().next().copied()).unwrap_or(0);
    let mut chain: Option<SegmentChain> = None;
    let mut assembly = Assembly::default();
    let mut whole = true;
    for (number, (header, path)) in headers.range(begins..) {
        let entry = match chain {
            Some(chain) => chain.enter(header),
            None if header.first_lsn > after + 1 && header.prev_lsn > after => None,
            None => Some(SegmentChain::head(header)),
        };
        let Some(entry) = entry else {
            whole = false;
            break;
        };
        // The segment may have moved to the archive meanwhile.
        let file = disk.open(path).or_else(|_| disk.open(&segment_path(archive, *number)));
        let Ok(file) = file else {
            whole = false;
            break;
        };
        let failed = |error| JournalError::io("reading", path, error);
        let mut walk = SegmentWalk::new(&file, floor.salt, entry).map_err(failed)?;
        while let Some(step) = walk.next().map_err(failed)? {
            if step.met == Met::Rest && step.header.lsn > after {
                return Ok(None);
            }
            if let Some(record) = assembly.take(&step, after + 1) {
                each(record)?;
            }
        }
        chain = Some(walk.chain);
    }
    Ok(chain.map(|chain| (chain.last, whole)).filter(|(last, _)| *last >= after))
}

fn numbers(disk: &dyn Disk, dir: &Path) -> Result<Vec<u64>, JournalError> {
    match disk.list(dir) {
        Ok(names) => Ok(names.iter().filter_map(|name| segment_number(name)).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(JournalError::io("listing", dir, error)),
    }
}

/// Returns the greatest time in the journal when the segment in this file was begun; `None` if it
/// was not begun.
pub fn segment_begun_ms(disk: &dyn Disk, path: &Path) -> Option<u64> {
    let number = segment_number(path.file_name()?.to_str()?)?;
    match SegmentHeader::read(&*disk.open(path).ok()?, number) {
        Ok(FoundHeader::Valid(header)) => Some(header.time_ms),
        _ => None,
    }
}
