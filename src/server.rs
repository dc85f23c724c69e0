//! Starts the node, accepts connections, and drains at the end.

use crate::checkpoints::{Checkpoints, run_periodically};
use crate::clients::Client;
use crate::config::{AcceptMode, Config, LogLevel, Settings};
use crate::connection;
use crate::node::{Budget, Node, ShutdownRequest, sync_mode};
use crate::worker::{Inbox, Mailbox, Message, Worker, mailbox};
use anyhow::{Context, Result, bail};
use flagstone_storage::checkpoint::{Catalog, Source};
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Directory, OpenOptions};
use flagstone_storage::lease::LEASE;
use flagstone_storage::partition::Partition;
use flagstone_storage::place::Place;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

/// How long connections may take to write their last replies at shutdown.
const DRAIN: Duration = Duration::from_secs(5);

/// How long the shards of a worker may take to be completed at shutdown.
const CLOSE: Duration = Duration::from_secs(120);

/// Pause after an accept that failed for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Runs the server until it is told to stop.
pub fn run(config: Config) -> Result<()> {
    let config = Arc::new(config);
    let settings = config.settings();
    init_logging(settings.loglevel);
    for notice in config.notices() {
        tracing::warn!("{notice}");
    }
    refuse_what_is_not_there(&config)?;
    raise_open_files(settings.maxclients);
    let background = Builder::new_multi_thread()
        .worker_threads(settings.background_workers)
        .max_blocking_threads(16)
        .thread_name("background")
        .enable_all()
        .build()
        .context("starting the background runtime")?;
    let addresses = addresses(&settings)?;
    let clock = Clock::default();
    let options = open_options(&settings)?;
    let archive = options.location().archive();
    let opening = background.spawn(Directory::open(options, clock.clone()));
    let opened = background.block_on(opening).context("opening the data directory")??;
    background
        .block_on(Catalog::of(&opened.store).clean(&opened.engines()))
        .context("removing what is left of unfinished checkpoints")?;
    let served = serve(&config, &settings, (opened, archive), clock, &addresses, &background);
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
        mode: sync_mode(settings.appendfsync),
        everysec_bound: Duration::from_millis(settings.everysec_bound_ms),
        inline_sync: settings.workers == 1 && settings.net_workers == 0,
        block_cache_bytes: budget.block_cache,
        meta_cache_bytes: budget.meta_cache,
        memtable_bytes: budget.memtables,
        merge_bytes: budget.merges,
        presence_bytes: budget.presence,
        journal_bytes: budget.journal,
        lease: LEASE,
        cache: (settings.store_cache_size > 0)
            .then(|| (settings.dir.join("store-cache"), settings.store_cache_size)),
    })
}

fn serve(
    config: &Arc<Config>,
    settings: &Settings,
    (mut opened, archive): (Directory, Place),
    clock: Clock,
    addresses: &[SocketAddr],
    background: &tokio::runtime::Runtime,
) -> Result<()> {
    let shard_workers = settings.workers.clamp(1, usize::from(opened.layout.shards));
    let total = shard_workers + settings.net_workers;
    let net = if settings.net_workers == 0 { 0..total } else { shard_workers..total };
    let (mailboxes, inboxes): (Vec<Mailbox>, Vec<Inbox>) = (0..total).map(|_| mailbox()).unzip();
    let source = Source {
        store: opened.store.clone(),
        scratch: settings.dir.clone(),
        layout: opened.layout.clone(),
        origin: opened.origin,
        journal: opened.journal.clone(),
        engines: opened.engines(),
        clock,
    };
    let checkpoints = Checkpoints::new(source, archive);
    let node = Node::new(
        config.clone(),
        checkpoints,
        mailboxes,
        shard_workers,
        opened.generations.next,
        [&opened.store, &opened.journal_place].map(|place| place.requests().clone()),
        std::mem::take(&mut opened.libraries),
        background.handle().clone(),
    );
    let node = Arc::new(node.map_err(anyhow::Error::msg).context("libraries of functions")?);
    let listeners = listen(settings, addresses, net.len())?;
    let (stop, stopped) = watch::channel(false);
    let store = opened.store.clone();
    let (mut partitions, locks) = opened.into_partitions(shard_workers, total);
    // Before anybody is told that the server is there.
    let signals = catch_signals(background);
    let mut threads = Vec::with_capacity(total);
    let mut listeners = listeners.into_iter();
    for (id, inbox) in inboxes.into_iter().enumerate() {
        let start = Start {
            id,
            node: node.clone(),
            partition: partitions.remove(0),
            inbox,
            listeners: if net.contains(&id) {
                listeners.next().unwrap_or_default()
            } else {
                Vec::new()
            },
            net: net.clone(),
            stopped: stopped.clone(),
        };
        threads.push(spawn_worker(start)?);
    }
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        workers = shard_workers,
        net_workers = settings.net_workers,
        background_workers = settings.background_workers,
        shards = node.layout.shards,
        memory_budget = settings.memory_budget,
        appendfsync = settings.appendfsync.as_str(),
        %store,
        "Server initialized"
    );
    for address in addresses {
        println!("Ready to accept connections tcp {address}");
    }
    background.spawn(run_periodically(node.clone()));
    let request = background.block_on(wait_for_stop(&node, signals));
    tracing::info!(now = request.now, "shutting down");
    // Scripts that run for long see it, however it was asked for.
    node.request_shutdown(request);
    drop(stopped);
    stop.send_replace(true);
    let drained = drain(threads, &node, background, request);
    drop(locks);
    drained
}

