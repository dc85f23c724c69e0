//! Commands on keys of several workers: the coordinator locks the keys worker by worker, in the
//! order of their numbers, is lent their entries, runs the command on them as if it owned them,
//! appends one journal record, and tells the workers to apply it. Whole or not at all after any
//! crash, without prepare phases.
//!
//! What the command misses, be it keys that it has not declared, is locked and loaded the next
//! time: everything is given back, and taken again with that in the workers' order. So nobody
//! waits for a lock while he holds one of a greater worker. A command that asks for ever new keys,
//! because others change what they follow from, gets the workers whole in the end.

use super::hold::{Acquire, Apply, Grant};
use super::owner;
use crate::commands::{Ctx, Run, Stop, flag};
use crate::events::News;
use crate::node::Node;
use crate::resp::Reply;
use crate::worker::{LockKey, Message, OwnedCommand, Ran, Request, Worker, changer};
use flagstone_storage::journal::{JournalError, Lsn};
use flagstone_storage::notes::{Interest, Note};
use flagstone_storage::store::Need;
use flagstone_storage::{Entry, Store};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// How often a command may miss something before it is given up.
const MAX_ATTEMPTS: usize = 10_000;

/// How often a command may need more keys before it gets the workers whole.
const MAX_LOCKINGS: usize = 8;

/// What a coordinator has so far.
#[derive(Default)]
struct Held {
    /// The connection whose changes they are; 0: nobody's.
    client: u64,
    /// Its holds, by worker.
    holds: BTreeMap<usize, u64>,
    /// They are on all that belongs to the workers, and last until the command is done.
    whole: bool,
    /// What the command has noted, and the round of the coordinator's worker that shows it.
    notes: Vec<Note>,
    round: u64,
}

/// What a command is lent.
struct Wanted {
    /// Who wants to hear of their changes.
    reader: Option<u64>,
    keys: BTreeSet<LockKey>,
    /// Parts of their values.
    parts: Vec<Need>,
}

impl Wanted {
    /// Adds what was missed; whether there are keys among it.
    fn add(&mut self, missed: Vec<Need>) -> bool {
        let before = self.keys.len();
        self.keys.extend(missed.iter().map(|need| (need.db, need.key.clone())));
        self.parts.extend(missed.into_iter().filter(|need| need.part.is_some()));
        self.keys.len() > before
    }
}

/// Runs a command on keys of several workers; its whole reply comes back. The task goes on to the
/// end even if the future is dropped.
pub async fn run_across(worker: &Rc<Worker>, command: OwnedCommand) -> Vec<u8> {
    let (tx, rx) = oneshot::channel();
    let coordinator = worker.clone();
    let proto = command.request.proto;
    tokio::task::spawn_local(async move {
        let ran = coordinate(&coordinator, &command, Vec::new()).await;
        let _ = tx.send(ran);
    });
    rx.await.unwrap_or_else(|_| Ran::abandoned()).into_reply(proto)
}

/// Runs a command that holds no locks on keys of any workers: those it has declared, and what it
/// has `missed` so far.
pub(crate) async fn coordinate(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    missed: Vec<Need>,
) -> Ran {
    let mut out = Reply::new(command.request.proto);
    let client = changer(command.command, command.request.client);
    let mut held = Held { client, ..Held::default() };
    match run(worker, command, missed, &mut held, &mut out).await {
        Ok(round) => match worker.wait_shown(round).await {
            Ok(()) => {
                worker.tell(&News { round, client: held.client, number: 0, notes: held.notes })
            }
            Err(error) => {
                out.clear();
                out.error(error.0);
            }
        },
        Err(Stop::Block(block)) => {
            worker.spread(held.round, 0, held.notes);
            return Ran::blocked(block);
        }
        Err(Stop::Close | Stop::Miss(_)) => {}
        Err(Stop::Error(text)) => {
            worker.stats().failed(command.command, &text);
            // What it met may have expired all the same.
            worker.spread(held.round, 0, held.notes);
            out.clear();
            out.error(&*text);
        }
    }
    Ran::reply(out.into_bytes())
}

