//! A hash table of elements with positions: a vector of elements, and an index over it.
//!
//! The index uses open addressing with linear probing and no tombstones (D. Knuth, "The Art of
//! Computer Programming", volume 3, 6.4, algorithms L and R). An index slot holds a position and 32
//! bits of the hash, so a search waits for memory twice, once in the index and once in the vector,
//! and many searches can begin before the first one ends.

use crate::prefetch::prefetch;

/// Slots of the smallest index.
const LEAST_PLACES: usize = 16;

/// Number of elements from which on the vector grows by a quarter instead of to its double: entries
/// of keys are large, and there may be millions.
const MANY: usize = 64;

/// A free index slot.
const FREE: u64 = u64::MAX;

/// An element of a [`Table`].
pub(crate) trait Named {
    /// Number of elements up to which a table has no index and is searched linearly: fewer if they
    /// are large.
    const UNINDEXED: usize = 8;

    /// Returns the name by which the element is found.
    fn name(&self) -> &[u8];
}

/// See the module's description. The caller supplies the hash of each name, always the same one.
#[derive(Clone, Debug)]
pub(crate) struct Table<E> {
    elements: Vec<E>,
    /// Index slots: the low half of the hash, then the position. Their number is a power of two; at
    /// least a quarter of them are free.
    index: Box<[u64]>,
}

impl<E> Default for Table<E> {
    fn default() -> Self {
        Self { elements: Vec::new(), index: Box::default() }
    }
}

fn packed(hash: u64, position: usize) -> u64 {
    hash << 32 | position as u64
}

fn tag_of(place: u64) -> u32 {
    (place >> 32) as u32
}

fn position(place: u64) -> usize {
    (place & u64::from(u32::MAX)) as usize
}

impl<E: Named> Table<E> {
    /// Returns the number of index slots for so many elements.
    fn places(elements: usize) -> usize {
        if elements <= E::UNINDEXED {
            return 0;
        }
        (elements * 4 / 3 + 1).next_power_of_two().max(LEAST_PLACES)
    }

    pub(crate) fn with_capacity(elements: usize) -> Self {
        let index = vec![FREE; Self::places(elements)].into();
        Self { elements: Vec::with_capacity(elements), index }
    }

