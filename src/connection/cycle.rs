//! One read cycle of a connection: the commands of what was read, run here or sent elsewhere, and
//! their replies in order.

use super::scattered::Scattered;
use crate::command::{Command, OwnedCommand};
use crate::config::Settings;
use crate::routing::{self, Target};
use crate::session::Session;
use crate::worker::{CmdBatch, MAX_REPLIES, Ran, Room, RoundError, Shown, Worker, says_away};
use flagstone_storage::KeyHash;
use flagstone_wire::resp::{Args, Proto, Reply};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Commands after which the clock is read again.
const CLOCK_EVERY: usize = 64;

/// Commands that a cycle sends to other workers at most.
const MAX_REMOTE: usize = 128;

/// Commands of a cycle that wait on this worker at most.
const MAX_PARKED: usize = 512;

/// Where a reply comes from.
pub(super) enum Piece {
    /// It is in the cycle's buffer.
    Here(End),
    /// The next reply of the batch for a worker.
    Remote {
        worker: usize,
        command: &'static Command,
    },
    Parked(&'static Command, oneshot::Receiver<Ran>),
}

/// Where a reply ends.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub(super) at: usize,
    /// The round that it shows.
    round: u64,
    /// Whose it is, if that is a command on keys.
    command: Option<&'static Command>,
}

/// See the module's description.
pub(super) struct Cycle {
    out: Reply,
    /// Empty as long as every reply so far is in `out`.
    pieces: VecDeque<Piece>,
    /// Of the replies in `out`, as long as they are all.
    own: Vec<End>,
    plain: bool,
    /// Some replies show data: they leave only if it is certain that nobody else has taken it over.
    shows_data: bool,
    /// What the replies in `out` show.
    shown: Shown,
    batches: Vec<(usize, CmdBatch)>,
    /// What the replies of parked commands may take.
    room: Option<Room>,
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
            out: Reply::in_buffer(proto, worker.buffers.take_reply_buffer()),
            pieces: VecDeque::new(),
            own: Vec::new(),
            plain: true,
            shows_data: false,
            shown: Shown::default(),
            batches: Vec::new(),
            room: None,
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
        self.ends
            || waits
            || sent.0 >= MAX_REMOTE
            || self.out.len() + sent.1 > MAX_REPLIES
            || self.out.is_lost()
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
        self.note(0, None);
    }

    /// A command was refused.
    pub(super) fn refuse(&mut self, text: &[u8], session: &mut Session) {
        use crate::session::ReplyMode;
        match session.reply_mode {
            ReplyMode::On => self.out.error(text),
            ReplyMode::SkipNext | ReplyMode::Skip => session.reply_mode = ReplyMode::On,
            ReplyMode::Off => {}
        }
        self.note(0, None);
    }

    fn note(&mut self, round: u64, command: Option<&'static Command>) {
        let end = End { at: self.out.len(), round, command };
        if self.plain {
            self.own.push(end);
        } else {
            self.pieces.push_back(Piece::Here(end));
        }
    }

    /// The replies are no more all in the buffer.
    fn scatter(&mut self) {
        if self.plain {
            self.plain = false;
            self.pieces = std::mem::take(&mut self.own).into_iter().map(Piece::Here).collect();
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
        (command.spec.runs_others() || !command.undeclared_keys)
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
            self.pieces.push_back(Piece::Remote { worker: target, command });
            self.ends = command.spec.runs_others();
            return true;
        }
        worker.stats().local.fetch_add(1, Ordering::Relaxed);
        self.commands += 1;
        if self.commands.is_multiple_of(CLOCK_EVERY) {
            self.now_ms = worker.node.clock.now_ms();
        }
        match worker.execute(command, args, request, at, self.now_ms, settings, &mut self.out) {
            Ok(round) => {
                worker.rounds.see(round, &mut self.shown);
                self.note(round, Some(command));
            }
            Err(blocked) => {
                self.scatter();
                self.ends = command.spec.runs_others();
                let owned = OwnedCommand::new(command, args, request);
                let room = self.room.get_or_insert_with(|| Room::new(1)).clone();
                let parked = worker.park(owned, blocked, Some(room));
                self.pieces.push_back(Piece::Parked(command, parked));
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
    ) -> Reply {
        let settings = worker.settings();
        if self.send(worker, session, command, args, None, &settings) {
            let cycle = std::mem::replace(self, Self::new(worker, session.proto));
            return cycle.finish(worker).await.0;
        }
        let request = session.request();
        routing::run_across(worker, OwnedCommand::new(command, args, request)).await
    }

    /// Sends the batches, waits for every reply and for what it shows to be stored, and until it is
    /// certain that it is not out of date; the replies in order. Where they are many bytes, only the
    /// first, and what the others come from.
    pub(super) async fn finish(self, worker: &Rc<Worker>) -> (Reply, Option<Box<Scattered>>) {
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
        if self.out.is_lost() || worker.wait_shown(&self.shown).await.is_ok() {
            return (self.out, self.own);
        }
        let mut whole = Whole::new(worker, self.own.len());
        let mut from = 0;
        for end in &self.own {
            whole.push_own(&self.shown, *end, &self.out.as_bytes()[from..end.at]);
            from = end.at;
        }
        (whole.bytes, whole.ends)
    }
}

/// Replies in their order, with errors in the place of those that may not be given.
pub(super) struct Whole<'a> {
    worker: &'a Worker,
    /// Whether what replies show has to be on disk.
    to_disk: bool,
    pub(super) bytes: Reply,
    pub(super) ends: Vec<End>,
}

impl<'a> Whole<'a> {
    pub(super) fn new(worker: &'a Worker, replies: usize) -> Self {
        let to_disk = worker.is_always();
        Self { worker, to_disk, bytes: Reply::default(), ends: Vec::with_capacity(replies) }
    }

    /// A reply from the cycle's buffer; it is known what became of all that these show.
    pub(super) fn push_own(&mut self, shown: &Shown, end: End, reply: &[u8]) {
        let failure = self.worker.rounds.failure(shown, end.round, self.to_disk);
        self.worker.stats().give(&mut self.bytes, end.command, reply, failure.map(|error| error.0));
        self.ends.push(End { at: self.bytes.len(), ..end });
    }

    /// A reply that has waited for what it shows.
    pub(super) fn push(&mut self, command: &'static Command, reply: &[u8]) {
        self.bytes.append(reply);
        self.ends.push(End { at: self.bytes.len(), round: 0, command: Some(command) });
    }
}

/// The replies, if it is certain that they are not out of date.
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
        Err(text) => disowned(worker, replies.as_bytes(), ends, text),
    }
}

/// Errors in the place of replies that may be out of date. What was not stored as the store is away
/// is told so already.
fn disowned(worker: &Worker, replies: &[u8], ends: &[End], text: &str) -> Reply {
    let (mut whole, mut from) = (Reply::default(), 0);
    for end in ends {
        let reply = &replies[from..end.at];
        let told = (!says_away(reply)).then(|| RoundError(text.to_owned()));
        worker.stats().give(&mut whole, end.command, reply, told.map(|error| error.0));
        from = end.at;
    }
    whole
}
