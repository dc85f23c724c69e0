//! The state that all workers of the process share: configuration, journal, lease, clients,
//! counters, and the memory budget. It may name every room below the workers, but no worker.

mod budget;
mod checkpoints;
mod data_set;
mod denials;
mod ending;
mod engines;
mod events;
mod health;
mod histogram;
pub mod limits;
mod listeners;
mod pace;
mod parts;
mod pauses;
mod shard_workers;
mod squeeze;
mod start;
mod stats;

pub use budget::Budget;
pub use checkpoints::{Checkpoints, SaveStats};
pub use data_set::DataSet;
pub(crate) use data_set::EMPTY_BYTES;
pub use ending::{Ending, ShutdownRequest};
pub use engines::AttachedEngines;
pub use health::Health;
pub use histogram::{Histogram, Times};
pub use listeners::ChangeListeners;
pub use pace::Pace;
pub use parts::{Access, Broadcast, Code, Figures, Ports, Pressure};
pub use pauses::{ClientPause, PauseReason, Pauses};
pub use squeeze::Squeeze;
pub use start::StartFacts;
pub use stats::{
    AudienceStats, ByCommand, Counters, EngineStats, LoopStats, StoreStats, WorkerStats,
};
pub(crate) use stats::{MAX_ERRORS, OTHER_ERRORS, Tally, error_code};

use crate::acl::{Accounts, DenialLog};
use crate::blocking::PostponedKeys;
use crate::clients::{ClientState, Clients};
use crate::cluster::Cluster;
use crate::command::{Outcome, Request, RoundError};
use crate::config::{AppendFsync, ClientMemory, Config, Settings};
use crate::followers::{Followers, max_lag_s};
use crate::functions::SharedLibraries;
use crate::pubsub::PubSub;
use crate::tls::TlsSlot;
use crate::tracking::Audience;
use flagstone_storage::clock::Clock;
use flagstone_storage::cluster::ClusterSeat;
use flagstone_storage::directory::ShardSplitter;
use flagstone_storage::encoding::{Library, SourcePosition};
use flagstone_storage::engine::MergePace;
use flagstone_storage::feed::Feed;
use flagstone_storage::journal::{Journal, SyncMode};
use flagstone_storage::latency::LATENCY;
use flagstone_storage::place::Requests;
use flagstone_storage::slot::{NotOwned, slot_of};
use flagstone_storage::words::RemovalCause;
use flagstone_storage::{Layout, Store};
use flagstone_wire::client_memory::{CLIENTS, Limit};
use shard_workers::ShardWorkers;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Maximum number of units that run on threads of their own at a time; further ones wait before
/// they hold any lock. Each may have a VM.
pub const MAX_DETACHED: usize = 8;

/// Number of operations that a start replays in about a second.
pub(crate) const REPLAYED_OPS_PER_S: u64 = 2_500_000;

/// Minimum memory in bytes for all connections: a few large values in transit.
const CLIENTS_MIN: u64 = 32 << 20;

