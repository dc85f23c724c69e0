//! Coordinators of a worker that have asked others for locks and entries. A coordinator waits for each
//! grant, and a worker takes letters in order: so a connection has at most the end of a loan and the
//! next request under way to a worker.

use super::lane::{Exchange, Letter};
use super::{Hop, Word};
use crate::worker::{Acquire, Apply, Grant, GrantTo, Worker};
use fnv::FnvHashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use tokio::sync::oneshot;

/// Name of a request among those of its worker.
pub(crate) type GrantKey = u64;

/// Requests that have not been answered.
#[derive(Debug, Default)]
pub(super) struct Grants {
    last: GrantKey,
    /// Their workers, and who waits.
    waiting: FnvHashMap<GrantKey, (usize, oneshot::Sender<Grant>)>,
}

impl Grants {
    fn ask(&mut self, worker: usize, to: oneshot::Sender<Grant>) -> GrantKey {
        self.last += 1;
        self.waiting.insert(self.last, (worker, to));
        self.last
    }

    /// Hands a grant to its coordinator. Fails with the grant if nobody waits for it any more.
    pub(super) fn answer(&mut self, key: GrantKey, grant: Grant) -> Result<(), Grant> {
        match self.waiting.remove(&key) {
            Some((_, to)) => to.send(grant),
            None => Err(grant),
        }
    }

    /// Answers for a worker that has ended: nothing comes.
    pub(super) fn fail(&mut self, worker: usize) {
        self.waiting.retain(|_, (asked, _)| *asked != worker);
    }
}

impl Hop {
    /// Asks a worker for a loan. If it has ended, `to` is dropped.
    pub(super) fn ask<W: Word>(
        &self,
        exchange: &Exchange<W>,
        target: usize,
        acquire: Acquire,
        to: oneshot::Sender<Grant>,
    ) {
        if !exchange.is_gone(target) {
            let key = self.grants.borrow_mut().ask(target, to);
            self.leave(target, Letter::Acquire(key, Box::new(acquire)));
        }
    }

    /// Takes a grant: the coordinator runs, or if it has ended the loan goes back.
    pub(super) fn take_grant(&self, from: usize, key: GrantKey, grant: Grant) {
        let Err(grant) = self.grants.borrow_mut().answer(key, grant) else { return };
        if let Some(apply) = grant.unused() {
            self.leave(from, Letter::Apply(Box::new(apply)));
        }
    }

    /// Leaves a letter that goes out with the next ones.
    pub(super) fn leave(&self, target: usize, letter: Letter) {
        self.peers.borrow_mut()[target].out.push(letter);
        self.unposted.set(true);
    }

    /// Ends once all letters that were left by now can be seen by their workers.
    pub(super) fn poll_posted(&self, seen: u64, waker: &Waker) -> Poll<()> {
        if self.posts.get() > seen {
            return Poll::Ready(());
        }
        self.awaiting_post.borrow_mut().push(waker.clone());
        Poll::Pending
    }
}

impl Worker {
    /// Asks a worker for locks and entries; `to` gets them, or is dropped if the worker has ended.
    pub(crate) fn ask(
        self: &Rc<Self>,
        target: usize,
        acquire: Acquire,
        to: oneshot::Sender<Grant>,
    ) {
        if target == self.id {
            return self.acquire(acquire, GrantTo::Here(to));
        }
        self.hop.ask(&self.peers.exchange, target, acquire, to);
        self.end_cycle();
    }

    /// Sends what was asked for. Fails if nobody waits for it.
    pub(in crate::worker) fn grant(&self, to: GrantTo, grant: Grant) -> Result<(), Grant> {
        match to {
            GrantTo::Here(to) => to.send(grant),
            GrantTo::Home { worker, .. } if self.peers.exchange.is_gone(worker) => Err(grant),
            GrantTo::Home { worker, key } => {
                self.hop.leave(worker, Letter::Grant(key, Box::new(grant)));
                Ok(())
            }
        }
    }

    /// Gives loans back. Whoever hears of the command after that finds its changes: a worker looks
    /// for letters before it opens its mailbox.
    pub(crate) async fn give_back(
        self: &Rc<Self>,
        applies: impl IntoIterator<Item = (usize, Apply)>,
    ) {
        let before = self.hop.posts.get();
        let mut is_far = false;
        for (target, apply) in applies {
            if target == self.id {
                self.apply(apply);
            } else if self.peers.exchange.is_gone(target) {
                // It has lost its locks with its memory.
                tracing::error!(
                    worker = target,
                    "a worker is gone while a commit is applied to it"
                );
            } else {
                is_far = true;
                self.hop.leave(target, Letter::Apply(Box::new(apply)));
            }
        }
        if is_far {
            self.end_cycle();
            poll_fn(|cx| self.hop.poll_posted(before, cx.waker())).await;
        }
    }

    /// Applies the changes that coordinators of other workers have sent.
    pub(in crate::worker) fn apply_letters(self: &Rc<Self>) {
        loop {
            let next = self.hop.applies.borrow_mut().pop_front();
            let Some(apply) = next else { return };
            self.apply(apply);
        }
    }

    /// Takes the letters that were left before a message of the mailbox, and applies the changes among
    /// them.
    pub(in crate::worker) fn look_before_message(self: &Rc<Self>) {
        if !self.peers.exchange.is_silent(self.id) {
            self.hop.receive(&self.peers.exchange);
            self.apply_letters();
        }
    }
}
