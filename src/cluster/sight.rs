//! This server's sight of its cluster, for its agent and for those who look: which servers answer, what could not
//! be done and why, and counts.

use super::Life;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Parts of a lease: the silence with which a server counts as away.
const SILENT: u32 = 3;

/// When each other server has answered last that it is well, and what it has said.
#[derive(Clone, Debug, Default)]
pub struct Heard(Arc<Mutex<BTreeMap<Life, Instant>>>, Arc<HeardObjects>);

/// The newest objects of the journals of other servers, as these have said.
#[derive(Debug, Default)]
struct HeardObjects {
    newest: Mutex<BTreeMap<Life, SaidOfJournal>>,
    told: Notify,
}

/// Words of a server on its journal.
#[derive(Clone, Copy, Debug)]
pub struct SaidOfJournal {
    /// When it was asked.
    pub asked: Instant,
    /// The number up to which all objects of the journal were stored.
    pub published: u64,
    /// The number of the map that it knew: nothing is said of shards that later maps give to others.
    pub map: u64,
}

impl Heard {
    /// Returns for how long a life has not answered; `None`: it is not known.
    pub fn silence(&self, life: Life) -> Option<Duration> {
        locked(&self.0).get(&life).map(Instant::elapsed)
    }

    /// Returns true if a life has answered lately.
    pub fn answers(&self, life: Life, lease: Duration) -> bool {
        self.silence(life).is_some_and(|silence| silence <= lease / SILENT)
    }

    pub fn note(&self, life: Life) {
        locked(&self.0).insert(life, Instant::now());
    }

    pub fn forget(&self, life: Life) {
        locked(&self.0).remove(&life);
        locked(&self.1.newest).remove(&life);
    }

    /// Notes the words of a life on its journal.
    pub fn note_published(&self, life: Life, said: SaidOfJournal) {
        locked(&self.1.newest).insert(life, said);
        self.1.told.notify_waiters();
    }

    /// Returns the last words of a life on its journal.
    pub fn published(&self, life: Life) -> Option<SaidOfJournal> {
        locked(&self.1.newest).get(&life).copied()
    }

    /// Waits until any life says something of its journal.
    pub async fn told(&self) {
        self.1.told.notified().await;
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct ClusterSight {
    pub heard: Heard,
    /// Lives that are silent, whose journals are watched: they are taken over if nothing is put there.
    watched: Mutex<BTreeSet<Life>>,
    /// Lives that have ended, and cannot be taken over, each for a reason.
    unsealed: Mutex<BTreeMap<Life, String>>,
    /// Shards that this server owns and could not take, each for a reason.
    untaken: Mutex<BTreeMap<u16, String>>,
    /// When the map that is known was the newest one for sure.
    confirmed: Mutex<Instant>,
    /// Lives that this server has taken over.
    pub takeovers: AtomicU64,
    /// Shards that it has taken, ...
    pub taken: AtomicU64,
    /// ... has given away, ...
    pub given: AtomicU64,
    /// ... and has split, ...
    pub split: AtomicU64,
    /// ... and attempts of all that which have failed.
    pub failures: AtomicU64,
}

impl Default for ClusterSight {
    fn default() -> Self {
        Self {
            heard: Heard::default(),
            watched: Mutex::default(),
            unsealed: Mutex::default(),
            untaken: Mutex::default(),
            confirmed: Mutex::new(Instant::now()),
            takeovers: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            split: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }
}

impl ClusterSight {
    pub fn set_watched(&self, lives: impl Iterator<Item = Life>) {
        *locked(&self.watched) = lives.collect();
    }

    pub fn is_watched(&self, life: Life) -> bool {
        locked(&self.watched).contains(&life)
    }

    /// Notes that a life has ended, and why it cannot be taken over.
    pub fn note_unsealed(&self, life: Life, why: String) {
        locked(&self.unsealed).insert(life, why);
    }

    /// Forgets those for which that does not hold any more.
    pub fn keep_unsealed(&self, is_ended: impl Fn(Life) -> bool) {
        locked(&self.unsealed).retain(|life, _| is_ended(*life));
    }

    /// Returns the lives that have ended, and why they cannot be taken over.
    pub fn unsealed(&self) -> BTreeMap<Life, String> {
        locked(&self.unsealed).clone()
    }

    /// Notes that shards could not be taken, and why.
    pub fn note_untaken(&self, shards: impl Iterator<Item = u16>, why: &str) {
        locked(&self.untaken).extend(shards.map(|shard| (shard, why.to_owned())));
    }

    /// Forgets those for which that does not hold any more.
    pub fn keep_untaken(&self, is_untaken: impl Fn(u16) -> bool) {
        locked(&self.untaken).retain(|shard, _| is_untaken(*shard));
    }

    pub fn is_untaken(&self, shard: u16) -> bool {
        locked(&self.untaken).contains_key(&shard)
    }

    /// Returns the shards that could not be taken, and why.
    pub fn untaken(&self) -> BTreeMap<u16, String> {
        locked(&self.untaken).clone()
    }

    /// Notes that the map that is known is the newest one.
    pub(super) fn confirm(&self) {
        *locked(&self.confirmed) = Instant::now();
    }

    /// Returns how long ago the map that is known was the newest one for sure.
    pub fn map_age(&self) -> Duration {
        locked(&self.confirmed).elapsed()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
