//! What all workers of the process share.

mod checkpoints;
mod events;
pub mod limits;
mod stats;

pub use checkpoints::{Checkpoints, SaveStats};
pub use stats::{Counters, WorkerStats};
pub(crate) use stats::{MAX_ERRORS, OTHER_ERRORS, Tally, error_code};

use crate::clients::Clients;
use crate::config::{AppendFsync, ClientMemory, Config, Settings};
use crate::functions::Functions;
use crate::monitor::Monitors;
use crate::process;
use crate::pubsub::PubSub;
use crate::rates::Rates;
use crate::scripts::Scripts;
use crate::slowlog::SlowLog;
use crate::stalls::Stalls;
use crate::tracking::{Audience, Prefixes};
use flagstone_storage::clock::Clock;
use flagstone_storage::encoding::Library;
use flagstone_storage::engine::Upkeep;
use flagstone_storage::journal::{Journal, SyncMode};
use flagstone_storage::lease::{Lease, Unconfirmed};
use flagstone_storage::place::Requests;
use flagstone_storage::slot::slot_of;
use flagstone_storage::{Layout, Store};
use flagstone_wire::client_memory::{CLIENTS, Limit};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

/// How long writers wait for room while no engine takes rows, before their writes are refused.
pub const PRESSURE_LIMIT_MS: u64 = 5000;

/// Why writes are refused while there is no room for them.
pub const CHOKED: &str = "OOM the engine has taken no rows for seconds, or its disk is full: there is \
    no memory left for writes";

/// Why writes are refused while the journal's store is away.
pub const CUT_OFF: &str = "MISCONF The store of the journal does not answer, so that no write can be \
    stored. Commands that may modify the data set are refused until it does. The log says more.";

/// Why nothing that shows data is answered while another server may own it.
pub const DISOWNED: &str = "MASTERDOWN The store of the journal does not answer, so that another server \
    may have taken over, and serve-stale-data is set to 'no'.";

/// Why nothing that shows data is answered any more.
const TAKEN_OVER: &str = "MASTERDOWN This server is shutting down: it has released the data, or another \
    server has taken it over.";

/// Bytes that may wait for the store of a journal in a bucket, at least and at most.
const JOURNAL_MIN: u64 = 4 << 20;
const JOURNAL_MAX: u64 = 64 << 20;

/// Pending rows of more bytes than this are of no use: they are handed over faster than they come,
/// or not at all.
const PENDING_MAX: u64 = 1 << 30;

/// Bytes that are there whatever the data: threads, code, and SlateDB's buffers for files that it
/// writes, 10 MiB each. Small budgets keep a quarter for it.
const OVERHEAD: u64 = 128 << 20;

/// Units that run apart at the same time; more wait, before they hold anything. Each may have a VM.
pub const MAX_APART: usize = 8;

/// Bytes that all connections may take at least: a few large values on their way.
const CLIENTS_MIN: u64 = 32 << 20;

/// CLIENT PAUSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// Ms since the Unix epoch; 0: not paused.
    pub until_ms: u64,
    /// Only commands that may write wait.
    pub writes_only: bool,
}

/// How the node is to be shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownRequest {
    /// Close the engines without a last flush: the journal has everything.
    pub now: bool,
}

/// Other addresses to listen on.
pub struct ListenChange {
    pub settings: Arc<Settings>,
    /// Whether they are listened on, or why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// How the memory budget is split; bytes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Decoded values, all workers together.
    pub hot: usize,
    /// Pending rows, all shards together: beyond it, and what decoded values leave free, writers wait.
    pub pending: usize,
    /// Blocks of the engines' files.
    pub block_cache: u64,
    /// Their filters and indexes: a read of what is not cached here costs far more than one of a
    /// block.
    pub meta_cache: u64,
    /// What the engines gather before they flush; while a flush goes on, up to three times that.
    pub memtables: usize,
    /// What the engines read ahead when they merge files.
    pub merges: usize,
    /// The filters of keys; while one is made anew, up to twice that.
    pub presence: usize,
    /// What may wait for the store of a journal in a bucket; from half of it on writers wait.
    pub journal: usize,
    /// Commands that wait for locks or for data: beyond it, no connection has several of them.
    pub parked: usize,
    /// Channels and patterns that clients listen to.
    pub subscriptions: usize,
    /// Which keys clients have read that want to hear of their changes.
    pub tracking: usize,
    /// The prefixes of those that want to hear of keys that they have not read.
    pub prefixes: usize,
    /// The texts of scripts.
    pub scripts: usize,
    /// Libraries of functions.
    pub functions: usize,
    /// Each of the VMs that run them.
    pub script_vm: usize,
    /// Keys that clients watch.
    pub watches: usize,
}

