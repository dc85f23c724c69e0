//! One read cycle of a connection: the commands of what was read, run here or sent elsewhere, and
//! their replies in order.

use crate::commands::registry::Command;
use crate::config::Settings;
use crate::resp::{Args, Proto, Reply};
use crate::routing::{self, Target};
use crate::session::Session;
use crate::worker::{
    BatchReply, CmdBatch, Message, OwnedCommand, Ran, RoundError, Worker, says_away,
};
use flagstone_storage::KeyHash;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Commands after which the clock is read again.
const CLOCK_EVERY: usize = 64;

/// Bytes of replies and of arguments sent after which a cycle ends.
const FLUSH: usize = 1 << 20;

/// Commands that a cycle sends to other workers at most.
const MAX_REMOTE: usize = 128;

/// Commands of a cycle that wait on this worker at most.
const MAX_PARKED: usize = 512;

/// Where a reply comes from.
enum Piece {
    /// It is in the cycle's buffer up to here, and shows a round.
    Here {
        end: usize,
        round: u64,
    },
    /// The next reply of the batch for a worker.
    Remote {
        worker: usize,
    },
    Parked(oneshot::Receiver<Ran>),
}

/// See the module's description.
pub(super) struct Cycle {
    out: Reply,
    /// Empty as long as every reply so far is in `out`.
    pieces: Vec<Piece>,
    /// The rounds shown by replies in `out`, with where these end.
    shown: Ends,
    plain: bool,
    /// Some replies show data: they leave only if it is certain that nobody else has taken it over.
    shows_data: bool,
    /// The greatest round a reply in `out` shows.
    round: u64,
    batches: Vec<(usize, CmdBatch)>,
    now_ms: u64,
    commands: usize,
    /// Commands that wait on this worker.
    parked: usize,
    /// Many commands wait where one was sent: no more of them are sent before it is answered.
    crowded: bool,
    /// Nothing may run behind what is under way: it may need keys that it has not locked yet.
    ends: bool,
}

impl Cycle {
    pub(super) fn new(worker: &Worker, proto: Proto) -> Self {
        Self {
            out: Reply::in_buffer(proto, worker.take_reply_buffer()),
            pieces: Vec::new(),
            shown: Vec::new(),
            plain: true,
            shows_data: false,
            round: 0,
            batches: Vec::new(),
            now_ms: worker.node.clock.now_ms(),
            commands: 0,
            parked: 0,
            crowded: false,
            ends: false,
        }
    }

    /// Ms since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether the replies are to be written before more commands are taken in: there are many
    /// bytes of them, or so many commands are elsewhere that theirs may become many.
    pub(super) fn is_full(&self) -> bool {
        let sent = self.batches.iter().fold((0, 0), |(commands, bytes), (_, batch)| {
            (commands + batch.len(), bytes + batch.bytes())
        });
        let waits = self.crowded || self.parked >= MAX_PARKED;
        self.ends || waits || sent.0 >= MAX_REMOTE || self.out.len() + sent.1 > FLUSH
    }

    /// Whether every reply so far is at hand.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// The buffer to write a reply to; [`Cycle::end_command`] follows.
    pub(super) fn out(&mut self) -> &mut Reply {
        &mut self.out
    }

    /// The reply in the buffer is complete, and shows no data.
    pub(super) fn end_command(&mut self) {
        self.note(0);
    }

    /// A command was refused.
    pub(super) fn refuse(&mut self, text: &[u8], session: &mut Session) {
        use crate::session::ReplyMode;
        match session.reply_mode {
            ReplyMode::On => self.out.error(text),
            ReplyMode::SkipNext | ReplyMode::Skip => session.reply_mode = ReplyMode::On,
            ReplyMode::Off => {}
        }
        self.note(0);
    }

    fn note(&mut self, round: u64) {
        let end = self.out.len();
        self.round = self.round.max(round);
        if self.plain {
            self.shown.push((end, round));
        } else {
            self.pieces.push(Piece::Here { end, round });
        }
    }

    /// The replies are no more all in the buffer.
    fn scatter(&mut self) {
        if self.plain {
            self.plain = false;
            let shown = std::mem::take(&mut self.shown);
            self.pieces =
                shown.into_iter().map(|(end, round)| Piece::Here { end, round }).collect();
        }
    }

    /// More commands may run behind the unit that was routed last: if it waits, its keys are locked.
    pub(super) fn goes_on(&mut self) {
        self.ends = false;
    }

    /// Runs a command on keys here, or puts it into the batch for its worker. `false`: it must run
    /// alone, as its keys belong to several workers, or other commands behind it might change the
    /// keys that it has not declared before it can lock them.
    pub(super) fn route(
        &mut self,
        worker: &Rc<Worker>,
        session: &Session,
        command: &'static Command,
        args: Args<'_>,
        at: Option<KeyHash>,
        settings: &Settings,
    ) -> bool {
        (command.spec.unit || !command.undeclared_keys)
            && self.send(worker, session, command, args, at, settings)
    }

