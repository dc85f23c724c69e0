//! One read cycle of a connection: runs the commands that one read brought, here or on other
//! workers, and collects their replies in order.

use super::gate;
use super::scattered::Scattered;
use crate::clients::ClientState;
use crate::command::{Command, Invocation, Outcome, OwnedCommand, RoundError, Route};
use crate::config::Settings;
use crate::node::Health;
use crate::routing::{self, Target};
use crate::session::{ReplyMode, Session};
use crate::worker::{CmdBatch, Executed, MAX_REPLIES, Ran, Room, Shown, Worker};
use flagstone_storage::KeyHash;
use flagstone_wire::resp::{Args, Reply};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Commands after which the clock is read again.
const CLOCK_EVERY: usize = 64;

/// Commands queued in a transaction after which it is read, too.
const QUEUED_PER_LOOK: usize = 16;

/// Number of replies whose ends have room at first: the list of most cycles never grows.
const FIRST_ENDS: usize = 16;

/// Maximum number of commands that a cycle sends to other workers.
const MAX_REMOTE: usize = 128;

/// Maximum number of commands of a cycle that wait on this worker.
const MAX_PARKED: usize = 512;

/// Source of a reply.
pub(super) enum ReplySource {
    /// The reply is in the cycle's buffer, up to this end.
    Here(End),
    /// The reply is the next one of the batch for a worker.
    Remote {
        worker: usize,
        command: &'static Command,
        silent: bool,
    },
    Parked {
        command: &'static Command,
        silent: bool,
        done: oneshot::Receiver<Ran>,
    },
}

/// End of a reply in a buffer.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) at: usize,
    /// Round that the reply shows.
    round: u64,
    outcome: Outcome,
    /// Command on keys that the reply answers, if any: other replies show no data.
    command: Option<&'static Command>,
    /// True if the client does not want the reply (CLIENT REPLY).
    silent: bool,
}

/// Result of a command that is not on keys.
const NO_DATA: Executed = Executed { round: 0, outcome: Outcome::Done };

/// State of a read cycle.
pub(super) struct Cycle {
    out: Reply,
    /// Sources of the replies; empty while every reply so far is in `out`.
    pieces: VecDeque<ReplySource>,
    /// Ends of the replies in `out`, while all replies are there.
    own: Vec<End>,
    plain: bool,
    /// True if the client does not want the reply that is written next.
    silent: bool,
    /// True if it does not want some of the replies so far.
    some_silent: bool,
    /// True if some replies show data: they are sent only once it is certain that no other server
    /// has taken the data over.
    shows_data: bool,
    /// Rounds that the replies in `out` show.
    shown: Shown,
    batches: Vec<(usize, CmdBatch)>,
    /// Bytes that the replies of parked commands may take.
    room: Option<Room>,
    now_ms: u64,
    /// Number of commands that have run here.
    commands: usize,
    /// Number of commands that were queued in a transaction since the worker's watch was started.
    untimed: usize,
    /// Numbers of commands that were dispatched, and of those that have run here, which are not in
    /// the worker's counters yet: those are shared with other threads, and dear to add to.
    uncounted: (u64, u64),
    /// Number of commands that wait on this worker.
    parked: usize,
    /// True if many commands wait on a worker that was sent one: no more are sent before it is
    /// answered.
    crowded: bool,
    /// True if no command may run before the cycle ends: an unfinished unit may still need keys
    /// that it has not locked.
    ends: bool,
}

impl Cycle {
    pub(super) fn new(worker: &Worker, session: &Session) -> Self {
        let mut out = Reply::in_buffer(session.proto, worker.buffers.take_reply_buffer());
        out.spare(session.client.is(ClientState::NO_EVICT));
        Self {
            out,
            pieces: VecDeque::new(),
            own: Vec::with_capacity(FIRST_ENDS),
            plain: true,
            silent: false,
            some_silent: false,
            shows_data: false,
            shown: Shown::default(),
            batches: Vec::new(),
            room: None,
            now_ms: worker.node.clock.now_ms(),
            commands: 0,
            untimed: 0,
            uncounted: (0, 0),
            parked: 0,
            crowded: false,
            ends: false,
        }
    }

    /// Returns the cycle's time in ms since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns true if the replies are to be written before more commands are read: they take many
    /// bytes, or so many commands run on other workers that their replies may.
    pub(super) fn is_full(&self) -> bool {
        let sent = self.batches.iter().fold((0, 0), |(commands, bytes), (_, batch)| {
            (commands + batch.len(), bytes + batch.bytes())
        });
        let waits = self.crowded || self.parked >= MAX_PARKED;
        self.ends
            || waits
            || sent.0 >= MAX_REMOTE
            || self.out.len() + sent.1 > MAX_REPLIES
            || self.out.is_lost()
            || self.out.lacks_room()
    }

