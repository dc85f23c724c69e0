//! Opens a journal after its last process has ended in any way.
//!
//! Recovery follows the chain of records to its end. Every lsn that any header states to be durable
//! must lie before that end, or the journal is damaged and refused. The bytes behind the end are a
//! torn tail: they were never stated to be durable, and are cut off.

mod pieces;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use pieces::LocalPieces;

use super::disk::{CHUNK, Disk, File, write_zeros};
use super::floor::{JournalFloor, floor_path};
use super::local::{LocalJournal, RecoveredState};
use super::record::{HEADER, decode_shards};
use super::scan::{Met, Remains, SegmentChain, SegmentWalk, remains};
use super::segment::{
    FIRST_RECORD, FoundHeader, SegmentHeader, ShardSpans, VERSION, prepare_segment, segment_number,
    segment_path,
};
use super::upkeep::archive_segment;
use super::{JournalError, Lsn, Options, Record};
use bytes::BytesMut;

/// Least bytes of the segment with which a journal begins on a disk that has no room for a whole one.
const LEAST_SEGMENT: u64 = 1 << 20;

/// A journal that was read but not started yet. Nothing on disk has been changed.
pub struct Recovery {
    dir: PathBuf,
    options: Options,
    floor: Option<JournalFloor>,
    segments: Vec<Scanned>,
    chain: SegmentChain,
    /// Numbers of files that are no part of the journal, in order: dropped before the end, ...
    dropped: Vec<u64>,
    /// ... begun behind the end of the chain, ...
    torn_off: Vec<u64>,
    /// ... and prepared for later.
    spares: Vec<u64>,
    /// True if the last segment has bytes behind the end of the chain.
    torn: bool,
    durable: Lsn,
    max_epoch: u64,
    max_time_ms: u64,
    max_number: u64,
    /// Segment and offset of each commit that is incomplete.
    unfinished: BTreeSet<(u64, u64)>,
    /// True once records that may not have been durable were written again.
    settled: AtomicBool,
}

/// A segment of the chain.
pub(super) struct Scanned {
    pub(super) header: SegmentHeader,
    /// State of the chain at its beginning.
    entry: SegmentChain,
    /// Offset of the end of its last record.
    pub(super) end: u64,
    /// The last commit that ends in it or before it.
    pub(super) last: Lsn,
    pub(super) spans: ShardSpans,
}

/// A commit not all of whose parts have been read.
#[derive(Debug, Default)]
struct IncompleteCommit {
    /// Segment and offset.
    begins: Option<(u64, u64)>,
    /// Its parts so far: index of the segment, bytes.
    parts: Vec<(usize, u64)>,
}

impl fmt::Debug for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovery")
            .field("dir", &self.dir)
            .field("end", &self.end())
            .field("durable", &self.durable)
            .field("max_epoch", &self.max_epoch)
            .finish_non_exhaustive()
    }
}

impl LocalJournal {
    /// Reads the journal in `dir`, which is created if it does not exist.
    ///
    /// # Errors
    /// [`JournalError::Corrupt`] if something that was durable is damaged or missing;
    /// [`JournalError::NewerFormat`]; I/O errors.
    pub fn recover(dir: &Path, options: Options) -> Result<Recovery, JournalError> {
        Recovery::scan(dir, options)
    }
}

impl Recovery {
    fn scan(dir: &Path, mut options: Options) -> Result<Self, JournalError> {
        options.segment_bytes =
            options.segment_bytes.max(Options::MIN_SEGMENT).next_multiple_of(FIRST_RECORD);
        let disk = Arc::clone(&options.disk);
        disk.create_dir(dir).map_err(|e| JournalError::io("creating", dir, e))?;
        let names = disk.list(dir).map_err(|e| JournalError::io("listing", dir, e))?;
        let numbers: BTreeSet<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
        let floor = JournalFloor::read(&*disk, dir)?;
        let archive = options.archive.as_deref();
        // The archive of an earlier journal in this place may have segments with greater numbers.
        let archived = archive.filter(|_| floor.is_none()).and_then(|dir| disk.list(dir).ok());
        let archived = archived.iter().flatten().filter_map(|name| segment_number(name)).max();
        let mut recovery = Self {
            dir: dir.to_path_buf(),
            options,
            floor: None,
            segments: Vec::new(),
            chain: SegmentChain::default(),
            dropped: Vec::new(),
            torn_off: Vec::new(),
            spares: Vec::new(),
            torn: false,
            durable: 0,
            max_epoch: 0,
            max_time_ms: 0,
            max_number: numbers.last().copied().max(archived).unwrap_or(0),
            unfinished: BTreeSet::new(),
            settled: AtomicBool::new(false),
        };
        let mut headers = BTreeMap::new();
        for &number in &numbers {
            headers.insert(number, recovery.read_header(number)?);
        }
        match floor {
            None => recovery.require_new(&headers)?,
            Some(floor) => {
                recovery.floor = Some(floor);
                recovery.follow_chain(&headers)?;
                recovery.classify_rest(&headers)?;
            }
        }
        Ok(recovery)
    }

