//! The bytes of cold reads: of those under way, as far as they can be expected, and of data that has
//! come in and that no command has used yet. From a share of the memory for decoded values on, further
//! reads wait in order.
//!
//! A parked command keeps its share until it has run, also while it waits for a further read: what was
//! read for it stays locked. So one read goes on in any case when nothing is read and no command can run
//! ([`LoadShare::rest`]), and commands that have read some go before others: every command gets its data.
//! A task (a transaction over several workers, say) has a share only while it is read for; what it has
//! read so far stays locked as well, and is not counted here.

use std::cell::Cell;
use std::rc::Rc;
use tokio::sync::Notify;

/// Divides the bytes that reads may take: the part that the largest one leaves to others. Only one read
/// at a time takes less than it is expected to bring.
const LEFT_PART: usize = 4;

/// The bytes of a worker's reads.
#[derive(Debug, Default)]
pub(super) struct LoadVolume {
    taken: Cell<usize>,
    /// Shares of reads under way, and of commands that can run.
    active: Cell<usize>,
    /// True while a read is under way that takes less than it is expected to bring.
    has_huge: Cell<bool>,
    /// Bytes that commands have used since [`take_used`](Self::take_used).
    used: Cell<usize>,
    /// True if reads wait until less is taken.
    is_awaited: Cell<bool>,
    due: Notify,
}

impl LoadVolume {
    /// Returns true if a further read may begin: less than `most` bytes are taken, or nothing is read and
    /// no command can run.
    pub(super) fn has_room(&self, most: usize) -> bool {
        self.taken.get() < most || self.active.get() == 0
    }

    /// Returns the bytes that are left of `most`.
    pub(super) fn left(&self, most: usize) -> usize {
        most.saturating_sub(self.taken.get())
    }

    /// Takes bytes that a read is expected to bring.
    pub(super) fn share(self: &Rc<Self>, bytes: usize) -> LoadShare {
        let share = self.empty_share();
        share.set(bytes.max(1));
        share
    }

    /// Takes what a read of so many bytes takes of `most` while it is under way: a huge one leaves room
    /// for small ones. `None`: it is huge, and has to wait for the end of another one.
    pub(super) fn share_of(self: &Rc<Self>, expected: usize, most: usize) -> Option<LoadShare> {
        let largest = most - most / LEFT_PART;
        let is_huge = expected > largest;
        if is_huge && self.has_huge.get() {
            return None;
        }
        let share = self.share(expected.min(largest));
        if is_huge {
            self.has_huge.set(true);
            share.is_huge.set(true);
        }
        Some(share)
    }

    /// Returns true while a huge read is under way.
    pub(super) fn has_huge(&self) -> bool {
        self.has_huge.get()
    }

    fn empty_share(self: &Rc<Self>) -> LoadShare {
        self.active.set(self.active.get() + 1);
        LoadShare {
            bytes: Cell::new(0),
            is_huge: Cell::new(false),
            rests: Cell::new(false),
            volume: self.clone(),
        }
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
        if after < before {
            self.remind();
        }
    }

    /// Wakes the loader if reads wait.
    fn remind(&self) {
        if self.is_awaited.get() {
            self.due.notify_one();
        }
    }
}

/// Bytes that some reads have taken, until the data was used.
#[derive(Debug)]
pub(super) struct LoadShare {
    bytes: Cell<usize>,
    /// True while its read takes less than it is expected to bring.
    is_huge: Cell<bool>,
    /// True while its command waits for a further read.
    rests: Cell<bool>,
    volume: Rc<LoadVolume>,
}

impl LoadShare {
    /// Returns its bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Returns true while its read takes less than it is expected to bring.
    pub(super) fn is_huge(&self) -> bool {
        self.is_huge.get()
    }

    /// Takes over the bytes of another share, and its read.
    pub(super) fn take_over(&self, other: &Self) {
        self.bytes.set(self.bytes.get() + other.bytes.take());
        self.is_huge.set(self.is_huge.get() | other.is_huge.take());
    }

    /// Notes that its read has ended: all that it has brought is known.
    pub(super) fn end_read(&self) {
        if self.is_huge.take() {
            self.volume.has_huge.set(false);
            self.volume.remind();
        }
    }

    /// Gives away a part of its bytes: that of `part` in `whole`.
    pub(super) fn split_off(&self, part: usize, whole: usize) -> Self {
        let bytes = self.bytes.get();
        let part = bytes as u128 * part.min(whole) as u128 / whole.max(1) as u128;
        let given = self.volume.empty_share();
        given.bytes.set(usize::try_from(part).unwrap_or(bytes));
        self.bytes.set(bytes - given.bytes.get());
        given
    }

