//! The hop: how short batches of commands get from the worker of their connections to the worker of
//! their keys, and the replies back.
//!
//! While its tasks run, a worker adds the short batches of its connections for worker *t* to one
//! open parcel for *t*. Before it sleeps, and at the latest after a turn or a bounded number of
//! cycles or commands, it posts its parcels and rings; then it runs the parcels of others, and
//! commits once for all of them. A parcel comes back as the same object, with the replies. Replies
//! that wait for a lock, for data or for the disk leave their parcel and go home later, as do long
//! ones.
//!
//! A worker has a bounded number of parcels under way to another one. A connection whose batch
//! finds no room waits for one to come back. Requests of coordinators, grants and changes go as
//! letters of their own. Long batches and closures use the mailbox.

mod bell;
mod grants;
mod lane;
#[cfg(test)]
mod model_tests;
mod parcel;
mod serve;
mod slots;

pub(crate) use grants::GrantKey;
pub(crate) use lane::Exchange;
pub(crate) use serve::{Awaited, HeldParcels, after_unpark, before_park, set_here};
pub(crate) use slots::{SlotKey, WorkerReplies};

use super::batch::FEW_BYTES;
use super::{Acquire, Apply, BatchReply, CmdBatch, Shown, TURN};
use bell::Word;
use grants::Grants;
use lane::Letter;
use parcel::CmdParcel;
use slots::Slots;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::Instant;

/// Maximum number of parcels of a worker that are under way to another one.
pub(super) const UNDER_WAY: usize = 4;

/// Maximum number of empty batches and of empty replies that a worker keeps for their next use.
const SPARES: usize = 64;

/// Number of commands in open parcels after which they are posted, before the worker's tasks are
/// done.
const POST_AFTER: usize = 64;

/// Number of cycles of connections after which parcels are posted and those of others run, although
/// tasks are ready.
const CYCLES: usize = 16;

/// A worker's view of another one.
#[derive(Debug, Default)]
struct Peer {
    /// The parcel to which batches are added.
    open: Option<Box<CmdParcel>>,
    /// Number of parcels that are under way.
    under_way: usize,
    #[expect(clippy::vec_box, reason = "a parcel stays where it is, and travels as a pointer")]
    spare: Vec<Box<CmdParcel>>,
    /// Connections that wait for room.
    waiting: Vec<Waker>,
    /// Letters that go there next, but for the parcel.
    out: Vec<Letter>,
}

/// A parcel that this worker runs.
struct Incoming {
    from: usize,
    parcel: Box<CmdParcel>,
    /// Rounds that the replies in it show.
    shown: Shown,
}

/// Work that has come from another worker and waits for its turn.
enum RemoteWork {
    Parcel(Incoming),
    Acquire { from: usize, key: GrantKey, acquire: Box<Acquire> },
}

/// A worker's side of the [`Exchange`].
pub(crate) struct Hop {
    id: usize,
    /// Maximum number of parcels that are under way to another worker.
    max_under_way: usize,
    peers: RefCell<Vec<Peer>>,
    slots: RefCell<Slots>,
    incoming: RefCell<VecDeque<RemoteWork>>,
    /// Ends of holds, which come before everything else.
    applies: RefCell<VecDeque<Apply>>,
    grants: RefCell<Grants>,
    /// Taken from a lane, and handled one by one.
    letters: RefCell<Vec<Letter>>,
    batches: RefCell<Vec<CmdBatch>>,
    replies: RefCell<Vec<BatchReply>>,
    /// Number of commands in open parcels.
    opened: Cell<usize>,
    /// True if letters are to be posted.
    unposted: Cell<bool>,
    /// Number of times that letters were posted, and the tasks that wait for the next one.
    posts: Cell<u64>,
    awaiting_post: RefCell<Vec<Waker>>,
    /// Number of cycles since parcels were posted.
    cycles: Cell<usize>,
    /// True if connections were woken since the thread slept.
    woke: Cell<bool>,
    /// True while parcels run, which end with a commit.
    commits: Cell<bool>,
    /// Time when the exchange was served last.
    served_at: Cell<Option<Instant>>,
    /// End of the last turn of parcels, if it left some.
    left_at: Cell<Option<Instant>>,
}

