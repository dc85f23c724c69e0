//! A hash table that grows and shrinks part by part: adding the millionth element does not have to
//! move a million.
//!
//! Linear hashing (W. Litwin, "Linear hashing: a new tool for file and table addressing", VLDB
//! 1980) over tables that keep positions: with n parts, an element is in the part that the lowest
//! bits of its hash name, as many as n needs, or one bit less if there is no such part yet. Each
//! further part takes half of the elements of an existing one.

use super::members::Name;
use crate::reclaim::Parts;
use crate::table::{Named, Table};
use hashbrown::DefaultHashBuilder;
use std::hash::BuildHasher;

/// Average elements of a part; parts not split yet have up to twice as many. More than a packed
/// collection has, which is in order.
const PART: usize = if cfg!(test) { 1500 } else { 8 << 10 };

/// Average elements of a part below which the last part is removed.
const SPARSE: usize = PART / 4;

/// Offset of the bits of a hash that name the part: the tables use the lower ones first.
const SHIFT: u32 = 24;

/// Names that are prefetched together.
const TOUCHED: usize = 64;

impl<V> Named for (Name, V) {
    fn name(&self) -> &[u8] {
        &self.0
    }
}

/// See the module's description. Its elements have positions, from 0 on, which change when others
/// are added or removed.
#[derive(Clone, Debug)]
pub(super) struct Spread<V> {
    /// The first part; most tables have no other.
    first: Table<(Name, V)>,
    rest: Vec<Table<(Name, V)>>,
    len: usize,
    hasher: DefaultHashBuilder,
}

impl<V> Default for Spread<V> {
    fn default() -> Self {
        let hasher = DefaultHashBuilder::default();
        Self { first: Table::default(), rest: Vec::new(), len: 0, hasher }
    }
}

/// The elements by their positions, found in a time that grows with the logarithm of the number of
/// parts only.
pub(super) struct Positions<'a, V> {
    spread: &'a Spread<V>,
    /// The position behind each part but the last.
    ends: Vec<usize>,
}

impl<'a, V> Positions<'a, V> {
    pub(super) fn len(&self) -> usize {
        self.spread.len
    }

    pub(super) fn get(&self, position: usize) -> Option<(&'a Name, &'a V)> {
        let part = self.ends.partition_point(|end| *end <= position);
        let start = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.spread.table(part).at(position - start).map(parted)
    }
}

impl<V: Send + 'static> Parts for Spread<V> {
    fn parts(&self) -> usize {
        self.len
    }
}

/// Returns which of `parts` parts holds the elements with a hash.
fn part_of(hash: u64, parts: usize) -> usize {
    let all = parts.next_power_of_two();
    let part = (hash >> SHIFT) as usize & (all - 1);
    if part < parts { part } else { part & (all / 2 - 1) }
}

fn parted<V>((name, value): &(Name, V)) -> (&Name, &V) {
    (name, value)
}

/// Returns the part from which the last of `parts` parts, at least two, was split.
fn buddy_of_last(parts: usize) -> usize {
    (parts - 1) & (parts.next_power_of_two() / 2 - 1)
}

