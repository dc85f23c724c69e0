//! A session of the server for one HTTP request.
//!
//! The request's end is one of a pair of connected sockets; the other one is served by a worker as
//! any connection is. The client of the HTTP request is that session's client, with its address.

use super::access::{Caller, Ends};
use super::answer::{Denial, charged};
use super::sent::SentCommands;
use super::serve::SeatedWork;
use super::values::ReplyScan;
use super::{LoadedServer, Site};
use crate::clients::{Client, ClientState};
use crate::command::registry;
use crate::connection;
use crate::transport::Stream;
use crate::worker::Worker;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use flagstone_wire::client_memory::Taken;
use std::borrow::Cow;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// Maximum size of all replies to a request, in bytes.
const MAX_REPLIES_BYTES: usize = 16 << 20;

const TOO_LARGE: &str = "ERR the replies are larger than this port sends; ask for less at once";
const ENDED: &str = "ERR the server has ended the session";

/// The request's end of the sockets.
type SessionEnds = (OwnedReadHalf, OwnedWriteHalf);

/// The session.
pub(super) struct Errand {
    session: SessionEnds,
    _work: SeatedWork,
}

impl Errand {
    /// Begins a session on a worker, and authenticates it if the caller has credentials.
    ///
    /// # Errors
    /// The server is loading, has too many clients, or does not accept the credentials.
    pub(super) async fn begin(site: &Site, caller: &Caller) -> Result<Self, Denial> {
        let running = site.loaded().ok_or_else(|| {
            Denial::unavailable("LOADING Flagstone is loading the dataset in memory")
        })?;
        if caller.credentials.is_some() {
            may_log_in(caller)?;
        }
        let ended = |_| Denial::unavailable(ENDED);
        let (own, other) = StdUnixStream::pair().map_err(cannot_begin)?;
        own.set_nonblocking(true).and(other.set_nonblocking(true)).map_err(cannot_begin)?;
        let own = UnixStream::from_std(own).map_err(cannot_begin)?;
        let ends = caller.ends;
        let attach = move |worker: Rc<Worker>| async move { attach(&worker, other, ends) };
        let worker = worker_of(site, running);
        if !running.peers.on_worker(worker, true, attach).await.map_err(ended)? {
            return Err(Denial::unavailable("ERR max number of clients reached"));
        }
        let (input, output) = own.into_split();
        let mut session = (input, output);
        if let Some(given) = &caller.credentials {
            let login = [called("auth")?, &given.user[..], &given.password[..]];
            let reply = run(&mut session, SentCommands::of(login)?).await?;
            if let Some(text) = super::values::error_of(&reply) {
                drop(session);
                return Err(kept_back(site, caller, text).await);
            }
            site.guard.right(ends.peer.ip());
        }
        Ok(Self { session, _work: caller.seat.begin_work() })
    }

    /// Sends commands, and returns the bytes of their replies.
    ///
    /// # Errors
    /// The session has ended, or the replies are too large.
    pub(super) async fn run(&mut self, commands: SentCommands) -> Result<Bytes, Denial> {
        run(&mut self.session, commands).await
    }
}

async fn run((input, output): &mut SessionEnds, commands: SentCommands) -> Result<Bytes, Denial> {
    let reading = read(input, commands.count());
    let sending = async move {
        // A session that has ended is found by reading.
        let _ = output.write_all(commands.bytes()).await;
        drop(commands);
        Ok(())
    };
    let ((), replies) = tokio::try_join!(sending, reading)?;
    Ok(replies)
}

