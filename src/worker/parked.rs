//! Parked commands: those that wait for the locks of their keys, or for data that they miss. While
//! they wait they are not tasks but data, in the lock table or with the loader. One task runs those
//! that can go on.

use super::execute::{Attempt, Blocked, CoordinatorRequest, Ran, declared};
use super::volume::LoadShare;
use super::{Lock, LockKey, Worker};
use crate::blocking::HeldLocks;
use crate::command::{Outcome, OwnedCommand, Patience};
use crate::node::WorkerStats;
use crate::unit::{MAX_ATTEMPTS, NEEDS_TOO_MUCH};
use flagstone_commands::flag;
use flagstone_storage::store::Need;
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Number of commands that run before other tasks of this thread have a turn.
const AT_ONCE: usize = 64;

/// Approximate memory in bytes of a parked command, beside its arguments.
const PARKED_BYTES: usize = 400;

/// Interval at which commands that have begun to wait for locks while a script is busy are refused.
const BUSY_CHECK: Duration = Duration::from_millis(100);

/// Memory of a command, counted while it is parked.
#[derive(Debug)]
struct ParkedMemory {
    bytes: u64,
    stats: Arc<WorkerStats>,
}

impl ParkedMemory {
    fn new(command: &OwnedCommand, stats: &Arc<WorkerStats>) -> Self {
        let bytes = (command.memory() + PARKED_BYTES) as u64;
        stats.parked_bytes.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, stats: stats.clone() }
    }
}

impl Drop for ParkedMemory {
    fn drop(&mut self) {
        self.stats.parked_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A command that cannot run yet.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(super) command: OwnedCommand,
    _place: ParkedMemory,
    /// Data that the last attempt missed.
    missed: Vec<Need>,
    /// How often it has missed some.
    attempts: usize,
    /// Parts of values that a unit has missed so far.
    parts: HashSet<Need>,
    /// Room for the replies of its connection; `None`: it runs in any case.
    room: Option<Room>,
    /// Bytes of the data that was read for it, until it has run.
    share: Option<LoadShare>,
    to: oneshot::Sender<Ran>,
}

/// Bytes that the replies of a connection's parked commands may take before they are written. Once
/// they are used up, all commands left are put off, even those that could run, so of two on the
/// same key the second does not run before the first.
#[derive(Clone, Debug)]
pub(crate) struct Room(Rc<Cell<usize>>);

impl Room {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Rc::new(Cell::new(bytes)))
    }

    /// Sets the number of bytes that are left.
    pub(crate) fn set(&self, bytes: usize) {
        self.0.set(bytes);
    }

    fn is_spent(&self) -> bool {
        self.0.get() == 0
    }

    fn spend(&self, bytes: usize) {
        self.0.set(self.0.get().saturating_sub(bytes));
    }
}

/// Parked commands that can go on.
#[derive(Default)]
pub(super) struct Parking {
    /// Commands whose missing data is loaded.
    loaded: RefCell<VecDeque<(Lock, Box<Parked>)>>,
    due: Notify,
}

impl Parking {
    /// Wakes the task that runs them.
    pub(super) fn wake(&self) {
        self.due.notify_one();
    }
}

impl Worker {
    /// Parks a command: queues for its locks at once, in order; it runs when it has them and its
    /// data is loaded. A command that needs undeclared keys goes to a coordinator.
    pub(crate) fn park(
        self: &Rc<Self>,
        mut command: OwnedCommand,
        blocked: Blocked,
        room: Option<Room>,
    ) -> oneshot::Receiver<Ran> {
        // The attempt to run it has taken time, which is not the next command's.
        command.request.spend(self.lap());
        self.stats().parked.fetch_add(1, Ordering::Relaxed);
        let (to, rx) = oneshot::channel();
        let missed = match blocked {
            Blocked::Locked => Vec::new(),
            Blocked::Miss(needs) => needs,
            Blocked::Empty(block) => {
                let _ = to.send(Ran::blocked(block));
                return rx;
            }
            Blocked::Undeclared(missed) => {
                self.send_to_coordinator(
                    command,
                    CoordinatorRequest { missed, ..CoordinatorRequest::default() },
                    to,
                );
                return rx;
            }
            Blocked::Detached => {
                self.send_to_coordinator(command, CoordinatorRequest::detached(), to);
                return rx;
            }
            Blocked::Exclusive => {
                self.send_to_coordinator(command, CoordinatorRequest::exclusive(), to);
                return rx;
            }
        };
        let mut locks = self.locks.borrow_mut();
        let keys = command.command.keys(command.args(), command.request.db);
        let places = locks.places(keys.into_iter().filter(|(_, key)| self.owns(key)));
        let parked = Parked::new(command, missed, room, to, &self.node.figures.stats[self.id]);
        locks.enqueue_command(places, parked);
        drop(locks);
        self.wake_granted();
        rx
    }

