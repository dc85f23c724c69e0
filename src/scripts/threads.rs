//! Threads on which units run detached. A thread keeps its VM for the next unit, and ends when there
//! was none for a while, or when it is dismissed.

use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tokio::sync::oneshot;

/// Time after which a thread that has nothing to do ends.
const IDLE: Duration = Duration::from_millis(500);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug, Default)]
struct IdleThreads {
    /// Threads that have nothing to do. A thread that is taken from here gets a job, or ends.
    waiting: Vec<(ThreadId, SyncSender<Job>)>,
    /// Number of dismissals so far.
    dismissed: u64,
}

/// See the module's description. There are as many as units have run at once.
#[derive(Clone, Debug, Default)]
pub struct DetachedThreads {
    idle: Arc<Mutex<IdleThreads>>,
}

impl DetachedThreads {
    fn idle(&self) -> MutexGuard<'_, IdleThreads> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job on one of the threads. The receiver fails if the job panics, or there is no thread
    /// for it.
    pub fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (done, result) = oneshot::channel();
        // The caller may have ended.
        let job: Job = Box::new(move || _ = done.send(job()));
        let mut idle = self.idle();
        let (waiting, dismissed) = (idle.waiting.pop(), idle.dismissed);
        drop(idle);
        match waiting {
            // The thread cannot end before it gets something.
            Some((_, thread)) => _ = thread.send(job),
            None => {
                let own = self.clone();
                let begun = thread::Builder::new().name("detached".to_owned());
                if let Err(error) = begun.spawn(move || own.serve(job, dismissed)) {
                    tracing::error!(%error, "there is no thread for a unit");
                }
            }
        }
        result
    }

    /// Makes all threads end, those that run a unit behind it.
    pub fn dismiss(&self) {
        let mut idle = self.idle();
        idle.dismissed += 1;
        idle.waiting.clear();
    }

    /// Runs a job, then those that come.
    fn serve(&self, first: Job, dismissed: u64) {
        let own = thread::current().id();
        let mut next = Some(first);
        while let Some(job) = next {
            job();
            let (thread, jobs) = sync_channel(1);
            let mut idle = self.idle();
            if idle.dismissed != dismissed {
                return;
            }
            idle.waiting.push((own, thread));
            drop(idle);
            next = match jobs.recv_timeout(IDLE) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Disconnected) => None,
                Err(RecvTimeoutError::Timeout) => {
                    self.idle().waiting.retain(|(id, _)| *id != own);
                    // It may have been taken just before that.
                    jobs.recv().ok()
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(threads: &DetachedThreads) -> ThreadId {
        threads.run(|| thread::current().id()).blocking_recv().unwrap()
    }

    /// Waits until so many threads have nothing to do.
    fn settle(threads: &DetachedThreads, waiting: usize) {
        while threads.idle().waiting.len() != waiting {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_serves_again_until_it_is_dismissed() {
        let threads = DetachedThreads::default();
        let first = id_of(&threads);
        settle(&threads, 1);
        threads.dismiss();
        assert_ne!(id_of(&threads), first);
        // One that is busy ends behind its job, and is taken for none.
        let (go, wait) = sync_channel::<()>(1);
        let busy = threads.run(move || {
            let _ = wait.recv();
            thread::current().id()
        });
        threads.dismiss();
        go.send(()).unwrap();
        let busy = busy.blocking_recv().unwrap();
        assert_ne!(id_of(&threads), busy);
    }

    #[test]
    fn a_panic_and_a_long_rest_lose_no_job() {
        let threads = DetachedThreads::default();
        assert!(threads.run(|| panic!("on purpose")).blocking_recv().is_err());
        for rest in [0, 500, 499, 501] {
            thread::sleep(Duration::from_millis(rest));
            id_of(&threads);
        }
        settle(&threads, 0);
    }
}
