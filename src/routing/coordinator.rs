//! Commands on keys of several workers: the coordinator locks the keys worker by worker, in
//! ascending order, is lent their entries, runs the command on them as if it owned them, appends
//! one journal record, and tells the workers to apply it. The record makes the command atomic after
//! any crash, without prepare phases.
//!
//! Data that the command misses, including keys that it has not declared, is locked and loaded for
//! the next attempt: everything is released, and acquired again with it in the workers' order. So
//! no coordinator waits for a lock while it holds one of a greater worker. A command that asks for
//! ever new keys, because others change the values that determine them, gets a hold on every worker
//! in the end.

use super::holds::{Changed, Record, append, borrow, hand_back, hold_all, release};
use super::loan::LATE;
use super::units::{lose, run_detached};
use super::{databases, permits};
use crate::cluster::{ExpectedPart, PATIENCE};
use crate::command::{Answer, Outcome, OwnedCommand, Patience, Request, RoundError, Route};
use crate::config::Settings;
use crate::node::Node;
use crate::unit::{self, Effects, MAX_ATTEMPTS, NEEDS_TOO_MUCH, Unit, UnitOutcome, UnitStop, said};
use crate::worker::{
    Coordinated, CoordinatorRequest, FinishedCommand, LockKey, News, Ran, Shown, Worker, changer,
};
use flagstone_commands::{Ctx, Stop, flag};
use flagstone_storage::Store;
use flagstone_storage::journal::Lsn;
use flagstone_storage::notes::{Interest, Note};
use flagstone_storage::store::Need;
use flagstone_wire::resp::Reply;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::Instant as Deadline;

/// Number of times that a command may need more keys before it gets a hold on every worker.
const MAX_LOCKINGS: usize = 8;

/// The same number for units: with a hold on every worker, a unit need not start again for each
/// further key.
const MAX_UNIT_LOCKINGS: usize = 4;

/// State of a coordinator.
#[derive(Default)]
pub(super) struct Coordination {
    /// The connection whose changes they are; 0 if none.
    pub(super) client: u64,
    /// Limit of the command's wait for locks.
    pub(super) patience: Patience,
    /// Holds, by worker.
    pub(super) holds: BTreeMap<usize, u64>,
    /// True if the holds are on whole workers; they last until the command has ended.
    pub(super) exclusive: bool,
    /// Keys that it was lent beyond those that it wanted at first.
    pub(super) lent: BTreeSet<LockKey>,
    /// Keys that it was lent, and for which clients wait.
    pub(super) awaited: Vec<LockKey>,
    /// Big keys that its attempts have changed and lost: the next one copies them before.
    lost: Vec<LockKey>,
    /// Lsn that has to be durable before a reply may show what it was lent; 0: all of it is.
    pub(super) seen: Lsn,
    /// Notes of the command, and the rounds that show with it at the coordinator's worker.
    notes: Vec<Note>,
    pub(super) shown: Shown,
    /// Effects of the command beside changes of keys, if it is a unit.
    effects: Effects,
    /// The connection that has sent the command, and keys that it has read by a unit and tracks.
    pub(super) reader: u64,
    pub(super) reads: Vec<Box<[u8]>>,
    /// True if it has changed whole databases.
    rearranged: bool,
    /// Time of the attempts that missed something.
    spent: Duration,
}

impl Coordination {
    /// Begins that of a client's command.
    pub(super) fn of(command: &OwnedCommand) -> Self {
        let OwnedCommand { command, request, .. } = command;
        let (client, patience) = (changer(command, request.client), Patience::of(command, request));
        Self { client, patience, reader: request.client, ..Self::default() }
    }

    /// Notes the rounds that replies show: those of what was lent, and of a record.
    fn show(&mut self, worker: &Worker, record: Lsn) {
        let lsn = record.max(self.seen);
        self.shown = if lsn == 0 { Shown::default() } else { worker.showing(lsn) };
    }
}

/// Keys and holds that a command needs.
#[derive(Default)]
pub(super) struct Requirements {
    /// The client that tracks the keys, all of which the command reads.
    pub(super) reader: Option<u64>,
    pub(super) keys: BTreeSet<LockKey>,
    /// Parts of the keys' values.
    pub(super) parts: Vec<Need>,
    /// True if it needs a hold on every worker.
    pub(super) exclusive: bool,
    /// True if it needs a thread of its own.
    pub(super) detached: bool,
}

impl Requirements {
    /// Adds the missed data; returns true if that includes new keys.
    pub(super) fn add(&mut self, missed: Vec<Need>) -> bool {
        let before = self.keys.len();
        self.keys.extend(missed.iter().map(|need| (need.db, need.key.clone())));
        self.parts.extend(missed.into_iter().filter(|need| need.part.is_some()));
        self.keys.len() > before
    }
}

