//! Slots: the connections of a worker that wait for replies of others. A slot ends with its
//! connection's wait, whether the replies have come or not: later replies find another generation,
//! and are dropped.

use crate::worker::BatchReply;
use smallvec::SmallVec;
use std::task::{Poll, Waker};

/// Name of a slot in one of its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotKey {
    index: u32,
    generation: u32,
}

/// Replies of a worker; `None` if it has ended.
pub(crate) type WorkerReplies = (usize, Option<BatchReply>);

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// Workers that have yet to reply.
    missing: SmallVec<[usize; 8]>,
    replies: Vec<WorkerReplies>,
    waker: Option<Waker>,
}

/// Slots of a worker. Their number is at most that of its connections at one time.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Begins a wait.
    pub(super) fn begin(&mut self) -> SlotKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        SlotKey { index, generation: self.slots[index as usize].generation }
    }

    fn get(&mut self, key: SlotKey) -> Option<&mut Slot> {
        self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)
    }

    /// Adds a worker to those whose replies are waited for.
    pub(super) fn expect(&mut self, key: SlotKey, worker: usize) {
        if let Some(slot) = self.get(key) {
            slot.missing.push(worker);
        }
    }

    /// Returns true if the wait goes on.
    pub(super) fn waits(&mut self, key: SlotKey) -> bool {
        self.get(key).is_some()
    }

    /// Takes a worker's replies; wakes the connection with the last ones.
    pub(super) fn answer(&mut self, key: SlotKey, worker: usize, replies: Option<BatchReply>) {
        let Some(slot) = self.get(key) else { return };
        let Some(at) = slot.missing.iter().position(|missing| *missing == worker) else { return };
        slot.missing.swap_remove(at);
        slot.replies.push((worker, replies));
        if slot.missing.is_empty()
            && let Some(waker) = slot.waker.take()
        {
            waker.wake();
        }
    }

    /// Answers for a worker that has ended.
    pub(super) fn fail(&mut self, worker: usize) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            let key = SlotKey { index: index as u32, generation: slot.generation };
            if slot.missing.contains(&worker) {
                self.answer(key, worker, None);
            }
        }
    }

    /// Returns the replies, once all have come.
    pub(super) fn poll(&mut self, key: SlotKey, waker: &Waker) -> Poll<Vec<WorkerReplies>> {
        let Some(slot) = self.get(key) else { return Poll::Ready(Vec::new()) };
        if slot.missing.is_empty() {
            return Poll::Ready(std::mem::take(&mut slot.replies));
        }
        slot.waker = Some(waker.clone());
        Poll::Pending
    }

    /// Ends a wait.
    pub(super) fn end(&mut self, key: SlotKey) {
        if let Some(slot) = self.get(key) {
            slot.generation = slot.generation.wrapping_add(1);
            slot.missing.clear();
            slot.replies.clear();
            slot.waker = None;
            self.free.push(key.index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_comes_after_the_wait_finds_no_one() {
        let mut slots = Slots::default();
        let key = slots.begin();
        slots.expect(key, 1);
        slots.expect(key, 2);
        slots.answer(key, 1, None);
        assert!(slots.poll(key, Waker::noop()).is_pending());
        slots.end(key);
        let next = slots.begin();
        assert_eq!(next.index, key.index, "the slot is used again");
        slots.expect(next, 2);
        slots.answer(key, 2, None);
        assert!(slots.poll(next, Waker::noop()).is_pending(), "it was for the wait before");
        slots.fail(2);
        let Poll::Ready(replies) = slots.poll(next, Waker::noop()) else { panic!("all is there") };
        assert!(matches!(replies[..], [(2, None)]));
    }
}
