//! The first rows of a shard's expiry index, in memory.
//!
//! Eviction by the time to live deletes at the beginning of the index, and deleted rows stay in the
//! pending maps and in the engine for a while. A read from the beginning would pass over all of them
//! again each time. So a shard keeps the rows before some place in memory, once they are asked for.
//! Later changes of the index keep them up to date.

use crate::encoding::{Row, row};
use std::collections::BTreeSet;

/// Maximum number of rows that are kept.
const FIRST_ROWS: usize = 4096;

/// Maximum size of the keys of several rows in bytes.
const FIRST_BYTES: usize = 512 << 10;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct FirstTimes {
    rows: BTreeSet<Box<[u8]>>,
    bytes: usize,
    /// The index has no row before this place that is missing in `rows`. Some of those may be
    /// deleted.
    end: Vec<u8>,
    /// During a read, which begins at `end`: no row before this place that was put since is missing
    /// in `rows`.
    reading: Option<Vec<u8>>,
}

impl Default for FirstTimes {
    fn default() -> Self {
        Self { rows: BTreeSet::new(), bytes: 0, end: vec![row::TIME], reading: None }
    }
}

/// Returns the place behind all rows of an expiry index.
fn end_of_index() -> Vec<u8> {
    vec![row::TIME + 1]
}

impl FirstTimes {
    /// Returns the keys of the rows, the earliest first.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &[u8]> {
        self.rows.iter().map(|row| &**row).take_while(|row| *row < &self.end[..])
    }

    /// Returns true if the index has no other rows.
    pub(crate) fn is_complete(&self) -> bool {
        self.end == end_of_index()
    }

    /// Applies a change of the index.
    pub(crate) fn apply(&mut self, key: &[u8], put: bool) {
        if !put {
            self.remove(key);
        } else if *key < self.reading.as_ref().unwrap_or(&self.end)[..]
            && matches!(Row::parse(key), Some(Row::Time { fields: false, .. }))
        {
            self.insert(key);
        }
    }

    fn insert(&mut self, key: &[u8]) {
        if self.rows.insert(key.into()) {
            self.bytes += key.len();
        }
        while (self.rows.len() > FIRST_ROWS || self.bytes > FIRST_BYTES && self.rows.len() > 1)
            && let Some(last) = self.rows.pop_last()
        {
            self.bytes -= last.len();
            if *last < *self.end {
                self.end = last.to_vec();
            }
            if let Some(reading) = &mut self.reading {
                *reading = last.into();
            }
        }
    }

    /// Forgets a row that is not in the index any more.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        if self.rows.remove(key) {
            self.bytes -= key.len();
        }
    }

    /// Begins a read of further rows, and returns its position.
    pub(crate) fn begin_read(&mut self) -> Vec<u8> {
        self.reading = Some(end_of_index());
        self.end.clone()
    }

    /// Ends a read that has found `rows` before the position `to`; `None`: all further rows.
    pub(crate) fn end_read(&mut self, rows: impl Iterator<Item = Vec<u8>>, to: Option<&[u8]>) {
        let known = self.reading.take().unwrap_or_else(|| self.end.clone());
        self.end = to.map_or_else(end_of_index, <[u8]>::to_vec).min(known);
        for key in rows {
            if key < self.end {
                self.insert(&key);
            }
        }
        self.abort_read();
    }

    /// Ends a read that has failed. Rows behind the end that were put meanwhile are dropped.
    pub(crate) fn abort_read(&mut self) {
        self.reading = None;
        let dropped = self.rows.split_off(&*self.end);
        self.bytes -= dropped.iter().map(|key| key.len()).sum::<usize>();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::RowKey;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn row_at(at_ms: u64, name: &[u8]) -> Vec<u8> {
        RowKey::time(at_ms, 0, 1, false, name)
    }

    /// Reads `limit` rows of an index from a place on, as a plan does.
    fn read(
        index: &BTreeSet<Vec<u8>>,
        from: Vec<u8>,
        limit: usize,
    ) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
        let rows: Vec<Vec<u8>> = index.range(from..).take(limit).cloned().collect();
        let to = rows.last().filter(|_| rows.len() == limit).map(|last| [&last[..], &[0]].concat());
        (rows, to)
    }

    #[test]
    fn the_rows_are_those_of_the_index_whatever_changes_during_reads() {
        for seed in 0..40 {
            let mut draw = StdRng::seed_from_u64(seed);
            let (mut first, mut index) = (FirstTimes::default(), BTreeSet::new());
            // Some indexes have more rows than are kept.
            let times = if seed % 20 == 0 { 60_000 } else { 50 << (seed % 8) };
            for _ in 0..60 {
                let change =
                    |first: &mut FirstTimes, index: &mut BTreeSet<_>, draw: &mut StdRng| {
                        for _ in 0..draw.random_range(0..times / 4) {
                            let row = row_at(draw.random_range(0..times), b"k");
                            let put = draw.random_bool(0.6);
                            first.apply(&row, put);
                            if put {
                                index.insert(row)
                            } else {
                                index.remove(&row)
                            };
                        }
                    };
                change(&mut first, &mut index, &mut draw);
                let from = first.begin_read();
                let (rows, to) = read(&index, from, draw.random_range(1..600));
                change(&mut first, &mut index, &mut draw);
                if draw.random_bool(0.2) {
                    first.abort_read();
                } else {
                    first.end_read(rows.into_iter(), to.as_deref());
                }
                // Rows that were deleted during the read may remain; none is missing.
                let gone: Vec<_> = first.rows().filter(|row| !index.contains(*row)).collect();
                let gone: Vec<Vec<u8>> = gone.into_iter().map(<[u8]>::to_vec).collect();
                gone.iter().for_each(|row| first.remove(row));
                let (kept, end) = (first.rows().collect::<Vec<_>>(), first.end.clone());
                let there = index.range(..end).map(|row| &row[..]).collect::<Vec<_>>();
                assert!(kept == there, "seed {seed}: {} of {}", kept.len(), there.len());
                assert!(kept.len() <= FIRST_ROWS);
                assert_eq!(first.bytes, first.rows.iter().map(|row| row.len()).sum::<usize>());
            }
        }
    }

    #[test]
    fn reads_reach_the_end_and_small_numbers_stay_complete() {
        let index: BTreeSet<_> = (0..1000).map(|n| row_at(n, b"k")).collect();
        let mut first = FirstTimes::default();
        for _ in 0..11 {
            assert!(!first.is_complete());
            let (rows, to) = read(&index, first.begin_read(), 100);
            first.end_read(rows.into_iter(), to.as_deref());
        }
        assert!(first.is_complete() && first.rows().count() == 1000);
        first.apply(&row_at(5000, b"late"), true);
        assert_eq!(first.rows().count(), 1001);
        first.apply(&RowKey::time(7, 0, 1, true, b"its fields"), true);
        assert_eq!(first.rows().count(), 1001);
    }

    #[test]
    fn a_row_with_a_huge_key_is_kept() {
        let huge = row_at(1, &vec![b'k'; FIRST_BYTES + 1]);
        let index = BTreeSet::from([huge.clone(), row_at(2, b"k")]);
        let mut first = FirstTimes::default();
        let (rows, to) = read(&index, first.begin_read(), 10);
        first.end_read(rows.into_iter(), to.as_deref());
        assert_eq!(first.rows().collect::<Vec<_>>(), [&huge[..]]);
        first.apply(&huge, false);
        let (rows, to) = read(&index, first.begin_read(), 10);
        first.end_read(rows.into_iter(), to.as_deref());
        assert!(first.is_complete() && first.rows().count() == 1);
    }
}
