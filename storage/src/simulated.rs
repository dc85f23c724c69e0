//! The ground of simulations, so that one seed has one trace: time, chance, threads, and processes.
//!
//! A simulation runs on a thread of its own, with a runtime whose clock is paused: it skips all waiting.
//! There it replaces the clocks, the random numbers of the system, and threads. Its processes are
//! tasks that all sleep, go on, and end together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::Instant;

/// The clocks at the beginning of a simulation.
const BEGIN: Duration = Duration::from_secs(1_800_000_000);

thread_local! {
    /// When the simulation of this thread began.
    static BEGUN: Cell<Option<Instant>> = const { Cell::new(None) };
    /// State of its random numbers; `None`: those of the system.
    static CHANCE: Cell<Option<u64>> = const { Cell::new(None) };
    /// The process whose task runs.
    static RUNNING: RefCell<Option<Arc<SimProcess>>> = const { RefCell::new(None) };
}

/// Runs a simulation.
///
/// # Panics
/// If it does.
pub(crate) fn run<T: Send, F: Future<Output = T>>(
    seed: u64,
    simulation: impl FnOnce() -> F + Send,
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            CHANCE.set(Some(seed));
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            LocalSet::new().block_on(&runtime, async {
                BEGUN.set(Some(Instant::now()));
                simulation().await
            })
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the time on all clocks of this thread's simulation; `None`: there is none.
pub(crate) fn time() -> Option<Duration> {
    BEGUN.get().map(|begun| BEGIN + begun.elapsed())
}

/// Returns the time since this thread's simulation began.
pub(crate) fn elapsed() -> Duration {
    BEGUN.get().map(|begun| begun.elapsed()).unwrap_or_default()
}

/// In a simulation, waits until a thread has ended: all that it does is one step.
pub(crate) fn settle(thread: JoinHandle<()>) {
    if BEGUN.get().is_some() {
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

/// Returns the process whose task runs; `None`: no simulation, or no process of it.
pub(crate) fn process() -> Option<Arc<SimProcess>> {
    RUNNING.with_borrow(Clone::clone)
}

/// Random bytes: those of the system, and of the seed in the thread of a simulation. It takes the place
/// of the system library's function in the programs of tests, so that all seeds of hash tables, and all
/// generators, come from it.
///
/// # Safety
/// As for the function of the system.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize {
    let Some(mut state) = CHANCE.get() else {
        // SAFETY: the caller's promise is the same.
        let got = unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) };
        return got as isize;
    };
    for at in 0..length {
        // SplitMix64: also seeds that differ by one give other numbers.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        // SAFETY: the caller has so many bytes there.
        unsafe { buffer.cast::<u8>().add(at).write((mixed >> 56) as u8) };
    }
    CHANCE.set(Some(state));
    length as isize
}

/// A process: its tasks stop while it sleeps, and end when it dies.
#[derive(Debug, Default)]
pub(crate) struct SimProcess {
    state: Mutex<ProcessState>,
}

#[derive(Debug, Default)]
struct ProcessState {
    is_asleep: bool,
    is_dead: bool,
    tasks: u64,
    /// Tasks that wait for something.
    waiting: BTreeMap<u64, Waker>,
}

impl SimProcess {
    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.state().is_asleep
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// Stops all tasks, or lets them go on.
    pub(crate) fn set_asleep(&self, is_asleep: bool) {
        self.state().is_asleep = is_asleep;
        self.wake_all();
    }

    /// Ends all tasks.
    pub(crate) fn die(&self) {
        self.state().is_dead = true;
        self.wake_all();
    }

    fn wake_all(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_values().for_each(Waker::wake);
    }

    /// Returns a task of the process; its result is `None` if the process dies before.
    pub(crate) fn task<F: Future>(self: &Arc<Self>, work: F) -> ProcessTask<F> {
        let number = {
            let mut state = self.state();
            state.tasks += 1;
            state.tasks
        };
        ProcessTask { process: self.clone(), number, work: Box::pin(work) }
    }
}

/// See [`SimProcess::task`].
pub(crate) struct ProcessTask<F> {
    process: Arc<SimProcess>,
    number: u64,
    work: Pin<Box<F>>,
}

impl<F: Future> Future for ProcessTask<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_asleep = {
            let mut state = self.process.state();
            if state.is_dead {
                return Poll::Ready(None);
            }
            state.waiting.insert(self.number, cx.waker().clone());
            state.is_asleep
        };
        if is_asleep {
            return Poll::Pending;
        }
        let outer = RUNNING.replace(Some(self.process.clone()));
        let polled = self.work.as_mut().poll(cx);
        RUNNING.set(outer);
        polled.map(Some)
    }
}

impl<F> Drop for ProcessTask<F> {
    fn drop(&mut self) {
        self.process.state().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// What may differ between two runs: chance, the order of hash tables, and time.
    async fn trace() -> (Vec<u64>, Duration) {
        let hashed: HashMap<u64, u64> = (0..50).map(|n| (n, rand::random())).collect();
        let mut all: Vec<u64> = hashed.into_iter().flat_map(|(n, random)| [n, random]).collect();
        tokio::time::sleep(Duration::from_secs(rand::random_range(1..1_000_000))).await;
        let (sent, received) = std::sync::mpsc::channel();
        settle(std::thread::spawn(move || sent.send(7).unwrap()));
        all.push(received.try_recv().unwrap());
        (all, time().unwrap())
    }

    #[test]
    fn one_seed_has_one_trace() {
        let traces = [5, 5, 6].map(|seed| run(seed, trace));
        assert_eq!(traces[0], traces[1]);
        assert_ne!(traces[0], traces[2]);
        let of_system: [u64; 2] = rand::random();
        assert_ne!(of_system, rand::random::<[u64; 2]>());
    }

    #[test]
    fn tasks_of_a_process_sleep_and_end_together() {
        run(1, || async {
            let process = Arc::new(SimProcess::default());
            let beats = Arc::new(Mutex::new(0));
            let work = |beats: Arc<Mutex<u32>>| async move {
                assert!(super::process().is_some());
                loop {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    *beats.lock().unwrap() += 1;
                }
            };
            let task = tokio::spawn(process.task(work(beats.clone())));
            let count = async |seconds| {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                std::mem::take(&mut *beats.lock().unwrap())
            };
            tokio::time::sleep(Duration::from_millis(500)).await;
            assert_eq!(count(3).await, 3);
            process.set_asleep(true);
            assert_eq!(count(60).await, 0);
            process.set_asleep(false);
            assert!((3..=4).contains(&count(3).await));
            process.die();
            assert_eq!((count(60).await, task.await.unwrap()), (0, None));
            assert!(super::process().is_none());
        });
    }
}
