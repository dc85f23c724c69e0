//! The lanes between workers: one for each ordered pair. A lane needs no bound of its own: a worker
//! has a bounded number of parcels under way to another one, and there is at most one late answer
//! for each connection that waits, and one loan for each coordinator.

use super::bell::{Doorbell, Rung, Word};
use super::grants::GrantKey;
use super::parcel::CmdParcel;
use super::slots::SlotKey;
use crate::worker::{Acquire, Apply, BatchReply, Grant};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

/// A letter from one worker to another.
#[derive(Debug)]
pub(super) enum Letter {
    /// Commands that the receiver is to run.
    Commands(Box<CmdParcel>),
    /// A parcel of the receiver's, with the replies.
    Replies(Box<CmdParcel>),
    /// The replies to one segment, which left its parcel; `None` if they do not come.
    Late(SlotKey, Option<BatchReply>),
    /// A coordinator's request for locks and entries.
    Acquire(GrantKey, Box<Acquire>),
    /// The answer to a request.
    Grant(GrantKey, Box<Grant>),
    /// The end of a coordinator's hold, with its changes.
    Apply(Box<Apply>),
}

/// Letters from one worker to another, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(Mutex<Vec<Letter>>);

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Vec<Letter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of a worker that the others see.
#[derive(Debug, Default)]
struct WorkerDoor<W> {
    bell: Doorbell<W>,
    /// Wakes the worker's thread, which sets it before it sleeps for the first time.
    waker: OnceLock<Waker>,
    /// True if the worker has ended, and answers nothing more.
    gone: AtomicBool,
}

/// Bells and lanes of all workers.
#[derive(Debug)]
pub(crate) struct Exchange<W = AtomicU64> {
    doors: Vec<WorkerDoor<W>>,
    /// The lane from worker `a` to worker `b` is at `a * workers + b`.
    lanes: Vec<Lane>,
}

impl<W: Word> Exchange<W> {
    pub(in crate::worker) fn new(workers: usize) -> Self {
        Self {
            doors: (0..workers).map(|_| WorkerDoor::default()).collect(),
            lanes: (0..workers * workers).map(|_| Lane::default()).collect(),
        }
    }

    /// Returns the number of workers.
    pub(in crate::worker) fn workers(&self) -> usize {
        self.doors.len()
    }

    fn lane(&self, from: usize, to: usize) -> &Lane {
        &self.lanes[from * self.doors.len() + to]
    }

    /// Sets the waker of a worker's thread.
    pub(super) fn set_waker(&self, worker: usize, waker: Waker) {
        // A worker starts once.
        let _ = self.doors[worker].waker.set(waker);
    }

    /// Leaves letters, and wakes the receiver if it sleeps.
    pub(super) fn post(&self, from: usize, to: usize, letters: impl Iterator<Item = Letter>) {
        self.lane(from, to).lock().extend(letters);
        self.ring(from, to);
    }

    fn ring(&self, from: usize, to: usize) {
        let door = &self.doors[to];
        if door.bell.ring(from)
            && let Some(waker) = door.waker.get()
        {
            waker.wake_by_ref();
        }
    }

    /// Returns the workers that have left letters for this one.
    pub(super) fn answer(&self, worker: usize) -> Rung {
        self.doors[worker].bell.answer()
    }

    /// Takes all letters of a lane into `letters`, which is empty.
    pub(super) fn take(&self, from: usize, to: usize, letters: &mut Vec<Letter>) {
        std::mem::swap(&mut *self.lane(from, to).lock(), letters);
    }

    /// Returns true if no worker has left letters for this one since it looked last.
    pub(super) fn is_silent(&self, worker: usize) -> bool {
        self.doors[worker].bell.is_silent()
    }

    /// Lets a worker sleep; returns false if there are letters.
    pub(super) fn sleep(&self, worker: usize) -> bool {
        self.doors[worker].bell.sleep()
    }

    /// Ends the sleep of a worker.
    pub(super) fn woken(&self, worker: usize) {
        self.doors[worker].bell.wake();
    }

    /// Makes a worker's thread, which is the caller's, go on instead of sleeping.
    pub(super) fn stay_awake(&self, worker: usize) {
        if let Some(waker) = self.doors[worker].waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Returns true if a worker has ended.
    pub(super) fn is_gone(&self, worker: usize) -> bool {
        self.doors[worker].gone.load(Ordering::SeqCst)
    }

    /// Notes that a worker has ended, and rings at all others, which fail the batches that they
    /// have sent to it.
    pub(in crate::worker) fn leave(&self, worker: usize) {
        self.doors[worker].gone.store(true, Ordering::SeqCst);
        for other in (0..self.doors.len()).filter(|other| *other != worker) {
            self.ring(worker, other);
        }
    }

    /// Returns the number of parcels that wait for a worker.
    pub(in crate::worker) fn depth(&self, worker: usize) -> usize {
        let waiting = |from| {
            let letters = self.lane(from, worker).lock();
            letters.iter().filter(|letter| matches!(letter, Letter::Commands(_))).count()
        };
        (0..self.doors.len()).map(waiting).sum()
    }
}
