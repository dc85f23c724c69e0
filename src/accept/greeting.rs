//! The beginning of a connection that is secured: its handshake, which runs on a thread for all
//! workers, so that none of their clients waits for it.

use super::{Guest, enter};
use crate::clients::{Arrival, STRANGER_TIME};
use crate::node::Node;
use crate::tls::TlsServer;
use crate::transport::{DetachedSecured, HandshakeError, PeerAddr, SecuredStream, Stream};
use crate::worker::{Message, Worker};
use rustls::ServerConnection;
use std::net::TcpStream as StdTcpStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::net::TcpStream;

/// Begins the handshake with a client of the port for TLS.
pub(super) fn begin(worker: &Rc<Worker>, tcp: TcpStream, guest: Guest) {
    let node = worker.node.clone();
    let Some(place) = node.clients.arrive(worker.settings().maxclients as usize) else {
        // It would not understand an error before the handshake.
        node.clients.refusals.too_many(&guest.addr);
        return;
    };
    // The port is being closed if there is no server's side any more.
    let (Some(tls), Ok(tcp)) = (node.tls.get(), tcp.into_std()) else { return };
    let mailbox = worker.peers.mailboxes[worker.id].clone();
    let handshakes = node.handshakes.clone();
    handshakes.spawn(async move {
        let greeted = greet(tcp, tls, &place).await;
        drop(place);
        let secured = match greeted {
            Ok(secured) => secured,
            Err(error) => return refused(&node, &guest.addr, error),
        };
        node.clients.handshakes.fetch_add(1, Ordering::Relaxed);
        let job = Message::Run(Box::new(move |worker: &Rc<Worker>| match secured.attach() {
            Ok(secured) => enter(worker, Stream::Tls(Box::new(secured)), guest),
            Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
        }));
        // The worker is gone at the end of the process only.
        let _ = mailbox.send_urgent(job).await;
    });
}

/// Performs the handshake, in time.
async fn greet(
    tcp: StdTcpStream,
    tls: TlsServer,
    place: &Arrival,
) -> Result<DetachedSecured, HandshakeError> {
    let failed = |reason: &str| Err(HandshakeError::Failed(reason.to_owned()));
    let gone = |_| HandshakeError::Gone;
    let tcp = TcpStream::from_std(tcp).map_err(gone)?;
    let session =
        ServerConnection::new(tls).map_err(|error| HandshakeError::Failed(error.to_string()))?;
    tokio::select! {
        accepted = SecuredStream::accept(tcp, session) => accepted?.detach().map_err(gone),
        () = tokio::time::sleep(STRANGER_TIME) => failed("it was not complete in time"),
        () = place.ended() => failed("it made room for others"),
    }
}

/// Counts a handshake that has failed.
fn refused(node: &Node, addr: &PeerAddr, error: HandshakeError) {
    let refusals = &node.clients.refusals;
    match error {
        HandshakeError::NotTls => refusals.plain_at_tls(addr),
        HandshakeError::Gone => refusals.handshake(addr, "it has disconnected".to_owned()),
        HandshakeError::Failed(reason) => refusals.handshake(addr, reason),
    }
    node.clients.failed_handshakes.fetch_add(1, Ordering::Relaxed);
}
