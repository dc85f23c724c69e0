//! Counts how often a worker's thread had nothing more to do, and how long it ran tasks.

use std::cell::Cell;
use tokio::runtime::Handle;

/// The thread's runtime counts since its start; this keeps the counts at the last reset.
#[derive(Debug, Default)]
pub(super) struct EventLoop {
    at_reset: Cell<[u64; 2]>,
}

impl EventLoop {
    /// Returns the number of sleeps, and the microseconds of work, since the last reset. Outside of
    /// a runtime there are none.
    pub(super) fn since_reset(&self) -> [u64; 2] {
        let [cycles, busy_us] = self.at_reset.get();
        let [all_cycles, all_busy_us] = since_start();
        [all_cycles.saturating_sub(cycles), all_busy_us.saturating_sub(busy_us)]
    }

    pub(super) fn reset(&self) {
        self.at_reset.set(since_start());
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
