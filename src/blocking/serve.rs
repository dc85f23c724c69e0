//! Serving of a worker's waiters, independent of the worker.

use super::table::Content;
use super::{WaitTable, Waiter};
use flagstone_storage::need::Key;
use std::cell::RefCell;
use std::sync::Arc;

/// Result of an attempt to serve a waiter.
pub(crate) enum Tried {
    /// The waiter has its reply, or will have it.
    Served,
    /// The key has nothing for it.
    Nothing,
    /// A task of its own serves it; the key is busy meanwhile.
    Apart,
}

/// The part of a worker that serving needs: these functions decide the order, and a model test runs
/// them with workers of its own.
pub(crate) trait Serves {
    fn number(&self) -> usize;

    fn table(&self) -> &RefCell<WaitTable>;

    /// Returns a key's content; `None` if it is locked or not in memory.
    fn content_of(&self, key: &Key) -> Option<Content>;

    /// Starts a task that learns the key's type, and serves then; the key is busy meanwhile.
    fn fetch(&self, key: &Key);

    /// Runs the command of a waiter, whose turn is claimed.
    fn try_serve(&self, waiter: &Arc<Waiter>, key: &Key) -> Tried;

    /// Asks a worker, maybe this one, to check a waiter again.
    fn ask(&self, worker: usize, waiter: &Arc<Waiter>);
}

/// Adds a waiter to its queues, and serves it if possible; does nothing if its wait is over by now.
pub(crate) fn add(at: &impl Serves, waiter: &Arc<Waiter>, is_here: impl Fn(&Key) -> bool) {
    if !waiter.turn.is_over() {
        at.table().borrow_mut().add(waiter, is_here);
        serve_all(at);
    }
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
    while at.table().borrow().is_free(key) {
        let Some(content) = at.content_of(key) else {
            at.table().borrow_mut().set_busy(key, true);
            return at.fetch(key);
        };
        let next = at.table().borrow_mut().next_waiter(key, after, content);
        let Some(waiter) = next else { return };
        if !waiter.turn.claim(at.number()) {
            after = waiter.id;
            if waiter.turn.is_over() {
                at.table().borrow_mut().remove(&waiter);
            }
            continue;
        }
        match at.try_serve(&waiter, key) {
            Tried::Served => at.table().borrow_mut().remove(&waiter),
            Tried::Nothing => {
                after = waiter.id;
                release(at, &waiter);
            }
            Tried::Apart => return,
        }
    }
}

/// Releases the turn of a waiter for which there was nothing.
fn release(at: &impl Serves, waiter: &Arc<Waiter>) {
    for worker in waiter.turn.release() {
        at.ask(worker, waiter);
    }
    if waiter.turn.is_over() {
        at.table().borrow_mut().remove(waiter);
    }
}

/// Ends a task that served a waiter of a key by itself.
pub(crate) fn end_apart(at: &impl Serves, waiter: &Arc<Waiter>, key: &Key, served: bool) {
    if served {
        at.table().borrow_mut().remove(waiter);
    } else {
        release(at, waiter);
    }
    at.table().borrow_mut().set_busy(key, false);
    serve_all(at);
}

/// Checks a waiter again, as another worker has asked.
pub(crate) fn look_again(at: &impl Serves, waiter: &Waiter) {
    at.table().borrow_mut().touch_for(waiter);
    serve_all(at);
}
