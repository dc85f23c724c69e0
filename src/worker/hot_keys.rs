//! The keys that a worker's commands name most often, by samples of the commands.
//!
//! Of about 64 commands, one is looked at, and of more and more as a window goes on: so the costs of
//! a worker with many commands are bounded. The keys of a command that is looked at go into a summary of bounded size (A. Metwally,
//! D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
//! Streams", 2005): a key that has no place takes that of the least frequent one, with its count.
//! So a count may be too high by the least count, never too low. Each window of some seconds begins
//! anew; commands report the last full one.

use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Commands of which about one is looked at when a window begins.
const SAMPLED: u32 = 64;

/// Number of commands that are looked at before half as many are from then on.
const SAMPLES: u32 = 512;

/// Commands of which about one is looked at always.
const MOST_SAMPLED: u32 = 1 << 15;

/// Number of keys that a window counts.
const MAX_COUNTED: usize = 128;

/// Number of keys of a full window that are kept.
pub(crate) const MAX_HOT: usize = 16;

/// Number of keys of one command that are counted.
const MAX_KEYS: usize = 8;

/// Maximum length of a key that is counted, in bytes.
const MAX_KEY: usize = 1024;

/// Length of a window.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);

/// A key and how often it is named.
#[derive(Clone, Debug, PartialEq)]
pub struct HotKey {
    pub db: u32,
    pub key: Box<[u8]>,
    /// Commands per second that name it: about, at most.
    pub per_second: f64,
}

/// A key that the window counts.
#[derive(Debug)]
struct CountedKey {
    db: u32,
    key: Box<[u8]>,
    /// Commands that name it: about, at most.
    count: u64,
    /// Number of them that were looked at since it has its place.
    samples: u64,
    /// Part of the count that may be another key's.
    excess: u64,
}

/// Counts of the keys of one window.
#[derive(Debug, Default)]
struct KeyCounts(Vec<CountedKey>);

impl KeyCounts {
    /// Counts a key that a command names, which stands for so many commands.
    fn add(&mut self, db: u32, key: &[u8], commands: u64) {
        if let Some(known) = self.0.iter_mut().find(|known| known.db == db && *known.key == *key) {
            known.count += commands;
            known.samples += 1;
            return;
        }
        let counted = CountedKey { db, key: key.into(), count: commands, samples: 1, excess: 0 };
        if self.0.len() < MAX_COUNTED {
            return self.0.push(counted);
        }
        if let Some(least) = self.0.iter_mut().min_by_key(|known| known.count) {
            let excess = least.count;
            *least = CountedKey { count: excess + commands, excess, ..counted };
        }
    }

    /// Ends the window, and returns its most frequent keys, the most frequent first. Those of which
    /// most may be another key's are left out.
    fn end(&mut self, seconds: f64) -> Vec<HotKey> {
        let mut all = std::mem::take(&mut self.0);
        all.retain(|counted| counted.samples > 1 && counted.excess * 2 <= counted.count);
        all.sort_by_key(|counted| std::cmp::Reverse(counted.count));
        all.truncate(MAX_HOT);
        let rate = |count: u64| count as f64 / seconds;
        all.into_iter()
            .map(|CountedKey { db, key, count, .. }| HotKey { db, key, per_second: rate(count) })
            .collect()
    }
}

/// The sampler of a worker.
#[derive(Debug)]
pub(crate) struct HotKeys {
    /// Commands until the next one is looked at.
    left: Cell<u32>,
    /// Commands of which about one is looked at now, and how many were since that is so.
    every: Cell<u32>,
    samples: Cell<u32>,
    /// State of the generator of the gaps.
    random: Cell<u32>,
    counts: RefCell<KeyCounts>,
    began_ms: Cell<u64>,
    last: RefCell<Vec<HotKey>>,
}

