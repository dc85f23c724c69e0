//! Delays the closing of clients that took too much memory. Their memory is freed at once, but most
//! of them reconnect as soon as they notice that they are closed, and take as much again, which
//! costs all other clients time. So the first are closed at once, and of many one after the other,
//! with pauses that grow with the memory that they took.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pause between two closings once there are many, for each [`PACE_BYTES`] that the first of them
/// took.
const PACE_MS: u64 = 100;

/// Bytes that a client may take again in one [`PACE_MS`]: a worker spends about a tenth of that time
/// on a buffer of this size.
const PACE_BYTES: u64 = 8 << 20;

/// Number of closings that need not keep to the pace, if each of the clients took no more than
/// [`PACE_BYTES`].
const AT_ONCE: u64 = 16;

/// Maximum time that a closing is delayed.
const LONGEST_MS: u64 = 5000;

/// Schedule of the closings.
#[derive(Debug, Default)]
pub(super) struct Farewells {
    /// Time up to which closings have used up the pace, ms since the Unix epoch.
    spent_until_ms: AtomicU64,
}

impl Farewells {
    /// Returns how long the next client that took too much gets no answer before it is closed.
    /// `bytes`: the memory that it took.
    pub(super) fn pause(&self, now_ms: u64, bytes: u64) -> Duration {
        let own_ms = (bytes.div_ceil(PACE_BYTES).max(1) * PACE_MS).min(LONGEST_MS);
        let begin = |spent_ms: u64| {
            // A clock that was set back delays no closing any longer.
            spent_ms.clamp(now_ms, now_ms + AT_ONCE * PACE_MS + LONGEST_MS)
        };
        let next = |spent_ms| Some(begin(spent_ms) + own_ms);
        let spent = &self.spent_until_ms;
        let before = spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let (Ok(spent_ms) | Err(spent_ms)) = before;
        let ahead_ms = begin(spent_ms) + own_ms - now_ms;
        Duration::from_millis(ahead_ms.saturating_sub(AT_ONCE * PACE_MS).min(LONGEST_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_are_closed_at_once_and_of_many_one_after_the_other() {
        let farewells = Farewells::default();
        let pause = |now_ms| farewells.pause(now_ms, PACE_BYTES).as_millis() as u64;
        for n in 0..AT_ONCE {
            assert_eq!(pause(10_000), 0, "{n}");
        }
        assert_eq!([pause(10_000), pause(10_000), pause(10_050)], [100, 200, 250]);
        for _ in 0..1000 {
            assert!(pause(10_050) <= LONGEST_MS);
        }
        assert_eq!(pause(10_050), LONGEST_MS);
        let calm_ms = 10_050 + LONGEST_MS + (AT_ONCE + 1) * PACE_MS;
        for _ in 0..AT_ONCE {
            assert_eq!(pause(calm_ms), 0);
        }
        assert_eq!(pause(calm_ms), 100);
        assert_eq!(pause(5), LONGEST_MS, "the clock was set back");
    }

    #[test]
    fn those_that_took_much_wait_longer_and_so_do_those_behind_them() {
        let farewells = Farewells::default();
        let pause = |bytes| farewells.pause(10_000, bytes).as_millis() as u64;
        assert_eq!([pause(10 * PACE_BYTES), pause(0)], [0, 0], "1,100 ms are spent");
        assert_eq!(pause(10 * PACE_BYTES), 500, "2,100 ms, of which 1,600 are free");
        assert_eq!([pause(1), pause(PACE_BYTES + 1)], [600, 800]);
        assert_eq!(pause(u64::MAX), LONGEST_MS);
    }
}
