//! The beginning of a connection that is secured or comes from a proxy: the PROXY header and the TLS
//! handshake. They run on a thread for all workers, so that none of their clients waits for them.

use super::{Guest, enter};
use crate::clients::{Arrival, Refusals, STRANGER_TIME};
use crate::node::Node;
use crate::tls::TlsServer;
use crate::transport::{
    DetachedSecured, HandshakeError, PeerAddr, SecuredStream, Stream, read_header,
};
use crate::worker::{Message, Worker};
use rustls::ServerConnection;
use std::io::{ErrorKind, Result as IoResult};
use std::net::TcpStream as StdTcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;

/// The parts of a connection's beginning.
pub(super) struct Greeting {
    /// True if a PROXY header comes first.
    pub(super) is_proxied: bool,
    /// The server's side of a TLS handshake, if there is one.
    pub(super) tls: Option<TlsServer>,
}

/// Reason why a connection does not become a client.
enum Rejection {
    Proxy(String),
    Handshake(HandshakeError),
    /// It takes too long, or has to make room.
    Slow(&'static str),
}

/// A stream behind its beginning, which belongs to no runtime.
enum Greeted {
    Plain(StdTcpStream),
    Secured(Box<DetachedSecured>),
}

impl Greeted {
    fn attach(self) -> IoResult<Stream> {
        Ok(match self {
            Self::Plain(stream) => Stream::Tcp(TcpStream::from_std(stream)?),
            Self::Secured(stream) => Stream::Tls(Box::new(stream.attach()?)),
        })
    }
}

/// Begins a connection that has a place.
pub(super) fn begin(
    worker: &Rc<Worker>,
    tcp: TcpStream,
    mut guest: Guest,
    (greeting, place): (Greeting, Arrival),
) {
    let node = worker.node.clone();
    let Ok(tcp) = tcp.into_std() else { return };
    let mailbox = worker.peers.mailboxes[worker.id].clone();
    node.ports.handshakes.clone().spawn(async move {
        let is_secured = greeting.tls.is_some();
        let greeted = in_time(greet(tcp, greeting, &mut guest.addr, &place), &place).await;
        drop(place);
        let counted = match greeted {
            Ok(_) => &node.clients.handshakes,
            Err(_) => &node.clients.failed_handshakes,
        };
        counted.fetch_add(u64::from(is_secured), Ordering::Relaxed);
        let stream = match greeted {
            Ok(stream) => stream,
            Err(rejection) => {
                return count(&node.clients.refusals, &guest.addr, rejection, is_secured);
            }
        };
        let job = Message::Run(Box::new(move |worker: &Rc<Worker>| match stream.attach() {
            Ok(stream) => enter(worker, stream, guest),
            Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
        }));
        // The worker is gone at the end of the process only.
        let _ = mailbox.send_urgent(job).await;
    });
}

/// Limits the time of a beginning.
async fn in_time(
    greeting: impl Future<Output = Result<Greeted, Rejection>>,
    place: &Arrival,
) -> Result<Greeted, Rejection> {
    tokio::select! {
        greeted = greeting => greeted,
        () = tokio::time::sleep(STRANGER_TIME) => Err(Rejection::Slow("it was not complete in time")),
        () = place.ended() => Err(Rejection::Slow("it made room for others")),
    }
}

/// Reads the header, which may name another address, and performs the handshake.
async fn greet(
    tcp: StdTcpStream,
    greeting: Greeting,
    addr: &mut PeerAddr,
    place: &Arrival,
) -> Result<Greeted, Rejection> {
    let gone = |_| Rejection::Handshake(HandshakeError::Gone);
    let tcp = Arc::new(TcpStream::from_std(tcp).map_err(gone)?);
    place.waits_at(&tcp);
    tcp.readable().await.map_err(gone)?;
    place.proceeds();
    // The place had the other reference.
    let mut tcp = Arc::into_inner(tcp).ok_or(Rejection::Handshake(HandshakeError::Gone))?;
    if greeting.is_proxied {
        let named = read_header(&mut tcp).await.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Rejection::Proxy("it has disconnected".to_owned()),
            _ => Rejection::Proxy(error.to_string()),
        })?;
        if let Some(client) = named {
            *addr = addr.names(client);
        }
    }
    let Some(tls) = greeting.tls else {
        return Ok(Greeted::Plain(tcp.into_std().map_err(gone)?));
    };
    let failed =
        |error: rustls::Error| Rejection::Handshake(HandshakeError::Failed(error.to_string()));
    let session = ServerConnection::new(tls).map_err(failed)?;
    let secured = SecuredStream::accept(tcp, session).await.map_err(Rejection::Handshake)?;
    Ok(Greeted::Secured(Box::new(secured.detach().map_err(gone)?)))
}

/// Counts a connection that does not become a client.
fn count(refusals: &Refusals, addr: &PeerAddr, rejection: Rejection, is_secured: bool) {
    match rejection {
        Rejection::Proxy(reason) => refusals.unnamed(addr, reason),
        Rejection::Handshake(HandshakeError::NotTls) => refusals.plain_at_tls(addr),
        Rejection::Handshake(HandshakeError::Gone) => {
            refusals.handshake(addr, "it has disconnected".to_owned());
        }
        Rejection::Handshake(HandshakeError::Failed(reason)) => refusals.handshake(addr, reason),
        Rejection::Slow(reason) if is_secured => refusals.handshake(addr, reason.to_owned()),
        Rejection::Slow(reason) => refusals.unnamed(addr, reason.to_owned()),
    }
}

/// Returns the beginning of a connection, if it has one. `None`: the port for TLS is being closed.
pub(super) fn of(node: &Node, is_proxied: bool, is_secure: bool) -> Option<Greeting> {
    let tls = if is_secure { Some(node.ports.tls.get().clients?) } else { None };
    Some(Greeting { is_proxied, tls })
}
