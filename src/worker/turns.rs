//! Schedules connections that have more to do than one turn allows. A connection with little to do
//! runs as soon as its commands arrive; of the others only some run between two polls of the
//! sockets, one after the other. So the latency of the first does not depend on the number of the
//! others.

use super::Worker;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::{Notify, oneshot};

/// Number of busy connections that have a turn between two polls of the sockets.
const AT_ONCE: usize = 2;

/// Keys that a task may handle in one turn.
pub(super) const MANY_KEYS: usize = 1000;

/// Busy connections of a worker.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Number of connections that yield to the runtime by themselves.
    yielding: Cell<usize>,
    /// Connections that wait for their next turn, in FIFO order.
    waiting: RefCell<VecDeque<oneshot::Sender<()>>>,
    due: Notify,
}

impl Turns {
    /// Ends a connection's turn, and waits for the next one. All ready tasks run before.
    pub(crate) async fn end(&self) {
        if self.yielding.get() < AT_ONCE && self.waiting.borrow().is_empty() {
            let _yields = Yields::new(&self.yielding);
            return tokio::task::yield_now().await;
        }
        let (next, turn) = oneshot::channel();
        self.waiting.borrow_mut().push_back(next);
        self.due.notify_one();
        // An error means that the worker is stopping, and ends its connections.
        let _ = turn.await;
    }

    /// Gives some waiting connections their next turn.
    fn give(&self) {
        let mut waiting = self.waiting.borrow_mut();
        let mut left = AT_ONCE.saturating_sub(self.yielding.get()).max(1);
        while left > 0
            && let Some(next) = waiting.pop_front()
        {
            // A connection that has ended needs no turn.
            left -= usize::from(next.send(()).is_ok());
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

impl Worker {
    /// Ends the turn of a task if it has handled many keys, or is about to.
    pub(crate) async fn end_long_turn(&self, keys: usize) {
        if keys > MANY_KEYS {
            self.turns.end().await;
        }
    }

    /// Gives connections their turns, until the worker ends.
    pub(crate) async fn run_turns(self: Rc<Self>) {
        loop {
            self.turns.due.notified().await;
            while !self.turns.is_empty() {
                self.turns.give();
                // The task continues once the runtime has polled the sockets again.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// A connection that yields.
struct Yields<'a>(&'a Cell<usize>);

impl<'a> Yields<'a> {
    fn new(yielding: &'a Cell<usize>) -> Self {
        yielding.set(yielding.get() + 1);
        Self(yielding)
    }
}

impl Drop for Yields<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn poll(future: &mut Pin<Box<dyn Future<Output = ()> + '_>>) -> bool {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn many_have_their_turns_in_order_and_some_at_once() {
        let turns = Turns::default();
        let mut ends: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            (0..8).map(|_| Box::pin(turns.end()) as _).collect();
        for end in &mut ends {
            assert!(!poll(end), "others come first");
        }
        assert_eq!(turns.waiting.borrow().len(), 8 - AT_ONCE, "the first have yielded");
        assert!(ends.drain(..AT_ONCE).all(|mut end| poll(&mut end)));
        drop(ends.remove(0));
        turns.give();
        let ready: Vec<bool> = ends.iter_mut().map(poll).collect();
        assert_eq!(ready, [true, true, false, false, false], "the one that has ended needs none");
        ends.drain(..2);
        let mut late = pin!(turns.end());
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        turns.give();
        turns.give();
        assert!(ends.iter_mut().all(poll));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(turns.is_empty());
    }
}
