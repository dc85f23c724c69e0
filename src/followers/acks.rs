//! Replies that wait for replicas (`repl-ack`, RFC 17).
//!
//! While it is active, a record counts as settled once enough replicas have confirmed it, and the
//! rounds of the workers follow that. The same replicas give this server a lease: each promises, when
//! it answers a question, that it does not serve as a primary for so long. So a primary that was
//! replaced while it slept shows nothing that is out of date.

use super::{Follower, FollowerState};
use crate::config::ReplAck;
use flagstone_storage::feed::Feed;
use flagstone_storage::journal::Lsn;
use flagstone_storage::lease::{BootTime, Lease, Unconfirmed};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Duration of the lease that replicas give.
pub const REPLICA_LEASE: Duration = Duration::from_secs(2);

/// Questions whose answers still renew the lease.
const QUESTIONS: usize = 16;

/// Maximum length of the text of a question that a replica repeats.
const MAX_QUESTION: usize = 64;

/// Lag of a good replica while `min-replicas-max-lag` is 0, in seconds.
const DEFAULT_LAG_S: u32 = 10;

/// Reason why the lease runs out.
const SILENCE: &str = "no replica confirms that this server is still the primary (repl-ack)";

/// Returns how long a replica that has answered a question does not serve as a primary: longer than
/// the lease, as clocks run at different speeds.
pub fn promised_for() -> Duration {
    Lease::successor_wait(REPLICA_LEASE)
}

/// Returns the seconds of lag of a good replica.
pub fn max_lag_s(min_replicas_max_lag: u32, is_awaited: bool) -> u32 {
    if is_awaited && min_replicas_max_lag == 0 { DEFAULT_LAG_S } else { min_replicas_max_lag }
}

/// A primary's question to all replicas. They repeat its text when they answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseQuestion {
    text: String,
    /// State of a write for which the primary's replies wait.
    pub level: ReplAck,
}

impl LeaseQuestion {
    /// Reads the text of a question; `None`: it asks for the position only.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() <= MAX_QUESTION)?;
        let (level, _) = text.split_once('-')?;
        let levels = [ReplAck::Async, ReplAck::Sync];
        let level = levels.into_iter().find(|known| known.as_str() == level)?;
        Some(Self { text: text.to_owned(), level })
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// State of which only one thread changes a part.
#[derive(Debug, Default)]
struct AcksState {
    /// Number of the last question, and the times of the last ones.
    asked: u64,
    questions: VecDeque<(u64, BootTime)>,
    /// The record that has to be confirmed next, and since when it waits.
    goal: Option<(Lsn, BootTime)>,
}

/// Called when replies may go on, or have to be given up.
type AckListener = Box<dyn Fn() + Send + Sync>;

/// See the module's description.
pub struct Acks {
    feed: Arc<Feed>,
    level: AtomicU8,
    /// Number of replicas that have to confirm a record.
    needed: AtomicUsize,
    lease: Lease,
    /// The journal's end when it became active: until that is confirmed, there is no lease.
    floor: AtomicU64,
    /// The last record that replicas have confirmed.
    confirmed: AtomicU64,
    /// Distinguishes the questions of this process.
    nonce: u64,
    state: Mutex<AcksState>,
    /// True while a record waits for too long.
    overdue: AtomicBool,
    /// True while more replicas follow than the settings say.
    is_crowded: AtomicBool,
    /// Counts how often this server became a replica while replies waited.
    given_up: AtomicU64,
    listeners: Mutex<Vec<AckListener>>,
}

impl fmt::Debug for Acks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acks").field("level", &self.level).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Acks {
    /// Creates the state of a server whose replies wait for nobody.
    pub fn new(feed: Arc<Feed>) -> Self {
        Self {
            feed,
            level: AtomicU8::new(ReplAck::None as u8),
            needed: AtomicUsize::new(1),
            lease: Lease::new(REPLICA_LEASE, SILENCE, Arc::new(Notify::new())),
            floor: AtomicU64::new(0),
            confirmed: AtomicU64::new(0),
            nonce: rand::random(),
            state: Mutex::default(),
            overdue: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            given_up: AtomicU64::new(0),
            listeners: Mutex::default(),
        }
    }

    /// Returns what replies wait for.
    #[inline]
    pub fn level(&self) -> ReplAck {
        match self.level.load(Ordering::SeqCst) {
            level if level == ReplAck::Async as u8 => ReplAck::Async,
            level if level == ReplAck::Sync as u8 => ReplAck::Sync,
            _ => ReplAck::None,
        }
    }

