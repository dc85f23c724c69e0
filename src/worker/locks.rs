//! Key locks of one worker: FIFO per key, and queued for all keys at once, so no two commands of a
//! worker can deadlock. Only commands that have to wait hold locks; a barrier locks the whole
//! worker.

use super::parked::Parked;
use crate::command::Patience;
use flagstone_storage::Layout;
pub(crate) use flagstone_storage::need::Key as LockKey;
use fnv::FnvHashMap;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use tokio::sync::oneshot;

pub(crate) type TicketId = u64;

/// Keyed hash of a key and its database. Keys with the same hash share a lock.
type LockPlace = u64;

/// Lock places of a command without repetitions; nearly always one.
pub(super) type LockPlaces = SmallVec<[LockPlace; 1]>;

/// A task or a command in a queue.
#[derive(Debug)]
pub(super) enum LockWaiter {
    Task(oneshot::Sender<()>, Patience),
    Command(Box<Parked>),
}

impl LockWaiter {
    /// Returns true if it does not wait for a busy script.
    fn is_impatient(&self) -> bool {
        match self {
            Self::Task(_, patience) => patience.is_short(),
            Self::Command(parked) => parked.patience().is_short(),
        }
    }
}

#[derive(Debug)]
struct LockTicket {
    places: LockPlaces,
    /// Number of places in whose queue the ticket is not at the front.
    waiting: usize,
    /// Waiter until the locks are granted.
    waiter: Option<LockWaiter>,
}

/// A request behind a barrier.
#[derive(Debug)]
enum Behind {
    Keys(TicketId, LockPlaces, LockWaiter),
    Barrier(TicketId, oneshot::Sender<()>, Patience),
}

/// Tickets for a place, in order: the first one has the lock. Most have nobody behind them, and take no
/// memory beside the table.
#[derive(Debug)]
struct LockQueue {
    first: TicketId,
    behind: VecDeque<TicketId>,
}

impl LockQueue {
    fn ids(&self) -> impl Iterator<Item = &TicketId> {
        std::iter::once(&self.first).chain(&self.behind)
    }
}

/// Table of the locks of a worker.
#[derive(Debug)]
pub(crate) struct LockTable {
    layout: Arc<Layout>,
    queues: FnvHashMap<LockPlace, LockQueue>,
    tickets: FnvHashMap<TicketId, LockTicket>,
    /// Commands that hold their locks and have not been taken up to run.
    granted: VecDeque<(TicketId, Box<Parked>)>,
    next: TicketId,
    /// Barrier that is waited for or held: later requests queue behind it.
    barrier: Option<TicketId>,
    barrier_granted: Option<(oneshot::Sender<()>, Patience)>,
    behind: VecDeque<Behind>,
}

impl LockTable {
    pub(crate) fn new(layout: Arc<Layout>) -> Self {
        Self {
            layout,
            queues: FnvHashMap::default(),
            tickets: FnvHashMap::default(),
            granted: VecDeque::new(),
            next: 0,
            barrier: None,
            barrier_granted: None,
            behind: VecDeque::new(),
        }
    }

    fn place(&self, db: u32, key: &[u8]) -> LockPlace {
        self.layout.hash(key).wrapping_add(u64::from(db))
    }

    /// Returns true if there are no locks and no waiters.
    pub(crate) fn is_idle(&self) -> bool {
        self.tickets.is_empty() && self.barrier.is_none()
    }

    /// Returns true if a ticket is a barrier.
    pub(crate) fn is_barrier(&self, id: TicketId) -> bool {
        self.barrier == Some(id)
    }

