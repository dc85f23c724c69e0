//! Replicas of this server: the stream that they are sent, and how far each of them is. The
//! connections that serve them are `crate::replication`.

mod acks;
mod backlog;
mod failover;
mod follower;
mod render;

pub use acks::{Acks, LeaseQuestion, REPLICA_LEASE, max_lag_s, promised_for};
pub use backlog::Backlog;
pub use failover::{Failover, FailoverStep, FailoverWish};
pub use follower::{Follower, FollowerFacts, FollowerState, ReplicaWish, SyncWish};
pub use render::render;

use crate::config::ReplAck;
use crate::replica::FollowedEnd;

use bytes::Bytes;
use flagstone_storage::encoding::{FormerStream, MAX_FORMERS};
use flagstone_storage::feed::{Feed, FeedMark, FeedTail, ID_BYTES};
use flagstone_storage::journal::Lsn;
use std::fmt::Write;
use std::mem::take;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// Bytes from which on a part of the backlog gets no further record: it is dropped as a whole.
const BLOCK: usize = 256 << 10;

/// The stream for replicas.
#[derive(Debug)]
struct OutStream {
    /// Replication id: 40 hexadecimal digits.
    id: String,
    backlog: Backlog,
    /// The streams that this one continues, the last one first: up to their ends here, all are the same.
    formers: Vec<FormerStream>,
    /// Time since which no replica has been there, in ms since the Unix epoch; 0 if one is.
    alone_since_ms: u64,
    /// The last known position behind records that are not durable, and not in the backlog yet.
    ahead: FeedMark,
}

/// The position of the stream behind a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordPosition {
    /// The stream's id, its offset there, and the database that is selected.
    At(String, u64, u32),
    /// The words of the record are not in the stream yet.
    Later,
    /// There is no stream, or what it has begins behind the record.
    Never,
}

/// Figures of the stream, for INFO.
#[derive(Clone, Debug, Default)]
pub struct StreamFigures {
    pub id: String,
    pub first: u64,
    pub end: u64,
    pub memory: u64,
    /// The streams that it continues, the last one first.
    pub formers: Vec<FormerStream>,
}

