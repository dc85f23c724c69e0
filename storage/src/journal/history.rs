//! Reads a journal by its files, some of which may be in an archive, while another process may be
//! writing it.
//!
//! The end is judged as at a start: records that are known to be durable must lie before it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::{Disk, File};
use super::floor::{JournalFloor, floor_path};
use super::read::Assembly;
use super::scan::{Met, SegmentChain, SegmentWalk, remains};
use super::segment::{FIRST_RECORD, FoundHeader, SegmentHeader, segment_number};
use super::shelf::SegmentShelf;
use super::{JournalError, Lsn, Record};

/// The end of the records that were read.
#[derive(Debug)]
pub struct HistoryEnd {
    /// The last lsn; `None`: the records behind the first lsn are not all there, even the next ones.
    pub last: Option<Lsn>,
    /// The epoch in which they end.
    pub epoch: u64,
    /// The damage or the gap at which they end, although there were more; `None`: they are all.
    pub broken: Option<JournalError>,
}

/// Passes the records behind `after` in the segments of `journal` and `archive` to `each`, in
/// order, as far as they are whole and none is missing, or up to the lsn `until` or a little further.
///
/// # Errors
/// Those of `each`; I/O errors, also of files that are damaged so that they cannot be read. A file in the archive
/// that cannot be opened, or whose header cannot be read, is missing.
pub fn read_history(
    disk: &dyn Disk,
    journal: &Path,
    archive: &Path,
    (after, until): (Lsn, Lsn),
    each: &mut dyn FnMut(Record) -> Result<(), JournalError>,
) -> Result<HistoryEnd, JournalError> {
    let Some(floor) = JournalFloor::read(disk, journal)? else {
        let missing = JournalError::corrupt(floor_path(journal), 0, "the file is missing");
        return Ok(HistoryEnd { last: None, epoch: 0, broken: Some(missing) });
    };
    let segments = SegmentShelf::new(disk, journal, archive, floor.salt)?;
    let assembly = Assembly::default();
    let mut reader = HistoryReader { segments, floor, after, at: None, assembly };
    // Another process may write on: only records that were durable at the first look must be there.
    let mut wanted = None;
    loop {
        let follows = reader.follow(until, each)?;
        let last = reader.at.map_or(0, |(chain, _)| chain.last);
        if last >= wanted.unwrap_or(until).min(until) {
            return Ok(reader.end(None));
        }
        let Some((durable, damage)) = reader.breach()? else { return Ok(reader.end(None)) };
        if !follows {
            return Ok(reader.end(Some(damage)));
        }
        wanted.get_or_insert(durable);
        reader.segments.look()?;
    }
}

/// Follows the records through the segments.
struct HistoryReader<'a> {
    segments: SegmentShelf<'a>,
    /// As it was before the first segment was looked for.
    floor: JournalFloor,
    after: Lsn,
    /// The end so far, and its offset in the segment; `None`: no segment begins where they should.
    at: Option<(SegmentChain, u64)>,
    assembly: Assembly,
}

