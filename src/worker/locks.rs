//! Key locks of one worker: FIFO per key, taken all at once, so that no two commands of a worker
//! can wait for each other. Only commands that wait for something hold them.

pub(crate) use flagstone_storage::need::Key as LockKey;
use std::collections::{HashMap, VecDeque};
use tokio::sync::oneshot;

pub(crate) type TicketId = u64;

#[derive(Debug)]
struct Ticket {
    keys: Vec<LockKey>,
    /// Keys for whose queue it is not at the front.
    waiting: usize,
    granted: Option<oneshot::Sender<()>>,
}

/// Somebody who came behind a barrier.
#[derive(Debug)]
enum Behind {
    Keys(TicketId, Vec<LockKey>, oneshot::Sender<()>),
    Barrier(TicketId, oneshot::Sender<()>),
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    queues: HashMap<LockKey, VecDeque<TicketId>>,
    tickets: HashMap<TicketId, Ticket>,
    next: TicketId,
    /// A barrier is waited for or held: everybody else comes behind it.
    barrier: Option<TicketId>,
    barrier_granted: Option<oneshot::Sender<()>>,
    behind: VecDeque<Behind>,
}

impl LockTable {
    /// Whether nobody holds or waits for anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.tickets.is_empty() && self.barrier.is_none()
    }

    /// Whether a ticket is on everything.
    pub(crate) fn is_barrier(&self, id: TicketId) -> bool {
        self.barrier == Some(id)
    }

    /// Whether a command on these keys has to wait.
    pub(crate) fn blocks<'a>(&self, db: u32, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        self.barrier.is_some() || keys.any(|key| self.is_locked(db, key))
    }

    /// Whether somebody holds a key.
    pub(crate) fn is_locked(&self, db: u32, key: &[u8]) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&(db, key.into()))
    }

    /// Queues for some keys. The receiver resolves when all of them are held.
    pub(crate) fn enqueue(&mut self, keys: Vec<LockKey>) -> (TicketId, oneshot::Receiver<()>) {
        let (tx, rx) = oneshot::channel();
        self.next += 1;
        let id = self.next;
        if self.barrier.is_some() {
            self.behind.push_back(Behind::Keys(id, keys, tx));
        } else {
            self.admit(id, keys, tx);
        }
        (id, rx)
    }

    /// Queues for everything. The receiver resolves when nobody else holds anything.
    pub(crate) fn enqueue_barrier(&mut self) -> (TicketId, oneshot::Receiver<()>) {
        let (tx, rx) = oneshot::channel();
        self.next += 1;
        let id = self.next;
        if self.barrier.is_some() {
            self.behind.push_back(Behind::Barrier(id, tx));
        } else {
            self.raise(id, tx);
        }
        (id, rx)
    }

    /// Gives up what a ticket holds or waits for.
    pub(crate) fn release(&mut self, id: TicketId) {
        if self.barrier == Some(id) {
            self.barrier = None;
            self.barrier_granted = None;
            self.admit_behind();
        } else if let Some(ticket) = self.tickets.remove(&id) {
            for key in ticket.keys {
                self.leave(&key, id);
            }
        } else {
            self.behind
                .retain(|b| !matches!(b, Behind::Keys(n, ..) | Behind::Barrier(n, _) if *n == id));
        }
        self.grant_barrier();
    }

    fn admit(&mut self, id: TicketId, mut keys: Vec<LockKey>, granted: oneshot::Sender<()>) {
        keys.sort_unstable();
        keys.dedup();
        let mut waiting = 0;
        for key in &keys {
            let queue = self.queues.entry(key.clone()).or_default();
            queue.push_back(id);
            waiting += usize::from(queue.len() > 1);
        }
        let mut ticket = Ticket { keys, waiting, granted: Some(granted) };
        ticket.grant_if_ready();
        self.tickets.insert(id, ticket);
    }

    fn leave(&mut self, key: &LockKey, id: TicketId) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        let was_front = queue.front() == Some(&id);
        queue.retain(|&n| n != id);
        let front = queue.front().copied();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        if was_front && let Some(ticket) = front.and_then(|n| self.tickets.get_mut(&n)) {
            ticket.waiting -= 1;
            ticket.grant_if_ready();
        }
    }

    fn raise(&mut self, id: TicketId, granted: oneshot::Sender<()>) {
        self.barrier = Some(id);
        self.barrier_granted = Some(granted);
        self.grant_barrier();
    }

    fn grant_barrier(&mut self) {
        if self.tickets.is_empty()
            && let Some(granted) = self.barrier_granted.take()
        {
            // A receiver that is gone releases its ticket itself.
            let _ = granted.send(());
        }
    }

    fn admit_behind(&mut self) {
        while self.barrier.is_none() {
            match self.behind.pop_front() {
                None => return,
                Some(Behind::Keys(id, keys, granted)) => self.admit(id, keys, granted),
                Some(Behind::Barrier(id, granted)) => self.raise(id, granted),
            }
        }
    }
}

impl Ticket {
    fn grant_if_ready(&mut self) {
        if self.waiting == 0
            && let Some(granted) = self.granted.take()
        {
            let _ = granted.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LockKey {
        (0, name.as_bytes().into())
    }

    #[test]
    fn keys_are_granted_in_order() {
        let mut locks = LockTable::default();
        let (a, mut a_rx) = locks.enqueue(vec![key("x"), key("y")]);
        let (b, mut b_rx) = locks.enqueue(vec![key("y"), key("z")]);
        let (c, mut c_rx) = locks.enqueue(vec![key("z")]);
        assert!(a_rx.try_recv().is_ok());
        assert!(b_rx.try_recv().is_err());
        assert!(c_rx.try_recv().is_err(), "z is b's, though b still waits for y");
        locks.release(a);
        assert!(b_rx.try_recv().is_ok());
        locks.release(b);
        assert!(c_rx.try_recv().is_ok());
        locks.release(c);
        assert!(locks.is_idle());
    }

    #[test]
    fn a_waiter_that_gives_up_lets_the_next_through() {
        let mut locks = LockTable::default();
        let (a, _a_rx) = locks.enqueue(vec![key("x")]);
        let (b, _b_rx) = locks.enqueue(vec![key("x")]);
        let (c, mut c_rx) = locks.enqueue(vec![key("x")]);
        locks.release(b);
        assert!(c_rx.try_recv().is_err());
        locks.release(a);
        assert!(c_rx.try_recv().is_ok());
        locks.release(c);
        assert!(locks.is_idle());
    }

    #[test]
    fn a_barrier_waits_for_all_before_and_holds_all_behind() {
        let mut locks = LockTable::default();
        let (a, _a_rx) = locks.enqueue(vec![key("x")]);
        let (b, mut b_rx) = locks.enqueue_barrier();
        let (c, mut c_rx) = locks.enqueue(vec![key("y")]);
        assert!(b_rx.try_recv().is_err());
        assert!(locks.blocks(0, std::iter::empty()));
        locks.release(a);
        assert!(b_rx.try_recv().is_ok());
        assert!(c_rx.try_recv().is_err());
        locks.release(b);
        assert!(c_rx.try_recv().is_ok());
        locks.release(c);
        assert!(locks.is_idle());
    }
}
