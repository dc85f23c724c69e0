//! Measures how long a worker's thread waits for a CPU: it could run, and the system runs others.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The file in which Linux counts the nanoseconds that the calling thread has run, and has waited.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// Least time over which the wait is measured.
const WINDOW: Duration = Duration::from_millis(200);

/// The wait of the thread that calls [`part`](Self::part).
#[derive(Debug, Default)]
pub(super) struct CpuWait {
    /// `None`: the system does not tell.
    counters: OnceCell<Option<File>>,
    /// Time of the last measurement, and the nanoseconds of waiting until then.
    last: Cell<Option<(Instant, u64)>>,
    part: Cell<f64>,
}

impl CpuWait {
    /// Returns the part of the last window in which the thread waited for a CPU; 0 where that is not
    /// known.
    pub(super) fn part(&self, now: Instant) -> f64 {
        if self.last.get().is_some_and(|(at, _)| now.duration_since(at) < WINDOW) {
            return self.part.get();
        }
        let Some(waited) = self.waited_ns() else { return 0.0 };
        if let Some((at, before)) = self.last.replace(Some((now, waited))) {
            let passed = now.duration_since(at).as_nanos() as f64;
            self.part.set((waited.saturating_sub(before) as f64 / passed).min(1.0));
        }
        self.part.get()
    }

    fn waited_ns(&self) -> Option<u64> {
        let counters = self.counters.get_or_init(|| File::open(SCHEDSTAT).ok()).as_ref()?;
        let mut text = [0; 64];
        let length = counters.read_at(&mut text, 0).ok()?;
        waited(std::str::from_utf8(&text[..length]).ok()?)
    }
}

/// Returns the second number of the line.
fn waited(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait() {
        assert_eq!(waited("120 34 5\n"), Some(34));
        assert_eq!(waited("120"), None);
        assert_eq!(waited("a b c"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_wait_is_measured_once_in_a_window() {
        let (wait, start) = (CpuWait::default(), Instant::now());
        assert_eq!(wait.part(start), 0.0);
        wait.last.set(Some((start, 0)));
        let later = start + WINDOW;
        let part = wait.part(later);
        assert!((0.0..=1.0).contains(&part));
        let (at, waited) = wait.last.get().unwrap();
        assert_eq!(at, later);
        // The counter only grows.
        assert!(wait.waited_ns().unwrap() >= waited);
        wait.part.set(0.25);
        assert_eq!(wait.part(later + WINDOW / 2), 0.25);
    }
}