/// Tries until nothing is missing. The round of the worker that the reply shows comes back, or the
/// text of the error.
async fn run(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    missed: Vec<Need>,
    held: &mut Held,
    out: &mut Reply,
) -> Result<u64, Stop> {
    let keys = command.lock_keys().into_iter().collect();
    let Request { client, track, .. } = command.request;
    let reader = (track && command.command.spec.has(flag::READONLY)).then_some(client);
    let mut wanted = Wanted { reader, keys, parts: Vec::new() };
    wanted.add(missed);
    let mut lockings = 1;
    for _ in 0..MAX_ATTEMPTS {
        if lockings > MAX_LOCKINGS && !held.whole {
            hold_whole(&worker.node, held).await?;
        }
        match attempt(worker, command, &wanted, held, out).await {
            Ok(round) => return Ok(round),
            Err(Stop::Miss(missed)) => lockings += usize::from(wanted.add(missed)),
            Err(stop) => return Err(stop),
        }
    }
    release(&worker.node, held, Vec::new(), &HashSet::new(), None).await;
    Err("ERR the command needs more of its keys than can be loaded".into())
}

/// One run under the holds that there are, or under fresh ones. The round of this worker that its
/// reply shows comes back. Only with a miss the holds that were there go on.
async fn attempt(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    wanted: &Wanted,
    held: &mut Held,
    out: &mut Reply,
) -> Result<u64, Stop> {
    let Run::Keys(handler) = command.command.spec.run else {
        return Err("ERR this command does not run on keys".into());
    };
    let node = &worker.node;
    let mut space = acquire_all(worker, wanted, held).await?;
    out.clear();
    let settings = worker.settings();
    space.begin(node.clock.now_ms(), command.request.touch);
    // The workers that own the keys note that they have changed.
    space.notes.want(Interest { changes: false, ..node.interest(&settings) });
    let Request { db, again, .. } = command.request;
    let began = Instant::now();
    let outcome = handler(
        &mut Ctx { store: &mut space, out, db, settings: &settings, again },
        command.args(),
    );
    if matches!(outcome, Err(Stop::Miss(_))) {
        space.notes.retry();
    }
    held.notes.append(&mut space.notes.take());
    if let Err(Stop::Miss(missed)) = outcome {
        give_back(node, held, space).await;
        return Err(Stop::Miss(missed));
    }
    let (name, client) = (command.command, command.request.client);
    if !matches!(outcome, Err(Stop::Block(_))) {
        worker.ran_since(began, name, command.args(), client, &settings);
    }
    let (changed, committed) = commit(node, &mut space);
    let record = match committed {
        Ok(record) => record,
        Err(failed) => {
            forget(node, held, space, changed).await;
            return Err(format!("ERR the write could not be stored: {failed}").into());
        }
    };
    let lsn = record.as_ref().map(|(lsn, _)| *lsn);
    release(node, held, space.drain(), &changed, record).await;
    held.round = lsn.map_or(0, |lsn| worker.round_showing(lsn));
    outcome.map(|()| held.round)
}

type Record = (Lsn, Arc<Vec<u8>>);

/// Appends what the command changed as one record.
fn commit(
    node: &Node,
    space: &mut Store,
) -> (HashSet<LockKey>, Result<Option<Record>, JournalError>) {
    let sealed = space.seal();
    let changed: HashSet<LockKey> = sealed.keys().map(|(db, key)| (db, key.into())).collect();
    if sealed.ops.is_empty() {
        return (changed, Ok(None));
    }
    let body = sealed.body();
    let appended = node.journal.append(node.clock.now_ms(), &sealed.shards(), &[&body]);
    (changed, appended.map(|lsn| Some((lsn, Arc::new(body)))))
}

/// What is asked of each worker, in their order.
fn by_worker(node: &Node, wanted: &Wanted, held: &Held) -> BTreeMap<usize, Acquire> {
    let mut out: BTreeMap<usize, Acquire> = BTreeMap::new();
    for (db, key) in &wanted.keys {
        let target = owner(node, key);
        let acquire = out.entry(target).or_default();
        acquire.keys.push((*db, key.clone()));
        acquire.under = held.holds.get(&target).copied();
        acquire.reader = wanted.reader;
    }
    for need in &wanted.parts {
        out.entry(owner(node, &need.key)).or_default().needs.push(need.clone());
    }
    out
}