    /// Wakes the task if commands were granted their locks.
    pub(super) fn wake_granted(&self) {
        if self.locks.borrow().has_granted() {
            self.parking.due.notify_one();
        }
    }

    /// Resumes commands whose missing data is loaded.
    pub(super) fn go_on_with(&self, loaded: impl Iterator<Item = (Lock, Box<Parked>)>) {
        self.parking.loaded.borrow_mut().extend(loaded);
        self.parking.due.notify_one();
    }

    fn next_parked(self: &Rc<Self>) -> Option<(Lock, Box<Parked>)> {
        let loaded = self.parking.loaded.borrow_mut().pop_front();
        loaded.or_else(|| {
            let (id, parked) = self.locks.borrow_mut().next_granted()?;
            Some((Lock { worker: self.clone(), id }, parked))
        })
    }

    /// Runs parked commands that can go on, and serves the waiters of keys that have changed
    /// without a command; runs until the worker ends.
    pub(crate) async fn run_parked(self: Rc<Self>) {
        loop {
            self.parking.due.notified().await;
            self.serve_waiters();
            while let Some((lock, parked)) = self.next_parked() {
                self.go_on(lock, parked);
                for _ in 1..AT_ONCE {
                    let Some((lock, parked)) = self.next_parked() else { break };
                    self.go_on(lock, parked);
                }
                self.end_cycle();
                self.evict_used();
                tokio::task::yield_now().await;
            }
        }
    }

    /// Refuses the commands that wait for locks while a script is busy, as those are refused that
    /// come later; runs until the worker ends.
    pub(crate) async fn run_impatience(self: Rc<Self>) {
        let mut onsets = self.node.code.scripts.running.onsets();
        while onsets.changed().await.is_ok() {
            // Commands that came before begin to wait for a lock when they have got a permit.
            while let Some(kind) = self.node.code.scripts.running.busy() {
                let refused = self.locks.borrow_mut().end_waits();
                for (id, parked) in refused {
                    parked.refuse(Lock { worker: self.clone(), id }, kind.busy_text());
                }
                tokio::time::sleep(BUSY_CHECK).await;
            }
        }
    }

    /// Loads the data that a command misses, or runs it.
    fn go_on(self: &Rc<Self>, lock: Lock, mut parked: Box<Parked>) {
        if parked.room.as_ref().is_some_and(Room::is_spent) {
            return parked.put_off(lock);
        }
        if parked.missed.is_empty() {
            let blocked = match self.run_locked(&parked.command) {
                Ok(ran) => return parked.end(lock, ran),
                Err(blocked) => *blocked,
            };
            parked.command.request.spend(self.lap());
            let request = match blocked {
                Blocked::Empty(block) => return parked.end(lock, Ran::blocked(block)),
                // The command holds its locks, so no other one can be before it.
                Blocked::Locked => return self.go_on_with(std::iter::once((lock, parked))),
                Blocked::Miss(_) if parked.attempts >= MAX_ATTEMPTS => {
                    return parked.fail(lock, NEEDS_TOO_MUCH);
                }
                Blocked::Miss(needs) => {
                    parked.attempts += 1;
                    parked.missed = needs;
                    None
                }
                Blocked::Undeclared(missed) => {
                    Some(CoordinatorRequest { missed, ..CoordinatorRequest::default() })
                }
                Blocked::Detached => Some(CoordinatorRequest::detached()),
                Blocked::Exclusive => Some(CoordinatorRequest::exclusive()),
            };
            if let Some(request) = request {
                drop(lock);
                return self.send_to_coordinator(parked.command, request, parked.to);
            }
        }
        let needs = self.needs(&mut parked);
        self.load_for(needs, lock, parked);
    }

    /// Returns the data to load for a command that has its locks: all its cold keys at once.
    fn needs(&self, parked: &mut Parked) -> Vec<Need> {
        let Parked { command, missed, parts, .. } = parked;
        if command.command.one_key && !command.command.spec.runs_others() {
            return std::mem::take(missed);
        }
        if !command.command.spec.runs_others() {
            parts.clear();
        }
        // A unit that is rolled back discards all loaded parts of the values that it has changed.
        parts.extend(missed.drain(..).filter(|need| need.part.is_some()));
        let mut needs = self.cold_keys(command);
        needs.extend(parts.iter().cloned());
        needs
    }

    /// Runs a command that holds its locks.
    fn run_locked(self: &Rc<Self>, command: &OwnedCommand) -> Attempt<Ran> {
        let mut out = command.request.reply();
        let settings = self.settings();
        let run = command.invocation(self.node.clock.now_ms(), &settings);
        self.start_watch();
        let held = self.hold_for_waiters(command);
        let ran = self.execute_loading(&run, || declared(&run), &mut out);
        self.waiters.table.borrow_mut().hold(held);
        ran.map(|ran| self.ran_with(out, ran))
    }

