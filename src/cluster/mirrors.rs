//! The shards of other servers that a replica shows, and how new they are.

use flagstone_storage::cluster::Life;
use flagstone_storage::journal::Lsn;
use flagstone_storage::slot::{Layout, MAX_SHARDS};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// State of one shard.
#[derive(Debug, Default)]
struct Mirror {
    is_shown: AtomicBool,
    /// A moment whose data it certainly has.
    proven: Mutex<Option<Instant>>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Mirrors {
    layout: Arc<Layout>,
    /// Those that there may be, too.
    shards: Box<[Mirror]>,
    /// For each owner a map's number, and the lsn up to which all records of the shards are shown that this
    /// map gives it.
    applied: Mutex<BTreeMap<Life, (u64, Lsn)>>,
    /// Number of times that a shard was hidden.
    hidden: AtomicU64,
    /// Notified when an owner asks.
    asked: Notify,
}

impl Mirrors {
    pub(super) fn new(layout: Arc<Layout>) -> Self {
        let shards = (0..MAX_SHARDS).map(|_| Mirror::default()).collect();
        let (applied, hidden, asked) = (Mutex::default(), AtomicU64::new(0), Notify::new());
        Self { layout, shards, applied, hidden, asked }
    }

    /// Returns the states of the shards that there are.
    fn known(&self) -> &[Mirror] {
        &self.shards[..usize::from(self.layout.shards())]
    }

    /// Returns true if a shard is shown.
    #[inline]
    pub fn shows(&self, shard: u16) -> bool {
        self.shards.get(usize::from(shard)).is_some_and(|it| it.is_shown.load(Ordering::Acquire))
    }

    /// Shows a shard from now on.
    pub(super) fn show(&self, shard: u16) {
        self.set(shard, true);
    }

    /// Shows a shard no more.
    pub fn hide(&self, shard: u16) {
        self.set(shard, false);
        self.hidden.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how often any shard was hidden: a look at all keys from before may have missed some.
    pub(super) fn hidden(&self) -> u64 {
        self.hidden.load(Ordering::SeqCst)
    }

    fn set(&self, shard: u16, is_shown: bool) {
        if let Some(mirror) = self.shards.get(usize::from(shard)) {
            mirror.is_shown.store(is_shown, Ordering::Release);
        }
    }

    /// Notes that a shard has all that was acknowledged before a moment.
    pub fn prove(&self, shard: u16, moment: Instant) {
        let Some(mirror) = self.shards.get(usize::from(shard)) else { return };
        let mut proven = mirror.proven.lock().unwrap_or_else(PoisonError::into_inner);
        *proven = (*proven).max(Some(moment));
    }

    fn applied(&self) -> MutexGuard<'_, BTreeMap<Life, (u64, Lsn)>> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that all records of an owner up to an lsn are shown, of all shards that a map gives it, by the
    /// map's number; (0, 0): not of all of them.
    pub fn set_applied(&self, owner: Life, applied: (u64, Lsn)) {
        self.applied().insert(owner, applied);
    }

    /// Returns the lsn up to which all records of an owner are shown, which asks for it and knows a map; 0:
    /// that is not known of all shards that this map may give it.
    pub fn tell(&self, owner: Life, known: u64) -> Lsn {
        self.asked.notify_waiters();
        let applied = self.applied().get(&owner).copied();
        applied.filter(|(map, _)| *map >= known).map_or(0, |(_, lsn)| lsn)
    }

    /// Returns how far this replica has come in the journals of all owners together; 0: it does not show
    /// all shards yet. The number is less when an owner has gone.
    pub fn offset(&self) -> u64 {
        let shows_all = self.shown() == self.known().len();
        if shows_all { self.applied().values().map(|(_, lsn)| lsn).sum() } else { 0 }
    }

    /// Forgets all owners but these.
    pub fn keep_owners(&self, is_owner: impl Fn(Life) -> bool) {
        self.applied().retain(|life, _| is_owner(*life));
    }

    /// Waits until an owner asks.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Returns the number of shards that are shown.
    pub fn shown(&self) -> usize {
        self.known().iter().filter(|it| it.is_shown.load(Ordering::Acquire)).count()
    }

    /// Returns how old the data of any shard may be, at most; `None`: that is not known of all.
    pub fn lag(&self) -> Option<Duration> {
        let proven = |mirror: &Mirror| {
            let proven = *mirror.proven.lock().unwrap_or_else(PoisonError::into_inner);
            proven.filter(|_| mirror.is_shown.load(Ordering::Acquire))
        };
        let oldest: Option<Vec<Instant>> = self.known().iter().map(proven).collect();
        Some(oldest?.into_iter().min()?.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_shards_of_a_later_map() {
        let (mirrors, owner) = (Mirrors::new(Arc::new(Layout::new(2, 1))), Life(3));
        assert_eq!(mirrors.tell(owner, 1), 0);
        mirrors.set_applied(owner, (7, 100));
        assert_eq!([6, 7, 8].map(|map| mirrors.tell(owner, map)), [100, 100, 0]);
        mirrors.set_applied(owner, (0, 0));
        assert_eq!(mirrors.tell(owner, 7), 0);
        mirrors.set_applied(owner, (8, 101));
        mirrors.keep_owners(|life| life != owner);
        assert_eq!(mirrors.tell(owner, 8), 0);
    }

    #[test]
    fn the_offset_is_that_in_all_journals() {
        let mirrors = Mirrors::new(Arc::new(Layout::new(2, 1)));
        mirrors.set_applied(Life(3), (7, 100));
        mirrors.set_applied(Life(4), (7, 20));
        mirrors.show(0);
        assert_eq!(mirrors.offset(), 0, "shard 1 is not shown");
        mirrors.show(1);
        assert_eq!(mirrors.offset(), 120);
        mirrors.keep_owners(|life| life == Life(3));
        assert_eq!(mirrors.offset(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn the_lag_is_that_of_the_oldest_shard() {
        let mirrors = Mirrors::new(Arc::new(Layout::new(2, 1)));
        assert_eq!((mirrors.lag(), mirrors.shown()), (None, 0));
        let begin = Instant::now();
        for shard in [0, 1] {
            mirrors.show(shard);
            assert_eq!(mirrors.lag(), None, "nothing is known of shard 1");
            mirrors.prove(shard, begin);
        }
        tokio::time::advance(Duration::from_secs(3)).await;
        mirrors.prove(0, Instant::now());
        assert_eq!((mirrors.lag(), mirrors.shown()), (Some(Duration::from_secs(3)), 2));
        mirrors.prove(1, begin + Duration::from_secs(1));
        mirrors.prove(1, begin);
        assert_eq!(mirrors.lag(), Some(Duration::from_secs(2)), "proofs are not taken back");
        mirrors.hide(1);
        assert!(mirrors.lag().is_none() && mirrors.shows(0) && !mirrors.shows(1));
    }
}