/// A request to listen on other addresses.
pub struct ListenChange {
    pub settings: Arc<Settings>,
    /// Receives the result, with the reason of a failure.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// State of the node that the shards have stored beside the data.
#[derive(Debug, Default)]
pub struct StoredState {
    pub libraries: Vec<Library>,
    pub source: SourcePosition,
    pub feed: Arc<Feed>,
}

/// The parts of a node that the start of the process makes.
pub struct NodeParts {
    pub config: Arc<Config>,
    pub accounts: Arc<Accounts>,
    pub checkpoints: Checkpoints,
    pub workers: usize,
    pub shard_workers: usize,
    pub next_generation: u32,
    pub requests: [Arc<Requests>; 2],
    pub stored: StoredState,
    pub splitter: Option<Arc<ShardSplitter>>,
    /// Its seat and its part in a cluster of several servers, if it is in one.
    pub joined: Option<(Arc<ClusterSeat>, Arc<Cluster>)>,
    pub surroundings: Surroundings,
}

/// The shared state of the process.
pub struct Node {
    pub config: Arc<Config>,
    pub layout: Arc<Layout>,
    pub clock: Clock,
    pub journal: Arc<dyn Journal>,
    pub checkpoints: Checkpoints,
    /// The engines of its shards.
    pub engines: AttachedEngines,
    /// Its part in a cluster of several servers, if it is in one.
    pub cluster: Option<Arc<Cluster>>,
    /// Number of all workers.
    pub workers: usize,
    /// Number of workers that own shards; the others only serve connections.
    pub shard_workers: usize,
    workers_of_shards: ShardWorkers,
    /// Splits shards, if the data is in a local directory of one server.
    pub splitter: Option<Arc<ShardSplitter>>,
    pub clients: Clients,
    /// Replicas of this server.
    pub followers: Followers,
    pub access: Access,
    pub broadcast: Broadcast,
    pub code: Code,
    pub figures: Figures,
    pub pressure: Pressure,
    pub ports: Ports,
    pub next_generation: AtomicU64,
    /// True unless DEBUG SET-ACTIVE-EXPIRE has switched active expiry off.
    pub active_expire: AtomicBool,
    /// True if each reply to a client that has never authenticated counts as a block of the
    /// reference's reply list (DEBUG CLIENT-ENFORCE-REPLY-LIST).
    pub replies_in_blocks: AtomicBool,
    /// True in the import mode: keys do not expire.
    pub imports: AtomicBool,
    /// True if there is only one committer, which syncs the journal itself.
    pub inline_sync: bool,
    pub health: Health,
    pub pauses: Pauses,
    /// Keys whose blocked clients are served later.
    pub postponed: PostponedKeys,
    pub ending: Ending,
    /// Serialises CONFIG SET.
    pub(crate) configuring: tokio::sync::Mutex<()>,
    /// Tokio runtime of everything that does not run on a worker.
    pub background: Handle,
}

/// Parts of the process that the node uses.
pub struct Surroundings {
    pub background: Handle,
    pub handshakes: Handle,
    pub tls: Arc<TlsSlot>,
}

impl Node {
    /// Creates the node at the start of the process.
    ///
    /// # Errors
    /// If a library of functions cannot be loaded.
    pub fn new(parts: NodeParts) -> Result<Self, String> {
        let NodeParts { config, accounts, checkpoints, workers, shard_workers, .. } = parts;
        let source = &checkpoints.source;
        let (layout, clock) = (source.layout.clone(), source.clock.clone());
        let journal = source.journal.clone();
        LATENCY.set_clock(clock.clone());
        LATENCY.set_threshold(config.settings().latency_monitor_threshold_ms);
        let budget = Budget::new(&config.settings()).with_shards(layout.shards());
        Self::limit_client_memory(&config.settings());
        let broadcast = Broadcast {
            listeners: ChangeListeners::new(budget.prefixes),
            pubsub: Arc::new(PubSub::new(workers, budget.subscriptions)),
            monitors: Arc::default(),
        };
        let cluster = parts.joined.as_ref().map(|(_, cluster)| cluster.clone());
        let shared = parts.joined.map(SharedLibraries::new);
        let code = Code::new(parts.stored.libraries, shared, &budget)?;
        let figures = Figures::new(workers, parts.requests, &clock);
        let pressure = Pressure {
            pace: Pace::default(),
            squeeze: Squeeze::default(),
            key_permits: Semaphore::new(budget.many_keys),
            budget,
        };
        apply_lazy_removals(&parts.stored.feed, &config.settings());
        let followers = Followers::new(parts.stored.feed);
        let Surroundings { background, handshakes, tls } = parts.surroundings;
        let ports = Ports { listener: OnceLock::new(), tls, handshakes };
        Ok(Self {
            health: Health::new(
                (journal.lease(), cluster.is_some()),
                clock.clone(),
                layout.shards(),
                shard_workers,
                (parts.stored.source, config.settings().replicaof.is_some()),
                followers.acks.clone(),
            ),
            pauses: Pauses::new(clock.clone()),
            postponed: PostponedKeys::default(),
            ending: Ending::new(workers),
            imports: AtomicBool::new(config.settings().import_mode),
            inline_sync: workers == 1 && !journal.is_remote(),
            config,
            layout,
            clock,
            journal,
            engines: AttachedEngines::of(&checkpoints.source.engines()),
            checkpoints,
            cluster,
            workers,
            shard_workers,
            workers_of_shards: ShardWorkers::new(shard_workers),
            splitter: parts.splitter,
            clients: Clients::default(),
            followers,
            access: Access { accounts, denials: DenialLog::default() },
            broadcast,
            code,
            figures,
            pressure,
            ports,
            next_generation: AtomicU64::new(u64::from(parts.next_generation)),
            active_expire: AtomicBool::new(true),
            replies_in_blocks: AtomicBool::new(false),
            configuring: tokio::sync::Mutex::new(()),
            background,
        })
    }

