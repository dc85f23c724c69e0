//! Deletes keys while the data set, with the large buffers of clients, is larger than `maxmemory` allows.
//!
//! After each commit beyond the limit the evictor frees the worker's part of the excess. Keys in
//! memory are chosen by samples, as in the reference. Keys that are not in memory were not used for
//! longer than those that are: with LRU and LFU they go first, in the order of their hashes, which
//! is none. Keys with an expiry are found by the expiry index, where it decides (TTL: each shard
//! keeps the first rows of its index in memory for that), or where samples find none. Deletions are changes like others: they are journalled with the open round,
//! keys that commands have locked stay, and watchers, tracking clients and subscribers hear of them.

use super::{LockKey, Worker};
use crate::config::{MaxmemoryPolicy, Settings};
use flagstone_storage::journal::JournalError;
use flagstone_storage::partition::{Counting, Partition};
use flagstone_storage::scan::{Cursor, DueCursor};
use flagstone_storage::store::{Evictable, Need, Rank, SampledKey, Store};
use flagstone_storage::times::FirstToExpire;
use rand::RngExt;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Maximum number of good candidates that are kept from one key to the next.
const POOL: usize = 16;

/// Number of samples in a row without a candidate after which keys in memory are given up.
const DRY_SAMPLES: usize = 4;

/// Keys that are read at once to find those that are not in memory, and how often for one batch.
const PAGE: usize = 512;
const PAGES: usize = 8;

/// Maximum number of keys that are deleted at once under their locks.
const BATCH: usize = 256;

/// Part of the keys that must be on disk only for those to be looked for.
const COLD_PART: u64 = 64;

/// How long keys that are on disk only are not looked for after none was found.
const COLD_AGAIN: Duration = Duration::from_secs(1);

/// How long no keys are evicted after the journal has refused a round with evictions: they are there again, and
/// others can do without the attempts.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// Tenacity beyond which a turn takes as long as it takes.
const TENACITY_MAX: u32 = 100;

/// The keys that go, and which go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EvictionRule {
    volatile: bool,
    rank: Rank,
}

impl EvictionRule {
    /// Returns the rule of the settings; `None`: no key is evicted.
    fn of(settings: &Settings) -> Option<Self> {
        let counting = settings.data.counts_accesses;
        let rank = match settings.maxmemory_policy {
            MaxmemoryPolicy::Noeviction => return None,
            MaxmemoryPolicy::AllkeysLru | MaxmemoryPolicy::VolatileLru => Rank::Idle,
            MaxmemoryPolicy::AllkeysLfu | MaxmemoryPolicy::VolatileLfu => Rank::Rare(counting?),
            MaxmemoryPolicy::AllkeysRandom | MaxmemoryPolicy::VolatileRandom => Rank::Random,
            MaxmemoryPolicy::VolatileTtl => Rank::Due,
        };
        Some(Self { volatile: settings.maxmemory_policy.is_volatile(), rank })
    }

    /// Returns the keys that may go.
    fn evictable(self) -> Evictable {
        if self.volatile { Evictable::Volatile } else { Evictable::Any }
    }

    /// Returns true if keys that are not in memory go before others.
    fn is_by_access(self) -> bool {
        matches!(self.rank, Rank::Idle | Rank::Rare(_))
    }
}

/// Position of the walk over all keys, or over all with an expiry.
#[derive(Default)]
struct Walk {
    /// Number of the pair of a shard and a database.
    place: usize,
    /// The shard of this pair, and the position in it.
    cursor: Option<(u16, Cursor)>,
    /// Positions in the shards' expiry indexes.
    times: HashMap<u16, DueCursor>,
}

/// State of the eviction of a worker's keys.
#[derive(Default)]
pub(super) struct Evictor {
    due: Notify,
    /// Candidates by rank, the best one last, and the rule by which they were chosen.
    pool: RefCell<(Option<EvictionRule>, Vec<SampledKey>)>,
    walk: RefCell<Walk>,
    /// Time until which keys on disk are not looked for.
    no_cold_until: Cell<Option<Instant>>,
    /// When the journal last refused a round with evictions.
    refused: Cell<Option<Instant>>,
    /// Forbids blind puts while the data set is limited: their sizes would count twice for a while.
    exact: RefCell<Option<Counting>>,
}

