//! The waiters of one worker, by key.

use super::Waiter;
use flagstone_storage::need::Key;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

#[derive(Debug, Default)]
struct Queue {
    /// First come first served.
    waiters: VecDeque<Arc<Waiter>>,
    /// Of those, how many want to hear that the key is gone.
    want_absence: usize,
    /// One of them is being served by a task of its own; the others come after it.
    busy: bool,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct WaitTable {
    queues: HashMap<Key, Queue>,
    /// Keys for whose absence somebody waits.
    awaited_absent: usize,
    /// Keys that may have something.
    ready: VecDeque<Key>,
}

impl WaitTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Keys that somebody waits for, and of these those for whose absence somebody waits.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.queues.len(), self.awaited_absent)
    }

    /// Adds a waiter to the queues of those of its keys that are owned here.
    pub(super) fn add(&mut self, waiter: &Arc<Waiter>, is_here: impl Fn(&Key) -> bool) {
        for key in waiter.keys.iter().filter(|key| is_here(key)) {
            let queue = self.queues.entry(key.clone()).or_default();
            queue.waiters.push_back(waiter.clone());
            if waiter.on.wants_absence() {
                self.awaited_absent += usize::from(queue.want_absence == 0);
                queue.want_absence += 1;
            }
            self.ready.push_back(key.clone());
        }
    }

    /// Takes a waiter out of all queues.
    pub(super) fn remove(&mut self, waiter: &Waiter) {
        for key in &waiter.keys {
            let Some(queue) = self.queues.get_mut(key) else { continue };
            let at = queue.waiters.iter().position(|other| std::ptr::eq(&**other, waiter));
            let Some(at) = at else { continue };
            queue.waiters.remove(at);
            if waiter.on.wants_absence() {
                queue.want_absence -= 1;
                self.awaited_absent -= usize::from(queue.want_absence == 0);
            }
            if queue.waiters.is_empty() && !queue.busy {
                self.queues.remove(key);
            }
        }
    }

    /// A key has changed: its waiters are to be looked at.
    pub(super) fn touch(&mut self, key: &Key) {
        if self.queues.contains_key(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// All keys of some databases have changed.
    pub(super) fn touch_all(&mut self, dbs: &[u32]) {
        let keys = self.queues.keys().filter(|(db, _)| dbs.contains(db));
        self.ready.extend(keys.cloned());
    }

    /// The next key to look at.
    pub(super) fn next_ready(&mut self) -> Option<Key> {
        self.ready.pop_front()
    }

    /// The first waiter of a key from the `n`-th on that the type of what the key holds (`None`:
    /// nobody knows) may have something for, and its place.
    pub(super) fn next_waiter(
        &self,
        key: &Key,
        n: usize,
        holds: Option<&str>,
    ) -> Option<(usize, Arc<Waiter>)> {
        let queue = self.queues.get(key).filter(|queue| !queue.busy)?;
        if holds == Some("none") && queue.want_absence == 0 {
            return None;
        }
        let mut waiters = queue.waiters.iter().enumerate().skip(n);
        let fits = |waiter: &Waiter| holds.is_none_or(|holds| waiter.on.fits(holds));
        let (n, waiter) = waiters.find(|(_, waiter)| fits(waiter))?;
        Some((n, waiter.clone()))
    }

    /// One waiter of a key is being served by a task of its own, or is so no more.
    pub(super) fn set_busy(&mut self, key: &Key, busy: bool) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        queue.busy = busy;
        if !busy && queue.waiters.is_empty() {
            self.queues.remove(key);
        } else if !busy {
            self.ready.push_back(key.clone());
        }
    }
}
