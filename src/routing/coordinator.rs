//! Commands on keys of several workers: the coordinator locks the keys worker by worker, in the
//! order of their numbers, is lent their entries, runs the command on them as if it owned them,
//! appends one journal record, and tells the workers to apply it. Whole or not at all after any
//! crash, without prepare phases.

use super::hold::{Acquire, Apply, Grant};
use crate::commands::{Ctx, Run, Stop};
use crate::node::Node;
use crate::resp::Reply;
use crate::worker::{LockKey, Message, OwnedCommand, Worker};
use flagstone_storage::Store;
use flagstone_storage::journal::{JournalError, Lsn};
use flagstone_storage::store::Need;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// How often a command may miss something before it is given up.
const MAX_ATTEMPTS: usize = 10_000;

/// The holds of a coordinator: (worker, hold), in the order they were taken.
type Held = Vec<(usize, u64)>;

/// Runs a command on keys of several workers; its whole reply comes back. The task goes on to the
/// end even if the future is dropped.
pub async fn run_across(worker: &Rc<Worker>, command: OwnedCommand) -> Vec<u8> {
    let (tx, rx) = oneshot::channel();
    let coordinator = worker.clone();
    tokio::task::spawn_local(async move {
        let reply = coordinate(&coordinator, &command).await;
        let _ = tx.send(reply);
    });
    rx.await.unwrap_or_else(|_| b"-ERR the command was abandoned\r\n".to_vec())
}

async fn coordinate(worker: &Rc<Worker>, command: &OwnedCommand) -> Vec<u8> {
    let mut out = Reply::new(command.request.proto);
    let mut needs = Vec::new();
    for _ in 0..MAX_ATTEMPTS {
        match attempt(worker, command, &needs, &mut out).await {
            Ok(round) => {
                if let Err(error) = worker.wait_shown(round).await {
                    out.clear();
                    out.error(error.0);
                }
                return out.into_bytes();
            }
            Err(Stop::Miss(need)) => needs.push(*need),
            Err(Stop::Error(text)) => {
                worker.stats().failed(command.command, &text);
                out.clear();
                out.error(&*text);
                return out.into_bytes();
            }
            Err(Stop::Close) => return out.into_bytes(),
        }
    }
    out.clear();
    out.error("ERR the command needs more of its keys than can be loaded");
    out.into_bytes()
}

/// One run under fresh locks. The round of this worker that its reply shows comes back.
async fn attempt(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    needs: &[Need],
    out: &mut Reply,
) -> Result<u64, Stop> {
    let node = &worker.node;
    let (held, mut space) = acquire_all(worker, command.lock_keys(), needs).await?;
    out.clear();
    let settings = worker.settings();
    space.begin(node.clock.now_ms(), command.request.touch);
    let Run::Keys(handler) = command.command.spec.run else {
        return Err("ERR this command does not run on keys".into());
    };
    let db = command.request.db;
    let began = Instant::now();
    let outcome =
        handler(&mut Ctx { store: &mut space, out, db, settings: &settings }, command.args());
    if let Err(Stop::Miss(need)) = outcome {
        release(node, &held, space, &HashSet::new(), None).await;
        return Err(Stop::Miss(need));
    }
    let (name, client) = (command.command, command.request.client);
    worker.ran_since(began, name, command.args(), client, &settings);
    let error = match outcome {
        Err(Stop::Error(text)) => Some(text),
        _ => None,
    };
    let (changed, committed) = commit(node, &mut space);
    let record = match committed {
        Ok(record) => record,
        Err(failed) => {
            forget(node, &held, space, changed).await;
            return Err(format!("ERR the write could not be stored: {failed}").into());
        }
    };
    let lsn = record.as_ref().map(|(lsn, _)| *lsn);
    release(node, &held, space, &changed, record).await;
    let round = lsn.map_or(0, |lsn| worker.round_showing(lsn));
    match error {
        Some(text) => Err(Stop::Error(text)),
        None => Ok(round),
    }
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

fn by_worker(node: &Node, keys: Vec<LockKey>) -> BTreeMap<usize, Vec<LockKey>> {
    let mut out: BTreeMap<usize, Vec<LockKey>> = BTreeMap::new();
    for (db, key) in keys {
        let worker = node.worker_of(flagstone_storage::slot::slot_of(&key));
        out.entry(worker).or_default().push((db, key));
    }
    out
}

/// Takes all locks in the workers' order and gathers what is lent in a workspace.
async fn acquire_all(
    worker: &Rc<Worker>,
    keys: Vec<LockKey>,
    needs: &[Need],
) -> Result<(Held, Store), Stop> {
    let node = &worker.node;
    let mut held = Vec::new();
    let mut space = worker.partition.borrow().store.workspace();
    for (target, keys) in by_worker(node, keys) {
        let needs = needs
            .iter()
            .filter(|n| node.worker_of(flagstone_storage::slot::slot_of(&n.key)) == target)
            .cloned()
            .collect();
        let grant = acquire(node, target, Acquire { keys, needs, all: false }).await;
        match grant {
            Ok(grant) => {
                held.push((target, grant.hold));
                for (db, entry) in grant.entries {
                    space.adopt(db, entry);
                }
            }
            Err(text) => {
                release(node, &held, space, &HashSet::new(), None).await;
                return Err(text.into());
            }
        }
    }
    Ok((held, space))
}

/// Asks one worker; the text for the client if it cannot.
pub(super) async fn acquire(node: &Node, target: usize, acquire: Acquire) -> Result<Grant, String> {
    let gone = || format!("ERR worker {target} is gone");
    let (tx, rx) = oneshot::channel();
    node.mailboxes[target].send(Message::Acquire(acquire, tx)).await.map_err(|_| gone())?;
    let grant = rx.await.map_err(|_| gone())?;
    match grant.error {
        Some(text) => Err(text),
        None => Ok(grant),
    }
}

/// Gives everything back, with the record if there is one.
async fn release(
    node: &Node,
    held: &Held,
    mut space: Store,
    changed: &HashSet<LockKey>,
    record: Option<Record>,
) {
    let mut applies: BTreeMap<usize, Apply> = held
        .iter()
        .map(|&(worker, hold)| (worker, Apply { hold, record: record.clone(), ..Apply::default() }))
        .collect();
    for (db, entry) in space.drain() {
        let worker = node.worker_of(flagstone_storage::slot::slot_of(entry.key()));
        if let Some(apply) = applies.get_mut(&worker) {
            let written = changed.contains(&(db, entry.key().into()));
            apply.entries.push((db, entry, written));
        }
    }
    send_all(node, applies).await;
}

/// Gives back what was not changed and has the rest forgotten.
async fn forget(node: &Node, held: &Held, mut space: Store, changed: HashSet<LockKey>) {
    let mut applies: BTreeMap<usize, Apply> =
        held.iter().map(|&(worker, hold)| (worker, Apply { hold, ..Apply::default() })).collect();
    for (db, entry) in space.drain() {
        let key = (db, entry.key().into());
        let worker = node.worker_of(flagstone_storage::slot::slot_of(entry.key()));
        if let Some(apply) = applies.get_mut(&worker) {
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
