//! A worker's part in the exchange: it posts and receives letters around the sleep of its thread,
//! runs the parcels of others, and waits for its own.

use super::{CmdParcel, Incoming, Offer, RemoteWork, SlotKey, WorkerReplies};
use crate::config::Settings;
use crate::worker::batch::{BatchRun, HeldReplies, ReplyTo};
use crate::worker::{CmdBatch, DRAIN_TURN, GrantTo, LONGEST_DRAIN, Worker};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Instant;

/// Number of times that a worker looks for letters before it lets its tasks run.
pub(super) const LOOKS: usize = 4;

thread_local! {
    /// The worker of this thread.
    static HERE: RefCell<Option<Rc<Worker>>> = const { RefCell::new(None) };
}

/// Sets the worker that the runtime of this thread serves. `waker` ends the thread's sleep.
pub(crate) fn set_here(worker: Option<&Rc<Worker>>, waker: &Waker) {
    if let Some(worker) = worker.filter(|worker| worker.has_peers()) {
        worker.peers.exchange.set_waker(worker.id, waker.clone());
    }
    HERE.set(worker.cloned());
}

/// Serves the exchange before the thread sleeps, and lets it sleep if there are no letters.
pub(crate) fn before_park() {
    HERE.with_borrow(|here| {
        if let Some(worker) = here {
            if worker.has_peers() {
                worker.before_sleep();
            }
            worker.end_loop();
        }
    });
}

/// Serves the exchange after the thread has slept.
pub(crate) fn after_unpark() {
    HERE.with_borrow(|here| {
        if let Some(worker) = here {
            worker.begin_loop();
            if !worker.has_peers() {
                return;
            }
            let exchange = &worker.peers.exchange;
            exchange.woken(worker.id);
            if !exchange.is_silent(worker.id) {
                worker.exchange();
            }
            // The time of the sleep is no work.
            worker.hop.served_at.set(None);
        }
    });
}

/// Parcels whose replies show rounds that are not stored yet.
pub(crate) type HeldParcels = RefCell<VecDeque<HeldParcel>>;

/// A parcel that waits for the rounds that its replies show.
pub(crate) struct HeldParcel(Incoming);

impl Worker {
    /// Returns true if there are other workers.
    fn has_peers(&self) -> bool {
        self.peers.exchange.workers() > 1
    }

    fn before_sleep(self: &Rc<Self>) {
        for _ in 0..LOOKS {
            let rests = self.exchange();
            if self.hop.woke.take() {
                // Connections are about to run: the thread does not sleep, so no worker has to wake
                // it.
                break;
            }
            if !rests && self.peers.exchange.sleep(self.id) {
                return;
            }
        }
        self.peers.exchange.stay_awake(self.id);
    }

    /// Posts and receives letters, and runs the parcels of others for a turn. Returns true if some
    /// are left.
    fn exchange(self: &Rc<Self>) -> bool {
        let exchange = &self.peers.exchange;
        self.hop.cycles.set(0);
        self.hop.post_all(exchange);
        self.hop.receive(exchange);
        self.apply_letters();
        let rests = self.run_parcels();
        self.hop.served_at.set(Some(self.last_ran()));
        self.hop.post_all(exchange);
        rests
    }

    /// Counts a piece of work of one of the worker's tasks, and serves the exchange once there were
    /// some, or they took as long as a turn: a thread that always has ready tasks never sleeps.
    pub(crate) fn end_cycle(self: &Rc<Self>) {
        if self.peers.exchange.workers() > 1 && self.hop.is_due(self.last_ran()) {
            self.exchange();
        }
    }

    fn run_parcels(self: &Rc<Self>) -> bool {
        if self.hop.incoming.borrow().is_empty() {
            return false;
        }
        let began = Instant::now();
        let others = self.hop.left_at.take();
        let others = others.map_or(DRAIN_TURN, |at| began.saturating_duration_since(at));
        let turn = others.clamp(DRAIN_TURN, LONGEST_DRAIN);
        let (settings, now_ms) = (self.settings(), self.node.clock.now_ms());
        self.hop.commits.set(true);
        let mut run = self.buffers.take_run();
        loop {
            let next = self.hop.incoming.borrow_mut().pop_front();
            let is_over = || self.last_ran().saturating_duration_since(began) > turn;
            let mut next = match next {
                None => break,
                Some(RemoteWork::Parcel(next)) => next,
                Some(RemoteWork::Acquire { from: worker, key, acquire }) => {
                    self.start_watch();
                    self.acquire(*acquire, GrantTo::Home { worker, key });
                    if is_over() {
                        break;
                    }
                    continue;
                }
            };
            self.start_parcel(&next.parcel);
            let mut is_done = true;
            while let Some((slot, range)) = next.parcel.next() {
                self.run_segment(&mut next, slot, range, (now_ms, &settings), &mut run);
                if is_over() && next.parcel.next().is_some() {
                    is_done = false;
                    break;
                }
            }
            if !is_done {
                self.hop.incoming.borrow_mut().push_front(RemoteWork::Parcel(next));
                break;
            }
            self.hold_parcel(next, &settings);
            if is_over() {
                break;
            }
        }
        self.buffers.give_run(run);
        self.hop.commits.set(false);
        if self.commits.pending.get() {
            self.commit();
        }
        let rests = !self.hop.incoming.borrow().is_empty();
        self.hop.left_at.set(rests.then(|| self.last_ran()));
        rests
    }

