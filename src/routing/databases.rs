//! Commands on whole databases: those that iterate over their keys, and those that flush or swap
//! them, alone or as part of a unit, which sees its own changes.
//!
//! A flush or a swap holds every worker, and appends one record for all shards, which gives the
//! databases other generations. In a unit, the workspace is changed first.

use super::call::{CallOutcome, CallStop};
use super::coordinator::Coordination;
use super::holds::{Changed, append, hand_back, hold_all, release};
use crate::cluster::{Cluster, WholeLook};
use crate::command::{Command, Patience, Request, RoundError};
use crate::node::{Node, limits};
use crate::unit::said::words_of;
use crate::worker::{Cursor, LockKey, ScanKey, ScanPage, Worker};
use flagstone_commands::{ErrorText, flag};
use flagstone_storage::attached::AttachedShards;
use flagstone_storage::commit::Sealed;
use flagstone_storage::words::RoundWords;
use flagstone_storage::{Entry, Store};
use flagstone_wire::resp::{Args, Reply};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const GONE: &str = "ERR a worker is gone";

/// All databases, as seen by a command.
pub struct Databases<'a> {
    pub worker: &'a Rc<Worker>,
    /// The selected database.
    pub db: u32,
    pub out: &'a mut Reply,
    /// Workspace of the unit of which the command is a part. Every worker is held entirely.
    unit: Option<&'a mut Store>,
    /// Words of the running command, for replicas.
    words: Vec<Vec<u8>>,
    /// That of the running command, if it is no part of a unit.
    request: Request,
    /// In a cluster, the look at all keys that the running command has begun, if it is no part of a unit.
    look: Option<WholeLook>,
}

impl<'a> Databases<'a> {
    /// Creates the view of a command that runs alone.
    pub fn new(worker: &'a Rc<Worker>, request: &Request, out: &'a mut Reply) -> Self {
        let (db, request) = (request.db, *request);
        Self { worker, db, out, unit: None, words: Vec::new(), request, look: None }
    }

    /// Creates the view of a command that is part of a unit.
    pub(super) fn in_unit(
        worker: &'a Rc<Worker>,
        store: &'a mut Store,
        db: u32,
        out: &'a mut Reply,
    ) -> Self {
        let (unit, words, request) = (Some(store), Vec::new(), Request::of_nobody(db));
        Self { worker, db, out, unit, words, request, look: None }
    }

    /// Begins a command. Its words are noted: replicas run it, too, if it changes something.
    ///
    /// # Errors
    /// If it is on all keys, and this server of a cluster does not serve all shards that are its own.
    pub fn begin(&mut self, command: &Command, args: Args<'_>) -> CallOutcome {
        let cluster = self.worker.node.cluster.as_ref();
        let writes = command.spec.has(flag!(WRITE));
        if let Some(cluster) = cluster.filter(|_| command.spec.has(flag!(ALL_SHARDS))) {
            match &self.unit {
                Some(store) => check_held(cluster, store.attached(), writes)?,
                // A flush looks under its hold.
                None if writes => {}
                None => self.look = Some(cluster.begin_look()?),
            }
        }
        // A stream for replicas may begin while it waits.
        if writes {
            self.words = words_of(command, args).into_iter().map(<[u8]>::to_vec).collect();
        }
        Ok(())
    }

    /// Checks that all shards of this server were there while the running command has read.
    fn check_look(&self) -> CallOutcome {
        match (&self.worker.node.cluster, &self.look) {
            (Some(cluster), Some(look)) => Ok(cluster.check_look(look)?),
            _ => Ok(()),
        }
    }

    /// Takes the words, as a group of a round.
    fn said(&mut self) -> Vec<u8> {
        let mut said = RoundWords::default();
        said.want(!self.words.is_empty());
        said.command(self.db, self.words.iter().map(|word| &**word));
        said.into_bytes()
    }

    /// Says the words in the unit of which the command is a part.
    fn say_in_unit(&mut self) {
        let (db, words) = (self.db, std::mem::take(&mut self.words));
        if let Some(space) = &mut self.unit
            && !words.is_empty()
        {
            space.words.command(db, words.iter().map(|word| &**word));
        }
    }

    /// Returns the number of databases.
    pub fn count(&self) -> u32 {
        self.worker.partition.borrow().store.databases()
    }

    /// Returns the time by which keys have expired for the command, in ms since the Unix epoch: 0 if
    /// it sees expired keys.
    pub fn due_ms(&self) -> u64 {
        // In a unit, its workspace knows.
        if self.request.sees_expired {
            return 0;
        }
        self.unit.as_ref().map_or_else(|| self.worker.node.clock.now_ms(), |store| store.due_ms())
    }