impl Evictor {
    /// Notes that a round with evictions could not be stored. A reason that concerns only what this round had
    /// costs the next one no time.
    pub(super) fn note_refusal(&self, error: &JournalError) {
        if !matches!(error, JournalError::TooLarge(_) | JournalError::NotOwned(_)) {
            self.refused.set(Some(Instant::now()));
        }
    }

    /// Returns how long no keys are to be evicted from now on.
    fn pause(&self, now: Instant) -> Duration {
        self.refused.take().map_or(Duration::ZERO, |refused| {
            REFUSED_AGAIN.saturating_sub(now.saturating_duration_since(refused))
        })
    }
}

/// Returns how long keys are evicted before commands have a turn.
fn turn(tenacity: u32) -> Duration {
    let us = match tenacity {
        0..=10 => 50.0 * f64::from(tenacity),
        11..TENACITY_MAX => 500.0 * 1.15_f64.powi(tenacity as i32 - 10),
        TENACITY_MAX.. => return Duration::MAX,
    };
    Duration::from_micros(us as u64)
}

impl Worker {
    /// Publishes the size of this worker's keys after a commit, if it is limited, and wakes the
    /// evictor if it is too large. While the journal takes nothing, that waits for the periodic look.
    #[inline]
    pub(super) fn watch_data_set(&self, partition: &Partition, is_stored: bool) {
        let data_set = &self.node.health.data_set;
        if data_set.is_limited() {
            data_set.publish(self.id, partition.data_set());
            if is_stored && data_set.to_free(self.id) > 0 {
                self.evictor.due.notify_one();
            }
        }
    }

    /// Applies the settings of the data set's size, publishes it, and evicts keys if it is too
    /// large. Called periodically, and when they change.
    pub(crate) fn look_at_data_set(&self) {
        let data_set = &self.node.health.data_set;
        data_set.apply(&self.settings());
        let mut partition = self.partition.borrow_mut();
        let mut exact = self.evictor.exact.borrow_mut();
        if !data_set.is_limited() {
            *exact = None;
        } else if exact.is_none() {
            *exact = Some(partition.begin_counting());
        }
        if EvictionRule::of(&self.settings()).is_none_or(|rule| rule.rank != Rank::Due) {
            partition.forget_first_times();
        }
        data_set.publish(self.id, partition.data_set());
        if data_set.to_free(self.id) > 0 {
            self.evictor.due.notify_one();
        }
    }

