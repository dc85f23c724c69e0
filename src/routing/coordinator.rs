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

use super::units::{lose, run_detached};
use super::{databases, permits};
use crate::command::{Answer, Outcome, OwnedCommand, Patience, Request, RoundError, Route};
use crate::config::Settings;
use crate::node::Node;
use crate::transaction;
use crate::unit::{self, Effects, Unit, UnitOutcome, UnitStop};
use crate::worker::{
    Acquire, Apply, Coordinated, CoordinatorRequest, FinishedCommand, Grant, LockKey, Message,
    News, Ran, Shown, Worker, changer, refusal,
};
use flagstone_commands::{Ctx, Stop, flag};
use flagstone_storage::journal::Lsn;
use flagstone_storage::notes::{Interest, Note};
use flagstone_storage::store::Need;
use flagstone_storage::{Entry, Store};
use flagstone_wire::resp::Reply;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Maximum number of times that a command may miss data before it fails.
const MAX_ATTEMPTS: usize = 10_000;

/// Number of times that a command may need more keys before it gets a hold on every worker.
const MAX_LOCKINGS: usize = 8;

/// Such a number for units: with a hold on every worker, a unit need not start again for each
/// further key.
const MAX_UNIT_LOCKINGS: usize = 4;

/// State of a coordinator.
#[derive(Default)]
pub(super) struct Coordination {
    /// The connection whose changes they are; 0 if none.
    client: u64,
    /// Limit of the command's wait for locks.
    pub(super) patience: Patience,
    /// Holds, by worker.
    pub(super) holds: BTreeMap<usize, u64>,
    /// True if the holds are on whole workers; they last until the command has ended.
    pub(super) exclusive: bool,
    /// Keys that it was lent beyond those that it wanted at first.
    pub(super) lent: BTreeSet<LockKey>,
    /// Notes of the command, and the rounds that show with it at the coordinator's worker.
    notes: Vec<Note>,
    shown: Shown,
    /// Effects of the command beside changes of keys, if it is a unit.
    effects: Effects,
    /// True if it has changed whole databases.
    rearranged: bool,
}

