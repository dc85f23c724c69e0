//! The only place that reads the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A wall clock that never steps back: not behind any time it has given, nor behind the greatest
/// time found in the data (see [`Clock::at_least`]).
#[derive(Clone, Debug, Default)]
pub struct Clock {
    floor_us: Arc<AtomicU64>,
}

impl Clock {
    /// Microseconds since the Unix epoch, monotonic.
    pub fn now_us(&self) -> u64 {
        #[allow(clippy::disallowed_methods, reason = "this is the clock")]
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_micros() as u64);
        self.floor_us.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Milliseconds since the Unix epoch, monotonic.
    pub fn now_ms(&self) -> u64 {
        self.now_us() / 1000
    }

    /// From now on the clock is not behind `ms`.
    pub fn at_least(&self, ms: u64) {
        self.floor_us.fetch_max(ms.saturating_mul(1000), Ordering::Relaxed);
    }
}
