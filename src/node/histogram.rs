//! Histograms of the time of commands, one for each command and worker.
//!
//! Only the worker adds to a histogram; other threads read it at any time. Cells are a nanosecond
//! wide up to 64 ns, and a thirty-second of a power of two from there on, so a percentile is right
//! within 3.2 %. The cells of a command (about 6.6 KB) are allocated when it runs for the first
//! time on the worker.

use crate::clients::count;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of the position within a power of two.
const BITS: u32 = 5;

/// Cells that are a nanosecond wide.
const EXACT: u64 = 2 << BITS;

/// The longest time that is told apart in nanoseconds: longer ones count as this, as in Redis.
const LONGEST_NS: u64 = 1_000_000_000;

/// Number of cells.
const CELLS: usize = cell(LONGEST_NS) + 1;

/// Returns the cell of a time.
const fn cell(ns: u64) -> usize {
    let ns = if ns > LONGEST_NS { LONGEST_NS } else { ns };
    if ns < EXACT {
        return ns as usize;
    }
    let power = ns.ilog2();
    let within = (ns >> (power - BITS)) - (1 << BITS);
    (((power - BITS - 1) as usize) << BITS) + (EXACT + within) as usize
}

/// Returns the greatest time of a cell in nanoseconds.
const fn longest_of(cell: usize) -> u64 {
    let cell = cell as u64;
    if cell < EXACT {
        return cell;
    }
    let power = (cell - EXACT) / (1 << BITS) + 1 + BITS as u64;
    let within = (cell - EXACT) % (1 << BITS);
    (((1 << BITS) + within + 1) << (power - BITS as u64)) - 1
}

/// Counts of the times of a command on one worker.
#[derive(Debug, Default)]
pub struct Histogram(OnceLock<Box<[AtomicU64]>>);

impl Histogram {
    fn cells(&self) -> &[AtomicU64] {
        self.0.get_or_init(|| (0..CELLS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts a time.
    pub(crate) fn add(&self, ns: u64) {
        count(&self.cells()[cell(ns)], 1);
    }

    /// Counts the times of a [`Recorded`].
    pub(super) fn add_all(&self, recorded: &Recorded) {
        for &(cell, n) in &recorded.0 {
            count(&self.cells()[usize::from(cell)], u64::from(n));
        }
    }

    /// Forgets all times.
    pub(super) fn reset(&self) {
        if let Some(cells) = self.0.get() {
            cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
    }
}

/// Times that are not counted in a histogram yet, by cell.
#[derive(Debug, Default)]
pub(crate) struct Recorded(Vec<(u16, u32)>);

impl Recorded {
    pub(crate) fn add(&mut self, ns: u64) {
        let cell = cell(ns) as u16;
        match self.0.iter_mut().find(|(known, _)| *known == cell) {
            Some((_, n)) => *n = n.saturating_add(1),
            None => self.0.push((cell, 1)),
        }
    }
}

/// The times of a command on all workers.
#[derive(Clone, Debug)]
pub struct Times(Vec<u64>);

impl Times {
    /// Sums histograms up; `None` if there are no times.
    pub fn of<'a>(histograms: impl Iterator<Item = &'a Histogram>) -> Option<Self> {
        let mut sums = None;
        for cells in histograms.filter_map(|histogram| histogram.0.get()) {
            let sums = sums.get_or_insert_with(|| vec![0; CELLS]);
            for (sum, cell) in sums.iter_mut().zip(cells) {
                *sum += cell.load(Ordering::Relaxed);
            }
        }
        sums.map(Self).filter(|times| times.count() > 0)
    }

    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the time in nanoseconds that so many percent of all do not exceed.
    pub fn percentile(&self, percent: f64) -> u64 {
        let all = self.count();
        let rank = ((percent / 100.0 * all as f64 + 0.5) as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let reached = self.0.iter().position(|n| {
            seen += n;
            seen >= rank
        });
        reached.map_or(0, longest_of)
    }

    /// Returns the number of times below each power of two of nanoseconds, from 1,024 ns on to
    /// the first one beyond all times.
    pub fn by_power(&self) -> impl Iterator<Item = (u64, u64)> {
        (10..LONGEST_NS.ilog2() + 2).map(|power| {
            let bound = 1 << power;
            let cells = if bound > LONGEST_NS { CELLS } else { cell(bound) };
            (bound, self.0[..cells].iter().sum())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_cell_that_ends_behind_it() {
        let times = (0..200).chain((6..30).flat_map(|power| {
            let at = 1_u64 << power;
            [at - 1, at, at + 1, at + at / 3, 2 * at - 1]
        }));
        for ns in times.filter(|ns| *ns <= LONGEST_NS) {
            let at = cell(ns);
            assert!(longest_of(at) >= ns, "{ns}");
            assert!(at == 0 || longest_of(at - 1) < ns, "{ns}");
            assert!((longest_of(at) - ns) as f64 <= ns as f64 / 32.0, "{ns}");
        }
        assert_eq!(cell(u64::MAX), CELLS - 1);
    }

    #[test]
    fn percentiles_are_right_within_a_cell() {
        let (one, other) = (Histogram::default(), Histogram::default());
        assert!(Times::of([&one, &other].into_iter()).is_none());
        for us in 1..=1000 {
            if us % 2 == 0 { one.add(us * 1000) } else { other.add(us * 1000) }
        }
        let times = Times::of([&one, &other].into_iter()).unwrap();
        assert_eq!(times.count(), 1000);
        for (percent, us) in
            [(0.0, 1.0), (50.0, 500.0), (99.0, 990.0), (99.9, 999.0), (100.0, 1000.0)]
        {
            let found = times.percentile(percent) as f64 / 1000.0;
            assert!(found >= us && found <= us * 1.032, "{percent}: {found}");
        }
        one.reset();
        assert_eq!(Times::of([&one, &other].into_iter()).unwrap().count(), 500);
    }

    #[test]
    fn powers_count_all_below() {
        let histogram = Histogram::default();
        [5, 1023, 1024, 2047, 5000, LONGEST_NS * 9].iter().for_each(|ns| histogram.add(*ns));
        let times = Times::of(std::iter::once(&histogram)).unwrap();
        let counts: Vec<_> = times.by_power().collect();
        assert_eq!(counts[..4], [(1024, 2), (2048, 4), (4096, 4), (8192, 5)]);
        assert_eq!(counts[counts.len() - 2..], [(1 << 29, 5), (1 << 30, 6)]);
    }

    #[test]
    fn recorded_times_are_counted_later() {
        let (histogram, mut recorded) = (Histogram::default(), Recorded::default());
        [100, 100, 9000].iter().for_each(|ns| recorded.add(*ns));
        histogram.add_all(&recorded);
        histogram.add_all(&recorded);
        let times = Times::of(std::iter::once(&histogram)).unwrap();
        assert_eq!((times.count(), times.percentile(50.0)), (6, longest_of(cell(100))));
    }
}
