//! The doorbell of a worker: others ring it when they have left letters. Only the first to ring while
//! the worker sleeps has to wake it, which costs a system call; a worker that is awake looks at its
//! bell before it goes to sleep.

use std::sync::atomic::{AtomicU64, Ordering};

/// Set while the worker sleeps, or is about to.
const ASLEEP: u64 = 1 << 63;

/// Number of bits for the workers that ring; with more workers, several share one.
const RINGERS: usize = 63;

/// The operations on the bell's word. The model test has another one.
pub(crate) trait Word: Default {
    fn load(&self) -> u64;
    fn swap(&self, value: u64) -> u64;
    fn set(&self, bits: u64) -> u64;
    fn keep(&self, bits: u64) -> u64;
    /// Replaces `from` by `to`; returns false if there was another value.
    fn replace(&self, from: u64, to: u64) -> bool;
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    fn swap(&self, value: u64) -> u64 {
        self.swap(value, Ordering::AcqRel)
    }

    fn set(&self, bits: u64) -> u64 {
        self.fetch_or(bits, Ordering::AcqRel)
    }

    fn keep(&self, bits: u64) -> u64 {
        self.fetch_and(bits, Ordering::AcqRel)
    }

    fn replace(&self, from: u64, to: u64) -> bool {
        self.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A worker's bell, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Doorbell<W>(W);

impl<W: Word> Doorbell<W> {
    /// Rings for `from`, which has left a letter before. Returns true if the caller has to wake the
    /// worker.
    #[must_use]
    pub(super) fn ring(&self, from: usize) -> bool {
        self.0.set(bit(from)) == ASLEEP
    }

    /// Returns the workers that have rung since the last answer. The worker must be awake.
    pub(super) fn answer(&self) -> Rung {
        Rung(if self.0.load() == 0 { 0 } else { self.0.swap(0) })
    }

    /// Returns true if nobody has rung since the last answer.
    pub(super) fn is_silent(&self) -> bool {
        self.0.load() == 0
    }

    /// Goes to sleep; returns false if somebody has rung.
    #[must_use]
    pub(super) fn sleep(&self) -> bool {
        self.0.replace(0, ASLEEP)
    }

    /// Ends the sleep.
    pub(super) fn wake(&self) {
        if self.0.load() & ASLEEP != 0 {
            self.0.keep(!ASLEEP);
        }
    }
}

/// Workers that have rung.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rung(u64);

impl Rung {
    /// Returns true if this worker may have rung.
    pub(super) fn has(self, worker: usize) -> bool {
        self.0 & bit(worker) != 0
    }

    /// Returns true if nobody has rung.
    pub(super) fn is_empty(self) -> bool {
        self.0 & !ASLEEP == 0
    }
}

fn bit(worker: usize) -> u64 {
    1 << (worker % RINGERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_to_ring_wakes_a_sleeper() {
        let bell = Doorbell::<AtomicU64>::default();
        assert!(!bell.ring(3), "it is awake");
        assert!(!bell.sleep(), "there is a letter");
        let rung = bell.answer();
        assert!(rung.has(3) && rung.has(3 + RINGERS) && !rung.has(4));
        assert!(bell.answer().is_empty() && bell.sleep());
        assert!(bell.ring(1) && !bell.ring(2), "the first one wakes it");
        bell.wake();
        assert!(!bell.is_silent() && !bell.ring(1));
        assert!(bell.answer().has(2) && bell.is_silent());
    }
}
