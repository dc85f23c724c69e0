//! Counters of keys, of keys with an expiry, and of the size of keys, per generation and slot: they
//! make DBSIZE and the size of the data set exact.

use crate::encoding::{Delta, get_varint, put_varint, unzigzag, zigzag};
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
    units: i64,
}

#[derive(Clone, Debug)]
struct Generation {
    slots: Vec<SlotCount>,
    keys: u64,
    expires: u64,
    units: i64,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            slots: vec![SlotCount::default(); usize::from(SLOTS)],
            keys: 0,
            expires: 0,
            units: 0,
        }
    }
}

/// The counters of one shard.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    generations: HashMap<u32, Generation>,
    /// Blocks that changed since their row was last written.
    dirty: BTreeSet<(u32, u16)>,
    /// Blocks whose sizes are guessed, because an earlier version has counted their keys.
    guessed: BTreeSet<(u32, u16)>,
}

/// Units that a key is assumed to take if an earlier version has counted it.
const UNKNOWN_UNITS: i64 = 16;

impl Counters {
    /// Applies a row's change, and that of the size of the keys, in units.
    pub fn add(&mut self, generation: u32, slot: u16, delta: Delta, units: i64) {
        if delta == Delta::default() {
            return;
        }
        let counts = self.generations.entry(generation).or_default();
        let count = &mut counts.slots[usize::from(slot)];
        count.keys = count.keys.saturating_add_signed(i32::from(delta.keys));
        count.expires = count.expires.saturating_add_signed(i32::from(delta.expires));
        counts.keys = counts.keys.saturating_add_signed(i64::from(delta.keys));
        counts.expires = counts.expires.saturating_add_signed(i64::from(delta.expires));
        count.units = count.units.saturating_add(units);
        counts.units = counts.units.saturating_add(units);
        self.dirty.insert((generation, slot / BLOCK as u16));
    }

    /// Changes the size of the keys in a slot. A dead generation has none.
    pub fn resize(&mut self, generation: u32, slot: u16, units: i64) {
        let Some(counts) = self.generations.get_mut(&generation) else { return };
        let Some(count) = counts.slots.get_mut(usize::from(slot)) else { return };
        count.units = count.units.saturating_add(units);
        counts.units = counts.units.saturating_add(units);
        self.dirty.insert((generation, slot / BLOCK as u16));
    }

    /// Returns the size of the keys of all generations in units.
    pub fn units(&self) -> u64 {
        let units: i64 = self.generations.values().map(|g| g.units).sum();
        u64::try_from(units).unwrap_or(0)
    }

    /// Returns the size of the keys of a generation in one slot, in units.
    pub(crate) fn units_of(&self, generation: u32, slot: u16) -> i64 {
        let counts = self.generations.get(&generation).and_then(|g| g.slots.get(usize::from(slot)));
        counts.map_or(0, |count| count.units)
    }

    /// Returns true if the size of the keys in a slot is not guessed.
    pub(crate) fn knows_size(&self, generation: u32, slot: u16) -> bool {
        !self.guessed.contains(&(generation, slot / BLOCK as u16))
    }

    /// Takes keys, and keys with an expiry, off a slot's counters. A dead generation has none.
    pub(crate) fn take_off(
        &mut self,
        generation: u32,
        slot: u16,
        (keys, expires, units): (u32, u32, u64),
    ) {
        let Some(counts) = self.generations.get_mut(&generation) else { return };
        let Some(count) = counts.slots.get_mut(usize::from(slot)) else { return };
        count.keys = count.keys.saturating_sub(keys);
        count.expires = count.expires.saturating_sub(expires);
        counts.keys = counts.keys.saturating_sub(u64::from(keys));
        counts.expires = counts.expires.saturating_sub(u64::from(expires));
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        count.units = count.units.saturating_sub(units);
        counts.units = counts.units.saturating_sub(units);
        self.dirty.insert((generation, slot / BLOCK as u16));
    }

    /// Returns the number of keys, and of keys with an expiry, of a generation.
    pub fn totals(&self, generation: u32) -> (u64, u64) {
        self.generations.get(&generation).map_or((0, 0), |g| (g.keys, g.expires))
    }

    /// Returns the number of keys, and of keys with an expiry, of all generations.
    pub(crate) fn all(&self) -> (u64, u64) {
        self.generations.values().fold((0, 0), |(k, e), g| (k + g.keys, e + g.expires))
    }

    /// Returns the number of keys of all generations.
    pub fn keys(&self) -> u64 {
        self.generations.values().map(|g| g.keys).sum()
    }