/// Reads replies, which count as the clients' memory until the last part of them is dropped.
async fn read(input: &mut OwnedReadHalf, count: usize) -> Result<Bytes, Denial> {
    let (mut buf, mut taken, mut scan) =
        (BytesMut::with_capacity(4096), Taken::default(), ReplyScan::new(count));
    while !scan.find_end(&buf).map_err(|_| Denial::unavailable("ERR the reply is malformed"))? {
        let wanted = scan.missing(buf.len());
        if buf.len().saturating_add(wanted) > MAX_REPLIES_BYTES {
            return Err(Denial::new(StatusCode::PAYLOAD_TOO_LARGE, TOO_LARGE));
        }
        // The buffer doubles each time, so the bytes that are copied stay in proportion to those
        // read.
        let more = wanted.max(buf.len()).max(4096);
        if buf.capacity() - buf.len() < wanted.clamp(1, 4096) {
            if !taken.try_set(buf.len() + more) {
                return Err(Denial::no_memory());
            }
            buf.reserve(more);
        }
        match input.read_buf(&mut buf).await {
            Ok(0) | Err(_) => return Err(Denial::unavailable(ENDED)),
            Ok(_) => {}
        }
    }
    Ok(charged(buf.freeze(), taken))
}

/// Refuses credentials without a look at them while many wrong ones of their address wait for their answers.
/// These keep places, and some have to be left for requests without credentials.
///
/// # Errors
/// That is so.
pub(super) fn may_log_in(caller: &Caller) -> Result<(), Denial> {
    if caller.seat.may_log_in() {
        return Ok(());
    }
    let text = "ERR too many wrong passwords of this address at once: try again in some seconds";
    Err(Denial::new(StatusCode::TOO_MANY_REQUESTS, text))
}

/// Returns the answer to wrong credentials, after a delay that grows with their number. Meanwhile the
/// connection keeps its place, also if the client leaves: otherwise the bound of connections would
/// not bound the guesses of an address.
pub(super) async fn kept_back(
    site: &Site,
    caller: &Caller,
    text: impl Into<Cow<'static, str>>,
) -> Denial {
    let now = Instant::now();
    let end = now + site.guard.wrong(caller.ends.peer.ip(), now);
    caller.seat.keep_until(end);
    tokio::time::sleep_until(end.into()).await;
    Denial::unauthorized(text)
}

fn cannot_begin(error: std::io::Error) -> Denial {
    Denial::unavailable(format!("ERR no session can begin: {error}"))
}

/// Returns the name by which clients know a command.
///
/// # Errors
/// `rename-command` has taken it away.
pub(super) fn called(declared: &str) -> Result<&'static [u8], Denial> {
    let command = registry::declared(declared).and_then(registry::name_of);
    command.ok_or_else(|| Denial::unavailable(format!("ERR the command '{declared}' is disabled")))
}

/// Returns the worker of the next session: those that serve connections, in turn.
fn worker_of(site: &Site, running: &LoadedServer) -> usize {
    let node = &running.node;
    let first = if node.workers == node.shard_workers { 0 } else { node.shard_workers };
    first + site.errands.fetch_add(1, Ordering::Relaxed) % (node.workers - first)
}

/// Lets a worker serve the other end; returns false if there are too many clients.
fn attach(worker: &Rc<Worker>, stream: StdUnixStream, ends: Ends) -> bool {
    let stream = match UnixStream::from_std(stream) {
        Ok(stream) => Stream::Unix(stream),
        Err(error) => {
            tracing::warn!(%error, "a session of the HTTP port cannot be served");
            return false;
        }
    };
    let fd = stream.as_raw_fd();
    let (node, settings) = (&worker.node, worker.settings());
    let (id, now_ms) = (worker.id, node.clock.now_ms());
    let make = |n| Client::new(n, (ends.peer.into(), ends.local.into()), fd, id, now_ms);
    let (max, is_stranger) = (settings.maxclients as usize, node.access.accounts.needs_password());
    let Some(client) = node.clients.admit(max, is_stranger, make) else {
        node.clients.refusals.too_many(&ends.peer.into());
        return false;
    };
    client.set(ClientState::HTTP, true);
    worker.stats().connections.fetch_add(1, Ordering::Relaxed);
    worker.spawn_connection(connection::serve(Rc::clone(worker), stream, client));
    true
}