/// Takes all locks in the workers' order and gathers what is lent in a workspace.
async fn acquire_all(worker: &Rc<Worker>, wanted: &Wanted, held: &mut Held) -> Result<Store, Stop> {
    let node = &worker.node;
    let mut space: Option<Store> = None;
    for (target, asked) in by_worker(node, wanted, held) {
        match acquire(node, target, asked).await {
            Ok(grant) => {
                held.holds.insert(target, grant.hold);
                let store = &worker.partition.borrow().store;
                let space = space.get_or_insert_with(|| store.workspace(&grant.generations));
                for (db, entry) in grant.entries {
                    space.adopt(db, entry);
                }
            }
            Err(text) => {
                let entries = space.map(|mut space| space.drain()).unwrap_or_default();
                release(node, held, entries, &HashSet::new(), None).await;
                return Err(text.into());
            }
        }
    }
    Ok(space.unwrap_or_else(|| {
        let store = &worker.partition.borrow().store;
        store.workspace(&store.generations())
    }))
}

/// Takes every worker that owns shards whole, in their order.
async fn hold_whole(node: &Node, held: &mut Held) -> Result<(), String> {
    held.whole = true;
    for target in 0..node.shard_workers {
        match acquire_whole(node, target).await {
            Ok(hold) => {
                held.holds.insert(target, hold);
            }
            Err(text) => {
                release(node, held, Vec::new(), &HashSet::new(), None).await;
                return Err(text);
            }
        }
    }
    Ok(())
}

/// Takes one worker whole; the hold, or the text for the client.
pub(super) async fn acquire_whole(node: &Node, target: usize) -> Result<u64, String> {
    let whole = Acquire { all: true, ..Acquire::default() };
    acquire(node, target, whole).await.map(|grant| grant.hold)
}

/// Asks one worker; the text for the client if it cannot.
async fn acquire(node: &Node, target: usize, acquire: Acquire) -> Result<Grant, String> {
    let gone = || format!("ERR worker {target} is gone");
    let (tx, rx) = oneshot::channel();
    node.mailboxes[target].send(Message::Acquire(acquire, tx)).await.map_err(|_| gone())?;
    let grant = rx.await.map_err(|_| gone())?;
    match grant.error {
        Some(text) => Err(text),
        None => Ok(grant),
    }
}

/// The ends of all holds.
fn ends(held: &mut Held) -> BTreeMap<usize, Apply> {
    held.whole = false;
    let client = held.client;
    std::mem::take(&mut held.holds)
        .into_iter()
        .map(|(worker, hold)| (worker, Apply { hold, client, ..Apply::default() }))
        .collect()
}

/// Gives back what was lent. The holds end with it, but those on whole workers.
async fn give_back(node: &Node, held: &mut Held, mut space: Store) {
    if !held.whole {
        return release(node, held, space.drain(), &HashSet::new(), None).await;
    }
    let mut applies: BTreeMap<usize, Apply> = BTreeMap::new();
    for (db, entry) in space.drain() {
        let worker = owner(node, entry.key());
        if let Some(&hold) = held.holds.get(&worker) {
            let apply = applies.entry(worker).or_default();
            (apply.hold, apply.client, apply.keep) = (hold, held.client, true);
            apply.entries.push((db, entry, false));
        }
    }
    send_all(node, applies).await;
}

/// Gives everything back, with the record if there is one.
async fn release(
    node: &Node,
    held: &mut Held,
    entries: Vec<(u32, Entry)>,
    changed: &HashSet<LockKey>,
    record: Option<Record>,
) {
    let mut applies = ends(held);
    for apply in applies.values_mut() {
        apply.record.clone_from(&record);
    }
    for (db, entry) in entries {
        if let Some(apply) = applies.get_mut(&owner(node, entry.key())) {
            let written = changed.contains(&(db, entry.key().into()));
            apply.entries.push((db, entry, written));
        }
    }
    send_all(node, applies).await;
}

/// Gives back what was not changed and has the rest forgotten.
async fn forget(node: &Node, held: &mut Held, mut space: Store, changed: HashSet<LockKey>) {
    let mut applies = ends(held);
    for (db, entry) in space.drain() {
        let key = (db, entry.key().into());
        if let Some(apply) = applies.get_mut(&owner(node, entry.key())) {
            if changed.contains(&key) {
                apply.forget.push(key);
            } else {
                apply.entries.push((db, entry, false));
            }
        }
    }
    send_all(node, applies).await;
}

/// Sends ends of holds ahead of data. A worker that is gone has lost its locks with its memory.
pub(super) async fn send_all(node: &Node, applies: BTreeMap<usize, Apply>) {
    for (worker, apply) in applies {
        if node.mailboxes[worker].send_urgent(Message::Apply(apply)).await.is_err() {
            tracing::error!(worker, "a worker is gone while a commit is applied to it");
        }
    }
}
