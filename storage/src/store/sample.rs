//! Removing keys to keep the data set within `maxmemory`: samples of the keys in memory, and the
//! removal itself.

use super::Store;
use super::tables::SubTable;
use crate::notify::NotifyFlags;
use crate::value::{AccessCounting, Entry, KeyBuf};
use crate::words::RemovalCause;
use rand::{Rng, RngExt};

/// Entries that are examined for each entry of a sample.
const TRIES: usize = 32;

/// Entries that are examined to tell how many are of keys that exist.
const LIVE_TRIES: usize = 256;

/// The property of a key by which it goes before others. Of two keys, the one with the greater rank
/// goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The time since the last access.
    Idle,
    /// How rarely it is accessed.
    Rare(AccessCounting),
    /// How soon it expires.
    Due,
    Random,
}

impl Rank {
    fn of(self, entry: &Entry, now_ms: u64) -> u64 {
        match self {
            Self::Idle => u64::from(entry.idle_s(now_ms)),
            Self::Rare(counting) => u64::from(u8::MAX - entry.accesses(now_ms, counting)),
            Self::Due => u64::MAX - entry.expire_at_ms,
            Self::Random => rand::rng().next_u64(),
        }
    }
}

/// The keys that may be deleted to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictable {
    Any,
    /// Those with an expiry.
    Volatile,
    /// Those that expire at this time.
    At(u64),
}

impl Evictable {
    fn contains(self, entry: &Entry) -> bool {
        match self {
            Self::Any => true,
            Self::Volatile => entry.expire_at_ms != 0,
            Self::At(at_ms) => entry.expire_at_ms == at_ms,
        }
    }
}

/// A key of a sample.
#[derive(Clone, Debug)]
pub struct SampledKey {
    pub rank: u64,
    pub db: u32,
    pub key: KeyBuf,
}

/// Returns the number of entries of tables.
fn entries_of<'a>(tables: impl IntoIterator<Item = &'a SubTable>) -> usize {
    tables.into_iter().map(|table| table.entries().len()).sum()
}

/// Returns the entry at a position, counted through all these tables.
fn entry_at<'a>(
    tables: impl IntoIterator<Item = &'a SubTable>,
    mut position: usize,
) -> Option<&'a Entry> {
    tables.into_iter().find_map(|table| {
        let entry = table.entries().at(position);
        position = position.wrapping_sub(table.entries().len());
        entry
    })
}

impl Store {
    /// Sets how accesses are counted from now on; `None`: they are not.
    #[inline]
    pub fn count_accesses(&mut self, counting: Option<AccessCounting>) {
        self.counting = counting;
    }

    /// Returns about the number of keys in memory that exist, by a sample: entries of deleted keys
    /// stay while there may be others on disk.
    pub fn live_entries(&self) -> usize {
        let tables = || self.dbs.iter().flat_map(|db| &db.tables);
        let entries = entries_of(tables());
        if entries == 0 {
            return 0;
        }
        let mut random = rand::rng();
        let examined =
            (0..LIVE_TRIES).filter_map(|_| entry_at(tables(), random.random_range(0..entries)));
        let live = examined.filter(|entry| entry.is_live()).count();
        entries * live / LIVE_TRIES
    }

    /// Adds random keys in memory of each database to `sample`, up to `count`; `volatile`: only keys
    /// with an expiry. Fewer are found if such entries are rare.
    pub fn sample(
        &self,
        count: usize,
        volatile: bool,
        rank: Rank,
        now_ms: u64,
        sample: &mut Vec<SampledKey>,
    ) {
        let mut random = rand::rng();
        for (db, tables) in (0u32..).zip(&self.dbs) {
            let entries = entries_of(&tables.tables);
            if entries == 0 {
                continue;
            }
            let mut found = 0;
            for _ in 0..count * TRIES {
                let entry = entry_at(&tables.tables, random.random_range(0..entries));
                let wanted = |e: &&Entry| e.is_live() && (!volatile || e.expire_at_ms != 0);
                let Some(entry) = entry.filter(wanted) else { continue };
                let rank = rank.of(entry, now_ms);
                sample.push(SampledKey { rank, db, key: entry.key.clone() });
                found += 1;
                if found == count {
                    break;
                }
            }
        }
    }

