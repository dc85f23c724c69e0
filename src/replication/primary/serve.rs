//! Serves the connection of one replica: the data set, if it needs one, and the stream.

use super::begin::begin_stream;
use super::copy::{self, DataPart};
use crate::clients::{Client, ClientState, count};
use crate::followers::{Follower, FollowerFacts, FollowerState, ReplicaWish, SyncWish};
use crate::node::Node;
use crate::transport::Stream;
use crate::worker::Worker;
use bytes::{Buf, BufMut, BytesMut};
use flagstone_commands::is_word;
use flagstone_storage::words::RoundWords;
use flagstone_wire::num::parse_u64;
use flagstone_wire::resp::reply::data_set_head;
use flagstone_wire::resp::{Args, Limits, Parsed, Parser, Reply};
use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::interval;

/// Interval of the signs of life while a data set is made.
const ALIVE: Duration = Duration::from_secs(1);

/// Parts of a data set that may wait to be sent.
const PARTS: usize = 4;

/// Bytes that are read at a time, and that a message of a replica may have.
const READ: usize = 16 << 10;
const MAX_MESSAGE: usize = 64 << 10;

/// Bytes after which other connections have a turn.
const TURN_BYTES: usize = 256 << 10;

/// Length of the mark at the end of a data set whose length is not known.
const MARK: usize = 40;

/// How long a tool that wants the data set only may take to disconnect.
const PARTING: Duration = Duration::from_secs(60);

/// The connection of a replica.
struct ReplicaLink<'a> {
    worker: &'a Rc<Worker>,
    stream: &'a mut Stream,
    client: &'a Client,
    buf: BytesMut,
    parser: Parser,
    follower: Arc<Follower>,
    /// True once it has acknowledged something.
    has_answered: bool,
}

/// Removes the replica from those of the node.
struct Joined<'a>(&'a Node, &'a Client);

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.0.followers.leave(self.1.id);
        self.1.set(ClientState::REPLICA, false);
    }
}

/// Serves a replica until its connection ends.
///
/// # Errors
/// The connection is broken, or the replica cannot be served any further.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    (stream, buf): (&mut Stream, BytesMut),
    client: &Client,
    told: ReplicaWish,
    wish: SyncWish,
) -> Result<()> {
    let node = &worker.node;
    let ip = if told.ip.is_empty() { client.addr.host() } else { told.ip };
    let data_set_only = told.data_set_only;
    let facts = FollowerFacts { ip, port: told.port, data_set_only };
    let follower = Arc::new(Follower::new(client.id, facts, node.clock.now_ms()));
    node.followers.join(follower.clone());
    client.set(ClientState::REPLICA, true);
    let _joined = Joined(node, client);
    let (parser, has_answered) = (Parser::new(), false);
    let mut link = ReplicaLink { worker, stream, client, buf, parser, follower, has_answered };
    let [full, partial, refused] = &node.followers.syncs;
    if let SyncWish::Psync(Some((id, offset))) = &wish {
        if let Some(own) = node.followers.continued(id, *offset, &link.follower) {
            partial.fetch_add(1, Ordering::Relaxed);
            link.say(&format!("CONTINUE {own}")).await?;
            link.follower.heard(Some(*offset), None, node.clock.now_ms());
            tracing::info!(client = client.id, addr = %client.addr, offset, "a replica goes on");
            return link.send_stream(&own, *offset).await;
        }
        refused.fetch_add(1, Ordering::Relaxed);
    }
    full.fetch_add(1, Ordering::Relaxed);
    tracing::info!(client = client.id, addr = %client.addr, "a replica gets the whole data set");
    if let Err(error) = begin_stream(worker).await {
        let mut out = Reply::default();
        out.error(error.text);
        return link.write(out.as_bytes()).await;
    }
    let marks = told.takes_marks && worker.settings().repl_diskless_sync;
    let (id, offset) = link.send_data(wish == SyncWish::Sync, marks).await?;
    if data_set_only {
        return link.part().await;
    }
    // A replica finds the mark at the end of what it has read: nothing may follow it.
    while marks && !link.has_answered {
        poll_fn(|cx| link.stream.poll_readable(cx)).await?;
        link.listen()?;
    }
    link.send_stream(&id, offset).await
}

