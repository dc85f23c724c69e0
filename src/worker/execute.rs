//! Runs commands on the worker's store: in place if everything they need is in memory and not
//! locked, else parked until it is (see `parked.rs`).

use super::rounds::Shown;
use super::{FinishedCommand, Worker};
use crate::command::{
    Answer, Command, Invocation, Outcome, OwnedCommand, Request, RoundError, Route,
};
use crate::node::limits;
use crate::unit::said;
use flagstone_commands::{Block, Ctx, Stop, flag};
use flagstone_storage::store::Need;
use flagstone_storage::{Scope, Store};
use flagstone_wire::resp::reply::LOST;
use flagstone_wire::resp::{Args, Proto, Reply};
use std::rc::Rc;

/// Maximum number of loads in place for one command, and of the needs of one such load: others have
/// a turn before more.
const LOADS: usize = 4;
const NEEDS: usize = 16;

/// Reason why a command could not run in place.
#[derive(Debug)]
pub enum Blocked {
    /// One of its keys is locked.
    Locked,
    /// Some data of its keys is not in memory.
    Miss(Vec<Need>),
    /// It needs keys that it has not declared, and that are not in memory here, or are locked.
    Undeclared(Vec<Need>),
    /// It has found nothing, and blocks.
    Empty(Box<Block>),
    /// It is a unit that cannot run on this thread.
    Detached,
    /// It is such a unit, and needs a hold on every worker.
    Exclusive,
}

impl Blocked {
    /// Returns the data that it misses, if that is little.
    fn few_missed(&mut self) -> Option<&mut Vec<Need>> {
        match self {
            Self::Miss(needs) if needs.len() <= NEEDS => Some(needs),
            _ => None,
        }
    }
}

/// Result of an attempt to run a command. Two registers hold it, so it costs nothing to return: the
/// reason is on the heap, as it is rare.
pub(crate) type Attempt<T = Executed> = Result<T, Box<Blocked>>;

/// Request of a command to a coordinator.
#[derive(Debug, Default)]
pub struct CoordinatorRequest {
    /// Data that the last attempt missed.
    pub missed: Vec<Need>,
    /// True if it is a unit that runs on a thread of its own.
    pub detached: bool,
    /// True if it needs a hold on every worker.
    pub exclusive: bool,
}

impl CoordinatorRequest {
    /// Requests a hold on every worker.
    pub(super) fn exclusive() -> Self {
        Self { missed: Vec::new(), detached: true, exclusive: true }
    }

    /// Requests a thread of its own.
    pub(super) fn detached() -> Self {
        Self { detached: true, ..Self::default() }
    }
}

/// Result of a command that has run in place; its reply is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Executed {
    /// Greatest round that the reply shows.
    pub(crate) round: u64,
    pub(crate) outcome: Outcome,
}

/// Result of a parked command.
#[derive(Debug)]
pub struct Ran {
    pub answer: Answer,
    /// Rounds that the reply shows.
    pub(crate) shown: Shown,
    /// Set if there is no reply, because the command blocks.
    pub block: Option<Box<Block>>,
    /// Set if there is no reply, because the command has not run: the replies to its connection's
    /// other commands take many bytes, and are to be written first.
    pub put_off: Option<Box<OwnedCommand>>,
}

impl Ran {
    /// Creates the result of a command whose reply is written.
    pub(crate) fn shows(reply: Reply, outcome: Outcome, shown: Shown) -> Self {
        Self { answer: Answer { reply, outcome }, shown, block: None, put_off: None }
    }

    /// Creates an error reply, which shows no round.
    pub fn failed(proto: Proto, text: impl AsRef<[u8]>) -> Self {
        let Answer { reply, outcome } = Answer::failed(proto, text);
        Self::shows(reply, outcome, Shown::default())
    }

    fn without_reply() -> Self {
        Self::shows(Reply::default(), Outcome::Done, Shown::default())
    }

    /// Creates the result of a command that is to run later.
    pub fn put_off(command: OwnedCommand) -> Self {
        Self { put_off: Some(Box::new(command)), ..Self::without_reply() }
    }

    /// Creates the result of a command that has found nothing.
    pub fn blocked(block: Box<Block>) -> Self {
        Self { block: Some(block), ..Self::without_reply() }
    }

    /// Replies to a command that has found nothing and may not block.
    pub fn end_wait(&mut self, proto: Proto) {
        if let Some(block) = self.block.take() {
            let mut out = Reply::new(proto);
            block.nil.write(&mut out);
            self.answer.reply = out;
        }
    }

    /// Returns the reply to a command that may not block.
    pub fn into_answer(mut self, proto: Proto) -> Answer {
        self.end_wait(proto);
        self.answer
    }

    /// Creates the result of a command whose task has ended.
    pub fn abandoned() -> Self {
        Self::failed(Proto::default(), ABANDONED)
    }
}