/// From here on SIGTERM and SIGINT do not end the process by themselves; `None`: they do.
fn catch_signals(background: &tokio::runtime::Runtime) -> Option<(Signal, Signal)> {
    let _within = background.enter();
    let caught = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(term), Ok(int)) = caught else {
        tracing::warn!("signals cannot be caught; stop the server by SHUTDOWN");
        return None;
    };
    Some((term, int))
}

/// SIGTERM, SIGINT or SHUTDOWN.
async fn wait_for_stop(node: &Node, signals: Option<(Signal, Signal)>) -> ShutdownRequest {
    let mut requested = node.shutdown.subscribe();
    let orderly = ShutdownRequest { now: false };
    let Some((mut term, mut int)) = signals else {
        let asked = requested.wait_for(Option::is_some).await;
        return asked.ok().and_then(|r| *r).unwrap_or(orderly);
    };
    tokio::select! {
        _ = term.recv() => orderly,
        _ = int.recv() => orderly,
        asked = requested.wait_for(Option::is_some) => {
            asked.ok().and_then(|r| *r).unwrap_or(orderly)
        }
    }
}

fn drain(
    threads: Vec<JoinHandle<Result<Partition>>>,
    node: &Node,
    background: &tokio::runtime::Runtime,
    request: ShutdownRequest,
) -> Result<()> {
    let mut failed = None;
    let mut partitions = Vec::new();
    for thread in threads {
        match thread.join() {
            Ok(Ok(partition)) => partitions.push(partition),
            Ok(Err(error)) => failed = Some(error),
            Err(_) => failed = Some(anyhow::anyhow!("a worker thread panicked")),
        }
    }
    node.journal.sync_now().context("syncing the journal")?;
    if !request.now {
        let closing = background.block_on(close_shards(partitions));
        failed = failed.or(closing.err());
    }
    node.journal.close().context("closing the journal")?;
    match failed {
        Some(error) => Err(error),
        None => {
            tracing::info!("everything is stored; bye");
            Ok(())
        }
    }
}

/// Completes the shard directories. A disk that is full makes an engine wait without end: the
/// journal has everything then too.
async fn close_shards(partitions: Vec<Partition>) -> Result<()> {
    for partition in partitions {
        tokio::time::timeout(CLOSE, tokio::spawn(partition.close()))
            .await
            .context("an engine did not take its rows in time; they are in the journal")?
            .context("closing the shards")??;
    }
    Ok(())
}

/// What a worker's thread begins with.
struct Start {
    id: usize,
    node: Arc<Node>,
    partition: Partition,
    inbox: Inbox,
    listeners: Vec<std::net::TcpListener>,
    /// The workers that take connections.
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
                .build_local(LocalOptions::default())
                .context("starting a worker's runtime")?;
            runtime.block_on(run_worker(start))
        })
        .context("starting a worker's thread")
}

