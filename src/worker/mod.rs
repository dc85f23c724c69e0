//! A worker: an OS thread with a private current-thread runtime, which owns shards, connections, or
//! both. All its state stays on its thread except the [`Mailbox`] and its part of the exchange
//! (`hop/`).
//!
//! A worker serves its connections, its mailbox and the parcels of other workers in turns. Commands
//! on its own keys run in place; those that have to wait for locks or for data are parked, and those
//! that need several workers go to a coordinator. Commands stage changes in the open round, which
//! one commit appends to the journal as a record; replies are held until the rounds that they show
//! are stored, in the mode `always` until they are durable.

mod account;
mod ahead;
mod attach;
mod batch;
mod buffers;
mod cpu_wait;
mod cron;
mod departures;
mod event_loop;
mod eviction;
mod execute;
mod expiry;
mod hop;
mod hot_keys;
mod lending;
mod load;
mod locks;
mod mailbox;
mod materialise;
mod memory;
mod mirror;
mod news;
mod parked;
mod peers;
mod read_trouble;
mod reads;
mod resolve;
mod rounds;
mod scan;
mod splitting;
mod stall;
mod turns;
mod units;
mod volume;
mod waiters;
mod watching;

pub(crate) use account::FinishedCommand;
pub(crate) use ahead::{Ahead, Ready, Stopped};
pub use batch::{BatchReply, CmdBatch, MAX_REPLIES};
pub(crate) use buffers::READ;
pub use cron::CRON_HZ;
pub use departures::{DepartingKey, DepartingKeys};
pub(crate) use execute::{ABANDONED, Executed, changer};
pub use execute::{Blocked, CoordinatorRequest, Ran};
pub(crate) use hop::{Awaited, WorkerReplies, after_unpark, before_park, set_here};
pub use hot_keys::HotKey;
pub(crate) use hot_keys::MAX_HOT;
pub(crate) use lending::GrantTo;
pub use lending::{Acquire, Apply, Grant, Holds};
pub(crate) use locks::LockKey;
pub use mailbox::{Inbox, Mailbox, Message, WorkerGone, mailbox};
pub(crate) use mirror::MirroredOps;
pub(crate) use news::News;
pub(crate) use parked::Room;
pub use peers::Peers;
pub(crate) use rounds::{Shown, refusal};
pub use scan::{Cursor, ScanKey, ScanPage};
pub use watching::{Watches, begin_watch};

use crate::command::{Answer, Command, OwnedCommand, Patience, RoundError};
use crate::config::{Config, Settings};
use crate::node::{Node, ShutdownRequest, WorkerStats};
use buffers::Buffers;
use flagstone_storage::partition::Partition;
use flagstone_storage::words::RoundWords;
use locks::{LockTable, TicketId};
use rounds::Rounds;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// How long the commands of one connection run before others have a turn.
pub(crate) const TURN: Duration = Duration::from_micros(250);

/// How long the messages of a drain, which share a record, run before connections have a turn: as
/// long as these had, but within these limits.
const DRAIN_TURN: Duration = Duration::from_millis(1);
const LONGEST_DRAIN: Duration = Duration::from_millis(8);

/// State of a worker.
pub struct Worker {
    pub id: usize,
    pub node: Arc<Node>,
    pub peers: Arc<Peers>,
    coordinate: Coordinate,
    pub(crate) partition: RefCell<Partition>,
    pub(crate) locks: RefCell<LockTable>,
    pub(crate) rounds: Rounds,
    pub(crate) holds: RefCell<Holds>,
    held: HeldAnswers,
    pub(crate) hop: hop::Hop,
    pub(crate) buffers: Buffers,
    passes: materialise::Passes,
    expiry: expiry::ActiveExpiry,
    upkeep: Upkeep,
    loader: load::ColdLoader,
    evictor: eviction::Evictor,
    parking: parked::Parking,
    connections: tokio_util::task::TaskTracker,
    stop: tokio_util::sync::CancellationToken,
    commits: CommitSignal,
    pub(crate) turns: turns::Turns,
    /// Time at which the last timed command ended.
    watch: Cell<Instant>,
    waiters: waiters::Waiters,
    announced: news::Announced,
    observers: Observers,
    /// Keys that its commands name most often.
    pub(crate) hot_keys: hot_keys::HotKeys,
    settings: RefCell<(u64, Arc<Settings>)>,
}

/// Replies to other workers, until the rounds that they show are stored.
#[derive(Default)]
struct HeldAnswers {
    batches: RefCell<VecDeque<batch::HeldReplies>>,
    parcels: hop::HeldParcels,
}