    fn start_parcel(&self, parcel: &CmdParcel) {
        if parcel.next().is_some_and(|(_, range)| range.start == 0) {
            let n = parcel.batch.len() as u64;
            self.stats().remote.fetch_add(n, Ordering::Relaxed);
            self.stats().remote_batches.fetch_add(1, Ordering::Relaxed);
            self.warm(&parcel.batch);
        }
        self.start_watch();
    }

    /// Runs the next batch of a parcel. Its replies stay in the parcel if they are short, and need
    /// not wait for anything but the commit that follows.
    fn run_segment(
        self: &Rc<Self>,
        next: &mut Incoming,
        slot: SlotKey,
        range: std::ops::Range<usize>,
        (now_ms, settings): (u64, &Settings),
        run: &mut BatchRun,
    ) {
        let Incoming { from, parcel, shown } = next;
        let commands = range.len();
        self.run_commands(&parcel.batch, range.clone(), (now_ms, settings), run);
        let is_whole = run.is_whole(commands) && parcel.takes(run.out.len());
        let is_late = settings.replies_wait_for_disk() && !self.rounds.is_stored(&run.shown, true);
        if is_whole && !is_late {
            parcel.answer(run.out.as_bytes(), &run.ends, &run.seen);
            shown.add(std::mem::take(&mut run.shown));
            run.clear();
            return;
        }
        parcel.leave_out();
        let to = ReplyTo::Home { worker: *from, slot };
        let run = std::mem::take(run);
        self.end_run(run, || parcel.batch.part(range), commands, to);
    }

    /// Sends a parcel home that has run, or holds it until the rounds that it shows are known.
    fn hold_parcel(&self, next: Incoming, settings: &Settings) {
        let to_disk = settings.replies_wait_for_disk();
        if self.rounds.is_stored(&next.shown, to_disk) {
            self.hop.send_home(next.from, next.parcel);
        } else {
            self.held.parcels.borrow_mut().push_back(HeldParcel(next));
        }
    }

    /// Sends the held parcels home whose rounds have an outcome.
    pub(in crate::worker) fn release_parcels(&self, to_disk: bool) {
        let mut held = self.held.parcels.borrow_mut();
        for _ in 0..held.len() {
            let Some(HeldParcel(mut next)) = held.pop_front() else { return };
            if !self.rounds.is_known(&next.shown, to_disk) {
                held.push_back(HeldParcel(next));
                continue;
            }
            if !self.rounds.is_stored(&next.shown, to_disk) {
                let failure = |round| self.rounds.failure(&next.shown, round, to_disk);
                next.parcel.fail(failure, self.stats());
            }
            self.hop.send_home(next.from, next.parcel);
        }
    }

    /// Sends replies to the connection that waits for them.
    pub(in crate::worker) fn send_replies(&self, held: HeldReplies) {
        match held.to {
            // If the connection has ended, the replies are dropped.
            ReplyTo::Sender(to) => drop(to.send(held.reply)),
            ReplyTo::Home { worker, slot } => {
                self.hop.send_late(worker, slot, Some(held.reply));
            }
        }
    }
}

/// A connection's wait for the replies to batches that it has sent; dropping it ends the wait.
pub(crate) struct Awaited {
    worker: Rc<Worker>,
    slot: SlotKey,
}

impl Awaited {
    /// Begins a wait.
    pub(crate) fn new(worker: &Rc<Worker>) -> Self {
        Self { worker: worker.clone(), slot: worker.hop.begin() }
    }

    /// Sends a short batch to a worker; waits while there is no room for it. Returns false if the
    /// worker has ended.
    pub(crate) async fn send(&self, target: usize, batch: CmdBatch) -> bool {
        let Worker { hop, peers, .. } = &*self.worker;
        let sent = poll_fn(|cx| {
            match hop.offer(&peers.exchange, target, (self.slot, &batch), cx.waker()) {
                Offer::Taken => Poll::Ready(true),
                Offer::Full => Poll::Pending,
                Offer::Gone => Poll::Ready(false),
            }
        });
        let sent = sent.await;
        hop.give_batch(batch);
        sent
    }

    /// Waits for the replies to all batches.
    pub(crate) async fn replies(&self) -> Vec<WorkerReplies> {
        self.worker.end_cycle();
        poll_fn(|cx| self.worker.hop.poll(self.slot, cx.waker())).await
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.worker.hop.end(self.slot);
    }
}