impl HistoryReader<'_> {
    /// Follows the records as far as they go now. Returns true if that is further than before.
    fn follow(
        &mut self,
        until: Lsn,
        each: &mut dyn FnMut(Record) -> Result<(), JournalError>,
    ) -> Result<bool, JournalError> {
        let before = self.at;
        let Some((mut chain, mut offset)) = self.at.or_else(|| self.beginning()) else {
            return Ok(false);
        };
        // The segment may have been dropped meanwhile.
        while let Some(file) = self.segments.open(chain.number)? {
            let path = self.segments.path(chain.number, &self.floor);
            let failed = |error| JournalError::io("reading", &path, error);
            let mut walk = SegmentWalk::new(&file, self.floor.salt, chain).map_err(failed)?;
            walk.offset = offset;
            while walk.chain.last < until
                && let Some(step) = walk.next().map_err(failed)?
            {
                if step.met == Met::Rest && step.header.lsn > self.after {
                    self.at = None;
                    return Ok(false);
                }
                if let Some(record) = self.assembly.take(&step, self.after + 1) {
                    each(record)?;
                }
            }
            (chain, offset) = (walk.chain, walk.offset);
            self.at = Some((chain, offset));
            let next =
                self.segments.begun_behind(chain.number).next().filter(|_| chain.last < until);
            let Some(entry) = next.and_then(|next| chain.enter(next)) else { break };
            (chain, offset) = (entry, FIRST_RECORD);
        }
        Ok(self.at != before)
    }

    /// Returns the beginning of the segment to begin with: the commit behind `after` may begin in an
    /// earlier one than it ends in. `None`: it is not there.
    fn beginning(&self) -> Option<(SegmentChain, u64)> {
        let head = self.segments.begun().rev().find(|head| head.first_lsn <= self.after);
        let head = head.or_else(|| self.segments.begun().next())?;
        let is_behind = head.first_lsn > self.after + 1 && head.prev_lsn > self.after;
        (!is_behind).then(|| (SegmentChain::head(head), FIRST_RECORD))
    }

    /// Returns the damage at which the records end, and an lsn that was durable then, if any was that
    /// they do not reach: as a start would.
    fn breach(&mut self) -> Result<Option<(Lsn, JournalError)>, JournalError> {
        let Some((chain, offset)) = self.at else {
            let head = self.segments.begun().find(|head| head.first_lsn > self.after);
            let number = head.map_or(self.floor.first_segment, |head| head.prev_number.max(1));
            return Ok(Some((Lsn::MAX, self.damage(number, 0))));
        };
        let number = chain.number;
        let Some(file) = self.segments.open(number)? else {
            return Ok(Some((Lsn::MAX, self.damage(number, 0))));
        };
        let path = self.segments.path(number, &self.floor);
        let size = file.size().map_err(|e| JournalError::io("reading", &path, e))?;
        if let Some(head) = self.segments.head(number)
            && size < head.size
        {
            let reason = format!("the file is cut off: it had {} bytes", head.size);
            return Ok(Some((Lsn::MAX, JournalError::corrupt(path, size, reason))));
        }
        let Some(durable) = self.durable_behind(chain, offset, &file)? else { return Ok(None) };
        let next = self.segments.begun_behind(number).next().map(|next| next.prev_number);
        let newest = Some(self.newest());
        let damage = match next.or(newest).filter(|other| *other > number) {
            Some(other) => self.damage(other, 0),
            None => {
                let last = chain.last;
                let reason = format!("the chain of records breaks behind lsn {last}");
                JournalError::corrupt(path, offset, reason)
            }
        };
        Ok(Some((durable, damage)))
    }

    /// Returns an lsn behind the end of the chain that was durable; the greatest of all if it is not
    /// known which; `None`: the bytes there are a torn tail.
    fn durable_behind(
        &mut self,
        chain: SegmentChain,
        offset: u64,
        file: &Arc<dyn File>,
    ) -> Result<Option<Lsn>, JournalError> {
        let (number, salt) = (chain.number, self.floor.salt);
        // Every segment before the journal's first one was durable, and so was the newest one noted.
        if self.newest() > number {
            return Ok(Some(Lsn::MAX));
        }
        for next in self.segments.begun_behind(number) {
            let is_missing = next.prev_number > number && !self.segments.has(next.prev_number);
            if is_missing || next.epoch > chain.epoch {
                return Ok(Some(Lsn::MAX));
            }
            if next.durable > chain.last {
                return Ok(Some(next.durable));
            }
        }
        let failed = |path: PathBuf| move |error| JournalError::io("reading", &path, error);
        let path = self.segments.path(number, &self.floor);
        let mut durable = remains(file, salt, offset).map_err(failed(path))?.durable;
        let others: Vec<u64> = self.segments.numbers_behind(number).collect();
        for other in others {
            if durable > chain.last {
                break;
            }
            let Some(file) = self.segments.open(other)? else { continue };
            let path = self.segments.path(other, &self.floor);
            let found = remains(&file, salt, FIRST_RECORD).map_err(failed(path))?;
            durable = durable.max(found.durable);
        }
        Ok((durable > chain.last).then_some(durable))
    }

    /// Returns the newest segment that was durably begun, as far as the floor says.
    fn newest(&self) -> u64 {
        // Floors were once written without it.
        self.floor.newest_segment.max(self.floor.first_segment)
    }

    /// Returns the error for a segment that is missing, or is there and does not go on from the one before.
    fn damage(&self, number: u64, offset: u64) -> JournalError {
        let first = self.floor.first_segment;
        let dropped = || {
            let now = JournalFloor::read(self.segments.disk, self.segments.journal).ok()??;
            Some((first..now.first_segment).contains(&number))
        };
        let reason = if let Some(why) = self.segments.unreadable(number) {
            unreadable(why)
        } else if self.segments.has(number) {
            "its header is damaged, or it is not the segment that was there".to_owned()
        } else if let Some(why) = self.segments.trouble.as_ref().filter(|_| number < first) {
            format!("the segment is missing: {why}")
        } else if number < first && self.at.is_none() {
            "the segment is missing: it had grown too old for the archive, or never got there"
                .to_owned()
        } else if dropped().unwrap_or(false) {
            "the segment was dropped while it was to be read: try again".to_owned()
        } else {
            "the segment is missing".to_owned()
        };
        JournalError::corrupt(self.segments.path(number, &self.floor), offset, reason)
    }

    fn end(self, broken: Option<JournalError>) -> HistoryEnd {
        let chain = self.at.map(|(chain, _)| chain);
        let last = chain.map(|chain| chain.last).filter(|last| *last >= self.after);
        HistoryEnd { last, epoch: chain.map_or(0, |chain| chain.epoch), broken }
    }
}

