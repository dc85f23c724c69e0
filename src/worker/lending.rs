//! What a coordinator holds at a worker: locks, and the entries it was lent.

use super::{Lock, LockKey, Shown, Worker};
use crate::blocking::Held;
use flagstone_storage::Entry;
use flagstone_storage::journal::Lsn;
use flagstone_storage::store::Need;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// What a coordinator asks a worker for.
#[derive(Debug, Default)]
pub struct Acquire {
    /// The keys to lock and lend; empty with `all`.
    pub keys: Vec<(u32, Box<[u8]>)>,
    /// Parts of their values that must be in memory.
    pub needs: Vec<Need>,
    /// The whole worker, for commands on databases.
    pub all: bool,
    /// A hold on the whole worker that covers the keys: nothing more is locked.
    pub under: Option<u64>,
    /// The client that reads keys, if it wants to hear of their changes, and these.
    pub reader: Option<u64>,
    pub reads: Vec<Box<[u8]>>,
}

/// What a worker lends: until it is applied or given back, nobody else touches these keys.
#[derive(Debug, Default)]
pub struct Grant {
    pub hold: u64,
    pub entries: Vec<(u32, Entry)>,
    /// The generations of the databases; they stay while the hold lasts.
    pub generations: Vec<u32>,
    /// Loading failed: nothing is lent, nor held that was not before. The text for the client.
    pub error: Option<String>,
}

/// The end of a hold, or of what was lent under it.
#[derive(Debug, Default)]
pub struct Apply {
    pub hold: u64,
    /// The connection whose command it was; 0: none.
    pub client: u64,
    /// The hold goes on.
    pub keep: bool,
    /// What was lent, and whether it was changed.
    pub entries: Vec<(u32, Entry, bool)>,
    /// Keys whose entries are gone (a failed commit): what is on disk counts.
    pub forget: Vec<LockKey>,
    /// The record that the coordinator appended, and its body.
    pub record: Option<(Lsn, Arc<Vec<u8>>)>,
    /// The generations of the databases from now on; empty: they stay.
    pub generations: Vec<u32>,
}

/// The holds of one worker.
#[derive(Default)]
pub struct Holds {
    next: u64,
    locks: HashMap<u64, Lock>,
}

