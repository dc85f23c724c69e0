//! Serves the clients that wait for keys of this worker (see [`crate::blocking`]).

use super::{Blocked, CoordinatorRequest, Ran, Worker};
use crate::acl::{DenialContext, DeniedAccess};
use crate::blocking::{
    Content, HeldLocks, ServeAttempt, Serves, Step, WaitTable, Waiter, end_detached, serve_all,
    step,
};
use crate::clients::Cancel;
use crate::command::{Answer, OwnedCommand};
use flagstone_storage::Value;
use flagstone_storage::need::Key;
use flagstone_storage::slot::{NotOwned, slot_of};
use flagstone_storage::store::Need;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pause before a key that could not be read is read again.
const RETRY: Duration = Duration::from_millis(100);

/// Clients that wait for keys of a worker.
#[derive(Default)]
pub(super) struct Waiters {
    pub(super) table: RefCell<WaitTable>,
    /// Replies of served waiters, until the rounds that they show are stored.
    deliveries: RefCell<VecDeque<Delivery>>,
}

/// A waiter's reply that must not be sent yet.
#[derive(Debug)]
pub(crate) struct Delivery {
    waiter: Arc<Waiter>,
    ran: Ran,
}

/// Keys whose waiters are served when this is dropped.
pub(crate) struct PostponedWaiters {
    worker: Rc<Worker>,
    keys: Vec<Key>,
}

impl Drop for PostponedWaiters {
    fn drop(&mut self) {
        let node = &self.worker.node;
        node.postponed.remove(&self.keys);
        let mut by_owner: BTreeMap<usize, Vec<Key>> = BTreeMap::new();
        for key in std::mem::take(&mut self.keys) {
            by_owner.entry(node.owner(&key.1)).or_default().push(key);
        }
        for (owner, keys) in by_owner {
            self.worker.peers.send(owner, move |worker| {
                worker.touch_waiters(keys.iter().map(|(db, key)| (*db, &**key)));
                worker.serve_waiters();
            });
        }
    }
}

impl Serves for Rc<Worker> {
    /// One or two milliseconds of work.
    const SLICE: usize = 1000;

    fn number(&self) -> usize {
        self.id
    }

    fn is_here(&self, (_, key): &Key) -> bool {
        self.owns(key)
    }

    fn table(&self) -> &RefCell<WaitTable> {
        &self.waiters.table
    }

    fn content_of(&self, (db, key): &Key) -> Option<Content> {
        if !self.is_open(*db, key) {
            return None;
        }
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        self.node.begin(store, self.node.clock.now_ms(), false);
        store.notes.want(self.node.interest(&self.settings()));
        let content = store.peek(*db, key).ok()?.map_or(Content::NONE, |entry| {
            let state = match &entry.value {
                Value::Stream(stream) => {
                    let (last_id, groups) = (stream.last_id(), stream.groups());
                    let added = stream.entries_added();
                    let [instance, created] = [stream.instance(), groups.created()];
                    [instance, last_id.ms, last_id.seq, added, created, groups.len()]
                }
                _ => [0; 6],
            };
            Content { type_name: entry.value.type_name(), state }
        });
        if partition.has_to_close() {
            self.commit_soon();
        }
        // The key may have expired just now.
        let (seen, notes) = (partition.store.seen(), partition.store.notes.take());
        drop(partition);
        if !notes.is_empty() {
            self.note_news(self.rounds.seen(seen), 0, notes, Vec::new());
        }
        Some(content)
    }

    fn is_postponed(&self, key: &Key) -> bool {
        self.node.postponed.has(key)
    }

    fn fetch(&self, key: &Key) {
        let (lock, granted) = self.lock([key]);
        let (worker, key) = (self.clone(), key.clone());
        tokio::task::spawn_local(async move {
            if granted.await.is_err() {
                return;
            }
            if !worker.partition.borrow_mut().store.is_hot(key.0, &key.1) {
                let need = Need { db: key.0, key: key.1.clone(), part: None };
                if let Err(text) = worker.load(vec![need]).await
                    && !worker.fail_first(&key, &text)
                {
                    // The waiter's turn is taken: another worker is serving it.
                    tokio::time::sleep(RETRY).await;
                }
            }
            worker.waiters.table.borrow_mut().set_busy(&key, false);
            worker.serve_holding(HeldLocks::keys(vec![key]));
            drop(lock);
        });
    }