/// Error of a command whose task has ended.
pub(crate) const ABANDONED: &str = "ERR the command was abandoned";

/// Error of a command outside of a unit whose changes would have to be undone.
const UNSETTLED: &str = "ERR the command needs changes undone, which only units can";

impl Worker {
    /// Runs a command of [`Route::Keys`] whose keys are all this worker's. Appends the reply to
    /// `out`.
    pub(crate) fn execute(self: &Rc<Self>, run: &Invocation<'_>, out: &mut Reply) -> Attempt {
        let &Invocation { command, args, request, .. } = run;
        let locks = self.locks.borrow();
        let is_idle = locks.is_idle();
        if !is_idle {
            let keys = command.keys(args, request.db);
            let blocked = locks.blocks(request.db, std::iter::empty())
                || keys.iter().any(|(db, key)| locks.is_locked(*db, key));
            if blocked {
                return Err(Blocked::Locked.into());
            }
        }
        drop(locks);
        let scope = || if is_idle { Scope::Own } else { declared(run) };
        self.execute_loading(run, scope, out)
    }

    /// Runs a command, and again after a miss if the data can be loaded without the disk. No other
    /// command may hold locks on its keys.
    pub(super) fn execute_loading(
        self: &Rc<Self>,
        run: &Invocation<'_>,
        scope: impl Fn() -> Scope,
        out: &mut Reply,
    ) -> Attempt {
        let mut loads = 0;
        loop {
            let mut done = self.execute_unlocked(run, scope(), out);
            // The next attempt of a unit may miss other data.
            if let Err(blocked) = &mut done
                && loads < LOADS
                && !run.command.spec.runs_others()
                && let Some(needs) = blocked.few_missed()
            {
                loads += 1;
                match self.partition.borrow_mut().load_in_place(std::mem::take(needs)) {
                    Ok(()) => continue,
                    Err(left) => *needs = left,
                }
            }
            if loads > 0 {
                self.evict();
            }
            return done;
        }
    }

    /// Runs a command that may use its keys although they are locked.
    pub(crate) fn execute_open(self: &Rc<Self>, command: &OwnedCommand) -> Attempt<Ran> {
        let mut out = command.request.reply();
        let settings = self.settings();
        let run = command.invocation(self.node.clock.now_ms(), &settings);
        let ran = self.execute_unlocked(&run, Scope::Own, &mut out)?;
        Ok(self.ran_with(out, ran))
    }

    /// Returns the error if a command that was admitted may not write any more. A unit asks for its parts.
    pub(crate) fn refused_late(&self, run: &Invocation<'_>) -> Option<&'static str> {
        limits::refused_late(&self.node.health, run.settings, &run.request, run.command.spec.flags)
    }

    pub(super) fn execute_unlocked(
        self: &Rc<Self>,
        run: &Invocation<'_>,
        scope: Scope,
        out: &mut Reply,
    ) -> Attempt {
        let &Invocation { command, args, request, settings, .. } = run;
        if let Some(text) = self.refused_late(run) {
            out.error(text);
            return Ok(Executed { round: 0, outcome: Outcome::Refused });
        }
        let handler = match command.spec.run {
            Route::Keys(handler) => handler,
            Route::Unit | Route::Script => {
                return self.execute_unit(run, &scope, out);
            }
            _ => {
                out.error("ERR this command does not run on keys");
                return Ok(Executed { round: 0, outcome: Outcome::Done });
            }
        };
        let mark = out.len();
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        self.node.begin_request(store, run.now_ms, &request);
        store.notes.want(self.node.interest(settings));
        if command.undeclared_keys {
            store.confine(scope);
        }
        if let (Some(at), Some(key)) = (run.at, args.get(1)) {
            store.hint(key, at);
        }
        let Request { db, again, .. } = request;
        let reads_all = self.node.reads_all(request, command, args);
        let before = store.stats.lookups();
        let mut cx = Ctx { again, reads_all, ..Ctx::new(store, out, db, &settings.data) };
        cx.store.words.begin_group();
        let outcome = said::run(&mut cx, command, args, |cx, args| handler(cx, args));
        cx.store.words.end_group();
        let (mut empty, mut ended) = (None, Outcome::Failed);
        match outcome {
            Ok(()) if out.replace_lost(mark) => self.stats().failed(command, LOST.as_bytes()),
            Ok(()) => ended = Outcome::Done,
            Err(Stop::Block(block)) => {
                out.truncate(mark);
                empty = Some(block);
            }
            Err(Stop::Miss(needs)) => {
                out.truncate(mark);
                // It will look its keys up again. Entries that it has met may have expired.
                partition.store.stats.set_lookups(before);
                partition.store.notes.retry(0);
                self.take_notes(partition, changer(command, request.client));
                return Err(blocked_by(needs, run).into());
            }
            Err(stop) => ended = self.replace_by_error(run, stop, out, mark),
        }
        let (seen, is_open) = (partition.store.seen(), partition.has_to_close());
        if request.track && empty.is_none() {
            self.remember_read(run, !partition.store.notes.is_empty());
        }
        if is_open {
            self.commit_soon();
        }
        if empty.is_none() {
            let reply_bytes = out.len().saturating_sub(mark);
            self.ran(&FinishedCommand::requested(command, args, request, reply_bytes), settings);
        }
        if empty.is_some() {
            note_blocked(&mut partition.store, again.then_some(before));
        }
        if request.client == 0 {
            // The server's own command is no reader that has missed a key.
            partition.store.notes.retry(0);
        }
        self.take_notes(partition, changer(command, request.client));
        let ran = Executed { round: seen, outcome: ended };
        empty.map_or(Ok(ran), |block| Err(Blocked::Empty(block).into()))
    }
}

impl Worker {
    /// Replaces the output of a command behind `mark` by its error, and counts it.
    fn replace_by_error(
        &self,
        run: &Invocation<'_>,
        stop: Stop,
        out: &mut Reply,
        mark: usize,
    ) -> Outcome {
        let (text, outcome) = match stop {
            Stop::Error(text) => (text, Outcome::Failed),
            Stop::NotOwned(what) => {
                let RoundError { text, outcome } =
                    self.node.not_owned(what, Some(run.request.secured));
                (text.into(), outcome)
            }
            // The store returns this fault to units only; the others are no errors.
            Stop::Unsettled | Stop::Miss(_) | Stop::Block(_) => (UNSETTLED.into(), Outcome::Failed),
        };
        self.stats().failed(run.command, &text);
        out.truncate(mark);
        out.error(&*text);
        outcome
    }