impl Holds {
    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Worker {
    /// Locks what a coordinator asks for, loads it, and lends it.
    pub(crate) fn acquire(self: &Rc<Self>, acquire: Acquire, to: oneshot::Sender<Grant>) {
        let locked = match acquire.under {
            Some(_) => None,
            None if acquire.all => Some(self.lock_all()),
            None => Some(self.lock(&acquire.keys)),
        };
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let mut lock = None;
            if let Some((queued, granted)) = locked {
                if granted.await.is_err() {
                    return;
                }
                lock = Some(queued);
            }
            match worker.prepare(&acquire).await {
                Ok(()) => worker.lend(&acquire, lock, to),
                Err(error) => {
                    drop(lock);
                    let _ = to.send(Grant { error: Some(error), ..Grant::default() });
                }
            }
        });
    }

    /// Has everything in memory, and what it shows stored.
    async fn prepare(self: &Rc<Self>, acquire: &Acquire) -> Result<(), String> {
        loop {
            self.load_for_loan(acquire).await?;
            if self.settle_loan(acquire).await? {
                return Ok(());
            }
        }
    }

    async fn load_for_loan(&self, acquire: &Acquire) -> Result<(), String> {
        let cold: Vec<Need> = {
            let mut partition = self.partition.borrow_mut();
            let keys = acquire.keys.iter();
            keys.filter(|(db, key)| !partition.store.is_hot(*db, key))
                .map(|(db, key)| Need { db: *db, key: key.clone(), part: None })
                .collect()
        };
        if !cold.is_empty() {
            self.load(cold).await?;
        }
        if !acquire.needs.is_empty() {
            self.load(acquire.needs.clone()).await?;
        }
        Ok(())
    }

    /// Has what is to be lent stored; false if it could not be, and is to be loaded as it was before.
    async fn settle_loan(&self, acquire: &Acquire) -> Result<bool, String> {
        let round = {
            let mut partition = self.partition.borrow_mut();
            let store = &mut partition.store;
            let newest = acquire.keys.iter().filter_map(|(db, key)| store.round_of(*db, key)).max();
            if acquire.all { store.round() } else { newest.unwrap_or(0) }
        };
        if round > self.partition.borrow().closed() {
            self.commit();
        }
        self.wait_shown(&Shown::stored(round)).await.map_err(|e| e.0)?;
        let mut partition = self.partition.borrow_mut();
        Ok(acquire.keys.iter().all(|(db, key)| partition.store.is_hot(*db, key)))
    }

    /// Lends what is locked: by `lock`, or by the hold that it is asked for under.
    fn lend(self: &Rc<Self>, acquire: &Acquire, lock: Option<Lock>, to: oneshot::Sender<Grant>) {
        let mut entries = Vec::with_capacity(acquire.keys.len());
        let mut seen = std::collections::HashSet::new();
        let mut partition = self.partition.borrow_mut();
        for (db, key) in &acquire.keys {
            if seen.insert((db, key))
                && let Some(entry) = partition.store.lend(*db, key)
            {
                entries.push((*db, entry));
            }
        }
        let hold = acquire.under.unwrap_or_else(|| self.holds.borrow_mut().next());
        if let Some(lock) = lock {
            self.holds.borrow_mut().locks.insert(hold, lock);
            partition.granted(hold);
        }
        let generations = partition.store.generations();
        drop(partition);
        if let Some(client) = acquire.reader {
            let told = self.news_count.get();
            self.remember(acquire.reads.iter().map(|key| &**key), client, told);
        }
        if let Err(grant) = to.send(Grant { hold, entries, generations, error: None }) {
            let entries = grant.entries.into_iter().map(|(db, e)| (db, e, false)).collect();
            self.apply(Apply { hold, entries, ..Apply::default() });
        }
    }

    /// Gives the databases their new generations; those that have changed.
    fn arrange(&self, apply: &Apply) -> Vec<u32> {
        if apply.generations.is_empty() {
            return Vec::new();
        }
        self.touch_moved_watches(&apply.generations, &apply.entries);
        self.forget_reads();
        let mut partition = self.partition.borrow_mut();
        let before = partition.store.generations();
        let old = partition.store.arrange(&apply.generations);
        self.node.background.spawn_blocking(move || drop(old));
        let now = before.iter().zip(&apply.generations);
        (0u32..).zip(now).filter(|(_, (old, new))| old != new).map(|(db, _)| db).collect()
    }

    /// Ends a hold: the coordinator's record counts here from now on.
    pub(crate) fn apply(self: &Rc<Self>, apply: Apply) {
        let dbs = self.arrange(&apply);
        let mut partition = self.partition.borrow_mut();
        partition.store.notes.want(self.node.interest(&self.settings()));
        for (db, key) in apply.forget {
            partition.store.forget(db, &key);
        }
        for (db, entry, written) in apply.entries {
            partition.store.give_back(db, entry, written);
        }
        if let Some((lsn, body)) = &apply.record {
            partition.merge(*lsn, body);
            partition.note_lsn(*lsn);
        }
        if !apply.keep {
            partition.released(apply.hold);
        }
        let (round, notes) = (partition.store.stored_round(), partition.store.notes.take());
        drop(partition);
        if apply.record.is_some() {
            self.stats().commits.fetch_add(1, Ordering::Relaxed);
            // The open round now shows the record: it is closed soon, so that readers go on.
            self.commit_soon();
        }
        self.touch_all_waiters(&dbs);
        let changed = notes.iter().filter(|note| note.what.is_change());
        let keys = changed.map(|note| (note.db, note.key[..].into())).collect();
        if !notes.is_empty() {
            self.note_news(Shown::stored(round), apply.client, notes, Vec::new());
            self.commit_soon();
        }
        if apply.keep {
            return;
        }
        // Waiters come before those who wait for the locks.
        let lock = self.holds.borrow_mut().locks.remove(&apply.hold);
        let whole = lock.as_ref().is_some_and(Lock::is_whole);
        self.serve_holding(if whole { Held::All } else { Held::keys(keys) });
        drop(lock);
    }
}
