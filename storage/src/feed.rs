//! The words of the journal's records on their way to replicas (RFC 15).
//!
//! While the feed is on, each record has a *part for replicas* behind the operations of its shards:
//! the words of its round, and a *mark*, a position of the stream that was known when the record was
//! written. So the stream can be continued after a crash: its end is the mark, and the words of the
//! records behind it. A record without that part was written by somebody who did not feed: the stream
//! ends before it for good.
//!
//! ```text
//! 0xffff u16 | length u64 | form u8 | directory u32 | id (20 bytes)
//!            | lsn u64 | offset u64     the mark: the stream has this many bytes up to that record
//!            | selected u32             the database that the stream has selected there; 0xffffffff: none
//!            | words
//! ```

use crate::commit::{BodyReader, Sealed};
use crate::journal::{CommitPiece, HoldId, Journal, JournalError, Lsn, Recovered};
use crate::words::PlainRemovals;
use anyhow::Result;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Stands in a record's body for a shard.
pub const FEED: u16 = u16::MAX;

/// Length of a stream's id in bytes.
pub const ID_BYTES: usize = 20;

/// The form of words, and of their rendering: the offsets of a stream count rendered bytes, so it
/// ends when a version of the program renders them in another way.
const FORM: u8 = 2;

/// Maximum number of bytes of words behind the last mark that a start reads: a longer stream ends.
const UNMARKED: usize = 256 << 20;

/// Bytes of words that wait to be durable, from which on a sync is asked for.
const UNTAKEN: usize = 8 << 20;

/// Length of the part's content before the words.
const HEAD: usize = 1 + 4 + ID_BYTES + 8 + 8 + 4;

/// Stands for no database.
const NO_DB: u32 = u32::MAX;

/// A position of the stream: the number of its bytes up to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedMark {
    pub lsn: Lsn,
    pub offset: u64,
    /// Database that the stream has selected there.
    pub selected: Option<u32>,
}

/// Words of a record.
pub type RecordWords = (Lsn, Bytes);

#[derive(Debug, Default)]
struct FeedState {
    id: [u8; ID_BYTES],
    mark: FeedMark,
    /// Words of records that were not taken, by lsn.
    appended: BTreeMap<Lsn, Bytes>,
    /// Bytes of them.
    waiting: usize,
    /// The record whose words are taken next; 0: those appended so far belong to no stream.
    next: Lsn,
}

