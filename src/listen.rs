//! The sockets that the server listens on. CONFIG SET may replace them.

use crate::config::{AcceptMode, Settings};
use crate::worker::{Message, Peers, Worker};
use anyhow::{Context, Result, bail};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A listener for one worker.
pub struct Socket {
    pub listener: TcpListener,
    pub ticket: ListenerTicket,
}

/// Companion of a listener: tells it when to close, and, dropped after it, that it is closed.
pub struct ListenerTicket {
    closing: CancellationToken,
    _open: TaskTrackerToken,
}

impl ListenerTicket {
    /// Waits until the listener is to be closed.
    pub async fn closing(&self) {
        self.closing.cancelled().await;
    }
}

/// Makes a worker accept connections from these sockets.
pub type Accept = fn(&Rc<Worker>, Vec<Socket>, Range<usize>);

/// An address that the server listens on, with a listener for each accepting worker.
struct Open {
    address: SocketAddr,
    closing: CancellationToken,
    listeners: TaskTracker,
}

impl Open {
    fn new(address: SocketAddr) -> Self {
        let (closing, listeners) = (CancellationToken::new(), TaskTracker::new());
        Self { address, closing, listeners }
    }

    fn socket(&self, listener: TcpListener) -> Socket {
        let ticket =
            ListenerTicket { closing: self.closing.clone(), _open: self.listeners.token() };
        Socket { listener, ticket }
    }

    /// Closes its listeners, and waits until they are closed.
    async fn close(self) {
        self.closing.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        tracing::info!("not listening on {} any more", self.address);
    }
}

/// All addresses that the server listens on.
pub struct Listening {
    open: Vec<Open>,
    /// Settings with which the addresses were opened.
    settings: Arc<Settings>,
    /// Workers that serve connections.
    net: Range<usize>,
}

impl Listening {
    /// Listens on the addresses of the settings: one set of sockets per accepting worker; with
    /// round-robin, the first worker has all.
    pub fn begin(settings: Arc<Settings>, net: Range<usize>) -> Result<(Self, Vec<Vec<Socket>>)> {
        let mut listening = Self { open: Vec::new(), settings: settings.clone(), net };
        let sockets = listening.open(&settings, addresses(&settings)?)?;
        Ok((listening, sockets))
    }

    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.open.iter().map(|open| open.address)
    }

    /// Listens on the addresses of other settings instead. Addresses in both stay open all the
    /// while.
    ///
    /// # Errors
    /// One of them cannot be listened on. Then the old ones are in effect again.
    pub async fn change(
        &mut self,
        settings: Arc<Settings>,
        peers: &Peers,
        accept: Accept,
    ) -> Result<()> {
        let wanted = addresses(&settings)?;
        let is_wanted = |open: &Open| wanted.contains(&open.address);
        let (kept, gone): (Vec<Open>, Vec<Open>) = self.open.drain(..).partition(is_wanted);
        self.open = kept;
        let old: Vec<SocketAddr> = gone.iter().map(|open| open.address).collect();
        // Closed first, because an address may be covered by "all addresses".
        for open in gone {
            open.close().await;
        }
        let is_open = |address: &SocketAddr| self.open.iter().any(|o| o.address == *address);
        let new = wanted.into_iter().filter(|address| !is_open(address)).collect();
        let refused = match self.open(&settings, new) {
            Ok(sockets) => {
                self.settings = settings;
                self.hand_out(sockets, peers, accept).await;
                return Ok(());
            }
            Err(error) => error,
        };
        match self.open(&self.settings.clone(), old) {
            Ok(sockets) => self.hand_out(sockets, peers, accept).await,
            Err(error) => tracing::error!("the old addresses are lost as well: {error:#}"),
        }
        Err(refused)
    }

    async fn hand_out(&self, sockets: Vec<Vec<Socket>>, peers: &Peers, accept: Accept) {
        for socket in sockets.first().into_iter().flatten() {
            if let Ok(address) = socket.listener.local_addr() {
                tracing::info!("listening on {address}");
            }
        }
        for (set, worker) in sockets.into_iter().zip(self.net.clone()) {
            let net = self.net.clone();
            let job = Message::Run(Box::new(move |worker: &Rc<Worker>| accept(worker, set, net)));
            if peers.mailboxes[worker].send_urgent(job).await.is_err() {
                tracing::error!(worker, "a worker is gone; it accepts no connections");
            }
        }
    }

    /// Opens all of the addresses, or none.
    fn open(
        &mut self,
        settings: &Settings,
        addresses: Vec<SocketAddr>,
    ) -> Result<Vec<Vec<Socket>>> {
        let share = settings.accept_mode == AcceptMode::Reuseport && self.net.len() > 1;
        let workers = if share { self.net.len() } else { 1 };
        let mut sets: Vec<Vec<Socket>> = (0..workers).map(|_| Vec::new()).collect();
        let mut opened = Vec::new();
        for address in addresses {
            let open = Open::new(address);
            match listen_on_all(address, settings.tcp_backlog, workers, share) {
                Ok(listeners) => {
                    for (set, listener) in sets.iter_mut().zip(listeners) {
                        set.push(open.socket(listener));
                    }
                    opened.push(open);
                }
                Err(error) if is_optional(settings, address) => {
                    tracing::info!(%address, %error, "not listening on an optional address");
                }
                Err(error) => return Err(error).with_context(|| format!("listening on {address}")),
            }
        }
        if self.open.is_empty() && opened.is_empty() {
            bail!("there is no address left to listen on");
        }
        self.open.extend(opened);
        Ok(sets)
    }
}

/// Returns the addresses to listen on.
///
/// # Errors
/// The settings name none, or one that does not exist.
pub fn addresses(settings: &Settings) -> Result<Vec<SocketAddr>> {
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
    if out.is_empty() {
        bail!("bind: there is nothing to listen on");
    }
    out.sort_unstable();
    out.dedup();
    Ok(out)
}

fn is_optional(settings: &Settings, address: SocketAddr) -> bool {
    settings.bind.iter().any(|bind| {
        bind.strip_prefix('-').is_some_and(|host| {
            let host = if host == "::*" { "::" } else { host };
            host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip == address.ip())
        })
    })
}

/// Returns a listener for each of so many workers.
fn listen_on_all(
    address: SocketAddr,
    backlog: i32,
    workers: usize,
    share: bool,
) -> Result<Vec<TcpListener>> {
    if share {
        // Only listeners of this process may share the port. A sharing socket would bind beside
        // another server's; one that does not share is refused.
        drop(listen_on(address, backlog, false)?);
    }
    (0..workers).map(|_| listen_on(address, backlog, share)).collect()
}

fn listen_on(address: SocketAddr, backlog: i32, share: bool) -> Result<TcpListener> {
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