    /// Returns the workers' database that has the contents of the selected one; `None` if the unit
    /// has flushed it.
    fn stored_db(&self) -> Option<u32> {
        let Some(space) = &self.unit else { return Some(self.db) };
        self.worker.partition.borrow().store.db_of(space.generation(self.db))
    }

    /// Returns the number of keys in the selected database.
    pub async fn key_count(&self) -> Result<u64, CallStop> {
        let mut keys = 0;
        if let Some(db) = self.stored_db() {
            let count = move |worker: Rc<Worker>| async move { worker.key_count(db).await };
            for counted in self.worker.peers.on_all(false, count).await.map_err(|_| GONE)? {
                keys += counted?.0;
            }
        }
        self.check_look()?;
        let added = self.unit.as_ref().map_or(0, |space| space.added_keys(self.db));
        Ok(keys.saturating_add_signed(added))
    }

    /// Returns a page of keys of the selected database from a cursor on, all of one shard, and the
    /// cursor of the next page; `None` at the end.
    pub async fn page(
        &self,
        from: Cursor,
        limit: usize,
    ) -> Result<(Vec<ScanKey>, Option<Cursor>), CallStop> {
        let node = &self.worker.node;
        let target = node.worker_of(from.slot);
        let (mut found, mut behind) = (ScanPage::default(), None);
        if let Some(db) = self.stored_db() {
            let scan = move |worker: Rc<Worker>| async move { worker.scan(db, from, limit).await };
            let scanned = self.worker.peers.on_worker(target, false, scan).await;
            let scanned = scanned.map_err(|_| format!("ERR worker {target} is gone"))??;
            (found, behind) = (scanned.0, Cursor::behind(&scanned.1));
        }
        self.check_look()?;
        let next = found.next.or(behind);
        if let Some(space) = &self.unit {
            space.overlay(self.db, from, next, &mut found.keys);
        }
        Ok((found.keys, next))
    }

    /// Removes the keys that have expired; all belong to one worker.
    pub async fn remove_expired(&self, keys: Vec<Box<[u8]>>) -> Result<(), ErrorText> {
        let Some(first) = keys.first().filter(|_| self.unit.is_none()) else { return Ok(()) };
        let target = self.worker.node.owner(first);
        let db = self.db;
        let remove = move |worker: Rc<Worker>| async move { worker.remove_expired(db, keys).await };
        let removed = self.worker.peers.on_worker(target, false, remove).await;
        removed.map_err(|_| format!("ERR worker {target} is gone").into())
    }

    /// Flushes databases.
    pub async fn flush(&mut self, dbs: Vec<u32>) -> CallOutcome {
        let next = |node: &Node| node.next_generation.fetch_add(1, Ordering::Relaxed) as u32;
        if let Some(space) = &mut self.unit {
            dbs.into_iter().for_each(|db| space.flush(db, next(&self.worker.node)));
            self.say_in_unit();
            return Ok(());
        }
        let flush = move |node: &Node, generations: &mut [u32]| {
            dbs.into_iter().for_each(|db| generations[db as usize] = next(node));
        };
        change(self.worker, self.request, self.said(), flush).await
    }

    /// Swaps two databases.
    pub async fn swap(&mut self, a: u32, b: u32) -> CallOutcome {
        if let Some(space) = &mut self.unit {
            space.swap(a, b);
            self.say_in_unit();
            return Ok(());
        }
        let swap =
            move |_: &Node, generations: &mut [u32]| generations.swap(a as usize, b as usize);
        change(self.worker, self.request, self.said(), swap).await
    }
}

/// Checks that all shards that are this server's are there, for a command under a hold on every worker:
/// none comes or goes then. `and_to_come`: no shard is on its way here either.
fn check_held(cluster: &Cluster, attached: &AttachedShards, and_to_come: bool) -> CallOutcome {
    let is_whole = cluster.has_all_shards(and_to_come, |shard| attached.has(shard));
    Ok(cluster.check_whole(is_whole)?)
}

/// Checks under a hold on every worker that a command may change databases: this server may have become a
/// replica while it waited for the hold, and all shards have to be there.
fn check_change(worker: &Worker, attached: &AttachedShards, request: &Request) -> CallOutcome {
    let (node, settings) = (&worker.node, worker.settings());
    if let Some(text) = limits::refused_late(&node.health, &settings, request, flag!(WRITE)) {
        return Err(RoundError::refused(text).into());
    }
    node.cluster.as_ref().map_or(Ok(()), |cluster| check_held(cluster, attached, true))
}