/// Runs a command on keys of several workers, and returns its whole reply.
pub async fn run_across(worker: &Rc<Worker>, command: OwnedCommand) -> Answer {
    let proto = command.request.proto;
    coordinate_to_end(worker, command).await.into_answer(proto)
}

/// Runs a coordinator in a task, which continues even if the future is dropped: one that stopped in
/// the middle would never release its holds. Returns `None` if the worker ends before.
pub(super) async fn to_end<T: 'static>(
    worker: &Worker,
    coordinator: Pin<Box<dyn Future<Output = T>>>,
) -> Option<T> {
    let (tx, rx) = oneshot::channel();
    let under_way = worker.node.ending.coordinator();
    tokio::task::spawn_local(async move {
        let _under_way = under_way;
        let _ = tx.send(coordinator.await);
    });
    rx.await.ok()
}

/// Runs [`coordinate`] to its end.
pub(super) async fn coordinate_to_end(worker: &Rc<Worker>, command: OwnedCommand) -> Ran {
    let coordinator = worker.clone();
    let running =
        Box::pin(
            async move { coordinate(&coordinator, &command, CoordinatorRequest::default()).await },
        );
    to_end(worker, running).await.unwrap_or_else(Ran::abandoned)
}

/// Wraps [`coordinate`] for workers, which are given it at their start.
pub(crate) fn coordinate_boxed<'a>(
    worker: &'a Rc<Worker>,
    command: &'a OwnedCommand,
    request: CoordinatorRequest,
) -> Coordinated<'a> {
    Box::pin(coordinate(worker, command, request))
}

/// Runs a command that holds no locks on keys of any workers: those that it has declared, and those
/// that it is known to miss.
pub(crate) async fn coordinate(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    request: CoordinatorRequest,
) -> Ran {
    let Request { client: id, .. } = command.request;
    let mut out = command.request.reply();
    let mut held = Coordination::of(command);
    let outcome = run(worker, command, request, &mut held, &mut out).await;
    let text = outcome.as_ref().err().and_then(UnitStop::text);
    let mut ended = if text.is_some() { Outcome::Failed } else { held.effects.outcome() };
    let is_counted = std::mem::take(&mut held.effects.error_counted);
    worker.stats().unit_ended(command.command, text, is_counted);
    worker.tell_parts(&mut held.effects, command.command, id, &worker.settings());
    let published = std::mem::take(&mut held.effects.published);
    match outcome {
        Ok(()) => match worker.wait_shown(&held.shown).await {
            Ok(()) => {
                let (client, notes, shown) = (held.client, held.notes, held.shown);
                worker.tell(&News { shown, client, number: 0, notes, published });
                if held.rearranged {
                    worker.node.audience(&worker.settings()).invalidate_everything();
                }
            }
            Err(error) => {
                worker.stats().failed(command.command, &error.text);
                out.clear();
                out.error(error.text);
                ended = error.outcome;
            }
        },
        Err(UnitStop::Handler(Stop::Block(block))) => {
            worker.spread(held.shown, 0, held.notes, published);
            return Ran::blocked(block);
        }
        Err(UnitStop::Handler(Stop::Error(text)) | UnitStop::Undone(text)) => {
            // A script keeps its writes before an error, and entries that it met may have expired.
            worker.spread(held.shown.clone(), 0, held.notes, published);
            out.clear();
            match worker.wait_shown(&held.shown).await {
                Ok(()) => out.error(&*text),
                Err(error) => {
                    out.error(error.text);
                    ended = error.outcome;
                }
            }
        }
        Err(UnitStop::Unstored(error)) => {
            worker.spread(held.shown, 0, held.notes, published);
            out.clear();
            out.error(error.text);
            ended = error.outcome;
        }
        Err(
            UnitStop::Handler(Stop::Miss(_) | Stop::Unsettled | Stop::NotOwned(_))
            | UnitStop::Detached
            | UnitStop::Exclusive
            | UnitStop::Closing,
        ) => return Ran::abandoned(),
    }
    if out.replace_lost(0) {
        ended = Outcome::Failed;
    }
    Ran::shows(out, ended, Shown::default())
}