    fn path(&self, number: u64) -> PathBuf {
        segment_path(&self.dir, number)
    }

    /// Returns the salt of the journal; for a new journal the requested one.
    pub fn salt(&self) -> u32 {
        self.floor.as_ref().map_or(self.options.salt, |floor| floor.salt)
    }

    fn open_file(&self, number: u64) -> Result<Arc<dyn File>, JournalError> {
        let path = self.path(number);
        self.options.disk.open(&path).map_err(|e| JournalError::io("opening", &path, e))
    }

    fn read_header(&self, number: u64) -> Result<Option<SegmentHeader>, JournalError> {
        let path = self.path(number);
        let file = self.open_file(number)?;
        match SegmentHeader::read(&*file, number) {
            Ok(FoundHeader::Valid(header)) if header.first_lsn > 0 => Ok(Some(header)),
            Ok(FoundHeader::Valid(_) | FoundHeader::Absent) => Ok(None),
            Ok(FoundHeader::Newer(found)) => {
                Err(JournalError::NewerFormat { path, found, known: VERSION })
            }
            Err(error) => Err(JournalError::io("reading", &path, error)),
        }
    }

    /// Checks that a journal without a floor is new: the floor is written before a first start
    /// ends.
    fn require_new(
        &mut self,
        headers: &BTreeMap<u64, Option<SegmentHeader>>,
    ) -> Result<(), JournalError> {
        for (&number, header) in headers {
            let salt = header.map_or(self.options.salt, |h| h.salt);
            let found = self.remains_of(number, salt, FIRST_RECORD)?;
            if found != Remains::default() || header.is_some_and(|h| h.prev_number != 0) {
                let reason = "the file is missing, but there are segments with records";
                return Err(JournalError::corrupt(floor_path(&self.dir), 0, reason));
            }
            self.max_epoch = self.max_epoch.max(header.map_or(0, |h| h.epoch));
            self.dropped.push(number);
        }
        Ok(())
    }

    fn follow_chain(
        &mut self,
        headers: &BTreeMap<u64, Option<SegmentHeader>>,
    ) -> Result<(), JournalError> {
        let (first, dropped) = self.floor.as_ref().map_or((0, 0), |f| (f.first_segment, f.dropped));
        let Some(Some(head)) = headers.get(&first).copied() else {
            let reason = "the journal's first segment is missing or its header is damaged";
            return Err(JournalError::corrupt(self.path(first), 0, reason));
        };
        if head.prev_lsn > dropped {
            let reason = format!(
                "the segment begins behind lsn {}, but records were dropped only up to {dropped}",
                head.prev_lsn
            );
            return Err(JournalError::corrupt(self.path(first), 0, reason));
        }
        self.dropped = headers.range(..first).map(|(&number, _)| number).collect();
        let mut entry = SegmentChain::head(&head);
        let mut begun = headers.range(first..).filter_map(|(_, header)| *header).peekable();
        let mut open = IncompleteCommit::default();
        while let Some(header) = begun.next() {
            self.follow_segment(header, entry, &mut open)?;
            match begun.peek().and_then(|next| self.chain.enter(next)) {
                Some(next) => entry = next,
                None => break,
            }
        }
        self.unfinished.extend(open.begins);
        Ok(())
    }