/// Gives databases other generations. The task continues even if the future is dropped.
async fn change(
    worker: &Rc<Worker>,
    request: Request,
    words: Vec<u8>,
    make: impl FnOnce(&Node, &mut [u32]) + 'static,
) -> CallOutcome {
    let coordinator = worker.clone();
    let under_way = worker.node.ending.coordinator();
    let changing = tokio::task::spawn_local(async move {
        let _under_way = under_way;
        change_now(&coordinator, &request, words, make).await
    });
    changing.await.unwrap_or_else(|_| Err("ERR the command was abandoned".into()))
}

async fn change_now(
    worker: &Rc<Worker>,
    request: &Request,
    words: Vec<u8>,
    make: impl FnOnce(&Node, &mut [u32]),
) -> CallOutcome {
    let node = &worker.node;
    let mut held = Coordination::default();
    held.patience = Patience::Short;
    hold_all(worker, &mut held).await?;
    let attached = worker.partition.borrow().store.attached().clone();
    if let Err(stop) = check_change(worker, &attached, request) {
        release(worker, &mut held, Vec::new()).await;
        return Err(stop);
    }
    let before = worker.partition.borrow().store.generations();
    let mut now = before.clone();
    make(node, &mut now);
    let mut sealed = Sealed::default();
    sealed.words = words;
    seal(&attached, &mut sealed, &before, &now);
    let body = sealed.body();
    let appended = match load_watched(worker, &before, &now, HashSet::new()).await {
        Ok(()) => append(node, &attached, &sealed, &body),
        Err(text) => Err(text.into()),
    };
    let lsn = match appended {
        Ok(lsn) => lsn,
        Err(error) => {
            release(worker, &mut held, Vec::new()).await;
            return Err(error.into());
        }
    };
    let record = (lsn, Arc::new(body));
    let stored = Changed::Stored { record: Some(&record), generations: &now };
    hand_back(worker, &mut held, Vec::new(), stored, false).await;
    worker.wait_shown(&worker.showing(lsn)).await?;
    node.audience(&worker.settings()).invalidate_everything();
    Ok(())
}

/// Adds the new generations of the databases to a record, for each shard of this process. Every
/// worker is held, so no shard comes or goes.
pub(super) fn seal(attached: &AttachedShards, sealed: &mut Sealed, before: &[u32], now: &[u32]) {
    let dead = before.iter().copied().filter(|generation| !now.contains(generation));
    for shard in attached.ids() {
        let of_rows = |generation| attached.row_generation(generation, shard);
        let ops = sealed.ops.entry(shard).or_default();
        // There are as many dead generations as new ones.
        let mut dead = dead.clone();
        for (db, (old, new)) in (0u32..).zip(before.iter().zip(now)).filter(|(_, (o, n))| o != n) {
            let dies = if before.contains(new) { 0 } else { dead.next().map_or(0, of_rows) };
            debug_assert!(dies != 0 || before.contains(new), "{old} is empty, but not dead");
            ops.generation(db, of_rows(*new), dies);
        }
    }
}

/// Makes every worker load the keys that are watched in a database from the one that replaces it,
/// to decide whether they change. The workers are held entirely; lent entries are known.
pub(super) async fn load_watched(
    worker: &Worker,
    before: &[u32],
    now: &[u32],
    lent: HashSet<LockKey>,
) -> Result<(), String> {
    let from = |new: &u32| before.iter().position(|old| old == new).map(|at| at as u32);
    let moved: Vec<(u32, u32)> = (0u32..)
        .zip(now)
        .filter_map(|(db, new)| from(new).filter(|at| *at != db).map(|at| (db, at)))
        .collect();
    if moved.is_empty() {
        return Ok(());
    }
    let (moved, lent) = (Arc::new(moved), Arc::new(lent));
    let load = move |worker: Rc<Worker>| {
        let (moved, lent) = (moved.clone(), lent.clone());
        async move { worker.load_watched(&moved, &lent).await }
    };
    let loaded = worker.peers.on_all(true, load).await.map_err(|_| GONE)?;
    loaded.into_iter().collect()
}

/// Returns the entries that a workspace was lent, with the lenders' databases. Entries that the
/// unit has made in databases that it has flushed belong to none.
pub(super) fn unmoved(worker: &Worker, space: &mut Store) -> Vec<(u32, Entry)> {
    let generations = space.generations();
    let partition = worker.partition.borrow();
    let drained = space.drain().into_iter().map(|(db, entry)| (generations[db as usize], entry));
    let all = drained.chain(space.take_flushed()).collect::<Vec<_>>().into_iter();
    all.filter_map(|(generation, entry)| Some((partition.store.db_of(generation)?, entry)))
        .collect()
}
