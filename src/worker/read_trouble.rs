//! What the log says of reads that fail: that it begins, how many there are, and that it is over.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// While reads go on failing, they are told of this often.
const AGAIN: Duration = Duration::from_secs(60);

/// Reads succeed again when none has failed for so long.
const QUIET: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Default)]
pub(super) struct ReadTrouble {
    /// When a read failed last, while the trouble lasts.
    failed: Cell<Option<Instant>>,
    told: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// So many reads have failed since the last line.
    Failing(u64),
    Over,
}

impl ReadTrouble {
    /// A read has failed.
    pub(super) fn failed(&self, now: Instant) -> Option<Line> {
        self.failed.set(Some(now));
        self.untold.set(self.untold.get() + 1);
        if self.told.get().is_some_and(|told| now.duration_since(told) < AGAIN) {
            return None;
        }
        self.told.set(Some(now));
        Some(Line::Failing(self.untold.take()))
    }

    /// A read has succeeded.
    pub(super) fn succeeded(&self, now: impl FnOnce() -> Instant) -> Option<Line> {
        let failed = self.failed.get()?;
        if now().duration_since(failed) < QUIET {
            return None;
        }
        self.failed.take();
        self.told.take();
        self.untold.take();
        Some(Line::Over)
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
        assert_eq!(trouble.failed(at(1)), Some(Line::Failing(1)));
        for second in 2..60 {
            assert_eq!(trouble.failed(at(second)), None);
            // Other keys can be read.
            assert_eq!(trouble.succeeded(|| at(second)), None);
        }
        assert_eq!(trouble.failed(at(61)), Some(Line::Failing(59)));
        assert_eq!(trouble.succeeded(|| at(66)), Some(Line::Over));
        assert_eq!(trouble.succeeded(|| at(67)), None);
        assert_eq!(trouble.failed(at(68)), Some(Line::Failing(1)));
    }
}
