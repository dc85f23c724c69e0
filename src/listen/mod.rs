//! The sockets that the server listens on. CONFIG SET may replace them.

use crate::config::{AcceptMode, Settings};
use crate::worker::{Message, Peers, Worker};
use anyhow::{Context, Result, bail};
use std::fmt::{Display, Formatter};
use std::io::Result as IoResult;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use unix_socket::SocketFile;

pub mod addresses;
mod unix_socket;

/// A place that the server listens on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Tls(SocketAddr),
    /// The path of a Unix socket.
    Unix(String),
}

impl Endpoint {
    fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) | Self::Tls(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }

    /// Returns true if a socket for one of both may be in the way of one for the other.
    fn may_collide(&self, other: &Self) -> bool {
        match (self.addr(), other.addr()) {
            (Some(one), Some(other)) => one.port() == other.port(),
            _ => self == other,
        }
    }
}

impl Display for Endpoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "tcp {addr}"),
            Self::Tls(addr) => write!(f, "tls {addr}"),
            Self::Unix(path) => write!(f, "unix {path}"),
        }
    }
}

/// A socket that takes connections.
pub enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener),
    Unix(UnixListener, Arc<str>),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

/// A listener for one worker.
pub struct Socket {
    pub listener: Listener,
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

/// A place that the server listens on, with a listener for each accepting worker.
struct Open {
    endpoint: Endpoint,
    closing: CancellationToken,
    listeners: TaskTracker,
    /// The file of a Unix socket, which goes with it.
    _file: Option<SocketFile>,
}

impl Open {
    fn new(endpoint: Endpoint, file: Option<SocketFile>) -> Self {
        let (closing, listeners) = (CancellationToken::new(), TaskTracker::new());
        Self { endpoint, closing, listeners, _file: file }
    }

    fn socket(&self, listener: Listener) -> Socket {
        let ticket =
            ListenerTicket { closing: self.closing.clone(), _open: self.listeners.token() };
        Socket { listener, ticket }
    }

    /// Closes its listeners, and waits until they are closed.
    async fn close(self) {
        self.closing.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        tracing::info!("not listening on {} any more", self.endpoint);
    }
}

/// Listeners that were opened together: one list for each accepting worker.
pub type SocketSets = Vec<Vec<Socket>>;

/// All places that the server listens on.
pub struct Listening {
    open: Vec<Open>,
    /// Settings with which the places were opened.
    settings: Arc<Settings>,
    /// Workers that serve connections.
    net: Range<usize>,
}

impl Listening {
    /// Listens as the settings say: one set of sockets per accepting worker; with round-robin, the
    /// first worker has all.
    ///
    /// # Errors
    /// One of the places cannot be listened on.
    pub fn begin(settings: Arc<Settings>, net: Range<usize>) -> Result<(Self, SocketSets)> {
        let mut listening = Self { open: Vec::new(), settings: settings.clone(), net };
        let (open, sockets) = listening.open(&settings, endpoints(&settings)?)?;
        listening.open = open;
        listening.check_any()?;
        Ok((listening, sockets))
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.open.iter().map(|open| &open.endpoint)
    }

    fn check_any(&self) -> Result<()> {
        if self.open.is_empty() {
            bail!("there is no address left to listen on");
        }
        Ok(())
    }

