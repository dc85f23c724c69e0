//! Accesses of keys, as LFU policies of `maxmemory` and OBJECT FREQ count them.

use super::Entry;
use rand::RngExt;

/// Access count of a key that is new, or not in memory.
pub(crate) const LFU_FIRST: u8 = 5;

/// How accesses are counted (LFU).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessCounting {
    /// The greater, the more accesses raise the count (`lfu-log-factor`).
    pub log_factor: u32,
    /// Minutes after which the count sinks by one; 0: never (`lfu-decay-time`).
    pub decay_minutes: u32,
}

impl AccessCounting {
    /// Returns a count as it is after so many seconds without an access.
    fn decayed(self, count: u8, idle_s: u32) -> u8 {
        let periods = (idle_s / 60).checked_div(self.decay_minutes).unwrap_or(0);
        count.saturating_sub(u8::try_from(periods).unwrap_or(u8::MAX))
    }

    /// Returns a count after an access: it grows by one with a probability that sinks as it grows.
    fn raised(self, count: u8, random: f64) -> u8 {
        let above = f64::from(count.saturating_sub(LFU_FIRST));
        let grows = random < 1.0 / (above * f64::from(self.log_factor) + 1.0);
        count.saturating_add(u8::from(grows))
    }
}

impl Entry {
    /// Returns the logarithmic count of its accesses, as OBJECT FREQ answers it.
    pub fn accesses(&self, now_ms: u64, counting: AccessCounting) -> u8 {
        counting.decayed(self.accesses, self.idle_s(now_ms))
    }

    /// Counts an access; must precede the note of its time.
    #[inline]
    pub(crate) fn count_access(&mut self, now_ms: u64, counting: AccessCounting) {
        let now = self.accesses(now_ms, counting);
        self.accesses = counting.raised(now, rand::rng().random());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTING: AccessCounting = AccessCounting { log_factor: 10, decay_minutes: 1 };

    #[test]
    fn counts_grow_slower_and_sink_with_time() {
        assert_eq!(COUNTING.raised(LFU_FIRST, 0.99), LFU_FIRST + 1);
        assert_eq!((COUNTING.raised(15, 0.0), COUNTING.raised(15, 0.5)), (16, 15));
        assert_eq!(COUNTING.raised(255, 0.0), 255);
        assert_eq!([0, 59, 60, 600, 60_000].map(|s| COUNTING.decayed(8, s)), [8, 8, 7, 0, 0]);
        let never = AccessCounting { decay_minutes: 0, ..COUNTING };
        assert_eq!(never.decayed(8, 60_000), 8);
    }
}