    /// Returns the result of a command that has run in place.
    pub(super) fn ran_with(&self, out: Reply, ran: Executed) -> Ran {
        Ran::shows(out, ran.outcome, self.rounds.seen(ran.round))
    }

    /// Runs a command whose keys are this worker's.
    pub(crate) async fn run_one(
        self: &Rc<Self>,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
    ) -> Ran {
        let mut out = request.reply();
        self.start_watch();
        let (now_ms, settings) = (self.node.clock.now_ms(), self.settings());
        let run = Invocation { command, args, request, at: None, now_ms, settings: &settings };
        let parked = match self.execute(&run, &mut out) {
            Ok(ran) => return self.ran_with(out, ran),
            Err(blocked) => self.park(OwnedCommand::new(command, args, request), *blocked, None),
        };
        parked.await.unwrap_or_else(|_| Ran::abandoned())
    }

    /// Runs a command whose keys are this worker's: returns the reply, whose writes are stored, or
    /// the block.
    pub(crate) async fn run_shown(
        self: &Rc<Self>,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
    ) -> Result<Answer, Box<Block>> {
        let ran = self.run_one(command, args, request).await;
        self.settle(command, ran).await
    }

    /// Returns the reply of a command that did not run in place, once it may be sent, or the block.
    pub(crate) async fn settle(
        &self,
        command: &Command,
        mut ran: Ran,
    ) -> Result<Answer, Box<Block>> {
        match ran.block.take() {
            None => Ok(self.settle_reply(command, ran).await),
            Some(block) => Err(block),
        }
    }
}

/// Notes that a command is blocked: it has changed nothing, so it must not wake waiters. `before`: the lookups
/// before it, if it was blocked already, and looked its keys up then.
fn note_blocked(store: &mut Store, before: Option<(u64, u64)>) {
    store.notes.drop_changes();
    if let Some(before) = before {
        store.stats.set_lookups(before);
    }
}

/// Returns the client that has made a command's changes; 0 for a command that only reads, because
/// no client has caused an expiry that it finds.
pub(crate) fn changer(command: &Command, client: u64) -> u64 {
    if command.spec.has(flag!(READONLY)) { 0 } else { client }
}

/// Returns the keys that a command may access while other keys are locked: those that it has
/// declared.
pub(super) fn declared(run: &Invocation<'_>) -> Scope {
    let &Invocation { command, args, request, .. } = run;
    if !command.undeclared_keys {
        return Scope::All;
    }
    let keys = command.keys(args, request.db).into_iter();
    Scope::Keys(keys.map(|(db, key)| (db, key.into())).collect())
}

/// Returns why a command that missed data could not run.
pub(super) fn blocked_by(needs: Vec<Need>, run: &Invocation<'_>) -> Blocked {
    let declared = run.command.keys(run.args, run.request.db);
    let is_declared = |need: &Need| declared.contains(&(need.db, &*need.key));
    if needs.iter().all(is_declared) { Blocked::Miss(needs) } else { Blocked::Undeclared(needs) }
}