/// Replicas of this server.
#[derive(Debug)]
pub struct Followers {
    /// Words of the journal's records.
    pub feed: Arc<Feed>,
    /// Replies that wait for replicas.
    pub acks: Arc<Acks>,
    stream: Mutex<Option<OutStream>>,
    all: Mutex<Vec<Arc<Follower>>>,
    /// End of the stream; it changes when the stream grows or ends.
    grown: watch::Sender<u64>,
    /// Rings when a replica has acknowledged something, or has come or gone.
    pub acknowledged: Notify,
    /// An exchange of roles with a replica.
    pub failover: Failover,
    /// Serialises the begin and the end of streams.
    pub turn: tokio::sync::Mutex<()>,
    /// Serialises the making of data sets.
    pub copying: tokio::sync::Mutex<()>,
    /// Full and partial synchronisations since the start, and refused partial ones.
    pub syncs: [AtomicU64; 3],
    /// Bytes that replicas were sent since the start.
    pub bytes_out: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns an id as text.
fn text_of(id: &[u8; ID_BYTES]) -> String {
    let mut text = String::with_capacity(2 * ID_BYTES);
    for byte in id {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the backlog that the records of an earlier process make; `None`: they are damaged, or not where
/// they should be.
fn rendered(tail: &FeedTail) -> Option<Backlog> {
    let (begin, mark) = (tail.begin()?, tail.mark()?);
    let mut selected = begin.selected;
    let mut backlog = Backlog::new(begin.offset, begin.lsn, selected);
    let (mut records, mut bytes) = (Vec::new(), Vec::new());
    for (lsn, words) in tail.records.iter().filter(|(lsn, _)| *lsn > begin.lsn) {
        let from = bytes.len();
        render(words, &mut selected, &mut bytes)?;
        records.push((*lsn, bytes.len() - from, selected));
    }
    // One part, which stays as a whole until the stream has grown: replicas may not be there yet.
    backlog.push(&records, bytes.into());
    (backlog.behind(mark.lsn)? == (mark.offset, mark.selected)).then_some(backlog)
}

impl Followers {
    /// Creates the state of a server with this feed and no replicas.
    pub fn new(feed: Arc<Feed>) -> Self {
        Self {
            acks: Arc::new(Acks::new(feed.clone())),
            feed,
            stream: Mutex::default(),
            all: Mutex::default(),
            grown: watch::Sender::new(0),
            acknowledged: Notify::new(),
            failover: Failover::default(),
            turn: tokio::sync::Mutex::default(),
            copying: tokio::sync::Mutex::default(),
            syncs: Default::default(),
            bytes_out: AtomicU64::new(0),
        }
    }

    // ---- the stream ----------------------------------------------------------------------------

    /// Begins a stream behind a record. `followed`: the end of the stream that it continues.
    pub fn begin(&self, id: &[u8; ID_BYTES], lsn: Lsn, followed: Option<FollowedEnd>, now_ms: u64) {
        let (mut end, mut selected, mut bytes, mut formers) = (0, None, Vec::new(), Vec::new());
        if let Some(followed) = followed {
            (end, selected, bytes) = (followed.stream.offset, Some(followed.db), followed.bytes);
            formers = [vec![followed.stream], followed.formers].concat();
            // They are stored behind this one.
            formers.truncate(MAX_FORMERS - 1);
        }
        let backlog = Backlog::with_bytes(end, lsn, selected, bytes.into());
        let (id, alone_since_ms) = (text_of(id), now_ms.max(1));
        *lock(&self.stream) =
            Some(OutStream { id, backlog, formers, alone_since_ms, ahead: FeedMark::default() });
        self.grown.send_replace(end);
        // Words are taken from now on, and there is a stream that takes them.
        self.feed.start(FeedMark { lsn, offset: end, selected });
    }

    /// Continues the stream of an earlier process. `known`: the streams that were stored, this one first, if
    /// it is theirs. Returns false if that is impossible: then it has ended.
    pub fn resume(&self, tail: &FeedTail, known: &[FormerStream], now_ms: u64) -> bool {
        let Some(mut backlog) = rendered(tail) else {
            self.end();
            return false;
        };
        // The next record may have a greater number than the one behind the last.
        backlog.advance(self.feed.mark().lsn);
        self.feed.set_mark(backlog.mark());
        self.grown.send_replace(backlog.end());
        let id = text_of(&tail.id);
        let formers = match known.split_first() {
            Some((own, formers)) if *own.id == *id.as_bytes() => formers.to_vec(),
            _ => Vec::new(),
        };
        let alone_since_ms = now_ms.max(1);
        *lock(&self.stream) =
            Some(OutStream { id, backlog, formers, alone_since_ms, ahead: FeedMark::default() });
        true
    }

    /// Ends the stream. Replicas that are there are to be disconnected.
    pub fn end(&self) {
        self.feed.turn_off();
        *lock(&self.stream) = None;
        self.grown.send_replace(0);
    }

    /// Takes the words of all durable records into the stream. `kept`: bytes that stay in memory.
    pub fn take_durable(&self, durable: Lsn, kept: u64) {
        // No other stream begins between the taking and the end of the rendering.
        let mut guard = lock(&self.stream);
        let Some(stream) = guard.as_mut() else { return };
        let mut selected = stream.backlog.selected();
        let (mut blocks, mut bytes, mut records) = (Vec::new(), Vec::new(), Vec::new());
        for (lsn, words) in self.feed.take(durable) {
            let from = bytes.len();
            if render(&words, &mut selected, &mut bytes).is_none() {
                tracing::error!(
                    lsn,
                    "the words of a record are damaged: the stream for replicas ends"
                );
                drop(guard);
                return self.end();
            }
            records.push((lsn, bytes.len() - from, selected));
            if bytes.len() >= BLOCK {
                blocks.push((take(&mut records), Bytes::from(take(&mut bytes))));
            }
        }
        blocks.push((records, bytes.into()));
        // Needs change under the same lock.
        let needed = lock(&self.all).iter().map(|follower| follower.needs()).min();
        if blocks.iter().any(|(records, _)| !records.is_empty()) {
            for (records, bytes) in blocks {
                stream.backlog.push(&records, bytes);
            }
            let mark = stream.backlog.mark();
            self.feed.set_mark(mark);
            self.grown.send_replace(mark.offset);
        }
        stream.backlog.trim(kept, needed.unwrap_or(u64::MAX));
    }

    /// Returns the receiver of the stream's end.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// Returns bytes of a stream from an offset on; `None` if they are not in memory any more.
    pub fn read(&self, id: &str, from: u64) -> Option<Bytes> {
        let stream = lock(&self.stream);
        stream.as_ref().filter(|stream| stream.id == id)?.backlog.read(from)
    }

    /// Returns the position behind a record.
    pub fn position_behind(&self, lsn: Lsn) -> RecordPosition {
        let stream = lock(&self.stream);
        let Some(OutStream { id, backlog, .. }) = stream.as_ref() else {
            return RecordPosition::Never;
        };
        match backlog.behind(lsn) {
            Some((offset, selected)) => {
                let selected = selected.or_else(|| backlog.selected_before(lsn));
                RecordPosition::At(id.clone(), offset, selected.unwrap_or_default())
            }
            None if lsn > backlog.lsn() => RecordPosition::Later,
            None => RecordPosition::Never,
        }
    }

    /// Waits until the words of a record are in the stream, and returns the stream's id, its offset
    /// behind them, and the database that is selected there; `None` if they will never be: there is no stream, or it begins behind the record.
    pub async fn reached(&self, lsn: Lsn) -> Option<(String, u64, u32)> {
        // It changes whenever words are taken, and when a stream begins or ends.
        let mut grown = self.grown.subscribe();
        loop {
            match self.position_behind(lsn) {
                RecordPosition::At(id, offset, db) => return Some((id, offset, db)),
                RecordPosition::Never => return None,
                RecordPosition::Later => grown.changed().await.ok()?,
            }
        }
    }

    /// Returns the number of bytes that a replica with all records up to an lsn has, at most: more may
    /// be counted than there are. `None`: the words of the record are not in the stream yet.
    pub fn offset_of(&self, lsn: Lsn) -> Option<u64> {
        let stream = lock(&self.stream);
        let backlog = &stream.as_ref()?.backlog;
        let is_there = backlog.lsn() >= lsn;
        is_there.then(|| backlog.offset_behind(lsn).unwrap_or(backlog.end()))
    }

    /// Returns the first record that a start would need to have the same backlog.
    pub fn first_lsn(&self) -> Option<Lsn> {
        Some(lock(&self.stream).as_ref()?.backlog.first_lsn())
    }

    /// Returns the figures of the stream, if there is one.
    pub fn figures(&self) -> Option<StreamFigures> {
        let stream = lock(&self.stream);
        let OutStream { id, backlog, formers, .. } = stream.as_ref()?;
        let (first, end, memory) = (backlog.first(), backlog.end(), backlog.memory());
        let (id, formers) = (id.clone(), formers.clone());
        Some(StreamFigures { id, first, end, memory, formers })
    }

    /// Returns the number of bytes that the stream has once all that was acknowledged is durable: replicas that
    /// have fewer lack a write that somebody may know of.
    pub fn acknowledged_end(&self) -> Option<u64> {
        let mut stream = lock(&self.stream);
        let stream = stream.as_mut()?;
        let taken = stream.backlog.mark();
        let mut ahead = if stream.ahead.lsn > taken.lsn { stream.ahead } else { taken };
        let (mut end, mut is_next, mut bytes) = (ahead, true, Vec::new());
        for (lsn, words) in self.feed.untaken(ahead.lsn) {
            bytes.clear();
            // Damaged words end the stream when they are taken.
            let _ = render(&words, &mut end.selected, &mut bytes);
            end.offset += bytes.len() as u64;
            // The words of a record before may come later.
            is_next &= lsn == end.lsn + 1;
            end.lsn = lsn;
            if is_next {
                ahead = end;
            }
        }
        stream.ahead = ahead;
        Some(end.offset)
    }

    /// Returns the memory in bytes of the stream up to the size of the backlog, and that beyond it, which
    /// replicas that are behind need.
    pub fn memory(&self, backlog_size: u64) -> (u64, u64) {
        let memory = lock(&self.stream).as_ref().map_or(0, |stream| stream.backlog.memory());
        let backlog = if self.all().is_empty() { memory } else { memory.min(backlog_size) };
        (backlog, memory - backlog)
    }

    /// Returns the bytes of the stream that are in memory, and the offset of the first.
    pub fn held(&self) -> Option<(u64, Vec<u8>)> {
        let stream = lock(&self.stream);
        let backlog = &stream.as_ref()?.backlog;
        Some((backlog.first(), backlog.bytes()))
    }

    /// Returns the id of the stream with which a replica can go on that has so many bytes of a stream:
    /// then the bytes behind them stay in memory for it.
    pub fn continued(&self, id: &[u8], offset: u64, follower: &Follower) -> Option<String> {
        let stream = lock(&self.stream);
        let OutStream { id: own, backlog, formers, .. } = stream.as_ref()?;
        let is_former = |former: &FormerStream| *former.id == *id && offset <= former.offset;
        let is_known = own.as_bytes() == id || formers.iter().any(is_former);
        if !is_known || !(backlog.first()..=backlog.end()).contains(&offset) {
            return None;
        }
        follower.set_needs(offset);
        Some(own.clone())
    }

    /// Makes the bytes behind the present end of the stream stay in memory for a replica.
    pub fn keep_for(&self, follower: &Follower) {
        let stream = lock(&self.stream);
        follower.set_needs(stream.as_ref().map_or(0, |stream| stream.backlog.end()));
    }

    /// Returns how long no replica has been there, in ms, while there is a stream; a stream at hand
    /// with replicas is never alone.
    pub fn alone_ms(&self, now_ms: u64) -> Option<u64> {
        let is_alone = lock(&self.all).is_empty();
        let mut stream = lock(&self.stream);
        let stream = stream.as_mut()?;
        match (is_alone, stream.alone_since_ms) {
            (false, _) => {
                stream.alone_since_ms = 0;
                None
            }
            (true, 0) => {
                stream.alone_since_ms = now_ms.max(1);
                None
            }
            (true, since_ms) => Some(now_ms.saturating_sub(since_ms)),
        }
    }

    // ---- replicas ------------------------------------------------------------------------------

    /// Returns all replicas, in the order in which they came.
    pub fn all(&self) -> Vec<Arc<Follower>> {
        lock(&self.all).clone()
    }

    /// Adds a replica.
    pub fn join(&self, follower: Arc<Follower>) {
        lock(&self.all).push(follower);
        self.acknowledged.notify_waiters();
    }

    /// Removes a replica.
    pub fn leave(&self, client: u64) {
        lock(&self.all).retain(|follower| follower.client != client);
        self.acknowledged.notify_waiters();
    }

    /// Returns the number of replicas that have acknowledged so many bytes of the stream, or have
    /// stored them (`is_stored`).
    pub fn count(&self, offset: u64, is_stored: bool) -> usize {
        let has = |follower: &&Arc<Follower>| follower.has(offset, is_stored);
        lock(&self.all).iter().filter(has).count()
    }

    /// Settles the records that enough replicas have confirmed, and renews the lease that they give.
    pub fn confirm(&self) {
        if !self.acks.is_active() {
            return;
        }
        let rule @ (level, needed) = self.acks.rule();
        let is_stored = level == ReplAck::Sync;
        let all = self.all();
        let offset = Acks::common(needed, &all, |follower| follower.reached(is_stored));
        let stream = lock(&self.stream);
        let record = stream.as_ref().and_then(|stream| stream.backlog.record_at(offset));
        drop(stream);
        // Nobody has confirmed the bytes before the first one.
        if let Some(lsn) = record.filter(|_| offset > 0) {
            self.acks.confirm(rule, lsn);
        }
        self.acks.renew(Acks::common(needed, &all, Follower::answered));
    }

    /// Returns true if a replica is sent the stream.
    pub fn has_online(&self) -> bool {
        lock(&self.all).iter().any(|follower| follower.state() == FollowerState::Online)
    }

    /// Returns true if a replica that is sent the stream was not sent all of it.
    pub fn has_rest(&self) -> bool {
        let end = self.figures().map_or(0, |figures| figures.end);
        let all = lock(&self.all);
        let mut online = all.iter().filter(|follower| follower.state() == FollowerState::Online);
        online.any(|follower| follower.needs() < end)
    }

    /// Returns true if a replica has to be asked for its position: it does not tell by itself.
    pub fn must_ask(&self) -> bool {
        let all = lock(&self.all);
        let mut online = all.iter().filter(|follower| follower.state() == FollowerState::Online);
        online.any(|follower| follower.answered() == 0)
    }

    /// Returns the number of replicas that follow with at most so many seconds of lag.
    pub fn good(&self, max_lag_s: u64, now_ms: u64) -> usize {
        let is_good = |follower: &&Arc<Follower>| follower.is_good(max_lag_s, now_ms);
        lock(&self.all).iter().filter(is_good).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::words::RoundWords;

    fn words(value: &[u8]) -> Bytes {
        let mut words = RoundWords::default();
        words.want(true);
        words.command(0, [b"set", &b"k"[..], value].into_iter());
        words.into_bytes().into()
    }

    #[test]
    fn the_stream_of_an_earlier_process_goes_on_at_the_same_offset() {
        let mut one = Vec::new();
        render(&words(b"1"), &mut Some(0), &mut one).unwrap();
        let len = one.len() as u64;
        let records = (6..10).map(|lsn| (lsn, words(b"1"))).collect();
        let mark = |lsn| FeedMark { lsn, offset: 1000 + lsn * len - 8 * len, selected: Some(0) };
        // The first record knew a position only that is not there any more.
        let marks = [4, 6, 6, 8].map(mark).into();
        let tail = FeedTail { id: [0xab; ID_BYTES], records, marks };
        let followers = Followers::new(Arc::default());
        let known = |id: String| {
            let own = FormerStream { id: id.into_bytes().into(), offset: u64::MAX };
            [own, FormerStream { id: b"former"[..].into(), offset: 3 }]
        };
        assert!(followers.resume(&tail, &known("another".to_owned()), 5));
        assert_eq!(followers.figures().unwrap().formers, []);
        assert!(followers.resume(&tail, &known("ab".repeat(ID_BYTES)), 5));
        assert_eq!(followers.figures().unwrap().formers, known(String::new())[1..]);
        let figures = followers.figures().unwrap();
        assert_eq!((figures.first, figures.end), (1000 - 2 * len, 1000 + len));
        assert_eq!(figures.id, "ab".repeat(ID_BYTES));
        let follower = Follower::new(1, FollowerFacts::default(), 0);
        let goes_on = |id: &[u8], offset| followers.continued(id, offset, &follower).is_some();
        assert!(goes_on(figures.id.as_bytes(), 1000));
        assert_eq!(follower.needs(), 1000);
        assert!(!goes_on(figures.id.as_bytes(), 1001 + len) && !goes_on(b"other", 1000));
        assert_eq!(followers.read(&figures.id, 1000).unwrap(), one);
        assert!(followers.read("another", 1000).is_none());
        let behind = |lsn| followers.position_behind(lsn);
        let at = |offset| RecordPosition::At(figures.id.clone(), offset, 0);
        assert_eq!([6, 9].map(behind), [at(1000 - 2 * len), at(1000 + len)]);
        assert_eq!([5, 10].map(behind), [RecordPosition::Never, RecordPosition::Later]);
        for wrong in [
            FeedMark { offset: 1, ..mark(8) },
            FeedMark { selected: None, ..mark(8) },
            FeedMark { lsn: 7, ..mark(8) },
        ] {
            let mut tail = tail.clone();
            tail.marks[3] = wrong;
            assert!(!followers.resume(&tail, &[], 5) && followers.figures().is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn replicas_of_a_former_primary_go_on_up_to_where_this_server_followed_it() {
        let followers = Followers::new(Arc::default());
        let stream = FormerStream { id: b"former"[..].into(), offset: 500 };
        let (formers, bytes) = (Vec::new(), b"0123456789".to_vec());
        let followed = FollowedEnd { stream, formers, db: 2, bytes };
        followers.begin(&[1; ID_BYTES], 7, Some(followed), 10);
        let own = "01".repeat(ID_BYTES);
        let follower = Follower::new(1, FollowerFacts::default(), 0);
        let goes_on = |id: &[u8], offset| followers.continued(id, offset, &follower);
        for (offset, can) in [(489, false), (490, true), (500, true), (501, false)] {
            assert_eq!(goes_on(b"former", offset), can.then(|| own.clone()), "{offset}");
        }
        assert!(goes_on(b"another", 495).is_none());
        let figures = followers.figures().unwrap();
        assert_eq!((figures.first, figures.end), (490, 500));
        assert_eq!(followers.read(&own, 495).unwrap(), b"56789"[..]);
        // The database that the former stream has selected stays selected.
        assert_eq!(followers.position_behind(7), RecordPosition::At(own, 500, 2));
    }

    #[test]
    fn a_stream_is_alone_since_the_last_replica_has_gone() {
        let followers = Followers::new(Arc::default());
        assert_eq!(followers.alone_ms(1), None);
        followers.begin(&[1; ID_BYTES], 1, None, 10);
        assert_eq!(followers.alone_ms(15), Some(5));
        followers.join(Arc::new(Follower::new(1, FollowerFacts::default(), 0)));
        assert_eq!(followers.alone_ms(20), None);
        followers.leave(1);
        assert_eq!(followers.alone_ms(30), None);
        assert_eq!(followers.alone_ms(32), Some(2));
    }
}
