//! Units: commands that run others as one, transactions and scripts. A unit is a command on keys
//! like any other: it runs in place, parked, or at a coordinator. But it changes some keys before
//! it knows which others it needs. So its changes can be rolled back (`storage/src/store/unit.rs`),
//! and it runs again from its start, with more data in memory or locked.
//!
//! A unit that takes long, or needs something slow (all keys, other workers), runs *detached*: on a
//! thread of its own, on the entries that its coordinator was lent. There it can wait in the
//! middle, and delays only clients that want its keys.

mod detached;
mod effects;
mod handlers;
pub(crate) mod said;
mod stop;

pub use detached::{Ask, DetachedUnit, Question, UnitRun, spawn};
pub use effects::{Effects, Published};
pub use handlers::{UnitHandler, handler, install};
pub use stop::{UnitOutcome, UnitStop};

use crate::acl::{DenialContext, Denied, DeniedAccess};
use crate::command::{Command, OwnedCommand, Request, RoundError, Route};
use crate::commandlog::CommandCost;
use crate::config::Settings;
use crate::node::Node;
use flagstone_commands::{Ctx, Stop, flag};
use flagstone_storage::Store;
use flagstone_wire::resp::Args;
use flagstone_wire::resp::reply::LOST;
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Maximum time that a unit may run on a worker's thread; then it is rolled back, and runs detached.
pub const IN_PLACE: Duration = Duration::from_millis(4);

/// Maximum number of times that a command may miss data before it fails.
pub const MAX_ATTEMPTS: usize = 10_000;

/// Error of a command that has missed data so often.
pub const NEEDS_TOO_MUCH: &str = "ERR the command needs more of its keys than can be loaded";

/// Error of a unit whose values take too much memory.
const TAKES_TOO_MUCH: &str =
    "ERR the values of the transaction or script take more memory than memory-budget";

/// Minimum number of parts after which all values that a unit has changed are counted anew.
const COUNTED_ANEW: usize = 16;

/// Thread of a unit.
enum Place {
    /// A worker's thread: the unit never waits.
    Here,
    /// A thread of its own; its coordinator answers its requests.
    Detached(mpsc::Sender<Question>),
}

/// Memory that a detached unit takes.
#[derive(Clone, Copy, Default)]
struct Growth {
    /// That of its workspace before its first part.
    before: Option<usize>,
    /// Number of changed entries that are counted.
    counted: usize,
    /// Number of parts until all of them are counted anew.
    parts: usize,
}

/// Context of a command that runs others.
pub struct Unit<'a> {
    pub node: Arc<Node>,
    /// Worker that runs or coordinates it.
    pub worker: usize,
    pub request: Request,
    /// Number of the account whose rights are checked: that of the request, until a queued command
    /// logs the connection in with another one.
    account: Cell<u64>,
    pub settings: &'a Settings,
    /// Start of this run.
    pub began: Instant,
    /// Time that the last part took, in nanoseconds.
    pub part_ns: Cell<u64>,
    /// Moment at which the last part ended; of the first one, at which the unit began.
    part_ended: Cell<Instant>,
    growth: Cell<Growth>,
    place: Place,
    effects: RefCell<Effects>,
}

impl<'a> Unit<'a> {
    /// Creates a unit that runs on a worker's thread, where it has begun at that moment.
    pub fn here(
        node: &Arc<Node>,
        worker: usize,
        request: Request,
        settings: &'a Settings,
        began: Instant,
    ) -> Self {
        Self::new(node.clone(), worker, request, settings, (Place::Here, began))
    }

    fn new(
        node: Arc<Node>,
        worker: usize,
        request: Request,
        settings: &'a Settings,
        (place, began): (Place, Instant),
    ) -> Self {
        Self {
            node,
            worker,
            request,
            account: Cell::new(request.account),
            settings,
            began,
            part_ns: Cell::new(0),
            part_ended: Cell::new(began),
            growth: Cell::default(),
            place,
            effects: RefCell::default(),
        }
    }

    /// Returns true if it runs on a thread of its own.
    pub fn is_detached(&self) -> bool {
        matches!(self.place, Place::Detached(_))
    }

    /// Returns true if this run has taken so little time that it could have run in place.
    pub fn was_quick(&self) -> bool {
        self.began.elapsed() < IN_PLACE / 2
    }

