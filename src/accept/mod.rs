//! Takes connections from the listening sockets: admits or refuses each, and gives it to a worker.

mod greeting;

use crate::clients::{Arrival, Client, ClientState};
use crate::config::{AcceptMode, Settings};
use crate::connection;
use crate::listen::{Listener, ListenerTicket, Socket};
use crate::transport::{PeerAddr, Stream};
use crate::worker::{Message, Worker};
use flagstone_wire::resp::Reply;
use std::io::Result;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time in which a new socket takes the error for a client that is refused.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// A listening socket, as the runtime of the accepting worker has it.
enum Door {
    Tcp(TcpListener),
    Tls(TcpListener),
    Unix(UnixListener, Arc<str>),
}

impl Door {
    fn of(listener: Listener) -> Result<Self> {
        socket2::SockRef::from(&listener).set_nonblocking(true)?;
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Listener::Tls(listener) => Self::Tls(TcpListener::from_std(listener)?),
            Listener::Unix(listener, path) => Self::Unix(UnixListener::from_std(listener)?, path),
        })
    }

    async fn accept(&self) -> Result<Visitor<Fresh>> {
        Ok(match self {
            Self::Tcp(listener) | Self::Tls(listener) => {
                let (stream, addr) = listener.accept().await?;
                let is_secure = matches!(self, Self::Tls(_));
                Visitor { stream: Fresh::Tcp(stream), addr: addr.into(), is_secure, place: None }
            }
            Self::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                let addr = PeerAddr::Unix(path.clone());
                Visitor { stream: Fresh::Unix(stream), addr, is_secure: false, place: None }
            }
        })
    }
}

/// A connection that was taken from a listening socket, and not admitted yet.
struct Visitor<S> {
    stream: S,
    addr: PeerAddr,
    /// True if the connection begins with a TLS handshake.
    is_secure: bool,
    /// The place of a connection that begins with a TLS handshake or a PROXY header.
    place: Option<Arrival>,
}