/// Reads the segments that a journal without a writer has dropped, in the archive or on their way there,
/// and tells of each one that is damaged or missing. Segments before the oldest one may have grown too
/// old. Returns how many there are.
///
/// # Errors
/// I/O errors.
pub fn check_archive(
    disk: &dyn Disk,
    journal: &Path,
    archive: &Path,
    tell: &mut dyn FnMut(String),
) -> Result<u64, JournalError> {
    let Some(floor) = JournalFloor::read(disk, journal)? else { return Ok(0) };
    let mut segments = SegmentShelf::new(disk, journal, archive, floor.salt)?;
    segments.trouble.iter().for_each(|why| tell(why.clone()));
    for (path, what) in segments.headless(..floor.first_segment) {
        tell(format!("{}: {what}", path.display()));
    }
    let mut before: Option<(SegmentChain, u64)> = None;
    let mut checked = 0;
    let begun = segments.begun().take_while(|head| head.number <= floor.first_segment);
    let begun: Vec<SegmentHeader> = begun.copied().collect();
    for head in &begun {
        let entered = before.and_then(|(chain, _)| chain.enter(head));
        if let (Some(end), None) = (before, entered) {
            gap(&segments, &floor, end, head).into_iter().for_each(&mut *tell);
        }
        // The journal itself is checked elsewhere.
        if head.number == floor.first_segment {
            break;
        }
        let opened = segments.open(head.number)?;
        let path = segments.path(head.number, &floor);
        let Some(file) = opened else {
            // One that is gone is missed when the next one is entered.
            if let Some(why) = segments.unreadable(head.number) {
                tell(format!("{}: {}", path.display(), unreadable(why)));
            }
            continue;
        };
        let failed = |error| JournalError::io("reading", &path, error);
        let chain = entered.unwrap_or_else(|| SegmentChain::head(head));
        let mut walk = SegmentWalk::new(&file, floor.salt, chain).map_err(failed)?;
        while walk.next().map_err(failed)?.is_some() {}
        before = Some((walk.chain, walk.offset));
        checked += 1;
    }
    Ok(checked)
}

fn unreadable(why: &str) -> String {
    format!("it cannot be read: {why}")
}

/// Describes why a segment does not go on from the one before it; `None`: that was told, or no record is
/// missing.
fn gap(
    segments: &SegmentShelf<'_>,
    floor: &JournalFloor,
    (chain, offset): (SegmentChain, u64),
    head: &SegmentHeader,
) -> Option<String> {
    let (last, until) = (chain.last, head.prev_lsn);
    let path = segments.path(head.prev_number, floor);
    let path = path.display();
    match head.prev_number {
        // Another journal began in the same place.
        0 => None,
        number if number == chain.number => Some(format!(
            "{path}, offset {offset}: the chain of records breaks behind lsn {last}, and went on to lsn {until}"
        )),
        number if segments.has(number) => None,
        _ => {
            Some(format!("{path} is missing: the records behind lsn {last} went on to lsn {until}"))
        }
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
