//! Which worker owns each shard.

use flagstone_storage::slot::MAX_SHARDS;
use std::sync::atomic::{AtomicU16, Ordering};

/// The worker of each shard that there may ever be. Shard n belongs to worker n mod workers, except one that
/// was split from another while the process runs: it stays with the worker of that until the next start.
#[derive(Debug)]
pub(super) struct ShardWorkers(Box<[AtomicU16]>);

impl ShardWorkers {
    /// Creates the table for so many workers.
    pub(super) fn new(workers: usize) -> Self {
        let worker = |shard: u16| AtomicU16::new((usize::from(shard) % workers) as u16);
        Self((0..MAX_SHARDS).map(worker).collect())
    }

    /// Returns the worker of a shard.
    #[inline]
    pub(super) fn of(&self, shard: u16) -> usize {
        usize::from(self.0[usize::from(shard)].load(Ordering::Relaxed))
    }

    /// Gives a shard that is new to a worker. Its slots become its own behind that.
    pub(super) fn set(&self, shard: u16, worker: usize) {
        self.0[usize::from(shard)].store(worker as u16, Ordering::Relaxed); // there are no more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_dealt_in_turn_unless_one_is_given_to_a_worker() {
        let workers = ShardWorkers::new(3);
        assert_eq!([0, 1, 2, 3, 1023].map(|shard| workers.of(shard)), [0, 1, 2, 0, 0]);
        workers.set(3, 2);
        assert_eq!([2, 3, 4].map(|shard| workers.of(shard)), [2, 2, 1]);
    }
}