/// A hold on the records from one on, until the journal has more than `max_bytes`.
#[derive(Debug)]
struct FeedHold {
    id: HoldId,
    from: Lsn,
    max_bytes: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Feed {
    is_on: AtomicBool,
    /// Salt of the journal: identifies the data directory.
    directory: u32,
    state: Mutex<FeedState>,
    /// The last record that has rows, while the feed is on: others only tell replicas something.
    last_change: AtomicU64,
    /// Hold on the records of the stream that a start is to find.
    held: Mutex<Option<FeedHold>>,
    /// True if replies wait until replicas confirm what they show.
    is_awaited: AtomicBool,
    /// The last record that replicas have confirmed.
    confirmed: AtomicU64,
    pub plain_removals: Arc<PlainRemovals>,
}

impl Feed {
    /// Creates the feed of a data directory.
    pub fn new(directory: u32) -> Self {
        Self { directory, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if words are wanted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins to gather words for a new stream. [`start`](Self::start) follows once every thread
    /// that appends knows it.
    pub fn turn_on(&self, id: [u8; ID_BYTES]) {
        *self.state() = FeedState { id, ..FeedState::default() };
        self.is_on.store(true, Ordering::SeqCst);
    }

    /// Starts the stream behind a record, at an offset.
    pub fn start(&self, mark: FeedMark) {
        let mut state = self.state();
        state.appended = state.appended.split_off(&(mark.lsn + 1));
        (state.mark, state.next) = (mark, mark.lsn + 1);
        self.last_change.fetch_max(mark.lsn, Ordering::SeqCst);
    }

    /// Returns the last record that has changed something, as far as replicas have to wait for it.
    pub fn last_change(&self) -> Lsn {
        self.last_change.load(Ordering::SeqCst)
    }

    /// Ends the stream.
    pub fn turn_off(&self) {
        self.is_on.store(false, Ordering::SeqCst);
        *self.state() = FeedState::default();
    }

    /// Keeps the journal's records from one on, so that a start finds them, until the journal has more
    /// than `max_bytes`; `None`: no more.
    pub fn keep(&self, journal: &dyn Journal, from: Option<Lsn>, max_bytes: u64) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A start holds the tail without a bound, and the same records are to be held with one then.
        if held.as_ref().map(|held| (held.from, held.max_bytes)) == from.map(|lsn| (lsn, max_bytes))
        {
            return;
        }
        let hold = |from| FeedHold { id: journal.hold(from, max_bytes), from, max_bytes };
        let hold = from.map(hold);
        if let Some(old) = std::mem::replace(&mut *held, hold) {
            journal.release(old.id);
        }
    }

    /// Takes the words of all records up to `durable` in order, once each.
    pub fn take(&self, durable: Lsn) -> Vec<RecordWords> {
        let mut state = self.state();
        let mut taken = Vec::new();
        while state.next != 0 && state.next <= durable {
            let next = state.next;
            // The thread that has appended it is about to bring its words.
            let Some(words) = state.appended.remove(&next) else { break };
            state.waiting = state.waiting.saturating_sub(words.len());
            taken.push((next, words));
            state.next += 1;
        }
        taken
    }

    /// Returns the words of the records behind one that are not taken yet, in order, as far as they are there.
    pub fn untaken(&self, after: Lsn) -> Vec<RecordWords> {
        let state = self.state();
        if state.next == 0 {
            return Vec::new();
        }
        let from = state.next.max(after + 1);
        state.appended.range(from..).map(|(lsn, words)| (*lsn, words.clone())).collect()
    }

    /// Makes replies wait until replicas confirm the records that they show, those behind `from`.
    pub fn await_replicas(&self, from: Lsn) {
        self.confirmed.fetch_max(from, Ordering::SeqCst);
        self.is_awaited.store(true, Ordering::SeqCst);
    }

    /// Lets replies wait for no replica.
    pub fn await_nobody(&self) {
        self.is_awaited.store(false, Ordering::SeqCst);
    }

    /// Notes that replicas have confirmed the records up to one. Returns true if that is new.
    pub fn confirm(&self, lsn: Lsn) -> bool {
        self.confirmed.fetch_max(lsn, Ordering::SeqCst) < lsn
    }

    /// Returns the last record that replies may show, if those up to `durable` are durable.
    #[inline]
    pub fn settled(&self, durable: Lsn) -> Lsn {
        if self.is_awaited.load(Ordering::SeqCst) {
            return durable.min(self.confirmed.load(Ordering::SeqCst));
        }
        durable
    }

    /// Sets the position up to which the stream was taken and rendered.
    pub fn set_mark(&self, mark: FeedMark) {
        self.state().mark = mark;
    }

    /// Returns that position.
    pub fn mark(&self) -> FeedMark {
        self.state().mark
    }

    /// Returns the head of a record's part for replicas, without the words.
    fn head(&self, words: usize) -> Vec<u8> {
        let state = self.state();
        let mut head = Vec::with_capacity(10 + HEAD);
        head.extend_from_slice(&FEED.to_be_bytes());
        head.extend_from_slice(&((HEAD + words) as u64).to_be_bytes());
        head.push(FORM);
        head.extend_from_slice(&self.directory.to_be_bytes());
        head.extend_from_slice(&state.id);
        head.extend_from_slice(&state.mark.lsn.to_be_bytes());
        head.extend_from_slice(&state.mark.offset.to_be_bytes());
        head.extend_from_slice(&state.mark.selected.unwrap_or(NO_DB).to_be_bytes());
        head
    }

    /// Appends a record to the journal, and keeps its words for the stream. `body`: the operations of
    /// the shards.
    pub fn append(
        &self,
        journal: &dyn Journal,
        now_ms: u64,
        sealed: &Sealed,
        body: &[&[u8]],
    ) -> Result<Lsn, JournalError> {
        if !self.is_on() {
            return journal.append(now_ms, &sealed.shards(), body);
        }
        let head = self.head(sealed.words.len());
        let mut parts = body.to_vec();
        parts.extend([&head[..], &sealed.words]);
        let lsn = journal.append(now_ms, &sealed.shards(), &parts)?;
        if !sealed.ops.is_empty() {
            self.last_change.fetch_max(lsn, Ordering::SeqCst);
        }
        let mut state = self.state();
        if self.is_on() && (state.next == 0 || lsn >= state.next) {
            state.appended.insert(lsn, Bytes::copy_from_slice(&sealed.words));
            state.waiting += sealed.words.len();
            if state.waiting > UNTAKEN {
                drop(state);
                journal.request_sync(lsn);
            }
        }
        Ok(lsn)
    }
}

/// The end of a stream that a journal has, to be continued.
#[derive(Clone, Debug)]
pub struct FeedTail {
    pub id: [u8; ID_BYTES],
    /// The last records, in order and without a gap.
    pub records: VecDeque<RecordWords>,
    /// A position that each of them knows: all before it, and none before that of the record before.
    pub marks: VecDeque<FeedMark>,
}

/// A part for replicas, decoded.
struct FeedPart {
    id: [u8; ID_BYTES],
    mark: FeedMark,
    words: Bytes,
}

/// Reads the part for replicas of a record that arrives in pieces, and nothing else of it.
#[derive(Debug, Default)]
struct PartReader {
    body: BodyReader,
    content: Vec<u8>,
    /// True if the record is damaged, or its part too long.
    is_refused: bool,
}

impl PartReader {
    fn take(&mut self, piece: &[u8]) {
        if self.is_refused {
            return;
        }
        let content = &mut self.content;
        let taken = self.body.take(piece, &mut |shard, bytes| {
            if shard == FEED {
                if content.len() + bytes.len() > HEAD + UNMARKED {
                    return None;
                }
                content.extend_from_slice(bytes);
            }
            Some(bytes.len())
        });
        self.is_refused = taken.is_none();
    }

