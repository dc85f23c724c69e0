//! Batches of commands that a connection sends to another worker, and their replies.
//!
//! A batch runs in order, until its replies take `MAX_REPLIES` bytes: the commands left are sent
//! back, and run once the connection has written those replies. Parked commands are waited for. The
//! replies are held until all rounds that they show are stored or have failed.

use super::Worker;
use super::execute::Ran;
use super::hop::SlotKey;
use super::parked::Room;
use super::rounds::Shown;
use crate::command::{Answer, Command, Invocation, Outcome, OwnedCommand, Request, RoundError};
use crate::config::Settings;
use crate::node::WorkerStats;
use flagstone_storage::KeyHash;
use flagstone_wire::resp::{Args, Proto, Reply};
use std::ops::Range;
use std::rc::Rc;
use tokio::sync::oneshot;

/// One command of a batch: its arguments are ranges of the batch's bytes.
#[derive(Debug)]
struct BatchCommand {
    command: &'static Command,
    request: Request,
    at: Option<KeyHash>,
    args: Range<u32>,
}

/// Bytes of a connection's replies after which its further commands wait until these are written.
/// This bounds its memory to so many bytes and one reply, whatever it asks for and whether it reads
/// or not.
pub const MAX_REPLIES: usize = 1 << 20;

/// Maximum size of a short batch, in commands and in bytes of their arguments.
const FEW: usize = 16;
pub(super) const FEW_BYTES: usize = 16 << 10;

/// Maximum number of bytes of replies whose memory is kept.
const KEEP_REPLY: usize = 16 << 10;

/// Number of arguments, and of commands, beyond which memory of an empty batch is freed.
const KEEP_ITEMS: usize = 1024;

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

    /// Returns the number of bytes of the arguments.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if the batch is short: it need not wait behind long batches of other
    /// connections.
    pub fn is_short(&self) -> bool {
        self.commands.len() <= FEW && self.bytes.len() <= FEW_BYTES
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

    fn args(&self, item: &BatchCommand) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[item.args.start as usize..item.args.end as usize])
    }

    /// Adds the commands of another batch.
    pub(super) fn extend(&mut self, other: &Self) {
        let (bytes, ranges) = (self.bytes.len() as u32, self.ranges.len() as u32);
        self.bytes.extend_from_slice(&other.bytes);
        self.ranges.extend(other.ranges.iter().map(|(from, to)| (from + bytes, to + bytes)));
        self.commands.extend(other.commands.iter().map(|item| {
            let args = item.args.start + ranges..item.args.end + ranges;
            BatchCommand { args, ..*item }
        }));
    }

    /// Returns a copy of the commands at `range`.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        let mut part = Self::default();
        for item in &self.commands[range] {
            part.push(item.command, item.request, item.at, self.args(item));
        }
        part
    }

    /// Returns the `n`-th command, and its first argument.
    #[cfg(test)]
    pub(super) fn command(&self, n: usize) -> (&'static Command, &[u8]) {
        let item = &self.commands[n];
        (item.command, self.args(item).get(1).unwrap_or_default())
    }

    /// Removes all commands, and frees memory beyond `keep` bytes of arguments.
    pub(super) fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
        self.ranges.clear();
        self.ranges.shrink_to(KEEP_ITEMS);
        self.commands.clear();
        self.commands.shrink_to(KEEP_ITEMS);
    }

    /// Removes and returns the first command.
    pub fn split_first(&mut self) -> Self {
        let mut first = Self::default();
        if !self.commands.is_empty() {
            let item = self.commands.remove(0);
            first.push(item.command, item.request, item.at, self.args(&item));
        }
        first
    }

    /// Keeps only the commands at `places`, which ascend.
    fn retain(&mut self, places: &[u32]) {
        let mut place = 0;
        self.commands.retain(|_| {
            place += 1;
            places.binary_search(&(place - 1)).is_ok()
        });
    }
}

/// Replies of a batch, in order.
#[derive(Debug, Default)]
pub struct BatchReply {
    bytes: Reply,
    /// End and outcome of each reply.
    ends: Vec<(usize, Outcome)>,
    /// Positions of the missing replies, ascending.
    waiting: Vec<u32>,
    /// Commands of the missing replies. They have not run: the other replies take many bytes, and
    /// are to be written first.
    rest: CmdBatch,
}