/// A stream as it was taken from a listening socket.
enum Fresh {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A stream that belongs to no runtime, on its way from one to another.
enum Detached {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Visitor<Fresh> {
    fn detach(self) -> Result<Visitor<Detached>> {
        let stream = match self.stream {
            Fresh::Tcp(stream) => Detached::Tcp(stream.into_std()?),
            Fresh::Unix(stream) => Detached::Unix(stream.into_std()?),
        };
        let Self { addr, is_secure, place, .. } = self;
        Ok(Visitor { stream, addr, is_secure, place })
    }
}

impl Visitor<Detached> {
    fn attach(self) -> Result<Visitor<Fresh>> {
        let stream = match self.stream {
            Detached::Tcp(stream) => Fresh::Tcp(TcpStream::from_std(stream)?),
            Detached::Unix(stream) => Fresh::Unix(UnixStream::from_std(stream)?),
        };
        let Self { addr, is_secure, place, .. } = self;
        Ok(Visitor { stream, addr, is_secure, place })
    }
}

/// Makes a worker accept connections from these sockets. `net`: the workers that serve connections.
pub fn accept_from(worker: &Rc<Worker>, sockets: Vec<Socket>, net: Range<usize>) {
    for Socket { listener, ticket } in sockets {
        match Door::of(listener) {
            Ok(door) => {
                tokio::task::spawn_local(accept(worker.clone(), door, ticket, net.clone()));
            }
            Err(error) => tracing::error!(%error, "a listener cannot be taken over"),
        }
    }
}

/// Accepts connections while the worker runs and the address is listened on.
async fn accept(worker: Rc<Worker>, door: Door, ticket: ListenerTicket, net: Range<usize>) {
    let mut next = net.start;
    let mut is_failing = false;
    loop {
        if worker.is_stopping() {
            return;
        }
        let visitor = tokio::select! {
            accepted = door.accept() => match accepted {
                Ok(visitor) => visitor,
                Err(error) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, "connections cannot be accepted");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = worker.stopping() => break,
            () = ticket.closing() => break,
        };
        if std::mem::take(&mut is_failing) {
            tracing::info!("connections are accepted again");
        }
        // While it waits, others wait in the queue of the listening socket.
        let visitor = tokio::select! {
            placed = with_place(&worker, visitor) => match placed {
                Some(visitor) => visitor,
                None => continue,
            },
            () = worker.stopping() => break,
            () = ticket.closing() => break,
        };
        // A Unix socket has one listener for all workers.
        let is_shared = worker.settings().accept_mode == AcceptMode::Reuseport
            && !matches!(door, Door::Unix(..));
        if is_shared || net.len() == 1 {
            admit(&worker, visitor);
            continue;
        }
        let target = next;
        next = if next + 1 == net.end { net.start } else { next + 1 };
        hand_over(&worker, target, visitor).await;
    }
    // Closed before the ticket is dropped, which tells that the listener is closed.
    drop(door);
}

/// Takes a place for a connection that begins with a TLS handshake or a PROXY header. `None`: there
/// are too many clients.
async fn with_place(worker: &Worker, mut visitor: Visitor<Fresh>) -> Option<Visitor<Fresh>> {
    if visitor.is_secure || is_proxied(worker, &visitor.addr) {
        let clients = &worker.node.clients;
        visitor.place = clients.arrive(worker.settings().maxclients as usize).await;
        if visitor.place.is_none() {
            // The client would not understand an error before the handshake or the header is over.
            clients.refusals.too_many(&visitor.addr);
            return None;
        }
    }
    Some(visitor)
}

/// Returns true if connections from an address begin with a PROXY header.
fn is_proxied(worker: &Worker, addr: &PeerAddr) -> bool {
    let proxies = &worker.settings().proxy_protocol;
    addr.ip().is_some_and(|ip| proxies.iter().any(|network| network.has(ip)))
}

/// Hands a connection to another worker.
async fn hand_over(worker: &Rc<Worker>, target: usize, visitor: Visitor<Fresh>) {
    if target == worker.id {
        admit(worker, visitor);
        return;
    }
    let Ok(visitor) = visitor.detach() else { return };
    let job = Message::Run(Box::new(move |worker: &Rc<Worker>| match visitor.attach() {
        Ok(visitor) => admit(worker, visitor),
        Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
    }));
    if worker.peers.mailboxes[target].send_urgent(job).await.is_err() {
        tracing::error!(target, "a worker is gone; a connection is dropped");
    }
}

/// Sets the options of a TCP connection. A socket that cannot be tuned still works.
fn tune(stream: &TcpStream, settings: &Settings) {
    let _ = stream.set_nodelay(true);
    if settings.tcp_keepalive_seconds > 0 {
        let idle = Duration::from_secs(u64::from(settings.tcp_keepalive_seconds));
        let keepalive = socket2::TcpKeepalive::new().with_time(idle).with_interval(idle / 3);
        let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive);
    }
}

/// The addresses of a connection, and the time of its arrival.
struct Guest {
    addr: PeerAddr,
    laddr: PeerAddr,
    /// Milliseconds since the Unix epoch.
    since_ms: u64,
}

/// Admits or refuses a connection: one that is secured or comes from a proxy after its beginning.
fn admit(worker: &Rc<Worker>, Visitor { stream, addr, is_secure, place }: Visitor<Fresh>) {
    let since_ms = worker.node.clock.now_ms();
    let stream = match stream {
        Fresh::Tcp(stream) => stream,
        Fresh::Unix(stream) => {
            let laddr = addr.clone();
            return enter(worker, Stream::Unix(stream), Guest { addr, laddr, since_ms });
        }
    };
    tune(&stream, &worker.settings());
    let laddr = stream.local_addr().map_or_else(|_| addr.clone(), PeerAddr::from);
    let is_proxied = is_proxied(worker, &addr);
    let guest = Guest { addr, laddr, since_ms };
    match place {
        // `proxy-protocol` may have changed since it was accepted.
        Some(place) if is_secure || is_proxied => {
            if let Some(greeting) = greeting::of(&worker.node, is_proxied, is_secure) {
                greeting::begin(worker, stream, guest, (greeting, place));
            }
        }
        _ if is_secure || is_proxied => {}
        _ => enter(worker, Stream::Tcp(stream), guest),
    }
}

/// Makes a connection a client, and serves it, or refuses it.
fn enter(worker: &Rc<Worker>, stream: Stream, Guest { addr, laddr, since_ms }: Guest) {
    if worker.is_stopping() {
        return;
    }
    let settings = worker.settings();
    if settings.protected_mode && !worker.node.access.accounts.needs_password() && !addr.is_local()
    {
        worker.node.clients.refusals.unprotected(&addr);
        refuse(
            worker,
            stream,
            "DENIED Flagstone is running in protected mode: no password is set. \
            Connect from the loopback address, set requirepass, or set protected-mode no.",
        );
        return;
    }
    let (id, fd) = (worker.id, stream.as_raw_fd());
    let is_unix = matches!(stream, Stream::Unix(_));
    let is_secured = matches!(stream, Stream::Tls(_));
    let (max, is_stranger) =
        (settings.maxclients as usize, worker.node.access.accounts.needs_password());
    let make = |n| {
        let client = Client::new(n, (addr.clone(), laddr), fd, id, since_ms);
        client.set(ClientState::UNIX, is_unix);
        client.set(ClientState::SECURED, is_secured);
        client
    };
    let Some(client) = worker.node.clients.admit(max, is_stranger, make) else {
        worker.node.clients.refusals.too_many(&addr);
        refuse(worker, stream, "ERR max number of clients reached");
        return;
    };
    worker.stats().connections.fetch_add(1, Ordering::Relaxed);
    worker.spawn_connection(connection::serve(worker.clone(), stream, client));
}

/// Tells a client why it is refused, and closes the connection.
fn refuse(worker: &Worker, mut stream: Stream, error: &'static str) {
    worker.spawn_connection(async move {
        let mut reply = Reply::default();
        reply.error(error);
        // The runtime does not know yet that a new socket takes bytes.
        let _ = tokio::time::timeout(REFUSAL_TIME, stream.writable()).await;
        // The client may have disconnected already.
        let _ = stream.try_write(reply.as_bytes());
        stream.close();
    });
}