    /// Follows the chain through one segment, beginning within the commit `open`.
    fn follow_segment(
        &mut self,
        header: SegmentHeader,
        entry: SegmentChain,
        open: &mut IncompleteCommit,
    ) -> Result<(), JournalError> {
        let path = self.path(header.number);
        let failed = |error| JournalError::io("reading", &path, error);
        let file = self.open_file(header.number)?;
        if header.salt != self.salt() {
            return Err(JournalError::corrupt(path, 0, "the segment is of another journal"));
        }
        let size = file.size().map_err(failed)?;
        if size < header.size {
            let reason = format!("the file is cut off: it had {} bytes", header.size);
            return Err(JournalError::corrupt(path, size, reason));
        }
        let index = self.segments.len();
        let spans = ShardSpans::default();
        self.segments.push(Scanned { header, entry, end: 0, last: 0, spans });
        self.durable = self.durable.max(header.durable);
        self.max_time_ms = self.max_time_ms.max(header.time_ms);
        let mut walk = SegmentWalk::new(&file, self.salt(), entry).map_err(failed)?;
        while let Some(step) = walk.next().map_err(failed)? {
            self.durable = self.durable.max(step.header.durable);
            self.max_time_ms = self.max_time_ms.max(step.header.time_ms);
            if let (true, Some(floor)) = (step.ends_rest(), &mut self.floor) {
                // Floors were once written without it.
                floor.dropped = floor.dropped.max(step.header.lsn);
            }
            let Met::Part { first, last } = step.met else { continue };
            if first {
                open.parts.clear();
                let before = open.begins.replace((header.number, step.offset));
                self.unfinished.extend(before);
            }
            open.parts.push((index, step.header.record_len()));
            if last {
                open.begins = None;
                let shards = decode_shards(step.payload, step.header.shard_count);
                for (segment, bytes) in open.parts.drain(..) {
                    self.segments[segment].spans.add(&shards, step.header.lsn, bytes);
                }
            }
        }
        self.chain = walk.chain;
        self.max_epoch = self.max_epoch.max(header.epoch);
        let segment = &mut self.segments[index];
        (segment.end, segment.last) = (walk.offset, walk.chain.last);
        Ok(())
    }

    fn remains_of(&self, number: u64, salt: u32, offset: u64) -> Result<Remains, JournalError> {
        let file = self.open_file(number)?;
        remains(&file, salt, offset)
            .map_err(|error| JournalError::io("reading", &self.path(number), error))
    }

    /// Decides whether the bytes behind the end of the chain are a torn tail or the rest of a
    /// damaged journal, and classifies the files there.
    fn classify_rest(
        &mut self,
        headers: &BTreeMap<u64, Option<SegmentHeader>>,
    ) -> Result<(), JournalError> {
        let (number, end) = (self.chain.number, self.segments.last().map_or(0, |s| s.end));
        let (last, epoch) = (self.chain.last, self.chain.epoch);
        let behind = self.remains_of(number, self.salt(), end)?;
        self.torn = behind.last > last || !self.is_blank(number, end)?;
        // Location of the damage to report, and the lsn that proves it.
        let mut proof = (behind.durable > last).then_some((number, end, behind.durable));
        let begun_behind = headers.range(number + 1..).find_map(|(_, header)| *header);
        for (&other, header) in headers.range(number + 1..) {
            let found = self.remains_of(other, self.salt(), FIRST_RECORD)?;
            let durable = found.durable.max(header.map_or(0, |h| h.durable));
            self.max_epoch = self.max_epoch.max(found.epoch).max(header.map_or(0, |h| h.epoch));
            if header.is_some() || found.last > last {
                self.torn_off.push(other);
            } else {
                self.spares.push(other);
            }
            if durable > last && proof.is_none() {
                let place = match begun_behind {
                    Some(h) if h.prev_number != number => (h.prev_number, 0),
                    Some(_) => (number, end),
                    None => (other, 0),
                };
                proof = Some((place.0, place.1, durable));
            }
            let Some(header) = header else { continue };
            // A segment is removed after its successors, and begun after its predecessor.
            if header.prev_number > number && !headers.contains_key(&header.prev_number) {
                let path = self.path(header.prev_number);
                return Err(JournalError::corrupt(path, 0, "the segment is missing"));
            }
            if header.epoch > epoch && proof.is_none() {
                // Everything before it was made durable when its epoch began.
                proof = Some((number, end, header.prev_lsn));
            }
        }
        if let Some((number, offset, durable)) = proof {
            let reason = format!(
                "the chain of records breaks behind lsn {last}, and lsn {durable} was durable"
            );
            return Err(JournalError::corrupt(self.path(number), offset, reason));
        }
        let newest = self.floor.as_ref().map_or(0, |floor| floor.newest_segment);
        if newest > number {
            let reason = "the segment was begun, and is missing or damaged";
            return Err(JournalError::corrupt(self.path(newest), 0, reason));
        }
        Ok(())
    }

