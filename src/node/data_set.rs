//! The size of the data set next to `maxmemory`, as the workers publish it.
//!
//! `used_memory` is the memory that the reference would need for the data set, wherever the data
//! are, and the large buffers of clients, which count for `maxmemory` there as well. Without
//! `maxmemory` nobody compares it, and the size of the data set is published ten times a second.

use crate::config::{MaxmemoryPolicy, Settings};
use flagstone_storage::times::DataSetSize;
use flagstone_storage::value::AccessCounting;
use flagstone_storage::value::SIZE_UNIT;
use flagstone_wire::client_memory::CLIENTS;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that count although there are no keys: about those of the reference behind its start.
pub(crate) const EMPTY_BYTES: u64 = 1 << 20;

/// Part of `maxmemory` by which the data set may exceed it: the closer it comes to that, the more
/// writers are slowed.
const EXCESS_PART: u64 = 20;

/// Part of `maxmemory` that is freed at once beside the excess, so that not every write evicts.
const SLACK_PART: u64 = 1024;

/// The figures that a worker has published.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Share {
    keys: AtomicU64,
    expires: AtomicU64,
    units: AtomicU64,
}

/// See the module's description.
#[derive(Debug)]
pub struct DataSet {
    /// `maxmemory`; 0: no limit.
    limit: AtomicU64,
    /// True if some keys may be evicted, and if these must have an expiry.
    evicts: AtomicBool,
    is_volatile: AtomicBool,
    /// How accesses are counted: 0, or 1 and the factor and the time behind it.
    counting: AtomicU64,
    peak: AtomicU64,
    /// Returns the bytes of the clients' large buffers.
    buffers: fn() -> u64,
    shares: Vec<Share>,
}

