//! The biggest keys of a worker. No scan finds them: each value is looked at when it is written or
//! loaded, and the biggest of each type are kept.
//!
//! A string counts by its bytes, any other value by its elements, which are known even if only a
//! part of the value is in memory. Keys that are kept are looked at again while they are in memory
//! ([`Store::refresh_big_keys`]), so one that shrinks is found, and leave when they are deleted. A
//! key that is not in memory is as it was when it was.

use super::Store;
use crate::slot::KeyHash;
use crate::value::Value;

/// Number of keys of each type that are kept.
pub const MAX_BIG: usize = 16;

/// Names of the types.
const TYPES: [&str; 6] = ["string", "hash", "set", "list", "zset", "stream"];

/// Words of the marks of kept keys.
const MARKS: usize = 16;

/// Returns word and bit of a key's mark.
fn mark(at: KeyHash) -> (usize, u64) {
    ((at.hash >> 6) as usize % MARKS, 1 << (at.hash & 63))
}

/// A big key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BigKey {
    /// Its database.
    pub db: u32,
    pub key: Box<[u8]>,
    pub type_name: &'static str,
    /// Bytes of a string, elements of another value.
    pub size: u64,
}

/// A big key as it was seen.
#[derive(Debug)]
struct SeenKey {
    generation: u32,
    at: KeyHash,
    key: Box<[u8]>,
    size: u64,
}

/// The biggest keys that were seen.
#[derive(Debug, Default)]
pub(super) struct BigKeys {
    by_type: [Vec<SeenKey>; TYPES.len()],
    /// Sizes that a key must exceed to be kept.
    floors: [u64; TYPES.len()],
    /// A bit for each kept key, by its hash: most other keys have none.
    marks: [u64; MARKS],
}

/// The position of a value's type, and its size.
pub(crate) type Measure = (usize, u64);

/// Measures a value; `None` if it is absent.
pub(crate) fn measure(value: &Value) -> Option<Measure> {
    let at = match value {
        Value::Absent => return None,
        Value::Str(string) => return Some((0, string.len() as u64)),
        Value::Hash(_) => 1,
        Value::Set(_) => 2,
        Value::List(_) => 3,
        Value::Zset(_) => 4,
        Value::Stream(_) => 5,
    };
    Some((at, value.collection()?.len()))
}

impl BigKeys {
    #[cold]
    fn keep(&mut self, (kind, size): Measure, generation: u32, at: KeyHash, key: &[u8]) {
        let keys = &mut self.by_type[kind];
        let is_it = |seen: &&mut SeenKey| seen.generation == generation && *seen.key == *key;
        match keys.iter_mut().find(is_it) {
            Some(seen) => seen.size = size,
            None => keys.push(SeenKey { generation, at, key: key.into(), size }),
        }
        self.settle(kind);
    }

    #[cold]
    fn drop_key(&mut self, generation: u32, key: &[u8]) {
        for kind in 0..TYPES.len() {
            self.by_type[kind].retain(|seen| seen.generation != generation || *seen.key != *key);
            self.settle(kind);
        }
    }

    /// Drops the keys of some slots.
    pub(super) fn forget(&mut self, slots: &std::ops::Range<u16>) {
        for kind in 0..TYPES.len() {
            let before = self.by_type[kind].len();
            self.by_type[kind].retain(|seen| !slots.contains(&seen.at.slot));
            if self.by_type[kind].len() != before {
                self.settle(kind);
            }
        }
    }

    /// Drops the smallest of too many keys of a type, and sets floor and marks.
    fn settle(&mut self, kind: usize) {
        let keys = &mut self.by_type[kind];
        keys.sort_by_key(|seen| std::cmp::Reverse(seen.size));
        keys.truncate(MAX_BIG);
        let is_full = keys.len() == MAX_BIG;
        self.floors[kind] = keys.last().filter(|_| is_full).map_or(0, |seen| seen.size);
        self.marks = [0; MARKS];
        for seen in self.by_type.iter().flatten() {
            let (word, bit) = mark(seen.at);
            self.marks[word] |= bit;
        }
    }
}

impl Store {
    /// Looks at the size of a key that was written, deleted or loaded.
    #[inline]
    pub(crate) fn see_size(
        &mut self,
        generation: u32,
        at: KeyHash,
        key: &[u8],
        measured: Option<Measure>,
    ) {
        match measured {
            Some((kind, size)) if size > self.big.floors[kind] => {
                self.big.keep((kind, size), generation, at, key);
            }
            Some(_) => {}
            None => {
                let (word, bit) = mark(at);
                if self.big.marks[word] & bit != 0 {
                    self.big.drop_key(generation, key);
                }
            }
        }
    }

    /// Looks at the kept keys that are in memory again.
    pub fn refresh_big_keys(&mut self) {
        let mut big = std::mem::take(&mut self.big);
        for kind in 0..TYPES.len() {
            let before = big.by_type[kind].len();
            let mut resized = false;
            big.by_type[kind].retain_mut(|seen| {
                let Some(db) = self.db_of(seen.generation) else { return false };
                let Some(entry) = self.get_mut(db, seen.at, &seen.key) else { return true };
                match measure(&entry.value) {
                    Some((now, size)) if now == kind => {
                        resized |= seen.size != size;
                        seen.size = size;
                        true
                    }
                    _ => false,
                }
            });
            if resized || big.by_type[kind].len() != before {
                big.settle(kind);
            }
        }
        self.big = big;
    }

    /// Returns the biggest keys of each type, the biggest first.
    pub fn big_keys(&mut self) -> Vec<BigKey> {
        self.refresh_big_keys();
        let all = self.big.by_type.iter().zip(TYPES);
        all.flat_map(|(keys, type_name)| keys.iter().map(move |seen| (seen, type_name)))
            .filter_map(|(seen, type_name)| {
                let db = self.db_of(seen.generation)?;
                Some(BigKey { db, key: seen.key.clone(), type_name, size: seen.size })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(big: &mut BigKeys, key: &str, measured: Measure) {
        if measured.1 > big.floors[measured.0] {
            let hash =
                key.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
            big.keep(measured, 7, KeyHash { slot: 0, hash }, key.as_bytes());
        }
    }

    #[test]
    fn the_biggest_of_each_type_are_kept() {
        let mut big = BigKeys::default();
        for n in 0..1000 {
            see(&mut big, &format!("key{n}"), (0, (n * 7919) % 1000));
        }
        see(&mut big, "key", (2, 1));
        let sizes: Vec<u64> = big.by_type[0].iter().map(|seen| seen.size).collect();
        assert_eq!(sizes, (1000 - MAX_BIG as u64..1000).rev().collect::<Vec<_>>());
        assert_eq!((big.by_type[2].len(), big.floors[2]), (1, 0));
        let smallest = String::from_utf8_lossy(&big.by_type[0][MAX_BIG - 1].key).into_owned();
        see(&mut big, &smallest, (0, 5000));
        assert_eq!((big.by_type[0].len(), big.by_type[0][0].size), (MAX_BIG, 5000));
        assert_eq!(big.floors[0], 1001 - MAX_BIG as u64);
        big.drop_key(6, smallest.as_bytes());
        assert_eq!(big.by_type[0].len(), MAX_BIG, "that is of another generation");
        big.drop_key(7, smallest.as_bytes());
        assert_eq!((big.by_type[0].len(), big.floors[0]), (MAX_BIG - 1, 0), "there is room again");
        let marked: u32 = big.marks.iter().map(|word| word.count_ones()).sum();
        assert!((1..=MAX_BIG as u32).contains(&marked), "{marked}");
    }
}