    /// Returns true if no record was ever begun at `offset`.
    fn is_blank(&self, number: u64, offset: u64) -> Result<bool, JournalError> {
        let file = self.open_file(number)?;
        let read = || {
            let mut bytes = [0; HEADER];
            let length = file.size()?.saturating_sub(offset).min(HEADER as u64) as usize;
            file.read_exact_at(&mut bytes[..length], offset)?;
            Ok(bytes == [0; HEADER])
        };
        read().map_err(|error| JournalError::io("reading", &self.path(number), error))
    }

    /// Returns the last lsn: that of the last commit, or the one that the last epoch's first commit
    /// was to follow.
    pub fn end(&self) -> Lsn {
        self.chain.last
    }

    /// Returns the greatest dropped lsn: the journal begins behind it.
    pub fn dropped(&self) -> Lsn {
        self.floor.as_ref().map_or(0, |floor| floor.dropped)
    }

    /// Returns the greatest lsn that was known to be durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Returns the epoch in which it ends, 0 in a new journal.
    pub fn epoch(&self) -> u64 {
        self.chain.epoch
    }

    /// Returns the greatest epoch met, 0 in a new journal.
    pub fn max_epoch(&self) -> u64 {
        self.max_epoch
    }

    /// Returns the greatest time in any record, dropped ones included.
    pub fn max_time_ms(&self) -> u64 {
        self.max_time_ms
    }

    /// Returns the greatest lsn of `shard` that was dropped because its rows were flushed.
    pub fn floor(&self, shard: u16) -> Lsn {
        self.floor.as_ref().and_then(|f| f.shards.get(&shard).copied()).unwrap_or(0)
    }