/// Outcome of an attempt to send a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Offer {
    Taken,
    /// There is no room before a parcel comes back.
    Full,
    /// The worker has ended.
    Gone,
}

impl Hop {
    pub(super) fn new(id: usize, workers: usize, max_under_way: usize) -> Self {
        Self {
            id,
            max_under_way,
            peers: RefCell::new((0..workers).map(|_| Peer::default()).collect()),
            slots: RefCell::default(),
            incoming: RefCell::default(),
            applies: RefCell::default(),
            grants: RefCell::default(),
            letters: RefCell::default(),
            batches: RefCell::default(),
            replies: RefCell::default(),
            opened: Cell::new(0),
            unposted: Cell::new(false),
            posts: Cell::new(0),
            awaiting_post: RefCell::default(),
            cycles: Cell::new(0),
            woke: Cell::new(false),
            commits: Cell::new(false),
            served_at: Cell::new(None),
            left_at: Cell::new(None),
        }
    }

    /// Returns true while parcels run: a commit follows.
    pub(super) fn commits(&self) -> bool {
        self.commits.get()
    }

    /// Takes an empty batch.
    pub(crate) fn take_batch(&self) -> CmdBatch {
        self.batches.borrow_mut().pop().unwrap_or_default()
    }

    fn give_batch(&self, mut batch: CmdBatch) {
        let mut batches = self.batches.borrow_mut();
        if batches.len() < SPARES {
            batch.clear(FEW_BYTES);
            batches.push(batch);
        }
    }

    fn take_reply(&self) -> BatchReply {
        self.replies.borrow_mut().pop().unwrap_or_default()
    }

    /// Puts the memory of replies back that have been used.
    pub(crate) fn give_reply(&self, reply: BatchReply) {
        let mut replies = self.replies.borrow_mut();
        if replies.len() < SPARES && reply.is_small() {
            replies.push(reply);
        }
    }

    /// Adds a batch to the open parcel for a worker, or leaves the waker for when there is room.
    fn offer<W: Word>(
        &self,
        exchange: &Exchange<W>,
        target: usize,
        (slot, batch): (SlotKey, &CmdBatch),
        waker: &Waker,
    ) -> Offer {
        if exchange.is_gone(target) {
            return Offer::Gone;
        }
        let mut peers = self.peers.borrow_mut();
        let peer = &mut peers[target];
        if peer.open.as_ref().is_some_and(|open| !open.has_room(batch)) {
            if peer.under_way >= self.max_under_way {
                if !peer.waiting.iter().any(|other| other.will_wake(waker)) {
                    peer.waiting.push(waker.clone());
                }
                return Offer::Full;
            }
            self.post(peer, exchange, target);
        }
        let spare = &mut peer.spare;
        let open = peer.open.get_or_insert_with(|| spare.pop().unwrap_or_default());
        open.add(slot, batch);
        self.slots.borrow_mut().expect(slot, target);
        self.opened.set(self.opened.get() + batch.len());
        self.unposted.set(true);
        Offer::Taken
    }

    /// Posts the letters for a worker: replies, and the open parcel if there may be one more.
    fn post<W: Word>(&self, peer: &mut Peer, exchange: &Exchange<W>, target: usize) {
        let may_go = peer.under_way < self.max_under_way;
        let parcel = if may_go { peer.open.take() } else { None };
        if parcel.is_none() && peer.out.is_empty() {
            return;
        }
        peer.under_way += usize::from(parcel.is_some());
        let commands = parcel.into_iter().map(Letter::Commands);
        exchange.post(self.id, target, peer.out.drain(..).chain(commands));
    }

    /// Posts all letters.
    fn post_all<W: Word>(&self, exchange: &Exchange<W>) {
        if !self.unposted.replace(false) {
            return;
        }
        self.opened.set(0);
        let mut peers = self.peers.borrow_mut();
        for (target, peer) in peers.iter_mut().enumerate() {
            self.post(peer, exchange, target);
            // A parcel that finds no room goes when another one has come back.
        }
        self.posts.set(self.posts.get() + 1);
        let mut waiting = self.awaiting_post.borrow_mut();
        self.woke.set(self.woke.get() || !waiting.is_empty());
        waiting.drain(..).for_each(Waker::wake);
    }