impl BatchReply {
    /// Returns the `n`-th reply; `None` if it is missing.
    pub fn get(&self, n: usize) -> Option<(&[u8], Outcome)> {
        if !self.waiting.is_empty() && self.waiting.binary_search(&(n as u32)).is_ok() {
            return None;
        }
        let (end, outcome) = *self.ends.get(n)?;
        let start = if n == 0 { 0 } else { self.ends[n - 1].0 };
        Some((self.bytes.as_bytes().get(start..end)?, outcome))
    }

    /// Returns the number of bytes of the replies from the `n`-th on.
    pub fn bytes_from(&self, n: usize) -> usize {
        let last = n.checked_sub(1).and_then(|last| self.ends.get(last));
        self.bytes.len() - last.map_or(0, |(end, _)| *end)
    }

    /// Returns true if the replies were lost because there was no memory.
    pub fn is_lost(&self) -> bool {
        self.bytes.is_lost()
    }

    /// Returns the replies' buffer.
    pub fn buffer(&mut self) -> &mut Reply {
        &mut self.bytes
    }

    /// Replaces the replies by these.
    pub(super) fn set(&mut self, bytes: &[u8], ends: &[(usize, Outcome)]) {
        self.bytes.clear();
        // It may have been another client's before.
        self.bytes.spare(false);
        self.bytes.append(bytes);
        self.ends.clear();
        self.ends.extend_from_slice(ends);
        self.waiting.clear();
    }

    /// Returns true if little memory is lost when it is kept for later use.
    pub(super) fn is_small(&self) -> bool {
        self.bytes.len() <= KEEP_REPLY && self.rest.is_empty() && !self.is_lost()
    }

    /// Removes and returns the commands that have not run.
    pub fn take_rest(&mut self) -> CmdBatch {
        std::mem::take(&mut self.rest)
    }

    /// Returns the replies from the `from`-th on, with `later` replies in the places of the first
    /// missing ones. `rest`: the commands of those that are still missing.
    pub fn fill(&self, from: usize, later: &mut Self, mut rest: CmdBatch) -> Self {
        let mut whole = Self::default();
        // Short replies have come in a parcel, which does not say it.
        whole.bytes.spare(self.bytes.is_spared() || later.bytes.is_spared());
        let mut places = 0..;
        for n in from..self.ends.len() {
            let reply = self.get(n).or_else(|| later.get(places.next()?));
            if reply.is_none() {
                whole.waiting.push(whole.ends.len() as u32);
            }
            whole.push(reply.unwrap_or_default());
        }
        if rest.is_empty() {
            rest = later.take_rest();
        }
        whole.rest = rest;
        whole.bytes.take_lack(&mut later.bytes);
        whole
    }

    /// Appends a copy of a reply. An error takes its place if there is no memory for it: the replies behind it
    /// must not take that.
    fn push(&mut self, (reply, outcome): (&[u8], Outcome)) {
        let at = self.bytes.len();
        self.bytes.append(reply);
        let outcome = if self.bytes.replace_lost(at) { Outcome::Failed } else { outcome };
        self.ends.push((self.bytes.len(), outcome));
    }

    /// Puts off the commands at `places` and all behind the replies so far: they have not run.
    fn put_off(&mut self, mut batch: CmdBatch, mut places: Vec<u32>) {
        let ran = self.ends.len();
        places.extend(ran as u32..batch.len() as u32);
        self.ends.resize(batch.len(), (self.bytes.len(), Outcome::Done));
        batch.retain(&places);
        self.waiting = places;
        self.rest = batch;
    }
}

/// The receiver of a batch's replies.
#[derive(Debug)]
pub(super) enum ReplyTo {
    Sender(oneshot::Sender<BatchReply>),
    /// A slot of another worker.
    Home {
        worker: usize,
        slot: SlotKey,
    },
}