    /// Runs a command here, or puts it into the batch for its worker; `false`: it has several. `at`:
    /// its only key, if it was hashed.
    fn send(
        &mut self,
        worker: &Rc<Worker>,
        session: &Session,
        command: &'static Command,
        args: Args<'_>,
        at: Option<KeyHash>,
        settings: &Settings,
    ) -> bool {
        let Target::One(target, at) =
            routing::target(&worker.node, command, args, at, session.db, worker.id)
        else {
            return false;
        };
        let request = session.request();
        self.shows_data = true;
        if target != worker.id {
            self.scatter();
            let n = match self.batches.iter().position(|(w, _)| *w == target) {
                Some(n) => n,
                None => {
                    self.crowded |= worker.node.is_crowded(target);
                    self.batches.push((target, CmdBatch::default()));
                    self.batches.len() - 1
                }
            };
            self.batches[n].1.push(command, request, at, args);
            self.pieces.push(Piece::Remote { worker: target });
            self.ends = command.spec.unit;
            return true;
        }
        worker.stats().local.fetch_add(1, Ordering::Relaxed);
        self.commands += 1;
        if self.commands.is_multiple_of(CLOCK_EVERY) {
            self.now_ms = worker.node.clock.now_ms();
        }
        match worker.execute(command, args, request, at, self.now_ms, settings, &mut self.out) {
            Ok(round) => self.note(round),
            Err(blocked) => {
                self.scatter();
                self.ends = command.spec.unit;
                let owned = OwnedCommand::new(command, args, request);
                self.pieces.push(Piece::Parked(worker.park(owned, blocked)));
                self.parked += 1;
                self.crowded |= worker.node.is_crowded(worker.id);
            }
        }
        true
    }

    /// Runs one command on keys wherever they are; its reply.
    pub(super) async fn alone(
        &mut self,
        worker: &Rc<Worker>,
        session: &Session,
        command: &'static Command,
        args: Args<'_>,
    ) -> Vec<u8> {
        let settings = worker.settings();
        if self.send(worker, session, command, args, None, &settings) {
            let cycle = std::mem::replace(self, Self::new(worker, session.proto));
            return cycle.finish(worker).await;
        }
        let request = session.request();
        routing::run_across(worker, OwnedCommand::new(command, args, request)).await
    }

    /// Sends the batches, waits for every reply and for what it shows to be stored, and until it is
    /// certain that it is not out of date; the replies in order.
    pub(super) async fn finish(self, worker: &Rc<Worker>) -> Vec<u8> {
        let shows_data = self.shows_data;
        let (replies, ends) = if self.plain {
            self.finish_plain(worker).await
        } else {
            Box::pin(self.finish_scattered(worker)).await
        };
        if !shows_data || worker.node.is_owner() {
            return replies;
        }
        match worker.node.confirm_owner().await {
            Ok(()) => replies,
            Err(text) => disowned(&replies, &ends, text),
        }
    }

    async fn finish_plain(self, worker: &Rc<Worker>) -> (Vec<u8>, Ends) {
        if self.round == 0 || worker.wait_shown(self.round).await.is_ok() {
            return (self.out.into_bytes(), self.shown);
        }
        let (mut whole, mut ends) = (Vec::new(), Vec::new());
        let mut from = 0;
        let bytes = self.out.as_bytes();
        for (end, round) in self.shown {
            push_shown(&mut whole, worker.wait_shown(round).await, &bytes[from..end]);
            ends.push((whole.len(), round));
            from = end;
        }
        (whole, ends)
    }

    async fn finish_scattered(self, worker: &Rc<Worker>) -> (Vec<u8>, Ends) {
        let mut waiting = Vec::with_capacity(self.batches.len());
        for (target, batch) in self.batches {
            let (tx, rx) = oneshot::channel();
            // A worker that is gone drops the message, and with it the sender.
            let _ = worker.node.mailboxes[target].send(Message::Batch(batch, tx)).await;
            waiting.push((target, rx));
        }
        let mut replies: Vec<(usize, Option<BatchReply>, usize)> = Vec::new();
        for (target, rx) in waiting {
            replies.push((target, rx.await.ok(), 0));
        }
        let mut whole = Vec::with_capacity(self.out.len());
        let mut ends = Vec::with_capacity(self.pieces.len());
        let mut from = 0;
        for piece in self.pieces {
            match piece {
                Piece::Here { end, round } => {
                    let bytes = &self.out.as_bytes()[from..end];
                    push_shown(&mut whole, worker.wait_shown(round).await, bytes);
                    from = end;
                }
                Piece::Parked(done) => match done.await {
                    Ok(ran) => {
                        let shown = worker.wait_shown(ran.seen).await;
                        push_shown(&mut whole, shown, &ran.into_reply(self.out.proto()));
                    }
                    Err(_) => whole.extend_from_slice(b"-ERR the command was abandoned\r\n"),
                },
                Piece::Remote { worker: target } => {
                    let reply = replies.iter_mut().find(|(w, ..)| *w == target).and_then(
                        |(_, reply, next)| {
                            *next += 1;
                            reply.as_ref()?.get(*next - 1)
                        },
                    );
                    match reply {
                        Some(bytes) => whole.extend_from_slice(bytes),
                        None => whole.extend_from_slice(
                            format!("-ERR worker {target} is gone\r\n").as_bytes(),
                        ),
                    }
                }
            }
            ends.push((whole.len(), 0));
        }
        (whole, ends)
    }
}

/// Where replies end, and the rounds that they show.
type Ends = Vec<(usize, u64)>;

/// Errors in the place of replies that may be out of date. What was not stored as the store is away
/// is told so already.
fn disowned(replies: &[u8], ends: &Ends, text: &str) -> Vec<u8> {
    let (mut whole, mut from) = (Vec::new(), 0);
    for (end, _) in ends {
        let reply = &replies[from..*end];
        let told = if reply.is_empty() || says_away(reply) {
            Ok(())
        } else {
            Err(RoundError(text.to_owned()))
        };
        push_shown(&mut whole, told, reply);
        from = *end;
    }
    whole
}

fn push_shown(whole: &mut Vec<u8>, shown: Result<(), RoundError>, bytes: &[u8]) {
    match shown {
        Ok(()) => whole.extend_from_slice(bytes),
        Err(RoundError(text)) if !bytes.is_empty() => {
            whole.extend_from_slice(format!("-{text}\r\n").as_bytes());
        }
        Err(_) => {}
    }
}
