//! The earliest expiries of the fields of a big hash, as they are found in its rows.

use super::hash::read_expiry;
use super::members::Name;
use anyhow::Result;
use std::collections::BTreeSet;

/// Maximum number of expiries that are kept, and the bytes of their names; one is kept in any case.
const MAX_FOUND: usize = 8192;
const MAX_FOUND_BYTES: usize = 512 << 10;

/// See the module's description. The memory that it takes is bounded, however many fields there are.
#[derive(Debug, Default)]
pub(crate) struct EarliestExpiries {
    /// When fields expire, and which, the earliest first.
    found: BTreeSet<(u64, Name)>,
    /// Length of their names.
    bytes: usize,
    /// The earliest expiry of all others; 0 when none expires.
    rest_from_ms: u64,
}

impl EarliestExpiries {
    /// Notes the expiry of a field in a row: its element key and value, or the head of the value.
    ///
    /// # Errors
    /// If the row is damaged.
    pub(crate) fn note_row(&mut self, element: &[u8], row: &[u8]) -> Result<()> {
        let (name, expire_at_ms) = read_expiry(element, row)?;
        if expire_at_ms != 0 {
            self.note(expire_at_ms, name);
        }
        Ok(())
    }

    fn note(&mut self, at_ms: u64, name: &[u8]) {
        if (1..=at_ms).contains(&self.rest_from_ms) {
            return;
        }
        self.found.insert((at_ms, Name::from_slice(name)));
        self.bytes += name.len();
        while self.found.len() > 1 && (self.found.len() > MAX_FOUND || self.bytes > MAX_FOUND_BYTES)
        {
            let Some((at_ms, name)) = self.found.pop_last() else { break };
            self.bytes -= name.len();
            self.rest_from_ms = at_ms;
        }
    }

    /// Returns the expiries with their names, and the earliest expiry of all others, 0 when none expires.
    pub(crate) fn into_parts(self) -> (BTreeSet<(u64, Name)>, u64) {
        (self.found, self.rest_from_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn the_earliest_are_kept_and_a_bound_of_the_rest() {
        let mut rng = SmallRng::seed_from_u64(5);
        for (many, most, length) in
            [(100, 100, 8), (3 * MAX_FOUND, MAX_FOUND, 8), (3000, 2048, 256)]
        {
            let mut earliest = EarliestExpiries::default();
            let mut all = BTreeSet::new();
            for n in 0..many {
                let (at_ms, name) = (rng.random_range(1..5000), format!("{n:0length$}"));
                earliest.note(at_ms, name.as_bytes());
                all.insert((at_ms, Name::from_slice(name.as_bytes())));
            }
            let (found, rest_from_ms) = earliest.into_parts();
            assert!(found.len() <= most && found.len() > most - most / 8, "{}", found.len());
            // Those of the same time as the first of the rest may be among the rest.
            let rest: Vec<_> = all.difference(&found).collect();
            assert_eq!(rest_from_ms, rest.first().map_or(0, |(at_ms, _)| *at_ms));
            assert!(found.last().unwrap().0 <= rest_from_ms.max(5000 * u64::from(rest.is_empty())));
        }
        let mut earliest = EarliestExpiries::default();
        earliest.note(9, &vec![b'n'; 2 * MAX_FOUND_BYTES]);
        assert_eq!((earliest.found.len(), earliest.rest_from_ms), (1, 0));
        earliest.note(8, b"n");
        assert_eq!((earliest.found.first().unwrap().0, earliest.rest_from_ms), (8, 9));
    }
}
