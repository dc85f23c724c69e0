//! The shards of other servers that a replica shows, and how new they are.

use super::GivenSlots;
use flagstone_storage::cluster::{ClusterMap, Life, MapShard};
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
    /// The number of the map since which its owner has had it, as it was shown last.
    since: AtomicU64,
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

    /// Shows a shard from now on, of the owner that has had it since a map.
    pub(super) fn show(&self, shard: u16, since: u64) {
        if let Some(mirror) = self.shards.get(usize::from(shard)) {
            mirror.since.store(since, Ordering::Release);
        }
        self.set(shard, true);
    }

    /// Returns true if a shard is shown of the owner that a map gives it.
    fn shows_of_owner(&self, entry: &MapShard) -> bool {
        let mirror = self.shards.get(usize::from(entry.id));
        let is_of_owner = |mirror: &Mirror| mirror.since.load(Ordering::Acquire) == entry.since;
        self.shows(entry.id) && mirror.is_some_and(is_of_owner)
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

    /// Returns the lsn up to which all records of an owner are shown, which asks for it, knows a map, and has
    /// given slots away; 0: that is not known. `map`: the newest one that this replica knows.
    ///
    /// A record may be of a shard that the owner has given away since. The next owner's engine has it, also if
    /// that one has given the shard away in turn, so it is shown once the shards of these slots are, each of its
    /// owner. Other shards do not matter. An owner without shards has no other records.
    pub fn tell(&self, owner: Life, (known, given): (u64, &GivenSlots), map: &ClusterMap) -> Lsn {
        self.asked.notify_waiters();
        let is_asked = |entry: &&MapShard| {
            entry.owner == Some(owner) || given.has_any_of(&map.slots_of(entry.id))
        };
        let shows_all = map.shards().iter().filter(is_asked).all(|it| self.shows_of_owner(it));
        if map.number() < known || !shows_all {
            return 0;
        }
        if map.is_open(owner) && map.owned_by(owner).next().is_none() {
            return Lsn::MAX;
        }
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
    use flagstone_storage::cluster::{MapDraft, NodeAddress, NodeId};

    /// Returns the state of a replica of two owners, each with a shard, these owners, and a draft behind that.
    fn mirrored() -> (Mirrors, [Life; 2], MapDraft) {
        let mut draft = MapDraft::create(2, 1000).unwrap();
        let address = NodeAddress { host: "h".to_owned(), port: 1, tls_port: None };
        let owners = [1, 2].map(|id| draft.join(NodeId([id; 20]), address.clone()).unwrap());
        draft.give(1, owners[0], owners[1]).unwrap();
        let draft = draft.map().draft();
        (Mirrors::new(Arc::new(Layout::new(2, 1))), owners, draft)
    }

    fn show_all(mirrors: &Mirrors, map: &ClusterMap) {
        map.shards().iter().for_each(|entry| mirrors.show(entry.id, entry.since));
    }

    #[test]
    fn nothing_is_said_of_shards_of_a_later_map() {
        let (mirrors, [owner, _], draft) = mirrored();
        let (map, now) = (draft.map(), draft.map().number());
        let tell = |known| mirrors.tell(owner, (known, &GivenSlots::default()), map);
        assert_eq!(tell(now), 0);
        show_all(&mirrors, map);
        assert_eq!(tell(now), 0);
        mirrors.set_applied(owner, (now, 100));
        assert_eq!([now - 1, now, now + 1].map(tell), [100, 100, 0]);
        mirrors.set_applied(owner, (0, 0));
        assert_eq!(tell(now), 0);
        mirrors.set_applied(owner, (now, 101));
        mirrors.keep_owners(|life| life != owner);
        assert_eq!(tell(now), 0);
    }

    /// Returns the slots of some shards.
    fn given(map: &ClusterMap, shards: &[u16]) -> GivenSlots {
        let mut given = GivenSlots::default();
        shards.iter().for_each(|shard| given.add(map.slots_of(*shard)));
        given
    }

    #[test]
    fn a_record_of_a_shard_that_was_given_away_counts_once_the_next_owner_is_shown() {
        let (mirrors, [owner, other], mut draft) = mirrored();
        show_all(&mirrors, draft.map());
        let before = draft.map().number();
        mirrors.set_applied(owner, (before, 100));
        mirrors.set_applied(other, (before, 50));
        draft.give(1, other, owner).unwrap();
        let map = draft.map();
        // The journal of its former owner is read on, without the records of the shard.
        mirrors.set_applied(owner, (map.number(), 200));
        let said = |known| {
            let by_first = mirrors.tell(owner, (known, &given(map, &[1])), map);
            [by_first, mirrors.tell(other, (known, &given(map, &[1])), map)]
        };
        assert_eq!([said(before), said(map.number())], [[0, 0]; 2]);
        let last = &map.shards()[1];
        mirrors.hide(last.id);
        assert_eq!(said(map.number()), [0, 0]);
        mirrors.show(last.id, last.since);
        // One that owns nothing any more need not be followed, and has nothing that is not shown.
        mirrors.keep_owners(|life| life == owner);
        assert_eq!(said(map.number()), [200, Lsn::MAX]);
        assert_eq!(mirrors.tell(Life(99), (map.number(), &given(map, &[])), map), 0, "nobody");
        mirrors.hide(0);
        assert_eq!(said(map.number()), [0, Lsn::MAX], "it never had shard 0");
    }

    #[test]
    fn shards_that_an_owner_never_had_do_not_matter_to_it() {
        let (mirrors, [owner, other], mut draft) = mirrored();
        show_all(&mirrors, draft.map());
        let map = draft.map().clone();
        mirrors.set_applied(owner, (map.number(), 100));
        mirrors.set_applied(other, (map.number(), 50));
        let said = |map: &ClusterMap, shards: &[u16]| {
            let known = (map.number(), &given(map, shards));
            [owner, other].map(|life| mirrors.tell(life, known, map))
        };
        // One that is damaged, or that nobody has.
        mirrors.hide(1);
        assert_eq!(said(&map, &[]), [100, 0]);
        assert_eq!(said(&map, &[1]), [0, 0], "there may be records of it");
        draft.park(1, other).unwrap();
        let parked = draft.map().clone();
        mirrors.set_applied(owner, (parked.number(), 101));
        assert_eq!(said(&parked, &[]), [101, Lsn::MAX]);
        assert_eq!(said(&parked, &[1]), [0, 0]);
    }

    #[test]
    fn the_offset_is_that_in_all_journals() {
        let mirrors = Mirrors::new(Arc::new(Layout::new(2, 1)));
        mirrors.set_applied(Life(3), (7, 100));
        mirrors.set_applied(Life(4), (7, 20));
        mirrors.show(0, 1);
        assert_eq!(mirrors.offset(), 0, "shard 1 is not shown");
        mirrors.show(1, 1);
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
            mirrors.show(shard, 1);
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
