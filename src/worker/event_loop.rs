//! Counts how often a worker's thread had nothing more to do, how long it ran tasks, and the most that
//! it did between two sleeps.

use std::cell::Cell;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The thread's runtime counts since its start; this keeps the counts at the last reset.
#[derive(Debug, Default)]
pub(super) struct EventLoop {
    at_reset: Cell<[u64; 2]>,
    /// Time when the thread woke, and the number of commands up to then.
    woke: Cell<Option<(Instant, u64)>>,
    longest: Cell<Duration>,
    most_commands: Cell<u64>,
    cron: Cell<Duration>,
}

impl EventLoop {
    /// Begins a cycle: the thread has slept. `commands`: number of commands so far.
    pub(super) fn wakes(&self, commands: u64) {
        self.woke.set(Some((Instant::now(), commands)));
    }

    /// Ends a cycle: the thread is about to sleep.
    pub(super) fn sleeps(&self, commands: u64) {
        if let Some((woke, before)) = self.woke.take() {
            self.longest.set(self.longest.get().max(woke.elapsed()));
            let ran = commands.saturating_sub(before);
            self.most_commands.set(self.most_commands.get().max(ran));
        }
    }

    /// Counts a run of the cron.
    pub(super) fn cron_ran(&self, took: Duration) {
        self.cron.set(self.cron.get() + took);
    }

    /// Returns the longest cycle and the time of the cron in microseconds, and the most commands of a
    /// cycle, since the last reset.
    pub(super) fn extremes(&self) -> [u64; 3] {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        [us(self.longest.get()), us(self.cron.get()), self.most_commands.get()]
    }

    /// Returns the number of sleeps, and the microseconds of work, since the last reset. Outside of
    /// a runtime there are none.
    pub(super) fn since_reset(&self) -> [u64; 2] {
        let [cycles, busy_us] = self.at_reset.get();
        let [all_cycles, all_busy_us] = since_start();
        [all_cycles.saturating_sub(cycles), all_busy_us.saturating_sub(busy_us)]
    }

    pub(super) fn reset(&self) {
        self.at_reset.set(since_start());
        self.longest.set(Duration::ZERO);
        self.most_commands.set(0);
        self.cron.set(Duration::ZERO);
    }
}

fn since_start() -> [u64; 2] {
    let Ok(runtime) = Handle::try_current() else { return [0; 2] };
    let metrics = runtime.metrics();
    let busy = metrics.worker_total_busy_duration(0);
    [metrics.worker_park_count(0), u64::try_from(busy.as_micros()).unwrap_or(u64::MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_longest_and_the_fullest_cycle_count() {
        let counted = EventLoop::default();
        counted.sleeps(7);
        assert_eq!(counted.extremes(), [0, 0, 0], "no cycle has begun");
        counted.wakes(7);
        std::thread::sleep(Duration::from_millis(2));
        counted.sleeps(12);
        let longest = counted.extremes()[0];
        assert!(longest >= 2000, "{longest}");
        counted.wakes(12);
        counted.sleeps(13);
        counted.cron_ran(Duration::from_micros(3));
        counted.cron_ran(Duration::from_micros(4));
        assert_eq!(counted.extremes(), [longest, 7, 5]);
        counted.reset();
        assert_eq!(counted.extremes(), [0, 0, 0]);
    }

    #[test]
    fn sleeps_and_work_are_counted() {
        const WORK: Duration = Duration::from_millis(20);
        let counted = EventLoop::default();
        assert_eq!(counted.since_reset(), [0, 0]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let worker = tokio::spawn(async {
                let began = Instant::now();
                while began.elapsed() < WORK {}
            });
            worker.await.unwrap();
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let [cycles, busy_us] = counted.since_reset();
            assert!(cycles >= 3, "{cycles}");
            assert!(busy_us >= WORK.as_micros() as u64, "{busy_us}");
            counted.reset();
            tokio::time::sleep(Duration::from_millis(2)).await;
            let [again, little] = counted.since_reset();
            assert!((1..=cycles).contains(&again) && little < busy_us, "{again} {little}");
        });
    }
}
