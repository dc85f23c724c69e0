//! Counters of keys, and of keys with an expiry, per generation and slot: they make DBSIZE exact.

use crate::encoding::{Delta, get_varint, put_varint};
use crate::slot::SLOTS;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::ops::Range;

/// Slots whose counters share a row.
const BLOCK: usize = 64;

/// The counters of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SlotCount {
    keys: u32,
    expires: u32,
}

#[derive(Clone, Debug)]
struct Generation {
    slots: Vec<SlotCount>,
    keys: u64,
    expires: u64,
}

impl Default for Generation {
    fn default() -> Self {
        Self { slots: vec![SlotCount::default(); usize::from(SLOTS)], keys: 0, expires: 0 }
    }
}

/// The counters of one shard.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    generations: HashMap<u32, Generation>,
    /// Blocks that changed since their row was last written.
    dirty: BTreeSet<(u32, u16)>,
}

impl Counters {
    /// Applies a row's change.
    pub fn add(&mut self, generation: u32, slot: u16, delta: Delta) {
        if delta == Delta::default() {
            return;
        }
        let counts = self.generations.entry(generation).or_default();
        let count = &mut counts.slots[usize::from(slot)];
        count.keys = count.keys.saturating_add_signed(i32::from(delta.keys));
        count.expires = count.expires.saturating_add_signed(i32::from(delta.expires));
        counts.keys = counts.keys.saturating_add_signed(i64::from(delta.keys));
        counts.expires = counts.expires.saturating_add_signed(i64::from(delta.expires));
        self.dirty.insert((generation, slot / BLOCK as u16));
    }

    /// Takes keys, and keys with an expiry, off a slot's counters. A dead generation has none.
    pub(crate) fn take_off(&mut self, generation: u32, slot: u16, (keys, expires): (u32, u32)) {
        let Some(counts) = self.generations.get_mut(&generation) else { return };
        let Some(count) = counts.slots.get_mut(usize::from(slot)) else { return };
        count.keys = count.keys.saturating_sub(keys);
        count.expires = count.expires.saturating_sub(expires);
        counts.keys = counts.keys.saturating_sub(u64::from(keys));
        counts.expires = counts.expires.saturating_sub(u64::from(expires));
        self.dirty.insert((generation, slot / BLOCK as u16));
    }

    /// Returns the number of keys, and of keys with an expiry, of a generation.
    pub fn totals(&self, generation: u32) -> (u64, u64) {
        self.generations.get(&generation).map_or((0, 0), |g| (g.keys, g.expires))
    }

    /// Returns the number of keys of all generations.
    pub fn keys(&self) -> u64 {
        self.generations.values().map(|g| g.keys).sum()
    }

    /// Copies the counters of some slots from another shard.
    pub(crate) fn take_over(&mut self, from: &Self, slots: &Range<u16>) {
        for (&generation, counts) in &from.generations {
            let mine = self.generations.entry(generation).or_default();
            for slot in slots.clone() {
                let (theirs, count) =
                    (counts.slots[usize::from(slot)], &mut mine.slots[usize::from(slot)]);
                if theirs != SlotCount::default() {
                    count.keys += theirs.keys;
                    count.expires += theirs.expires;
                    mine.keys += u64::from(theirs.keys);
                    mine.expires += u64::from(theirs.expires);
                    self.dirty.insert((generation, slot / BLOCK as u16));
                }
            }
        }
    }

    /// Returns the number of keys, and of keys with an expiry, of a generation in one slot.
    pub(crate) fn of(&self, generation: u32, slot: u16) -> (u32, u32) {
        let counts = self.generations.get(&generation).and_then(|g| g.slots.get(usize::from(slot)));
        counts.map_or((0, 0), |count| (count.keys, count.expires))
    }

    /// Drops the counters of a dead generation.
    pub fn drop_generation(&mut self, generation: u32) {
        self.generations.remove(&generation);
        self.dirty.retain(|(g, _)| *g != generation);
    }

    /// Returns a copy of the counters with the blocks to write, and marks all blocks as clean.
    pub fn cut(&mut self) -> Self {
        let copy = self.clone();
        self.dirty.clear();
        copy
    }

    /// Returns the rows to write: generation, block, value.
    pub fn dirty_rows(&self) -> impl Iterator<Item = (u32, u16, Vec<u8>)> {
        self.dirty.iter().filter_map(|&(generation, block)| {
            let counts = self.generations.get(&generation)?;
            let first = usize::from(block) * BLOCK;
            let mut value = Vec::with_capacity(BLOCK * 3);
            for count in &counts.slots[first..first + BLOCK] {
                put_varint(&mut value, u64::from(count.keys));
                put_varint(&mut value, u64::from(count.expires));
            }
            Some((generation, block, value))
        })
    }

    /// Applies a block's row; `None` if it is damaged.
    pub fn apply_row(&mut self, generation: u32, block: u16, mut value: &[u8]) -> Option<()> {
        let counts = self.generations.entry(generation).or_default();
        let first = usize::from(block) * BLOCK;
        for count in counts.slots.get_mut(first..first + BLOCK)? {
            count.keys = u32::try_from(get_varint(&mut value)?).ok()?;
            count.expires = u32::try_from(get_varint(&mut value)?).ok()?;
            counts.keys += u64::from(count.keys);
            counts.expires += u64::from(count.expires);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_roundtrip() {
        let mut counters = Counters::default();
        for slot in [0u16, 63, 64, 16383] {
            counters.add(5, slot, Delta { keys: 1, expires: i8::from(slot > 60) });
        }
        let mut back = Counters::default();
        for (generation, block, value) in counters.cut().dirty_rows() {
            back.apply_row(generation, block, &value).unwrap();
        }
        assert_eq!(back.totals(5), (4, 3));
        assert_eq!(counters.dirty_rows().count(), 0);
        assert!(back.apply_row(5, 0, &[0x80]).is_none());
    }
}
