//! Starts the node and its threads, accepts connections, and shuts down.
//!
//! At the shutdown, connections may write their last replies for some seconds, then the workers
//! end, and the shards are completed, so that the next start has little to replay. If an engine
//! cannot take its rows in time, they stay in the journal.

use crate::accept::accept_from;
use crate::acl::{Accounts, load_accounts};
use crate::checkpoints::run_periodically;
use crate::closing::{DRAIN, drain, leave_cluster};
use crate::cluster::Cluster;
use crate::commands;
use crate::config::{Compression, Config, Settings, SupervisedBy};
use crate::http::HttpPort;
use crate::listen::{self, Endpoint, Listening, Socket, SocketSets, addresses};
use crate::log;
use crate::membership::{self, Membership, Opened};
use crate::node::{
    Budget, Checkpoints, ListenChange, Node, NodeParts, PauseReason, ShutdownRequest, StoredState,
    Surroundings, sync_mode,
};
use crate::open_files;
use crate::replication::{self, primary};
use crate::routing;
use crate::signals::{self, Reloads, Stops};
use crate::supervisor::Supervisor;
use crate::tls::{self, TlsConfigs, TlsSlot};
use crate::traces;
use crate::worker::{self, Inbox, Mailbox, Peers, Worker, WorkerGone, mailbox};
use anyhow::{Context, Result};
use flagstone_storage::checkpoint::{Catalog, CheckpointSource};
use flagstone_storage::clock::Clock;
use flagstone_storage::cluster::ClusterSeat;
use flagstone_storage::directory::{Directory, OpenOptions, create_private_dir};
use flagstone_storage::engine;
use flagstone_storage::lease::LEASE;
use flagstone_storage::partition::Partition;
use flagstone_storage::place::Place;
use std::future::poll_fn;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions, Runtime};
use tokio::sync::{Notify, watch};

/// Least bytes of the stream for replicas that a start takes from the journal: a replica may have been
/// further behind than its backlog reaches.
const LEAST_BACKLOG: usize = 4 << 20;

/// Least number of threads for blocking work of the background, which write and read the files of
/// engines. The allocator keeps some memory for each.
const FILE_THREADS: usize = 8;

/// Time after which a thread for blocking work ends: an idle one holds the memory that it freed.
const IDLE_THREAD: Duration = Duration::from_millis(500);

/// A configuration that was checked and can be served.
pub struct Prepared {
    config: Arc<Config>,
    accounts: Arc<Accounts>,
    options: OpenOptions,
    tls: TlsConfigs,
}

/// Begins to log, and checks everything for which the configuration can be refused.
///
/// # Errors
/// The configuration cannot be served.
pub fn prepare(config: Config) -> Result<Prepared> {
    commands::install(config.renamed()).map_err(anyhow::Error::msg)?;
    let settings = config.settings();
    log::init(settings.loglevel, settings.logfile.clone().map(PathBuf::from))
        .with_context(|| format!("logfile {}", settings.logfile.as_deref().unwrap_or_default()))?;
    log::set_format(settings.log_format);
    for notice in config.notices() {
        tracing::warn!("{notice}");
    }
    fit_maxclients(&config, settings.maxclients)?;
    let settings = config.settings();
    let options = open_options(&settings)?;
    // The final number depends on the number of shards.
    listen::check(&settings)?;
    let accounts = load_accounts(&config, Budget::new(&settings).users)
        .map_err(anyhow::Error::msg)
        .context("users of access control")?;
    let tls = tls::load(&settings)?;
    Ok(Prepared { config: Arc::new(config), accounts: Arc::new(accounts), options, tls })
}

/// Lowers `maxclients` to fit the limit of open files.
fn fit_maxclients(config: &Config, wanted: u32) -> Result<()> {
    let Err(fitting) = open_files::make_room(wanted) else { return Ok(()) };
    let fitting = fitting.to_string();
    config.set(&[(b"maxclients", fitting.as_bytes())], true).map_err(anyhow::Error::msg)?;
    tracing::warn!(
        "the limit of open files is too low for maxclients {wanted}: it is {fitting} now; raise the \
        limit (ulimit -n)"
    );
    Ok(())
}