    /// Returns the part behind the last piece; `None`: there is none that this version can continue
    /// for a data directory.
    fn finish(mut self, directory: u32) -> Option<FeedPart> {
        if self.is_refused || !self.body.is_done() || self.content.len() < HEAD {
            return None;
        }
        let head: Vec<u8> = self.content.drain(..HEAD).collect();
        let number = |at: usize| Some(u64::from_be_bytes(*head.get(at..)?.first_chunk()?));
        let owner = u32::from_be_bytes(*head.get(1..)?.first_chunk()?);
        if head[0] != FORM || owner != directory {
            return None;
        }
        let selected = u32::from_be_bytes(*head.get(21 + ID_BYTES..)?.first_chunk()?);
        let selected = (selected != NO_DB).then_some(selected);
        let mark =
            FeedMark { lsn: number(5 + ID_BYTES)?, offset: number(13 + ID_BYTES)?, selected };
        self.content.shrink_to_fit();
        Some(FeedPart { id: *head.get(5..)?.first_chunk()?, mark, words: self.content.into() })
    }
}

impl Feed {
    /// Reads the end of the stream from a recovered journal: the last records, up to `max_bytes` of
    /// words, but all behind the last mark.
    pub(crate) async fn read_tail(
        &self,
        recovery: &Recovered,
        max_bytes: usize,
    ) -> Result<Option<FeedTail>, JournalError> {
        let end = recovery.end();
        // Most journals have no stream, and are not read.
        if end == 0 || read_from(recovery, end, self.directory, max_bytes).await?.is_none() {
            return Ok(None);
        }
        let tail = read_from(recovery, 1, self.directory, max_bytes).await?;
        Ok(tail.filter(FeedTail::is_usable))
    }

    /// Keeps the records of the tail in the journal until the backlog goes beyond them.
    pub(crate) fn keep_tail(&self, journal: &dyn Journal, tail: Option<&FeedTail>) {
        if let Some((first, _)) = tail.and_then(|tail| tail.records.front()) {
            self.keep(journal, Some(*first), u64::MAX);
        }
    }