async fn run_worker(start: Start) -> Result<Partition> {
    let Start { id, node, partition, inbox, listeners, net, mut stopped } = start;
    let worker = Worker::new(id, node.clone(), partition);
    let durable = Arc::new(Notify::new());
    let poke = durable.clone();
    node.journal.subscribe(Box::new(move || poke.notify_one()));
    tokio::task::spawn_local(worker.clone().run_committer());
    tokio::task::spawn_local(worker.clone().run_settler(durable));
    tokio::task::spawn_local(worker.clone().run_mailbox(inbox));
    tokio::task::spawn_local(worker.clone().run_loader());
    tokio::task::spawn_local(worker.clone().run_parked());
    tokio::task::spawn_local(worker.clone().run_cron());
    tokio::task::spawn_local(worker.clone().run_materialiser());
    tokio::task::spawn_local(worker.clone().run_expiry());
    let pubsub = node.pubsub.clone();
    tokio::task::spawn_local(async move { pubsub.run_wakes(id).await });
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener).context("taking over a listener")?;
        tokio::task::spawn_local(accept(worker.clone(), listener, net.clone()));
    }
    // An error means that the server's main thread is gone: stop as well.
    let _ = stopped.wait_for(|stop| *stop).await;
    if !worker.stop().await {
        anyhow::bail!(
            "worker {id}: the engine did not take its rows in time; they are in the journal"
        );
    }
    worker.into_partition()
}

/// Accepts connections for as long as the worker runs.
async fn accept(worker: Rc<Worker>, listener: TcpListener, net: std::ops::Range<usize>) {
    let mut next = net.start;
    loop {
        if worker.is_stopping() {
            return;
        }
        let (stream, addr) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = worker.stopping() => return,
        };
        let settings = worker.settings();
        if settings.accept_mode == AcceptMode::Reuseport || net.len() == 1 {
            admit(&worker, stream, addr);
            continue;
        }
        let target = next;
        next = if next + 1 == net.end { net.start } else { next + 1 };
        hand_over(&worker, target, stream, addr).await;
    }
}

/// Gives a connection to another worker (round-robin mode).
async fn hand_over(
    worker: &Rc<Worker>,
    target: usize,
    stream: tokio::net::TcpStream,
    addr: SocketAddr,
) {
    if target == worker.id {
        admit(worker, stream, addr);
        return;
    }
    let Ok(stream) = stream.into_std() else { return };
    let job =
        Message::Run(Box::new(move |worker: &Rc<Worker>| {
            match tokio::net::TcpStream::from_std(stream) {
                Ok(stream) => admit(worker, stream, addr),
                Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
            }
        }));
    if worker.node.mailboxes[target].send_urgent(job).await.is_err() {
        tracing::error!(target, "a worker is gone; a connection is dropped");
    }
}

/// Begins to serve a connection, or refuses it.
fn admit(worker: &Rc<Worker>, stream: tokio::net::TcpStream, addr: SocketAddr) {
    let settings = worker.settings();
    // A socket that cannot be tuned still works.
    let _ = stream.set_nodelay(true);
    if settings.tcp_keepalive_seconds > 0 {
        let idle = Duration::from_secs(u64::from(settings.tcp_keepalive_seconds));
        let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(idle / 3);
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    }
    if settings.protected_mode
        && settings.requirepass.is_none()
        && !addr.ip().to_canonical().is_loopback()
    {
        refuse(
            stream,
            "-DENIED Flagstone is running in protected mode: no password is set. \
            Connect from the loopback address, set requirepass, or set protected-mode no.\r\n",
        );
        return;
    }
    let laddr = stream.local_addr().unwrap_or(addr);
    let now_ms = worker.node.clock.now_ms();
    let id = worker.id;
    let fd = stream.as_raw_fd();
    let client = worker
        .node
        .clients
        .admit(settings.maxclients as usize, |n| Client::new(n, (addr, laddr), fd, id, now_ms));
    let Some(client) = client else {
        refuse(stream, "-ERR max number of clients reached\r\n");
        return;
    };
    worker.stats().connections.fetch_add(1, Ordering::Relaxed);
    worker.spawn_connection(connection::serve(worker.clone(), stream, client));
}

fn refuse(stream: tokio::net::TcpStream, text: &'static str) {
    // The client may be gone already.
    let _ = stream.try_write(text.as_bytes());
}

