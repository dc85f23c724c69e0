//! The named elements of a hash, set or sorted set, some of which may not be in memory.

use super::collection::{
    LITTLE, MAX_REWRITES, PACKED_AGAIN, PACKED_ALWAYS, PACKED_MAX, PACKED_MAX_ELEMENTS, place_of,
    range_from,
};
use super::draw::Draw;
use super::name_window::NameWindow;
use super::spread::Spread;
use crate::need::{Page, Part};
use crate::reclaim::Reclaimed;
use crate::table::Table;
use rand::RngExt;
use std::cell::RefCell;

/// The name of a field or member.
pub(crate) use super::KeyBuf as Name;
pub(crate) use super::payload::Payload;

/// Least number of elements of a page.
const PAGE: usize = 512;

/// Least number of rows of a page, however large they are: some may be of the same place.
const LEAST: usize = 4;

/// Number of elements beyond which a scan reads pages of rows, in their order, even if all elements
/// are in memory: sorting them would delay other commands too long.
const SORT_MAX: u64 = 50_000;

/// Bytes of elements with which a step of a scan ends, however many it is to visit: all of them are in one reply.
const SCANNED_BYTES: usize = 1 << 20;

/// End of the places of a scan: places have 48 bits.
const END: u64 = 1 << 48;

/// Free capacity that is kept in memory, however few elements there are.
const SPARE: usize = 1024;

/// Approximate memory use of an element beside its payload, in bytes.
const OVERHEAD: usize = size_of::<Name>() + 24;

/// Returns the least number of rows of a page for a walk by so many elements.
fn least_of_page(count: usize) -> usize {
    count.clamp(LEAST, PAGE)
}

/// See the module's description.
///
/// Operations take constant time in the number of elements unless their comment says otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Members<V: Payload> {
    /// Known elements, in the order of addition while they are few; `None`: the element is known
    /// not to exist (only while not complete).
    known: Reclaimed<Spread<Option<V>>>,
    /// Bytes of names (beyond those inline in a [`Name`]) and payloads in `known`.
    bytes: usize,
    /// Bytes that the elements in memory take in a packed row.
    packed: usize,
    /// The same of all elements, in memory or not.
    whole: u64,
    /// The same of the elements that changed since the last round, each as often as it changed.
    changed: usize,
    /// Rounds that changed little of it while it was packed.
    rewrites: u32,
    /// Number of existing elements, in memory or not.
    len: u64,
    /// 0 while packed into the meta row.
    version: u64,
    /// True if every element that exists is in `known`.
    complete: bool,
    /// Elements with changes not in the journal (used for element rows only), in the order of their
    /// first change; true if an element has no row yet. Hashed like `known`.
    dirty: Table<(Name, bool)>,
    window: RefCell<Option<Box<NameWindow>>>,
    /// Position from which the next elements are dropped from memory.
    hand: usize,
}

impl<V: Payload> Default for Members<V> {
    fn default() -> Self {
        Self {
            known: Reclaimed::default(),
            bytes: 0,
            packed: 0,
            whole: 0,
            changed: 0,
            rewrites: 0,
            len: 0,
            version: 0,
            complete: true,
            dirty: Table::default(),
            window: RefCell::default(),
            hand: 0,
        }
    }
}

/// Returns the bytes of an element in a packed row.
fn packed_bytes(name: &[u8], value: &impl Payload) -> usize {
    1 + name.len() + value.packed()
}

fn heap_bytes(name: &Name) -> usize {
    if name.spilled() { name.len() + 16 } else { 0 }
}

impl<V: Payload> Members<V> {
    /// Creates the members of a meta row; none is in memory. `whole`: the bytes that they would take
    /// in a packed row.
    pub(crate) fn from_meta(version: u64, len: u64, whole: u64) -> Self {
        Self { version, len, whole, complete: false, ..Self::default() }
    }

    /// Returns the bytes that all elements would take in a packed row.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    /// Returns the version; 0 while packed into the meta row.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the approximate memory use in bytes.
    pub(crate) fn memory(&self) -> usize {
        let window = self.window.borrow().as_ref().map_or(0, |w| w.names.len() + w.pool.len());
        // Tables have up to twice the slots in use, a quarter more on average.
        self.known.len() * (OVERHEAD + size_of::<Option<V>>()) * 5 / 4
            + self.bytes
            + (self.dirty.len() + window) * OVERHEAD
    }