    fn try_serve(&self, waiter: &Arc<Waiter>, key: &Key) -> ServeAttempt {
        if waiter.has_hung_up() {
            waiter.turn.cancel(Cancel::Gone);
            return ServeAttempt::Nothing;
        }
        let command = &waiter.command;
        if let Err(text) = self.admit_waiter(waiter) {
            self.stats().refused(Some(command.command), &text);
            waiter.turn.serve(Answer::failed(command.request.proto, text));
            return ServeAttempt::Served;
        }
        let mut others = waiter.others.iter();
        if !others.all(|(_, other)| self.owns(other)) {
            self.serve_detached(waiter, key, None);
            return ServeAttempt::Detached;
        }
        let mut keys = waiter.keys.iter().chain(&waiter.others);
        if !keys.all(|(db, key)| self.is_open(*db, key)) {
            self.serve_detached(waiter, key, Some(Blocked::Locked));
            return ServeAttempt::Detached;
        }
        self.start_watch();
        match self.execute_open(command) {
            Ok(ran) => {
                self.deliver(waiter, ran);
                ServeAttempt::Served
            }
            Err(blocked) if matches!(*blocked, Blocked::Empty(_)) => ServeAttempt::Nothing,
            Err(blocked) => {
                self.serve_detached(waiter, key, Some(*blocked));
                ServeAttempt::Detached
            }
        }
    }

    fn ask(&self, worker: usize, waiter: &Arc<Waiter>) {
        let waiter = waiter.clone();
        self.peers.send(worker, move |worker| {
            worker.in_slices(Step::Look, waiter);
        });
    }
}

impl Worker {
    /// Registers a waiter, and serves it if its keys have something by now.
    pub(crate) fn add_waiter(self: &Rc<Self>, waiter: Arc<Waiter>) {
        self.in_slices(Step::Add, waiter);
    }

    /// Removes a waiter whose turn is over from all queues.
    pub(crate) fn remove_waiter(self: &Rc<Self>, waiter: Arc<Waiter>) {
        self.in_slices(Step::Remove, waiter);
    }

