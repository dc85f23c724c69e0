//! Commands that a connection sends to another worker, and the replies that come back.

use super::execute::{OwnedCommand, Ran};
use super::{RoundError, Worker};
use crate::commands::registry::Command;
use crate::resp::{Args, Proto, Reply};
use flagstone_storage::KeyHash;
use std::rc::Rc;
use tokio::sync::oneshot;

/// What a command needs to know of its session.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub db: u32,
    pub proto: Proto,
    pub touch: bool,
    /// The connection.
    pub client: u64,
    /// The connection wants to hear when what it reads changes.
    pub track: bool,
    /// It has waited, and runs again as there may be something for it.
    pub again: bool,
    /// At a coordinator: keys that have expired are there until somebody else finds them (DEBUG).
    pub sees_expired: bool,
}

impl Request {
    /// Of a command that the server runs itself; its reply is in RESP2.
    pub fn of_nobody(db: u32) -> Self {
        Self {
            db,
            proto: Proto::Resp2,
            touch: false,
            client: 0,
            track: false,
            again: false,
            sees_expired: false,
        }
    }
}

/// One command of a batch: its arguments are ranges of the batch's bytes.
#[derive(Debug)]
struct BatchCommand {
    command: &'static Command,
    request: Request,
    at: Option<KeyHash>,
    args: std::ops::Range<u32>,
}

/// Consecutive commands of one connection for one worker.
#[derive(Debug, Default)]
pub struct CmdBatch {
    bytes: Vec<u8>,
    ranges: Vec<(u32, u32)>,
    commands: Vec<BatchCommand>,
}

impl CmdBatch {
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Bytes of the arguments.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a command; its arguments are copied.
    pub fn push(
        &mut self,
        command: &'static Command,
        request: Request,
        at: Option<KeyHash>,
        args: Args<'_>,
    ) {
        let first = self.ranges.len() as u32;
        for arg in args.iter() {
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(arg);
            self.ranges.push((start, self.bytes.len() as u32));
        }
        let args = first..self.ranges.len() as u32;
        self.commands.push(BatchCommand { command, request, at, args });
    }
}

/// The replies of a batch, in order.
#[derive(Debug, Default)]
pub struct BatchReply {
    bytes: Vec<u8>,
    /// Where each reply ends.
    ends: Vec<usize>,
}

impl BatchReply {
    /// The `n`-th reply.
    pub fn get(&self, n: usize) -> Option<&[u8]> {
        let end = *self.ends.get(n)?;
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        self.bytes.get(start..end)
    }
}

/// A batch's replies, held until what they show may be shown.
#[derive(Debug)]
pub(crate) struct Held {
    reply: BatchReply,
    /// The greatest round that each reply shows.
    seen: Vec<u64>,
    /// The greatest of these.
    round: u64,
    to: oneshot::Sender<BatchReply>,
}

impl Worker {
    /// Runs a batch. Its replies leave once what they show may be shown.
    pub(crate) fn run_batch(self: &Rc<Self>, batch: &CmdBatch, to: oneshot::Sender<BatchReply>) {
        let mut out = Reply::new(Proto::Resp2);
        let mut ends = Vec::with_capacity(batch.len());
        let mut seen = Vec::with_capacity(batch.len());
        let mut parked = Vec::new();
        let settings = self.settings();
        let now_ms = self.node.clock.now_ms();
        self.warm(batch);
        self.start_watch();
        for (n, item) in batch.commands.iter().enumerate() {
            let ranges = &batch.ranges[item.args.start as usize..item.args.end as usize];
            let args = Args::new(&batch.bytes, ranges);
            out.set_proto(item.request.proto);
            let ran = self.execute(
                item.command,
                args,
                item.request,
                item.at,
                now_ms,
                &settings,
                &mut out,
            );
            match ran {
                Ok(round) => seen.push(round),
                Err(blocked) => {
                    seen.push(0);
                    let owned = OwnedCommand::new(item.command, args, item.request);
                    parked.push((n, self.park(owned, blocked)));
                }
            }
            ends.push(out.len());
        }
        let reply = BatchReply { bytes: out.into_bytes(), ends };
        let round = seen.iter().copied().max().unwrap_or(0);
        let held = Held { reply, seen, round, to };
        if parked.is_empty() {
            self.hold(held);
        } else {
            let worker = self.clone();
            tokio::task::spawn_local(async move { worker.hold(held.complete(parked).await) });
        }
    }

    /// Touches the keys of a batch, all together.
    fn warm(&self, batch: &CmdBatch) {
        let store = &self.partition.borrow().store;
        let keys = batch.commands.iter().filter_map(|item| Some((item.request.db, item.at?)));
        keys.for_each(|(db, at)| store.warm(db, at));
    }

    /// Sends replies now if they may be shown, else when they may.
    fn hold(&self, held: Held) {
        let round = held.round;
        let to_disk = self.is_always();
        if self.rounds.is_shown(held.round, to_disk) {
            // The connection may be gone: then nobody wants the replies.
            let _ = held.to.send(held.reply);
            return;
        }
        self.held.borrow_mut().push_back(held);
        if self.rounds.outcome(round, to_disk).is_some() {
            self.release_held();
        }
    }

    /// Sends the held replies that may be shown by now.
    pub(crate) fn release_held(&self) {
        let to_disk = self.is_always();
        self.held.borrow_mut().retain_mut(|held| {
            if self.rounds.outcome(held.round, to_disk).is_none() {
                return true;
            }
            let reply = std::mem::take(&mut held.reply);
            let reply = reply.with_failures(&held.seen, |round| {
                self.rounds.outcome(round, to_disk).and_then(Result::err)
            });
            let to = std::mem::replace(&mut held.to, oneshot::channel().0);
            let _ = to.send(reply);
            false
        });
    }
}

impl Held {
    /// Waits for the parked commands and puts their replies in their places.
    async fn complete(self, parked: Vec<(usize, oneshot::Receiver<Ran>)>) -> Self {
        let mut late = Vec::new();
        for (n, done) in parked {
            late.push((n, done.await.unwrap_or_else(|_| Ran::abandoned())));
        }
        let Self { reply, mut seen, to, .. } = self;
        let mut whole = BatchReply::default();
        let mut late = late.into_iter().peekable();
        for (n, round) in seen.iter_mut().enumerate() {
            match late.next_if(|(at, _)| *at == n) {
                Some((_, ran)) => {
                    *round = ran.seen;
                    whole.bytes.extend_from_slice(&ran.into_reply(Proto::Resp2));
                }
                None => whole.bytes.extend_from_slice(reply.get(n).unwrap_or_default()),
            }
            whole.ends.push(whole.bytes.len());
        }
        let round = seen.iter().copied().max().unwrap_or(0);
        Self { reply: whole, seen, round, to }
    }
}

impl BatchReply {
    /// Puts an error in the place of each reply that shows a round which failed.
    fn with_failures(self, seen: &[u64], failure: impl Fn(u64) -> Option<RoundError>) -> Self {
        if seen.iter().all(|&round| failure(round).is_none()) {
            return self;
        }
        let mut out = Self::default();
        for (n, &round) in seen.iter().enumerate() {
            match failure(round) {
                Some(RoundError(text)) => {
                    out.bytes.extend_from_slice(format!("-{text}\r\n").as_bytes());
                }
                None => out.bytes.extend_from_slice(self.get(n).unwrap_or_default()),
            }
            out.ends.push(out.bytes.len());
        }
        out
    }
}