    /// Continues the stream of the tail with the records that are appended from now on. Its offset
    /// follows when the tail is rendered.
    pub(crate) fn go_on(&self, journal: &dyn Journal, tail: Option<&FeedTail>) {
        if let Some(tail) = tail {
            self.turn_on(tail.id);
            self.start(FeedMark { lsn: journal.end(), ..FeedMark::default() });
        }
    }
}

async fn read_from(
    recovery: &Recovered,
    from: Lsn,
    directory: u32,
    max_bytes: usize,
) -> Result<Option<FeedTail>, JournalError> {
    let (mut end, mut reader) = (None::<TailEnd>, PartReader::default());
    let mut pieces = recovery.pieces(from);
    while let Some(CommitPiece { record, first, last }) = pieces.next().await? {
        if first {
            reader = PartReader::default();
        }
        reader.take(&record.body);
        if !last {
            continue;
        }
        let Some(part) = std::mem::take(&mut reader).finish(directory) else {
            end = None;
            continue;
        };
        let kept = match &mut end {
            Some(end) if end.tail.id == part.id => end,
            other => other.insert(TailEnd::new(part.id)),
        };
        kept.push(record.lsn, part, max_bytes);
    }
    Ok(end.map(|end| end.tail))
}

/// The end of a stream, as its records are read.
struct TailEnd {
    tail: FeedTail,
    /// Bytes of words, and of those up to the mark, and the number of these records.
    bytes: usize,
    marked_bytes: usize,
    marked: usize,
}

impl TailEnd {
    fn new(id: [u8; ID_BYTES]) -> Self {
        let tail = FeedTail { id, records: VecDeque::new(), marks: VecDeque::new() };
        Self { tail, bytes: 0, marked_bytes: 0, marked: 0 }
    }

    /// Appends a record. The words up to the mark have at most `max_bytes`.
    fn push(&mut self, lsn: Lsn, part: FeedPart, max_bytes: usize) {
        let Self { tail: FeedTail { records, marks, .. }, bytes, marked_bytes, marked } = self;
        *bytes += part.words.len();
        let mark = part.mark;
        marks.push_back(mark);
        records.push_back((lsn, part.words));
        while let Some((lsn, words)) = records.get(*marked)
            && *lsn <= mark.lsn
        {
            *marked_bytes += words.len();
            *marked += 1;
        }
        while *marked_bytes > max_bytes || *bytes > UNMARKED {
            let Some((lsn, words)) = records.pop_front() else { return };
            marks.pop_front();
            *bytes -= words.len();
            if lsn <= mark.lsn {
                *marked_bytes -= words.len();
                *marked -= 1;
            }
        }
    }
}

impl FeedTail {
    /// Returns the first known position from which on the records are there; `None`: there is none.
    pub fn begin(&self) -> Option<FeedMark> {
        let (first, _) = self.records.front()?;
        self.marks.iter().find(|mark| mark.lsn != 0 && mark.lsn + 1 >= *first).copied()
    }

    /// Returns the last known position.
    pub fn mark(&self) -> Option<FeedMark> {
        self.marks.back().copied()
    }