impl DataSet {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            limit: AtomicU64::new(0),
            evicts: AtomicBool::new(false),
            is_volatile: AtomicBool::new(false),
            counting: AtomicU64::new(0),
            peak: AtomicU64::new(EMPTY_BYTES),
            buffers: || CLIENTS.kept(),
            shares: (0..workers).map(|_| Share::default()).collect(),
        }
    }

    /// Applies the settings.
    pub fn apply(&self, settings: &Settings) {
        let policy = settings.maxmemory_policy;
        let counting = settings.data.counts_accesses.map_or(0, |counting| {
            let [factor, minutes] = [counting.log_factor, counting.decay_minutes];
            1 << 63 | u64::from(factor.min(u32::MAX >> 1)) << 32 | u64::from(minutes)
        });
        self.counting.store(counting, Ordering::Relaxed);
        let evicts = policy != MaxmemoryPolicy::Noeviction && !settings.import_mode;
        self.evicts.store(evicts, Ordering::Relaxed);
        self.is_volatile.store(policy.is_volatile(), Ordering::Relaxed);
        self.limit.store(settings.maxmemory, Ordering::Relaxed);
    }

    /// Returns how accesses to keys are counted, if they are.
    #[inline]
    pub fn counting(&self) -> Option<AccessCounting> {
        match self.counting.load(Ordering::Relaxed) {
            0 => None,
            packed => Some(AccessCounting {
                log_factor: (packed >> 32) as u32 & (u32::MAX >> 1),
                decay_minutes: packed as u32,
            }),
        }
    }

    /// Returns true if the data set has a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != 0
    }

    /// Publishes the size of a worker's keys.
    pub fn publish(&self, worker: usize, size: DataSetSize) {
        let Some(share) = self.shares.get(worker) else { return };
        share.keys.store(size.keys, Ordering::Relaxed);
        share.expires.store(size.expires, Ordering::Relaxed);
        share.units.store(size.units, Ordering::Relaxed);
        self.peak.fetch_max(self.used(), Ordering::Relaxed);
    }

    /// Returns the size of the data set in bytes.
    pub fn bytes(&self) -> u64 {
        EMPTY_BYTES + SIZE_UNIT * self.sum(|share| &share.units)
    }

    /// Returns what `maxmemory` limits, `used_memory`: the data set and the clients' buffers.
    pub fn used(&self) -> u64 {
        self.bytes() + (self.buffers)()
    }

    /// Returns the greatest [`used`](Self::used) so far.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn sum(&self, of: impl Fn(&Share) -> &AtomicU64) -> u64 {
        self.shares.iter().map(|share| of(share).load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of keys that may be evicted.
    fn evictable(&self) -> u64 {
        let volatile = self.is_volatile.load(Ordering::Relaxed);
        self.sum(|share| if volatile { &share.expires } else { &share.keys })
    }

    /// Returns the bytes beyond the limit.
    fn excess(&self) -> u64 {
        match self.limit.load(Ordering::Relaxed) {
            0 => 0,
            limit => self.used().saturating_sub(limit),
        }
    }

    /// Returns true if the limit is exceeded, and no key may be evicted.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_limited() && self.excess() > 0 && !self.may_shrink()
    }

    fn may_shrink(&self) -> bool {
        self.evicts.load(Ordering::Relaxed) && self.evictable() > 0
    }

    /// Returns the units that a worker has to free, in proportion to its part of the data.
    pub fn to_free(&self, worker: usize) -> u64 {
        let excess = self.excess();
        let Some(share) = self.shares.get(worker) else { return 0 };
        if excess == 0 || !self.may_shrink() {
            return 0;
        }
        let by_number = self.is_volatile.load(Ordering::Relaxed);
        let of = |share: &Share| {
            let counter = if by_number { &share.expires } else { &share.units };
            counter.load(Ordering::Relaxed)
        };
        let (own, all) = (of(share), self.shares.iter().map(of).sum::<u64>());
        let wanted = (excess + self.limit.load(Ordering::Relaxed) / SLACK_PART) / SIZE_UNIT + 1;
        let part = u128::from(wanted) * u128::from(own) / u128::from(all.max(1));
        u64::try_from(part).unwrap_or(u64::MAX).max(u64::from(own > 0))
    }

    /// Returns the excess as a part of what is tolerated; 0 if nothing can be evicted.
    pub fn debt(&self) -> f64 {
        let excess = self.excess();
        if excess == 0 || !self.may_shrink() {
            return 0.0;
        }
        let tolerated = (self.limit.load(Ordering::Relaxed) / EXCESS_PART).max(EMPTY_BYTES);
        excess as f64 / tolerated as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(policy: MaxmemoryPolicy, maxmemory: u64) -> DataSet {
        let data_set = DataSet { buffers: || 0, ..DataSet::new(2) };
        let settings = Settings { maxmemory, maxmemory_policy: policy, ..Settings::default() };
        data_set.apply(&settings);
        data_set
    }

    fn size(keys: u64, expires: u64, units: u64) -> DataSetSize {
        DataSetSize { keys, expires, units }
    }

    #[test]
    fn without_a_limit_nothing_is_full() {
        let data_set = with(MaxmemoryPolicy::Noeviction, 0);
        data_set.publish(0, size(1, 0, u64::from(u32::MAX)));
        assert!(!data_set.is_full() && data_set.to_free(0) == 0 && data_set.debt() == 0.0);
        assert_eq!(data_set.peak(), data_set.bytes());
    }

    #[test]
    fn beyond_the_limit_writes_are_refused_if_nothing_may_go() {
        for (policy, is_full) in [
            (MaxmemoryPolicy::Noeviction, true),
            (MaxmemoryPolicy::VolatileLru, true),
            (MaxmemoryPolicy::AllkeysLru, false),
        ] {
            let data_set = with(policy, EMPTY_BYTES + 800);
            data_set.publish(0, size(10, 0, 100));
            assert!(!data_set.is_full());
            data_set.publish(1, size(10, 0, 1));
            assert_eq!(data_set.is_full(), is_full, "{policy:?}");
            assert_eq!(data_set.to_free(1) > 0, !is_full);
        }
        assert!(with(MaxmemoryPolicy::AllkeysLru, 1).is_full(), "there is no key to evict");
    }

    #[test]
    fn buffers_of_clients_count() {
        let mut data_set = with(MaxmemoryPolicy::AllkeysLru, EMPTY_BYTES + 800);
        data_set.publish(0, size(10, 0, 100));
        assert_eq!((data_set.to_free(0), data_set.used()), (0, EMPTY_BYTES + 800));
        data_set.buffers = || 400;
        assert_eq!((data_set.bytes(), data_set.used()), (EMPTY_BYTES + 800, EMPTY_BYTES + 1200));
        assert!(data_set.to_free(0) >= 50 && data_set.debt() > 0.0);
        let mut data_set = with(MaxmemoryPolicy::Noeviction, EMPTY_BYTES + 800);
        data_set.buffers = || 801;
        assert!(data_set.is_full());
    }

    #[test]
    fn each_worker_frees_its_part() {
        let data_set = with(MaxmemoryPolicy::AllkeysRandom, EMPTY_BYTES);
        data_set.publish(0, size(3, 0, 300_000));
        data_set.publish(1, size(1, 0, 100_000));
        let [most, least] = [0, 1].map(|worker| data_set.to_free(worker));
        assert!((300_000..301_000).contains(&most) && (100_000..101_000).contains(&least));
        let data_set = with(MaxmemoryPolicy::VolatileTtl, EMPTY_BYTES);
        data_set.publish(0, size(3, 0, 300_000));
        data_set.publish(1, size(1, 1, 100_000));
        assert!(data_set.to_free(0) == 0 && data_set.to_free(1) >= 400_000);
        assert!(data_set.debt() > 1.0);
    }
}
