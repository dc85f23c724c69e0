//! Jobs in the background that run for a part of the time only: hand-overs, and the pause that merges
//! share.

use super::pace::{CROWDED, FASTER, LOOK, SLOWER};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least part of the time that hand-overs run: one that takes two seconds of a CPU ends within twenty.
const LEAST: f64 = 0.1;

/// Use of the memory for pending rows from which on hand-overs get more time, and all of it: before
/// writers are slowed, which begins at a half.
const MEMORY: (f64, f64) = (0.2, 0.45);

/// The same for the length of the journal, three eighths of which make a hand-over due.
const JOURNAL: (f64, f64) = (0.5, 0.75);

/// Longest stretch of work between two pauses: what is longer was a pause between two jobs.
pub(super) const STRETCH: Duration = Duration::from_millis(50);

/// Pauses are gathered until they are worth a timer.
const LEAST_PAUSE: Duration = Duration::from_millis(5);

/// Pauses of several jobs, which run for a part of the time, all together.
#[derive(Debug)]
pub(super) struct SharedPause(pub(super) tokio::sync::Mutex<Stretch>);

/// The work of all jobs since their last pause.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) since: Instant,
    /// The pause that is due.
    due: Duration,
}

impl Default for SharedPause {
    fn default() -> Self {
        Self(tokio::sync::Mutex::new(Stretch { since: Instant::now(), due: Duration::ZERO }))
    }
}

impl SharedPause {
    /// Notes the work since the last call, and pauses if it is time. Other jobs wait meanwhile, too.
    /// `part` is told how long the work took, and returns the part of the time in which jobs run.
    pub(super) async fn pause(&self, part: impl FnOnce(Duration) -> f64) {
        let mut work = self.0.lock().await;
        let ran = work.since.elapsed().min(STRETCH);
        work.due += pause_after(ran, part(ran));
        if work.due >= LEAST_PAUSE {
            tokio::time::sleep(std::mem::take(&mut work.due)).await;
        }
        work.since = Instant::now();
    }
}

/// Returns the pause after a stretch of work of jobs that run for a part of the time.
pub(super) fn pause_after(ran: Duration, part: f64) -> Duration {
    ran.mul_f64(1.0 / part - 1.0)
}

/// The pace of a worker's hand-overs: how much of the time they may run.
///
/// A hand-over takes a CPU until it ends. Where the CPUs are busy it takes that from commands, although
/// nobody waits for it while there is room for more rows. Then it gets a part of the time, and all of it
/// as the room is used up. If nobody waits for a CPU, hand-overs run all the time.
#[derive(Debug)]
pub struct HandOverPace {
    /// Part of the time in which hand-overs run, in permille.
    part: AtomicU64,
    looked: Mutex<Option<Instant>>,
    pause: SharedPause,
}

impl Default for HandOverPace {
    fn default() -> Self {
        Self { part: AtomicU64::new(1000), looked: Default::default(), pause: Default::default() }
    }
}

impl HandOverPace {
    /// Returns the part of the time in which hand-overs run.
    fn part(&self) -> f64 {
        self.part.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// Lets hand-overs run all the time: somebody waits for them.
    pub fn hurry(&self) {
        self.part.store(1000, Ordering::Relaxed);
    }

    /// Adapts the pace some times a second, given the part of the time that a thread which runs
    /// commands waits for a CPU, and the used parts of the memory for pending rows and of the journal.
    pub fn adapt(&self, now: Instant, cpu_wait: f64, (memory, journal): (f64, f64)) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            return;
        }
        *looked = Some(now);
        let part = next_part(self.part(), cpu_wait, (memory, journal));
        self.part.store((part * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Notes the work since the last pause, and pauses if it is time.
    pub(crate) async fn pause(&self) {
        self.pause.pause(|_| self.part().max(LEAST)).await;
    }
}

/// Returns the part of the time that follows `part`.
fn next_part(part: f64, cpu_wait: f64, (memory, journal): (f64, f64)) -> f64 {
    let within = |at: f64, (from, to): (f64, f64)| (at - from) / (to - from);
    let needed = within(memory, MEMORY).max(within(journal, JOURNAL)).clamp(LEAST, 1.0);
    if cpu_wait > CROWDED { (part * SLOWER).max(needed) } else { (part * FASTER).clamp(LEAST, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_overs_give_way_to_commands_while_there_is_room() {
        let settled = |cpu_wait, uses| (0..20).fold(1.0, |part, _| next_part(part, cpu_wait, uses));
        assert_eq!(settled(0.5, (0.0, 0.0)), LEAST);
        assert_eq!(settled(0.5, (MEMORY.0, JOURNAL.0)), LEAST);
        assert!((settled(0.5, (0.0, 0.625)) - 0.5).abs() < 0.01);
        assert_eq!(settled(0.5, (MEMORY.1, 0.0)), 1.0);
        assert_eq!(settled(0.5, (0.0, JOURNAL.1)), 1.0);
        assert_eq!(settled(0.5, (3.0, 3.0)), 1.0);
        assert_eq!(settled(0.0, (0.0, 0.0)), 1.0, "nobody waits for a CPU");
        let few = (0..4).fold(LEAST, |part, _| next_part(part, 0.0, (0.0, 0.0)));
        assert!(few > 0.4 && few < 1.0, "the pace rises within a second, not at once: {few}");
    }

    #[test]
    fn a_pause_is_as_long_as_the_part_asks_for() {
        assert_eq!(pause_after(STRETCH, 1.0), Duration::ZERO);
        assert_eq!(pause_after(STRETCH, 0.25), 3 * STRETCH);
    }

    #[tokio::test]
    async fn jobs_pause_together() {
        let shared = SharedPause::default();
        shared.0.lock().await.since = Instant::now() - 2 * STRETCH;
        let begun = Instant::now();
        let pause = async || {
            shared.pause(|_| 0.25).await;
            begun.elapsed()
        };
        let (first, second) = tokio::join!(pause(), pause());
        // The second one has not worked, and yet waits for the pause of the first one.
        assert!(first >= 3 * STRETCH && second >= 3 * STRETCH, "{first:?}, {second:?}");
    }

    #[test]
    fn those_who_wait_hurry_it() {
        let pace = HandOverPace::default();
        let now = Instant::now();
        pace.adapt(now, 0.5, (0.0, 0.0));
        assert_eq!(pace.part(), 0.5);
        pace.adapt(now, 0.5, (0.0, 0.0));
        assert_eq!(pace.part(), 0.5, "it was just adapted");
        pace.hurry();
        assert_eq!(pace.part(), 1.0);
    }
}