/// Repeats attempts until nothing is missing.
async fn run(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    request: CoordinatorRequest,
    held: &mut Coordination,
    out: &mut Reply,
) -> UnitOutcome {
    let _many = permits::for_keys(&worker.node, command).await?;
    let keys = command.lock_keys().into_iter().collect();
    let Request { client, track, .. } = command.request;
    let spec = command.command.spec;
    // A unit knows at its end which keys it has read.
    let reader = (track && spec.has(flag!(READONLY)) && !spec.runs_others()).then_some(client);
    let CoordinatorRequest { missed, detached, exclusive } = request;
    let mut wanted = Requirements { reader, keys, detached, exclusive, ..Requirements::default() };
    wanted.add(missed);
    let max_lockings = if spec.runs_others() { MAX_UNIT_LOCKINGS } else { MAX_LOCKINGS };
    let mut lockings = 1;
    let (mut permit, mut patience) = (None, None);
    for _ in 0..MAX_ATTEMPTS {
        if lockings > max_lockings {
            (wanted.exclusive, wanted.detached) = (true, spec.runs_others());
        }
        if wanted.exclusive
            && !held.exclusive
            && let Some(cluster) = &worker.node.cluster
        {
            // It holds nothing now. If it is for a command on all keys, that needs all shards.
            let limit = *patience.get_or_insert_with(|| Deadline::now() + PATIENCE);
            cluster.until_settled(ExpectedPart::AllShards { and_to_come: false }, limit).await;
        }
        if wanted.detached && permit.is_none() {
            // A task that holds locks never waits for a permit, so those that have one get their
            // locks.
            release(worker, held, Vec::new()).await;
            permit = Some(permits::to_run_detached(&worker.node, command).await?);
        }
        if wanted.exclusive && !held.exclusive {
            hold_all(worker, held).await?;
        }
        match attempt(worker, command, &wanted, held, out).await {
            Ok(()) => return Ok(()),
            Err(UnitStop::Handler(Stop::Miss(missed))) => {
                lockings += usize::from(wanted.add(missed))
            }
            Err(UnitStop::Detached) => wanted.detached = true,
            Err(UnitStop::Exclusive) => {
                (wanted.exclusive, wanted.detached) = (true, spec.runs_others())
            }
            Err(stop) => return Err(stop),
        }
    }
    release(worker, held, Vec::new()).await;
    Err(NEEDS_TOO_MUCH.into())
}

/// Runs the command once, under the current holds or under new ones. Only after a miss, holds that
/// existed before continue.
async fn attempt(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    wanted: &Requirements,
    held: &mut Coordination,
    out: &mut Reply,
) -> UnitOutcome {
    let node = &worker.node;
    let asked = Instant::now();
    let mut space = acquire_all(worker, wanted, held).await?;
    space.copy_lost(&held.lost);
    if asked.elapsed() > LATE && is_killed(node, command.request.client) {
        abandon(worker, command, held, space, false).await;
        return Err(UnitStop::Closing);
    }
    let settings = worker.settings();
    let now_ms = node.clock.now_ms();
    if let Some(text) = worker.refused_late(&command.invocation(now_ms, &settings)) {
        abandon(worker, command, held, space, false).await;
        return Err(RoundError::refused(text).into());
    }
    node.begin_request(&mut space, now_ms, &command.request);
    // The workers that own the keys note the changes.
    space.notes.want(Interest { changes: false, ..node.interest(&settings) });
    let began = Instant::now();
    let mut ran = if wanted.detached {
        // Its state is large, and few commands need one.
        Box::pin(run_detached(worker, command, wanted, held, space)).await?
    } else {
        run_here(worker, command, &settings, space)
    };
    if let Err(UnitStop::Handler(Stop::NotOwned(what))) = ran.outcome {
        ran.outcome = Err(node.not_owned(what, Some(command.request.secured)).into());
    }
    if let Err(
        UnitStop::Handler(Stop::Miss(_))
        | UnitStop::Detached
        | UnitStop::Exclusive
        | UnitStop::Closing
        | UnitStop::Undone(_)
        | UnitStop::Unstored(_),
    ) = ran.outcome
    {
        held.spent += began.elapsed();
        let keep = matches!(ran.outcome, Err(UnitStop::Handler(Stop::Miss(_))));
        if matches!(ran.outcome, Err(UnitStop::Undone(_))) {
            // The unit has run, although none of its changes apply.
            ran.effects.published.clear();
            ran.effects.read.clear();
            held.effects = ran.effects;
            // Its error may tell of what it has read.
            held.show(worker, 0);
        }
        abandon(worker, command, held, ran.store, keep).await;
        return ran.outcome;
    }
    let mut notes = ran.store.notes.take();
    if !matches!(ran.outcome, Err(UnitStop::Handler(Stop::Block(_)))) {
        worker.log_parts(&mut ran.effects, command.request.client);
        let mut run = FinishedCommand::of(command, ran.out.len());
        run.spent += held.spent;
        worker.start_watch_at(began);
        worker.ran(&run, &settings);
    }
    held.reads = ran.effects.read.drain(..).map(|(key, _)| key).collect();
    commit_and_apply(worker, wanted, held, ran.store).await?;
    // Changes that could not be stored are not announced.
    held.notes.append(&mut notes);
    (held.effects, *out) = (ran.effects, ran.out);
    ran.outcome
}