    /// Returns true if it has no reply yet.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty() && self.pieces.is_empty()
    }

    /// Returns true if every command so far has run: its reply is in the cycle's buffer.
    pub(super) fn has_run_all(&self) -> bool {
        self.plain
    }

    /// Counts a command that is dispatched.
    pub(super) fn begin_command(&mut self) {
        self.uncounted.0 += 1;
    }

    /// Adds the commands so far to the worker's counters, before anybody can ask for them: a script, or a
    /// command behind the replies.
    fn count_commands(&mut self, worker: &Worker) {
        let (dispatched, local) = std::mem::take(&mut self.uncounted);
        worker.stats().commands.fetch_add(dispatched, Ordering::Relaxed);
        worker.stats().local.fetch_add(local, Ordering::Relaxed);
    }

    /// Notes whether the client wants the replies of the commands that follow.
    #[inline]
    pub(super) fn begin_replies(&mut self, mode: ReplyMode) {
        self.silent = mode != ReplyMode::On;
        self.some_silent |= self.silent;
    }

    /// Returns the buffer to write a reply to; [`Cycle::end_command`] follows.
    pub(super) fn out(&mut self) -> &mut Reply {
        &mut self.out
    }

    /// Ends the reply in the buffer, which shows no data.
    pub(super) fn end_command(&mut self) {
        self.note(NO_DATA, None);
    }

    /// Notes that a command was queued: that has taken time, which is not the next command's.
    pub(super) fn note_queued(&mut self, worker: &Worker) {
        self.untimed += 1;
        if self.untimed == QUEUED_PER_LOOK {
            self.end_queueing(worker);
        }
    }

    /// Starts the time of the next command, which ends a queue, if commands were queued before it.
    pub(super) fn end_queueing(&mut self, worker: &Worker) {
        if self.untimed > 0 {
            worker.start_watch();
            self.untimed = 0;
        }
    }

    fn note(&mut self, ran: Executed, command: Option<&'static Command>) {
        let Executed { round, outcome } = ran;
        let end = End { at: self.out.len(), round, outcome, command, silent: self.silent };
        if self.plain {
            self.own.push(end);
        } else {
            self.pieces.push_back(ReplySource::Here(end));
        }
    }

    /// Switches to a list of sources, because not all replies are in the buffer any more.
    fn scatter(&mut self) {
        if self.plain {
            self.plain = false;
            self.pieces =
                std::mem::take(&mut self.own).into_iter().map(ReplySource::Here).collect();
        }
    }

    /// Lets commands run behind the unit that was routed last: if it waits, its keys are locked.
    pub(super) fn goes_on(&mut self) {
        self.ends = false;
    }

    /// Runs a command on keys here, or adds it to the batch for its worker. Returns false if it
    /// must run alone: its keys belong to several workers, or it may need keys that it has not declared,
    /// and earlier or later commands might change these at the wrong time. `at`: its only key, if it was
    /// hashed.
    pub(super) fn route(
        &mut self,
        worker: &Rc<Worker>,
        session: &Session,
        command: &'static Command,
        args: Args<'_>,
        at: Option<KeyHash>,
        settings: &Settings,
    ) -> bool {
        if command.undeclared_keys {
            // MULTI begins no transaction before all has run, so EXEC need not wait.
            let is_script = matches!(command.spec.run, Route::Script);
            if !command.spec.runs_others() || (is_script && !self.has_run_all()) {
                return false;
            }
            self.count_commands(worker);
        }
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
                    self.batches.push((target, worker.hop.take_batch()));
                    self.batches.len() - 1
                }
            };
            self.batches[n].1.push(command, request, at, args);
            let silent = self.silent;
            self.pieces.push_back(ReplySource::Remote { worker: target, command, silent });
            self.ends = command.spec.runs_others();
            return true;
        }
        self.uncounted.1 += 1;
        self.commands += 1;
        if self.commands.is_multiple_of(CLOCK_EVERY) {
            self.now_ms = worker.node.clock.now_ms();
        }
        let now_ms = self.now_ms;
        let run = Invocation { command, args, request, at, now_ms, settings };
        match worker.execute(&run, &mut self.out) {
            Ok(ran) => {
                worker.rounds.see(ran.round, &mut self.shown);
                self.note(ran, Some(command));
            }
            Err(blocked) => {
                self.scatter();
                self.ends = command.spec.runs_others();
                let owned = OwnedCommand::new(command, args, request);
                let room = self.room.get_or_insert_with(|| Room::new(1)).clone();
                let done = worker.park(owned, *blocked, Some(room));
                self.pieces.push_back(ReplySource::Parked { command, silent: self.silent, done });
                self.parked += 1;
                self.crowded |= worker.node.is_crowded(worker.id);
            }
        }
        true
    }

    /// Sends the batches, then waits until every reply has arrived, the rounds that the replies
    /// show are stored, and the ownership of the data is confirmed. Returns the replies in order;
    /// if they take many bytes, only the first ones, and the sources of the others.
    pub(super) async fn finish(mut self, worker: &Rc<Worker>) -> (Reply, Option<Box<Scattered>>) {
        self.count_commands(worker);
        if self.plain {
            let shows_data = self.shows_data;
            let (replies, ends) = self.finish_plain(worker).await;
            return (confirmed(worker, shows_data, replies, &ends).await, None);
        }
        if let Some(room) = &self.room {
            room.set(MAX_REPLIES.saturating_sub(self.out.len()));
        }
        let Self { out, pieces, shows_data, shown, batches, .. } = self;
        Scattered::new(out, pieces, shows_data, shown).begin(worker, batches).await
    }

    async fn finish_plain(self, worker: &Rc<Worker>) -> (Reply, Vec<End>) {
        let is_lost = self.out.is_lost();
        if is_lost || (worker.wait_shown(&self.shown).await.is_ok() && !self.some_silent) {
            return (self.out, self.own);
        }
        let mut whole = CheckedReplies::new(worker, self.own.len(), self.out.is_spared());
        let mut from = 0;
        for end in &self.own {
            whole.push_own(&self.shown, *end, &self.out.as_bytes()[from..end.at]);
            from = end.at;
        }
        (whole.bytes, whole.ends)
    }
}

