//! Estimates a cardinality from registers: Otmar Ertl, "New cardinality estimation algorithms for
//! HyperLogLog sketches" (arXiv:1702.01284).

use super::registers::{MAX_RANK, REGISTERS};

/// 1 / (2 ln 2).
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The reference's result, by rounding, for an estimate beyond 63 bits.
const TOO_MANY: u64 = 1 << 63;

/// Number of registers of each value.
#[derive(Debug)]
pub(super) struct Histogram([u32; 64]);

impl Histogram {
    pub(super) fn new() -> Self {
        Self([0; 64])
    }

    pub(super) fn of(registers: impl Iterator<Item = u8>) -> Self {
        let mut histogram = Self::new();
        registers.for_each(|value| histogram.add(value, 1));
        histogram
    }

    pub(super) fn add(&mut self, value: u8, count: usize) {
        self.0[usize::from(value)] += count as u32;
    }

    /// Returns the estimated number of different elements that were added.
    pub(super) fn estimate(&self) -> u64 {
        const M: f64 = REGISTERS as f64;
        let [empty, ranks @ ..] = &self.0;
        let (ranks, rest) = ranks.split_at(usize::from(MAX_RANK) - 1);
        let mut z = M * tau((M - f64::from(rest[0])) / M);
        for &count in ranks.iter().rev() {
            z = (z + f64::from(count)) * 0.5;
        }
        z += M * sigma(f64::from(*empty) / M);
        let estimate = (ALPHA * M * M / z).round();
        if estimate < TOO_MANY as f64 { estimate as u64 } else { TOO_MANY }
    }
}

/// Returns the contribution of empty registers to the estimate.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// Returns the contribution of registers at the maximum rank.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(counts: &[(u8, usize)]) -> u64 {
        let mut histogram = Histogram::new();
        counts.iter().for_each(|&(value, count)| histogram.add(value, count));
        histogram.estimate()
    }

    #[test]
    fn registers_are_estimated() {
        assert_eq!(estimate(&[(0, REGISTERS)]), 0);
        assert_eq!(estimate(&[(0, REGISTERS - 1), (1, 1)]), 1);
        assert_eq!(estimate(&[(0, REGISTERS - 1), (50, 1)]), 1);
        assert_eq!(estimate(&[(0, REGISTERS - 100), (2, 100)]), 100);
        // Only bytes written by a client can have such registers.
        assert_eq!(estimate(&[(50, REGISTERS)]), TOO_MANY);
        assert_eq!(estimate(&[(63, REGISTERS)]), TOO_MANY);
    }
}