    /// Prefetches the memory of names.
    pub(crate) fn touch<'a>(&self, names: impl Iterator<Item = &'a [u8]>) {
        self.known.touch(names, |value| value.iter().for_each(Payload::prefetch));
    }

    /// Returns true if it is known whether an element of a name exists.
    pub(crate) fn knows(&self, name: &[u8]) -> bool {
        self.known.contains_key(name) || self.complete
    }

    /// Checks that all `names` are known.
    pub(crate) fn require<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<(), Part> {
        self.require_first(names, usize::MAX)
    }

    /// Checks that all `names` are known; asks for the first `most` of the others.
    pub(crate) fn require_first<'a>(
        &self,
        names: impl Iterator<Item = &'a [u8]>,
        most: usize,
    ) -> Result<(), Part> {
        if self.complete {
            return Ok(());
        }
        let unknown = names.filter(|name| !self.known.contains_key(name));
        let unknown: Vec<Box<[u8]>> = unknown.take(most).map(Into::into).collect();
        if unknown.is_empty() { Ok(()) } else { Err(Part::Fields(unknown)) }
    }

    /// Checks that every element is in memory.
    pub(crate) fn require_all(&self) -> Result<(), Part> {
        if self.complete { Ok(()) } else { Err(Part::All) }
    }

    /// Checks that about `count` elements are in memory, or a page of them was read.
    pub(crate) fn require_some(&self, count: usize, prefix: &[u8]) -> Result<(), Part> {
        if self.complete || self.known.len() >= count || self.window.borrow().is_some() {
            return Ok(());
        }
        let range = range_from(prefix, 0);
        let (limit, least) = ((count * 2).max(PAGE), least_of_page(count));
        Err(Part::Page { range, reverse: false, limit, least })
    }

    /// Returns an element.
    pub(crate) fn get(&self, name: &[u8]) -> Result<Option<&V>, Part> {
        match self.known.get(name) {
            Some(value) => Ok(value.as_ref()),
            None if self.complete => Ok(None),
            None => Err(Part::Fields(vec![name.into()])),
        }
    }

    /// Returns the payload of a known name.
    pub(crate) fn known(&self, name: &[u8]) -> Option<&V> {
        self.known.get(name)?.as_ref()
    }

    /// Returns the elements in memory, of a packed collection oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.known.iter().filter_map(|(n, v)| Some((&**n, v.as_ref()?)))
    }

    /// Sets a known element (see [`Members::require`]), and returns its old payload.
    pub(crate) fn insert(&mut self, name: &[u8], value: V) -> Option<V> {
        self.bytes += value.memory();
        let packed = packed_bytes(name, &value);
        self.packed += packed;
        self.whole += packed as u64;
        self.changed += packed;
        let old = match self.known.get_mut(name) {
            Some(slot) => slot.replace(value),
            None => {
                let name = Name::from_slice(name);
                self.bytes += heap_bytes(&name);
                self.known.insert_new(name, Some(value));
                None
            }
        };
        self.note(name, old.is_none());
        match &old {
            Some(old) => {
                self.bytes -= old.memory();
                let packed = packed_bytes(name, old);
                self.packed -= packed;
                self.whole = self.whole.saturating_sub(packed as u64);
            }
            None => {
                self.len += 1;
                if let Some(window) = self.window.get_mut() {
                    window.stale = true;
                }
            }
        }
        old
    }

    /// Changes an existing, known element.
    pub(crate) fn update<R>(&mut self, name: &[u8], change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let value = self.known.get_mut(name)?.as_mut()?;
        self.bytes -= value.memory();
        let before = packed_bytes(name, value);
        self.packed -= before;
        let result = change(value);
        self.bytes += value.memory();
        let packed = packed_bytes(name, value);
        self.packed += packed;
        self.whole = (self.whole + packed as u64).saturating_sub(before as u64);
        self.changed += packed;
        self.note(name, false);
        Some(result)
    }

    /// Removes a known element, and returns its payload. With `in_order` the others keep their
    /// order, which takes time proportional to their number.
    pub(crate) fn remove(&mut self, name: &[u8], in_order: bool) -> Option<V> {
        let old = if !self.complete {
            self.known.get_mut(name).and_then(Option::take)?
        } else {
            let (name, old) = if in_order {
                self.known.shift_remove_entry(name)?
            } else {
                self.known.swap_remove_entry(name)?
            };
            self.bytes -= heap_bytes(&name);
            old?
        };
        self.bytes -= old.memory();
        let packed = packed_bytes(name, &old);
        self.packed -= packed;
        self.whole = self.whole.saturating_sub(packed as u64);
        self.changed += packed;
        self.note(name, false);
        self.len -= 1;
        Some(old)
    }

    /// Applies an element read from disk, unless it is known already: that is newer. Returns true
    /// if it was unknown.
    pub(crate) fn apply_loaded(&mut self, name: &[u8], value: Option<V>) -> bool {
        if self.complete || self.known.contains_key(name) {
            return false;
        }
        let name = Name::from_slice(name);
        self.bytes += heap_bytes(&name) + value.as_ref().map_or(0, Payload::memory);
        self.packed += value.as_ref().map_or(0, |value| packed_bytes(&name, value));
        self.known.insert_new(name, value);
        true
    }

    /// Marks the collection as complete once every existing element was applied. Takes time
    /// proportional to them.
    pub(crate) fn mark_complete(&mut self) {
        let mut forgotten = 0;
        self.known.retain(|name, value| {
            forgotten += if value.is_none() { heap_bytes(name) } else { 0 };
            value.is_some()
        });
        self.bytes -= forgotten;
        self.complete = true;
    }

    /// Sorts the elements by a key. Takes time proportional to them.
    pub(crate) fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&[u8]) -> K) {
        self.known.sort_by_cached_key(|name, _| key(name));
    }

    /// Takes the dirty names, for their element rows; true if a name has no row yet.
    pub(crate) fn take_dirty(&mut self) -> Vec<(Name, bool)> {
        std::mem::take(&mut self.dirty).into_elements()
    }

    /// Gives a packed collection its own version: from now on each element is a row.
    pub(crate) fn unpack(&mut self, version: u64) {
        self.version = version;
        let mut dirty = Table::with_capacity(self.known.len());
        for name in self.known.keys() {
            let element = (name.clone(), true);
            dirty.push(self.known.hash(name), element, |(name, _)| self.known.hash(name));
        }
        self.dirty = dirty;
    }

    pub(crate) fn detach(&mut self) {
        self.version = 0;
        self.rewrites = 0;
        self.dirty = Table::default();
        *self.window.get_mut() = None;
    }

    /// Returns true if packed members must go to element rows: there are too many of them, or they
    /// are rewritten again and again for little changes.
    pub(crate) fn outgrow_packing(&self) -> bool {
        self.packed > PACKED_MAX
            || self.len > PACKED_MAX_ELEMENTS
            || (self.packed > PACKED_ALWAYS && self.rewrites >= MAX_REWRITES)
    }

    /// Returns true if members in element rows are all in memory and so few that they are to be
    /// packed again.
    pub(crate) fn fit_packing_again(&self) -> bool {
        self.version != 0
            && self.complete
            && self.packed <= PACKED_AGAIN
            && self.len <= PACKED_MAX_ELEMENTS
    }

    /// Returns the number of rounds that changed little of it since it was packed.
    pub(crate) fn rewrites(&self) -> u32 {
        self.rewrites
    }

    /// Notes that packed members were decoded, with their number of rewrites.
    pub(crate) fn set_rewrites(&mut self, rewrites: u32) {
        self.rewrites = rewrites;
        self.changed = 0;
    }

    /// Notes that packed members are written; see [`Members::rewrites`].
    pub(crate) fn note_rewrite(&mut self) {
        if self.changed <= self.packed / LITTLE && self.rewrites < MAX_REWRITES {
            self.rewrites += 1;
        }
        self.changed = 0;
    }

    /// Notes a change of an element; `new` if it did not exist before.
    fn note(&mut self, name: &[u8], new: bool) {
        if self.version == 0 {
            return;
        }
        let hash = self.known.hash(name);
        if self.dirty.find(hash, name).is_none() {
            let element = (Name::from_slice(name), new);
            self.dirty.push(hash, element, |(name, _)| self.known.hash(name));
        }
    }

    /// Returns the number of elements that are known to exist or not.
    pub(crate) fn known_len(&self) -> usize {
        self.known.len()
    }

    /// Returns true if hardly any elements are in memory.
    pub(crate) fn has_few_in_memory(&self) -> bool {
        self.known.len() <= SPARE
    }

    /// Drops up to `steps` elements that are in the journal from memory, calling `dropped` for each
    /// existing one. Returns the number of names dropped.
    pub(crate) fn shed(&mut self, steps: usize, mut dropped: impl FnMut(&[u8], &V)) -> usize {
        if self.version == 0 {
            return 0;
        }
        *self.window.get_mut() = None;
        let mut count = 0;
        for _ in 0..steps.min(self.known.len()) {
            if self.hand >= self.known.len() {
                self.hand = 0;
            }
            let Some((name, _)) = self.known.get_index(self.hand) else { break };
            if self.dirty.find(self.known.hash(name), name).is_some() {
                self.hand += 1;
                continue;
            }
            let Some((name, value)) = self.known.swap_remove_index(self.hand) else { break };
            self.bytes -= heap_bytes(&name);
            if let Some(value) = value {
                self.bytes -= value.memory();
                self.packed -= packed_bytes(&name, &value);
                dropped(&name, &value);
            }
            // The element that took its position is examined in the next round.
            self.hand += 1;
            count += 1;
        }
        if count > 0 {
            self.complete = false;
            // At most three elements are moved for each dropped one.
            self.known.shrink(SPARE);
        }
        count
    }

    // ---- scanning and drawing ----------------------------------------------------------------

    /// Runs a step of a scan over the elements from `cursor` on, ordered by `place`, a fixed 48-bit
    /// hash of a name, the one in its row. Calls `visit` for about `count` of them, or for fewer that are
    /// large, and returns the next cursor, 0 at the end. An element that exists from the first step to the last is
    /// visited. `prefix` precedes the hash in the keys of their rows.
    pub(crate) fn scan<'a>(
        &'a self,
        cursor: u64,
        count: usize,
        prefix: &[u8],
        place: impl Fn(&[u8]) -> u64,
        mut visit: impl FnMut(&'a [u8], &'a V),
    ) -> Result<u64, Part> {
        let mut cache = self.window.borrow_mut();
        let of_use = |w: &NameWindow| {
            (w.from..w.to).contains(&cursor) && !(w.stale && (cursor == 0 || w.from == cursor))
        };
        if !cache.as_deref().is_some_and(of_use) {
            let in_memory = self.complete && (self.version == 0 || self.len <= SORT_MAX);
            if !in_memory {
                let range = range_from(prefix, cursor);
                let limit = count.clamp(PAGE, 16 * PAGE);
                return Err(Part::Page { range, reverse: false, limit, least: LEAST });
            }
            let mut names: Vec<_> =
                self.known.keys().map(|name| (place(name), name.clone())).collect();
            names.sort_unstable();
            *cache = Some(Box::new(NameWindow::new(0, END, names)));
        }
        let Some(window) = cache.as_deref() else { return Ok(0) };
        let first = window.names.partition_point(|(at, _)| *at < cursor);
        let (mut visited, mut bytes, mut last) = (0, 0, None);
        for (at, name) in &window.names[first..] {
            // Names of one place stay together, because the cursor cannot tell them apart.
            if (visited >= count || bytes >= SCANNED_BYTES) && last != Some(*at) {
                return Ok(*at);
            }
            last = Some(*at);
            match self.known.get_key_value(name) {
                Some((name, Some(value))) => {
                    visit(name, value);
                    visited += 1;
                    bytes += packed_bytes(name, value);
                }
                Some((_, None)) => {}
                None if self.complete => {}
                None => {
                    // Dropped from memory since.
                    let range = range_from(prefix, cursor);
                    return Err(Part::Page { range, reverse: false, limit: PAGE, least: LEAST });
                }
            }
        }
        let next = window.to;
        if next == END {
            *cache = None;
            return Ok(0);
        }
        Ok(next)
    }

    /// Applies a page of element rows, which becomes the window, and returns the applied elements
    /// by name.
    pub(crate) fn apply_page(
        &mut self,
        page: Page,
        prefix: &[u8],
        mut read: impl FnMut(&[u8], &[u8]) -> anyhow::Result<(Name, V)>,
    ) -> anyhow::Result<Vec<(Name, V)>> {
        let from = place_of(page.range.from.get(prefix.len()..).unwrap_or_default());
        let mut names = Vec::with_capacity(page.rows.len());
        let mut applied = Vec::new();
        for (element, row) in &page.rows {
            let (name, value) = read(element, row)?;
            names.push((place_of(&element[prefix.len()..]), name.clone()));
            if self.apply_loaded(&name, Some(value.clone())) {
                applied.push((name, value));
            }
        }
        let asked = range_from(prefix, 0).to;
        let mut to = END;
        if page.range.to != asked
            && let Some(end) = &page.range.to
        {
            // The last place may be incomplete: the next page begins with it.
            to = place_of(&end[prefix.len().min(end.len())..]);
            if to <= from {
                to = from + 1;
            }
            names.retain(|(at, _)| *at < to);
        }
        *self.window.get_mut() = Some(Box::new(NameWindow::new(from, to, names)));
        Ok(applied)
    }

    /// Returns `count` different random elements by name, or all if there are fewer. If not all are
    /// in memory, they are drawn from a stretch of neighbours by hash.
    pub(crate) fn sample(&self, count: usize, prefix: &[u8]) -> Result<Vec<(&[u8], &V)>, Part> {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        if self.complete {
            let count = count.min(len);
            if count == len {
                return Ok(self.iter().collect());
            }
            let picked = rand::seq::index::sample(&mut rand::rng(), len, count);
            let all = self.known.positions();
            let found = picked.iter().filter_map(|at| all.get(at));
            return Ok(found
                .filter_map(|(name, value)| Some((&**name, value.as_ref()?)))
                .collect());
        }
        if count == 0 {
            return Ok(Vec::new());
        }
        if count.saturating_mul(2) >= len {
            self.require_all()?;
        }
        let mut cache = self.window.borrow_mut();
        let page = |place: u64| Part::Page {
            range: range_from(prefix, place),
            reverse: false,
            limit: (count * 2).max(PAGE),
            least: (count * 2).max(LEAST), // all of them in one page
        };
        let random = || page(rand::rng().random_range(0..END));
        let Some(window) = cache.as_deref_mut() else { return Err(random()) };
        if count > PAGE && window.pool.len() < count && window.asked >= count {
            return Err(Part::All);
        }
        window.asked = count;
        let behind = page(if window.to == END { 0 } else { window.to });
        if window.draws < count {
            // After pops, continues where the page ended: reading over the gaps that they leave
            // would take longer and longer.
            let popped = window.pool.len() < window.names.len();
            return Err(if popped { behind } else { random() });
        }
        let mut drawn = Vec::with_capacity(count);
        let mut left = window.pool.len();
        while drawn.len() < count && left > 0 {
            let i = rand::rng().random_range(0..left);
            left -= 1;
            window.pool.swap(i, left);
            match self.known.get_key_value(&window.pool[left]) {
                Some((name, Some(value))) => drawn.push((&**name, value)),
                _ => {
                    window.pool.swap_remove(left);
                }
            }
        }
        if drawn.len() < count {
            return Err(behind);
        }
        window.draws -= count;
        Ok(drawn)
    }

    /// Returns `count` random elements with repetition; none if there are none. If not all are in
    /// memory, they are drawn from fewer.
    pub(crate) fn draw(&self, count: usize, prefix: &[u8]) -> Result<Draw<'_, V>, Part> {
        Ok(match self.complete {
            true => Draw::of_all(self.known.positions(), count),
            false => Draw::of_some(self.sample(count.min(PAGE), prefix)?, count),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::{Row, RowKey};
    use std::collections::{BTreeMap, BTreeSet as Names};

    const SEED: u64 = 5;

    impl Payload for u64 {
        fn memory(&self) -> usize {
            0
        }

        fn packed(&self) -> usize {
            8
        }
    }

    fn hash(name: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(name, SEED)
    }

    /// Members with their rows.
    struct World {
        members: Members<u64>,
        rows: BTreeMap<Vec<u8>, u64>,
        pages: usize,
        /// True if all pages are full of large rows, not every other one.
        is_large: bool,
    }

    impl World {
        fn new(count: u64) -> Self {
            let mut members = Members::default();
            for n in 0..count {
                members.insert(n.to_string().as_bytes(), n);
            }
            members.unpack(7);
            let mut world = Self { members, rows: BTreeMap::new(), pages: 0, is_large: false };
            world.seal();
            world
        }

        fn seal(&mut self) {
            for (name, new) in self.members.take_dirty() {
                let key = RowKey::named_element(hash(&name), &name);
                assert!(!new || !self.rows.contains_key(&key), "it is not new");
                match self.members.known(&name) {
                    Some(value) => self.rows.insert(key, *value),
                    None => self.rows.remove(&key),
                };
            }
        }

        fn load(&mut self, part: Part) {
            self.seal();
            match part {
                Part::Page { mut range, reverse: false, limit, least } => {
                    self.pages += 1;
                    let is_cut = self.is_large || self.pages.is_multiple_of(2);
                    let limit = if is_cut { least } else { limit };
                    let from = self.rows.range(range.from.clone()..);
                    let rows: Vec<_> = from.take(limit).map(|(k, v)| (k.clone(), *v)).collect();
                    if rows.len() == limit {
                        range.to = rows.last().map(|(key, _)| [&key[..], &[0]].concat());
                    }
                    let bytes = |(key, value): (Vec<u8>, u64)| {
                        (key.into(), value.to_be_bytes().to_vec().into())
                    };
                    let page = Page { range, rows: rows.into_iter().map(bytes).collect() };
                    self.members.apply_page(page, b"", read).unwrap();
                }
                Part::Fields(names) => {
                    for name in names {
                        let row = self.rows.get(&RowKey::named_element(hash(&name), &name));
                        self.members.apply_loaded(&name, row.copied());
                    }
                }
                other => panic!("{other:?}"),
            }
        }

        /// Scans to the end, calling `between` after every step.
        fn scan(&mut self, count: usize, mut between: impl FnMut(&mut Self)) -> Names<Vec<u8>> {
            let (mut seen, mut cursor) = (Names::new(), 0);
            loop {
                let mut step = Vec::new();
                let visit = |name: &[u8], _: &u64| step.push(name.to_vec());
                match self.members.scan(cursor, count, b"", |name| hash(name) >> 16, visit) {
                    Err(part) => self.load(part),
                    Ok(next) => {
                        seen.extend(step);
                        if next == 0 {
                            return seen;
                        }
                        cursor = next;
                        between(self);
                    }
                }
            }
        }
    }

    fn read(element: &[u8], row: &[u8]) -> anyhow::Result<(Name, u64)> {
        let name = Row::plain_name(element).unwrap();
        Ok((name.into(), u64::from_be_bytes(row.try_into().unwrap())))
    }

    #[test]
    fn a_scan_of_what_is_not_in_memory_visits_all() {
        let mut world = World::new(5000);
        world.members.shed(5000, |_, _| ());
        assert!(!world.members.is_complete());
        let mut gone = 0;
        let seen = world.scan(10, |world| {
            world.members.shed(50, |_, _| ());
            let name = format!("{gone}");
            if let Err(part) = world.members.require(std::iter::once(name.as_bytes())) {
                world.load(part);
            }
            world.members.remove(name.as_bytes(), false);
            world.members.insert(format!("new{gone}").as_bytes(), 1);
            gone += 1;
        });
        for n in gone..5000 {
            assert!(seen.contains(n.to_string().as_bytes()), "{n}");
        }
        assert_eq!(world.members.len(), 5000);
    }

    #[test]
    fn a_step_of_a_scan_ends_with_so_many_bytes() {
        let name = |n: u64| format!("{n}{}", "x".repeat(SCANNED_BYTES / 33)).into_bytes();
        let mut world = World::new(0);
        for n in 0..224 {
            world.members.insert(&name(n), n);
        }
        world.seal();
        for is_cold in [false, true] {
            world.is_large = is_cold;
            if is_cold {
                world.members.shed(224, |_, _| ());
            }
            let mut steps = 1;
            let seen = world.scan(1000, |_| steps += 1);
            assert_eq!(seen, (0..224).map(name).collect());
            // The end of a page, which has four rows here, ends a step, too.
            let most = if is_cold { 224 / 3 + 2 } else { 12 };
            assert!((7..=most).contains(&steps), "{steps}");
        }
    }

    #[test]
    fn all_is_popped_with_few_pages() {
        let mut world = World::new(5000);
        world.members.shed(5000, |_, _| ());
        let mut popped = Names::new();
        while world.members.len() > 0 {
            let drawn = world.members.sample(1, b"");
            match drawn.map(|drawn| drawn.first().map(|(name, _)| name.to_vec())) {
                Ok(Some(name)) => {
                    assert!(world.members.remove(&name, false).is_some());
                    assert!(popped.insert(name));
                }
                Ok(None) => panic!("nothing drawn of {}", world.members.len()),
                Err(Part::All) => {
                    let rows = world.rows.clone();
                    for (element, value) in rows {
                        world.members.apply_loaded(Row::plain_name(&element).unwrap(), Some(value));
                    }
                    world.members.mark_complete();
                }
                Err(part) => world.load(part),
            }
        }
        assert_eq!(popped.len(), 5000);
        assert!(world.pages < 30, "{} pages", world.pages);
    }

    #[test]
    fn a_sample_of_large_elements_takes_few_pages() {
        for count in [1, 200, 600, 1500] {
            let mut world = World::new(10_000);
            world.is_large = true;
            world.members.shed(10_000, |_, _| ());
            loop {
                let drawn = world.members.sample(count, b"").map(|drawn| drawn.len());
                match drawn {
                    Ok(drawn) => break assert_eq!(drawn, count),
                    Err(part) => world.load(part),
                }
                assert!(world.pages < 30, "{count}");
            }
        }
    }

    #[test]
    fn a_changed_element_is_noted_once_in_the_order_of_changes() {
        let mut world = World::new(100);
        let names: Vec<Vec<u8>> = (0..40u64).rev().map(|n| n.to_string().into()).collect();
        for name in &names {
            world.members.update(name, |n| *n += 1);
        }
        // Those that are gone, or come back, were there at the last round.
        world.members.remove(b"20", false);
        world.members.remove(b"30", false);
        world.members.insert(b"30", 5);
        world.members.insert(b"new", 9);
        world.members.insert(b"new", 10);
        let taken = world.members.take_dirty();
        let noted = names.iter().map(|name| (&name[..], false)).chain([(&b"new"[..], true)]);
        assert!(noted.eq(taken.iter().map(|(name, new)| (&**name, *new))), "{taken:?}");
        assert!(world.members.take_dirty().is_empty());
    }

    #[test]
    fn dropping_keeps_what_the_journal_does_not_know() {
        let mut world = World::new(100);
        world.members.insert(b"new", 9);
        let before = world.members.memory();
        world.members.shed(1000, |_, _| ());
        assert!(world.members.memory() < before);
        assert_eq!(world.members.len(), 101);
        assert_eq!(world.members.get(b"new").unwrap(), Some(&9));
        assert!(matches!(world.members.get(b"5"), Err(Part::Fields(_))));
    }

    #[test]
    fn as_many_elements_are_drawn_as_are_asked_for() {
        let mut world = World::new(10_000);
        let draws = |members: &Members<u64>, prefix: &[u8]| {
            let drawn = members.draw(usize::MAX, prefix)?;
            assert_eq!(drawn.len(), usize::MAX);
            let some: Vec<u64> = drawn.take(100_000).map(|(_, value)| *value).collect();
            Ok::<_, Part>(some)
        };
        let all = draws(&world.members, b"").unwrap();
        assert!(all.len() == 100_000 && all.iter().all(|value| *value < 10_000));
        let distinct: Names<u64> = all.into_iter().collect();
        assert!(distinct.len() > 9_900, "{} of 10,000", distinct.len());
        assert_eq!(Members::<u64>::default().draw(5, b"").unwrap().count(), 0);
        assert_eq!(world.members.sample(9_000, b"").unwrap().len(), 9_000);
        world.members.shed(usize::MAX, |_, _| ());
        let some = loop {
            match draws(&world.members, b"") {
                Ok(some) => break some,
                Err(part) => world.load(part),
            }
        };
        assert_eq!(some.len(), 100_000);
    }
}
