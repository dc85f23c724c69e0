//! Rates per second, as INFO shows them.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Number of rates.
pub const RATES: usize = 7;

/// Number of samples of which a rate is the mean.
const SAMPLES: usize = 16;

/// A counter's rate over the last samples.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    last: u64,
    per_second: [u64; SAMPLES],
    at: usize,
}

impl Rate {
    fn sample(&mut self, total: u64, elapsed_us: u64) {
        let gone_by = total.saturating_sub(self.last);
        self.last = total;
        self.per_second[self.at] = gone_by * 1_000_000 / elapsed_us.max(1);
        self.at = (self.at + 1) % SAMPLES;
    }

    fn mean(&self) -> u64 {
        self.per_second.iter().sum::<u64>() / SAMPLES as u64
    }
}

/// Rates of commands, bytes read and written, of those from a primary and to replicas, and of the
/// cycles of the workers' threads and their time in microseconds.
#[derive(Debug, Default)]
pub struct Rates {
    state: Mutex<(Option<Instant>, [Rate; RATES])>,
}

impl Rates {
    /// Adds a sample: the current totals, in this order.
    pub fn sample(&self, totals: [u64; RATES]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let elapsed = state.0.replace(now).map_or(0, |before| (now - before).as_micros() as u64);
        for (rate, total) in state.1.iter_mut().zip(totals) {
            if elapsed == 0 {
                rate.last = total;
            } else {
                rate.sample(total, elapsed);
            }
        }
    }

    /// Forgets all samples (CONFIG RESETSTAT).
    pub fn reset(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
    }

    /// Returns the numbers per second.
    pub fn per_second(&self) -> [u64; RATES] {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.map(|rate| rate.mean())
    }
}