impl Budget {
    /// Of what the process does not need for itself: five sixteenths for decoded values, an eighth
    /// for pending rows, a sixteenth each for blocks and memtables, and for filters and indexes too,
    /// but of a small budget up to an eighth; a sixty-fourth for merges, a thirty-second for the
    /// filters of keys. The rest is for what is being handed over or flushed, buffers, and what the
    /// allocator keeps. What pending rows have no use for decoded values get.
    pub fn new(settings: &Settings) -> Self {
        let total = settings.memory_budget - (settings.memory_budget / 4).min(OVERHEAD);
        let pending = (total / 8).min(PENDING_MAX);
        Self {
            hot: (total / 16 * 5 + (total / 8 - pending)) as usize,
            pending: pending as usize,
            block_cache: settings.block_cache_size.unwrap_or(total / 16),
            meta_cache: (total / 8).min(64 << 20).max(total / 16),
            memtables: (total / 16) as usize,
            merges: (total / 64) as usize,
            presence: (total / 32) as usize,
            journal: (total / 16).clamp(JOURNAL_MIN, JOURNAL_MAX) as usize,
            parked: (total / 32) as usize,
            subscriptions: (total / 16) as usize,
            tracking: (total / 64 * 3) as usize,
            prefixes: (total / 64) as usize,
            scripts: (total / 64) as usize,
            functions: (total / 64) as usize,
            script_vm: (total / 16) as usize,
            watches: (total / 64) as usize,
        }
    }

    /// Pending rows that a start replays before the engines get them: there are no decoded values yet.
    pub fn replay(&self) -> usize {
        self.pending + self.hot / 2
    }

    /// Gives decoded values what the memtables of so many shards have no use for.
    fn with_shards(mut self, shards: u16) -> Self {
        let most = Upkeep::default().memtable_bytes * usize::from(shards);
        let unused = self.memtables.saturating_sub(most);
        // One is written to, others are flushed; the allocator keeps more where more values change.
        self.hot += 2 * unused;
        self
    }
}

/// A coordinator that has not ended.
pub(crate) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The process: configuration, journal, workers, connections.
pub struct Node {
    pub config: Arc<Config>,
    pub layout: Arc<Layout>,
    pub clock: Clock,
    pub journal: Arc<dyn Journal>,
    /// Of the journal, if other servers may take it over.
    lease: Option<Arc<Lease>>,
    pub checkpoints: Checkpoints,
    /// All workers.
    pub workers: usize,
    /// Those that own shards; the rest only does network.
    pub shard_workers: usize,
    pub clients: Clients,
    /// Clients that wait for keys, watch them, or are told when they change.
    pub change_listeners: Arc<AtomicUsize>,
    /// Bytes that watched keys take.
    pub watched_bytes: AtomicUsize,
    /// The number of the last client that began to wait for keys.
    pub last_waiter: AtomicU64,
    pub pubsub: Arc<PubSub>,
    pub prefixes: Arc<Prefixes>,
    pub monitors: Arc<Monitors>,
    pub scripts: Scripts,
    /// Who runs apart has one of these.
    pub apart: Semaphore,
    pub functions: Functions,
    pub stats: Vec<Arc<WorkerStats>>,
    pub rates: Rates,
    pub slowlog: SlowLog,
    /// To the store and to that of the journal, which may be the same.
    pub requests: [Arc<Requests>; 2],
    pub started: Instant,
    pub started_ms: u64,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    pub next_generation: AtomicU64,
    /// Set by DEBUG SET-ACTIVE-EXPIRE.
    pub active_expire: AtomicBool,
    pub budget: Budget,
    /// There is one committer, which syncs the journal itself.
    pub inline_sync: bool,
    /// When an engine took rows last while there are more pending ones than the budget allows, or the
    /// journal's store took records while many wait, so that writers wait: ms since the Unix epoch, 0
    /// when there is room.
    pub pressure_since_ms: AtomicU64,
    /// Shards that cannot store rows.
    pub stalls: Stalls,
    /// Coordinators that have not ended, and workers whose connections have at the end of the server.
    coordinators: Arc<AtomicUsize>,
    quiet_workers: AtomicUsize,
    /// Records that the start has replayed.
    pub replayed: u64,
    /// More memory is in use than `maxmemory` allows.
    over_maxmemory: AtomicBool,
    /// The journal's store is away.
    cut_off: AtomicBool,
    paused: AtomicBool,
    pause: Mutex<Pause>,
    pub(crate) unpaused: Notify,
    pub(crate) shutdown: tokio::sync::watch::Sender<Option<ShutdownRequest>>,
    /// CONFIG SET is carried out once at a time.
    pub(crate) configuring: tokio::sync::Mutex<()>,
    /// Who listens.
    listener: OnceLock<mpsc::Sender<ListenChange>>,
    /// The Tokio runtime of everything that is not a worker's.
    pub background: tokio::runtime::Handle,
}