impl<V> Spread<V> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of elements that fit without growing.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.tables().map(Table::capacity).sum()
    }

    fn tables(&self) -> impl Iterator<Item = &Table<(Name, V)>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table<(Name, V)>> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }

    fn parts(&self) -> usize {
        1 + self.rest.len()
    }

    fn table(&self, part: usize) -> &Table<(Name, V)> {
        if part == 0 { &self.first } else { &self.rest[part - 1] }
    }

    fn table_mut(&mut self, part: usize) -> &mut Table<(Name, V)> {
        if part == 0 { &mut self.first } else { &mut self.rest[part - 1] }
    }

    /// Returns the hash by which a name is found.
    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
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
        table.at(table.find(hash, name)?).map(parted)
    }

    pub(super) fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        let hash = self.hash(name);
        let part = part_of(hash, self.parts());
        let table = self.table_mut(part);
        table.at_mut(table.find(hash, name)?).map(|(_, value)| value)
    }

    /// Prefetches the memory of names, several at a time: the processor fetches the memory of each
    /// while the loop goes on to the next. `touch_value` prefetches what a value refers to.
    pub(super) fn touch<'a>(
        &self,
        names: impl Iterator<Item = &'a [u8]>,
        touch_value: impl Fn(&V),
    ) {
        let mut hashes = [0; TOUCHED];
        let mut count = 0;
        for (hash, name) in hashes.iter_mut().zip(names) {
            *hash = self.hash(name);
            self.table(part_of(*hash, self.parts())).touch_index(*hash);
            count += 1;
        }
        for &hash in &hashes[..count] {
            self.table(part_of(hash, self.parts())).touch_element(hash);
        }
        for &hash in &hashes[..count] {
            if let Some((_, value)) = self.table(part_of(hash, self.parts())).touched(hash) {
                touch_value(value);
            }
        }
    }

    /// Appends a new element to its part.
    pub(super) fn insert_new(&mut self, name: Name, value: V) {
        if self.len >= PART * self.parts() {
            self.split();
        }
        let hash = self.hash(&name);
        let hasher = self.hasher.clone();
        let part = part_of(hash, self.parts());
        self.table_mut(part).push(hash, (name, value), |e| hasher.hash_one(e.name()));
        self.len += 1;
    }

    /// Removes an element; the last one of its part takes its position.
    pub(super) fn swap_remove_entry(&mut self, name: &[u8]) -> Option<(Name, V)> {
        self.removed(name, |table, at, hasher| table.swap_remove(at, |e| hasher.hash_one(e.name())))
    }

    /// Removes an element; those behind it in its part keep their order.
    pub(super) fn shift_remove_entry(&mut self, name: &[u8]) -> Option<(Name, V)> {
        self.removed(name, |table, at, hasher| {
            table.shift_remove(at, |e| hasher.hash_one(e.name()))
        })
    }

    fn removed(
        &mut self,
        name: &[u8],
        remove: impl FnOnce(&mut Table<(Name, V)>, usize, &DefaultHashBuilder) -> Option<(Name, V)>,
    ) -> Option<(Name, V)> {
        let hash = self.hash(name);
        let hasher = self.hasher.clone();
        let part = part_of(hash, self.parts());
        let table = self.table_mut(part);
        let removed = remove(table, table.find(hash, name)?, &hasher);
        self.len -= usize::from(removed.is_some());
        self.merge_if_sparse();
        removed
    }

    /// Returns the part of a position, and the position in it.
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

    /// Returns all elements, for look-ups of many by their positions.
    pub(super) fn positions(&self) -> Positions<'_, V> {
        let mut end = 0;
        let ends = self.tables().take(self.rest.len()).map(|table| {
            end += table.len();
            end
        });
        Positions { ends: ends.collect(), spread: self }
    }

    pub(super) fn get_index(&self, position: usize) -> Option<(&Name, &V)> {
        let (part, index) = self.locate(position)?;
        self.table(part).at(index).map(parted)
    }

    /// Removes the element at a position; the last one of its part takes it.
    pub(super) fn swap_remove_index(&mut self, position: usize) -> Option<(Name, V)> {
        let (part, index) = self.locate(position)?;
        let hasher = self.hasher.clone();
        let removed = self.table_mut(part).swap_remove(index, |e| hasher.hash_one(e.name()));
        self.len -= usize::from(removed.is_some());
        self.merge_if_sparse();
        removed
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.tables().flat_map(Table::iter).map(parted)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Name> {
        self.iter().map(|(name, _)| name)
    }

    /// Keeps the elements for which `keep` returns true. Takes time proportional to all.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Name, &mut V) -> bool) {
        let hasher = self.hasher.clone();
        let mut keep = |(name, value): &mut (Name, V)| keep(name, value);
        self.tables_mut().for_each(|table| table.retain(&mut keep, |e| hasher.hash_one(e.name())));
        self.len = self.tables().map(Table::len).sum();
    }

    /// Sorts the elements of each part by a key; that is all of them if there is one part.
    pub(super) fn sort_by_cached_key<K: Ord>(&mut self, mut key: impl FnMut(&Name, &V) -> K) {
        let hasher = self.hasher.clone();
        let hash_of = |element: &(Name, V)| hasher.hash_one(element.name());
        let mut key = |(name, value): &(Name, V)| key(name, value);
        self.tables_mut().for_each(|table| table.sort_by_cached_key(&mut key, hash_of));
    }

    /// Releases capacity of parts that have much more than they need: each keeps half as much
    /// again, and all together `spare`.
    pub(super) fn shrink(&mut self, spare: usize) {
        let spare = spare / self.parts();
        let hasher = self.hasher.clone();
        for table in self.tables_mut() {
            if table.capacity() > table.len() * 3 / 2 + spare {
                table.shrink_to(table.len() * 9 / 8, |e| hasher.hash_one(e.name()));
            }
        }
    }

    /// Adds a part.
    fn split(&mut self) {
        let parts = self.parts() + 1;
        let buddy = buddy_of_last(parts);
        let hasher = self.hasher.clone();
        let hash_of = |element: &(Name, V)| hasher.hash_one(element.name());
        let table = std::mem::take(self.table_mut(buddy));
        let room = table.len() / 2 + table.len() / 8;
        let (mut stays, mut goes) = (Table::with_capacity(room), Table::with_capacity(room));
        for element in table.into_elements() {
            let hash = hash_of(&element);
            let to = if part_of(hash, parts) == buddy { &mut stays } else { &mut goes };
            to.push(hash, element, hash_of);
        }
        *self.table_mut(buddy) = stays;
        self.rest.push(goes);
    }

    /// Removes the last part if there are too many.
    fn merge_if_sparse(&mut self) {
        if self.len < SPARSE * self.rest.len() {
            let buddy = buddy_of_last(self.parts());
            let Some(last) = self.rest.pop() else { return };
            let hasher = self.hasher.clone();
            let hash_of = |element: &(Name, V)| hasher.hash_one(element.name());
            let table = self.table_mut(buddy);
            for element in last.into_elements() {
                table.push(hash_of(&element), element, hash_of);
            }
        }
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
        let positions = spread.positions();
        assert!((0..=spread.len()).all(|at| positions.get(at) == spread.get_index(at)));
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