    /// Listens on the places of other settings instead. Places in both stay open all the while, and
    /// the others until the new ones are open, unless they are in the way.
    ///
    /// # Errors
    /// One of them cannot be listened on. Then the old ones are in effect again.
    pub async fn change(
        &mut self,
        settings: Arc<Settings>,
        peers: &Peers,
        accept: Accept,
    ) -> Result<()> {
        let wanted = endpoints(&settings)?;
        let (kept, gone): (Vec<Open>, Vec<Open>) =
            self.open.drain(..).partition(|open| wanted.contains(&open.endpoint));
        self.open = kept;
        let is_open = |endpoint: &Endpoint| self.endpoints().any(|open| open == endpoint);
        let new: Vec<Endpoint> = wanted.into_iter().filter(|endpoint| !is_open(endpoint)).collect();
        // A socket for all addresses covers those for single ones, and the other way round.
        let (in_the_way, gone): (Vec<Open>, Vec<Open>) = gone
            .into_iter()
            .partition(|open| new.iter().any(|endpoint| endpoint.may_collide(&open.endpoint)));
        let old: Vec<Endpoint> = in_the_way.iter().map(|open| open.endpoint.clone()).collect();
        for open in in_the_way {
            open.close().await;
        }
        let refused = match self.open(&settings, new) {
            Ok((open, sockets)) => {
                self.open.extend(open);
                match self.check_any() {
                    Ok(()) => {
                        self.settings = settings;
                        self.hand_out(sockets, peers, accept).await;
                        for open in gone {
                            open.close().await;
                        }
                        return Ok(());
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        self.open.extend(gone);
        match self.open(&self.settings.clone(), old) {
            Ok((open, sockets)) => {
                self.open.extend(open);
                self.hand_out(sockets, peers, accept).await;
            }
            Err(error) => tracing::error!("the old addresses are lost as well: {error:#}"),
        }
        Err(refused)
    }

    async fn hand_out(&self, sockets: SocketSets, peers: &Peers, accept: Accept) {
        for endpoint in self.endpoints() {
            tracing::info!("listening on {endpoint}");
        }
        for (set, worker) in sockets.into_iter().zip(self.net.clone()) {
            let net = self.net.clone();
            let job = Message::Run(Box::new(move |worker: &Rc<Worker>| accept(worker, set, net)));
            if peers.mailboxes[worker].send_urgent(job).await.is_err() {
                tracing::error!(worker, "a worker is gone; it accepts no connections");
            }
        }
    }

    /// Opens all of the places, or none.
    fn open(
        &self,
        settings: &Settings,
        endpoints: Vec<Endpoint>,
    ) -> Result<(Vec<Open>, SocketSets)> {
        let share = settings.accept_mode == AcceptMode::Reuseport && self.net.len() > 1;
        let workers = if share { self.net.len() } else { 1 };
        let mut sets: SocketSets = (0..workers).map(|_| Vec::new()).collect();
        let mut opened = Vec::new();
        for endpoint in endpoints {
            let (listeners, file) = match listen_on(&endpoint, settings, workers, share) {
                Ok(listening) => listening,
                Err(error) if is_optional(settings, &endpoint) => {
                    tracing::info!(%endpoint, %error, "not listening on an optional address");
                    continue;
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("listening on {endpoint}"));
                }
            };
            let open = Open::new(endpoint, file);
            for (set, listener) in sets.iter_mut().zip(listeners) {
                set.push(open.socket(listener));
            }
            opened.push(open);
        }
        Ok((opened, sets))
    }
}

/// Returns the places to listen on.
///
/// # Errors
/// The settings name none, or one that does not exist.
pub fn endpoints(settings: &Settings) -> Result<Vec<Endpoint>> {
    let mut out: Vec<Endpoint> =
        settings.unixsocket.clone().map(Endpoint::Unix).into_iter().collect();
    if settings.port != 0 {
        out.extend(addresses(settings, settings.port)?.into_iter().map(Endpoint::Tcp));
    }
    if settings.tls_port != 0 {
        out.extend(addresses(settings, settings.tls_port)?.into_iter().map(Endpoint::Tls));
    }
    if out.is_empty() {
        bail!("port 0: there is nothing to listen on");
    }
    Ok(out)
}

/// Checks the settings of the places to listen on, as far as that is possible without them.
///
/// # Errors
/// The settings name no place, or one that cannot be.
pub fn check(settings: &Settings) -> Result<()> {
    for endpoint in endpoints(settings)? {
        if let Endpoint::Unix(path) = endpoint {
            unix_socket::check(&path, settings).with_context(|| format!("unixsocket {path}"))?;
        }
    }
    Ok(())
}

/// Returns the addresses of `bind` with this port.
fn addresses(settings: &Settings, port: u16) -> Result<Vec<SocketAddr>> {
    let mut out = Vec::new();
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
        match (host, port).to_socket_addrs() {
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

fn is_optional(settings: &Settings, endpoint: &Endpoint) -> bool {
    let Some(address) = endpoint.addr() else { return false };
    settings.bind.iter().any(|bind| {
        bind.strip_prefix('-').is_some_and(|host| {
            let host = if host == "::*" { "::" } else { host };
            host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip == address.ip())
        })
    })
}

/// Returns a listener for each of so many workers; a Unix socket has one for all.
fn listen_on(
    endpoint: &Endpoint,
    settings: &Settings,
    workers: usize,
    share: bool,
) -> Result<(Vec<Listener>, Option<SocketFile>)> {
    let backlog = settings.tcp_backlog;
    let (address, listener): (_, fn(TcpListener) -> Listener) = match endpoint {
        Endpoint::Tcp(address) => (*address, Listener::Tcp),
        Endpoint::Tls(address) => (*address, Listener::Tls),
        Endpoint::Unix(path) => {
            let (listener, file) = unix_socket::listen(path, settings)?;
            return Ok((vec![Listener::Unix(listener, path.as_str().into())], Some(file)));
        }
    };
    if share {
        // Only listeners of this process may share the port. A sharing socket would bind beside
        // another server's; one that does not share is refused.
        drop(listen_on_tcp(address, backlog, false)?);
    }
    let listeners = (0..workers).map(|_| Ok(listener(listen_on_tcp(address, backlog, share)?)));
    Ok((listeners.collect::<IoResult<_>>()?, None))
}

fn listen_on_tcp(address: SocketAddr, backlog: i32, share: bool) -> IoResult<TcpListener> {
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
