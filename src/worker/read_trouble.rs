//! Logs reads that fail: when that begins, how many there are, and when it is over.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Interval of log lines while reads keep failing.
const AGAIN: Duration = Duration::from_secs(60);

/// Time without failures after which reads count as working again.
const QUIET: Duration = Duration::from_secs(5);

/// State of the reads of a worker.
#[derive(Default)]
pub(super) struct ReadTrouble {
    /// Time of the last failure, while the trouble lasts.
    failed: Cell<Option<Instant>>,
    told: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TroubleLine {
    /// Number of reads that have failed since the last line.
    Failing(u64),
    Over,
}

impl ReadTrouble {
    /// Records a failed read, and returns a line if one is due.
    pub(super) fn failed(&self, now: Instant) -> Option<TroubleLine> {
        self.failed.set(Some(now));
        self.untold.set(self.untold.get() + 1);
        if self.told.get().is_some_and(|told| now.duration_since(told) < AGAIN) {
            return None;
        }
        self.told.set(Some(now));
        Some(TroubleLine::Failing(self.untold.take()))
    }

    /// Records a successful read, and returns a line if the trouble is over.
    pub(super) fn succeeded(&self, now: impl FnOnce() -> Instant) -> Option<TroubleLine> {
        let failed = self.failed.get()?;
        if now().duration_since(failed) < QUIET {
            return None;
        }
        self.failed.take();
        self.told.take();
        self.untold.take();
        Some(TroubleLine::Over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_when_it_begins_while_it_lasts_and_when_it_is_over() {
        let trouble = ReadTrouble::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(trouble.succeeded(|| at(0)), None);
        assert_eq!(trouble.failed(at(1)), Some(TroubleLine::Failing(1)));
        for second in 2..60 {
            assert_eq!(trouble.failed(at(second)), None);
            // Reads of other keys succeed meanwhile.
            assert_eq!(trouble.succeeded(|| at(second)), None);
        }
        assert_eq!(trouble.failed(at(61)), Some(TroubleLine::Failing(59)));
        assert_eq!(trouble.succeeded(|| at(66)), Some(TroubleLine::Over));
        assert_eq!(trouble.succeeded(|| at(67)), None);
        assert_eq!(trouble.failed(at(68)), Some(TroubleLine::Failing(1)));
    }
}
