//! Units: commands that run others as one, transactions and scripts. A unit is a command on keys
//! like any other: it runs in place, parked, or at a coordinator. But it changes some keys before
//! it knows which others it needs. So what it has changed can be taken back
//! (`storage/src/store/unit.rs`), and it is run again from its start with more in memory or locked.
//!
//! One that takes long, or asks for what takes time (all keys, other workers), runs *apart*: on a
//! thread of its own, on what its coordinator was lent. There it can wait in the middle, and nobody
//! waits for it but those who want its keys.

mod apart;
mod effects;
mod handlers;
mod stop;

pub use apart::{Apart, Ask, Question, Ran, spawn};
pub use effects::{Effects, Published};
pub use handlers::{UnitHandler, handler, install};
pub use stop::{UnitOutcome, UnitStop};

use crate::command::{Command, OwnedCommand, Request, Route};
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

/// How long a unit may run on a worker's thread; then it is taken back, and runs apart.
pub const IN_PLACE: Duration = Duration::from_millis(4);

/// Where a unit runs.
enum Place {
    /// On a worker's thread: it never waits.
    Here,
    /// On a thread of its own; its coordinator answers what it asks.
    Apart(mpsc::Sender<Question>),
}

/// What a command that runs others has at hand.
pub struct Unit<'a> {
    pub node: Arc<Node>,
    /// The worker that runs or coordinates it.
    pub worker: usize,
    pub request: Request,
    pub settings: &'a Settings,
    /// When this run of it began.
    pub began: Instant,
    /// How long the last part took.
    pub part_ns: Cell<u64>,
    place: Place,
    effects: RefCell<Effects>,
}

impl<'a> Unit<'a> {
    /// A unit that runs on a worker's thread.
    pub fn here(node: &Arc<Node>, worker: usize, request: Request, settings: &'a Settings) -> Self {
        Self::new(node.clone(), worker, request, settings, Place::Here)
    }

    fn new(
        node: Arc<Node>,
        worker: usize,
        request: Request,
        settings: &'a Settings,
        place: Place,
    ) -> Self {
        let effects = RefCell::default();
        let (began, part_ns) = (Instant::now(), Cell::new(0));
        Self { node, worker, request, settings, began, part_ns, place, effects }
    }

    /// Whether it runs on a thread of its own.
    pub fn is_apart(&self) -> bool {
        matches!(self.place, Place::Apart(_))
    }

    /// Whether this run of it has taken so little time that it could have run in place.
    pub fn was_quick(&self) -> bool {
        self.began.elapsed() < IN_PLACE / 2
    }

    /// What it does beside changing keys; it happens when the unit is done, and never twice.
    pub fn effects(&self) -> RefMut<'_, Effects> {
        self.effects.borrow_mut()
    }

    /// Its effects, when it is done.
    pub fn into_effects(self) -> Effects {
        self.effects.into_inner()
    }

    /// Has all workers held whole, as commands on databases need it. To be asked for before
    /// anything is changed: else that is taken back.
    pub fn hold_whole(&self, store: &mut Store) -> UnitOutcome {
        self.ask(store, Ask::Whole).map(drop)
    }

    /// Asks the coordinator; where there is none, the unit stops, and is run again where there is.
    fn ask(&self, store: &mut Store, ask: Ask) -> Result<Vec<u8>, UnitStop> {
        match (&self.place, ask) {
            (Place::Apart(to), ask) => apart::ask(to, store, ask),
            (Place::Here, Ask::Load(needs)) => Err(Stop::Miss(needs).into()),
            (Place::Here, Ask::Whole) => Err(UnitStop::Exclusive),
            (Place::Here, Ask::Run(_)) => Err(UnitStop::Detached),
        }
    }
}

/// Whether a command can be part of a unit without a connection of its own: it is on keys, or on
/// databases, or has a form for it.
pub fn is_part(command: &Command) -> bool {
    let route = command.spec.run;
    route.is_on_keys() || matches!(route, Route::Databases | Route::Either)
}

impl Unit<'_> {
    /// Runs a command, whose number of arguments was checked, as a part of this one. Its reply is
    /// appended; an error comes back.
    pub fn run_part(
        &self,
        cx: &mut Ctx<'_>,
        command: &'static Command,
        args: Args<'_>,
    ) -> UnitOutcome {
        let began = Instant::now();
        let mark = cx.out.len();
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
        let time_ns = began.elapsed().as_nanos() as u64;
        self.part_ns.set(time_ns);
        self.effects().ran(command, args, time_ns, failed, self.settings);
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
                self.run_on_keys(cx, command, args, |cx, args| Ok(handler(cx, args)?))
            }
            Route::Unit | Route::Script | Route::Either => {
                let run = handler(command).ok_or("ERR this command is part of no other")?;
                self.run_on_keys(cx, command, args, |cx, args| run(cx, self, args))
            }
            _ => {
                let request = Request { db: cx.db, proto: cx.out.proto(), ..self.request };
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
        if self.request.track && command.spec.has(flag::READONLY) {
            let keys = command.keys(args, cx.db).into_iter();
            self.effects().reads(keys.map(|(_, key)| key))?;
        }
        let mark = cx.out.len();
        loop {
            match handler(cx, args) {
                Err(UnitStop::Handler(Stop::Miss(needs))) => {
                    cx.out.truncate(mark);
                    self.ask(cx.store, Ask::Load(needs))?;
                }
                // It cannot wait: what it would wait for cannot happen meanwhile.
                Err(UnitStop::Handler(Stop::Block(block))) => {
                    cx.out.truncate(mark);
                    block.nil.write(cx.out);
                    return Ok(());
                }
                ended => return ended,
            }
        }
    }
}
