//! Frees the memory of large values on a thread of its own, so that a command which deletes ten
//! million elements does not wait for it.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Maximum number of values that wait to be freed; further ones are freed where they are dropped.
const WAITING: usize = 64;

/// Parts of fewer elements than this are freed where they are dropped.
const SMALL: usize = 4096;

/// The parts of a value.
pub(crate) trait Parts: Default + Send + 'static {
    /// Returns the approximate number of allocations.
    fn parts(&self) -> usize;
}

/// A value that is freed in the background if it is large.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaimed<T: Parts>(pub(crate) T);

impl<T: Parts> Deref for Reclaimed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Parts> DerefMut for Reclaimed<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Parts> Drop for Reclaimed<T> {
    fn drop(&mut self) {
        if self.0.parts() >= SMALL {
            // If the queue is full the value is dropped right here.
            let _ = thread().as_ref().map(|to| to.try_send(Box::new(std::mem::take(&mut self.0))));
        }
    }
}

type Rest = Box<dyn Send>;

fn thread() -> &'static Option<SyncSender<Rest>> {
    static THREAD: OnceLock<Option<SyncSender<Rest>>> = OnceLock::new();
    THREAD.get_or_init(|| {
        let (to, from) = sync_channel::<Rest>(WAITING);
        let run = move || from.into_iter().for_each(drop);
        let spawned = std::thread::Builder::new().name("reclaim".into()).spawn(run);
        spawned.is_ok().then_some(to)
    })
}
