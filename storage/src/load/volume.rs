//! The bytes that loads bring into memory: expected before, counted behind.

use super::range::PAGE_BYTES;
use super::{Loaded, LoadedRows};
use crate::need::{Need, Part};
use crate::store::Store;
use crate::value::string::CHUNK;
use crate::value::{SIZE_UNIT, Value};
use bytes::Bytes;

/// Bytes that a need counts of which nothing is known: a meta row, an index, a value that is not in
/// memory. They are a few hundred as a rule; a value that fits its meta row may have some 16 KiB.
const UNKNOWN_BYTES: usize = 4 << 10;

impl Store {
    /// Returns the approximate bytes that a need brings into memory. Elements count as those of their
    /// value do on average.
    pub fn expected_bytes(&mut self, need: &Need) -> usize {
        let Some(part) = &need.part else { return UNKNOWN_BYTES };
        let Some(entry) = self.entry_for_part(need.db, &need.key) else { return UNKNOWN_BYTES };
        let whole = match &entry.value {
            Value::Str(string) => string.len(),
            _ => (u64::from(entry.stored.units) * SIZE_UNIT) as usize,
        };
        let elements = entry.value.collection().map_or(1, |it| it.len().max(1) as usize);
        let some = |number: usize| number.saturating_mul(whole.div_ceil(elements));
        match part {
            Part::Fields(names) => some(names.len()),
            Part::Chunks(chunks) => chunks.len() * CHUNK,
            Part::All => whole,
            Part::Page { limit, .. } => some(*limit).min(PAGE_BYTES),
            Part::Index { .. } | Part::Expiries => UNKNOWN_BYTES,
        }
    }
}

impl Loaded {
    /// Returns the bytes of the rows that were found.
    pub fn bytes(&self) -> usize {
        self.found.iter().flatten().map(|(_, _, found)| found.bytes()).sum()
    }
}

impl LoadedRows {
    fn bytes(&self) -> usize {
        let of_rows =
            |rows: &[(Bytes, Bytes)]| rows.iter().map(|(key, row)| key.len() + row.len()).sum();
        match self {
            Self::Meta(row) => row.as_ref().map_or(0, Bytes::len),
            Self::Elements(rows) => {
                rows.iter().map(|(name, row)| name.len() + row.as_ref().map_or(0, Bytes::len)).sum()
            }
            Self::All { rows, .. } => of_rows(rows),
            Self::Page(page) => of_rows(&page.rows),
            Self::Index(..) | Self::Expiries(..) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::scope::tests::store;
    use crate::value::{BigStr, Entry, JournaledState, Set, SetEncoding, Str, Typed};

    fn expected(store: &mut Store, part: Option<Part>) -> usize {
        store.expected_bytes(&Need { db: 0, key: (*b"k").into(), part })
    }

    fn hold(store: &mut Store, value: Value, bytes: usize) {
        let mut entry = Entry::absent(b"k", 0);
        entry.value = value;
        entry.stored = JournaledState::new(0, 9, 0).of_size((bytes as u64 / SIZE_UNIT) as u32);
        store.apply_loaded(0, entry);
    }

    #[test]
    fn a_string_is_expected_to_be_as_long_as_it_is() {
        let mut store = store();
        assert_eq!(expected(&mut store, None), UNKNOWN_BYTES);
        assert_eq!(expected(&mut store, Some(Part::All)), UNKNOWN_BYTES, "there is no such key");
        hold(&mut store, Value::Str(Str::Big(Box::new(BigStr::stored(9, 5 << 20)))), 6 << 20);
        assert_eq!(expected(&mut store, Some(Part::All)), 5 << 20);
        assert_eq!(expected(&mut store, Some(Part::Chunks(vec![1, 2, 7]))), 3 * CHUNK);
    }

    #[test]
    fn elements_are_expected_to_be_as_long_as_others() {
        let mut store = store();
        let set = Set::from_meta(9, (1000, 0), SetEncoding::Table);
        hold(&mut store, set.into_value(), 1000 << 20);
        let names = |number| Some(Part::Fields(vec![(*b"name").into(); number]));
        assert_eq!(expected(&mut store, names(1)), 1 << 20);
        assert_eq!(expected(&mut store, names(12)), 12 << 20);
        assert_eq!(expected(&mut store, Some(Part::All)), 1000 << 20);
        let range = crate::need::ElementRange { from: Vec::new(), to: None };
        let page = |limit| Part::Page { range: range.clone(), reverse: false, limit, least: 1 };
        assert_eq!(expected(&mut store, Some(page(3))), 3 << 20);
        assert_eq!(expected(&mut store, Some(page(300))), PAGE_BYTES);
        assert_eq!(expected(&mut store, Some(Part::Expiries)), UNKNOWN_BYTES);
    }
}
