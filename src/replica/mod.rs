//! State of this server as the replica of another one, as the gate, INFO and ROLE see it. The link
//! that keeps it is `crate::replication`.

mod applied;
mod succession;

pub use succession::{
    Hearing, Lineage, Precedence, Succession, Testimony, parse_formers, shown_formers,
};

use applied::AppliedBytes;
use flagstone_storage::encoding::{FormerStream, SourceExtent, SourcePosition};
use flagstone_storage::journal::Lsn;
use flagstone_storage::lease::BootTime;
use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedMutexGuard};

/// Number of digits of a replication id.
const ID_DIGITS: usize = 40;

/// Maximum number of positions that are remembered until they are durable.
const MAX_UNSTORED: usize = 4096;

/// Returns a new id of 40 random hexadecimal digits.
pub fn new_id() -> String {
    let digit = |_| char::from(b"0123456789abcdef"[rand::random_range(0..16)]);
    (0..ID_DIGITS).map(digit).collect()
}

/// Address of the server whose data this one copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primary {
    pub host: String,
    pub port: u16,
}

impl Primary {
    /// Reads the value of the directive `replicaof`.
    pub fn parse(value: &str) -> Option<Self> {
        let (host, port) = value.split_once(' ')?;
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.host, self.port)
    }
}

/// State of the link to the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no connection; one is tried again and again.
    #[default]
    Connect,
    /// A connection is being made.
    Connecting,
    /// The servers introduce themselves, or the primary is asked for the stream.
    Handshake,
    /// The data set is received or loaded.
    Sync,
    /// The stream is applied as it comes.
    Connected,
}

/// The end of the stream that this server followed, for other replicas of the same primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedEnd {
    pub stream: FormerStream,
    /// The streams that went over into it, the last one first.
    pub formers: Vec<FormerStream>,
    /// Database that the stream has selected there.
    pub db: u32,
    /// The last bytes of the stream.
    pub bytes: Vec<u8>,
}

/// The link to a primary, as others see it.
#[derive(Clone, Debug, Default)]
pub struct LinkView {
    /// The primary; `None` if this server is one itself.
    pub primary: Option<Primary>,
    pub state: LinkState,
    /// Bytes of the data set that are received, and all of them, if that is known.
    pub sync_bytes: (u64, Option<u64>),
    /// Time at which the primary last sent something, and at which the link went down, in ms since
    /// the Unix epoch; 0 if never.
    pub heard_ms: u64,
    pub down_since_ms: u64,
    /// Reason for which the link was last down; empty if it never was.
    pub down_reason: String,
    /// Position in the primary's stream that is stored.
    pub position: SourcePosition,
    /// Replication id of this server as a primary.
    pub own_id: String,
    pub former: Option<FormerStream>,
}

/// A promise to the primary: until then this server does not serve as one itself, nor vouches for
/// another one.
#[derive(Debug)]
struct Promise {
    /// `None`: an earlier process has promised something.
    primary: Option<Primary>,
    until: BootTime,
}

/// This server as a replica.
#[derive(Debug, Default)]
pub struct Replica {
    link: Mutex<LinkView>,
    /// Counts the changes of the primary: a link that has another number has to end.
    epoch: AtomicU64,
    /// Rings when that number changes.
    chosen: Notify,
    /// Bits for the questions of the gate, 0 for a primary with all of its data.
    state: AtomicU8,
    /// Number of data sets that were begun to be loaded.
    loads: AtomicU64,
    is_up: AtomicBool,
    /// Number of bytes of the stream that are applied.
    offset: AtomicU64,
    /// Number of bytes of it that were read while a pause keeps them from being applied.
    read: AtomicU64,
    /// Records with positions that may not be durable, and the last position that is.
    unstored: Mutex<VecDeque<(Lsn, u64)>>,
    stored: AtomicU64,
    /// Bytes that primaries have sent since the start.
    pub bytes_in: Arc<AtomicU64>,
    /// Rings when the link is to be broken and made again.
    pub kicked: Notify,
    /// Rings when records have become durable.
    pub synced: Arc<Notify>,
    promised: Mutex<Option<Promise>>,
    /// Copy of the end of the stream.
    applied: Mutex<AppliedBytes>,
    /// A promotion that waits for other replicas.
    succession: Mutex<Option<Succession>>,
    /// Serialises the messages of these.
    pub hearing: tokio::sync::Mutex<()>,
    /// Full and partial synchronisations since the start.
    pub syncs: SyncCounts,
    /// Serialises the choices of a role: the last one counts.
    pub choosing: tokio::sync::Mutex<()>,
    /// Serialises the changes that links make: a former link may still be at work.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Number of the choice for which changes are made now; 0: they belong to none.
    at_work: AtomicU64,
}