    /// Returns true if it is known where the records are in the stream.
    fn is_usable(&self) -> bool {
        self.begin().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{LocalJournal, Options, SyncMode};
    use std::time::{Duration, Instant};

    fn sealed(words: &[u8]) -> Sealed {
        Sealed { words: words.to_vec(), ..Sealed::default() }
    }

    fn body(feed: &Feed, words: &[u8]) -> Bytes {
        let sealed = sealed(words);
        let head = feed.head(words.len());
        [&sealed.body()[..], &head, words].concat().into()
    }

    #[test]
    fn a_part_roundtrips_and_belongs_to_its_directory() {
        let feed = Feed::new(7);
        feed.turn_on([3; ID_BYTES]);
        let mark = FeedMark { lsn: 5, offset: 100, selected: Some(9) };
        feed.start(mark);
        let bytes = body(&feed, b"words");
        let read = |pieces: &[&[u8]], directory: u32| {
            let mut reader = PartReader::default();
            pieces.iter().for_each(|piece| reader.take(piece));
            reader.finish(directory)
        };
        for cut in 0..=bytes.len() {
            let (one, other) = bytes.split_at(cut);
            let part = read(&[one, other], 7).unwrap();
            assert_eq!((part.id, &part.words[..]), ([3; ID_BYTES], &b"words"[..]));
            assert_eq!(part.mark, mark);
            if cut < bytes.len() {
                assert!(read(&[one], 7).is_none(), "cut at {cut}");
            }
        }
        assert!(read(&[&bytes], 8).is_none(), "it is a copy of another directory");
    }

    #[test]
    fn the_part_of_a_record_is_read_without_its_operations() {
        let feed = Feed::new(7);
        feed.turn_on([3; ID_BYTES]);
        let ops = [&3_u16.to_be_bytes()[..], &(64_u64 << 20).to_be_bytes()].concat();
        let mut reader = PartReader::default();
        reader.take(&ops);
        for _ in 0..64 {
            reader.take(&vec![0; 1 << 20]);
            assert!(reader.content.capacity() == 0);
        }
        reader.take(&body(&feed, b"words"));
        assert_eq!(&reader.finish(7).unwrap().words[..], b"words");
    }

    #[test]
    fn a_tail_has_the_words_behind_its_mark_whatever_their_size() {
        let mut end = TailEnd::new([3; ID_BYTES]);
        let mut push = |lsn: Lsn, marked: Lsn| {
            let mark = FeedMark { lsn: marked, offset: 1, selected: None };
            let part = FeedPart { id: [3; ID_BYTES], mark, words: Bytes::from_static(b"words") };
            end.push(lsn, part, 12);
            (end.tail.records[0].0, end.tail.records.len(), end.tail.is_usable())
        };
        assert_eq!(push(5, 4), (5, 1, true));
        // 25 bytes, of which 10 are up to the mark.
        assert_eq!([6, 7, 8, 9].map(|lsn| push(lsn, 6))[3], (5, 5, true));
        assert_eq!(push(10, 8), (7, 4, true));
        assert_eq!(push(11, 10), (9, 3, true));
    }

    #[test]
    fn the_tail_of_a_start_is_held_with_a_bound_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let (segment_bytes, mode) = (Options::MIN_SEGMENT, SyncMode::No);
        let options = Options { segment_bytes, mode, ..Options::default() };
        let recovery = LocalJournal::recover(dir.path(), options).unwrap();
        let journal = recovery.start(0, 0).unwrap();
        let flush = |commits: u64| {
            for _ in 0..commits {
                journal.append(0, &[0], &[&[7; 900]]).unwrap();
            }
            journal.sync_now().unwrap();
            journal.flushed(0, journal.end());
        };
        let feed = Feed::new(7);
        flush(5);
        feed.keep(&*journal, Some(5), u64::MAX);
        flush(40);
        assert!(journal.oldest() <= 5, "it is held without a bound");
        feed.keep(&*journal, Some(5), 1);
        flush(40);
        let begun = Instant::now();
        while journal.oldest() <= 5 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is still held");
            std::thread::yield_now();
        }
    }

    #[test]
    fn words_are_taken_in_order_and_only_when_they_are_durable() {
        let feed = Feed::new(7);
        feed.turn_on([3; ID_BYTES]);
        let bring = |lsn: Lsn| feed.state().appended.insert(lsn, Bytes::from(vec![lsn as u8]));
        bring(4);
        bring(6);
        feed.start(FeedMark { lsn: 4, ..FeedMark::default() });
        bring(7);
        let lsns = |durable| feed.take(durable).into_iter().map(|(lsn, _)| lsn).collect::<Vec<_>>();
        assert_eq!(lsns(9), [0; 0], "the words of record 5 are missing");
        bring(5);
        assert_eq!(lsns(6), [5, 6]);
        assert_eq!(lsns(6), [0; 0]);
        assert_eq!(lsns(9), [7]);
    }
}