/// Runs the server until it is told to stop.
///
/// # Errors
/// It could not start, or not store everything at the shutdown.
pub fn run(prepared: Prepared) -> Result<()> {
    let Prepared { config, accounts, options, tls } = prepared;
    // The last ones are sent at the end.
    let _traces = traces::begin();
    signals::ignore_stray();
    let settings = config.settings();
    let background = Builder::new_multi_thread()
        .worker_threads(settings.background_workers)
        .max_blocking_threads(settings.background_workers.max(FILE_THREADS))
        .thread_keep_alive(IDLE_THREAD)
        .thread_name("background")
        .enable_all()
        .build()
        .context("starting the background runtime")?;
    let handshakes = Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("handshakes")
        .enable_all()
        .build()
        .context("starting the runtime of handshakes")?;
    let tls = Arc::new(TlsSlot::new(tls));
    // Open before the data is loaded, which may take long.
    let http = HttpPort::open(&config, &accounts, tls.clone())?;
    let supervisor = supervisor(settings.supervised);
    supervisor.iter().for_each(|supervisor| supervisor.tell("STATUS=Opening the data directory"));
    let clock = Clock::default();
    let archive = options.location().archive();
    let opening = background.spawn(membership::open(options, clock.clone(), config.clone()));
    let opened = background.block_on(opening).context("opening the data directory")??;
    let Opened { directory: opened, joined, locks: _dir_locks } = opened;
    let hidden = if settings.cluster_enabled { opened.keys_from(1) } else { 0 };
    if hidden > 0 {
        anyhow::bail!(
            "a cluster has one of the databases, and there are {hidden} keys in others: move them, or \
            set cluster-enabled to no"
        );
    }
    clock.look();
    // They take room, and are in nobody's way: the next checkpoint tries again.
    if let Err(error) = background.block_on(Catalog::of(&opened.store).clean(&opened.engines())) {
        tracing::warn!("unfinished checkpoints could not be removed: {error:#}");
    }
    let surroundings = Surroundings {
        background: background.handle().clone(),
        handshakes: handshakes.handle().clone(),
        tls,
    };
    let outside = (&background, http, supervisor.map(Arc::new));
    let data = (opened, archive, joined);
    let served = serve((&config, accounts), surroundings, data, clock, outside);
    handshakes.shutdown_background();
    background.shutdown_timeout(DRAIN);
    served
}

fn open_options(settings: &Settings) -> Result<OpenOptions> {
    let budget = Budget::new(settings);
    let store = match &settings.store {
        Some(url) => Place::parse(url).context("store")?,
        None => Place::local(&settings.dir)?,
    };
    let journal = settings.journal.as_deref().map(Place::parse).transpose().context("journal")?;
    Ok(OpenOptions {
        store,
        journal,
        store_timeout: Duration::from_millis(settings.store_timeout_ms),
        shards: settings.shards.map(|n| u16::try_from(n).unwrap_or(u16::MAX)),
        default_shards: std::thread::available_parallelism().map_or(1, usize::from) as u16,
        databases: settings.databases,
        segment_bytes: settings.journal_segment_size,
        archive: settings.journal_archive_retention_seconds != 0,
        mode: sync_mode(settings),
        everysec_bound: Duration::from_millis(settings.everysec_bound_ms),
        inline_sync: settings.workers == 1 && settings.net_workers == 0,
        block_cache_bytes: budget.block_cache,
        meta_cache_bytes: budget.meta_cache,
        memtable_bytes: budget.memtables,
        merge_bytes: budget.merges,
        merges: budget.merges_at_once,
        compression: match settings.compression {
            Compression::None => None,
            Compression::Lz4 => Some(engine::Compression::Lz4),
            Compression::Zstd => Some(engine::Compression::Zstd),
        },
        presence_bytes: budget.presence,
        replay_bytes: budget.replay(),
        feed_bytes: settings.repl_backlog_size.max(LEAST_BACKLOG),
        journal_bytes: budget.journal,
        lease: LEASE,
        cache: (settings.store_cache_size > 0)
            .then(|| (settings.dir.join("store-cache"), settings.store_cache_size)),
    })
}