/// The addresses to listen on.
fn addresses(settings: &Settings) -> Result<Vec<SocketAddr>> {
    let mut out = Vec::new();
    if settings.port == 0 {
        bail!("port 0: there is nothing to listen on");
    }
    for bind in &settings.bind {
        let (host, optional) = match bind.strip_prefix('-') {
            Some(host) => (host, true),
            None => (&**bind, false),
        };
        let host = match host {
            "*" => "0.0.0.0",
            "::*" => "::",
            host => host,
        };
        match (host, settings.port).to_socket_addrs() {
            Ok(found) => out.extend(found),
            Err(_) if optional => {}
            Err(error) => bail!("bind {host}: {error}"),
        }
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

/// One set of listeners per accepting worker; with round-robin, the first has them all.
fn listen(
    settings: &Settings,
    addresses: &[SocketAddr],
    workers: usize,
) -> Result<Vec<Vec<std::net::TcpListener>>> {
    let share = settings.accept_mode == AcceptMode::Reuseport && workers > 1;
    let mut out = Vec::new();
    for n in 0..if share { workers } else { 1 } {
        let mut set = Vec::new();
        for address in addresses {
            if share && n == 0 {
                // Only listeners of this process may share the port. A sharing socket binds beside
                // another server's, one that does not share is refused.
                let alone = listen_on(*address, settings.tcp_backlog, false);
                if !optional_address(settings, *address) {
                    alone.with_context(|| format!("listening on {address}"))?;
                }
            }
            match listen_on(*address, settings.tcp_backlog, share) {
                Ok(listener) => set.push(listener),
                Err(error) if optional_address(settings, *address) => {
                    tracing::info!(%address, %error, "not listening on an optional address");
                }
                Err(error) => return Err(error).with_context(|| format!("listening on {address}")),
            }
        }
        if set.is_empty() {
            bail!("there is no address left to listen on");
        }
        out.push(set);
    }
    Ok(out)
}

fn optional_address(settings: &Settings, address: SocketAddr) -> bool {
    settings.bind.iter().any(|bind| {
        bind.strip_prefix('-').is_some_and(|host| {
            let host = if host == "::*" { "::" } else { host };
            host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip == address.ip())
        })
    })
}

fn listen_on(address: SocketAddr, backlog: i32, share: bool) -> Result<std::net::TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    if share {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

/// Settings that protect something must not be ignored.
fn refuse_what_is_not_there(config: &Config) -> Result<()> {
    let settings = config.settings();
    if let Some(user) = config.users().first() {
        bail!("{}: users are not there yet; only requirepass protects the server", user.origin);
    }
    if let Some(renamed) = config.renamed_commands().first() {
        bail!("{}: commands cannot be renamed yet", renamed.origin);
    }
    if settings.aclfile.is_some() {
        bail!("aclfile: users are not there yet; only requirepass protects the server");
    }
    if settings.unixsocket.is_some() {
        bail!("unixsocket: the server listens on TCP only");
    }
    if settings.maxmemory != 0 {
        tracing::warn!("maxmemory has no effect yet; memory-budget bounds the memory");
    }
    Ok(())
}

/// Room for `maxclients` connections and for the data's files.
fn raise_open_files(maxclients: u32) {
    const OWN_FILES: u64 = 1024;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for the call to fill.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return;
    }
    let wanted = u64::from(maxclients) + OWN_FILES;
    if limit.rlim_cur >= wanted {
        return;
    }
    limit.rlim_cur = wanted.min(limit.rlim_max);
    // SAFETY: `limit` is a valid rlimit.
    let failed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0;
    if failed || limit.rlim_cur < wanted {
        tracing::warn!(
            limit = limit.rlim_cur,
            wanted,
            "the limit of open files is too low for maxclients; raise it (ulimit -n)"
        );
    }
}

fn init_logging(level: LogLevel) {
    let level = match level {
        LogLevel::Debug => "debug",
        LogLevel::Verbose | LogLevel::Notice => "info",
        LogLevel::Warning => "warn",
        LogLevel::Nothing => "off",
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("FLAGSTONE_LOG")
        .unwrap_or_else(|_| format!("{level},slatedb=error,foyer=error").into());
    // A second server in one process (tests) keeps the first one's log.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .try_init();
}