impl Node {
    /// What a new node begins with.
    #[allow(clippy::too_many_arguments, reason = "each is a part of the node")]
    pub fn new(
        config: Arc<Config>,
        checkpoints: Checkpoints,
        workers: usize,
        shard_workers: usize,
        next_generation: u32,
        requests: [Arc<Requests>; 2],
        libraries: Vec<Library>,
        background: tokio::runtime::Handle,
    ) -> Result<Self, String> {
        let source = &checkpoints.source;
        let (layout, clock) = (source.layout.clone(), source.clock.clone());
        let journal = source.journal.clone();
        let started_ms = clock.now_ms();
        let budget = Budget::new(&config.settings()).with_shards(layout.shards);
        CLIENTS.set_limit(Self::client_memory_limit(&config.settings()));
        let stalls = Stalls::new(layout.shards);
        let stats = (0..workers).map(|_| Arc::default()).collect();
        Ok(Self {
            functions: Functions::new(libraries, budget.functions)?,
            pubsub: Arc::new(PubSub::new(workers, budget.subscriptions)),
            change_listeners: Arc::default(),
            watched_bytes: AtomicUsize::new(0),
            prefixes: Arc::new(Prefixes::new(budget.prefixes)),
            scripts: Scripts::new(budget.scripts, budget.script_vm),
            apart: Semaphore::new(MAX_APART),
            budget,
            inline_sync: workers == 1 && !journal.is_remote(),
            config,
            layout,
            clock,
            lease: journal.lease(),
            journal,
            checkpoints,
            workers,
            shard_workers,
            clients: Clients::default(),
            last_waiter: AtomicU64::new(0),
            monitors: Arc::default(),
            stats,
            rates: Rates::default(),
            slowlog: SlowLog::default(),
            requests,
            started: Instant::now(),
            started_ms,
            run_id: (0..40)
                .map(|_| char::from(b"0123456789abcdef"[rand::random_range(0..16)]))
                .collect(),
            next_generation: AtomicU64::new(u64::from(next_generation)),
            active_expire: AtomicBool::new(true),
            pressure_since_ms: AtomicU64::new(0),
            stalls,
            coordinators: Arc::default(),
            quiet_workers: AtomicUsize::new(0),
            replayed: 0,
            over_maxmemory: AtomicBool::new(false),
            cut_off: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            pause: Mutex::default(),
            unpaused: Notify::new(),
            shutdown: tokio::sync::watch::channel(None).0,
            configuring: tokio::sync::Mutex::new(()),
            listener: OnceLock::new(),
            background,
        })
    }

    /// A coordinator begins; it has ended when what comes back is dropped.
    pub(crate) fn coordinator(&self) -> UnderWay {
        self.coordinators.fetch_add(1, Ordering::SeqCst);
        UnderWay(self.coordinators.clone())
    }

    /// The connections of a worker have ended: it begins no more coordinators.
    pub(crate) fn is_quiet(&self) {
        self.quiet_workers.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether no coordinator is left, on any worker, and none will begin.
    pub(crate) fn is_settled(&self) -> bool {
        self.quiet_workers.load(Ordering::SeqCst) >= self.workers
            && self.coordinators.load(Ordering::SeqCst) == 0
    }

    /// Whether writers have to wait until rows are handed over.
    pub fn is_pressed(&self) -> bool {
        self.pressure_since_ms.load(Ordering::Relaxed) != 0
    }

    /// Whether the engines have not taken rows for so long that writes are refused.
    pub fn is_choked(&self) -> bool {
        let since_ms = self.pressure_since_ms.load(Ordering::Relaxed);
        since_ms != 0 && self.clock.now_ms().saturating_sub(since_ms) > PRESSURE_LIMIT_MS
    }

    /// Whether more memory is in use than `maxmemory` allows.
    pub fn is_over_maxmemory(&self) -> bool {
        self.over_maxmemory.load(Ordering::Relaxed)
    }

    /// Whether so many commands are parked on a worker that no connection may add several.
    pub fn is_crowded(&self, worker: usize) -> bool {
        let bytes = self.stats[worker].parked_bytes.load(Ordering::Relaxed);
        bytes > (self.budget.parked / self.shard_workers) as u64
    }

    /// Whether the journal's store is away, so that no write can be stored.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Relaxed)
    }