/// The signal that the open round is to be committed.
#[derive(Default)]
struct CommitSignal {
    due: Notify,
    pending: Cell<bool>,
}

/// Clients that hear of changed keys.
#[derive(Default)]
struct Observers {
    /// Tracking clients, by the keys of this worker that they have read.
    tracking: RefCell<crate::tracking::Table>,
    /// Clients that watch keys of this worker.
    watching: RefCell<crate::watch::WatchTable>,
    /// True once clients that track prefixes were told that the shards may be lost, until they are not.
    has_told_of_loss: Cell<bool>,
}

/// State of the periodic checks.
struct Upkeep {
    /// The time when the periodic work last ran, and its ms since the Unix epoch.
    looked: Cell<(Instant, u64)>,
    /// Bytes of the budget for decoded values that pending rows may use.
    loan: Cell<usize>,
    /// Progress of hand-overs and of the journal's store at the last pressure check.
    progress: Cell<u64>,
    cpu_wait: cpu_wait::CpuWait,
    turns: event_loop::EventLoop,
    told: stall::RecentErrors,
    outboxes_checked_ms: Cell<u64>,
    clients_seen_ms: Cell<u64>,
}

impl Upkeep {
    fn new(now_ms: u64) -> Self {
        Self {
            looked: Cell::new((Instant::now(), now_ms)),
            loan: Cell::default(),
            progress: Cell::default(),
            cpu_wait: cpu_wait::CpuWait::default(),
            turns: event_loop::EventLoop::default(),
            told: stall::RecentErrors::default(),
            outboxes_checked_ms: Cell::default(),
            clients_seen_ms: Cell::default(),
        }
    }
}

/// Runs a command that needs more than this worker: keys of others, or a thread of its own. The
/// coordinator stands above the workers, so they receive this function at their start.
pub type Coordinate =
    for<'a> fn(&'a Rc<Worker>, &'a OwnedCommand, CoordinatorRequest) -> Coordinated<'a>;

/// Future of a command that a coordinator runs.
pub type Coordinated<'a> = Pin<Box<dyn Future<Output = Ran> + 'a>>;

/// Key locks that are held or waited for; dropping this releases them.
pub(crate) struct Lock {
    worker: Rc<Worker>,
    id: TicketId,
}

impl Lock {
    /// Returns true if the lock is on the whole worker.
    pub(crate) fn is_whole(&self) -> bool {
        self.worker.locks.borrow().is_barrier(self.id)
    }
}

/// Returns a copy of the settings that no other worker refers to.
fn own_settings(config: &Config) -> Arc<Settings> {
    Arc::new(Settings::clone(&config.settings()))
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.worker.locks.borrow_mut().release(self.id);
        self.worker.wake_granted();
    }
}

impl Worker {
    pub fn new(
        id: usize,
        node: Arc<Node>,
        peers: Arc<Peers>,
        coordinate: Coordinate,
        partition: Partition,
    ) -> Rc<Self> {
        let settings = (node.config.generation(), own_settings(&node.config));
        let locks = LockTable::new(node.layout.clone());
        let hop = hop::Hop::new(id, node.workers, hop::UNDER_WAY);
        let now_ms = node.clock.now_ms();
        let hot_keys = hot_keys::HotKeys::new(now_ms);
        Rc::new(Self {
            id,
            node,
            peers,
            coordinate,
            rounds: Rounds::new(partition.store.round()),
            partition: RefCell::new(partition),
            locks: RefCell::new(locks),
            holds: RefCell::default(),
            held: HeldAnswers::default(),
            hop,
            buffers: Buffers::default(),
            passes: materialise::Passes::default(),
            expiry: expiry::ActiveExpiry::default(),
            upkeep: Upkeep::new(now_ms),
            loader: load::ColdLoader::default(),
            evictor: eviction::Evictor::default(),
            parking: parked::Parking::default(),
            connections: tokio_util::task::TaskTracker::new(),
            stop: tokio_util::sync::CancellationToken::new(),
            commits: CommitSignal::default(),
            turns: turns::Turns::default(),
            watch: Cell::new(Instant::now()),
            waiters: waiters::Waiters::default(),
            announced: news::Announced::default(),
            observers: Observers::default(),
            hot_keys,
            settings: RefCell::new(settings),
        })
    }

