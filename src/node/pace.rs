//! Slows writers while the engines have debts: pending rows, and files that have yet to be merged.
//!
//! Without that, writers would go on at full speed until there is no room at all, and then stand
//! still until an engine has finished a large merge. Here they get a common rate that sinks as the
//! debt grows, and that settles at the rate at which the engines work. A connection that has written
//! pauses before its next commands: as long as its bytes take at that rate, behind the bytes of
//! others. Readers are not slowed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Debt, as a part of the room for it, from which on writers are slowed, and at which they get just
/// the rate that they had been given.
const FREE: f64 = 0.5;
const TARGET: f64 = 0.75;

/// Least and greatest part of the given rate that writers get at a time.
const PARTS: (f64, f64) = (0.1, 2.0);

/// How much the given rate changes in a second while the debt is off the target by all of its room.
const GAIN: f64 = 2.0;

/// Minimum of the given rate in bytes per second.
const MIN_RATE: f64 = 1e6;

/// Maximum of a pause. If so many writers wait that pauses should be longer, the room may run out.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Time in which the measured rate of writers follows a change.
const MEASURED_OVER_S: f64 = 1.0;

/// The common rate of the writers.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    /// Microseconds for which a byte counts, times 2^20; 0: writers are not slowed.
    cost: AtomicU64,
    /// Microseconds since `began` at which the bytes of earlier writers are done.
    until_us: AtomicU64,
    /// Bytes of writers so far.
    bytes: AtomicU64,
    /// Microseconds of all pauses so far.
    paused_us: AtomicU64,
    control: Mutex<PaceControl>,
}

#[derive(Debug, Default)]
struct PaceControl {
    looked: Option<Instant>,
    bytes: u64,
    /// Bytes per second of writers lately.
    measured: f64,
    /// The given rate in bytes per second, while writers are slowed.
    given: Option<f64>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            cost: AtomicU64::new(0),
            until_us: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            paused_us: AtomicU64::new(0),
            control: Mutex::default(),
        }
    }
}

impl Pace {
    fn control(&self) -> MutexGuard<'_, PaceControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes of a writer, and returns how long it has to pause.
    pub fn charge(&self, bytes: u64) -> Duration {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let cost = self.cost.load(Ordering::Relaxed);
        if cost == 0 {
            return Duration::ZERO;
        }
        let now_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let pause = self.reserve(now_us, bytes.saturating_mul(cost) >> 20);
        self.paused_us.fetch_add(pause.as_micros() as u64, Ordering::Relaxed);
        pause
    }

    /// Returns the time until the bytes of a writer, which take so long, are done.
    fn reserve(&self, now_us: u64, takes_us: u64) -> Duration {
        let limit = now_us + MAX_PAUSE.as_micros() as u64;
        let end = |until: u64| until.max(now_us).saturating_add(takes_us).min(limit);
        let until = self
            .until_us
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |until| Some(end(until)));
        Duration::from_micros(end(until.unwrap_or(now_us)) - now_us)
    }

    /// Returns the sum of all pauses so far in microseconds.
    pub fn paused_us(&self) -> u64 {
        self.paused_us.load(Ordering::Relaxed)
    }

    /// Returns the rate to which writers are slowed, in bytes per second; 0: they are not.
    pub fn rate(&self) -> u64 {
        match self.cost.load(Ordering::Relaxed) {
            0 => 0,
            cost => (1_000_000 << 20) / cost,
        }
    }

    /// Adapts the rate to the debt, as a part of the room for it. Called some times a second.
    pub fn adapt(&self, now: Instant, debt: f64) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let rate = self.control().adapt(now, debt, bytes);
        let cost = rate.map_or(0, |rate| (f64::from(1 << 20) * 1e6 / rate).max(1.0) as u64);
        self.cost.store(cost, Ordering::Relaxed);
    }
}

impl PaceControl {
    /// Returns the rate from now on in bytes per second; `None`: as fast as they can.
    fn adapt(&mut self, now: Instant, debt: f64, bytes: u64) -> Option<f64> {
        let passed = self.looked.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        let passed = passed.min(MEASURED_OVER_S);
        if passed > 0.0 {
            let rate = bytes.saturating_sub(self.bytes) as f64 / passed;
            self.measured += (rate - self.measured) * passed / MEASURED_OVER_S;
        }
        (self.looked, self.bytes) = (Some(now), bytes);
        if debt < FREE {
            self.given = None;
            return None;
        }
        let given = self.given.unwrap_or(self.measured);
        let given = (given * (1.0 + GAIN * (TARGET - debt) * passed)).max(MIN_RATE);
        self.given = Some(given);
        Some(given * ((1.0 - debt) / (1.0 - TARGET)).clamp(PARTS.0, PARTS.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);

    /// Lets writers that want `wanted` bytes per second write to an engine that takes `taken`, in
    /// lumps, with room for `room` bytes. Returns the bytes that were written in the last second,
    /// and the greatest debt.
    fn run(wanted: f64, taken: f64, room: f64, seconds: u32) -> (f64, f64) {
        let (mut control, mut now) = (PaceControl::default(), Instant::now());
        let (mut pending, mut bytes, mut rate, mut most) = (0.0, 0.0, None, 0.0_f64);
        let mut begin = 0.0;
        for step in 0..seconds * 20 {
            if step + 20 == seconds * 20 {
                begin = bytes;
            }
            let written = wanted.min(rate.unwrap_or(wanted)) * STEP.as_secs_f64();
            bytes += written;
            pending += written;
            if step % 4 == 3 {
                pending = f64::max(0.0, pending - taken * STEP.as_secs_f64() * 4.0);
            }
            now += STEP;
            most = most.max(pending / room);
            rate = control.adapt(now, pending / room, bytes as u64);
        }
        (bytes - begin, most)
    }

    #[test]
    fn writers_get_the_rate_of_the_engine_and_the_room_does_not_run_out() {
        for room in [24e6, 100e6, 400e6] {
            for taken in [20e6, 50e6] {
                let (written, most) = run(80e6, taken, room, 60);
                assert!((0.8 * taken..1.2 * taken).contains(&written), "{room} {taken} {written}");
                assert!(most < 1.0, "{room} {taken}: {most}");
            }
        }
    }

    #[test]
    fn writers_slower_than_the_engine_are_not_slowed() {
        let (written, most) = run(30e6, 50e6, 24e6, 20);
        assert!((29e6..31e6).contains(&written) && most < FREE, "{written} {most}");
    }

    #[test]
    fn writers_wait_behind_each_other_and_not_for_long() {
        let pace = Pace::default();
        assert_eq!(pace.charge(1 << 20), Duration::ZERO);
        assert_eq!(pace.reserve(1000, 200), Duration::from_micros(200));
        assert_eq!(pace.reserve(1100, 200), Duration::from_micros(300));
        assert_eq!(pace.reserve(9000, 200), Duration::from_micros(200));
        assert_eq!(pace.reserve(9000, 1 << 60), MAX_PAUSE);
        assert_eq!(pace.reserve(9000, 200), MAX_PAUSE);
    }

    #[test]
    fn the_rate_is_known_while_writers_are_slowed() {
        let (pace, now) = (Pace::default(), Instant::now());
        pace.adapt(now, 0.0);
        assert_eq!(pace.rate(), 0);
        pace.adapt(now + STEP, 0.9);
        assert!(pace.rate() > 0 && pace.charge(1000) > Duration::ZERO && pace.paused_us() > 0);
        pace.adapt(now + 2 * STEP, 0.4);
        assert_eq!((pace.rate(), pace.charge(1000)), (0, Duration::ZERO));
    }
}