    /// Passes every whole commit from the lsn `from` on to `each`, in order, until that fails.
    pub fn replay<E: From<JournalError>>(
        &self,
        from: Lsn,
        mut each: impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut pieces, mut body) = (self.pieces(from), BytesMut::new());
        while let Some(piece) = pieces.next()? {
            body.extend_from_slice(&piece.record.body);
            if piece.last {
                each(&Record { body: body.split().freeze(), ..piece.record })?;
            }
        }
        Ok(())
    }

    /// Makes the recovered records durable again, and cuts off a torn tail.
    pub(super) fn settle(&self) -> Result<(), JournalError> {
        if self.settled.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.restore_tail()?;
        let synced = self.options.disk.sync_dir(&self.dir);
        synced.map_err(|error| JournalError::io("syncing", &self.dir, error))
    }

    /// Makes the recovered records durable again, cuts off a torn tail, opens an epoch of at least
    /// `min_epoch` in a fresh segment, and starts the journal. The next lsn is at least
    /// `min_next_lsn`. If it is interrupted anywhere, it can be repeated from the beginning.
    pub fn start(
        mut self,
        min_epoch: u64,
        min_next_lsn: Lsn,
    ) -> Result<Arc<LocalJournal>, JournalError> {
        let (dir, disk) = (self.dir.clone(), Arc::clone(&self.options.disk));
        self.settle()?;
        let left = self.remove_strays(&*disk)?;
        let (number, file, size) = self.fresh_segment(&*disk)?;
        let header = SegmentHeader {
            number,
            epoch: (self.max_epoch + 1).max(min_epoch),
            first_lsn: (self.chain.last + 1).max(min_next_lsn),
            prev_number: self.chain.number,
            prev_epoch: self.chain.epoch,
            prev_lsn: self.chain.last,
            prev_crc: self.chain.crc,
            salt: self.salt(),
            durable: self.chain.last,
            time_ms: self.max_time_ms,
            size,
        };
        let begin = || {
            header.write(&*file)?;
            file.sync()?;
            disk.sync_dir(&dir)
        };
        begin().map_err(|e| JournalError::io("beginning", &segment_path(&dir, number), e))?;
        let new =
            JournalFloor { first_segment: number, salt: header.salt, ..JournalFloor::default() };
        let floor = JournalFloor { newest_segment: number, ..self.floor.take().unwrap_or(new) };
        floor.write(&*disk, &dir)?;
        let mut spares = Vec::new();
        for &number in &self.spares {
            spares.push((number, self.open_file(number)?));
        }
        LocalJournal::open(RecoveredState {
            next_number: self.max_number + 1,
            left,
            dir: self.dir,
            options: self.options,
            floor,
            closed: self.segments,
            header,
            file,
            spares,
        })
    }

    /// Rewrites in place the records that may be in the page cache only, wipes torn bytes, and
    /// syncs.
    fn restore_tail(&self) -> Result<(), JournalError> {
        let last_number = self.chain.number;
        for segment in &self.segments {
            let number = segment.header.number;
            let torn = self.torn && number == last_number;
            // A segment may hold parts of the commit after its last whole one.
            if segment.last < self.durable && number != last_number {
                continue;
            }
            let path = self.path(number);
            let file = self.open_file(number)?;
            let restore = || {
                rewrite(&*file, self.first_above_durable(segment, &file)?, segment.end)?;
                if torn {
                    write_zeros(&*file, segment.end, file.size()?.saturating_sub(segment.end))?;
                }
                file.sync()
            };
            restore().map_err(|error| JournalError::io("restoring", &path, error))?;
        }
        Ok(())
    }

    /// Returns the offset in `segment` from which on records may not be durable.
    fn first_above_durable(&self, segment: &Scanned, file: &Arc<dyn File>) -> io::Result<u64> {
        let mut walk = SegmentWalk::new(file, self.salt(), segment.entry)?;
        let mut whole = true;
        while let Some(step) = walk.next()? {
            if step.header.lsn > self.durable {
                // The header may be as new as the first record.
                return Ok(if whole { 0 } else { step.offset });
            }
            whole = false;
        }
        Ok(if whole { 0 } else { segment.end })
    }

    /// Removes files that are no part of the journal. The last one begun goes first, and durably,
    /// so that no segment is ever missing before one that was begun. Returns the numbers of dropped segments
    /// that the archive does not take now.
    fn remove_strays(&self, disk: &dyn Disk) -> Result<Vec<u64>, JournalError> {
        let mut left = Vec::new();
        for &number in self.torn_off.iter().rev() {
            let path = self.path(number);
            let removed = disk.remove(&path).and_then(|()| disk.sync_dir(&self.dir));
            removed.map_err(|e| JournalError::io("removing", &path, e))?;
        }
        for &number in &self.dropped {
            if let Some(archive) = &self.options.archive
                && self.floor.is_some()
                && self.read_header(number)?.is_some()
            {
                if let Err(error) = archive_segment(disk, &self.dir, archive, number) {
                    tracing::warn!(%error, "a journal segment cannot be archived; trying again");
                    left.push(number);
                }
                continue;
            }
            let path = self.path(number);
            disk.remove(&path).map_err(|e| JournalError::io("removing", &path, e))?;
        }
        disk.sync_dir(&self.dir).map_err(|e| JournalError::io("syncing", &self.dir, e))?;
        Ok(left)
    }

    /// Returns the segment for the new epoch, and its bytes: a prepared one, or a new one, which is
    /// smaller than others where the disk has no room for more. Prepared segments of another size, and
    /// those beyond the number to keep, are removed.
    fn fresh_segment(
        &mut self,
        disk: &dyn Disk,
    ) -> Result<(u64, Arc<dyn File>, u64), JournalError> {
        let full = self.options.segment_bytes;
        let mut usable = Vec::new();
        for &number in &self.spares {
            let path = self.path(number);
            let size = self.open_file(number)?.size();
            let size = size.map_err(|e| JournalError::io("reading", &path, e))?;
            if size == full && usable.len() <= *Options::SPARES.end() {
                usable.push(number);
            } else {
                disk.remove(&path).map_err(|e| JournalError::io("removing", &path, e))?;
            }
        }
        if usable.is_empty() {
            self.max_number += 1;
            self.spares = Vec::new();
            let number = self.max_number;
            let mut size = full;
            loop {
                match prepare_segment(disk, &self.dir, number, size) {
                    Ok(file) => return Ok((number, file, size)),
                    Err(JournalError::NoSpace { .. }) if size / 2 >= LEAST_SEGMENT => size /= 2,
                    Err(error) => return Err(error),
                }
            }
        }
        let first = usable.remove(0);
        self.spares = usable;
        Ok((first, self.open_file(first)?, full))
    }
}

/// Reads the bytes from `start` to `end` and rewrites them in place.
fn rewrite(file: &dyn File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK.min((end - start) as usize)];
    let mut offset = start;
    while offset < end {
        let piece = buffer.len().min((end - offset) as usize);
        file.read_exact_at(&mut buffer[..piece], offset)?;
        file.write_all_at(&mut [IoSlice::new(&buffer[..piece])], offset)?;
        offset += piece as u64;
    }
    Ok(())
}