    /// Evicts keys while the data set is too large, until the worker ends.
    pub(crate) async fn run_evictor(self: Rc<Self>) {
        loop {
            self.evictor.due.notified().await;
            let pause = self.evictor.pause(Instant::now());
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let failed = &self.stats().failed_commits;
            let failed_before = failed.load(Ordering::Relaxed);
            while !self.is_stopping() && failed.load(Ordering::Relaxed) == failed_before {
                let settings = self.settings();
                let Some(rule) = EvictionRule::of(&settings) else { break };
                let units = self.node.health.data_set.to_free(self.id);
                // A replica has the keys of its primary.
                let is_replica = self.node.health.replica.is_following();
                // Looking at the size of the data set periodically begins anew.
                if units == 0 || is_replica || self.node.pauses.forbids_evictions() {
                    break;
                }
                if !self.needs_index(rule) && self.evict_sampled(rule, units, &settings) > 0 {
                    // The commit that stores this looks again.
                    break;
                }
                if self.evict_found(rule, units).await == 0
                    && self.evict_sampled(rule, units, &settings) == 0
                {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Returns true if the next keys to go are to be found by their rows, not in memory.
    fn needs_index(&self, rule: EvictionRule) -> bool {
        if rule.rank == Rank::Due {
            return true;
        }
        if self.evictor.no_cold_until.get().is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let partition = self.partition.borrow();
        let keys = partition.data_set().keys;
        let cold = keys.saturating_sub(partition.store.live_entries() as u64);
        if cold * COLD_PART <= keys {
            return false;
        }
        rule.is_by_access() || rand::rng().random_bool((cold as f64 / keys as f64).min(1.0))
    }

    /// Evicts keys in memory, by samples, for one turn at most. Returns the units that this will
    /// free.
    fn evict_sampled(self: &Rc<Self>, rule: EvictionRule, units: u64, settings: &Settings) -> u64 {
        let (began, now_ms) = (Instant::now(), self.node.clock.now_ms());
        let turn = turn(settings.maxmemory_eviction_tenacity);
        let mut kept = self.evictor.pool.borrow_mut();
        if kept.0 != Some(rule) {
            *kept = (Some(rule), Vec::new());
        }
        let pool = &mut kept.1;
        let mut partition = self.partition.borrow_mut();
        let locks = self.locks.borrow();
        let store = &mut partition.store;
        store.begin(now_ms, false);
        store.notes.want(self.node.interest(settings));
        let (mut freed, mut dry) = (0, 0);
        while freed < units && dry < DRY_SAMPLES && (freed == 0 || began.elapsed() < turn) {
            let mut sample = Vec::with_capacity(settings.maxmemory_samples);
            store.sample(settings.maxmemory_samples, rule.volatile, rule.rank, now_ms, &mut sample);
            sample.into_iter().for_each(|found| add_candidate(pool, found));
            let mut gone = None;
            while let Some(SampledKey { db, key, .. }) = pool.pop() {
                if !locks.blocks(db, std::iter::once(&key[..])) {
                    gone = store.evict_key(db, &key, rule.evictable());
                }
                if gone.is_some() {
                    break;
                }
            }
            dry = if gone.is_some() { 0 } else { dry + 1 };
            freed += gone.map_or(0, |units| u64::from(units.max(1)));
        }
        store.see_open_round();
        drop((locks, kept));
        self.take_notes(partition, 0);
        if freed > 0 {
            self.commit_soon();
        }
        freed
    }

    /// Evicts keys that are found by their rows, under their locks. Returns the units that this has
    /// freed.
    async fn evict_found(self: &Rc<Self>, rule: EvictionRule, units: u64) -> u64 {
        let size = self.partition.borrow().data_set();
        let mean = size.units / size.keys.max(1);
        let count = usize::try_from(units / mean.max(1) + 1).unwrap_or(BATCH).min(BATCH);
        if rule.rank == Rank::Due {
            return self.evict_first_to_expire(count, units).await;
        }
        let keys = self.walk_to_cold(rule, count).await;
        if keys.is_empty() {
            self.evictor.no_cold_until.set(Some(Instant::now() + COLD_AGAIN));
            return 0;
        }
        let (_lock, granted) = self.lock(&keys);
        if granted.await.is_err() || !self.load_keys(&keys).await {
            return 0;
        }
        let mut freed = 0;
        self.evict_in_unit(|store| {
            for (db, key) in &keys {
                if freed >= units {
                    break;
                }
                let gone = store.evict_key(*db, key, rule.evictable());
                freed += gone.map_or(0, |units| u64::from(units.max(1)));
            }
        });
        freed
    }

    /// Evicts keys that expire first, under their locks. Returns the units that this has freed, or
    /// one for each row that turned out to be obsolete.
    async fn evict_first_to_expire(self: &Rc<Self>, count: usize, units: u64) -> u64 {
        let rows = self.first_to_expire(count).await;
        let keys: Vec<LockKey> = rows.iter().map(|row| (row.db, row.key.clone())).collect();
        if keys.is_empty() {
            return 0;
        }
        let (_lock, granted) = self.lock(&keys);
        if granted.await.is_err() || !self.load_keys(&keys).await {
            return 0;
        }
        let (mut freed, mut obsolete) = (0, Vec::new());
        self.evict_in_unit(|store| {
            for row in &rows {
                if freed >= units {
                    break;
                }
                match store.evict_key(row.db, &row.key, Evictable::At(row.at_ms)) {
                    Some(units) => freed += u64::from(units.max(1)),
                    None if store.is_hot(row.db, &row.key) => obsolete.push(row),
                    None => {}
                }
            }
        });
        let mut partition = self.partition.borrow_mut();
        obsolete.iter().for_each(|row| partition.forget_first(row));
        freed + obsolete.len() as u64
    }

    /// Loads those of these keys that are not in memory; returns false if that fails.
    async fn load_keys(self: &Rc<Self>, keys: &[LockKey]) -> bool {
        let cold: Vec<Need> = {
            let mut partition = self.partition.borrow_mut();
            let cold = keys.iter().filter(|(db, key)| !partition.store.is_hot(*db, key));
            cold.map(|(db, key)| Need { db: *db, key: key.clone(), part: None }).collect()
        };
        cold.is_empty() || self.load(cold).await.is_ok()
    }

    /// Runs deletions to make room, and commits them.
    fn evict_in_unit(self: &Rc<Self>, delete: impl FnOnce(&mut Store)) {
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        store.begin(self.node.clock.now_ms(), false);
        store.notes.want(self.node.interest(&self.settings()));
        delete(store);
        store.see_open_round();
        self.take_notes(partition, 0);
        self.commit();
    }

    /// Returns the keys of this worker that expire first.
    async fn first_to_expire(self: &Rc<Self>, count: usize) -> Vec<FirstToExpire> {
        let shards: Vec<u16> = self.partition.borrow().shards.keys().copied().collect();
        let mut found = Vec::new();
        for shard in shards {
            loop {
                let (known, is_all) = self.partition.borrow_mut().first_to_expire(shard, count);
                if is_all || !self.read_first_times(shard).await {
                    found.extend(known);
                    break;
                }
            }
        }
        found.sort_unstable();
        found.truncate(count);
        found
    }

    /// Reads further rows of the beginning of a shard's expiry index; returns false if they cannot
    /// be read.
    async fn read_first_times(&self, shard: u16) -> bool {
        let stay = self.partition.borrow().stay(shard);
        let plan = self.partition.borrow_mut().plan_first_times(shard);
        let (Some(stay), Some((plan, reaches))) = (stay, plan) else { return false };
        let read = match self.node.background.spawn(plan.run()).await {
            Ok(Ok((rows, rest))) => Some((rows, rest.or(reaches))),
            Ok(Err(error)) => {
                self.tell_unreadable(&format!("the expiry index of shard {shard}"), &error);
                None
            }
            Err(_) => None,
        };
        if !self.is_here(stay) {
            return false;
        }
        let is_read = read.is_some();
        self.partition.borrow_mut().end_first_times(shard, read);
        is_read
    }

    /// Walks on to keys of which most are not in memory; with a rule by access only those count.
    async fn walk_to_cold(self: &Rc<Self>, rule: EvictionRule, count: usize) -> Vec<LockKey> {
        let mut found = Vec::new();
        for _ in 0..PAGES {
            let page = if rule.volatile { self.next_times().await } else { self.next_page().await };
            let mut partition = self.partition.borrow_mut();
            let store = &mut partition.store;
            found.extend(
                page.into_iter()
                    .filter(|(db, key)| !rule.is_by_access() || !store.is_hot(*db, key))
                    .take(count - found.len()),
            );
            if found.len() >= count {
                break;
            }
        }
        found
    }

    /// Returns the next keys in the order of slots and hashes, of one shard and database.
    async fn next_page(self: &Rc<Self>) -> Vec<LockKey> {
        let (db, shard, from) = {
            let partition = self.partition.borrow();
            let ids: Vec<u16> = partition.shards.keys().copied().collect();
            let databases = partition.store.databases() as usize;
            let mut walk = self.evictor.walk.borrow_mut();
            let places = ids.len() * databases;
            let with_keys = |place: &usize| partition.totals((*place % databases) as u32).0 > 0;
            let from = walk.place;
            let next = (from..from + places).map(|place| place % places.max(1)).find(with_keys);
            let Some(place) = next else { return Vec::new() };
            if place != from {
                (walk.place, walk.cursor) = (place, None);
            }
            let (db, shard) = ((place % databases) as u32, ids[place / databases]);
            // A shard that has come or gone since may have changed the numbers of the others.
            let from = walk.cursor.filter(|(of, _)| *of == shard);
            (db, shard, from.map_or(Cursor::START, |(_, from)| from))
        };
        let plan = self.partition.borrow().plan_scan(db, shard, from, PAGE);
        let Some(plan) = plan else { return Vec::new() };
        let Ok(Ok(page)) = self.node.background.spawn(plan.run()).await else { return Vec::new() };
        let mut walk = self.evictor.walk.borrow_mut();
        walk.cursor = page.next.map(|next| (shard, next));
        if page.next.is_none() {
            walk.place += 1;
        }
        page.keys.into_iter().map(|found| (db, found.key)).collect()
    }

    /// Returns the next keys with an expiry in the order of their times, of one shard.
    async fn next_times(self: &Rc<Self>) -> Vec<LockKey> {
        let (shard, from) = {
            let partition = self.partition.borrow();
            let mut walk = self.evictor.walk.borrow_mut();
            let ids: Vec<u16> = partition.shards.keys().copied().collect();
            if ids.is_empty() {
                return Vec::new();
            }
            walk.place = (walk.place + 1) % ids.len();
            let shard = ids[walk.place];
            (shard, walk.times.get(&shard).cloned().unwrap_or_else(|| DueCursor::at(0)))
        };
        let plan = self.partition.borrow().plan_times(shard, &from, PAGE);
        let Some((plan, reaches)) = plan else { return Vec::new() };
        let Ok(Ok((rows, rest))) = self.node.background.spawn(plan.run()).await else {
            return Vec::new();
        };
        let next = rest.or(reaches).unwrap_or_else(|| DueCursor::at(0));
        self.evictor.walk.borrow_mut().times.insert(shard, next);
        let partition = self.partition.borrow();
        let keys = rows.into_iter().filter(|row| !row.fields);
        let store = &partition.store;
        keys.filter_map(|row| Some((store.db_of_row(row.generation, &row.key)?, row.key))).collect()
    }
}

/// Adds a candidate, if it is better than one of a full pool.
fn add_candidate(pool: &mut Vec<SampledKey>, found: SampledKey) {
    let is_known = |other: &SampledKey| (other.db, &other.key) == (found.db, &found.key);
    if pool.iter().any(is_known) {
        return;
    }
    let place = pool.partition_point(|other| other.rank < found.rank);
    if pool.len() < POOL {
        pool.insert(place, found);
    } else if place > 0 {
        pool.insert(place, found);
        pool.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(rank: u64, key: &[u8]) -> SampledKey {
        SampledKey { rank, db: 0, key: key.into() }
    }

    #[test]
    fn the_pool_keeps_the_best() {
        let mut pool = Vec::new();
        for n in 0..100u64 {
            add_candidate(&mut pool, candidate(n * 37 % 100, &n.to_be_bytes()));
            add_candidate(&mut pool, candidate(n, &n.to_be_bytes()));
        }
        let ranks: Vec<u64> = pool.iter().map(|found| found.rank).collect();
        assert_eq!(ranks, (92..100).flat_map(|rank| [rank, rank]).collect::<Vec<_>>());
    }

    #[test]
    fn a_refusal_of_the_journal_costs_time_once_and_while_it_is_recent() {
        let evictor = Evictor::default();
        let now = Instant::now();
        assert_eq!(evictor.pause(now), Duration::ZERO);
        evictor.note_refusal(&JournalError::TooLarge("a row"));
        assert_eq!(evictor.pause(now), Duration::ZERO, "others are not too large");
        evictor.note_refusal(&JournalError::Failed("a fault".into()));
        let pause = evictor.pause(Instant::now());
        assert!(pause > Duration::ZERO && pause <= REFUSED_AGAIN, "{pause:?}");
        assert_eq!(evictor.pause(now), Duration::ZERO);
        evictor.refused.set(Some(now));
        assert_eq!(evictor.pause(now + REFUSED_AGAIN * 3 / 4), REFUSED_AGAIN / 4);
        evictor.refused.set(Some(now));
        assert_eq!(evictor.pause(now + REFUSED_AGAIN), Duration::ZERO);
    }

    #[test]
    fn a_turn_is_as_long_as_in_the_reference() {
        assert_eq!([0, 1, 10].map(|t| turn(t).as_micros()), [0, 50, 500]);
        assert_eq!(turn(11).as_micros(), 575);
        assert_eq!(turn(100), Duration::MAX);
    }

    #[test]
    fn each_policy_has_its_rule() {
        let rule = |policy| {
            let settings = Settings { maxmemory_policy: policy, ..Settings::default() };
            EvictionRule::of(&settings)
        };
        assert_eq!(rule(MaxmemoryPolicy::Noeviction), None);
        assert_eq!(
            rule(MaxmemoryPolicy::VolatileTtl),
            Some(EvictionRule { volatile: true, rank: Rank::Due })
        );
        assert_eq!(
            rule(MaxmemoryPolicy::AllkeysLru),
            Some(EvictionRule { volatile: false, rank: Rank::Idle })
        );
    }
}
