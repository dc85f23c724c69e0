//! A hash table that grows and shrinks part by part: whoever adds the millionth element does not
//! wait until a million have moved.
//!
//! Linear hashing (W. Litwin, "Linear hashing: a new tool for file and table addressing", VLDB
//! 1980) over tables that keep positions: with n parts, an element is in the part that the lowest
//! bits of its hash name, as many as n needs, or one bit less if there is no such part yet. Each
//! further part takes half of the elements of one that is there.

use super::members::Name;
use crate::reclaim::Parts;
use hashbrown::DefaultHashBuilder;
use indexmap::IndexMap;
use indexmap::map::raw_entry_v1::{RawEntryApiV1, RawEntryMut};
use std::hash::BuildHasher;

/// Elements of a part, on average; those that were not split yet have up to twice as many. More
/// than a collection that is packed has, which is in order.
const PART: usize = if cfg!(test) { 1500 } else { 8 << 10 };

/// With fewer elements than this for each part on average, one part less is enough.
const SPARSE: usize = PART / 4;

/// The bits of a hash that the tables of the parts use least.
const SHIFT: u32 = 24;

type Table<V> = IndexMap<Name, V, DefaultHashBuilder>;

/// See the module's description. Its elements have positions, from 0 on, which change when others
/// are added or removed.
#[derive(Clone, Debug)]
pub(super) struct Spread<V> {
    /// Most have no other part.
    first: Table<V>,
    rest: Vec<Table<V>>,
    len: usize,
}

impl<V> Default for Spread<V> {
    fn default() -> Self {
        Self { first: Table::default(), rest: Vec::new(), len: 0 }
    }
}

impl<V: Send + 'static> Parts for Spread<V> {
    fn parts(&self) -> usize {
        self.len
    }
}

/// Which of `parts` parts the elements with a hash are in.
fn part_of(hash: u64, parts: usize) -> usize {
    let all = parts.next_power_of_two();
    let part = (hash >> SHIFT) as usize & (all - 1);
    if part < parts { part } else { part & (all / 2 - 1) }
}

/// The part that the last of `parts` parts, at least two, shares the elements of.
fn buddy_of_last(parts: usize) -> usize {
    (parts - 1) & (parts.next_power_of_two() / 2 - 1)
}

impl<V> Spread<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Elements that there is room for.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.tables().map(Table::capacity).sum()
    }

    fn tables(&self) -> impl Iterator<Item = &Table<V>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table<V>> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }

    fn parts(&self) -> usize {
        1 + self.rest.len()
    }

    fn table(&self, part: usize) -> &Table<V> {
        if part == 0 { &self.first } else { &self.rest[part - 1] }
    }

    fn table_mut(&mut self, part: usize) -> &mut Table<V> {
        if part == 0 { &mut self.first } else { &mut self.rest[part - 1] }
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.first.hasher().hash_one(name)
    }

    pub(super) fn contains_key(&self, name: &[u8]) -> bool {
        self.get_key_value(name).is_some()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&V> {
        self.get_key_value(name).map(|(_, value)| value)
    }

    pub(super) fn get_key_value(&self, name: &[u8]) -> Option<(&Name, &V)> {
        let hash = self.hash(name);
        let table = self.table(part_of(hash, self.parts()));
        table.raw_entry_v1().from_key_hashed_nocheck(hash, name)
    }

    /// The place of a name.
    fn entry(&mut self, hash: u64, name: &[u8]) -> RawEntryMut<'_, Name, V, DefaultHashBuilder> {
        let part = part_of(hash, self.parts());
        self.table_mut(part).raw_entry_mut_v1().from_key_hashed_nocheck(hash, name)
    }

    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        match self.entry(self.hash(name), name) {
            RawEntryMut::Occupied(entry) => Some(entry.into_mut()),
            RawEntryMut::Vacant(_) => None,
        }
    }

    /// Adds an element that is not there, behind all of its part.
    pub(super) fn insert_new(&mut self, name: Name, value: V) {
        if self.len >= PART * self.parts() {
            self.split();
        }
        let hash = self.hash(&name);
        if let RawEntryMut::Vacant(entry) = self.entry(hash, &name) {
            entry.insert_hashed_nocheck(hash, name, value);
            self.len += 1;
        }
    }

    /// Removes an element; the last one of its part takes its position.
    pub(super) fn swap_remove_entry(&mut self, name: &[u8]) -> Option<(Name, V)> {
        self.removed(name, |entry| entry.swap_remove_entry())
    }

    /// Removes an element; those behind it in its part keep their order.
    pub(super) fn shift_remove_entry(&mut self, name: &[u8]) -> Option<(Name, V)> {
        self.removed(name, |entry| entry.shift_remove_entry())
    }

    fn removed(
        &mut self,
        name: &[u8],
        remove: impl FnOnce(Occupied<'_, V>) -> (Name, V),
    ) -> Option<(Name, V)> {
        let RawEntryMut::Occupied(entry) = self.entry(self.hash(name), name) else { return None };
        let removed = remove(entry);
        self.len -= 1;
        self.merge_if_sparse();
        Some(removed)
    }

    /// The part of a position, and the position in it.
    fn locate(&self, position: usize) -> Option<(usize, usize)> {
        let mut index = position;
        for (part, table) in self.tables().enumerate() {
            if index < table.len() {
                return Some((part, index));
            }
            index -= table.len();
        }
        None
    }

    pub(super) fn get_index(&self, position: usize) -> Option<(&Name, &V)> {
        let (part, index) = self.locate(position)?;
        self.table(part).get_index(index)
    }

    /// Removes the element at a position, which the last one of its part takes.
    pub(super) fn swap_remove_index(&mut self, position: usize) -> Option<(Name, V)> {
        let (part, index) = self.locate(position)?;
        let removed = self.table_mut(part).swap_remove_index(index);
        self.len -= usize::from(removed.is_some());
        self.merge_if_sparse();
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.tables().flatten()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.iter().map(|(name, _)| name)
    }

    /// Keeps what `keep` says. Takes time in proportion to all.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Name, &mut V) -> bool) {
        self.tables_mut().for_each(|table| table.retain(&mut keep));
        self.len = self.tables().map(Table::len).sum();
    }

    /// Puts the elements of each part into the order of a key; all of them if there is one part.
    pub(super) fn sort_by_cached_key<K: Ord>(&mut self, mut key: impl FnMut(&Name, &V) -> K) {
        self.tables_mut().for_each(|table| table.sort_by_cached_key(&mut key));
    }

    /// Gives back room in parts that have a lot of it: half as much again as they need, and `spare`
    /// together.
    pub(super) fn shrink(&mut self, spare: usize) {
        let spare = spare / self.parts();
        for table in self.tables_mut() {
            if table.capacity() > table.len() * 3 / 2 + spare {
                table.shrink_to(table.len() * 9 / 8);
            }
        }
    }

    /// Adds a part.
    fn split(&mut self) {
        let parts = self.parts() + 1;
        let buddy = buddy_of_last(parts);
        let hasher = self.first.hasher().clone();
        let table = self.table_mut(buddy);
        let room = table.len() / 2 + table.len() / 8;
        let new = || Table::with_capacity_and_hasher(room, hasher.clone());
        let (mut stays, mut goes) = (new(), new());
        for (name, value) in std::mem::take(table) {
            let hash = hasher.hash_one(&*name);
            let to = if part_of(hash, parts) == buddy { &mut stays } else { &mut goes };
            put(to, hash, name, value);
        }
        *self.table_mut(buddy) = stays;
        self.rest.push(goes);
    }

    /// Removes the last part if there are more than are needed.
    fn merge_if_sparse(&mut self) {
        if self.len < SPARSE * self.rest.len() {
            let buddy = buddy_of_last(self.parts());
            let Some(last) = self.rest.pop() else { return };
            let hasher = self.first.hasher().clone();
            let table = self.table_mut(buddy);
            for (name, value) in last {
                put(table, hasher.hash_one(&*name), name, value);
            }
        }
    }
}

