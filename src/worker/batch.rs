//! Commands that a connection sends to another worker, and the replies that come back.

use super::execute::{OwnedCommand, Ran};
use super::rounds::Shown;
use super::{RoundError, Worker, WorkerStats};
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
    /// Whose replies they are, and the greatest round that each shows.
    seen: Vec<(&'static Command, u64)>,
    /// What all of them show.
    shown: Shown,
    to: oneshot::Sender<BatchReply>,
}

impl Worker {
    /// Runs a batch. Its replies leave once what they show may be shown.
    pub(crate) fn run_batch(self: &Rc<Self>, batch: &CmdBatch, to: oneshot::Sender<BatchReply>) {
        let mut out = Reply::new(Proto::Resp2);
        let mut ends = Vec::with_capacity(batch.len());
        let mut seen = Vec::with_capacity(batch.len());
        let mut shown = Shown::default();
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
                Ok(round) => {
                    self.rounds.see(round, &mut shown);
                    seen.push((item.command, round));
                }
                Err(blocked) => {
                    seen.push((item.command, 0));
                    let owned = OwnedCommand::new(item.command, args, item.request);
                    parked.push((n, self.park(owned, blocked)));
                }
            }
            ends.push(out.len());
        }
        let reply = BatchReply { bytes: out.into_bytes(), ends };
        let held = Held { reply, seen, shown, to };
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
        let to_disk = self.is_always();
        if self.rounds.is_stored(&held.shown, to_disk) {
            // The connection may be gone: then nobody wants the replies.
            let _ = held.to.send(held.reply);
            return;
        }
        let is_known = self.rounds.is_known(&held.shown, to_disk);
        self.held.borrow_mut().push_back(held);
        if is_known {
            self.release_held();
        }
    }

    /// Sends the held replies that may be shown by now.
    pub(crate) fn release_held(&self) {
        let to_disk = self.is_always();
        self.held.borrow_mut().retain_mut(|held| {
            if !self.rounds.is_known(&held.shown, to_disk) {
                return true;
            }
            let mut reply = std::mem::take(&mut held.reply);
            if !self.rounds.is_stored(&held.shown, to_disk) {
                reply = reply.with_failures(
                    &held.seen,
                    |round| self.rounds.failure(&held.shown, round, to_disk),
                    self.stats(),
                );
            }
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
        let Self { reply, mut seen, mut shown, to } = self;
        let mut whole = BatchReply::default();
        let mut late = late.into_iter().peekable();
        for (n, (_, round)) in seen.iter_mut().enumerate() {
            match late.next_if(|(at, _)| *at == n) {
                Some((_, mut ran)) => {
                    *round = ran.shown.round();
                    shown.add(std::mem::take(&mut ran.shown));
                    whole.bytes.extend_from_slice(&ran.into_reply(Proto::Resp2));
                }
                None => whole.bytes.extend_from_slice(reply.get(n).unwrap_or_default()),
            }
            whole.ends.push(whole.bytes.len());
        }
        Self { reply: whole, seen, shown, to }
    }
}

impl BatchReply {
    /// Puts an error in the place of each reply that shows a round which failed, and counts it.
    fn with_failures(
        self,
        seen: &[(&'static Command, u64)],
        failure: impl Fn(u64) -> Option<RoundError>,
        stats: &WorkerStats,
    ) -> Self {
        let mut out = Self::default();
        for (n, &(command, round)) in seen.iter().enumerate() {
            let reply = self.get(n).unwrap_or_default();
            stats.give(&mut out.bytes, Some(command), reply, failure(round));
            out.ends.push(out.bytes.len());
        }
        out
    }
}
