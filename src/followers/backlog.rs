//! The last bytes of the stream for replicas, in memory.

use bytes::Bytes;
use flagstone_storage::feed::FeedMark;
use flagstone_storage::journal::Lsn;
use std::collections::VecDeque;

/// A part of the stream: the words of some records.
#[derive(Debug)]
struct StreamBlock {
    /// Offset of its first byte.
    start: u64,
    bytes: Bytes,
    /// The last record of which it has words.
    lsn: Lsn,
}

impl StreamBlock {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Backlog {
    blocks: VecDeque<StreamBlock>,
    /// Offsets behind the records that have words in the blocks, in order, with the databases that are
    /// selected there; before them the record behind which the blocks begin.
    ends: VecDeque<(Lsn, u64, Option<u32>)>,
    /// Number of bytes of the whole stream, and its last record.
    end: u64,
    lsn: Lsn,
}

/// A record in the stream: its lsn, the length of its words, and the database that is selected behind
/// them.
pub(super) type RenderedRecord = (Lsn, usize, Option<u32>);

impl Backlog {
    /// Creates the backlog of a stream that has so many bytes up to a record, and has selected a
    /// database there.
    pub fn new(end: u64, lsn: Lsn, selected: Option<u32>) -> Self {
        // A data set may be of the record behind which the stream begins.
        Self { blocks: VecDeque::new(), ends: VecDeque::from([(lsn, end, selected)]), end, lsn }
    }

    /// Creates the backlog of such a stream whose last bytes are there.
    pub fn with_bytes(end: u64, lsn: Lsn, selected: Option<u32>, bytes: Bytes) -> Self {
        let mut this = Self::new(end, lsn, selected);
        let start = end.saturating_sub(bytes.len() as u64);
        if !bytes.is_empty() {
            this.blocks.push_back(StreamBlock { start, bytes, lsn });
        }
        this
    }

    /// Appends the words of the next records: the records, then all words.
    pub fn push(&mut self, records: &[RenderedRecord], bytes: Bytes) {
        let (start, mut with_words) = (self.end, self.lsn);
        for &(lsn, len, selected) in records {
            self.end += len as u64;
            self.lsn = lsn;
            if len > 0 || self.selected() != selected {
                with_words = lsn;
                self.ends.push_back((lsn, self.end, selected));
            }
        }
        debug_assert_eq!(
            self.end,
            start + bytes.len() as u64,
            "the words are those of the records"
        );
        if !bytes.is_empty() {
            self.blocks.push_back(StreamBlock { start, bytes, lsn: with_words });
        }
    }

    /// Notes that the records up to one have no words.
    pub fn advance(&mut self, lsn: Lsn) {
        self.lsn = self.lsn.max(lsn);
    }

    /// Returns a record from which on a start would find all words that are there.
    pub fn first_lsn(&self) -> Lsn {
        self.ends.front().map_or(self.lsn, |(lsn, ..)| *lsn)
    }

    /// Returns the position of the end.
    pub fn mark(&self) -> FeedMark {
        FeedMark { lsn: self.lsn, offset: self.end, selected: self.selected() }
    }

    /// Returns the database that is selected at the end.
    pub fn selected(&self) -> Option<u32> {
        self.ends.back().and_then(|(.., selected)| *selected)
    }

    /// Returns the last database that is known to be selected at a record.
    pub fn selected_before(&self, lsn: Lsn) -> Option<u32> {
        let at = self.ends.partition_point(|(other, ..)| *other <= lsn);
        self.ends.iter().take(at).rev().find_map(|(.., selected)| *selected)
    }

    /// Returns the number of bytes of the stream.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the last record whose words are in the stream.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Returns the offset of the first byte that is there.
    pub fn first(&self) -> u64 {
        self.blocks.front().map_or(self.end, |block| block.start)
    }

    /// Returns the offset behind a record, and the database that is selected there, if the words of the
    /// record are there, or the stream or its part in memory begins behind it.
    pub fn behind(&self, lsn: Lsn) -> Option<(u64, Option<u32>)> {
        if lsn > self.lsn {
            return None;
        }
        let at = self.ends.partition_point(|(other, ..)| *other <= lsn);
        self.ends.get(at.checked_sub(1)?).map(|&(_, end, selected)| (end, selected))
    }

    /// Returns the offset behind a record alone.
    pub fn offset_behind(&self, lsn: Lsn) -> Option<u64> {
        self.behind(lsn).map(|(offset, _)| offset)
    }

    /// Returns the last record whose words are within so many bytes of the stream; `None` if that is not
    /// known any more.
    pub fn record_at(&self, offset: u64) -> Option<Lsn> {
        if offset >= self.end {
            return Some(self.lsn);
        }
        let at = self.ends.partition_point(|(_, end, _)| *end <= offset);
        // Records up to the next one with words have none.
        (at > 0).then(|| self.ends[at].0 - 1)
    }

    /// Returns some bytes from an offset on, none at the end; `None` if they are not there any more.
    pub fn read(&self, from: u64) -> Option<Bytes> {
        if from == self.end {
            return Some(Bytes::new());
        }
        let at = self.blocks.partition_point(|block| block.end() <= from);
        let block = self.blocks.get(at).filter(|block| block.start <= from)?;
        Some(block.bytes.slice((from - block.start) as usize..))
    }

