//! Keeps the hot tier within its budget: evicts whole entries that were not used for a while and,
//! of large values, the elements that are in the journal.

use crate::store::{DirtyKey, Store};
use crate::value::{Str, Value};

/// Elements of a large value that are examined for each step.
const SHED_PER_STEP: usize = 2;

/// Maximum number of large collections that one call takes elements of.
const SHED_AT_ONCE: usize = 8;

/// Number of looks after which a large string that nobody uses meanwhile is dropped, however often it
/// was used before.
const LOOKS: usize = 4;

/// Divides the budget: the part by which it is exceeded before large strings are dropped out of turn.
const EXCESS_PART: usize = 8;

/// Steps that a look at a large string counts: it is found by its name.
const STEPS_PER_LOOK: usize = 8;

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
    /// Strings have their turn among all entries, unless so much has come in that it cannot wait for that.
    fn shed_large(&mut self, budget: usize, steps: usize, keep: &impl Fn(u32, &[u8]) -> bool) {
        let all = self.large.len();
        let each = (steps / all.clamp(1, SHED_AT_ONCE)).max(1);
        let far = budget.saturating_add(budget / EXCESS_PART);
        let (mut collections, mut strings) = (all.min(SHED_AT_ONCE), 0);
        for look in 0..(all * LOOKS).min((steps / STEPS_PER_LOOK).max(SHED_AT_ONCE)) {
            let is_far = self.memory > far && (look < all || strings > 0);
            let has_turn = look < all && collections > 0;
            if self.memory <= budget || !(is_far || has_turn) {
                return;
            }
            let Some(key) = self.large.pop_front() else { return };
            let Some(entry) = self.get_mut(key.db, key.at, &key.key) else { continue };
            entry.large = false;
            let (is_string, stays) = (matches!(entry.value, Value::Str(_)), keep(key.db, &key.key));
            if is_string {
                strings += 1;
                if is_far && !stays {
                    self.shed_string(&key);
                }
            }
            self.recount_key(&key);
            // Those that stay do not count: they would keep all others from having a turn.
            if !is_string && !stays && collections > 0 {
                collections -= 1;
                self.shed(key.db, &key.key, each * SHED_PER_STEP);
            }
        }
    }

    /// Drops all chunks of a string that are in the journal, unless it was used since earlier looks.
    fn shed_string(&mut self, key: &DirtyKey) {
        let Some(entry) = self.get_mut(key.db, key.at, &key.key) else { return };
        if entry.freq > 0 {
            entry.freq /= 2;
        } else if let Value::Str(Str::Big(big)) = &mut entry.value {
            big.shed();
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
    use super::EXCESS_PART;
    use crate::store::Store;
    use crate::store::scope::tests::store;
    use crate::value::{Hash, Str, Value};

    const LONG: usize = 1 << 20;

    fn set(store: &mut Store, key: &[u8], bytes: usize) {
        store.entry_mut(0, key).unwrap().value = Value::Str(Str::new(&vec![b'v'; bytes]));
    }

    /// Long strings among many short ones.
    #[test]
    fn long_strings_make_room_by_their_bytes() {
        let mut store = store();
        for n in 0..20_000u32 {
            set(&mut store, &n.to_be_bytes(), 100);
        }
        _ = store.seal();
        let short = store.memory();
        let names: Vec<Vec<u8>> = (0..16).map(|n| format!("long {n}").into_bytes()).collect();
        names.iter().for_each(|name| set(&mut store, name, LONG));
        let round = store.seal().round;
        assert!(store.memory() > short + 16 * LONG);
        // They were used lately; a key that is locked stays as it is.
        let budget = short + 2 * LONG;
        let locked = |_, key: &[u8]| key == names[3];
        for _ in 0..2 {
            store.evict(budget, round, 2048, locked);
        }
        assert!(store.memory() <= budget + budget / EXCESS_PART, "{}", store.memory());
        let is_whole = |store: &mut Store, name: &[u8]| {
            store.entry_for_part(0, name).is_some_and(|entry| entry.value.require_whole().is_ok())
        };
        assert!(is_whole(&mut store, &names[3]));
        assert!(names.iter().filter(|name| is_whole(&mut store, name)).count() < 4);
    }

    #[test]
    fn a_long_string_that_is_used_stays_longer() {
        let mut store = store();
        for key in [&b"used"[..], b"idle"] {
            set(&mut store, key, LONG);
        }
        let round = store.seal().round;
        store.begin(0, true);
        for _ in 0..4 {
            store.string(0, b"used").unwrap();
        }
        let budget = store.memory() - LONG / 2;
        for _ in 0..3 {
            store.evict(budget, round, 16, |_, _| false);
        }
        let mut holds = |key: &[u8]| {
            let entry = store.entry_for_part(0, key);
            entry.is_some_and(|entry| entry.value.memory() >= LONG)
        };
        assert_eq!((holds(b"used"), holds(b"idle")), (true, false));
    }

    /// Commands may hold very many collections.
    #[test]
    fn collections_that_are_locked_keep_no_others_from_their_turn() {
        let mut store = store();
        for key in 0..24u8 {
            let mut hash = Hash::new();
            (0..600u32).for_each(|n| _ = hash.set(&n.to_be_bytes(), &[b'v'; 1024], 0));
            hash.make_table();
            store.entry_mut(0, &[key]).unwrap().value = Value::Hash(Box::new(hash));
        }
        let round = store.seal().round;
        let locked: Vec<Vec<u8>> =
            store.large.iter().take(12).map(|large| large.key.to_vec()).collect();
        assert_eq!(locked.len(), 12);
        let before = store.memory();
        store.evict(before / 2, round, 2048, |_, key| locked.iter().any(|name| name == key));
        assert!(store.memory() < before - LONG, "{} of {before}", store.memory());
        for name in &locked {
            let entry = store.entry_for_part(0, name).expect("it is there");
            assert!(entry.value.memory() > 600 << 10);
        }
    }

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