/// Replies in order, with errors in place of those that must not be sent.
pub(super) struct CheckedReplies<'a> {
    worker: &'a Worker,
    /// True if the rounds that replies show have to be durable.
    to_disk: bool,
    pub(super) bytes: Reply,
    pub(super) ends: Vec<End>,
}

impl<'a> CheckedReplies<'a> {
    pub(super) fn new(worker: &'a Worker, replies: usize, is_spared: bool) -> Self {
        let to_disk = worker.is_always();
        let mut bytes = Reply::default();
        bytes.spare(is_spared);
        Self { worker, to_disk, bytes, ends: Vec::with_capacity(replies) }
    }

    /// Appends a reply from the cycle's buffer; the outcome of every round that the buffer shows is
    /// known.
    pub(super) fn push_own(&mut self, shown: &Shown, end: End, reply: &[u8]) {
        let failure = self.worker.rounds.failure(shown, end.round, self.to_disk);
        let given = (reply, end.outcome);
        let outcome = self.worker.stats().give(&mut self.bytes, end.command, given, failure);
        self.end(End { outcome, ..end });
    }

    /// Appends a reply whose rounds have been waited for.
    pub(super) fn push(
        &mut self,
        (command, silent): (&'static Command, bool),
        (reply, outcome): (&[u8], Outcome),
    ) {
        self.bytes.append(reply);
        self.end(End { at: 0, round: 0, outcome, command: Some(command), silent });
    }

    /// Appends an error in the place of a reply that does not come.
    pub(super) fn push_error(&mut self, answered: (&'static Command, bool), text: &str) {
        self.bytes.error(text);
        let (command, silent) = answered;
        let outcome = Outcome::Failed;
        self.end(End { at: 0, round: 0, outcome, command: Some(command), silent });
    }

    /// Ends the reply that was appended, or takes it back if the client does not want it.
    fn end(&mut self, end: End) {
        if end.silent {
            self.bytes.truncate(self.ends.last().map_or(0, |end| end.at));
        }
        self.ends.push(End { at: self.bytes.len(), ..end });
    }
}

/// Returns the replies if the ownership of the data is confirmed, else errors in their place.
pub(super) async fn confirmed(
    worker: &Worker,
    shows_data: bool,
    replies: Reply,
    ends: &[End],
) -> Reply {
    if !shows_data || worker.node.health.is_owner() || replies.is_lost() {
        return replies;
    }
    match worker.node.health.confirm_owner(&worker.settings()).await {
        Ok(()) => replies,
        Err(text) => disowned(worker, &replies, ends, text),
    }
}

/// Replaces replies that may be out of date by errors. A reply that shows no data stays.
fn disowned(worker: &Worker, replies: &Reply, ends: &[End], text: &'static str) -> Reply {
    let (mut whole, mut from) = (Reply::default(), 0);
    whole.spare(replies.is_spared());
    for end in ends {
        let reply = &replies.as_bytes()[from..end.at];
        let shows_data = end.command.is_some() && end.outcome != Outcome::Refused;
        let may_change = end.command.is_some_and(gate::may_change);
        let told = (shows_data && !end.silent)
            .then(|| RoundError::from(Health::uncertain(text, may_change)));
        worker.stats().give(&mut whole, end.command, (reply, end.outcome), told);
        from = end.at;
    }
    whole
}
