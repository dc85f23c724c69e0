//! Holds of a coordinator on workers: it acquires them in the workers' order, borrows entries under
//! them, and ends them when it gives the entries back. The own worker needs no message.

use super::coordinator::{Coordination, Requirements};
use crate::command::RoundError;
use crate::node::Node;
use crate::worker::{Acquire, Apply, Grant, Worker, refusal};
use flagstone_storage::attached::AttachedShards;
use flagstone_storage::commit::Sealed;
use flagstone_storage::journal::{JournalError, Lsn};
use flagstone_storage::{Entry, Store};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A record in the journal, and its body.
pub(super) type Record = (Lsn, Arc<Vec<u8>>);

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
    }
    for need in &wanted.parts {
        out.entry(node.owner(&need.key)).or_default().needs.push(need.clone());
    }
    out
}

/// Borrows the wanted entries into a workspace, from the workers in their order. `here`: returns
/// the workspace's number of their database.
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
        held.seen = held.seen.max(grant.seen);
        held.awaited.extend(grant.awaited);
        // Under a hold on every worker, the generations are unchanged.
        if !held.exclusive && space.is_untouched() && space.generations() != grant.generations {
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
pub(super) async fn hold_all(
    worker: &Rc<Worker>,
    held: &mut Coordination,
) -> Result<(), RoundError> {
    held.exclusive = true;
    // Workers that own no shard know the databases, too, and come last.
    for target in 0..worker.peers.mailboxes.len() {
        match acquire_whole(worker, target, held).await {
            Ok(grant) => {
                held.holds.insert(target, grant.hold);
                held.seen = held.seen.max(grant.seen);
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
    worker: &Rc<Worker>,
    target: usize,
    held: &Coordination,
) -> Result<Grant, RoundError> {
    let whole = Acquire { all: true, patience: held.patience, ..Acquire::default() };
    acquire(worker, target, whole).await
}

/// Sends a request to one worker; fails with the error text for the client.
async fn acquire(
    worker: &Rc<Worker>,
    target: usize,
    acquire: Acquire,
) -> Result<Grant, RoundError> {
    let gone = || RoundError::from(format!("ERR worker {target} is gone"));
    let (tx, rx) = oneshot::channel();
    worker.ask(target, acquire, tx);
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

/// Appends a coordinator's record, whose body is `body`. It may have operations only of shards that
/// are attached to a worker of this process.
pub(super) fn append(
    node: &Node,
    attached: &AttachedShards,
    sealed: &Sealed,
    body: &[u8],
) -> Result<Lsn, RoundError> {
    let checked = attached.check(&node.layout, sealed.ops.keys().copied());
    let now_ms = node.clock.now_ms();
    let append = || node.followers.feed.append(&*node.journal, now_ms, sealed, &[body]);
    checked.map_err(JournalError::from).and_then(|()| append()).map_err(|error| refusal(&error))
}

/// Outcome of the changes.
pub(super) enum Changed<'a> {
    /// They are in the journal: in `record`, if there are any. With it the databases have these
    /// generations, if any are given.
    Stored { record: Option<&'a Record>, generations: &'a [u32] },
    /// They are discarded.
    Forgotten,
    /// There are none but expiries that were found.
    Kept,
}

/// Returns entries; their changes are discarded or stored. The holds end with it, except, with
/// `keep`, those on whole workers.
pub(super) async fn hand_back(
    worker: &Rc<Worker>,
    held: &mut Coordination,
    entries: Vec<(u32, Entry)>,
    what: Changed<'_>,
    keep: bool,
) {
    let mut applies = if keep && held.exclusive { loans(held) } else { ends(held) };
    if let Changed::Stored { record, generations } = &what {
        for apply in applies.values_mut() {
            apply.record = record.cloned();
            apply.generations = generations.to_vec();
        }
        for key in std::mem::take(&mut held.reads) {
            if let Some(apply) = applies.get_mut(&worker.node.owner(&key)) {
                apply.reader = held.reader;
                apply.reads.push(key);
            }
        }
    }
    for (db, entry) in entries {
        let Some(apply) = applies.get_mut(&worker.node.owner(entry.key())) else { continue };
        match &what {
            Changed::Forgotten if entry.was_changed() => {
                apply.forget.push((db, entry.key().into()));
            }
            Changed::Forgotten | Changed::Kept => apply.entries.push((db, entry, false)),
            Changed::Stored { .. } => {
                let written = entry.was_changed();
                apply.entries.push((db, entry, written));
            }
        }
    }
    worker.end_long_turn(applies.values().map(|apply| apply.entries.len()).sum()).await;
    worker.give_back(applies).await;
}

/// Ends all holds, and returns the entries, which are unchanged.
pub(super) async fn release(
    worker: &Rc<Worker>,
    held: &mut Coordination,
    entries: Vec<(u32, Entry)>,
) {
    hand_back(worker, held, entries, Changed::Kept, false).await;
}
