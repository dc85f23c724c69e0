//! The HTTP port (`http-port`): health, metrics, commands by REST, and the dashboard.
//!
//! It runs on a thread of its own, so that it answers while workers and merges are busy, and takes
//! no time of a worker. Figures are read from counters that the workers publish (`rights` checks who
//! may see them). Commands run in a
//! session like any other (`errand`): the connection's own code serves the other end of a pair of
//! sockets, so that authentication, permissions, limits and statistics are those of every client.
//!
//! `access` decides who may ask. Connections, their time, and the sizes of requests and replies
//! are bounded (`serve`).

mod access;
mod answer;
mod clusters;
mod errand;
mod health;
mod metrics;
mod pages;
mod profile;
mod rest;
mod rights;
mod sent;
mod serve;
mod values;
mod watch;

use crate::acl::Accounts;
use crate::config::{Config, HttpTls};
use crate::node::Node;
use crate::tls::TlsSlot;
use crate::worker::Peers;
use access::Guard;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;
use watch::FigureWatch;

/// Maximum time that open connections have to end at the shutdown.
const ENDING: Duration = Duration::from_secs(2);

/// The parts of a server that has started.
struct LoadedServer {
    node: Arc<Node>,
    peers: Arc<Peers>,
    watcher: FigureWatch,
}

/// Figures of the port itself.
#[derive(Debug, Default)]
struct HttpCounters {
    requests: AtomicU64,
    /// Requests that were not allowed.
    denied: AtomicU64,
    /// Connections that were refused because there were too many.
    refused: AtomicU64,
    connections: AtomicUsize,
}

/// State that all requests share.
struct Site {
    config: Arc<Config>,
    accounts: Arc<Accounts>,
    /// Set when the data is loaded.
    server: OnceLock<LoadedServer>,
    /// True when the server has begun to shut down.
    is_ending: AtomicBool,
    guard: Guard,
    tls: Arc<TlsSlot>,
    counters: HttpCounters,
    /// Number of sessions begun so far, which go to the workers in turn.
    errands: AtomicUsize,
}

impl Site {
    /// Returns the server once its data is loaded.
    fn loaded(&self) -> Option<&LoadedServer> {
        self.server.get()
    }
}

/// The open port; it closes when this is dropped.
pub struct HttpPort {
    site: Arc<Site>,
    addresses: Vec<SocketAddr>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl HttpPort {
    /// Opens the port of the configuration, if it names one. Until [`HttpPort::show`], it answers
    /// that the server is loading.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub fn open(
        config: &Arc<Config>,
        accounts: &Arc<Accounts>,
        tls: Arc<TlsSlot>,
    ) -> Result<Option<Self>> {
        let settings = config.settings();
        if settings.http_port == 0 {
            return Ok(None);
        }
        let listeners = serve::listen(&settings).context("http-port")?;
        let addresses: Vec<SocketAddr> =
            listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        if !accounts.needs_password() && addresses.iter().any(|a| !a.ip().is_loopback()) {
            tracing::warn!(
                "http-bind names addresses beyond loopback, and there is no password: the HTTP \
                port refuses clients of other machines; set requirepass"
            );
        }
        let site = Arc::new(Site {
            config: config.clone(),
            accounts: accounts.clone(),
            server: OnceLock::new(),
            is_ending: AtomicBool::new(false),
            guard: Guard::default(),
            tls,
            counters: HttpCounters::default(),
            errands: AtomicUsize::new(0),
        });
        let site_is_secure = settings.http_tls != HttpTls::No;
        let stop = CancellationToken::new();
        let serving = serve::run(site.clone(), listeners, stop.clone());
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .context("starting the runtime of the HTTP port")?;
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || {
                runtime.block_on(serving);
                runtime.shutdown_timeout(ENDING);
            })
            .context("starting the thread of the HTTP port")?;
        for address in &addresses {
            let secure = if site_is_secure { "S" } else { "" };
            tracing::info!("listening for HTTP{secure} on {address}");
        }
        Ok(Some(Self { site, addresses, stop, thread: Some(thread) }))
    }

    /// Returns the addresses that it listens on.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Shows a server whose data is loaded. To be called once.
    pub fn show(&self, node: Arc<Node>, peers: Arc<Peers>) {
        let watcher = FigureWatch::new(&node);
        // A second call would be refused.
        let _ = self.site.server.set(LoadedServer { node, peers, watcher });
    }

    /// Tells that the server is shutting down.
    pub fn end(&self) {
        self.site.is_ending.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its hook.
            let _ = thread.join();
        }
    }
}