impl HotKeys {
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            left: Cell::new(SAMPLED),
            every: Cell::new(SAMPLED),
            samples: Cell::new(0),
            random: Cell::new(now_ms as u32 | 1),
            counts: RefCell::default(),
            began_ms: Cell::new(now_ms),
            last: RefCell::default(),
        }
    }

    /// Counts down; returns true if this command is looked at. The gaps vary, so that a repeated
    /// pipeline is not looked at in one place only.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        let left = self.left.get() - 1;
        self.left.set(left);
        if left > 0 {
            return false;
        }
        true
    }

    /// Counts the keys of a command, and draws the next one to look at.
    #[cold]
    pub(super) fn see<'a>(&self, keys: impl Iterator<Item = (u32, &'a [u8])>) {
        let every = self.every.get();
        let mut counts = self.counts.borrow_mut();
        keys.filter(|(_, key)| key.len() <= MAX_KEY)
            .take(MAX_KEYS)
            .for_each(|(db, key)| counts.add(db, key, every.into()));
        self.samples.set(self.samples.get() + 1);
        if self.samples.get() == SAMPLES {
            self.samples.set(0);
            self.every.set((every * 2).min(MOST_SAMPLED));
        }
        // A linear congruential generator (Numerical Recipes).
        let random = self.random.get().wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.random.set(random);
        // For 64: 1 to 127, on average 64.
        self.left.set((random >> 16) % (2 * self.every.get() - 1) + 1);
    }

    /// Ends the window if it is over.
    pub(super) fn turn(&self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.began_ms.get());
        if u128::from(passed_ms) >= WINDOW.as_millis() {
            self.began_ms.set(now_ms);
            self.every.set(SAMPLED);
            self.samples.set(0);
            self.left.set(self.left.get().min(SAMPLED));
            *self.last.borrow_mut() = self.counts.borrow_mut().end(passed_ms as f64 / 1000.0);
        }
    }

    /// Forgets keys that are gone.
    pub(super) fn forget(&self, is_gone: impl Fn(&[u8]) -> bool) {
        self.counts.borrow_mut().0.retain(|counted| !is_gone(&counted.key));
        self.last.borrow_mut().retain(|hot| !is_gone(&hot.key));
    }

    /// Returns the most frequent keys of the last full window.
    pub(crate) fn last(&self) -> Vec<HotKey> {
        self.last.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frequent_keys_are_found_among_many_others() {
        let mut counts = KeyCounts::default();
        for n in 0..100_000_u32 {
            let rare = n.to_be_bytes();
            counts.add(0, &rare, 64);
            match n % 10 {
                0 | 1 => counts.add(0, b"hottest", 64),
                2 => counts.add(1, b"warm", 64),
                _ => {}
            }
            assert!(counts.0.len() <= MAX_COUNTED);
        }
        let hot = counts.end(10.0);
        let names: Vec<(u32, &[u8])> = hot.iter().map(|hot| (hot.db, &*hot.key)).collect();
        assert_eq!(names, [(0, &b"hottest"[..]), (1, b"warm")]);
        let true_rate = 20_000.0 * f64::from(SAMPLED) / 10.0;
        assert!((hot[0].per_second - true_rate) / true_rate < 0.1, "{hot:?}");
        assert!(counts.0.is_empty());
    }

    /// Runs commands that name one key, and returns how many were looked at.
    fn run(sampler: &HotKeys, commands: u32) -> usize {
        let named = [(0, &b"key"[..]), (0, &[0; MAX_KEY + 1])];
        let due = (0..commands).filter(|_| sampler.is_due());
        due.inspect(|_| sampler.see(named.into_iter())).count()
    }

    #[test]
    fn one_of_64_commands_is_looked_at_and_a_window_lasts() {
        let sampler = HotKeys::new(5000);
        let due = run(&sampler, 16_000);
        assert!((220..280).contains(&due), "{due}");
        sampler.turn(5000 + WINDOW.as_millis() as u64 - 1);
        assert_eq!(sampler.last(), []);
        sampler.turn(5000 + WINDOW.as_millis() as u64);
        let per_second = due as f64 * f64::from(SAMPLED) / WINDOW.as_secs_f64();
        assert_eq!(sampler.last(), [HotKey { db: 0, key: (*b"key").into(), per_second }]);
        run(&sampler, 1000);
        sampler.forget(|key| key == b"other");
        assert_eq!(sampler.last().len(), 1);
        sampler.forget(|key| key == b"key");
        assert_eq!(sampler.last(), []);
        sampler.turn(5000 + 2 * WINDOW.as_millis() as u64);
        assert_eq!(sampler.last(), [], "nobody has named it since");
    }

    #[test]
    fn a_busy_worker_looks_at_few_commands() {
        let sampler = HotKeys::new(5000);
        let due = run(&sampler, 5_000_000);
        assert!(due < 8 * SAMPLES as usize, "{due}");
        sampler.turn(5000 + WINDOW.as_millis() as u64);
        let [hot] = &sampler.last()[..] else { panic!("{:?}", sampler.last()) };
        assert!((hot.per_second - 500_000.0).abs() < 50_000.0, "{hot:?}");
        // The next window begins anew.
        let due = run(&sampler, 16_000);
        assert!((200..300).contains(&due), "{due}");
    }
}