/// Returns true if a client's connection was closed by force.
fn is_killed(node: &Node, client: u64) -> bool {
    client != 0 && node.clients.get(client).is_none_or(|client| client.is_killed())
}

/// Stores all changes of a command or none, and returns the entries that it was lent.
pub(super) async fn commit_and_apply(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
    mut space: Store,
) -> Result<(), RoundError> {
    let node = &worker.node;
    let generations = space.generations();
    let before = worker.partition.borrow().store.generations();
    held.rearranged = held.exclusive && generations != before;
    let committed = if held.rearranged {
        let lent = space.lent().map(|(db, entry)| (db, entry.key().into())).collect();
        match databases::load_watched(worker, &before, &generations, lent).await {
            Ok(()) => commit(node, &mut space, Some((&before, &generations))),
            Err(text) => Err(text.into()),
        }
    } else {
        commit(node, &mut space, None)
    };
    let record = match committed {
        Ok(record) => record,
        Err(text) if held.rearranged => {
            lose(worker, wanted, held).await;
            return Err(text);
        }
        Err(text) => {
            hand_back(worker, held, space.drain(), Changed::Forgotten, false).await;
            return Err(text);
        }
    };
    worker.partition.borrow_mut().store.stats.add(&space.stats);
    let generations = if held.rearranged { &generations[..] } else { &[] };
    let stored = Changed::Stored { record: record.as_ref(), generations };
    hand_back(worker, held, space.drain(), stored, false).await;
    held.show(worker, record.map_or(0, |(lsn, _)| lsn));
    Ok(())
}

/// Runs a command on this thread.
pub(super) fn run_here(
    worker: &Worker,
    command: &OwnedCommand,
    settings: &Settings,
    mut store: Store,
) -> unit::UnitRun {
    let Request { db, again, .. } = command.request;
    let mut out = command.request.reply();
    let began = Instant::now();
    let unit = Unit::here(&worker.node, worker.id, command.request, settings, began);
    let settings = &settings.data;
    let reads_all = unit.reads_all(command.command, command.args());
    let mut cx = Ctx { again, reads_all, ..Ctx::new(&mut store, &mut out, db, settings) };
    cx.store.words.begin_group();
    let outcome = match command.command.spec.run {
        Route::Keys(handler) => {
            said::run(&mut cx, command.command, command.args(), |cx, args| handler(cx, args))
                .map_err(UnitStop::from)
        }
        _ => match unit::handler(command.command) {
            Some(handler) => handler(&mut cx, &unit, command.args()),
            None => Err("ERR this command does not run on keys".into()),
        },
    };
    cx.store.words.end_group();
    unit::UnitRun { store, out, outcome, effects: unit.into_effects() }
}

/// Returns the entries of a command that has not run to its end. Changes of a unit are discarded;
/// expiries that another command has found are kept.
async fn abandon(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    held: &mut Coordination,
    mut space: Store,
    keep: bool,
) {
    if !command.command.spec.runs_others() {
        space.notes.retry(0);
        held.notes.append(&mut space.notes.take());
        hand_back(worker, held, space.drain(), Changed::Kept, keep).await;
        return;
    }
    take_back(worker, held, space, keep).await;
}

/// Discards all changes of a unit.
async fn take_back(worker: &Rc<Worker>, held: &mut Coordination, mut space: Store, keep: bool) {
    let entries = if held.exclusive {
        databases::unmoved(worker, &mut space)
    } else {
        held.lost = space.take_back_copied();
        space.drain()
    };
    hand_back(worker, held, entries, Changed::Forgotten, keep).await;
}

/// Appends the changes of a command as one record. `databases`: their generations before and now,
/// if it has changed them.
fn commit(
    node: &Node,
    space: &mut Store,
    databases: Option<(&[u32], &[u32])>,
) -> Result<Option<Record>, RoundError> {
    let mut sealed = space.seal();
    if let Some((before, now)) = databases {
        databases::seal(space.attached(), &mut sealed, before, now);
    }
    space.seal_source(&mut sealed);
    if sealed.is_empty() {
        return Ok(None);
    }
    let body = sealed.body();
    let lsn = append(node, space.attached(), &sealed, &body)?;
    let reached = sealed.source.into_iter();
    reached.for_each(|position| node.health.replica.reached(position, lsn));
    Ok(Some((lsn, Arc::new(body))))
}

/// Acquires all locks in the workers' order, and collects the lent entries in a workspace.
pub(super) async fn acquire_all(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
) -> Result<Store, RoundError> {
    let mut space = {
        let store = &worker.partition.borrow().store;
        store.workspace(&store.generations())
    };
    held.awaited.clear();
    match borrow(worker, wanted, held, &mut space, |db| db).await {
        Ok(()) => Ok(space),
        Err(error) => {
            release(worker, held, space.drain()).await;
            Err(error)
        }
    }
}