    /// Returns the settings, refreshed if they have changed. They are the worker's own copy: no
    /// other core counts its references.
    pub fn settings(&self) -> Arc<Settings> {
        let generation = self.node.config.generation();
        let mut cached = self.settings.borrow_mut();
        if cached.0 != generation {
            *cached = (generation, own_settings(&self.node.config));
        }
        cached.1.clone()
    }

    /// Returns this worker's counters.
    pub fn stats(&self) -> &WorkerStats {
        &self.node.figures.stats[self.id]
    }

    /// Serves the mailbox in drains, each of up to 256 messages or one turn, urgent ones first;
    /// commits after each drain.
    pub(crate) async fn run_mailbox(self: Rc<Self>, mut inbox: Inbox) {
        // End of the last drain, if it left messages.
        let mut left_at = None;
        while let Some(first) = inbox.next().await {
            let began = Instant::now();
            let others = left_at.map_or(DRAIN_TURN, |at| began.saturating_duration_since(at));
            let turn = others.clamp(DRAIN_TURN, LONGEST_DRAIN);
            self.handle(first);
            for _ in 1..mailbox::DRAIN {
                if self.last_ran().saturating_duration_since(began) > turn {
                    break;
                }
                let Some(message) = inbox.try_next() else { break };
                self.handle(message);
            }
            if self.commits.pending.get() {
                self.commit();
            }
            left_at = (!inbox.is_empty()).then(|| self.last_ran());
            self.end_cycle();
            tokio::task::yield_now().await;
        }
    }

    fn handle(self: &Rc<Self>, message: Message) {
        self.look_before_message();
        match message {
            Message::Batch(batch, to) => {
                let n = batch.len() as u64;
                self.stats().remote.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
                self.stats().remote_batches.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.run_batch(batch, to);
            }
            Message::Run(job) => job(self),
        }
    }