/// Replies of a batch, held until the rounds that they show are stored or have failed.
#[derive(Debug)]
pub(crate) struct HeldReplies {
    pub(super) reply: BatchReply,
    /// Command of each reply, and the greatest round that it shows.
    seen: Vec<(&'static Command, u64)>,
    /// Rounds that the replies show.
    shown: Shown,
    pub(super) to: ReplyTo,
}

/// State of a batch that runs.
#[derive(Default)]
pub(super) struct BatchRun {
    pub(super) out: Reply,
    /// End and outcome of each reply.
    pub(super) ends: Vec<(usize, Outcome)>,
    /// Command of each reply, and the round that it shows.
    pub(super) seen: Vec<(&'static Command, u64)>,
    pub(super) shown: Shown,
    /// Places of the commands that are parked.
    parked: Vec<(usize, oneshot::Receiver<Ran>)>,
    room: Option<Room>,
}

impl BatchRun {
    /// Returns true if all of so many commands have run, and their replies are here.
    pub(super) fn is_whole(&self, commands: usize) -> bool {
        self.parked.is_empty() && self.ends.len() == commands && !self.lacks_room()
    }

    /// Returns true if a reply did not fit.
    fn lacks_room(&self) -> bool {
        self.out.is_lost() || self.out.lacks_room()
    }

    /// Empties it for the next batch.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.ends.clear();
        self.seen.clear();
        self.shown = Shown::default();
    }
}

impl Worker {
    /// Runs a batch: the first command in any case, the others until their replies take many bytes.
    /// The replies are sent once the outcome of the rounds that they show is known.
    pub(crate) fn run_batch(self: &Rc<Self>, batch: CmdBatch, to: oneshot::Sender<BatchReply>) {
        let (settings, now_ms) = (self.settings(), self.node.clock.now_ms());
        self.warm(&batch);
        self.start_watch();
        let mut run = BatchRun::default();
        let commands = batch.len();
        self.run_commands(&batch, 0..commands, (now_ms, &settings), &mut run);
        self.end_run(run, || batch, commands, ReplyTo::Sender(to));
    }

    /// Runs the commands at `range` of a batch until their replies take many bytes.
    pub(super) fn run_commands(
        self: &Rc<Self>,
        batch: &CmdBatch,
        range: Range<usize>,
        (now_ms, settings): (u64, &Settings),
        run: &mut BatchRun,
    ) {
        let BatchRun { out, ends, seen, shown, parked, room } = run;
        for (n, item) in batch.commands[range].iter().enumerate() {
            if out.len() > MAX_REPLIES || out.is_lost() || out.lacks_room() {
                break;
            }
            let args = batch.args(item);
            out.set_proto(item.request.proto);
            out.spare(item.request.spared);
            let BatchCommand { command, request, at, .. } = *item;
            let invocation = Invocation { command, args, request, at, now_ms, settings };
            let mut outcome = Outcome::Done;
            match self.execute(&invocation, out) {
                Ok(ran) => {
                    self.rounds.see(ran.round, shown);
                    seen.push((item.command, ran.round));
                    outcome = ran.outcome;
                }
                Err(blocked) => {
                    seen.push((item.command, 0));
                    let owned = OwnedCommand::new(item.command, args, item.request);
                    let room = (n > 0).then(|| room.get_or_insert_with(|| Room::new(1)).clone());
                    parked.push((n, self.park(owned, *blocked, room)));
                }
            }
            ends.push((out.len(), outcome));
        }
        if let Some(room) = room {
            room.set(MAX_REPLIES.saturating_sub(out.len()));
        }
    }

    /// Sends the replies of a batch of so many commands, once they are complete and may be shown.
    pub(super) fn end_run(
        self: &Rc<Self>,
        run: BatchRun,
        batch: impl FnOnce() -> CmdBatch,
        commands: usize,
        to: ReplyTo,
    ) {
        let BatchRun { out, ends, seen, shown, parked, .. } = run;
        let ran = ends.len();
        let reply = BatchReply { bytes: out, ends, ..BatchReply::default() };
        let mut held = HeldReplies { reply, seen, shown, to };
        let batch = batch();
        if !parked.is_empty() {
            let worker = self.clone();
            tokio::task::spawn_local(async move {
                worker.hold(held.complete(parked, batch).await);
            });
            return;
        }
        if ran < commands {
            held.reply.put_off(batch, Vec::new());
        } else {
            drop(batch);
        }
        self.hold(held);
    }