/// Numbers of synchronisations.
#[derive(Debug, Default)]
pub struct SyncCounts {
    pub full: AtomicU64,
    pub partial: AtomicU64,
}

/// Bit of a server that copies another one.
const FOLLOWING: u8 = 1;
/// Bit of a server that has a part of a primary's data set only.
const PARTIAL: u8 = 2;
/// Bit of a server that is to be a primary, and hears other replicas first.
const SUCCEEDING: u8 = 4;
/// Bit of a server that starts: it is not decided yet what it is.
const UNDECIDED: u8 = 8;
/// Bit of a replica in a cluster: it shows shards of others, and owns nothing.
const MIRRORING: u8 = 16;

impl Replica {
    /// Creates the state of a server that stored this position before. `is_replica`: it is to follow another
    /// one. Whoever has a position, or is to have one, serves nobody until [`decide`](Self::decide).
    pub fn new(position: SourcePosition, is_replica: bool) -> Self {
        let this = Self::default();
        let is_part = position.extent == SourceExtent::Part;
        this.set_loading(is_part);
        this.offset.store(position.offset, Ordering::Relaxed);
        this.stored.store(position.offset, Ordering::Relaxed);
        if is_replica || is_part || !position.id.is_empty() {
            this.set_bit(FOLLOWING | UNDECIDED, true);
        }
        let mut link = this.link();
        link.position = position;
        link.own_id = new_id();
        drop(link);
        this
    }

    /// Returns the link, locked.
    pub fn link(&self) -> MutexGuard<'_, LinkView> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other link changes data.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// Notes for which choice changes are made from now on; `None`: they belong to none.
    pub fn set_at_work(&self, epoch: Option<u64>) {
        self.at_work.store(epoch.unwrap_or(0), Ordering::Release);
    }

    /// Returns true if the changes that are made now belong to a former choice: a script of the
    /// stream ends.
    pub fn is_outdated(&self) -> bool {
        let at_work = self.at_work.load(Ordering::Acquire);
        at_work != 0 && at_work != self.epoch()
    }

    fn set_bit(&self, bit: u8, is_set: bool) {
        match is_set {
            true => self.state.fetch_or(bit, Ordering::AcqRel),
            false => self.state.fetch_and(!bit, Ordering::AcqRel),
        };
    }

    fn has_bit(&self, bit: u8) -> bool {
        self.state.load(Ordering::Relaxed) & bit != 0
    }

    /// Returns true if this server copies no other one, and has all of its data.
    #[inline]
    pub fn is_plain_primary(&self) -> bool {
        self.state.load(Ordering::Relaxed) == 0
    }

    /// Returns true if this server copies another one, or has done so and is to be a primary.
    #[inline]
    pub fn is_following(&self) -> bool {
        self.has_bit(FOLLOWING)
    }

    /// Notes that it is decided what this server is.
    pub fn decide(&self) {
        self.set_bit(UNDECIDED, false);
    }

    /// Returns true if this server starts, and it is not decided yet what it is.
    pub fn is_undecided(&self) -> bool {
        self.has_bit(UNDECIDED)
    }

    /// Returns true if this server shows that it copies another one.
    pub fn has_primary(&self) -> bool {
        self.is_following() && !self.is_succeeding()
    }

    /// Returns true if this server is to be a primary, and hears other replicas first.
    pub fn is_succeeding(&self) -> bool {
        self.has_bit(SUCCEEDING)
    }