    pub fn set_cut_off(&self, cut_off: bool) {
        self.cut_off.store(cut_off, Ordering::Relaxed);
    }

    /// Whether it is certain that no other server has taken the data over.
    pub fn is_owner(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.holds())
    }

    /// Waits until that is certain.
    ///
    /// # Errors
    /// Why the client gets no reply that shows data: another server has it, or may have it.
    pub async fn confirm_owner(&self) -> Result<(), &'static str> {
        let Some(lease) = &self.lease else { return Ok(()) };
        let settings = self.config.settings();
        // The same command may have waited for the store already, as long as commands may.
        let limit = match self.is_cut_off() {
            true => Duration::ZERO,
            false => Duration::from_millis(settings.store_timeout_ms),
        };
        match lease.confirm(limit).await {
            Err(Unconfirmed::Away) if settings.serve_stale_data => Ok(()),
            Err(Unconfirmed::Away) => Err(DISOWNED),
            Err(Unconfirmed::Lost) => Err(TAKEN_OVER),
            Ok(()) => Ok(()),
        }
    }

    /// Whether commands need not wait for that, as others have waited in vain.
    pub fn is_disowned(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_away() && !lease.holds())
    }

    /// How long it is certain without an answer from the store, in ms; `None`: a local journal.
    pub fn lease_left_ms(&self) -> Option<u64> {
        self.lease.as_ref().map(|lease| u64::try_from(lease.left().as_millis()).unwrap_or(u64::MAX))
    }

    /// What connections may take (`maxmemory-clients`). With `auto` a single one may also send or
    /// be sent one value of any length that is allowed.
    pub fn client_memory_limit(settings: &Settings) -> Limit {
        let percent_of = match settings.maxmemory {
            0 => settings.memory_budget,
            maxmemory => maxmemory,
        };
        let strict = |all| Limit { all, single: all };
        match settings.maxmemory_clients {
            ClientMemory::Auto => {
                let all = (settings.memory_budget / 8).max(CLIENTS_MIN);
                // A buffer that grows has up to twice what is in it.
                let value = (settings.data.proto_max_bulk_len as u64).saturating_mul(2);
                Limit { all, single: all.saturating_add(value) }
            }
            ClientMemory::Bytes(bytes) => strict(bytes),
            ClientMemory::Percent(percent) => strict(percent_of / 100 * u64::from(percent)),
        }
    }

    /// Compares the memory in use with `maxmemory`: by the clock, and when that is set.
    pub fn look_at_memory(&self, settings: &Settings) {
        let is_over = limits::watches_memory(settings) && process::resident() > settings.maxmemory;
        self.over_maxmemory.store(is_over, Ordering::Relaxed);
    }

    /// Bytes of rows that the engines have yet to get, about.
    pub fn pending_bytes(&self) -> u64 {
        self.stats.iter().map(|stats| stats.pending_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Bytes of rows beyond which writers wait: their budget, and what decoded values leave free.
    pub fn pending_limit(&self) -> u64 {
        let lent = self.stats.iter().map(|stats| stats.loan_bytes.load(Ordering::Relaxed));
        self.budget.pending as u64 + lent.sum::<u64>()
    }

    /// Operations that a start would replay, as of some ms ago.
    pub fn unflushed_ops(&self) -> u64 {
        self.stats.iter().map(|stats| stats.unflushed_ops.load(Ordering::Relaxed)).sum()
    }

    /// The lsn up to which the engines have been given all rows, as of some ms ago.
    pub fn handed(&self) -> u64 {
        let handed = self.stats.iter().map(|stats| stats.handed.load(Ordering::Relaxed));
        handed.min().unwrap_or_default()
    }

    /// The worker that owns a key.
    pub fn owner(&self, key: &[u8]) -> usize {
        self.worker_of(slot_of(key))
    }

    /// Those that hear of invalid keys, with the limits of these settings.
    pub fn audience<'a>(&'a self, settings: &'a Settings) -> Audience<'a> {
        Audience {
            clients: &self.clients,
            pubsub: &self.pubsub,
            limits: &settings.client_output_buffer_limit,
            now_ms: self.clock.now_ms(),
        }
    }

    /// The worker that owns a slot.
    pub fn worker_of(&self, slot: u16) -> usize {
        usize::from(self.layout.shard_of(slot)) % self.shard_workers
    }

    /// The pause that holds now, if any.
    pub fn pause(&self) -> Option<Pause> {
        if !self.paused.load(Ordering::Relaxed) {
            return None;
        }
        let pause = *self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        (pause.until_ms > self.clock.now_ms()).then_some(pause)
    }

    /// Begins a command on a store. While clients are paused nothing is deleted because it has expired.
    pub fn begin(&self, store: &mut Store, now_ms: u64, touch: bool) {
        store.begin(now_ms, touch);
        if self.pause().is_some() {
            store.keep_expired();
        }
    }

    /// Begins, changes or (with `until_ms` 0) ends a pause.
    pub fn set_pause(&self, pause: Pause) {
        *self.pause.lock().unwrap_or_else(PoisonError::into_inner) = pause;
        self.paused.store(pause.until_ms != 0, Ordering::Relaxed);
        self.unpaused.notify_waiters();
    }

    /// Waits until no pause holds for a command (`may_write`: it may change something).
    pub async fn wait_unpaused(&self, may_write: bool) {
        while let Some(pause) = self.pause() {
            if pause.writes_only && !may_write {
                return;
            }
            let left = pause.until_ms.saturating_sub(self.clock.now_ms()).max(1);
            let changed = self.unpaused.notified();
            let _ = tokio::time::timeout(Duration::from_millis(left), changed).await;
        }
    }

    /// For who listens: what is to be changed. To be called once.
    pub(crate) fn listen_changes(&self) -> mpsc::Receiver<ListenChange> {
        let (sender, receiver) = mpsc::channel(1);
        let _ = self.listener.set(sender);
        receiver
    }

    /// Listens on the addresses of these settings.
    ///
    /// # Errors
    /// Why not; then everything is as it was.
    pub(crate) async fn listen(&self, settings: Arc<Settings>) -> Result<(), String> {
        const ENDING: &str = "the server is being shut down";
        let listener = self.listener.get().ok_or(ENDING)?;
        let (done, answer) = oneshot::channel();
        listener.send(ListenChange { settings, done }).await.map_err(|_| ENDING)?;
        answer.await.unwrap_or_else(|_| Err(ENDING.to_owned()))
    }

    /// Begins the shutdown of the whole node; `None` takes a request back that has not begun.
    pub fn request_shutdown(&self, request: ShutdownRequest) {
        self.shutdown.send_replace(Some(request));
    }

    /// Whether the node is being shut down.
    pub fn is_ending(&self) -> bool {
        self.shutdown.borrow().is_some()
    }

    /// Changes to the data since the start.
    pub fn changes(&self) -> u64 {
        self.stats.iter().map(|stats| stats.changes.load(Ordering::Relaxed)).sum()
    }

    /// CONFIG RESETSTAT.
    pub fn reset_stats(&self) {
        for stats in &self.stats {
            stats.reset();
        }
        self.clients.accepted.store(0, Ordering::Relaxed);
        self.clients.rejected.store(0, Ordering::Relaxed);
        self.clients.too_slow.store(0, Ordering::Relaxed);
    }

    /// The durability mode a reply must wait for.
    pub fn appendfsync(&self) -> AppendFsync {
        self.config.settings().appendfsync
    }

    /// Makes the journal follow the configuration.
    pub fn apply_appendfsync(&self) {
        self.journal.set_mode(sync_mode(self.appendfsync()));
        // Whoever waits by the new mode for what was written in the old one.
        self.journal.request_sync(self.journal.end());
    }
}

/// The journal's name of a mode.
pub fn sync_mode(mode: AppendFsync) -> SyncMode {
    match mode {
        AppendFsync::Always => SyncMode::Always,
        AppendFsync::Everysec => SyncMode::EverySec,
        AppendFsync::No => SyncMode::No,
    }
}