    /// Returns its effects beside changes of keys; they take place once, after the unit has run to
    /// its end.
    pub fn effects(&self) -> RefMut<'_, Effects> {
        self.effects.borrow_mut()
    }

    /// Returns its effects after its end.
    pub fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Requests a hold on every worker, for a command on databases. To be called before anything is
    /// changed: otherwise that is rolled back.
    pub fn hold_whole(&self, store: &mut Store) -> UnitOutcome {
        self.ask(store, Ask::Exclusive).map(drop)
    }

    /// Sends a request to the coordinator; without one, the unit stops, and runs again at one.
    fn ask(&self, store: &mut Store, ask: Ask) -> Result<Vec<u8>, UnitStop> {
        match (&self.place, ask) {
            (Place::Detached(to), ask) => {
                detached::ask(to, store, ask).map_err(|stop| match stop {
                    UnitStop::Unstored(error) => self.lacks(error),
                    stop => stop,
                })
            }
            (Place::Here, Ask::Load(needs)) => Err(Stop::Miss(needs).into()),
            (Place::Here, Ask::Exclusive) => Err(UnitStop::Exclusive),
            (Place::Here, Ask::Run(_)) => Err(UnitStop::Detached),
        }
    }

    /// Returns the stop of a command that does not get what it needs. A client's command fails alone, and
    /// a script may catch that. A command of a primary's stream takes the whole unit with it, which is
    /// repeated: none is left out.
    fn lacks(&self, error: RoundError) -> UnitStop {
        match self.request.is_of_stream() {
            true => error.into(),
            false => error.text.into(),
        }
    }
}

impl Unit<'_> {
    /// Continues with the rights of another account.
    pub fn log_in(&self, account: u64) {
        self.account.set(account);
    }

    /// Returns the request, with the account whose rights are checked now.
    fn current_request(&self) -> Request {
        Request { account: self.account.get(), ..self.request }
    }

    /// Checks if its user may run a command.
    ///
    /// # Errors
    /// The user's name, and the reason why not.
    pub fn check(&self, command: &Command, args: Args<'_>) -> Result<(), (Box<[u8]>, Denied)> {
        self.node.access.accounts.check(self.account.get(), command, args)
    }

    /// Checks if its user may run a command as a part of it. A denial is recorded.
    ///
    /// # Errors
    /// The user's name, and the reason why not.
    pub fn admit_part(
        &self,
        command: &Command,
        args: Args<'_>,
        context: DenialContext,
    ) -> Result<(), (Box<[u8]>, Denied)> {
        let Err((user, denied)) = self.check(command, args) else { return Ok(()) };
        let access = DeniedAccess::of(denied, (command, args), context, &user);
        self.effects().denied(access);
        Err((user, denied))
    }

    /// Checks if its user may still run a queued command. A denial is recorded, and counted as an
    /// error.
    ///
    /// # Errors
    /// The error of the command.
    pub fn admit_queued(&self, command: &Command, args: Args<'_>) -> UnitOutcome {
        self.admit_part(command, args, DenialContext::Multi).map_err(|(_, denied)| {
            let text = denied.text_at_exec();
            self.effects().error(text.as_bytes());
            text.into()
        })
    }

    /// Returns true if its user may read keys that a command does not name.
    pub fn reads_all(&self, command: &Command, args: Args<'_>) -> bool {
        self.node.reads_all(self.current_request(), command, args)
    }
}

/// Returns true if a command can be part of a unit without a connection of its own: it is on keys,
/// on databases, or has a special form.
pub fn is_part(command: &Command) -> bool {
    let route = command.spec.run;
    route.is_on_keys() || matches!(route, Route::Databases | Route::Either)
}