impl ReplicaLink<'_> {
    fn node(&self) -> &Arc<Node> {
        &self.worker.node
    }

    /// Writes a line.
    async fn say(&mut self, line: &str) -> Result<()> {
        let mut out = Reply::default();
        out.simple(line);
        self.write(out.as_bytes()).await
    }

    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let stats = self.worker.stats();
        count(&stats.writes, 1);
        count(&self.client.bytes_out, bytes.len() as u64);
        stats.bytes_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.node().followers.bytes_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    if self.follower.state() != FollowerState::Online {
                        // It takes the data set, and has nothing else to say.
                        self.follower.heard(None, None, self.node().clock.now_ms());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.drain().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until more can be sent, and listens meanwhile: a replica that does not read now may say how far
    /// it is.
    async fn drain(&mut self) -> Result<()> {
        loop {
            let is_writable = poll_fn(|cx| match self.stream.poll_writable(cx) {
                Poll::Ready(writable) => Poll::Ready(writable.map(|()| true)),
                Poll::Pending => self.stream.poll_readable(cx).map_ok(|()| false),
            });
            match is_writable.await? {
                true => return Ok(()),
                false => self.listen()?,
            }
        }
    }

    /// Makes the data set and sends it; `marks`: a mark ends it. Returns the id of the stream, and the
    /// offset at which it begins.
    async fn send_data(&mut self, is_old: bool, marks: bool) -> Result<(String, u64)> {
        let (sender, mut parts) = mpsc::channel(PARTS);
        let making = copy::make(self.node().clone(), self.follower.clone(), !marks, sender);
        self.node().background.spawn(making);
        let mark: String = crate::replica::new_id();
        debug_assert_eq!(mark.len(), MARK, "a mark is as long as an id");
        let (mut begin, mut has_begun) = (None, false);
        while let Some(part) = self.next_part(&mut parts, has_begun).await? {
            match part {
                DataPart::At(lsn) => {
                    let ended = || Error::other("the stream has ended");
                    let reached = self.node().followers.reached(lsn).await;
                    let (id, at, _) = reached.ok_or_else(ended)?;
                    // It need not know the database that the stream has selected.
                    self.worker.say_words(RoundWords::reselect);
                    if !self.follower.facts.data_set_only {
                        self.follower.set_needs(at);
                    }
                    self.follower.set_state(FollowerState::ReceivesData);
                    if !is_old {
                        self.say(&format!("FULLRESYNC {id} {at}")).await?;
                    }
                    begin = Some((id, at));
                }
                DataPart::Length(length) => {
                    has_begun = true;
                    self.write(&data_set_head(&length.to_string())).await?;
                }
                DataPart::Bytes(bytes) => {
                    if !std::mem::replace(&mut has_begun, true) {
                        self.write(&data_set_head(&format!("EOF:{mark}"))).await?;
                    }
                    self.write(&bytes).await?;
                    self.worker.turns.end().await;
                }
                DataPart::End => {
                    if marks {
                        self.write(mark.as_bytes()).await?;
                    }
                    return begin.ok_or_else(|| Error::other("a data set of no record"));
                }
            }
        }
        Err(Error::other("there is no data set"))
    }

    /// Returns the next part of the data set; before the first bytes, the replica gets signs of life.
    async fn next_part(
        &mut self,
        parts: &mut mpsc::Receiver<DataPart>,
        has_begun: bool,
    ) -> Result<Option<DataPart>> {
        let mut alive = interval(ALIVE);
        alive.reset();
        loop {
            tokio::select! {
                biased;
                part = parts.recv() => return Ok(part),
                _ = alive.tick() => {
                    self.follower.heard(None, None, self.node().clock.now_ms());
                    if !has_begun {
                        self.write(b"\n").await?;
                    }
                }
                readable = poll_fn(|cx| self.stream.poll_readable(cx)) => {
                    readable?;
                    self.listen()?;
                }
            }
        }
    }

    /// Sends a stream from an offset on, until the connection ends.
    async fn send_stream(&mut self, id: &str, from: u64) -> Result<()> {
        self.follower.set_state(FollowerState::Online);
        self.follower.heard(None, None, self.node().clock.now_ms());
        let mut grown = self.node().followers.watch();
        let (mut at, mut sent) = (from, 0);
        loop {
            grown.mark_unchanged();
            let Some(bytes) = self.node().followers.read(id, at) else {
                return Err(Error::other("the stream is not in memory any more"));
            };
            if bytes.is_empty() {
                sent = 0;
                self.wait(&mut grown).await?;
                continue;
            }
            let chunk = &bytes[..bytes.len().min(TURN_BYTES)];
            self.write(chunk).await?;
            at += chunk.len() as u64;
            sent += chunk.len();
            self.follower.set_needs(at);
            if sent >= TURN_BYTES {
                sent = 0;
                self.listen()?;
                self.worker.turns.end().await;
            }
        }
    }

    /// Waits until there is more to send, and listens meanwhile.
    async fn wait(&mut self, grown: &mut watch::Receiver<u64>) -> Result<()> {
        tokio::select! {
            _ = grown.changed() => Ok(()),
            readable = poll_fn(|cx| self.stream.poll_readable(cx)) => {
                readable?;
                self.listen()
            }
        }
    }

    /// Waits until a tool has disconnected that wanted the data set only.
    async fn part(&mut self) -> Result<()> {
        let parting = async {
            loop {
                poll_fn(|cx| self.stream.poll_readable(cx)).await?;
                self.listen()?;
            }
        };
        tokio::time::timeout(PARTING, parting).await.unwrap_or(Ok(()))
    }

    /// Reads the messages that have arrived.
    fn listen(&mut self) -> Result<()> {
        self.buf.reserve(READ);
        match self.stream.try_read_buf(&mut (&mut self.buf).limit(READ)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => count(&self.client.bytes_in, n as u64),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let limits = Limits { max_bulk: MAX_MESSAGE, ..Limits::default() };
        loop {
            let parsed = self.parser.parse(&self.buf, &limits);
            match parsed.map_err(|_| Error::from(ErrorKind::InvalidData))? {
                Parsed::Incomplete { .. } if self.buf.len() > MAX_MESSAGE => {
                    return Err(ErrorKind::InvalidData.into());
                }
                Parsed::Incomplete { .. } => return Ok(()),
                Parsed::Empty => self.heard(Args::new(&[], &[])),
                Parsed::Command => {
                    let (parser, buf) = (take(&mut self.parser), take(&mut self.buf));
                    self.heard(parser.args(&buf));
                    (self.parser, self.buf) = (parser, buf);
                }
            }
            self.buf.advance(self.parser.consumed());
        }
    }

    /// Notes a message. Only acknowledgements mean something; an empty line is a sign of life.
    fn heard(&mut self, args: Args<'_>) {
        let now_ms = self.node().clock.now_ms();
        self.client.seen_at(now_ms);
        let is_ack = |at: usize| {
            args.get(at).is_some_and(|word| is_word(word, "ack") || is_word(word, "fack"))
        };
        let (mut applied, mut stored) = (None, None);
        let acks = &self.node().followers.acks;
        if args.get(0).is_some_and(|word| is_word(word, "replconf")) {
            for at in (1..args.len()).step_by(2).filter(|at| is_ack(*at)) {
                let offset = args.get(at + 1).and_then(parse_u64);
                match args.get(at).is_some_and(|word| is_word(word, "ack")) {
                    true => applied = offset,
                    false => stored = offset,
                }
            }
            let lease = args.get(5).filter(|word| is_word(word, "lease"));
            let question = lease.and_then(|_| acks.number_of(args.get(6)?));
            question.into_iter().for_each(|question| self.follower.answers(question));
        }
        self.has_answered |= applied.is_some();
        // It has no more than it was sent.
        let is_online = self.follower.state() == FollowerState::Online;
        let sent = if is_online { self.follower.needs() } else { 0 };
        let [applied, stored] = [applied, stored].map(|offset| offset.map(|own| own.min(sent)));
        self.follower.heard(applied, stored, now_ms);
        if applied.or(stored).is_some() {
            self.node().followers.confirm();
            self.node().followers.acknowledged.notify_waiters();
        }
    }
}