    /// Deletes a key to make room, and returns its size in units; `None` if it does not exist, is
    /// not in memory, or is none of these.
    pub fn evict_key(&mut self, db: u32, key: &[u8], which: Evictable) -> Option<u32> {
        let touch = std::mem::replace(&mut self.touch, false);
        let found = self.find(db, key);
        self.touch = touch;
        let found = found.ok()??;
        let entry = found.entry(self);
        if !entry.is_live() || !which.contains(entry) {
            return None;
        }
        let units = entry.stored.units;
        let changes = self.stats.changes;
        let mut entry = self.change(found).ok()?;
        entry.clear();
        entry.event(NotifyFlags::EVICTED, "evicted");
        self.stats.changes = changes;
        self.evictions += 1;
        self.words.removal(db, key, RemovalCause::Evicted);
        Some(units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::scope::tests::store;
    use crate::value::{Str, Value};

    const COUNTING: AccessCounting = AccessCounting { log_factor: 10, decay_minutes: 1 };

    fn set(store: &mut Store, key: &[u8], expire_at_ms: u64) {
        let mut entry = store.entry_mut(0, key).unwrap();
        entry.value = Value::Str(Str::new(b"value"));
        entry.expire_at_ms = expire_at_ms;
    }

    #[test]
    fn a_sample_has_the_wanted_keys_with_their_ranks() {
        let mut store = store();
        store.count_accesses(Some(COUNTING));
        store.begin(1_000_000, true);
        for n in 0..200u32 {
            set(&mut store, format!("k{n}").as_bytes(), 0);
        }
        for n in 0..20u64 {
            set(&mut store, format!("v{n}").as_bytes(), 2_000_000 + n);
        }
        store.begin(1_050_000, true);
        for _ in 0..100 {
            store.entry(0, b"k7").unwrap();
        }
        let ranks = |volatile, rank| {
            let mut sample = Vec::new();
            store.sample(60, volatile, rank, 1_060_000, &mut sample);
            sample
        };
        let idle = ranks(false, Rank::Idle);
        assert!(idle.len() >= 50, "{}", idle.len());
        assert!(idle.iter().all(|k| k.rank == if k.key[..] == *b"k7" { 10 } else { 60 }));
        let due = ranks(true, Rank::Due);
        assert!(!due.is_empty() && due.iter().all(|k| k.key[0] == b'v'));
        let rare = ranks(false, Rank::Rare(COUNTING));
        let of = |name: &[u8]| rare.iter().find(|k| k.key[..] == *name).map(|k| k.rank);
        assert!(of(b"k7").is_none_or(|rank| rank < of(b"k8").unwrap_or(u64::MAX)));
    }

    #[test]
    fn deleted_keys_do_not_count_as_keys_in_memory() {
        let mut store = store();
        assert_eq!(store.live_entries(), 0);
        for n in 0..1000u32 {
            set(&mut store, &n.to_be_bytes(), 0);
        }
        assert_eq!(store.live_entries(), 1000);
        for n in 0..1000u32 {
            store.remove(0, &n.to_be_bytes()).unwrap();
        }
        assert_eq!(store.live_entries(), 0);
    }

    #[test]
    fn a_key_goes_with_its_event_and_its_size() {
        let mut store = store();
        set(&mut store, b"k", 0);
        set(&mut store, b"v", 99);
        store.seal();
        store.begin(5, true);
        store.notes.want(crate::notes::Interest { changes: true, events: NotifyFlags::EVICTED });
        assert_eq!(store.evict_key(0, b"k", Evictable::Volatile), None);
        assert_eq!(store.evict_key(0, b"v", Evictable::At(98)), None);
        assert!(store.evict_key(0, b"v", Evictable::At(99)).is_some_and(|units| units > 0));
        assert!(store.evict_key(0, b"k", Evictable::Any).is_some_and(|units| units > 0));
        assert_eq!(store.evict_key(0, b"k", Evictable::Any), None);
        assert_eq!((store.evictions, store.stats.evicted), (2, 0));
        let notes = store.notes.take();
        assert_eq!(notes.len(), 4, "{notes:?}");
        assert!(!store.exists(0, b"k").unwrap());
        assert!(!store.seal().ops.is_empty());
    }
}