    /// Returns true while the data set of the primary is loaded, of which a part is there.
    pub fn is_loading(&self) -> bool {
        self.has_bit(PARTIAL)
    }

    /// Returns true if the stream of the primary is applied as it comes.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of the stream that are applied.
    pub fn offset(&self) -> u64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of the stream that were read, but for those whose batch is being applied.
    pub fn read_offset(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Notes how many bytes of the stream were read while it is not applied.
    pub fn set_read_offset(&self, offset: u64) {
        self.read.store(offset, Ordering::Relaxed);
    }

    /// Returns the number of the present primary.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Waits until a choice of a primary is not the present one any more.
    pub async fn outlived(&self, epoch: u64) {
        loop {
            let mut chosen = pin!(self.chosen.notified());
            chosen.as_mut().enable();
            if self.epoch() != epoch {
                return;
            }
            chosen.await;
        }
    }

    /// Makes the link end, before another choice. Returns the number of the choice.
    pub fn part(&self) -> u64 {
        self.part_from(&mut self.link())
    }

    /// Makes the link end, which is locked: a former one notes nothing more here.
    fn part_from(&self, link: &mut LinkView) -> u64 {
        (link.state, link.heard_ms, link.down_since_ms) = Default::default();
        self.is_up.store(false, Ordering::Relaxed);
        let before = self.epoch.fetch_add(1, Ordering::AcqRel);
        self.chosen.notify_waiters();
        before + 1
    }

    /// Follows a primary. Returns the number of the choice.
    pub fn follow(&self, primary: Primary) -> u64 {
        let mut link = self.link();
        self.set_bit(FOLLOWING, true);
        self.set_succession(None);
        link.primary = Some(primary);
        link.down_reason.clear();
        self.part_from(&mut link)
    }

    /// Becomes a primary, with a new id. `former`: the stream that was followed.
    pub fn promote(&self, former: Option<FormerStream>) {
        let mut link = self.link();
        link.primary = None;
        link.own_id = new_id();
        link.former = former;
        self.is_up.store(false, Ordering::Relaxed);
        self.set_bit(FOLLOWING, false);
        self.set_succession(None);
    }

    /// Is to become a primary once so many other servers are heard. Returns the number of the choice.
    pub fn begin_succession(&self, awaited: usize) -> u64 {
        let mut link = self.link();
        self.set_bit(FOLLOWING, true);
        self.set_succession(Some(Succession::new(awaited)));
        link.primary = None;
        self.part_from(&mut link)
    }

    fn set_succession(&self, succession: Option<Succession>) {
        self.set_bit(SUCCEEDING, succession.is_some());
        *self.succession.lock().unwrap_or_else(PoisonError::into_inner) = succession;
    }

    /// Looks at the promotion that waits, if one does.
    pub fn with_succession<T>(&self, look: impl FnOnce(&mut Succession) -> T) -> Option<T> {
        let mut succession = self.succession.lock().unwrap_or_else(PoisonError::into_inner);
        succession.as_mut().map(look)
    }

    /// Returns the streams whose changes this server has; `None`: it has no position in one.
    pub fn lineage(&self) -> Option<Lineage> {
        let SourcePosition { id, offset, extent, formers, .. } = self.link().position.clone();
        let is_whole = !id.is_empty() && extent == SourceExtent::Whole;
        is_whole.then_some(Lineage { id, offset, formers })
    }

    /// Notes the state of the link of a choice, which may be an older one.
    pub fn set_state(&self, epoch: u64, state: LinkState, now_ms: u64) {
        let mut link = self.link();
        if self.epoch() != epoch {
            return;
        }
        if state == LinkState::Connected || link.state == LinkState::Connected {
            link.down_since_ms = if state == LinkState::Connected { 0 } else { now_ms };
        }
        link.state = state;
        self.is_up.store(state == LinkState::Connected, Ordering::Relaxed);
    }

    /// Makes this server a replica in a cluster: it has shards of other servers, reads them from their
    /// store, and follows no stream.
    pub fn begin_mirroring(&self) {
        self.set_bit(FOLLOWING | MIRRORING, true);
    }

    /// Makes a replica in a cluster an owner.
    pub fn end_mirroring(&self) {
        let mut link = self.link();
        link.primary = None;
        (link.state, link.heard_ms, link.down_since_ms) = Default::default();
        self.is_up.store(false, Ordering::Relaxed);
        self.set_bit(FOLLOWING | MIRRORING, false);
    }

    /// Returns true if this server is a replica in a cluster.
    #[inline]
    pub fn is_mirroring(&self) -> bool {
        self.has_bit(MIRRORING)
    }

    /// Notes the address of a server whose shards a replica of a cluster has, and whether all that it shows
    /// is new enough.
    pub fn mirror(&self, primary: Option<(&str, u16)>, is_up: bool, now_ms: u64) {
        let mut link = self.link();
        // It stays a replica while nobody owns anything.
        let (host, port) = primary.unwrap_or(("", 0));
        if primary.is_some() || link.primary.is_none() {
            link.primary = Some(Primary { host: host.to_owned(), port });
        }
        link.state = if is_up { LinkState::Connected } else { LinkState::Sync };
        match is_up {
            true => (link.down_since_ms, link.heard_ms) = (0, now_ms),
            false if link.down_since_ms == 0 => link.down_since_ms = now_ms,
            false => {}
        }
        self.is_up.store(is_up, Ordering::Relaxed);
    }

    /// Notes why the link of a choice, which may be an older one, is down.
    pub fn set_down_reason(&self, epoch: u64, reason: &str) {
        let mut link = self.link();
        if self.epoch() == epoch {
            reason.clone_into(&mut link.down_reason);
        }
    }

    /// Notes that a part of the data set is there only, or all of it again.
    pub fn set_loading(&self, is_loading: bool) {
        self.set_bit(PARTIAL, is_loading);
        self.loads.fetch_add(u64::from(is_loading), Ordering::SeqCst);
    }

    /// Returns the number of data sets that were begun to be loaded, or `None` while one is loaded.
    pub fn whole_since(&self) -> Option<u64> {
        let loads = self.loads.load(Ordering::SeqCst);
        (!self.is_loading()).then_some(loads)
    }

    /// Notes a position that is reached by a record, unless a later one is known.
    pub fn reached(&self, position: SourcePosition, lsn: Lsn) {
        let mut link = self.link();
        if position.serial <= link.position.serial {
            return;
        }
        self.offset.store(position.offset, Ordering::Relaxed);
        let mut unstored = self.unstored();
        if unstored.len() == MAX_UNSTORED {
            // The later record stands for both.
            unstored.pop_back();
        }
        unstored.push_back((lsn, position.offset));
        drop(unstored);
        if position.id.is_empty() {
            *self.applied() = AppliedBytes::default();
        }
        link.position = position;
    }

    fn unstored(&self) -> MutexGuard<'_, VecDeque<(Lsn, u64)>> {
        self.unstored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes of the stream that are on disk, if the records up to `durable` are.
    pub fn stored(&self, durable: Lsn) -> u64 {
        let mut unstored = self.unstored();
        while let Some((_, offset)) = unstored.pop_front_if(|(lsn, _)| *lsn <= durable) {
            self.stored.store(offset, Ordering::Relaxed);
        }
        self.stored.load(Ordering::Relaxed)
    }

    fn promised(&self) -> MutexGuard<'_, Option<Promise>> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises the primary of a choice not to serve as one for some time, nor to vouch for another
    /// one. Returns false if the choice is not the present one: then the promise must not be sent.
    pub fn promise(&self, epoch: u64, primary: Option<&Primary>, time: Duration) -> bool {
        let until = BootTime::now().later(time);
        *self.promised() = Some(Promise { primary: primary.cloned(), until });
        // Who ends the link looks at the promise afterwards.
        self.epoch() == epoch
    }

    /// Ends the promise: the primary itself asks this server to take over.
    pub fn end_promise(&self) {
        *self.promised() = None;
    }

    /// Returns how long it must not vouch for a primary yet; `None`: for itself.
    pub fn promised_for(&self, primary: Option<&Primary>) -> Duration {
        match &*self.promised() {
            Some(promise) if primary.is_none() || promise.primary.as_ref() != primary => {
                promise.until.left()
            }
            _ => Duration::ZERO,
        }
    }

    fn applied(&self) -> MutexGuard<'_, AppliedBytes> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a copy of bytes of the stream that were applied, from an offset on; of all of them at most
    /// `kept` stay.
    pub fn keep_applied(&self, from: u64, bytes: &[u8], kept: usize) {
        self.applied().push(from, bytes, kept);
    }

    /// Returns the bytes of the stream from an offset up to the position; `None`: they are not in memory.
    pub fn applied_from(&self, from: u64) -> Option<Vec<u8>> {
        let end = self.link().position.offset;
        let bytes = self.applied().up_to(end);
        let wanted = usize::try_from(end.checked_sub(from)?).ok()?;
        Some(bytes[bytes.len().checked_sub(wanted)?..].to_vec())
    }

    /// Returns the end of the stream that this server has followed, if its data is all of the
    /// primary's there.
    pub fn followed_end(&self) -> Option<FollowedEnd> {
        let SourcePosition { id, offset, db, extent, formers, .. } = self.link().position.clone();
        if id.is_empty() || extent != SourceExtent::Whole {
            return None;
        }
        let bytes = self.applied().up_to(offset);
        Some(FollowedEnd { stream: FormerStream { id, offset }, formers, db, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_an_older_choice_changes_nothing() {
        let replica = Replica::default();
        let primary = Primary::parse("host 6379").unwrap();
        let first = replica.follow(primary.clone());
        replica.set_state(first, LinkState::Connected, 1);
        assert!(replica.is_following() && replica.is_up());
        replica.set_state(first, LinkState::Connect, 7);
        assert_eq!(replica.link().down_since_ms, 7);
        replica.set_at_work(Some(first));
        assert!(!replica.is_outdated());
        replica.set_state(first, LinkState::Connected, 8);
        replica.part();
        assert!(replica.is_outdated() && !replica.is_up());
        replica.set_state(first, LinkState::Connected, 9);
        assert!(replica.is_following() && !replica.is_up());
        replica.set_at_work(None);
        assert!(!replica.is_outdated());
        replica.promote(None);
        replica.set_state(first, LinkState::Connected, 8);
        assert!(!replica.is_following() && !replica.is_up());
        assert_eq!(replica.link().primary, None);
        assert_eq!(primary.to_string(), "host 6379");
    }

    #[test]
    fn a_position_never_goes_back() {
        let position = |serial, offset| SourcePosition { serial, offset, ..Default::default() };
        let replica = Replica::new(position(5, 100), false);
        replica.reached(position(4, 90), 1);
        assert_eq!((replica.offset(), replica.link().position.serial), (100, 5));
        replica.reached(position(6, 0), 1);
        assert_eq!((replica.offset(), replica.link().position.serial), (0, 6));
    }

    #[test]
    fn a_position_is_stored_when_its_record_is_durable() {
        let position = |serial, offset| SourcePosition { serial, offset, ..Default::default() };
        let replica = Replica::new(position(1, 100), false);
        assert_eq!(replica.stored(0), 100);
        replica.reached(position(2, 110), 7);
        replica.reached(position(3, 120), 9);
        assert_eq!([6, 7, 8, 9].map(|lsn| replica.stored(lsn)), [100, 110, 110, 120]);
        for n in 0..2 * MAX_UNSTORED as u64 {
            replica.reached(position(4 + n, 121 + n), 10 + n);
        }
        assert!(replica.unstored().len() <= MAX_UNSTORED);
        assert_eq!(replica.stored(10), 121);
        assert_eq!(replica.stored(u64::MAX), 120 + 2 * MAX_UNSTORED as u64);
        // The data set of another stream.
        let behind = 10_000 + 4;
        replica.reached(position(behind, 50), u64::MAX);
        assert_eq!(replica.stored(u64::MAX), 50);
    }

    #[test]
    fn a_promise_binds_to_one_primary_and_is_kept_when_another_is_chosen() {
        let replica = Replica::default();
        let [one, other] = ["one 1", "other 2"].map(|text| Primary::parse(text).unwrap());
        let epoch = replica.follow(one.clone());
        let left = || [None, Some(&one), Some(&other)].map(|p| replica.promised_for(p).as_secs());
        assert_eq!(left(), [0; 3]);
        assert!(replica.promise(epoch, Some(&one), Duration::from_secs(3600)));
        assert_eq!(left().map(|s| s > 3500), [true, false, true]);
        replica.part();
        assert!(!replica.promise(epoch, Some(&one), Duration::from_secs(7200)));
        assert!(replica.promised_for(None) > Duration::from_secs(7100), "it may be on its way");
        replica.end_promise();
        assert_eq!(left(), [0; 3]);
        // Of an earlier process.
        replica.promise(0, None, Duration::from_secs(3600));
        assert_eq!(left().map(|s| s > 3500), [true; 3]);
    }

    #[test]
    fn a_promoted_server_has_a_new_id_and_names_the_former_stream() {
        let id: Box<[u8]> = b"i".repeat(ID_DIGITS).into();
        let position = SourcePosition { serial: 1, offset: 9, id, ..Default::default() };
        let replica = Replica::new(position.clone(), false);
        let own = replica.link().own_id.clone();
        replica.follow(Primary::parse("host 1").unwrap());
        let end = replica.followed_end().unwrap();
        replica.promote(Some(end.stream));
        let link = replica.link();
        assert_ne!(link.own_id, own);
        assert_eq!(link.former, Some(FormerStream { id: position.id, offset: 9 }));
    }

    #[test]
    fn the_end_of_the_stream_is_kept_up_to_a_size() {
        let id: Box<[u8]> = b"i".repeat(ID_DIGITS).into();
        let at = |serial, offset| SourcePosition {
            serial,
            offset,
            id: id.clone(),
            ..Default::default()
        };
        let replica = Replica::new(at(1, 100), false);
        let end = |replica: &Replica| {
            let end = replica.followed_end().unwrap();
            (end.stream.offset, String::from_utf8(end.bytes).unwrap())
        };
        assert_eq!(end(&replica), (100, String::new()));
        let apply = |serial, from, bytes: &[u8]| {
            replica.keep_applied(from, bytes, 5);
            replica.reached(at(serial, from + bytes.len() as u64), serial);
            end(&replica)
        };
        assert_eq!(apply(2, 100, b"abc"), (103, "abc".to_owned()));
        assert_eq!(apply(3, 103, b"defg"), (107, "cdefg".to_owned()));
        assert_eq!(apply(4, 107, b"1234567"), (114, "34567".to_owned()));
        // There is a gap, and another stream.
        assert_eq!(apply(5, 120, b"xy"), (122, "xy".to_owned()));
        replica.reached(SourcePosition { serial: 6, ..Default::default() }, 6);
        assert_eq!(replica.followed_end(), None);
        replica.reached(at(7, 122), 7);
        assert_eq!(end(&replica), (122, String::new()));
    }

    #[test]
    fn data_is_whole_if_no_data_set_was_loaded_meanwhile() {
        let replica = Replica::default();
        let before = replica.whole_since();
        assert!(before.is_some() && replica.whole_since() == before);
        replica.set_loading(true);
        assert_eq!(replica.whole_since(), None);
        replica.set_loading(false);
        assert!(replica.whole_since().is_some_and(|since| Some(since) != before));
    }

    #[test]
    fn a_part_of_a_data_set_is_no_plain_primary() {
        let part = SourcePosition { extent: SourceExtent::Part, ..Default::default() };
        let replica = Replica::new(part, false);
        assert!(replica.is_loading() && replica.is_following() && !replica.is_plain_primary());
        replica.set_loading(false);
        replica.promote(None);
        assert!(replica.is_undecided() && !replica.is_plain_primary());
        replica.decide();
        assert!(replica.is_plain_primary());
    }
}