    /// Returns all bytes that are there.
    pub fn bytes(&self) -> Vec<u8> {
        self.blocks.iter().flat_map(|block| block.bytes.iter().copied()).collect()
    }

    /// Drops bytes from the front: at least `kept` stay, and all from `needed` on.
    pub fn trim(&mut self, kept: u64, needed: u64) {
        let mut lsn = 0;
        while let Some(block) = self.blocks.front()
            && self.end - block.end() >= kept
            && block.end() <= needed
        {
            lsn = block.lsn;
            self.blocks.pop_front();
        }
        let from = self.ends.partition_point(|(other, ..)| *other < lsn);
        // The offset behind the last record that is gone stays known.
        self.ends.drain(..from);
    }

    /// Returns the memory of the bytes and of their index.
    pub fn memory(&self) -> u64 {
        self.end - self.first() + (self.ends.len() * size_of::<(Lsn, u64, Option<u32>)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backlog() -> Backlog {
        let mut backlog = Backlog::new(100, 5, None);
        backlog.push(&[(6, 3, None), (7, 0, None), (8, 2, None)], Bytes::from_static(b"abcde"));
        backlog.push(&[(9, 4, Some(3))], Bytes::from_static(b"fghi"));
        backlog
    }

    #[test]
    fn bytes_are_found_by_offset() {
        let backlog = backlog();
        assert_eq!((backlog.first(), backlog.end(), backlog.lsn()), (100, 109, 9));
        assert_eq!(backlog.read(100).as_deref(), Some(&b"abcde"[..]));
        assert_eq!(backlog.read(103).as_deref(), Some(&b"de"[..]));
        assert_eq!(backlog.read(105).as_deref(), Some(&b"fghi"[..]));
        assert_eq!(backlog.read(109).as_deref(), Some(&b""[..]));
        assert_eq!((backlog.read(99), backlog.read(110)), (None, None));
    }

    #[test]
    fn the_offset_behind_a_record_is_known_while_its_words_are_there() {
        let mut backlog = backlog();
        let behind = |backlog: &Backlog| [5, 6, 7, 8, 9, 10].map(|lsn| backlog.offset_behind(lsn));
        let known = [Some(100), Some(103), Some(103), Some(105), Some(109), None];
        assert_eq!(behind(&backlog), known);
        backlog.trim(4, u64::MAX);
        assert_eq!((backlog.first(), backlog.end()), (105, 109));
        assert_eq!(behind(&backlog)[3..], known[3..]);
        let mut new = Backlog::new(7, 3, Some(1));
        assert_eq!([2, 3, 4].map(|lsn| new.offset_behind(lsn)), [None, Some(7), None]);
        new.push(&[(4, 2, Some(1))], Bytes::from_static(b"ab"));
        assert_eq!([2, 3, 4].map(|lsn| new.offset_behind(lsn)), [None, Some(7), Some(9)]);
    }

    #[test]
    fn the_selected_database_is_known_behind_each_record() {
        let mut backlog = backlog();
        let at = |backlog: &Backlog| [8, 9].map(|lsn| backlog.behind(lsn).unwrap().1);
        assert_eq!((at(&backlog), backlog.selected()), ([None, Some(3)], Some(3)));
        backlog.push(&[(10, 0, None)], Bytes::new());
        assert_eq!((backlog.behind(10), backlog.selected()), (Some((109, None)), None));
    }

    #[test]
    fn the_last_record_within_some_bytes_is_known() {
        let mut backlog = backlog();
        let at = |backlog: &Backlog| [99, 100, 103, 104, 105, 109].map(|at| backlog.record_at(at));
        let known = [None, Some(5), Some(7), Some(7), Some(8), Some(9)];
        assert_eq!(at(&backlog), known);
        backlog.advance(12);
        assert_eq!(backlog.record_at(109), Some(12), "the records behind have no words");
        backlog.trim(4, u64::MAX);
        assert_eq!(at(&backlog)[3..], [None, Some(8), Some(12)]);
    }

    #[test]
    fn a_stream_may_begin_with_bytes_of_another_one() {
        let mut backlog = Backlog::with_bytes(100, 5, None, Bytes::from_static(b"former"));
        backlog.push(&[(6, 2, None)], Bytes::from_static(b"ab"));
        assert_eq!((backlog.first(), backlog.end()), (94, 102));
        assert_eq!(backlog.read(98).as_deref(), Some(&b"er"[..]));
        assert_eq!([4, 5, 6].map(|lsn| backlog.offset_behind(lsn)), [None, Some(100), Some(102)]);
        backlog.trim(0, 100);
        assert_eq!((backlog.first(), backlog.offset_behind(5)), (100, Some(100)));
    }

    #[test]
    fn what_a_replica_needs_is_kept() {
        let mut backlog = backlog();
        backlog.trim(0, 104);
        assert_eq!(backlog.first(), 100);
        backlog.trim(5, u64::MAX);
        assert_eq!(backlog.first(), 100, "so many bytes stay in any case");
        backlog.trim(0, 105);
        assert_eq!(backlog.first(), 105);
    }
}