    /// Returns true if replies wait for replicas.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.level() != ReplAck::None
    }

    /// Returns the number of replicas that have to confirm a record.
    pub fn needed(&self) -> usize {
        self.needed.load(Ordering::Relaxed)
    }

    /// Returns the rule by which records are confirmed: the state that they have at so many replicas.
    pub fn rule(&self) -> (ReplAck, usize) {
        (self.level(), self.needed())
    }

    /// Makes replies wait for so many replicas, from the journal's end on. `level`: that of the
    /// settings; a server that follows another one waits for nobody, and gives the replies up that
    /// wait.
    pub fn apply(&self, level: ReplAck, needed: usize, is_following: bool, end: Lsn) {
        let mut state = lock(&self.state);
        let level = if is_following { ReplAck::None } else { level };
        let was_active = self.is_active();
        let needed = needed.max(1);
        let is_new = self.needed.swap(needed, Ordering::SeqCst) != needed || self.level() != level;
        if level != ReplAck::None && is_new {
            // Confirmations of another kind, or of fewer replicas, do not count.
            self.floor.store(end, Ordering::SeqCst);
            self.confirmed.store(0, Ordering::SeqCst);
            self.lease.expire();
        }
        if level != ReplAck::None && !was_active {
            // Replies that wait under another rule wait on.
            self.feed.await_replicas(end);
        }
        if is_following && was_active {
            // Before any worker sees that it need not wait.
            self.given_up.fetch_add(1, Ordering::SeqCst);
        }
        self.level.store(level as u8, Ordering::SeqCst);
        if level == ReplAck::None {
            self.feed.await_nobody();
            self.lease.expire();
            self.overdue.store(false, Ordering::SeqCst);
            state.goal = None;
        }
        drop(state);
        self.ring();
    }

    /// Returns how often replies that waited were given up.
    #[inline]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Calls a listener whenever replies may go on, or have to be given up.
    pub fn subscribe(&self, listener: AckListener) {
        lock(&self.listeners).push(listener);
    }

    fn ring(&self) {
        lock(&self.listeners).iter().for_each(|listener| listener());
    }

    // ---- confirmations -------------------------------------------------------------------------

    /// Returns the greatest number that so many of the replicas have reached.
    pub fn common(needed: usize, all: &[Arc<Follower>], of: impl Fn(&Follower) -> u64) -> u64 {
        let online = all.iter().filter(|follower| follower.state() == FollowerState::Online);
        let mut reached: Vec<u64> = online.map(|follower| of(follower)).collect();
        reached.sort_unstable_by(|one, other| other.cmp(one));
        reached.get(needed - 1).copied().unwrap_or(0)
    }

    /// Notes that enough replicas have confirmed the records up to one, by the rule of `level` and
    /// `needed`: nothing, if that is not the present one.
    pub fn confirm(&self, (level, needed): (ReplAck, usize), lsn: Lsn) {
        let state = lock(&self.state);
        if (level, needed) != self.rule() {
            return;
        }
        self.confirmed.fetch_max(lsn, Ordering::SeqCst);
        let is_new = self.feed.confirm(lsn);
        drop(state);
        if is_new {
            self.ring();
        }
    }

    /// Returns true if replicas have all that was there when replies began to wait.
    pub fn has_floor(&self) -> bool {
        self.confirmed.load(Ordering::SeqCst) >= self.floor.load(Ordering::SeqCst)
    }

    /// Looks if the records up to `durable` are confirmed in time.
    pub fn look(&self, durable: Lsn, limit: Duration) {
        if !self.is_active() {
            return;
        }
        let confirmed = self.feed.settled(durable);
        let mut state = lock(&self.state);
        let reached = state.goal.is_none_or(|(goal, _)| goal <= confirmed);
        if reached {
            state.goal = (confirmed < durable).then(|| (durable, BootTime::now()));
        }
        let is_late = |(_, since): (Lsn, BootTime)| since.later(limit).left().is_zero();
        let is_overdue = state.goal.is_some_and(is_late);
        drop(state);
        if self.overdue.swap(is_overdue, Ordering::SeqCst) == is_overdue {
            return;
        }
        if is_overdue {
            tracing::error!(
                replicas = self.needed(),
                "writes are refused: replicas have not confirmed what is written for {} s \
                (repl-ack {}); CONFIG SET repl-ack none makes this server go on alone",
                limit.as_secs(),
                self.level().as_str()
            );
        } else {
            tracing::info!("writes are accepted again: replicas confirm them");
        }
        self.ring();
    }

    /// Returns true while what is written is not confirmed in time.
    #[inline]
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed)
    }

    /// Warns once if so many replicas follow that a promoted one may lack what others have confirmed.
    /// `group`: number of servers by the settings; 0: one more than replicas have to confirm.
    pub fn look_at_group(&self, replicas: usize, group: usize) {
        let known = if group == 0 { 1 + self.needed() } else { group };
        let is_crowded = self.is_active() && 1 + replicas > known;
        if !self.is_crowded.swap(is_crowded, Ordering::Relaxed) && is_crowded {
            tracing::warn!(
                servers = 1 + replicas,
                known,
                "more servers follow each other than are known: a promoted one may lack what was acknowledged \
                 (set repl-group-size on all of them to their number)"
            );
        }
    }

    // ---- the lease -----------------------------------------------------------------------------

    /// Returns the next question to all replicas; its answers prove that no other server has taken
    /// over before now.
    pub fn ask(&self) -> LeaseQuestion {
        let mut state = lock(&self.state);
        state.asked += 1;
        let number = state.asked;
        if state.questions.len() == QUESTIONS {
            state.questions.pop_front();
        }
        state.questions.push_back((number, BootTime::now()));
        let level = self.level();
        LeaseQuestion { text: format!("{}-{:016x}-{number}", level.as_str(), self.nonce), level }
    }

    /// Returns the number of a question of this process that a replica repeats.
    pub fn number_of(&self, question: &[u8]) -> Option<u64> {
        let question = LeaseQuestion::parse(question)?;
        let mut words = question.text.split('-').skip(1);
        let nonce = u64::from_str_radix(words.next()?, 16).ok()?;
        let number = words.next()?.parse().ok()?;
        (nonce == self.nonce && words.next().is_none()).then_some(number)
    }

    /// Renews the lease: enough replicas have answered a question.
    pub fn renew(&self, question: u64) {
        if !self.is_active() || !self.has_floor() {
            return;
        }
        let state = lock(&self.state);
        let asked = state.questions.iter().find(|(number, _)| *number == question);
        if let Some((_, at)) = asked {
            self.lease.renew(*at);
        }
    }

    /// Returns true if it is certain that no replica has taken over.
    #[inline]
    pub fn is_owner(&self) -> bool {
        !self.is_active() || self.lease.holds()
    }

    /// Waits until that is certain, no longer than the lease lasts.
    ///
    /// # Errors
    /// If it is not certain by then.
    pub async fn confirm_owner(&self) -> Result<(), Unconfirmed> {
        match self.is_active() {
            true => self.lease.confirm(REPLICA_LEASE).await,
            false => Ok(()),
        }
    }

    /// Returns true if commands need not wait for that, because others have waited in vain.
    pub fn is_disowned(&self) -> bool {
        self.is_active() && self.lease.is_away() && !self.lease.holds()
    }

    /// Returns how long the lease lasts without an answer, in ms.
    pub fn lease_left_ms(&self) -> u64 {
        u64::try_from(self.lease.left().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::FollowerFacts;
    use super::*;

    fn acks(level: ReplAck, needed: usize, end: Lsn) -> Acks {
        let acks = Acks::new(Arc::default());
        acks.apply(level, needed, false, end);
        acks
    }

    fn confirm(acks: &Acks, lsn: Lsn) {
        acks.confirm(acks.rule(), lsn);
    }

    #[test]
    fn a_question_is_known_by_its_process_only() {
        let (one, other) = (acks(ReplAck::Sync, 1, 0), acks(ReplAck::Async, 1, 0));
        let question = one.ask();
        assert_eq!(LeaseQuestion::parse(question.text().as_bytes()), Some(question.clone()));
        assert_eq!(one.number_of(question.text().as_bytes()), Some(1));
        assert_eq!(other.number_of(question.text().as_bytes()), None);
        assert_eq!(other.ask().level, ReplAck::Async);
        for text in [&b"*"[..], b"sync", b"none-1-1", b"sync--", b"sync-x-1", &[b's'; 100]] {
            assert_eq!(one.number_of(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_lease_waits_for_what_was_there_before() {
        let acks = acks(ReplAck::Sync, 1, 10);
        acks.ask();
        confirm(&acks, 9);
        acks.renew(1);
        assert!(!acks.is_owner(), "a replica lacks what this server may show");
        confirm(&acks, 10);
        acks.renew(2);
        assert!(!acks.is_owner(), "nobody has asked that");
        acks.renew(1);
        assert!(acks.is_owner());
        // As a replica it needs none, and as a primary again it needs a new one.
        acks.apply(ReplAck::Sync, 1, true, 12);
        assert!(acks.is_owner() && !acks.is_active());
        acks.apply(ReplAck::Sync, 1, false, 12);
        assert!(!acks.is_owner());
    }

    #[test]
    fn an_old_question_renews_nothing() {
        let acks = acks(ReplAck::Sync, 1, 0);
        let question = acks.ask();
        (0..QUESTIONS).for_each(|_| drop(acks.ask()));
        acks.renew(acks.number_of(question.text().as_bytes()).unwrap());
        assert!(!acks.is_owner());
    }

    #[test]
    fn a_record_is_settled_when_enough_replicas_have_it() {
        let acks = acks(ReplAck::Sync, 2, 5);
        let all: Vec<_> = (0..3)
            .map(|client| Arc::new(Follower::new(client, FollowerFacts::default(), 0)))
            .collect();
        let stored = |follower: &Follower| follower.reached(true);
        for (follower, offset) in all.iter().zip([30, 20, 10]) {
            follower.heard(Some(40), Some(offset), 0);
        }
        assert_eq!(Acks::common(2, &all, stored), 0, "none is sent the stream");
        all.iter().for_each(|follower| follower.set_state(FollowerState::Online));
        assert_eq!(Acks::common(2, &all, stored), 20);
        assert_eq!(Acks::common(2, &all[1..], stored), 10);
        assert_eq!(Acks::common(2, &all[2..], stored), 0);
        assert_eq!(acks.feed.settled(9), 5);
        confirm(&acks, 7);
        assert_eq!([acks.feed.settled(9), acks.feed.settled(6)], [7, 6]);
        acks.apply(ReplAck::None, 2, false, 9);
        assert_eq!(acks.feed.settled(9), 9);
    }

    #[test]
    fn another_rule_settles_nothing_by_itself() {
        let acks = acks(ReplAck::Sync, 1, 5);
        confirm(&acks, 6);
        for (level, needed) in [(ReplAck::Sync, 2), (ReplAck::Async, 2), (ReplAck::Async, 1)] {
            acks.apply(level, needed, false, 9);
            assert_eq!(acks.feed.settled(9), 6, "a reply waits for record 7 still");
            assert!(!acks.has_floor(), "what confirmed record 6 was another rule");
            acks.confirm((ReplAck::Sync, 1), 9);
            assert_eq!(acks.feed.settled(9), 6, "a confirmation that was under way");
        }
    }

    #[test]
    fn a_group_that_is_larger_than_known_is_noticed() {
        let acks = acks(ReplAck::Sync, 1, 0);
        let notices = |replicas, group| {
            acks.look_at_group(replicas, group);
            acks.is_crowded.load(Ordering::Relaxed)
        };
        assert_eq!(
            [(1, 0), (2, 0), (2, 3), (3, 3)].map(|(r, g)| notices(r, g)),
            [false, true, false, true]
        );
        acks.apply(ReplAck::None, 1, false, 0);
        acks.look_at_group(3, 3);
        assert!(!acks.is_crowded.load(Ordering::Relaxed));
    }

    #[test]
    fn what_is_not_confirmed_in_time_is_overdue_until_it_is() {
        let acks = acks(ReplAck::Async, 1, 5);
        let (now, never) = (Duration::ZERO, Duration::from_secs(3600));
        acks.look(5, now);
        assert!(!acks.is_overdue(), "nothing waits");
        acks.look(6, never);
        assert!(!acks.is_overdue());
        acks.look(8, now);
        assert!(acks.is_overdue());
        confirm(&acks, 7);
        acks.look(8, never);
        assert!(!acks.is_overdue(), "the record that waited is confirmed");
        acks.look(8, now);
        assert!(acks.is_overdue());
        acks.apply(ReplAck::Async, 1, true, 8);
        assert!(!acks.is_overdue());
        assert_eq!(acks.given_up(), 1);
    }
}