    /// Takes all letters: replies go to their connections, commands wait for their turn.
    fn receive<W: Word>(&self, exchange: &Exchange<W>) {
        let rung = exchange.answer(self.id);
        if rung.is_empty() {
            return;
        }
        let mut letters = self.letters.take();
        for from in (0..exchange.workers()).filter(|from| rung.has(*from)) {
            // Read before the letters: a worker leaves none after it has ended.
            let is_gone = exchange.is_gone(from);
            exchange.take(from, self.id, &mut letters);
            letters.drain(..).for_each(|letter| self.open(from, letter));
            if is_gone {
                self.lose(from);
            }
        }
        self.letters.replace(letters);
    }

    fn open(&self, from: usize, letter: Letter) {
        let is_for_task =
            matches!(letter, Letter::Replies(_) | Letter::Late(..) | Letter::Grant(..));
        self.woke.set(self.woke.get() || is_for_task);
        match letter {
            Letter::Commands(parcel) => {
                let incoming = Incoming { from, parcel, shown: Shown::default() };
                self.incoming.borrow_mut().push_back(RemoteWork::Parcel(incoming));
            }
            Letter::Acquire(key, acquire) => {
                self.incoming.borrow_mut().push_back(RemoteWork::Acquire { from, key, acquire });
            }
            Letter::Grant(key, grant) => self.take_grant(from, key, *grant),
            Letter::Apply(apply) => self.applies.borrow_mut().push_back(*apply),
            Letter::Late(slot, reply) => self.slots.borrow_mut().answer(slot, from, reply),
            Letter::Replies(mut parcel) => {
                let mut slots = self.slots.borrow_mut();
                for (slot, answers) in parcel.answers() {
                    if slots.waits(slot) {
                        let mut reply = self.take_reply();
                        answers.copy_to(&mut reply);
                        slots.answer(slot, from, Some(reply));
                    }
                }
                drop(slots);
                parcel.clear();
                let mut peers = self.peers.borrow_mut();
                let peer = &mut peers[from];
                peer.under_way -= 1;
                peer.spare.push(parcel);
                peer.spare.truncate(self.max_under_way);
                peer.waiting.drain(..).for_each(Waker::wake);
                if peer.open.is_some() {
                    self.unposted.set(true);
                }
            }
        }
    }

    /// Fails all batches that were sent to a worker which has ended.
    fn lose(&self, worker: usize) {
        let mut peers = self.peers.borrow_mut();
        let peer = &mut peers[worker];
        peer.open = None;
        peer.out.clear();
        peer.waiting.drain(..).for_each(Waker::wake);
        self.slots.borrow_mut().fail(worker);
        self.grants.borrow_mut().fail(worker);
    }

    /// Sends a parcel home.
    fn send_home(&self, to: usize, parcel: Box<CmdParcel>) {
        self.leave(to, Letter::Replies(parcel));
    }

    /// Sends the replies to one batch home.
    pub(super) fn send_late(&self, to: usize, slot: SlotKey, reply: Option<BatchReply>) {
        self.leave(to, Letter::Late(slot, reply));
    }

    /// Begins a wait for replies.
    fn begin(&self) -> SlotKey {
        self.slots.borrow_mut().begin()
    }

    /// Returns the replies to all batches of a slot, once they have come.
    fn poll(&self, slot: SlotKey, waker: &Waker) -> Poll<Vec<WorkerReplies>> {
        self.slots.borrow_mut().poll(slot, waker)
    }

    /// Ends a wait.
    fn end(&self, slot: SlotKey) {
        self.slots.borrow_mut().end(slot);
    }

    /// Counts a cycle that has ended by now; returns true if it is time to post and to run the
    /// parcels of others although tasks are ready.
    fn is_due(&self, now: Instant) -> bool {
        self.cycles.set(self.cycles.get() + 1);
        let is_long = |at| now.saturating_duration_since(at) > TURN;
        self.cycles.get() >= CYCLES
            || self.opened.get() >= POST_AFTER
            || self.served_at.get().is_some_and(is_long)
    }
}