    pub(crate) fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns the number of elements that fit without growing.
    pub(crate) fn capacity(&self) -> usize {
        self.elements.capacity()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns true if there are so many elements that they have an index.
    pub(crate) fn is_indexed(&self) -> bool {
        !self.index.is_empty()
    }

    /// Returns true if the elements need less than a quarter of the room that there is.
    pub(crate) fn has_much_room(&self) -> bool {
        self.elements.capacity() > MANY && self.elements.capacity() / 4 > self.elements.len()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, E> {
        self.elements.iter()
    }

    pub(crate) fn into_elements(self) -> Vec<E> {
        self.elements
    }

    pub(crate) fn at(&self, position: usize) -> Option<&E> {
        self.elements.get(position)
    }

    /// Returns the element at a position for changing it; its name must stay the same.
    pub(crate) fn at_mut(&mut self, position: usize) -> Option<&mut E> {
        self.elements.get_mut(position)
    }

    fn home(&self, place: u64) -> usize {
        tag_of(place) as usize & (self.index.len() - 1)
    }

    /// Returns the first index slot for which `fits` returns true, among those from the home of a
    /// hash up to a free one, and its contents. The table has an index.
    #[inline(always)]
    fn search(&self, hash: u64, mut fits: impl FnMut(u64) -> bool) -> Option<(usize, u64)> {
        let mask = self.index.len() - 1;
        let mut at = hash as u32 as usize & mask;
        loop {
            let place = self.index[at];
            if place == FREE {
                return None;
            }
            if fits(place) {
                return Some((at, place));
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns the position of a name.
    #[inline]
    pub(crate) fn find(&self, hash: u64, name: &[u8]) -> Option<usize> {
        let is_it = |element: &E| element.name() == name;
        if self.index.is_empty() {
            return self.elements.iter().position(is_it);
        }
        let tag = hash as u32;
        let fits =
            |place| tag_of(place) == tag && self.elements.get(position(place)).is_some_and(is_it);
        self.search(hash, fits).map(|(_, place)| position(place))
    }

    /// Prefetches the index slot that [`find`](Self::find) reads first.
    pub(crate) fn touch_index(&self, hash: u64) {
        if let Some(place) = self.index.get(hash as u32 as usize & self.index.len().wrapping_sub(1))
        {
            prefetch(place);
        }
    }

    /// Prefetches the element, once the index slot is in the cache.
    pub(crate) fn touch_element(&self, hash: u64) {
        if let Some(element) = self.touched(hash) {
            prefetch(element);
        }
    }

    /// Returns the most likely match by hash alone, if there is an index.
    #[inline]
    pub(crate) fn touched(&self, hash: u64) -> Option<&E> {
        if self.index.is_empty() {
            return None;
        }
        let (_, place) = self.search(hash, |place| tag_of(place) == hash as u32)?;
        self.elements.get(position(place))
    }

    /// Appends an element whose name is not in the table. `hash_of` hashes the names of other
    /// elements.
    pub(crate) fn push(&mut self, hash: u64, element: E, hash_of: impl Fn(&E) -> u64) {
        let position = self.elements.len();
        if position == self.elements.capacity() && position >= MANY {
            self.elements.reserve_exact(position / 4);
        }
        self.elements.push(element);
        let places = Self::places(position + 1);
        if places > self.index.len() {
            self.build(places, hash_of);
        } else if !self.index.is_empty() {
            self.take_place(packed(hash, position));
        }
    }

    fn take_place(&mut self, place: u64) {
        let mask = self.index.len() - 1;
        let mut at = self.home(place);
        while self.index[at] != FREE {
            at = (at + 1) & mask;
        }
        self.index[at] = place;
    }

    /// Builds an index of so many slots. Hashes of indexed elements are taken from the old index.
    fn build(&mut self, places: usize, hash_of: impl Fn(&E) -> u64) {
        let before = std::mem::replace(&mut self.index, vec![FREE; places].into());
        if places == 0 {
            return;
        }
        let mut known = 0;
        for place in before.into_iter().filter(|place| *place != FREE) {
            self.take_place(place);
            known += 1;
        }
        // All elements, or all but those that were added last.
        for position in known..self.elements.len() {
            self.take_place(packed(hash_of(&self.elements[position]), position));
        }
    }

    /// Rebuilds the index after positions have changed.
    fn rebuild(&mut self, hash_of: impl Fn(&E) -> u64) {
        self.index = Box::default();
        self.build(Self::places(self.elements.len()), hash_of);
    }

    /// Returns the index slot that holds a position, given the hash of its name.
    fn place_of(&self, hash: u64, position: usize) -> Option<usize> {
        let wanted = packed(hash, position);
        self.search(hash, |place| place == wanted).map(|(at, _)| at)
    }

    /// Frees an index slot: later slots of the same run move up, so that searches still find them.
    fn free(&mut self, at: usize) {
        let mask = self.index.len() - 1;
        let (mut hole, mut at) = (at, at);
        loop {
            at = (at + 1) & mask;
            let place = self.index[at];
            if place == FREE {
                break;
            }
            if at.wrapping_sub(self.home(place)) & mask >= at.wrapping_sub(hole) & mask {
                self.index[hole] = place;
                hole = at;
            }
        }
        self.index[hole] = FREE;
    }

    /// Removes the element at a position; the last element takes its place.
    pub(crate) fn swap_remove(
        &mut self,
        position: usize,
        hash_of: impl Fn(&E) -> u64,
    ) -> Option<E> {
        let last = self.elements.len().checked_sub(1).filter(|last| position <= *last)?;
        if !self.index.is_empty() {
            if let Some(at) = self.place_of(hash_of(&self.elements[position]), position) {
                self.free(at);
            }
            let hash = hash_of(&self.elements[last]);
            if position != last
                && let Some(at) = self.place_of(hash, last)
            {
                self.index[at] = packed(hash, position);
            }
        }
        Some(self.elements.swap_remove(position))
    }

    /// Removes the element at a position; later elements move up, which takes time proportional to
    /// their number.
    pub(crate) fn shift_remove(
        &mut self,
        position: usize,
        hash_of: impl Fn(&E) -> u64,
    ) -> Option<E> {
        let element = self.elements.get(position)?;
        if !self.index.is_empty()
            && let Some(at) = self.place_of(hash_of(element), position)
        {
            self.free(at);
        }
        let is_behind = |place: &&mut u64| **place != FREE && self::position(**place) > position;
        self.index.iter_mut().filter(is_behind).for_each(|place| *place -= 1);
        Some(self.elements.remove(position))
    }

    /// Keeps the elements for which `keep` returns true. Takes time proportional to the table's
    /// size.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&mut E) -> bool, hash_of: impl Fn(&E) -> u64) {
        self.elements.retain_mut(keep);
        self.rebuild(hash_of);
    }

    /// Removes the elements for which `is_taken` returns true, and returns them. Takes time
    /// proportional to the table's size.
    pub(crate) fn extract(
        &mut self,
        is_taken: impl Fn(&E) -> bool,
        hash_of: impl Fn(&E) -> u64,
    ) -> Vec<E> {
        let taken = self.elements.extract_if(.., |element| is_taken(element)).collect();
        self.rebuild(hash_of);
        taken
    }

    /// Sorts the elements by a key.
    pub(crate) fn sort_by_cached_key<K: Ord>(
        &mut self,
        key: impl FnMut(&E) -> K,
        hash_of: impl Fn(&E) -> u64,
    ) {
        self.elements.sort_by_cached_key(key);
        self.rebuild(hash_of);
    }

    /// Releases capacity beyond so many elements, or beyond the present number if that is greater.
    pub(crate) fn shrink_to(&mut self, elements: usize, hash_of: impl Fn(&E) -> u64) {
        self.elements.shrink_to(elements);
        let places = Self::places(elements.max(self.elements.len()));
        if places < self.index.len() {
            self.build(places, hash_of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    impl Named for (Vec<u8>, u32) {
        fn name(&self) -> &[u8] {
            &self.0
        }
    }

    /// Hashes that collide in home and tag, with homes at the end of the index.
    fn hash(name: &[u8]) -> u64 {
        let sum = name.iter().fold(0, |sum, &b| sum + u64::from(b));
        (sum % 5) << 40 | (u64::MAX - sum % 7) & 0xffff_ffff
    }

    fn hash_of((name, _): &(Vec<u8>, u32)) -> u64 {
        hash(name)
    }

    fn check(table: &Table<(Vec<u8>, u32)>, model: &[(Vec<u8>, u32)]) {
        assert!(table.iter().eq(model));
        for (position, (name, _)) in model.iter().enumerate() {
            assert_eq!(table.find(hash(name), name), Some(position));
        }
        let used = table.index.iter().filter(|place| **place != FREE).count();
        assert!(table.index.is_empty() || used == model.len() && used * 4 <= table.index.len() * 3);
    }

    #[test]
    fn a_table_is_a_vector_that_is_searched_by_name() {
        let mut rng = SmallRng::seed_from_u64(3);
        let (mut table, mut model) = (Table::default(), Vec::<(Vec<u8>, u32)>::new());
        for n in 0..4000u32 {
            let name = rng.random_range(0..150u32).to_string().into_bytes();
            let found = table.find(hash(&name), &name);
            assert_eq!(found, model.iter().position(|(other, _)| *other == name));
            // It grows, then shrinks.
            match (found, rng.random_range(0..10)) {
                (None, _) if n % 1000 < 600 => {
                    table.push(hash(&name), (name.clone(), n), hash_of);
                    model.push((name, n));
                }
                (Some(at), 0..4) => {
                    let removed = table.swap_remove(at, hash_of).map(|(_, value)| value);
                    assert_eq!(removed, Some(model.swap_remove(at).1));
                }
                (Some(at), 4) => {
                    let removed = table.shift_remove(at, hash_of).map(|(_, value)| value);
                    assert_eq!(removed, Some(model.remove(at).1));
                }
                (Some(at), _) => {
                    table.at_mut(at).unwrap().1 = n;
                    model[at].1 = n;
                }
                (None, _) => {
                    assert!(table.swap_remove(model.len(), hash_of).is_none());
                    table.touch_index(hash(&name));
                    table.touch_element(hash(&name));
                }
            }
            if n % 500 == 499 {
                table.retain(|(_, value)| *value % 7 != 0, hash_of);
                model.retain(|(_, value)| value % 7 != 0);
                table.sort_by_cached_key(|(_, value)| *value, hash_of);
                model.sort_by_key(|(_, value)| *value);
                table.shrink_to(0, hash_of);
                assert!(table.capacity() < model.len() + 8);
            }
            check(&table, &model);
        }
    }
}