/// Returns the parts of an open directory of which checkpoints are taken.
fn checkpoint_source(opened: &Directory, settings: &Settings, clock: Clock) -> CheckpointSource {
    CheckpointSource {
        store: opened.store.clone(),
        scratch: settings.dir.clone(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines().into(),
        clock,
    }
}

fn stored_state(opened: &mut Directory) -> StoredState {
    StoredState {
        libraries: std::mem::take(&mut opened.libraries),
        source: std::mem::take(&mut opened.source),
        feed: opened.feed.clone(),
    }
}

/// Makes the local directory: with the data in a bucket, nothing else does.
fn make_dir(settings: &Settings) {
    let dir = &settings.dir;
    if let Err(error) = create_private_dir(dir) {
        tracing::warn!(dir = %dir.display(), "the directory cannot be made: {error}");
    }
}

fn serve(
    (config, accounts): (&Arc<Config>, Arc<Accounts>),
    surroundings: Surroundings,
    (mut opened, archive, joined): OpenData,
    clock: Clock,
    (background, http, supervisor): Outside<'_>,
) -> Result<()> {
    let settings = &config.settings();
    let shard_workers = settings.workers.clamp(1, usize::from(opened.layout.shards()));
    let total = shard_workers + settings.net_workers;
    let net = if settings.net_workers == 0 { 0..total } else { shard_workers..total };
    let (mailboxes, inboxes): (Vec<Mailbox>, Vec<Inbox>) = (0..total).map(|_| mailbox()).unzip();
    let parts = NodeParts {
        config: config.clone(),
        accounts,
        checkpoints: Checkpoints::new(checkpoint_source(&opened, settings, clock), archive),
        workers: total,
        shard_workers,
        next_generation: opened.generations.next,
        requests: [&opened.store, &opened.journal_place].map(|place| place.requests().clone()),
        stored: stored_state(&mut opened),
        splitter: opened.splitter.take(),
        joined: joined.clone(),
        surroundings,
    };
    let node = Arc::new(new_node(parts, opened.replayed, supervisor.is_some())?);
    node.apply_commit_window();
    primary::resume(&node, opened.feed_tail.take());
    let peers = Arc::new(Peers::new(mailboxes, shard_workers));
    let (listening, sockets) = Listening::begin(settings.clone(), net.clone())?;
    let endpoints: Vec<Endpoint> = listening.endpoints().cloned().collect();
    let (stop, stopped) = watch::channel(false);
    let store = opened.store.clone();
    let (partitions, locks) = opened.into_partitions(shard_workers, total);
    // Before anything announces that the server is ready.
    let mut stops = background.block_on(async { Stops::catch() });
    background.spawn(serve_reloads(node.clone()));
    let common = Common { node: node.clone(), peers: peers.clone(), net, stopped };
    let threads = common.spawn_workers(inboxes, partitions, sockets)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = shard_workers,
        workers_are = settings.workers_reason,
        net_workers = settings.net_workers,
        background_workers = settings.background_workers,
        shards = node.layout.shards(),
        memory_budget = settings.memory_budget,
        appendfsync = settings.appendfsync.as_str(),
        %store,
        "Server initialized"
    );
    let _pid_file = settings.pidfile.as_deref().and_then(PidFile::write);
    make_dir(settings);
    let begun = background.block_on(replication::begin(&node, &peers));
    begun.map_err(anyhow::Error::msg).context("the position of the replication")?;
    http.iter().for_each(|http| http.show(node.clone(), peers.clone()));
    addresses::write(&settings.dir, endpoints.iter());
    say_ready(&endpoints);
    if let Some(supervisor) = &supervisor {
        supervisor.tell("READY=1\nSTATUS=Ready to accept connections");
        let proving = prove_health(supervisor.clone(), node.clone(), peers.clone());
        background.spawn(proving);
    }
    background.spawn(serve_changes(listening, node.clone(), peers.clone()));
    background.spawn(run_periodically(node.clone()));
    background.spawn(primary::run_feeder(node.clone(), peers.clone()));
    let membership = joined.map(|joined| Membership::begin(joined, node.clone(), peers.clone()));
    // Long-running scripts see its end, whatever asked for it.
    let (number, request) = background.block_on(wait_for_stop(&node, &peers, &mut stops));
    background.spawn(hurry_at_signal(node.clone(), stops, number));
    supervisor.iter().for_each(|supervisor| supervisor.tell("STOPPING=1\nSTATUS=Shutting down"));
    http.iter().for_each(HttpPort::end);
    membership.iter().for_each(|it| background.block_on(leave_cluster(it, &node, request)));
    stop.send_replace(true);
    let drained = drain(threads, &node, background);
    membership.iter().for_each(|it| background.block_on(it.release(drained.is_ok())));
    // Until now the HTTP port has told why nothing is served.
    drop((locks, http));
    drained.and_then(|()| node.ending.outcome())
}

fn new_node(parts: NodeParts, replayed: u64, is_supervised: bool) -> Result<Node> {
    let mut node =
        Node::new(parts).map_err(anyhow::Error::msg).context("libraries of functions")?;
    node.figures.start.replayed = replayed;
    if is_supervised {
        node.figures.start.supervised = SupervisedBy::Systemd.as_str();
    }
    Ok(node)
}