impl Unit<'_> {
    /// Runs a command, whose number of arguments was checked, as a part of this unit. Appends its
    /// reply, or returns its error.
    pub fn run_part(
        &self,
        cx: &mut Ctx<'_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> UnitOutcome {
        self.part_ended.set(Instant::now());
        self.run_next_part(cx, command, args)
    }

    /// Like [`run_part`](Self::run_part), if nothing has taken time since the last part: this one
    /// begins when that one ended, so that the clock is read once for each.
    pub fn run_next_part(
        &self,
        cx: &mut Ctx<'_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> UnitOutcome {
        let (began, mark) = (self.part_ended.get(), cx.out.len());
        let outcome = match self.run_uncounted(cx, command, args) {
            Ok(()) if cx.out.replace_lost(mark) => Err(LOST.into()),
            outcome => outcome,
        };
        let failed = match &outcome {
            Ok(()) => None,
            Err(UnitStop::Handler(Stop::Error(text))) => Some(&**text),
            // The unit runs again, or nothing of it counts.
            Err(_) => return outcome,
        };
        let now = Instant::now();
        self.part_ended.set(now);
        let took = now - began;
        self.part_ns.set(took.as_nanos() as u64);
        let reply_bytes = failed.map_or(cx.out.len().saturating_sub(mark), <[u8]>::len);
        let cost = CommandCost { took, reply_bytes };
        let mut effects = self.effects();
        effects.scripted += u64::from(cx.in_script);
        effects.ran(command, args, cost, failed, self.settings);
        if failed.is_some() {
            cx.out.truncate(mark);
        }
        outcome
    }

    fn run_uncounted(
        &self,
        cx: &mut Ctx<'_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> UnitOutcome {
        match command.spec.run {
            Route::Keys(handler) => {
                cx.reads_all = self.reads_all(command, args);
                self.run_on_keys(cx, command, args, |cx, args| {
                    Ok(said::run(cx, command, args, |cx, args| handler(cx, args))?)
                })
            }
            Route::Unit | Route::Script | Route::Either => {
                let run = handler(command).ok_or("ERR this command is part of no other")?;
                self.run_on_keys(cx, command, args, |cx, args| run(cx, self, args))
            }
            _ => {
                let request =
                    Request { db: cx.db, proto: cx.out.proto(), ..self.current_request() };
                let owned = OwnedCommand::new(command, args, request);
                let reply = self.ask(cx.store, Ask::Run(Box::new(owned)))?;
                cx.out.append(&reply);
                Ok(())
            }
        }
    }

    fn run_on_keys(
        &self,
        cx: &mut Ctx<'_>,
        command: &'static Command,
        args: Args<'_>,
        handler: impl Fn(&mut Ctx<'_>, Args<'_>) -> UnitOutcome,
    ) -> UnitOutcome {
        let ended = self.run_to_end(cx, args, handler);
        let has_ended = matches!(ended, Ok(()) | Err(UnitStop::Handler(Stop::Error(_))));
        if self.request.track && has_ended && command.spec.has(flag!(READONLY)) {
            let (keys, before) = (command.keys(args, cx.db), cx.store.notes.mark());
            self.effects().reads(keys.into_iter().map(|(_, key)| key), before)?;
        }
        ended
    }

    /// Fails if the values that it has loaded and made, with the words for replicas and the notes of its
    /// changes, take more memory than all data may: none of them can leave memory before its end. In
    /// place, it has no time for so many.
    fn check_memory(&self, store: &mut Store) -> UnitOutcome {
        // The units of a primary's stream, and of a data set that is loaded, are known to fit somewhere.
        if !self.is_detached() || self.request.client == 0 {
            return Ok(());
        }
        let Growth { before, counted, parts } = self.growth.get();
        let memory = |store: &Store| store.memory() + store.words.memory() + store.notes.memory();
        let before = before.unwrap_or(memory(store));
        let (first, parts) = match parts.checked_sub(1) {
            Some(left) => (counted, left),
            None => (0, counted.max(COUNTED_ANEW)),
        };
        let counted = store.recount_changed(first);
        self.growth.set(Growth { before: Some(before), counted, parts });
        if memory(store).saturating_sub(before) as u64 > self.settings.memory_budget {
            return Err(UnitStop::Undone(TAKES_TOO_MUCH.into()));
        }
        Ok(())
    }

    /// Runs a handler until it has all data that it needs.
    fn run_to_end(
        &self,
        cx: &mut Ctx<'_>,
        args: Args<'_>,
        handler: impl Fn(&mut Ctx<'_>, Args<'_>) -> UnitOutcome,
    ) -> UnitOutcome {
        let (mark, noted) = (cx.out.len(), cx.store.notes.len());
        let lookups = cx.store.stats.lookups();
        for _ in 0..MAX_ATTEMPTS {
            self.check_memory(cx.store)?;
            match handler(cx, args) {
                Err(UnitStop::Handler(Stop::Miss(needs))) => {
                    cx.out.truncate(mark);
                    cx.store.notes.retry(noted);
                    cx.store.stats.set_lookups(lookups);
                    let needs = cx.store.at_origins(needs);
                    self.ask(cx.store, Ask::Load(needs))?;
                }
                // It cannot block: no other command could end its wait.
                Err(UnitStop::Handler(Stop::Block(block))) => {
                    cx.out.truncate(mark);
                    block.nil.write(cx.out);
                    return Ok(());
                }
                ended => return ended,
            }
        }
        Err(self.lacks(NEEDS_TOO_MUCH.into()))
    }
}