/// Keys and holds that a command needs.
#[derive(Default)]
pub(super) struct Requirements {
    /// The client that tracks the keys which the command reads.
    pub(super) reader: Option<u64>,
    /// Keys that it reads, if it does not read all.
    pub(super) read: Option<BTreeSet<LockKey>>,
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

/// Runs [`coordinate`] in a task, which continues even if the future is dropped: a command that
/// stopped in the middle would never release its holds.
pub(super) async fn coordinate_to_end(worker: &Rc<Worker>, command: OwnedCommand) -> Ran {
    let (tx, rx) = oneshot::channel();
    let coordinator = worker.clone();
    let under_way = worker.node.ending.coordinator();
    tokio::task::spawn_local(async move {
        let _under_way = under_way;
        let ran = coordinate(&coordinator, &command, CoordinatorRequest::default()).await;
        let _ = tx.send(ran);
    });
    rx.await.unwrap_or_else(|_| Ran::abandoned())
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
    let Request { client: id, proto, .. } = command.request;
    let mut out = Reply::new(proto);
    let patience = Patience::of(command.command, &command.request);
    let mut held =
        Coordination { client: changer(command.command, id), patience, ..Coordination::default() };
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
            // A script keeps what it has written before its error, and entries that it met may have
            // expired.
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
            UnitStop::Handler(Stop::Miss(_) | Stop::Unsettled)
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
    let reader = (track && (spec.runs_others() || spec.has(flag!(READONLY)))).then_some(client);
    let CoordinatorRequest { missed, detached, exclusive } = request;
    let read = spec.has(flag!(EXEC)).then(|| transaction::read_keys(command.args()));
    let mut wanted =
        Requirements { reader, read, keys, detached, exclusive, ..Requirements::default() };
    wanted.add(missed);
    let max_lockings = if spec.runs_others() { MAX_UNIT_LOCKINGS } else { MAX_LOCKINGS };
    let mut lockings = 1;
    let mut permit = None;
    for _ in 0..MAX_ATTEMPTS {
        if lockings > max_lockings {
            (wanted.exclusive, wanted.detached) = (true, spec.runs_others());
        }
        if wanted.detached && permit.is_none() {
            // A task that holds locks never waits for a permit, so those that have one get their
            // locks.
            release(worker, held, Vec::new()).await;
            permit = Some(permits::to_run_detached(&worker.node, client).await?);
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
    Err("ERR the command needs more of its keys than can be loaded".into())
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
    let mut space = acquire_all(worker, wanted, held).await?;
    let settings = worker.settings();
    // At time 0, no key has expired.
    let now_ms = if command.request.sees_expired { 0 } else { node.clock.now_ms() };
    node.begin(&mut space, now_ms, command.request.touch);
    // The workers that own the keys note the changes.
    space.notes.want(Interest { changes: false, ..node.interest(&settings) });
    let began = Instant::now();
    let mut ran = if wanted.detached {
        run_detached(worker, command, wanted, held, space).await?
    } else {
        run_here(worker, command, &settings, space)
    };
    if let Err(
        UnitStop::Handler(Stop::Miss(_))
        | UnitStop::Detached
        | UnitStop::Exclusive
        | UnitStop::Closing
        | UnitStop::Undone(_)
        | UnitStop::Unstored(_),
    ) = ran.outcome
    {
        let keep = matches!(ran.outcome, Err(UnitStop::Handler(Stop::Miss(_))));
        if matches!(ran.outcome, Err(UnitStop::Undone(_))) {
            // The unit has run, although none of its changes apply.
            ran.effects.published.clear();
            ran.effects.read.clear();
            held.effects = ran.effects;
        }
        abandon(worker, command, held, ran.store, keep).await;
        return ran.outcome;
    }
    let mut notes = ran.store.notes.take();
    if !matches!(ran.outcome, Err(UnitStop::Handler(Stop::Block(_)))) {
        worker.log_parts(&mut ran.effects, command.request.client);
        let run = FinishedCommand::of(command, ran.out.len());
        worker.start_watch_at(began);
        worker.ran(run, &settings);
    }
    commit_and_apply(worker, wanted, held, ran.store).await?;
    // Changes that could not be stored are not announced.
    held.notes.append(&mut notes);
    (held.effects, *out) = (ran.effects, ran.out);
    ran.outcome
}

/// Stores all changes of a command or none, and returns the entries that it was lent.
async fn commit_and_apply(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
    mut space: Store,
) -> Result<(), RoundError> {
    let node = &worker.node;
    let generations = space.generations();
    let before = worker.partition.borrow().store.generations();
    held.rearranged = held.exclusive && generations != before;
    let changed: HashSet<LockKey> =
        space.changed_keys().map(|(db, key)| (db, key.into())).collect();
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
            hand_back(worker, held, space.drain(), &changed, Changed::Forgotten, false).await;
            return Err(text);
        }
    };
    let generations = if held.rearranged { &generations[..] } else { &[] };
    let stored = Changed::Stored { record: record.as_ref(), generations };
    hand_back(worker, held, space.drain(), &changed, stored, false).await;
    held.shown = record.map_or_else(Shown::default, |(lsn, _)| worker.showing(lsn));
    Ok(())
}

/// Runs a command on this thread.
fn run_here(
    worker: &Worker,
    command: &OwnedCommand,
    settings: &Settings,
    mut store: Store,
) -> unit::UnitRun {
    let Request { db, again, proto, .. } = command.request;
    let mut out = Reply::new(proto);
    let unit = Unit::here(&worker.node, worker.id, command.request, settings);
    let settings = &settings.data;
    let reads_all = unit.reads_all(command.command, command.args());
    let mut cx = Ctx { again, reads_all, ..Ctx::new(&mut store, &mut out, db, settings) };
    let outcome = match command.command.spec.run {
        Route::Keys(handler) => handler(&mut cx, command.args()).map_err(UnitStop::from),
        _ => match unit::handler(command.command) {
            Some(handler) => handler(&mut cx, &unit, command.args()),
            None => Err("ERR this command does not run on keys".into()),
        },
    };
    unit::UnitRun { store, out, outcome, effects: unit.into_effects() }
}

/// Returns the entries of a command that has not run to its end. Changes of a unit are discarded;
/// expiries that another command has found are kept.
async fn abandon(
    worker: &Worker,
    command: &OwnedCommand,
    held: &mut Coordination,
    mut space: Store,
    keep: bool,
) {
    if !command.command.spec.runs_others() {
        space.notes.retry();
        held.notes.append(&mut space.notes.take());
        hand_back(worker, held, space.drain(), &HashSet::new(), Changed::Forgotten, keep).await;
        return;
    }
    take_back(worker, held, space, keep).await;
}

/// Discards all changes of a unit.
async fn take_back(worker: &Worker, held: &mut Coordination, mut space: Store, keep: bool) {
    let entries =
        if held.exclusive { databases::unmoved(worker, &mut space) } else { space.drain() };
    let changed = entries.iter().filter(|(_, entry)| entry.is_dirty());
    let changed = changed.map(|(db, entry)| (*db, entry.key().into())).collect();
    hand_back(worker, held, entries, &changed, Changed::Forgotten, keep).await;
}

pub(super) type Record = (Lsn, Arc<Vec<u8>>);

/// Appends the changes of a command as one record. `databases`: their generations before and now,
/// if it has changed them.
fn commit(
    node: &Node,
    space: &mut Store,
    databases: Option<(&[u32], &[u32])>,
) -> Result<Option<Record>, RoundError> {
    let mut sealed = space.seal();
    if let Some((before, now)) = databases {
        databases::seal(node, &mut sealed, before, now);
    }
    if sealed.ops.is_empty() {
        return Ok(None);
    }
    let body = sealed.body();
    let appended = node.journal.append(node.clock.now_ms(), &sealed.shards(), &[&body]);
    match appended {
        Ok(lsn) => Ok(Some((lsn, Arc::new(body)))),
        Err(error) => Err(refusal(&error)),
    }
}

/// Returns the request to each worker, in their order.
fn by_worker(node: &Node, wanted: &Requirements, held: &Coordination) -> BTreeMap<usize, Acquire> {
    let mut out: BTreeMap<usize, Acquire> = BTreeMap::new();
    for (db, key) in &wanted.keys {
        let target = node.owner(key);
        let acquire = out.entry(target).or_default();
        acquire.keys.push((*db, key.clone()));
        acquire.under = held.holds.get(&target).copied();
        acquire.patience = held.patience;
        acquire.reader = wanted.reader;
        if wanted.reader.is_some()
            && wanted.read.as_ref().is_none_or(|read| read.contains(&(*db, key.clone())))
        {
            acquire.reads.push(key.clone());
        }
    }
    for need in &wanted.parts {
        out.entry(node.owner(&need.key)).or_default().needs.push(need.clone());
    }
    out
}

/// Acquires all locks in the workers' order, and collects the lent entries in a workspace.
async fn acquire_all(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
) -> Result<Store, UnitStop> {
    let mut space = {
        let store = &worker.partition.borrow().store;
        store.workspace(&store.generations())
    };
    match borrow(worker, wanted, held, &mut space, |db| db).await {
        Ok(()) => Ok(space),
        Err(text) => {
            release(worker, held, space.drain()).await;
            Err(text.into())
        }
    }
}

/// Borrows what is wanted into a workspace, from the workers in their order. `here`: returns the
/// workspace's number of their database.
pub(super) async fn borrow(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
    space: &mut Store,
    here: impl Fn(u32) -> u32,
) -> Result<(), RoundError> {
    for (target, asked) in by_worker(&worker.node, wanted, held) {
        worker.end_long_turn(asked.keys.len()).await;
        let grant = acquire(worker, target, asked).await?;
        held.holds.insert(target, grant.hold);
        // Under a hold on every worker, the generations are unchanged.
        if !held.exclusive && space.is_untouched() {
            *space = space.workspace(&grant.generations);
        }
        for (db, entry) in grant.entries {
            space.adopt(here(db), entry);
        }
        worker.end_long_turn(wanted.keys.len()).await;
    }
    Ok(())
}

/// Holds every worker, in their order.
pub(super) async fn hold_all(worker: &Worker, held: &mut Coordination) -> Result<(), RoundError> {
    held.exclusive = true;
    // Workers that own no shard know the databases, too, and come last.
    for target in 0..worker.peers.mailboxes.len() {
        match acquire_whole(worker, target, held.patience).await {
            Ok(hold) => {
                held.holds.insert(target, hold);
            }
            Err(text) => {
                release(worker, held, Vec::new()).await;
                return Err(text);
            }
        }
    }
    Ok(())
}

/// Holds one worker; fails with the error text for the client.
async fn acquire_whole(
    worker: &Worker,
    target: usize,
    patience: Patience,
) -> Result<u64, RoundError> {
    let whole = Acquire { all: true, patience, ..Acquire::default() };
    acquire(worker, target, whole).await.map(|grant| grant.hold)
}

/// Sends a request to one worker; fails with the error text for the client.
async fn acquire(worker: &Worker, target: usize, acquire: Acquire) -> Result<Grant, RoundError> {
    let gone = || RoundError::from(format!("ERR worker {target} is gone"));
    let (tx, rx) = oneshot::channel();
    let mailbox = &worker.peers.mailboxes[target];
    mailbox.send(Message::Acquire(acquire, tx)).await.map_err(|_| gone())?;
    let grant = rx.await.map_err(|_| gone())?;
    match grant.error {
        Some(error) => Err(error),
        None => Ok(grant),
    }
}

/// Returns the messages that end all holds.
fn ends(held: &mut Coordination) -> BTreeMap<usize, Apply> {
    let mut applies = loans(held);
    applies.values_mut().for_each(|apply| apply.keep = false);
    held.lent.clear();
    held.exclusive = false;
    held.holds.clear();
    applies
}

/// Returns the messages that end the loans under the holds, which continue.
pub(super) fn loans(held: &Coordination) -> BTreeMap<usize, Apply> {
    let client = held.client;
    let loan = |(&worker, &hold): (&usize, &u64)| {
        (worker, Apply { hold, client, keep: true, ..Apply::default() })
    };
    held.holds.iter().map(loan).collect()
}

/// Outcome of the changes.
pub(super) enum Changed<'a> {
    /// They are in the journal: in `record`, if there are any. With it the databases have these
    /// generations, if any are given.
    Stored { record: Option<&'a Record>, generations: &'a [u32] },
    /// They are discarded.
    Forgotten,
}

