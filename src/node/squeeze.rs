//! Keeps the process within its memory budget: decoded values make room for everything else.
//!
//! Shares of the budget are estimates. While files are merged, rows are many, or clients send much,
//! the process may take more than their sum: buffers, and memory that the allocator holds in parts.
//! The excess is then taken off the share of decoded values, which are on disk too, and the part of
//! that share which they lend to pending rows shrinks with it. It comes back slowly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Part of the share of decoded values that may be taken, in eighths.
const MOST_EIGHTHS: u64 = 7;

/// The process is held one part in so many of its budget below it: its memory grows faster than
/// values can leave.
const MARGIN: u64 = 16;

/// Parts of the excess that are taken each second.
const TAKEN: f64 = 4.0;

/// Part of the free memory that is given back each second.
const GIVEN: f64 = 0.25;

/// Budget in bytes below which nothing is taken: the process needs more by itself.
const LEAST_BUDGET: u64 = 128 << 20;

/// Time after which a measurement says nothing of the time before it.
const STEP: Duration = Duration::from_millis(200);

/// Least interval of measurements.
const INTERVAL: Duration = Duration::from_millis(25);

/// See the module's description.
#[derive(Debug, Default)]
pub struct Squeeze {
    taken: AtomicU64,
    looked: Mutex<Option<Instant>>,
}

impl Squeeze {
    /// Returns the bytes by which the share of decoded values is reduced.
    pub fn bytes(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Adapts to the bytes that the process takes now, with a share of `hot` bytes for decoded
    /// values. Called some times a second; measures only if the last time is not just now.
    pub fn adapt(&self, now: Instant, budget: u64, hot: u64, resident: impl FnOnce() -> u64) {
        if budget < LEAST_BUDGET {
            return;
        }
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = looked.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        if looked.is_some() && passed < INTERVAL {
            return;
        }
        *looked = Some(now);
        let most = hot / 8 * MOST_EIGHTHS;
        let seconds = passed.min(STEP).as_secs_f64();
        let target = budget - budget / MARGIN;
        let taken = adapted(self.bytes(), target, resident(), seconds).min(most);
        self.taken.store(taken, Ordering::Relaxed);
    }
}

/// Returns the bytes to take from now on, if `taken` were taken so far.
fn adapted(taken: u64, target: u64, resident: u64, seconds: f64) -> u64 {
    match resident.checked_sub(target) {
        Some(excess) => taken + (excess as f64 * TAKEN * seconds) as u64,
        None => taken.saturating_sub(((target - resident) as f64 * GIVEN * seconds) as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Lets a process take `other` bytes beside decoded values, which shrink to their share with
    /// some delay. Returns the share taken and the bytes of the process at the end.
    fn run(squeeze: &Squeeze, other: u64, hot: u64, budget: u64, seconds: u32) -> (u64, u64) {
        let begin = squeeze.looked.lock().unwrap().unwrap_or_else(Instant::now);
        let mut values = hot as f64;
        for step in 1..=seconds * 20 {
            let resident = other + values as u64;
            squeeze.adapt(begin + step * Duration::from_millis(50), budget, hot, || resident);
            values += ((hot - squeeze.bytes()) as f64 - values) / 10.0;
        }
        (squeeze.bytes(), other + values as u64)
    }

    #[test]
    fn decoded_values_make_room_and_get_it_back() {
        let squeeze = Squeeze::default();
        assert_eq!(run(&squeeze, 150 * MIB, 60 * MIB, 256 * MIB, 10).0, 0);
        let (taken, resident) = run(&squeeze, 220 * MIB, 60 * MIB, 256 * MIB, 60);
        assert!((35 * MIB..45 * MIB).contains(&taken), "{}", taken / MIB);
        assert!((234 * MIB..246 * MIB).contains(&resident), "{}", resident / MIB);
        assert_eq!(run(&squeeze, 150 * MIB, 60 * MIB, 256 * MIB, 60).0, 0);
    }

    #[test]
    fn decoded_values_keep_a_part() {
        let squeeze = Squeeze::default();
        let (taken, _) = run(&squeeze, 900 * MIB, 64 * MIB, 256 * MIB, 20);
        assert_eq!(taken, 56 * MIB);
    }

    #[test]
    fn a_budget_that_the_process_exceeds_by_itself_is_left_alone() {
        let squeeze = Squeeze::default();
        assert_eq!(run(&squeeze, 150 * MIB, 8 * MIB, 32 * MIB, 20).0, 0);
    }
}