type Occupied<'a, V> =
    indexmap::map::raw_entry_v1::RawOccupiedEntryMut<'a, Name, V, DefaultHashBuilder>;

/// Adds an element that is not there.
fn put<V>(table: &mut Table<V>, hash: u64, name: Name, value: V) {
    if let RawEntryMut::Vacant(entry) =
        table.raw_entry_mut_v1().from_key_hashed_nocheck(hash, &*name)
    {
        entry.insert_hashed_nocheck(hash, name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeMap;

    fn check(spread: &Spread<u32>, model: &BTreeMap<Vec<u8>, u32>) {
        assert_eq!(spread.len(), model.len());
        let found: BTreeMap<Vec<u8>, u32> =
            spread.iter().map(|(name, value)| (name.to_vec(), *value)).collect();
        assert_eq!(found, *model);
        let by_position = (0..spread.len()).map(|at| spread.get_index(at).unwrap().0);
        assert!(by_position.eq(spread.keys()));
        assert!(spread.get_index(spread.len()).is_none());
        let most = spread.tables().map(Table::len).max().unwrap();
        assert!(most <= 3 * PART, "a part of {most}");
    }

    #[test]
    fn it_is_a_map_while_it_grows_and_shrinks() {
        let mut rng = SmallRng::seed_from_u64(7);
        let (mut spread, mut model) = (Spread::default(), BTreeMap::new());
        let mut parts = Vec::new();
        for (target, step) in [(20 * PART, 3), (PART, 1), (9 * PART, 3), (0, 0)] {
            while model.len().abs_diff(target) > 1 {
                let name = rng.random_range(0..40 * PART as u32).to_string().into_bytes();
                let value = rng.random();
                if rng.random_range(0..4) < step || model.is_empty() {
                    match spread.get_mut(&name) {
                        Some(slot) => *slot = value,
                        None => spread.insert_new(Name::from_slice(&name), value),
                    }
                    model.insert(name, value);
                } else if rng.random_bool(0.5) {
                    let at = rng.random_range(0..spread.len());
                    let (name, value) = spread.swap_remove_index(at).unwrap();
                    assert_eq!(model.remove(&name.to_vec()), Some(value));
                } else {
                    let removed = spread.swap_remove_entry(&name).map(|(_, value)| value);
                    assert_eq!(removed, model.remove(&name));
                    assert!(!spread.contains_key(&name));
                }
            }
            check(&spread, &model);
            parts.push(spread.parts());
        }
        assert!(parts[0] >= 20 && parts[1] <= 5 && parts[2] >= 9 && parts[3] == 1, "{parts:?}");
    }

    #[test]
    fn a_small_one_keeps_its_order() {
        let mut spread = Spread::default();
        for n in 0..PART as u32 {
            spread.insert_new(Name::from_slice(n.to_string().as_bytes()), n);
        }
        assert!(spread.iter().map(|(_, value)| *value).eq(0..PART as u32));
        spread.shift_remove_entry(b"5");
        assert_eq!(spread.get_index(5).unwrap().1, &6);
        spread.retain(|_, value| *value % 2 == 0);
        assert_eq!(spread.len(), PART / 2);
        spread.shrink(10);
        assert!(spread.capacity() < PART * 7 / 8);
        assert_eq!(spread.get(b"6"), Some(&6));
    }
}