/// Returns entries; their changes are discarded or stored. The holds end with it, except, with
/// `keep`, those on whole workers.
pub(super) async fn hand_back(
    worker: &Worker,
    held: &mut Coordination,
    entries: Vec<(u32, Entry)>,
    changed: &HashSet<LockKey>,
    what: Changed<'_>,
    keep: bool,
) {
    let mut applies = if keep && held.exclusive { loans(held) } else { ends(held) };
    if let Changed::Stored { record, generations } = &what {
        for apply in applies.values_mut() {
            apply.record = record.cloned();
            apply.generations = generations.to_vec();
        }
    }
    for (db, entry) in entries {
        let Some(apply) = applies.get_mut(&worker.node.owner(entry.key())) else { continue };
        let key = (db, entry.key().into());
        match &what {
            Changed::Forgotten if changed.contains(&key) => apply.forget.push(key),
            Changed::Forgotten => apply.entries.push((db, entry, false)),
            Changed::Stored { .. } => apply.entries.push((db, entry, changed.contains(&key))),
        }
    }
    worker.end_long_turn(applies.values().map(|apply| apply.entries.len()).sum()).await;
    send_all(worker, applies).await;
}

/// Ends all holds, and returns the entries, which are unchanged.
pub(super) async fn release(worker: &Worker, held: &mut Coordination, entries: Vec<(u32, Entry)>) {
    hand_back(worker, held, entries, &HashSet::new(), Changed::Forgotten, false).await;
}

/// Sends the ends of holds ahead of data. A worker that has ended has lost its locks with its
/// memory.
pub(super) async fn send_all(worker: &Worker, applies: BTreeMap<usize, Apply>) {
    for (target, apply) in applies {
        let mailbox = &worker.peers.mailboxes[target];
        if mailbox.send_urgent(Message::Apply(apply)).await.is_err() {
            tracing::error!(worker = target, "a worker is gone while a commit is applied to it");
        }
    }
}
