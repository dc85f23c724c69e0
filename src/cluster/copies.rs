//! The records of this server that replicas have, as these say in their answers to beats.

use flagstone_storage::cluster::Life;
use flagstone_storage::journal::Lsn;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module's description.
#[derive(Debug, Default)]
pub struct Copies {
    /// The last words of each replica: the number of the map with which it was asked, and the lsn up to which it
    /// has all records of the shards that this map gives this server.
    said: Mutex<BTreeMap<Life, (u64, Lsn)>>,
    /// Number of clients that wait for replicas.
    awaiting: AtomicUsize,
}

/// A client that waits for replicas: these are asked often meanwhile.
#[derive(Debug)]
pub struct AwaitedCopies<'a>(&'a AtomicUsize);

impl Drop for AwaitedCopies<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Copies {
    fn said(&self) -> MutexGuard<'_, BTreeMap<Life, (u64, Lsn)>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a replica has said that was asked with a map; 0: nothing; the greatest number: all records. What it has said before stays
    /// true, as it never shows less.
    pub fn note(&self, replica: Life, map: u64, lsn: Lsn) {
        if lsn > 0 {
            self.said().insert(replica, (map, lsn));
        }
    }

    /// Forgets a server that has ended.
    pub fn forget(&self, life: Life) {
        self.said().remove(&life);
    }

    /// Returns the number of replicas that have all records up to an lsn. `map`: the number of the newest map
    /// that gave this server a shard: one that was asked with an earlier map may not know of it.
    pub fn count(&self, lsn: Lsn, map: u64) -> usize {
        self.said().values().filter(|(known, has)| *known >= map && *has >= lsn).count()
    }

    pub(super) fn begin_wait(&self) -> AwaitedCopies<'_> {
        self.awaiting.fetch_add(1, Ordering::Relaxed);
        AwaitedCopies(&self.awaiting)
    }

    /// Returns true while a client waits for replicas.
    pub fn are_awaited(&self) -> bool {
        self.awaiting.load(Ordering::Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_count_if_they_know_of_all_shards() {
        let copies = Copies::default();
        copies.note(Life(4), 7, 100);
        copies.note(Life(5), 8, 90);
        assert_eq!(
            [(90, 7), (91, 7), (90, 8), (0, 9)].map(|(lsn, map)| copies.count(lsn, map)),
            [2, 1, 1, 0]
        );
        copies.note(Life(5), 9, 0);
        assert_eq!(copies.count(90, 8), 1, "it said so before");
        copies.forget(Life(5));
        assert_eq!(copies.count(1, 8), 0);
        assert!(!copies.are_awaited());
        let awaited = copies.begin_wait();
        assert!(copies.are_awaited());
        drop(awaited);
        assert!(!copies.are_awaited());
    }
}