    /// Does a step for all keys of a waiter, and yields after each slice.
    fn in_slices(self: &Rc<Self>, what: Step, waiter: Arc<Waiter>) {
        let mut next = step(self, what, &waiter, 0);
        self.count_awaited();
        if next.is_none() {
            return;
        }
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            while let Some(from) = next {
                worker.turns.end().await;
                next = step(&worker, what, &waiter, from);
                worker.count_awaited();
            }
        });
    }

    pub(super) fn count_awaited(&self) {
        let (keys, absent) = self.waiters.table.borrow().len();
        self.stats().audience.awaited_keys.store(keys as u64, Ordering::Relaxed);
        self.stats().audience.awaited_absent_keys.store(absent as u64, Ordering::Relaxed);
    }

    /// Checks if the user of a waiter may still run its command.
    ///
    /// # Errors
    /// The error text.
    fn admit_waiter(&self, waiter: &Waiter) -> Result<(), Vec<u8>> {
        let OwnedCommand { command, request, .. } = &waiter.command;
        let args = waiter.command.args();
        let checked = self.node.access.accounts.check(request.account, command, args);
        let Err((user, denied)) = checked else { return Ok(()) };
        let context = DenialContext::TopLevel;
        let access = DeniedAccess::of(denied, (*command, args), context, &user);
        let client = self.node.clients.get(request.client);
        self.node.log_denial(access, 1, client.as_deref(), &self.settings());
        Err([b"NOPERM ", &denied.text(&user, command)[..]].concat())
    }

    /// Marks keys as changed.
    pub(crate) fn touch_waiters<'a>(&self, keys: impl Iterator<Item = (u32, &'a [u8])>) {
        let mut waiting = self.waiters.table.borrow_mut();
        if !waiting.is_empty() {
            keys.for_each(|(db, key)| waiting.touch(db, key));
        }
    }

    /// Marks all keys of some databases as changed.
    pub(crate) fn touch_all_waiters(&self, dbs: &[u32]) {
        self.waiters.table.borrow_mut().touch_all(dbs);
    }

    /// Serves the waiters of the keys that have changed.
    pub(crate) fn serve_waiters(self: &Rc<Self>) {
        if !self.waiters.table.borrow().is_empty() {
            serve_all(self);
            self.count_awaited();
        }
    }

    /// Serves waiters although the locks in `held` are held.
    pub(crate) fn serve_holding(self: &Rc<Self>, held: HeldLocks) {
        let before = self.waiters.table.borrow_mut().hold(held);
        self.serve_waiters();
        self.waiters.table.borrow_mut().hold(before);
    }

    /// Postpones the waiters of some keys until the guard is dropped; `None` if no client waits for
    /// any key.
    pub(crate) fn postpone_waiters(
        self: &Rc<Self>,
        keys: impl FnOnce() -> Vec<Key>,
    ) -> Option<PostponedWaiters> {
        let mut stats = self.node.figures.stats.iter();
        let is_awaited = stats.any(|s| s.audience.awaited_keys.load(Ordering::Relaxed) > 0);
        is_awaited.then(|| {
            let keys = keys();
            self.node.postponed.add(&keys);
            PostponedWaiters { worker: self.clone(), keys }
        })
    }

    /// Returns true if a waiter's command may use a key now.
    fn is_open(&self, db: u32, key: &[u8]) -> bool {
        let locks = self.locks.borrow();
        locks.is_idle()
            || !locks.blocks(db, std::iter::once(key))
            || self.waiters.table.borrow().holds(db, key)
    }

    /// Runs the command of a waiter in a task, because it has to wait for locks, data or other
    /// workers.
    fn serve_detached(self: &Rc<Self>, waiter: &Arc<Waiter>, key: &Key, blocked: Option<Blocked>) {
        self.waiters.table.borrow_mut().set_busy(key, true);
        let (worker, waiter, key) = (self.clone(), waiter.clone(), key.clone());
        // Queues for the locks now.
        let parked = blocked.map(|blocked| self.park(waiter.command.clone(), blocked, None));
        let under_way = self.node.ending.coordinator();
        tokio::task::spawn_local(async move {
            let _under_way = under_way;
            let ran = match parked {
                Some(done) => done.await.unwrap_or_else(|_| Ran::abandoned()),
                None => {
                    (worker.coordinate)(&worker, &waiter.command, CoordinatorRequest::default())
                        .await
                }
            };
            let served = ran.block.is_none();
            if served {
                worker.deliver(&waiter, ran);
            }
            end_detached(&worker, &waiter, &key, served);
            worker.count_awaited();
        });
    }

    /// Answers the first waiter of a key that cannot be read with the error. Returns false if there
    /// is none, or another worker is about to serve it.
    fn fail_first(self: &Rc<Self>, key: &Key, text: &str) -> bool {
        let first = self.waiters.table.borrow().first(key);
        let Some(waiter) = first.filter(|waiter| waiter.turn.claim(self.id)) else { return false };
        if self.partition.borrow().store.owns(&key.1) {
            self.stats().failed(waiter.command.command, text);
            waiter.turn.serve(Answer::failed(waiter.command.request.proto, text));
        } else {
            // The load does not know its client, which may be sent on.
            let (slot, secured) = (slot_of(&key.1), waiter.command.request.secured);
            self.refuse_waiter(&waiter, self.node.not_owned(NotOwned { slot }, Some(secured)).text);
        }
        self.waiters.table.borrow_mut().remove(&waiter, std::slice::from_ref(key));
        true
    }

    /// Gives a waiter its reply as soon as the rounds that it shows are stored.
    fn deliver(&self, waiter: &Arc<Waiter>, ran: Ran) {
        if self.rounds.is_stored(&ran.shown, self.is_always()) {
            return waiter.turn.serve(ran.answer);
        }
        self.waiters.deliveries.borrow_mut().push_back(Delivery { waiter: waiter.clone(), ran });
        // The round may have failed already.
        self.deliver_shown();
    }

    /// Gives waiters the replies whose rounds have an outcome.
    pub(crate) fn deliver_shown(&self) {
        let mut deliveries = self.waiters.deliveries.borrow_mut();
        if deliveries.is_empty() {
            return;
        }
        let to_disk = self.is_always();
        let is_known = |next: &mut Delivery| self.rounds.is_known(&next.ran.shown, to_disk);
        while let Some(Delivery { waiter, ran }) = deliveries.pop_front_if(is_known) {
            let failure = self.rounds.any_failure(&ran.shown, to_disk);
            let command = waiter.command.command;
            waiter.turn.serve(self.stats().replaced(Some(command), ran.answer, failure));
        }
    }
}
