//! A worker serves those who wait for its keys.

use super::table::Content;
use super::{WaitTable, Waiter};
use flagstone_storage::need::Key;
use std::cell::RefCell;
use std::sync::Arc;

/// What became of a waiter.
pub(crate) enum Tried {
    /// It has its reply, or will have it.
    Served,
    /// There is nothing for it.
    Nothing,
    /// A task of its own goes on with it; the key is busy.
    Apart,
}

/// A worker, as those below need it: they say who is served when, and a model test runs them with
/// workers of its own.
pub(crate) trait Serves {
    fn number(&self) -> usize;

    fn table(&self) -> &RefCell<WaitTable>;

    /// What a key holds; `None`: nobody may look now, or it is not in memory.
    fn content_of(&self, key: &Key) -> Option<Content>;

    /// Has a task make the key's type known, and serve then; meanwhile the key is busy.
    fn fetch(&self, key: &Key);

    /// Runs the command of a waiter, whose turn is claimed.
    fn try_serve(&self, waiter: &Arc<Waiter>, key: &Key) -> Tried;

    /// Has a worker, maybe this one, look again for a waiter.
    fn ask(&self, worker: usize, waiter: &Arc<Waiter>);
}

/// A waiter comes to its queues, and is looked at. It may have gone by now.
pub(crate) fn add(at: &impl Serves, waiter: &Arc<Waiter>, is_here: impl Fn(&Key) -> bool) {
    if !waiter.turn.is_over() {
        at.table().borrow_mut().add(waiter, is_here);
        serve_all(at);
    }
}

/// Serves the waiters of the keys that have changed.
pub(crate) fn serve_all(at: &impl Serves) {
    // Commands that run for waiters change keys too: these come behind.
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

/// There was nothing for a waiter after all.
fn release(at: &impl Serves, waiter: &Arc<Waiter>) {
    for worker in waiter.turn.release() {
        at.ask(worker, waiter);
    }
    if waiter.turn.is_over() {
        at.table().borrow_mut().remove(waiter);
    }
}

/// A task that served a waiter of a key by itself is done.
pub(crate) fn end_apart(at: &impl Serves, waiter: &Arc<Waiter>, key: &Key, served: bool) {
    if served {
        at.table().borrow_mut().remove(waiter);
    } else {
        release(at, waiter);
    }
    at.table().borrow_mut().set_busy(key, false);
    serve_all(at);
}

/// Looks again for a waiter, as another worker has asked.
pub(crate) fn look_again(at: &impl Serves, waiter: &Waiter) {
    at.table().borrow_mut().touch_for(waiter);
    serve_all(at);
}