/// An open directory, the place of its journal's archive, and the seat in a cluster.
type OpenData = (Directory, Place, Option<(Arc<ClusterSeat>, Arc<Cluster>)>);

/// The parts of the process around the node.
type Outside<'a> = (&'a Runtime, Option<HttpPort>, Option<Arc<Supervisor>>);

/// Returns the service manager that is to be told of the server's state, if there is one.
fn supervisor(wanted: SupervisedBy) -> Option<Supervisor> {
    if wanted == SupervisedBy::No {
        return None;
    }
    match Supervisor::of_process() {
        Ok(Some(supervisor)) => return Some(supervisor),
        Ok(None) if wanted == SupervisedBy::Auto => {}
        Ok(None) => tracing::warn!(
            "systemd supervision requested or auto-detected, but NOTIFY_SOCKET is not set: there is \
            nobody to tell that the server is ready"
        ),
        Err(error) => tracing::warn!(%error, "the service manager cannot be told of the server"),
    }
    None
}

/// Tells the service manager that the server is alive, if it wants to hear that, each time that all
/// workers have answered.
async fn prove_health(supervisor: Arc<Supervisor>, node: Arc<Node>, peers: Arc<Peers>) {
    let Some(within) = Supervisor::watchdog() else { return };
    loop {
        let answers = async {
            for worker in 0..node.workers {
                peers.on_worker(worker, true, |_| async {}).await?;
            }
            Ok::<(), WorkerGone>(())
        };
        match tokio::time::timeout(within, answers).await {
            Ok(Ok(())) => supervisor.tell("WATCHDOG=1"),
            Ok(Err(_)) => return,
            Err(_) => tracing::error!("a worker does not answer: the service manager is not told"),
        }
        tokio::time::sleep(within / 3).await;
    }
}

/// Announces on standard output that the server is ready. Standard output may be closed.
fn say_ready(endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        let _ = writeln!(std::io::stdout(), "Ready to accept connections {endpoint}");
    }
}

/// Carries out changes of the listening addresses (CONFIG SET).
async fn serve_changes(mut listening: Listening, node: Arc<Node>, peers: Arc<Peers>) {
    let mut changes = node.listen_changes();
    while let Some(ListenChange { settings, done }) = changes.recv().await {
        let dir = settings.dir.clone();
        let changed = listening.change(settings, &peers, accept_from).await;
        addresses::write(&dir, listening.endpoints());
        // The caller may have ended.
        let _ = done.send(changed.map_err(|error| format!("{error:#}")));
    }
}

/// Loads certificates anew at each SIGHUP. The log needs nothing: its file is opened for each line.
async fn serve_reloads(node: Arc<Node>) {
    let Some(mut reloads) = Reloads::catch() else { return };
    while reloads.next().await {
        let _alone = node.configuring.lock().await;
        match tls::load(&node.config.settings()) {
            Ok(loaded) => {
                let what = if loaded.any() { ": certificates are loaded anew" } else { "" };
                node.ports.tls.replace(loaded);
                tracing::info!("SIGHUP{what}");
            }
            Err(error) => tracing::error!("SIGHUP: the old certificates stay: {error}"),
        }
    }
}

/// Waits for SIGTERM, SIGINT, SIGQUIT or SHUTDOWN, then for the replicas, unless SHUTDOWN NOW or a
/// signal insists on the end. SHUTDOWN ABORT takes a stop back that waits.
/// Returns the number of the stop, and how the node ends.
async fn wait_for_stop(node: &Node, peers: &Peers, stops: &mut Stops) -> (u64, ShutdownRequest) {
    loop {
        let stop = tokio::select! {
            signal = stops.wait() => {
                tracing::info!("{signal}: shutting down");
                node.ending.ask(ShutdownRequest { now: false })
            }
            stop = node.ending.asked() => {
                // The source of the request is in the log already.
                tracing::info!("shutting down");
                stop
            }
        };
        tokio::select! {
            () = primary::see_off(node, peers) => {}
            () = stops.insisted() => node.ending.hurry(stop),
            () = node.ending.insisted(stop) => {}
        }
        if let Some(request) = node.ending.begin(stop) {
            node.end_commit_window();
            return (stop, request);
        }
        stops.forget().await;
        node.pauses.release_writes(PauseReason::Shutdown);
    }
}

/// Ends a stop early that has begun, at a further signal that insists on the end.
async fn hurry_at_signal(node: Arc<Node>, mut stops: Stops, stop: u64) {
    stops.insisted().await;
    tracing::info!("the hand-over to the shards ends here, if it is still running");
    node.ending.hurry(stop);
}