    /// Queues for the locks of some keys; the receiver resolves when they are granted.
    pub(crate) fn lock<'a>(
        self: &Rc<Self>,
        keys: impl IntoIterator<Item = &'a LockKey>,
    ) -> (Lock, tokio::sync::oneshot::Receiver<()>) {
        self.lock_for(keys, Patience::Endless)
    }

    /// Queues for some keys, for as long as the command has patience.
    pub(crate) fn lock_for<'a>(
        self: &Rc<Self>,
        keys: impl IntoIterator<Item = &'a LockKey>,
        patience: Patience,
    ) -> (Lock, tokio::sync::oneshot::Receiver<()>) {
        let keys = keys.into_iter().map(|(db, key)| (*db, &**key));
        let (id, granted) = self.locks.borrow_mut().enqueue(keys, patience);
        (Lock { worker: self.clone(), id }, granted)
    }

    /// Queues for the whole worker.
    pub(crate) fn lock_all(
        self: &Rc<Self>,
        patience: Patience,
    ) -> (Lock, tokio::sync::oneshot::Receiver<()>) {
        let (id, granted) = self.locks.borrow_mut().enqueue_barrier(patience);
        (Lock { worker: self.clone(), id }, granted)
    }

    /// Schedules a commit of the open round, after the tasks that are ready now.
    pub(crate) fn commit_soon(&self) {
        if !self.commits.pending.replace(true) && !self.hop.commits() {
            self.commits.due.notify_one();
        }
    }

    /// Commits the open round now; returns true if it could be stored.
    pub(crate) fn commit(&self) -> bool {
        self.commits.pending.set(false);
        let now_ms = self.node.clock.now_ms();
        let mut partition = self.partition.borrow_mut();
        let result = partition.commit(now_ms);
        if self.node.inline_sync && self.is_always() && result.is_ok() {
            self.sync_inline(&mut partition);
        }
        let (closed, durable) = (partition.closed(), partition.durable());
        let last = partition.last_lsn();
        let open = partition.store.round();
        let reached = partition.take_reached();
        self.watch_data_set(&partition, result.is_ok());
        drop(partition);
        let replica = &self.node.health.replica;
        reached.into_iter().for_each(|position| replica.reached(position, last));
        let stored = result.is_ok();
        match result {
            Ok(false) => {}
            Ok(true) => {
                self.stats().commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.evict();
            }
            Err(failed) => {
                self.stats().failed_commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.rounds.fail(&failed.error);
                if failed.evictions > 0 {
                    self.evictor.note_refusal(&failed.error);
                }
                // A client that waits because it found a key empty may have seen a change that
                // failed.
                self.touch_waiters(failed.keys());
                self.parking.wake();
            }
        }
        self.advance(closed, durable, open);
        stored
    }

    /// Gives the replies whose rounds have an outcome.
    fn advance(&self, closed: u64, durable: u64, open: u64) {
        let acks = &self.node.followers.acks;
        self.rounds.give_up(acks.given_up(), closed);
        self.rounds.advance(closed, durable, open);
        if self.rounds.has_given_up()
            && !self.node.health.replica.is_following()
            && acks.has_floor()
        {
            self.rounds.forget_given_up();
        }
        // A client hears of a change behind the reply that it changes.
        self.deliver_shown();
        self.tell_news();
        self.release_held();
    }

    /// Sends a command to replicas that changes no data.
    pub(crate) fn say(&self, db: u32, words: &[&[u8]]) {
        self.say_words(|said| said.command(db, words.iter().copied()));
    }

    /// Adds to the words of the open round, if there is a stream.
    pub(crate) fn say_words(&self, say: impl FnOnce(&mut RoundWords)) {
        if self.node.followers.feed.is_on() {
            let mut partition = self.partition.borrow_mut();
            partition.store.words.want(true);
            say(&mut partition.store.words);
            drop(partition);
            self.commit_soon();
        }
    }

    /// Syncs the journal on this thread, because there is no other committer.
    fn sync_inline(&self, partition: &mut Partition) {
        if self.node.journal.durable() < partition.last_lsn()
            && let Err(error) = self.node.journal.sync_now()
        {
            self.rounds.fail_all(&error.to_string());
        }
        partition.observe_durable();
    }

    /// Returns true if replies wait until the rounds that they show are durable: on disk here and,
    /// with `repl-ack`, confirmed by replicas.
    pub(crate) fn is_always(&self) -> bool {
        self.settings().replies_wait_for_disk()
    }

    /// Commits whenever a commit is due, until the worker ends.
    pub(crate) async fn run_committer(self: Rc<Self>) {
        loop {
            self.commits.due.notified().await;
            if self.commits.pending.get() {
                self.commit();
            }
        }
    }

    /// Follows the journal's durable lsn, until the worker ends.
    pub(crate) async fn run_settler(self: Rc<Self>, durable: Arc<Notify>) {
        loop {
            durable.notified().await;
            self.settle_rounds();
        }
    }

    /// Gives the replies that have an outcome now: records are durable, or replies are given up.
    pub(crate) fn settle_rounds(&self) {
        if self.rounds.has_to_give_up(self.node.followers.acks.given_up()) {
            // The open round, too.
            self.commit();
        }
        let mut partition = self.partition.borrow_mut();
        let durable = partition.observe_durable();
        let (closed, open) = (partition.closed(), partition.store.round());
        drop(partition);
        if let Some(reason) = self.node.journal.failed() {
            self.rounds.fail_all(&reason);
        }
        if self.node.journal.is_taken_over() && !self.node.ending.is_ending() {
            // The data in memory may be out of date.
            crate::log::silence_engines(self.settings().loglevel);
            self.node.ending.end(ShutdownRequest { now: true });
        }
        let away = self.node.journal.away();
        self.node.health.set_cut_off(away.is_some());
        let overdue = || self.node.followers.acks.is_overdue().then(rounds::unconfirmed);
        self.rounds.set_away(away.as_ref().map(rounds::unknown).or_else(overdue));
        self.advance(closed, durable, open);
    }

    /// Returns the rounds that show the record at `lsn`, which is in the journal: its number is
    /// closed with the open round, and does not fail with it.
    pub(crate) fn showing(&self, lsn: flagstone_storage::journal::Lsn) -> Shown {
        let mut partition = self.partition.borrow_mut();
        partition.note_lsn(lsn);
        let round = partition.store.stored_round();
        drop(partition);
        self.commit_soon();
        self.rounds.stored(round)
    }

    /// Waits until replies may be sent: until the rounds that they show are in the journal, in the
    /// mode `always` until they are durable.
    pub(crate) async fn wait_shown(&self, shown: &Shown) -> Result<(), RoundError> {
        if shown.round() == 0 {
            return Ok(());
        }
        let to_disk = self.is_always();
        self.rounds.wait(shown, to_disk).await;
        self.rounds.any_failure(shown, to_disk).map_or(Ok(()), Err)
    }

    /// Returns the reply of a command that did not run in place, once it may be sent.
    pub(crate) async fn settle_reply(&self, command: &Command, ran: Ran) -> Answer {
        let Err(error) = self.wait_shown(&ran.shown).await else { return ran.answer };
        self.stats().replaced(Some(command), ran.answer, Some(error))
    }
}
