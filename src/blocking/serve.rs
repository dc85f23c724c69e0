//! Serving of a worker's waiters, independent of the worker.

use super::table::Content;
use super::{WaitTable, Waiter};
use flagstone_storage::need::Key;
use std::cell::RefCell;
use std::sync::Arc;

/// Result of an attempt to serve a waiter.
pub(crate) enum ServeAttempt {
    /// The waiter has its reply, or will have it.
    Served,
    /// The key has nothing for it.
    Nothing,
    /// A task of its own serves it; the key is busy meanwhile.
    Detached,
}

/// The part of a worker that serving needs: these functions decide the order, and a model test runs
/// them with workers of its own.
pub(crate) trait Serves {
    /// Keys of a waiter in one slice.
    const SLICE: usize;

    fn number(&self) -> usize;

    /// Returns true if this worker owns the key.
    fn is_here(&self, key: &Key) -> bool;

    fn table(&self) -> &RefCell<WaitTable>;

    /// Returns a key's content; `None` if it is locked or not in memory.
    fn content_of(&self, key: &Key) -> Option<Content>;

    /// Returns true if the waiters of a key are served later: then it is marked again.
    fn is_postponed(&self, key: &Key) -> bool;

    /// Starts a task that learns the key's type, and serves then; the key is busy meanwhile.
    fn fetch(&self, key: &Key);

    /// Runs the command of a waiter, whose turn is claimed.
    fn try_serve(&self, waiter: &Arc<Waiter>, key: &Key) -> ServeAttempt;

    /// Asks a worker, maybe this one, to check a waiter again.
    fn ask(&self, worker: usize, waiter: &Arc<Waiter>);
}

/// Step that is done for a waiter at each of its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Adds it to the key's queue.
    Add,
    /// Checks it again, as another worker has asked.
    Look,
    /// Removes it from the key's queue, once its turn is over.
    Remove,
}

/// Does a step for the slice of a waiter's keys that begins at `from`, and serves the keys that have
/// become ready; returns the begin of the next slice, if there is one.
#[must_use]
pub(crate) fn step<S: Serves>(
    at: &S,
    step: Step,
    waiter: &Arc<Waiter>,
    from: usize,
) -> Option<usize> {
    // The wait may have ended meanwhile. Then nothing is added any more, as it may be removed already.
    if step != Step::Remove && waiter.turn.is_over() {
        return None;
    }
    let end = waiter.keys.len().min(from + S::SLICE);
    let slice = &waiter.keys[from..end];
    match step {
        Step::Add => at.table().borrow_mut().add(waiter, slice, |key| at.is_here(key)),
        Step::Look => at.table().borrow_mut().look_again(slice),
        Step::Remove => at.table().borrow_mut().remove(waiter, slice),
    }
    serve_all(at);
    (end < waiter.keys.len()).then_some(end)
}

/// Removes a waiter from the queue of one key; its connection has it removed from the others.
fn leave(at: &impl Serves, waiter: &Waiter, key: &Key) {
    at.table().borrow_mut().remove(waiter, std::slice::from_ref(key));
}

/// Serves the waiters of the keys that have changed.
pub(crate) fn serve_all(at: &impl Serves) {
    // Commands that run for waiters change further keys: these are served by the same loop.
    if !at.table().borrow_mut().begin_serving() {
        return;
    }
    loop {
        let ready = at.table().borrow_mut().next_ready();
        let Some(key) = ready else { return };
        serve_key(at, &key);
    }
}

fn serve_key(at: &impl Serves, key: &Key) {
    let mut after = 0;
    while at.table().borrow().is_free(key) && !at.is_postponed(key) {
        let Some(content) = at.content_of(key) else {
            at.table().borrow_mut().set_busy(key, true);
            return at.fetch(key);
        };
        let next = at.table().borrow_mut().next_waiter(key, after, content);
        let Some(waiter) = next else { return };
        if !waiter.turn.claim(at.number()) {
            after = waiter.id;
            if waiter.turn.is_over() {
                leave(at, &waiter, key);
            }
            continue;
        }
        match at.try_serve(&waiter, key) {
            ServeAttempt::Served => leave(at, &waiter, key),
            ServeAttempt::Nothing => {
                after = waiter.id;
                release(at, &waiter, key);
            }
            ServeAttempt::Detached => return,
        }
    }
}

/// Releases the turn of a waiter for which there was nothing.
fn release(at: &impl Serves, waiter: &Arc<Waiter>, key: &Key) {
    for worker in waiter.turn.release() {
        at.ask(worker, waiter);
    }
    if waiter.turn.is_over() {
        leave(at, waiter, key);
    }
}

/// Ends a task that served a waiter of a key by itself.
pub(crate) fn end_detached(at: &impl Serves, waiter: &Arc<Waiter>, key: &Key, served: bool) {
    if served {
        leave(at, waiter, key);
    } else {
        release(at, waiter, key);
    }
    at.table().borrow_mut().set_busy(key, false);
    serve_all(at);
}
