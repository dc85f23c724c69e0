//! A unit on a thread of its own, and its requests to the coordinator.
//!
//! Permits limit the number of units that run detached. A coordinator takes one before any lock;
//! if it finds only later that it needs one, it releases its locks first. So no holder of a lock waits for a
//! permit, and each holder of a permit gets its locks.

use super::{Effects, Place, Unit, UnitOutcome, UnitStop};
use crate::command::OwnedCommand;
use crate::config::Settings;
use crate::node::Node;
use flagstone_commands::Ctx;
use flagstone_storage::Store;
use flagstone_storage::store::Need;
use flagstone_wire::resp::Reply;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{mpsc, oneshot};

/// Request of a unit.
#[derive(Debug)]
pub enum Ask {
    /// Load entries that are not in memory.
    Load(Vec<Need>),
    /// Hold every worker.
    Exclusive,
    /// Run a command that is not on keys, and return its reply.
    Run(Box<OwnedCommand>),
}

/// A request with the unit's workspace, which returns with the answer.
#[derive(Debug)]
pub struct Question {
    pub store: Store,
    pub ask: Ask,
    pub answer: oneshot::Sender<(Store, Result<Vec<u8>, UnitStop>)>,
}

/// Result of a unit's run.
pub struct UnitRun {
    pub store: Store,
    pub out: Reply,
    pub outcome: UnitOutcome,
    pub effects: Effects,
}

/// A unit that is to run on a thread of its own.
pub struct DetachedUnit {
    pub node: Arc<Node>,
    pub worker: usize,
    pub settings: Arc<Settings>,
    pub command: OwnedCommand,
    /// Its workspace.
    pub store: Store,
}

/// Sends a request to the coordinator, and waits for the answer.
pub(super) fn ask(
    to: &mpsc::Sender<Question>,
    store: &mut Store,
    ask: Ask,
) -> Result<Vec<u8>, UnitStop> {
    let (answer, answered) = oneshot::channel();
    let nothing = store.workspace(&[]);
    let lent = std::mem::replace(store, nothing);
    if let Err(unsent) = to.blocking_send(Question { store: lent, ask, answer }) {
        *store = unsent.0.store;
        return Err(UnitStop::Closing);
    }
    let (back, answer) = answered.blocking_recv().map_err(|_| UnitStop::Closing)?;
    *store = back;
    answer
}

/// Starts a unit. Its requests have to be answered until it has ended.
pub fn spawn(unit: DetachedUnit) -> (oneshot::Receiver<UnitRun>, mpsc::Receiver<Question>) {
    let (to, questions) = mpsc::channel(1);
    let node = unit.node.clone();
    (node.code.scripts.threads.run(move || run(unit, to)), questions)
}

fn run(unit: DetachedUnit, to: mpsc::Sender<Question>) -> UnitRun {
    let DetachedUnit { node, worker, settings, command, mut store } = unit;
    let mut out = command.request.reply();
    let place = (Place::Detached(to), Instant::now());
    let unit = Unit::new(node, worker, command.request, &settings, place);
    let outcome = match super::handler(command.command) {
        Some(handler) => {
            let db = command.request.db;
            let mut cx = Ctx::new(&mut store, &mut out, db, &settings.data);
            cx.store.words.begin_group();
            let outcome = handler(&mut cx, &unit, command.args());
            cx.store.words.end_group();
            outcome
        }
        None => Err("ERR this command runs no others".into()),
    };
    UnitRun { store, out, outcome, effects: unit.into_effects() }
}
