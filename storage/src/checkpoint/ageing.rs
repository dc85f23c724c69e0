//! Ages of what is kept for a time. The system's clock may step ahead, by more than that time: what was
//! kept until then is not older for it, and is the remedy if the step was wrong.

use std::time::{Duration, Instant};

/// The least step of the clock, in ms. Smaller ones come from looking at two clocks, one after the other.
const STEP_MS: u64 = 1000;

/// The time by which ages count. After a step of the clock it is behind by as much, until everything of
/// before has been kept for as long as it is to be, by the monotonic clock.
#[derive(Debug)]
pub struct Ageing {
    /// The monotonic clock and the clock (ms since 1970), when they were last looked at.
    seen: (Instant, u64),
    /// How far it is behind the clock, ...
    behind_ms: u64,
    /// ... and since when.
    since: Instant,
}

impl Ageing {
    /// Begins with a process: a clock that is far ahead of what is there may have stepped, or nothing was
    /// written for long. So the oldest of it, in ms since 1970, is not too old before time has passed.
    pub fn begin(now: (Instant, u64), oldest_ms: Option<u64>, kept_ms: u64) -> Self {
        let spared_ms = oldest_ms.unwrap_or(0).saturating_add(kept_ms);
        Self { seen: now, behind_ms: now.1.saturating_sub(spared_ms), since: now.0 }
    }

    /// Returns the time by which ages count, of what is kept for so long.
    pub fn now_ms(&mut self, (at, now_ms): (Instant, u64), kept_ms: u64) -> u64 {
        let (then, then_ms) = std::mem::replace(&mut self.seen, (at, now_ms));
        let passed_ms = at.saturating_duration_since(then).as_millis() as u64;
        let step_ms = now_ms.saturating_sub(then_ms.saturating_add(passed_ms));
        if step_ms >= STEP_MS {
            self.behind_ms = self.behind_ms.saturating_add(step_ms);
            self.since = at;
        } else if at.saturating_duration_since(self.since) >= Duration::from_millis(kept_ms) {
            self.behind_ms = 0;
        }
        now_ms.saturating_sub(self.behind_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT_MS: u64 = 100_000;
    const NOW_MS: u64 = 1_800_000_000_000;

    /// Returns the monotonic clock and the clock some ms after a beginning, with a step.
    fn after(begun: Instant, ms: u64, step_ms: u64) -> (Instant, u64) {
        (begun + Duration::from_millis(ms), NOW_MS + ms + step_ms)
    }

    #[test]
    fn a_step_of_the_clock_makes_nothing_older() {
        let (begun, year_ms) = (Instant::now(), 365 * 86_400_000);
        let mut ageing = Ageing::begin((begun, NOW_MS), Some(NOW_MS - 1000), KEPT_MS);
        let mut at = |ms, step_ms| ageing.now_ms(after(begun, ms, step_ms), KEPT_MS) - NOW_MS;
        assert_eq!(at(60_000, 0), 60_000);
        assert_eq!(at(60_002, 1), 60_003, "no step");
        assert_eq!(at(70_000, year_ms), 70_001, "stepped");
        assert_eq!(at(169_999, year_ms), 170_000);
        // By now, everything of before the step is old enough.
        assert_eq!(at(170_000, year_ms), 170_000 + year_ms);
        // Two steps, one soon after the other.
        assert_eq!(at(180_000, 2 * year_ms), 180_000 + year_ms);
        assert_eq!(at(190_000, 3 * year_ms), 190_000 + year_ms);
        assert_eq!(at(289_999, 3 * year_ms), 289_999 + year_ms);
        assert_eq!(at(290_000, 3 * year_ms), 290_000 + 3 * year_ms);
    }

    #[test]
    fn nothing_is_too_old_at_a_start() {
        let begun = Instant::now();
        for (oldest_ms, behind_ms) in [
            (Some(NOW_MS - KEPT_MS), 0),
            (Some(NOW_MS - KEPT_MS - 5000), 5000),
            (Some(NOW_MS + 5000), 0),
            (None, NOW_MS - KEPT_MS),
        ] {
            let mut ageing = Ageing::begin((begun, NOW_MS), oldest_ms, KEPT_MS);
            for (ms, behind_ms) in [(0, behind_ms), (99_999, behind_ms), (100_000, 0)] {
                let now = after(begun, ms, 0);
                assert_eq!(ageing.now_ms(now, KEPT_MS), now.1 - behind_ms, "{oldest_ms:?}, {ms}");
            }
        }
    }
}
