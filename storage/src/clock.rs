//! The only place that reads the wall clock.
//!
//! Time neither goes back nor stands still: when the system clock is behind the time that was given
//! last, or behind the data's, this clock continues with the monotonic clock, slightly slower,
//! until the system clock has caught up. Then it follows the system clock again.

use chrono::{DateTime, Utc};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// How much slower than the monotonic clock this clock runs while the system clock is behind it: by
/// one part in so many. A lead of one second is gone after two minutes, of an hour after five days.
const SLOWER: u64 = 128;

/// A change of the system clock by at least this much is logged; so is a lead of as much over it.
const LARGE_US: u64 = 10_000_000;

/// A wall clock that never steps back: it is not behind any time it has given, nor behind the
/// greatest time found in the data (see [`Clock::at_least`]).
#[derive(Clone, Debug, Default)]
pub struct Clock {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    source: TimeSource,
    /// The greatest time that was given, or set by [`Clock::at_least`].
    floor_us: AtomicU64,
    /// Difference between this clock's time and the slowed monotonic clock; it only grows.
    offset_us: AtomicI64,
    watch: Mutex<Watch>,
    jumps: AtomicU64,
}

/// Source of time.
#[derive(Debug)]
enum TimeSource {
    /// The system clock, and the monotonic clock since a moment.
    System(Instant),
    Manual(Arc<ManualTime>),
    /// The clocks of a simulation: the wall clock is ahead by some microseconds.
    #[cfg(test)]
    Simulated(u64),
}

/// A time that tests set.
#[derive(Debug, Default)]
pub struct ManualTime {
    /// The wall clock.
    pub wall_us: AtomicU64,
    pub elapsed_us: AtomicU64,
}

/// State of the last comparison of the clocks.
#[derive(Debug, Default)]
struct Watch {
    /// The wall clock, and the monotonic clock.
    seen: Option<(u64, u64)>,
    /// True if the lead over the wall clock was logged.
    told_ahead: bool,
}

impl Default for TimeSource {
    fn default() -> Self {
        Self::System(Instant::now())
    }
}

impl TimeSource {
    fn wall_us(&self) -> u64 {
        match self {
            #[allow(clippy::disallowed_methods, reason = "this is the clock")]
            Self::System(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| d.as_micros() as u64),
            Self::Manual(time) => time.wall_us.load(Ordering::Relaxed),
            #[cfg(test)]
            Self::Simulated(ahead) => ahead + crate::simulated::time().unwrap().as_micros() as u64,
        }
    }

    fn elapsed_us(&self) -> u64 {
        match self {
            Self::System(since) => since.elapsed().as_micros() as u64,
            Self::Manual(time) => time.elapsed_us.load(Ordering::Relaxed),
            #[cfg(test)]
            Self::Simulated(_) => crate::simulated::elapsed().as_micros() as u64,
        }
    }
}

impl Clock {
    /// Creates a clock on a time that tests set.
    pub fn manual(time: Arc<ManualTime>) -> Self {
        let inner = Inner { source: TimeSource::Manual(time), ..Inner::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Creates the clock of a process in a simulation, the wall clock of which is so much ahead.
    #[cfg(test)]
    pub(crate) fn simulated(ahead_us: u64) -> Self {
        let inner = Inner { source: TimeSource::Simulated(ahead_us), ..Inner::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Returns microseconds since the Unix epoch, monotonic.
    pub fn now_us(&self) -> u64 {
        let wall = self.inner.source.wall_us();
        let floor = self.inner.floor_us.fetch_max(wall, Ordering::Relaxed);
        if wall >= floor { wall } else { self.inner.go_on_from(floor) }
    }

    /// Returns milliseconds since the Unix epoch, monotonic.
    ///
    /// Cores that ask often share the greatest time, which only changes once a millisecond: they
    /// do not take the cache line from each other.
    pub fn now_ms(&self) -> u64 {
        let wall_ms = self.inner.source.wall_us() / 1000;
        if self.inner.floor_us.load(Ordering::Relaxed) / 1000 == wall_ms {
            return wall_ms;
        }
        self.now_us() / 1000
    }

    /// Makes the clock not be behind `ms` from now on.
    pub fn at_least(&self, ms: u64) {
        self.inner.floor_us.fetch_max(ms.saturating_mul(1000), Ordering::Relaxed);
    }

    /// Returns the lead over the system clock.
    pub fn ahead_ms(&self) -> u64 {
        let wall = self.inner.source.wall_us();
        self.now_us().saturating_sub(wall) / 1000
    }

    /// Returns the number of changes of the system clock by ten seconds or more.
    pub fn jumps(&self) -> u64 {
        self.inner.jumps.load(Ordering::Relaxed)
    }

    /// Compares the clocks, and logs a large jump of the system clock. Must be called a few times a
    /// second.
    pub fn look(&self) {
        let inner = &self.inner;
        let (wall, elapsed) = (inner.source.wall_us(), inner.source.elapsed_us());
        let now = self.now_us();
        let mut watch = inner.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let before = watch.seen.replace((wall, elapsed));
        let expected = before.map_or(wall, |(wall, then)| wall + elapsed.saturating_sub(then));
        if wall.abs_diff(expected) >= LARGE_US {
            inner.jumps.fetch_add(1, Ordering::Relaxed);
            watch.told_ahead &= wall > expected;
            if wall > expected {
                tracing::warn!(
                    from = text(expected),
                    to = text(wall),
                    "the system's clock went ahead by {} s: keys expire by it, and time will not \
                     go back if it is corrected",
                    (wall - expected) / 1_000_000
                );
            }
        }
        let ahead = now.saturating_sub(wall);
        if ahead >= LARGE_US && !watch.told_ahead {
            watch.told_ahead = true;
            tracing::warn!(
                now = %text(now),
                system = %text(wall),
                "time is {} s ahead of the system's clock, as the data is; it goes on from there, \
                 by 1/{SLOWER} slower until the system's clock has caught up",
                ahead / 1_000_000
            );
        } else if ahead == 0 && watch.told_ahead {
            watch.told_ahead = false;
            tracing::info!("the system's clock has caught up: time follows it again");
        }
    }
}

impl Inner {
    /// Returns the time while the wall clock is behind `floor`: because it was set back, or the
    /// data is ahead of it, or only because another thread read it a moment later.
    #[cold]
    fn go_on_from(&self, floor: u64) -> u64 {
        let elapsed = self.source.elapsed_us();
        let slowed = signed(elapsed - elapsed / SLOWER);
        let lacks = signed(floor).saturating_sub(slowed);
        let offset = self.offset_us.fetch_max(lacks, Ordering::Relaxed).max(lacks);
        let now = u64::try_from(slowed.saturating_add(offset)).unwrap_or(0);
        self.floor_us.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// Formats a time for messages.
fn text(us: u64) -> String {
    match DateTime::<Utc>::from_timestamp_micros(signed(us)) {
        Some(time) => format!("{time:?}"),
        None => format!("{us} µs"),
    }
}

#[cfg(test)]
#[path = "clock_tests.rs"]
mod tests;