    /// Sends a command that holds no locks to a coordinator.
    fn send_to_coordinator(
        self: &Rc<Self>,
        command: OwnedCommand,
        request: CoordinatorRequest,
        to: oneshot::Sender<Ran>,
    ) {
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            // If the connection has ended, the command runs all the same.
            let _ = to.send((worker.coordinate)(&worker, &command, request).await);
        });
    }

    /// Allows waiters to be served although this command holds locks on its keys; returns the locks
    /// that counted as its own before.
    fn hold_for_waiters(&self, command: &OwnedCommand) -> HeldLocks {
        let mut waiting = self.waiters.table.borrow_mut();
        if waiting.is_empty() {
            return HeldLocks::Nothing;
        }
        waiting.hold(HeldLocks::keys(self.own_keys(command)))
    }

    /// Returns the command's keys that belong to this worker; nearly always all.
    fn own_keys(&self, command: &OwnedCommand) -> Vec<LockKey> {
        let mut keys = command.lock_keys();
        keys.retain(|(_, key)| self.owns(key));
        keys
    }

    /// Returns true if a key belongs to this worker.
    pub(crate) fn owns(&self, key: &[u8]) -> bool {
        self.node.shard_workers == 1 || self.node.owner(key) == self.id
    }

    /// Returns the command's keys that are not in memory.
    fn cold_keys(&self, command: &OwnedCommand) -> Vec<Need> {
        let keys = self.own_keys(command);
        let mut partition = self.partition.borrow_mut();
        keys.into_iter()
            .filter(|(db, key)| !partition.store.is_hot(*db, key))
            .map(|(db, key)| Need { db, key, part: None })
            .collect()
    }
}

impl Parked {
    pub(super) fn new(
        command: OwnedCommand,
        missed: Vec<Need>,
        room: Option<Room>,
        to: oneshot::Sender<Ran>,
        stats: &Arc<WorkerStats>,
    ) -> Box<Self> {
        let _place = ParkedMemory::new(&command, stats);
        let (attempts, parts, share) = (0, HashSet::new(), None);
        Box::new(Self { command, _place, missed, attempts, parts, room, share, to })
    }

    pub(super) fn patience(&self) -> Patience {
        Patience::of(self.command.command, &self.command.request)
    }

    /// Refuses the command, which waits for the locks of a busy script.
    fn refuse(self, lock: Lock, busy: &str) {
        let text = self.patience().refusal(busy);
        lock.worker.stats().refused(Some(self.command.command), &text);
        let mut ran = Ran::failed(self.command.request.proto, text);
        ran.answer.outcome = Outcome::Refused;
        self.end(lock, ran);
    }

    /// Holds the bytes of the data that was read for it, until it has run, with those of earlier reads.
    pub(super) fn hold(&mut self, share: LoadShare) {
        match &self.share {
            Some(held) => {
                held.take_over(&share);
                held.go_on();
            }
            None => self.share = Some(share),
        }
    }

    /// Notes that it waits for a read. Returns true if it holds the bytes of an earlier one, which it keeps.
    pub(super) fn rest(&self) -> bool {
        self.share.as_ref().map(LoadShare::rest).is_some()
    }

    /// Returns the command before its data is loaded. It is sent back instead if its connection's replies are
    /// to be written first, and dropped if it only reads and the connection has ended.
    pub(super) fn or_put_off(self: Box<Self>, lock: Lock) -> Option<(Lock, Box<Self>)> {
        if self.room.as_ref().is_some_and(Room::is_spent) {
            self.put_off(lock);
            return None;
        }
        let is_awaited = !self.to.is_closed() || !self.command.command.spec.has(flag!(READONLY));
        is_awaited.then_some((lock, self))
    }

    /// Sends the command back, to run later.
    fn put_off(self, lock: Lock) {
        drop(lock);
        let _ = self.to.send(Ran::put_off(self.command));
    }

    /// Ends the command, which has run or failed, and releases its locks.
    fn end(self, lock: Lock, ran: Ran) {
        if let Some(room) = &self.room {
            // Where one reply does not fit, others of the connection would not either.
            let reply = &ran.answer.reply;
            room.spend(if reply.lacks_room() { usize::MAX } else { reply.len() });
        }
        drop(lock);
        // If the connection has ended, the reply is dropped.
        let _ = self.to.send(ran);
    }

    /// Ends the command with an error, because its data could not be read.
    pub(super) fn fail(self, lock: Lock, text: &str) {
        lock.worker.stats().failed(self.command.command, text);
        let failed = Ran::failed(self.command.request.proto, text);
        self.end(lock, failed);
    }
}
