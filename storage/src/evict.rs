//! Keeps the hot tier within its budget: evicts whole entries that were not used for a while and,
//! of large values, the elements that are in the journal.

use crate::store::Store;

/// Elements of a large value that are examined for each step.
const SHED_PER_STEP: usize = 2;

impl Store {
    /// Evicts until at most `budget` bytes are held or about `steps` entries were examined. Evicted
    /// entries are clean, durable, and were not used since the hand last passed. Keys for which
    /// `keep` returns true stay (they are locked).
    pub fn evict(
        &mut self,
        budget: usize,
        durable: u64,
        steps: usize,
        keep: impl Fn(u32, &[u8]) -> bool,
    ) {
        self.shed_large(budget, steps / 2, &keep);
        self.evict_entries(budget, durable, steps, &keep);
    }

    /// Drops elements of a collection from memory, examining up to `steps`: those that are in the
    /// journal.
    pub fn shed(&mut self, db: u32, key: &[u8], steps: usize) {
        if let Some(entry) = self.entry_for_part(db, key)
            && let Some(collection) = entry.value.collection_mut()
        {
            collection.shed(steps);
            self.recount(db, key);
        }
    }

    /// Drops parts of large values from memory, one value after the other. Elements not yet in the
    /// journal stay; elements that are not durable may go: the entry stays and knows its round.
    fn shed_large(&mut self, budget: usize, steps: usize, keep: &impl Fn(u32, &[u8]) -> bool) {
        let each = (steps / self.large.len().clamp(1, 8)).max(1);
        for _ in 0..self.large.len().min(8) {
            if self.memory <= budget {
                return;
            }
            let Some(key) = self.large.pop_front() else { return };
            let Some(entry) = self.get_mut(key.db, key.at, &key.key) else { continue };
            entry.large = false;
            self.recount_key(&key);
            if !keep(key.db, &key.key) {
                self.shed(key.db, &key.key, each * SHED_PER_STEP);
            }
        }
    }

    fn evict_entries(
        &mut self,
        budget: usize,
        durable: u64,
        steps: usize,
        keep: &impl Fn(u32, &[u8]) -> bool,
    ) {
        let mut left = steps;
        let mut rounds = 0;
        while self.memory > budget && left > 0 {
            let (db, table_no, position) = self.hand;
            let Some(tables) = self.dbs.get_mut(db).map(|d| &mut d.tables) else {
                self.hand = (0, 0, 0);
                rounds += 1;
                if rounds == 2 {
                    // Entries used since the last call count as recently used.
                    return;
                }
                continue;
            };
            let Some(table) = tables.get_mut(table_no) else {
                self.hand = (db + 1, 0, 0);
                continue;
            };
            left -= 1;
            let Some(entry) = table.entry_mut(position) else {
                self.hand = (db, table_no + 1, 0);
                continue;
            };
            self.hand.2 += 1;
            if entry.dirty || entry.round > durable || keep(db as u32, &entry.key) {
                continue;
            }
            if entry.freq > 0 {
                entry.freq /= 2;
                continue;
            }
            // Large values shrink first: their positions of elements are worth keeping.
            if entry.can_shrink() {
                continue;
            }
            table.partial |= entry.is_live();
            if let Some(entry) = table.remove_at(position) {
                // The last entry has taken the position.
                self.hand.2 = position;
                self.memory = self.memory.saturating_sub(entry.counted);
                self.stats.dropped += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::store::scope::tests::store;
    use crate::value::{Str, Value};

    #[test]
    fn entries_that_are_not_durable_stay_however_small_the_budget() {
        let mut store = store();
        let mut rounds = [0; 2];
        for (round, key) in rounds.iter_mut().zip([&b"first"[..], b"second"]) {
            store.entry_mut(0, key).unwrap().value = Value::Str(Str::new(b"value"));
            *round = store.seal().round;
        }
        let mut evict = |durable: u64| {
            // Entries used often are evicted at the third time.
            for _ in 0..4 {
                store.evict(0, durable, 200_000, |_, _| false);
            }
            (store.is_hot(0, b"first"), store.is_hot(0, b"second"))
        };
        assert!(rounds[0] < rounds[1]);
        assert_eq!(evict(rounds[0] - 1), (true, true));
        assert_eq!(evict(rounds[0]), (false, true));
        assert_eq!(evict(rounds[1]), (false, false));
    }
}