/// Values that all workers start with.
struct Common {
    node: Arc<Node>,
    peers: Arc<Peers>,
    /// Workers that serve connections.
    net: std::ops::Range<usize>,
    stopped: watch::Receiver<bool>,
}

impl Common {
    fn spawn_workers(
        self,
        inboxes: Vec<Inbox>,
        partitions: Vec<Partition>,
        sockets: SocketSets,
    ) -> Result<Vec<JoinHandle<Result<Partition>>>> {
        let mut sockets = sockets.into_iter();
        let workers = inboxes.into_iter().zip(partitions).enumerate();
        let threads = workers.map(|(id, (inbox, partition))| {
            let sockets = self.net.contains(&id).then(|| sockets.next()).flatten();
            spawn_worker(Start {
                id,
                node: self.node.clone(),
                peers: self.peers.clone(),
                partition,
                inbox,
                sockets: sockets.unwrap_or_default(),
                net: self.net.clone(),
                stopped: self.stopped.clone(),
            })
        });
        threads.collect()
    }
}

/// Values with which a worker's thread starts.
struct Start {
    id: usize,
    node: Arc<Node>,
    peers: Arc<Peers>,
    partition: Partition,
    inbox: Inbox,
    sockets: Vec<Socket>,
    /// Workers that serve connections.
    net: std::ops::Range<usize>,
    stopped: watch::Receiver<bool>,
}

fn spawn_worker(start: Start) -> Result<JoinHandle<Result<Partition>>> {
    std::thread::Builder::new()
        .name(format!("worker-{}", start.id))
        .spawn(move || {
            let runtime = Builder::new_current_thread()
                .enable_all()
                .max_blocking_threads(1)
                .on_thread_park(worker::before_park)
                .on_thread_unpark(worker::after_unpark)
                .build_local(LocalOptions::default())
                .context("starting a worker's runtime")?;
            let departure = Departure { id: start.id, peers: start.peers.clone() };
            let ended = runtime.block_on(run_worker(start));
            drop(departure);
            ended
        })
        .context("starting a worker's thread")
}

/// A worker's thread. When it ends, even by a panic, this fails the batches that others have sent
/// to it.
struct Departure {
    id: usize,
    peers: Arc<Peers>,
}

impl Drop for Departure {
    fn drop(&mut self) {
        worker::set_here(None, Waker::noop());
        self.peers.leave(self.id);
    }
}

async fn run_worker(start: Start) -> Result<Partition> {
    let Start { id, node, peers, partition, inbox, sockets, net, mut stopped } = start;
    let worker = Worker::new(id, node.clone(), peers, routing::coordinate_boxed, partition);
    poll_fn(|cx| {
        worker::set_here(Some(&worker), cx.waker());
        Poll::Ready(())
    })
    .await;
    let durable = Arc::new(Notify::new());
    let [poke, other] = [durable.clone(), durable.clone()];
    node.journal.subscribe(Box::new(move || poke.notify_one()));
    node.followers.acks.subscribe(Box::new(move || other.notify_one()));
    tokio::task::spawn_local(worker.clone().run_committer());
    tokio::task::spawn_local(worker.clone().run_settler(durable));
    tokio::task::spawn_local(worker.clone().run_mailbox(inbox));
    tokio::task::spawn_local(worker.clone().run_loader());
    tokio::task::spawn_local(worker.clone().run_parked());
    tokio::task::spawn_local(worker.clone().run_impatience());
    tokio::task::spawn_local(worker.clone().run_turns());
    tokio::task::spawn_local(worker.clone().run_cron());
    tokio::task::spawn_local(worker.clone().run_materialiser());
    tokio::task::spawn_local(worker.clone().run_expiry());
    tokio::task::spawn_local(worker.clone().run_evictor());
    let pubsub = node.broadcast.pubsub.clone();
    tokio::task::spawn_local(async move { pubsub.run_wakes(id).await });
    accept_from(&worker, sockets, net);
    // An error means that the server's main thread has ended: the worker stops as well.
    let _ = stopped.wait_for(|stop| *stop).await;
    if !worker.stop().await {
        anyhow::bail!(
            "worker {id}: the engine did not take its rows in time; they are in the journal"
        );
    }
    worker.into_partition()
}

/// The pid file, which exists while the server runs.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: &str) -> Option<Self> {
        match std::fs::write(path, format!("{}\n", std::process::id())) {
            Ok(()) => Some(Self(PathBuf::from(path))),
            Err(error) => {
                tracing::warn!("pidfile {path} cannot be written: {error}");
                None
            }
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The file may have been removed already.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