    /// Notes that its command waits for a further read.
    pub(super) fn rest(&self) {
        if !self.rests.replace(true) {
            self.volume.active.set(self.volume.active.get() - 1);
            self.volume.remind();
        }
    }

    /// Notes that its command can run.
    pub(super) fn go_on(&self) {
        if self.rests.replace(false) {
            self.volume.active.set(self.volume.active.get() + 1);
        }
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
        self.end_read();
        self.rest();
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
        first.take_over(&volume.share(440));
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

    /// What a command has read stays in memory while it waits for more: no other begins then, but one of
    /// those that wait goes on.
    #[test]
    fn one_of_the_commands_that_wait_for_more_goes_on() {
        let volume = Rc::new(LoadVolume::default());
        let shares = [volume.share(60), volume.share(40)];
        volume.set_awaited(true);
        shares[0].rest();
        assert!(!volume.has_room(100), "the other one can run");
        assert!(is_woken(&volume));
        shares[1].rest();
        shares[1].rest();
        assert!(volume.has_room(100) && is_woken(&volume));
        let more = volume.share(50);
        assert!(!volume.has_room(100));
        shares[0].take_over(&more);
        shares[0].go_on();
        drop(more);
        assert!(!volume.has_room(100) && volume.left(200) == 50);
        let [first, second] = shares;
        drop(first);
        assert!(volume.has_room(100) && volume.left(100) == 60);
        drop(second);
        assert_eq!((volume.active.get(), volume.left(100)), (0, 100));
    }

    #[test]
    fn the_bytes_of_a_read_are_divided_among_its_commands() {
        let volume = Rc::new(LoadVolume::default());
        let whole = volume.share(1000);
        let parts = [whole.split_off(1, 4), whole.split_off(2, 3), whole.split_off(1, 1)];
        assert_eq!(parts.each_ref().map(LoadShare::bytes), [250, 500, 250]);
        assert_eq!((whole.bytes(), volume.left(1000)), (0, 0));
        assert_eq!(parts[1].split_off(0, 0).bytes(), 0);
        let huge = volume.share(usize::MAX / 2);
        assert_eq!(huge.split_off(usize::MAX, usize::MAX).bytes(), usize::MAX / 2);
    }

    #[test]
    fn a_huge_read_leaves_room_for_small_ones() {
        let volume = Rc::new(LoadVolume::default());
        let share = |expected, most| volume.share_of(expected, most).expect("no huge one is read");
        let small = share(10, 64 << 20);
        assert_eq!((small.bytes(), small.is_huge()), (10, false));
        assert_eq!(share(10 << 30, 64 << 20).bytes(), 48 << 20);
        assert_eq!(share(7, 0).bytes(), 1);
        drop(small);
        let huge = share(10 << 30, 100);
        assert!(volume.has_room(100) && volume.left(100) == 25 && huge.is_huge());
        assert_eq!(share(75, 100).bytes(), 75, "it is no more than its part");
    }

    /// What they bring is far more than what they take, so two of them together would be without a limit.
    #[test]
    fn one_huge_read_at_a_time_is_under_way() {
        let volume = Rc::new(LoadVolume::default());
        let first = volume.share_of(1000, 100).expect("no other one is read");
        assert!(volume.share_of(76, 100).is_none() && volume.share_of(75, 100).is_some());
        let load = volume.share(0);
        load.take_over(&first);
        drop(first);
        assert!(volume.has_huge() && load.is_huge(), "the load has it now");
        volume.set_awaited(true);
        assert!(!is_woken(&volume));
        load.set(1000);
        load.end_read();
        assert!(!volume.has_huge() && is_woken(&volume));
        let second = volume.share_of(1000, 100).expect("the other one has ended");
        drop(load);
        assert!(volume.has_huge());
        drop(second);
        assert!(!volume.has_huge() && volume.left(100) == 100);
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
            match random(4) {
                0 if volume.has_room(1000) => shares.push(volume.share(random(300))),
                1 if !shares.is_empty() => {
                    shares.swap_remove(random(shares.len()));
                }
                2 if !shares.is_empty() => match random(2) {
                    0 => shares[random(shares.len())].rest(),
                    _ => shares[random(shares.len())].go_on(),
                },
                _ if !shares.is_empty() => shares[random(shares.len())].set(random(300)),
                _ => {}
            }
            let taken: usize = shares.iter().map(LoadShare::bytes).sum();
            assert_eq!(volume.left(1 << 20), (1 << 20) - taken);
            let active = shares.iter().filter(|share| !share.rests.get()).count();
            assert_eq!(volume.active.get(), active);
        }
        shares.clear();
        assert_eq!(volume.left(1000), 1000);
    }
}