    /// Drops the counters of all other slots than these, which are in another shard by now.
    pub(crate) fn keep_slots(&mut self, slots: &Range<u16>) {
        let mut kept = Self::default();
        kept.take_over(self, slots);
        *self = kept;
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
                    count.units += theirs.units;
                    mine.units += theirs.units;
                    self.dirty.insert((generation, slot / BLOCK as u16));
                }
                if !from.knows_size(generation, slot) {
                    self.guessed.insert((generation, slot / BLOCK as u16));
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
        self.guessed.retain(|(g, _)| *g != generation);
        self.dirty.retain(|(g, _)| *g != generation);
    }

    /// Drops the counters of all generations but these: rows of dead ones stay until they are swept.
    pub(crate) fn keep_only(&mut self, live: &[u32]) {
        self.generations.retain(|generation, _| live.contains(generation));
        self.guessed.retain(|(generation, _)| live.contains(generation));
        self.dirty.retain(|(generation, _)| live.contains(generation));
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
            let mut value = Vec::with_capacity(BLOCK * 5);
            for count in &counts.slots[first..first + BLOCK] {
                put_varint(&mut value, u64::from(count.keys));
                put_varint(&mut value, u64::from(count.expires));
            }
            let is_guessed = self.guessed.contains(&(generation, block));
            put_varint(&mut value, u64::from(is_guessed));
            for count in &counts.slots[first..first + BLOCK] {
                put_varint(&mut value, zigzag(count.units));
            }
            Some((generation, block, value))
        })
    }

    /// Applies a block's row; `None` if it is damaged.
    pub fn apply_row(&mut self, generation: u32, block: u16, mut value: &[u8]) -> Option<()> {
        let counts = self.generations.entry(generation).or_default();
        let first = usize::from(block) * BLOCK;
        let slots = counts.slots.get_mut(first..first + BLOCK)?;
        for count in &mut *slots {
            count.keys = u32::try_from(get_varint(&mut value)?).ok()?;
            count.expires = u32::try_from(get_varint(&mut value)?).ok()?;
            counts.keys += u64::from(count.keys);
            counts.expires += u64::from(count.expires);
        }
        let is_unsized = value.is_empty();
        if is_unsized || get_varint(&mut value)? != 0 {
            self.guessed.insert((generation, block));
        }
        for count in slots {
            count.units = match is_unsized {
                true => i64::from(count.keys) * UNKNOWN_UNITS,
                false => unzigzag(get_varint(&mut value)?),
            };
            counts.units += count.units;
        }
        value.is_empty().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_roundtrip() {
        let mut counters = Counters::default();
        for slot in [0u16, 63, 64, 16383] {
            let delta = Delta { keys: 1, expires: i8::from(slot > 60) };
            counters.add(5, slot, delta, i64::from(slot));
            counters.resize(5, slot, -70);
        }
        let mut back = Counters::default();
        for (generation, block, value) in counters.cut().dirty_rows() {
            back.apply_row(generation, block, &value).unwrap();
        }
        assert_eq!(back.totals(5), (4, 3));
        assert_eq!((back.units(), back.units_of(5, 0), back.units_of(5, 63)), (16_230, -70, -7));
        assert!(back.knows_size(5, 0));
        assert_eq!(counters.dirty_rows().count(), 0);
        assert!(back.apply_row(5, 0, &[0x80]).is_none());
    }

    #[test]
    fn keys_that_an_earlier_version_has_counted_get_a_size() {
        let mut counters = Counters::default();
        counters.apply_row(5, 0, &[1; 2 * BLOCK]).unwrap();
        assert!(!counters.knows_size(5, 63) && counters.knows_size(5, 64));
        counters.add(5, 0, Delta { keys: 1, expires: 0 }, 0);
        let rows: Vec<_> = counters.dirty_rows().collect();
        let mut back = Counters::default();
        for (generation, block, value) in rows {
            back.apply_row(generation, block, &value).unwrap();
        }
        assert!(!back.knows_size(5, 0));
        assert_eq!(counters.units(), BLOCK as u64 * UNKNOWN_UNITS as u64);
        assert!(counters.apply_row(6, 0, &[1; 2 * BLOCK + 1]).is_none());
    }

    #[test]
    fn a_dead_generation_has_no_size() {
        let mut counters = Counters::default();
        counters.add(5, 9, Delta { keys: 1, expires: 0 }, 100);
        counters.drop_generation(5);
        counters.resize(5, 9, -7);
        assert_eq!(counters.units(), 0);
        for generation in [6, 7] {
            counters.apply_row(generation, 0, &[1; 2 * BLOCK]).unwrap();
        }
        counters.keep_only(&[7]);
        assert_eq!((counters.keys(), counters.units()), (64, 64 * UNKNOWN_UNITS as u64));
        assert!(counters.knows_size(6, 0) && !counters.knows_size(7, 0));
    }
}
