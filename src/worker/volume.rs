//! The bytes of cold reads: of those under way, as far as they can be expected, and of data that has
//! come in and that no command has used yet. From a share of the memory for decoded values on, further
//! reads wait in order. One goes on in any case, so every command gets its data: a command holds a
//! share only while it is read for, or can run, and never while it waits for another read.

use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// The bytes of a worker's reads.
#[derive(Debug, Default)]
pub(super) struct LoadVolume {
    taken: Cell<usize>,
    /// Bytes that commands have used since [`take_used`](Self::take_used).
    used: Cell<usize>,
    /// True if reads wait until less is taken.
    is_awaited: Cell<bool>,
    due: Notify,
}

impl LoadVolume {
    /// Returns true if a further read may begin: less than `most` bytes are taken, or none.
    pub(super) fn has_room(&self, most: usize) -> bool {
        let taken = self.taken.get();
        taken < most || taken == 0
    }

    /// Returns the bytes that are left of `most`.
    pub(super) fn left(&self, most: usize) -> usize {
        most.saturating_sub(self.taken.get())
    }

    /// Takes bytes that a read is expected to bring.
    pub(super) fn share(self: &Rc<Self>, bytes: usize) -> LoadShare {
        let share = LoadShare { bytes: Cell::new(0), volume: self.clone() };
        share.set(bytes.max(1));
        share
    }

    /// Wakes the loader: there is a request.
    pub(super) fn wake(&self) {
        self.due.notify_one();
    }

    /// Notes whether reads wait until less is taken, which wakes the loader.
    pub(super) fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.set(is_awaited);
    }

    /// Waits until there are requests, or room for those that wait.
    pub(super) async fn changed(&self) {
        self.due.notified().await;
    }

    /// Returns the bytes that commands have used since the last call, if they are `least` or more.
    pub(super) fn take_used(&self, least: usize) -> Option<usize> {
        (self.used.get() >= least).then(|| self.used.take())
    }

    fn change(&self, before: usize, after: usize) {
        self.taken.set((self.taken.get() + after).saturating_sub(before));
        if after < before && self.is_awaited.get() {
            self.due.notify_one();
        }
    }
}

/// Bytes that some reads have taken, until the data was used.
#[derive(Debug)]
pub(super) struct LoadShare {
    bytes: Cell<usize>,
    volume: Rc<LoadVolume>,
}

impl LoadShare {
    /// Returns its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Takes over the bytes of other shares.
    pub(super) fn take_over(&self, others: Vec<Self>) {
        let bytes: usize = others.iter().map(|other| other.bytes.take()).sum();
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Sets its bytes, as more is known of them.
    pub(super) fn set(&self, bytes: usize) {
        self.volume.change(self.bytes.replace(bytes), bytes);
    }
}

impl Drop for LoadShare {
    fn drop(&mut self) {
        let bytes = self.bytes.get();
        self.volume.used.set(self.volume.used.get().saturating_add(bytes));
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// Returns true if the loader was woken.
    fn is_woken(volume: &LoadVolume) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(pin!(volume.changed()).poll(&mut cx), Poll::Ready(()))
    }

    #[test]
    fn reads_wait_until_data_was_used() {
        let volume = Rc::new(LoadVolume::default());
        let first = volume.share(60);
        assert!(volume.has_room(100) && !volume.has_room(60));
        // It was larger than expected.
        first.take_over(vec![volume.share(440)]);
        assert!(!volume.has_room(100));
        assert_eq!((volume.left(100), volume.left(700)), (0, 200));
        let second = volume.share(0);
        assert_eq!(volume.left(700), 199);
        assert!(!is_woken(&volume));
        volume.set_awaited(true);
        first.set(20);
        assert!(volume.has_room(100) && is_woken(&volume));
        volume.set_awaited(false);
        drop(first);
        assert!(!is_woken(&volume), "nobody waits");
        assert_eq!((volume.take_used(21), volume.take_used(20)), (None, Some(20)));
        drop(second);
        assert_eq!((volume.take_used(1), volume.take_used(1)), (Some(1), None));
        assert!(volume.has_room(0), "one goes on in any case");
    }

    /// Shares come and go in any order: no more is taken than they have, and at the end nothing.
    #[test]
    fn nothing_stays_taken() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let volume = Rc::new(LoadVolume::default());
        let mut shares: Vec<LoadShare> = Vec::new();
        for _ in 0..10_000 {
            match random(3) {
                0 if volume.has_room(1000) => shares.push(volume.share(random(300))),
                1 if !shares.is_empty() => {
                    shares.swap_remove(random(shares.len()));
                }
                _ if !shares.is_empty() => shares[random(shares.len())].set(random(300)),
                _ => {}
            }
            let taken: usize = shares.iter().map(LoadShare::bytes).sum();
            assert_eq!(volume.left(1 << 20), (1 << 20) - taken);
        }
        shares.clear();
        assert_eq!(volume.left(1000), 1000);
    }
}