    /// Prefetches the keys of a batch, all together.
    pub(super) fn warm(&self, batch: &CmdBatch) {
        let store = &self.partition.borrow().store;
        let keys = batch.commands.iter().filter_map(|item| Some((item.request.db, item.at?)));
        store.warm(keys);
    }

    /// Sends replies now if the rounds that they show are stored, else holds them.
    fn hold(&self, held: HeldReplies) {
        let to_disk = self.is_always();
        if self.rounds.is_stored(&held.shown, to_disk) {
            return self.send_replies(held);
        }
        let is_known = self.rounds.is_known(&held.shown, to_disk);
        self.held.batches.borrow_mut().push_back(held);
        if is_known {
            self.release_held();
        }
    }

    /// Sends the held replies whose rounds have an outcome.
    pub(crate) fn release_held(&self) {
        let to_disk = self.is_always();
        self.release_parcels(to_disk);
        let mut all = self.held.batches.borrow_mut();
        for _ in 0..all.len() {
            let Some(mut held) = all.pop_front() else { return };
            if !self.rounds.is_known(&held.shown, to_disk) {
                all.push_back(held);
                continue;
            }
            if !self.rounds.is_stored(&held.shown, to_disk) {
                let failure = |round| self.rounds.failure(&held.shown, round, to_disk);
                held.reply = held.reply.with_failures(&held.seen, failure, self.stats());
            }
            self.send_replies(held);
        }
    }
}

impl HeldReplies {
    /// Waits for the parked commands, and puts their replies in their places.
    async fn complete(self, parked: Vec<(usize, oneshot::Receiver<Ran>)>, batch: CmdBatch) -> Self {
        let mut late = Vec::new();
        for (n, done) in parked {
            late.push((n, done.await.unwrap_or_else(|_| Ran::abandoned())));
        }
        let Self { mut reply, mut seen, mut shown, to } = self;
        let mut whole = BatchReply::default();
        whole.bytes.take_lack(&mut reply.bytes);
        whole.bytes.spare(reply.bytes.is_spared());
        let mut put_off = Vec::new();
        let mut late = late.into_iter().peekable();
        for (n, (_, round)) in seen.iter_mut().enumerate() {
            match late.next_if(|(at, _)| *at == n) {
                Some((_, ran)) if ran.put_off.is_some() => {
                    put_off.push(n as u32);
                    whole.push((&[], Outcome::Done));
                }
                Some((_, mut ran)) => {
                    *round = ran.shown.round();
                    shown.add(std::mem::take(&mut ran.shown));
                    let Answer { mut reply, outcome } = ran.into_answer(Proto::Resp2);
                    whole.push((reply.as_bytes(), outcome));
                    whole.bytes.take_lack(&mut reply);
                }
                None => whole.push(reply.get(n).unwrap_or_default()),
            }
        }
        if !put_off.is_empty() || whole.ends.len() < batch.len() {
            whole.put_off(batch, put_off);
        }
        Self { reply: whole, seen, shown, to }
    }
}

impl BatchReply {
    /// Replaces each reply that shows a failed round by an error, and counts it.
    fn with_failures(
        mut self,
        seen: &[(&'static Command, u64)],
        failure: impl Fn(u64) -> Option<RoundError>,
        stats: &WorkerStats,
    ) -> Self {
        let Self { waiting, rest, .. } = &mut self;
        let mut out = Self {
            waiting: std::mem::take(waiting),
            rest: std::mem::take(rest),
            ..Self::default()
        };
        out.bytes.take_lack(&mut self.bytes);
        out.bytes.spare(self.bytes.is_spared());
        for (n, &(command, round)) in seen.iter().enumerate() {
            let (reply, at) = (self.get(n).unwrap_or_default(), out.bytes.len());
            let outcome = stats.give(&mut out.bytes, Some(command), reply, failure(round));
            let outcome = if out.bytes.replace_lost(at) { Outcome::Failed } else { outcome };
            out.ends.push((out.bytes.len(), outcome));
        }
        // Commands that have not run show nothing.
        out.ends.resize(self.ends.len(), (out.bytes.len(), Outcome::Done));
        out
    }
}