    /// Returns true if a command on these keys has to wait.
    pub(crate) fn blocks<'a>(&self, db: u32, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        self.barrier.is_some() || keys.any(|key| self.is_locked(db, key))
    }

    /// Returns true if a key is locked.
    pub(crate) fn is_locked(&self, db: u32, key: &[u8]) -> bool {
        !self.queues.is_empty() && self.queues.contains_key(&self.place(db, key))
    }

    /// Queues for some keys. The receiver resolves when all of them are locked, or fails when the
    /// wait is over because of a busy script.
    pub(crate) fn enqueue<'a>(
        &mut self,
        keys: impl IntoIterator<Item = (u32, &'a [u8])>,
        patience: Patience,
    ) -> (TicketId, oneshot::Receiver<()>) {
        let (tx, rx) = oneshot::channel();
        (self.queue(self.places(keys), LockWaiter::Task(tx, patience)), rx)
    }

    /// Queues a command for some places; [`LockTable::next_granted`] returns it.
    pub(super) fn enqueue_command(&mut self, places: LockPlaces, command: Box<Parked>) {
        self.queue(places, LockWaiter::Command(command));
    }

    /// Returns the lock places of some keys.
    pub(super) fn places<'a>(&self, keys: impl IntoIterator<Item = (u32, &'a [u8])>) -> LockPlaces {
        let mut places: LockPlaces =
            keys.into_iter().map(|(db, key)| self.place(db, key)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn queue(&mut self, places: LockPlaces, waiter: LockWaiter) -> TicketId {
        self.next += 1;
        if self.barrier.is_some() {
            self.behind.push_back(Behind::Keys(self.next, places, waiter));
        } else {
            self.admit(self.next, places, waiter);
        }
        self.next
    }

    /// Returns a command that holds its locks and has not run; its ticket is to be released.
    pub(super) fn next_granted(&mut self) -> Option<(TicketId, Box<Parked>)> {
        self.granted.pop_front()
    }

    /// Returns true if a command has its locks and can run.
    pub(super) fn has_granted(&self) -> bool {
        !self.granted.is_empty()
    }

    /// Returns the commands that wait for a key, in order.
    pub(super) fn waiting(&self, db: u32, key: &[u8]) -> impl Iterator<Item = &Parked> {
        let queue = self.queues.get(&self.place(db, key));
        let ids = queue.into_iter().flat_map(LockQueue::ids);
        let tickets = ids.filter_map(|id| self.tickets.get(id));
        tickets.filter_map(|ticket| match &ticket.waiter {
            Some(LockWaiter::Command(command)) => Some(&**command),
            _ => None,
        })
    }

    /// Queues for the whole worker. The receiver resolves when no other ticket holds anything, or
    /// fails when the wait is over because of a busy script.
    pub(crate) fn enqueue_barrier(
        &mut self,
        patience: Patience,
    ) -> (TicketId, oneshot::Receiver<()>) {
        let (tx, rx) = oneshot::channel();
        self.next += 1;
        let id = self.next;
        if self.barrier.is_some() {
            self.behind.push_back(Behind::Barrier(id, tx, patience));
        } else {
            self.raise(id, tx, patience);
        }
        (id, rx)
    }

    /// Ends the waits of the impatient: returns the commands with their tickets, which are to be
    /// released; the tasks release theirs.
    pub(super) fn end_waits(&mut self) -> Vec<(TicketId, Box<Parked>)> {
        let mut out = Vec::new();
        let mut end = |id, waiter| match waiter {
            LockWaiter::Command(parked) => out.push((id, parked)),
            LockWaiter::Task(granted, _) => drop(granted),
        };
        for (id, ticket) in &mut self.tickets {
            if let Some(waiter) = ticket.waiter.take_if(|waiter| waiter.is_impatient()) {
                end(*id, waiter);
            }
        }
        self.barrier_granted.take_if(|(_, patience)| patience.is_short());
        for behind in std::mem::take(&mut self.behind) {
            match behind {
                Behind::Keys(id, _, waiter) if waiter.is_impatient() => end(id, waiter),
                Behind::Barrier(_, _, patience) if patience.is_short() => {}
                behind => self.behind.push_back(behind),
            }
        }
        out.sort_unstable_by_key(|(id, _)| *id);
        out
    }

    /// Releases the locks that a ticket holds or waits for.
    pub(crate) fn release(&mut self, id: TicketId) {
        if self.barrier == Some(id) {
            self.barrier = None;
            self.barrier_granted = None;
            self.admit_behind();
        } else if let Some(ticket) = self.tickets.remove(&id) {
            for place in ticket.places {
                self.leave(place, id);
            }
        } else {
            self.behind
                .retain(|b| !matches!(b, Behind::Keys(n, ..) | Behind::Barrier(n, ..) if *n == id));
        }
        self.grant_barrier();
    }

    fn admit(&mut self, id: TicketId, places: LockPlaces, waiter: LockWaiter) {
        let mut waiting = 0;
        for place in &places {
            match self.queues.entry(*place) {
                Entry::Occupied(queue) => {
                    queue.into_mut().behind.push_back(id);
                    waiting += 1;
                }
                Entry::Vacant(place) => {
                    place.insert(LockQueue { first: id, behind: VecDeque::new() });
                }
            }
        }
        self.tickets.insert(id, LockTicket { places, waiting, waiter: Some(waiter) });
        self.grant_if_ready(id);
    }

    fn leave(&mut self, place: LockPlace, id: TicketId) {
        let Some(queue) = self.queues.get_mut(&place) else { return };
        if queue.first != id {
            queue.behind.retain(|&n| n != id);
            return;
        }
        match queue.behind.pop_front() {
            None => {
                self.queues.remove(&place);
            }
            Some(next) => {
                queue.first = next;
                if let Some(ticket) = self.tickets.get_mut(&next) {
                    ticket.waiting -= 1;
                }
                self.grant_if_ready(next);
            }
        }
    }

    fn grant_if_ready(&mut self, id: TicketId) {
        let Some(ticket) = self.tickets.get_mut(&id).filter(|ticket| ticket.waiting == 0) else {
            return;
        };
        match ticket.waiter.take() {
            Some(LockWaiter::Task(granted, _)) => {
                // If the receiver is dropped, its owner releases the ticket.
                let _ = granted.send(());
            }
            Some(LockWaiter::Command(command)) => self.granted.push_back((id, command)),
            None => {}
        }
    }

    fn raise(&mut self, id: TicketId, granted: oneshot::Sender<()>, patience: Patience) {
        self.barrier = Some(id);
        self.barrier_granted = Some((granted, patience));
        self.grant_barrier();
    }

    fn grant_barrier(&mut self) {
        if self.tickets.is_empty()
            && let Some((granted, _)) = self.barrier_granted.take()
        {
            // If the receiver is dropped, its owner releases the ticket.
            let _ = granted.send(());
        }
    }

    fn admit_behind(&mut self) {
        while self.barrier.is_none() {
            match self.behind.pop_front() {
                None => return,
                Some(Behind::Keys(id, places, waiter)) => self.admit(id, places, waiter),
                Some(Behind::Barrier(id, granted, patience)) => self.raise(id, granted, patience),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::registry;
    use crate::command::{OwnedCommand, Request};
    use flagstone_wire::resp::OwnedArgs;
    use tokio::sync::oneshot::error::TryRecvError;

    fn table() -> LockTable {
        LockTable::new(Arc::new(Layout::new(1, 3)))
    }

    impl LockTable {
        fn enqueue_names(&mut self, names: &[&str]) -> (TicketId, oneshot::Receiver<()>) {
            self.enqueue(names.iter().map(|name| (0, name.as_bytes())), Patience::Endless)
        }
    }

    #[test]
    fn keys_are_granted_in_order() {
        let mut locks = table();
        let (a, mut a_rx) = locks.enqueue_names(&["x", "y"]);
        let (b, mut b_rx) = locks.enqueue_names(&["y", "z"]);
        let (c, mut c_rx) = locks.enqueue_names(&["z"]);
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
        let mut locks = table();
        let (a, _a_rx) = locks.enqueue_names(&["x"]);
        let (b, _b_rx) = locks.enqueue_names(&["x"]);
        let (c, mut c_rx) = locks.enqueue_names(&["x"]);
        locks.release(b);
        assert!(c_rx.try_recv().is_err());
        locks.release(a);
        assert!(c_rx.try_recv().is_ok());
        locks.release(c);
        assert!(locks.is_idle());
    }

    #[test]
    fn a_barrier_waits_for_all_before_and_holds_all_behind() {
        let mut locks = table();
        let (a, _a_rx) = locks.enqueue_names(&["x"]);
        let (b, mut b_rx) = locks.enqueue_barrier(Patience::Endless);
        let (c, mut c_rx) = locks.enqueue_names(&["y"]);
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

    fn parked(line: &str) -> Box<Parked> {
        let args: OwnedArgs = line.split(' ').collect();
        let command = registry::resolve(args.args()).unwrap();
        let command = OwnedCommand::new(command, args, Request::of_nobody(0));
        Parked::new(command, Vec::new(), None, oneshot::channel().0, &Arc::default())
    }

    fn names(locks: &LockTable, key: &str) -> Vec<String> {
        let waiting = locks.waiting(0, key.as_bytes());
        let names = waiting.flat_map(|parked| parked.command.names(0, key.as_bytes()));
        names.map(|name| String::from_utf8_lossy(name).into()).collect()
    }

    #[test]
    fn waits_of_the_impatient_end_and_those_of_others_go_on() {
        let mut locks = table();
        let (holder, mut held) = locks.enqueue_names(&["a"]);
        assert!(held.try_recv().is_ok());
        let key = [(0, &b"a"[..])];
        let (task, mut refused) = locks.enqueue(key, Patience::Short);
        let (_, mut waits) = locks.enqueue(key, Patience::Endless);
        let places = locks.places(key);
        locks.enqueue_command(places.clone(), parked("GET a"));
        let (barrier, mut whole) = locks.enqueue_barrier(Patience::Short);
        locks.enqueue_command(places, parked("SET a 1"));
        let (behind, mut last) = locks.enqueue_barrier(Patience::Endless);
        let ended = locks.end_waits();
        assert!(ended.is_empty(), "commands of nobody");
        assert!(matches!(refused.try_recv(), Err(TryRecvError::Closed)));
        assert!(matches!(whole.try_recv(), Err(TryRecvError::Closed)));
        assert!(matches!(waits.try_recv(), Err(TryRecvError::Empty)));
        locks.release(task);
        locks.release(barrier);
        locks.release(holder);
        assert!(waits.try_recv().is_ok(), "the one in front has given up");
        assert!(matches!(last.try_recv(), Err(TryRecvError::Empty)));
        assert!(!locks.is_barrier(holder) && locks.is_barrier(behind));
    }

    #[test]
    fn commands_are_granted_in_order_and_seen_while_they_wait() {
        let mut locks = table();
        let (a, _a_rx) = locks.enqueue_names(&["x"]);
        for (keys, line) in [
            (&["x"][..], "sadd x one two"),
            (&["x", "y"], "smove y x three"),
            (&["x"], "get x"),
            (&["y"], "sadd y four"),
        ] {
            let places = locks.places(keys.iter().map(|key| (0, key.as_bytes())));
            locks.enqueue_command(places, parked(line));
        }
        assert_eq!(names(&locks, "x"), ["one", "two", "three"]);
        assert_eq!(names(&locks, "y"), ["three", "four"]);
        assert_eq!(names(&locks, "z"), [""; 0]);
        assert!(!locks.has_granted());
        locks.release(a);
        let mut ran = Vec::new();
        while let Some((id, parked)) = locks.next_granted() {
            assert_eq!(locks.next_granted().map(|(id, _)| id), None);
            ran.push(parked.command.command.spec.name);
            locks.release(id);
            if ran.len() == 2 {
                // Both requests behind the barrier have their locks.
                assert!(names(&locks, "x").is_empty() && names(&locks, "y").is_empty());
                let (get, _) = locks.next_granted().unwrap();
                let (sadd, _) = locks.next_granted().unwrap();
                locks.release(get);
                locks.release(sadd);
            }
        }
        assert_eq!(ran, ["sadd", "smove"]);
        assert!(locks.is_idle());
    }
}
