//! Takes connections from the listening sockets: admits or refuses each, and gives it to a worker.

use crate::clients::{Client, ClientState};
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

/// A listening socket, as the runtime of the accepting worker has it.
enum Door {
    Tcp(TcpListener),
    Unix(UnixListener, Arc<str>),
}

impl Door {
    fn of(listener: Listener) -> Result<Self> {
        socket2::SockRef::from(&listener).set_nonblocking(true)?;
        Ok(match listener {
            Listener::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener)?),
            Listener::Unix(listener, path) => Self::Unix(UnixListener::from_std(listener)?, path),
        })
    }

    async fn accept(&self) -> Result<Visitor<Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                Visitor { stream: Stream::Tcp(stream), addr: addr.into() }
            }
            Self::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                Visitor { stream: Stream::Unix(stream), addr: PeerAddr::Unix(path.clone()) }
            }
        })
    }
}

/// A connection that was taken from a listening socket, and not admitted yet.
struct Visitor<S> {
    stream: S,
    addr: PeerAddr,
}

/// A stream that belongs to no runtime, on its way from one to another.
enum Detached {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Visitor<Stream> {
    fn detach(self) -> Result<Visitor<Detached>> {
        let stream = match self.stream {
            Stream::Tcp(stream) => Detached::Tcp(stream.into_std()?),
            Stream::Unix(stream) => Detached::Unix(stream.into_std()?),
        };
        Ok(Visitor { stream, addr: self.addr })
    }
}

impl Visitor<Detached> {
    fn attach(self) -> Result<Visitor<Stream>> {
        let stream = match self.stream {
            Detached::Tcp(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Detached::Unix(stream) => Stream::Unix(UnixStream::from_std(stream)?),
        };
        Ok(Visitor { stream, addr: self.addr })
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
        // A Unix socket has one listener for all workers.
        let is_shared =
            worker.settings().accept_mode == AcceptMode::Reuseport && matches!(door, Door::Tcp(_));
        if is_shared || net.len() == 1 {
            admit(&worker, visitor);
            continue;
        }
        let target = next;
        next = if next + 1 == net.end { net.start } else { next + 1 };
        hand_over(&worker, target, visitor).await;
    }
    // Before the ticket, which tells that the listener is closed.
    drop(door);
}

/// Hands a connection to another worker.
async fn hand_over(worker: &Rc<Worker>, target: usize, visitor: Visitor<Stream>) {
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

/// Admits or refuses a connection.
fn admit(worker: &Rc<Worker>, Visitor { mut stream, addr }: Visitor<Stream>) {
    let settings = worker.settings();
    let laddr = match &stream {
        Stream::Tcp(stream) => {
            tune(stream, &settings);
            stream.local_addr().map_or_else(|_| addr.clone(), PeerAddr::from)
        }
        Stream::Unix(_) => addr.clone(),
    };
    if settings.protected_mode && !worker.node.accounts.needs_password() && !addr.is_local() {
        worker.node.clients.refusals.unprotected(&addr);
        refuse(
            &mut stream,
            "DENIED Flagstone is running in protected mode: no password is set. \
            Connect from the loopback address, set requirepass, or set protected-mode no.",
        );
        return;
    }
    let now_ms = worker.node.clock.now_ms();
    let (id, fd) = (worker.id, stream.as_raw_fd());
    let is_unix = matches!(stream, Stream::Unix(_));
    let (max, is_stranger) = (settings.maxclients as usize, worker.node.accounts.needs_password());
    let make = |n| {
        let client = Client::new(n, (addr.clone(), laddr), fd, id, now_ms);
        client.set(ClientState::UNIX, is_unix);
        client
    };
    let Some(client) = worker.node.clients.admit(max, is_stranger, make) else {
        worker.node.clients.refusals.too_many(&addr);
        refuse(&mut stream, "ERR max number of clients reached");
        return;
    };
    worker.stats().connections.fetch_add(1, Ordering::Relaxed);
    worker.spawn_connection(connection::serve(worker.clone(), stream, client));
}

fn refuse(stream: &mut Stream, error: &'static str) {
    let mut reply = Reply::default();
    reply.error(error);
    // The client may have disconnected already.
    let _ = stream.try_write(reply.as_bytes());
}