    /// Returns true if the commands parked on a worker take so much memory that a connection may
    /// have only one of them.
    pub fn is_crowded(&self, worker: usize) -> bool {
        let bytes = self.figures.stats[worker].parked_bytes.load(Ordering::Relaxed);
        bytes > (self.pressure.budget.parked / self.shard_workers) as u64
    }

    /// Applies the limits of the memory that connections may take. Replies to clients that are never closed
    /// for it (CLIENT NO-EVICT) have those of `auto`, if these are wider.
    pub fn limit_client_memory(settings: &Settings) {
        let (limit, own) =
            (Self::client_memory_limit(settings), Self::own_client_memory_limit(settings));
        let spared = Limit { all: own.all.max(limit.all), single: own.single.max(limit.single) };
        CLIENTS.set_limit(limit, spared);
    }

    /// Returns the limits of `maxmemory-clients auto`.
    fn own_client_memory_limit(settings: &Settings) -> Limit {
        let all = (settings.memory_budget / 8).max(CLIENTS_MIN);
        // A buffer that grows has up to twice the capacity of its contents.
        let value = (settings.data.proto_max_bulk_len as u64).saturating_mul(2);
        Limit { all, single: all.saturating_add(value) }
    }

    /// Returns the memory that connections may take (`maxmemory-clients`). With `auto`, one
    /// connection may also receive or send one value of the maximum length.
    pub fn client_memory_limit(settings: &Settings) -> Limit {
        let percent_of = match settings.maxmemory {
            0 => settings.memory_budget,
            maxmemory => maxmemory,
        };
        let strict = |all| Limit { all, single: all };
        match settings.maxmemory_clients {
            ClientMemory::Auto => Self::own_client_memory_limit(settings),
            ClientMemory::Bytes(bytes) => strict(bytes),
            ClientMemory::Percent(percent) => {
                let bytes = u128::from(percent_of) * u128::from(percent) / 100;
                strict(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }

    /// Returns the approximate number of bytes of rows that are not handed over yet.
    pub fn pending_bytes(&self) -> u64 {
        self.figures
            .stats
            .iter()
            .map(|stats| stats.engine.pending_bytes.load(Ordering::Relaxed))
            .sum()
    }

    /// Returns the bytes of pending rows beyond which writers wait: their budget, and the memory
    /// that decoded values lend.
    pub fn pending_limit(&self) -> u64 {
        let lent =
            self.figures.stats.iter().map(|stats| stats.engine.loan_bytes.load(Ordering::Relaxed));
        self.pressure.budget.pending as u64 + lent.sum::<u64>()
    }

    /// Returns the greatest use of an engine's room for files of level 0, as of some ms ago.
    pub fn level0_use(&self) -> f64 {
        let used = self
            .figures
            .stats
            .iter()
            .map(|stats| stats.engine.level0_permille.load(Ordering::Relaxed));
        used.max().unwrap_or_default() as f64 / 1000.0
    }

    /// Returns the greatest part of the time that a worker waits for a CPU, as of some ms ago.
    pub fn cpu_wait(&self) -> f64 {
        let waits =
            self.figures.stats.iter().map(|stats| stats.cpu_wait_permille.load(Ordering::Relaxed));
        waits.max().unwrap_or_default() as f64 / 1000.0
    }

    /// Returns the pace of the engines' merges; `None` if the node has no engine.
    pub fn merge_pace(&self) -> Option<Arc<MergePace>> {
        self.engines.any().map(|engine| engine.merge_pace().clone())
    }

    /// Returns the number of operations that a start would replay, as of some ms ago.
    pub fn unflushed_ops(&self) -> u64 {
        self.figures
            .stats
            .iter()
            .map(|stats| stats.engine.unflushed_ops.load(Ordering::Relaxed))
            .sum()
    }

    /// Returns the lsn up to which the engines have taken all rows, as of some ms ago.
    pub fn handed(&self) -> u64 {
        let handed =
            self.figures.stats.iter().map(|stats| stats.engine.handed.load(Ordering::Relaxed));
        handed.min().unwrap_or_default()
    }

    /// Returns the worker that owns a key.
    pub fn owner(&self, key: &[u8]) -> usize {
        self.worker_of(slot_of(key))
    }

    /// Returns the clients that hear of invalidated keys, with the limits of these settings.
    pub fn audience<'a>(&'a self, settings: &'a Settings) -> Audience<'a> {
        Audience {
            clients: &self.clients,
            pubsub: &self.broadcast.pubsub,
            limits: &settings.client_output_buffer_limit,
            now_ms: self.clock.now_ms(),
        }
    }

    /// Returns the id of the node in a cluster: 40 hexadecimal digits, which stay the same as long as
    /// the local directory, or the data directory of a cluster of one node.
    pub fn cluster_id(&self) -> String {
        use sha1::{Digest, Sha1};
        if let Some(cluster) = &self.cluster {
            return cluster.node().to_string();
        }
        let mut hash = Sha1::new();
        hash.update(self.layout.seed.to_be_bytes());
        hash.update(self.checkpoints.source.origin.to_be_bytes());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the worker that owns a slot.
    #[inline]
    pub fn worker_of(&self, slot: u16) -> usize {
        self.worker_of_shard(self.layout.shard_of(slot))
    }

    /// Returns the worker that owns a shard.
    #[inline]
    pub fn worker_of_shard(&self, shard: u16) -> usize {
        self.workers_of_shards.of(shard)
    }

    /// Makes a shard that is new that of a worker. Its slots become its own behind that.
    pub(crate) fn give_shard(&self, shard: u16, worker: usize) {
        self.workers_of_shards.set(shard, worker);
    }

    /// Returns the error of a command on a key whose shard is not attached here. `secured`: the client uses
    /// TLS; `None`: that is not known, and it is to ask again.
    pub fn not_owned(&self, NotOwned { slot }: NotOwned, secured: Option<bool>) -> RoundError {
        let text = match (&self.cluster, secured) {
            (Some(cluster), Some(secured)) => cluster.refusal(slot, secured),
            _ => format!("TRYAGAIN The shard of slot {slot} is not served here at present"),
        };
        RoundError { text, outcome: Outcome::Refused }
    }

    /// Begins a request on a store.
    pub fn begin_request(&self, store: &mut Store, now_ms: u64, request: &Request) {
        self.begin(store, now_ms, request.touch);
        if request.sees_expired {
            store.see_expired();
        }
        if request.is_of_stream() {
            store.obey();
        }
    }

    /// Applies `import-mode`.
    pub fn apply_import_mode(&self) {
        let imports = self.config.settings().import_mode;
        if self.imports.swap(imports, Ordering::Relaxed) && !imports {
            self.clients.all().iter().for_each(|client| client.set(ClientState::IMPORT, false));
        }
    }

    /// Applies `lazyfree-lazy-*`.
    pub fn apply_lazy_removals(&self) {
        apply_lazy_removals(&self.followers.feed, &self.config.settings());
    }

    /// Begins a command on a store. While clients are paused, expired keys are not deleted, nor by a
    /// replica: its primary does that. A read of one must not wait for replicas that are not there,
    /// either.
    #[inline]
    pub fn begin(&self, store: &mut Store, now_ms: u64, touch: bool) {
        store.begin(now_ms, touch);
        let is_heard = self.followers.feed.is_on();
        store.words.want(is_heard);
        if is_heard {
            store.words.share_plain(&self.followers.feed.plain_removals);
        }
        store.count_accesses(self.health.data_set.counting());
        if self.keeps_expired() {
            store.keep_expired();
        }
    }

    /// Returns true if expired keys stay for now.
    #[inline]
    pub fn keeps_expired(&self) -> bool {
        self.pauses.now().is_some()
            || self.health.replica.is_following()
            || self.health.is_unconfirmed()
            || self.imports.load(Ordering::Relaxed)
    }

    /// Returns the receiver of changes to the listening addresses. To be called once.
    pub(crate) fn listen_changes(&self) -> mpsc::Receiver<ListenChange> {
        let (sender, receiver) = mpsc::channel(1);
        let _ = self.ports.listener.set(sender);
        receiver
    }

    /// Listens on the addresses of these settings.
    ///
    /// # Errors
    /// Returns the reason if an address cannot be listened on; the previous addresses stay.
    pub(crate) async fn listen(&self, settings: Arc<Settings>) -> Result<(), String> {
        const ENDING: &str = "the server is being shut down";
        let listener = self.ports.listener.get().ok_or(ENDING)?;
        let (done, answer) = oneshot::channel();
        listener.send(ListenChange { settings, done }).await.map_err(|_| ENDING)?;
        answer.await.unwrap_or_else(|_| Err(ENDING.to_owned()))
    }

    /// Returns the number of changes to the data since the start.
    pub fn changes(&self) -> u64 {
        self.figures.stats.iter().map(|stats| stats.store.changes.load(Ordering::Relaxed)).sum()
    }

    /// CONFIG RESETSTAT.
    pub fn reset_stats(&self) {
        for stats in &self.figures.stats {
            stats.reset();
        }
        let (clients, followers) = (&self.clients, &self.followers);
        let counters = [
            &clients.accepted,
            &clients.rejected,
            &clients.too_slow,
            &clients.evicted,
            &followers.bytes_out,
            &self.health.replica.bytes_in,
        ];
        for counter in counters.into_iter().chain(&followers.syncs) {
            counter.store(0, Ordering::Relaxed);
        }
        self.code.scripts.reset_evicted();
        self.checkpoints.reset_count();
        self.access.denials.reset_counts();
        self.figures.rates.reset();
    }

    /// Returns the durability mode, for which replies wait.
    pub fn appendfsync(&self) -> AppendFsync {
        self.config.settings().appendfsync
    }

    /// Applies `latency-monitor-threshold`.
    pub fn apply_latency_threshold(&self) {
        LATENCY.set_threshold(self.config.settings().latency_monitor_threshold_ms);
    }

    /// Returns the seconds of lag that a good replica may have.
    fn max_lag_s(&self) -> u64 {
        let is_awaited = self.followers.acks.is_active();
        max_lag_s(self.config.settings().min_replicas_max_lag, is_awaited).into()
    }

    /// Counts the replicas that `min-replicas-to-write` and `repl-ack` mean.
    pub fn count_good_replicas(&self) {
        self.health.set_good_replicas(self.followers.good(self.max_lag_s(), self.clock.now_ms()));
    }

    /// Looks if replicas confirm in time what is written.
    pub fn look_at_acks(&self) {
        self.followers.acks.look(self.journal.durable(), Duration::from_secs(self.max_lag_s()));
    }

    /// Applies `repl-ack` and `min-replicas-to-write`, after a change of these or of the role.
    pub fn apply_repl_ack(&self) {
        let settings = self.config.settings();
        let needed = settings.confirming();
        let is_following = self.health.replica.is_following();
        self.followers.acks.apply(settings.repl_ack, needed, is_following, self.journal.end());
        self.count_good_replicas();
    }

    /// Applies `journal-commit-window-ms` to the journal.
    pub fn apply_commit_window(&self) {
        let window = Duration::from_millis(self.config.settings().commit_window_ms);
        self.journal.set_commit_window(window);
        let gathers = self.journal.commit_window();
        if gathers < window {
            tracing::warn!(
                "writes gather for {} ms, not for journal-commit-window-ms: the journal is on a \
                local disk, or that is more than half of store-timeout-ms",
                gathers.as_millis()
            );
        }
    }

    /// Lets no write gather any more, as the server ends.
    pub fn end_commit_window(&self) {
        self.journal.set_commit_window(Duration::ZERO);
    }

    /// Applies `appendfsync` and `repl-ack` to the journal.
    pub fn apply_appendfsync(&self) {
        self.journal.set_mode(sync_mode(&self.config.settings()));
        // Syncs the records of the old mode, for replies that wait in the new one.
        self.journal.request_sync(self.journal.end());
    }
}

fn apply_lazy_removals(feed: &Feed, settings: &Settings) {
    let causes = [RemovalCause::Expired, RemovalCause::Evicted, RemovalCause::Command];
    for (cause, is_lazy) in causes.into_iter().zip(settings.lazy_removals) {
        feed.plain_removals.set(cause, !is_lazy);
    }
}

/// Returns the journal's name of the mode of some settings.
pub fn sync_mode(settings: &Settings) -> SyncMode {
    match settings.appendfsync {
        _ if settings.replies_wait_for_disk() => SyncMode::Always,
        AppendFsync::Always => SyncMode::Always,
        AppendFsync::Everysec => SyncMode::EverySec,
        AppendFsync::No => SyncMode::No,
    }
}
