//! Holds of coordinators at a worker: the locks that they have, and the entries that they were
//! lent.
//!
//! A coordinator sends an [`Acquire`]; once the locks are granted, everything is loaded, and its
//! rounds are in the journal, the worker answers with a [`Grant`]. [`Apply`] returns the entries with
//! the record that the coordinator has appended, applies its changes, and ends the hold. No loan waits
//! for the disk or for replicas, so that no lock is held meanwhile: the reply does, if it shows what
//! is not durable.

use super::hop::GrantKey;
use super::turns::MANY_KEYS;
use super::{Lock, LockKey, Worker};
use crate::blocking::HeldLocks;
use crate::command::{Outcome, Patience, RoundError};
use crate::scripts::ScriptKind;
use flagstone_storage::Entry;
use flagstone_storage::journal::Lsn;
use flagstone_storage::store::Need;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Maximum number of keys that are lent without a task.
const AT_ONCE: usize = 64;

/// A coordinator's request for locks and entries.
#[derive(Debug, Default)]
pub struct Acquire {
    /// Keys to lock and lend, each once; empty with `all`.
    pub keys: Vec<(u32, Box<[u8]>)>,
    /// Parts of their values that must be in memory.
    pub needs: Vec<Need>,
    /// True to hold the whole worker, for commands on databases.
    pub all: bool,
    /// A hold on the whole worker that covers the keys: nothing more is locked.
    pub under: Option<u64>,
    /// Limit of the wait for the locks.
    pub patience: Patience,
    /// The tracking client that reads the keys.
    pub reader: Option<u64>,
}

/// Entries that a worker lends: until they are applied or returned, nothing else accesses their
/// keys.
#[derive(Debug, Default)]
pub struct Grant {
    pub hold: u64,
    pub entries: Vec<(u32, Entry)>,
    /// Those of the keys for which clients wait.
    pub awaited: Vec<LockKey>,
    /// Generations of the databases; they are constant while the hold lasts.
    pub generations: Vec<u32>,
    /// Lsn that has to be durable before a reply may show the entries; 0: it is.
    pub seen: Lsn,
    /// Error text for the client if loading failed: nothing is lent, and no new lock is held.
    pub error: Option<RoundError>,
}

impl Grant {
    /// Returns the loan as it was lent.
    pub(super) fn unused(self) -> Option<Apply> {
        let Self { hold, entries, error, .. } = self;
        let entries = entries.into_iter().map(|(db, entry)| (db, entry, false)).collect();
        error.is_none().then(|| Apply { hold, entries, ..Apply::default() })
    }
}

/// Where a grant goes.
#[derive(Debug)]
pub(crate) enum GrantTo {
    /// To a coordinator of this worker.
    Here(oneshot::Sender<Grant>),
    /// To one of another worker.
    Home { worker: usize, key: GrantKey },
}

/// The end of a hold, or of a loan under it.
#[derive(Debug, Default)]
pub struct Apply {
    pub hold: u64,
    /// Connection whose command it was; 0 if none.
    pub client: u64,
    /// True if the hold goes on.
    pub keep: bool,
    /// Entries that were lent, each with true if it was changed.
    pub entries: Vec<(u32, Entry, bool)>,
    /// Keys whose entries are lost because a commit failed; they are read again from disk.
    pub forget: Vec<LockKey>,
    /// The record that the coordinator appended, and its body.
    pub record: Option<(Lsn, Arc<Vec<u8>>)>,
    /// New generations of the databases; empty if they stay.
    pub generations: Vec<u32>,
    /// The connection that has read keys which it tracks, and these keys.
    pub reader: u64,
    pub reads: Vec<Box<[u8]>>,
}

/// Holds of coordinators at one worker.
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
    /// Locks the keys that a coordinator asks for, loads their entries, and lends them.
    pub(crate) fn acquire(self: &Rc<Self>, acquire: Acquire, to: GrantTo) {
        let locked = match acquire.under {
            Some(_) => None,
            None if acquire.all => Some(self.lock_all(acquire.patience)),
            None => Some(self.lock_for(&acquire.keys, acquire.patience)),
        };
        let (lock, mut granted) = locked.unzip();
        if granted.as_mut().is_none_or(|granted| granted.try_recv().is_ok()) {
            if self.has_for_loan(&acquire) {
                return self.lend(&acquire, lock, to);
            }
            granted = None;
        }
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            if let Some(granted) = granted
                && granted.await.is_err()
            {
                drop(lock);
                // The script may have ended meanwhile.
                let kind = worker.node.code.scripts.running.busy().unwrap_or(ScriptKind::Script);
                let text = acquire.patience.refusal(kind.busy_text());
                let text = String::from_utf8_lossy(&text).into_owned();
                let error = Some(RoundError { text, outcome: Outcome::Refused });
                let _ = worker.grant(to, Grant { error, ..Grant::default() });
                return;
            }
            worker.end_long_turn(acquire.keys.len()).await;
            match worker.prepare(&acquire).await {
                Ok(()) => worker.lend(&acquire, lock, to),
                Err(error) => {
                    drop(lock);
                    let grant = Grant { error: Some(error), ..Grant::default() };
                    let _ = worker.grant(to, grant);
                }
            }
        });
    }

    /// Returns true if few keys are asked for, and all are in memory and in the journal: they are lent
    /// at once, without a task.
    fn has_for_loan(&self, acquire: &Acquire) -> bool {
        if acquire.all || !acquire.needs.is_empty() || acquire.keys.len() > AT_ONCE {
            return false;
        }
        let mut partition = self.partition.borrow_mut();
        let hashed = |(db, key): &LockKey| (*db, self.node.layout.key_hash(key));
        partition.store.warm(acquire.keys.iter().map(hashed));
        let mut newest = 0;
        for (db, key) in &acquire.keys {
            if !partition.store.is_hot(*db, key) {
                return false;
            }
            newest = newest.max(partition.store.round_of(*db, key).unwrap_or(0));
        }
        let is_open = newest > partition.closed();
        // Words of the open round may depend on the keys: they come before the loan's.
        let has_words = !partition.store.words.is_empty();
        drop(partition);
        if is_open || has_words {
            self.commit();
        }
        // A commit that fails takes the entries from memory.
        let mut partition = self.partition.borrow_mut();
        let is_hot = |(db, key): &LockKey| partition.store.is_hot(*db, key);
        (!is_open || acquire.keys.iter().all(is_hot))
            && self.rounds.is_stored(&self.rounds.stored(newest), false)
    }

    /// Loads everything that is asked for, and waits until it is in the journal.
    async fn prepare(self: &Rc<Self>, acquire: &Acquire) -> Result<(), RoundError> {
        // A coordinator that has a hold here, or misses parts of values, has loaded data before.
        let mut has_begun = acquire.under.is_some() || !acquire.needs.is_empty();
        loop {
            self.load_for_loan(acquire, has_begun).await?;
            has_begun = true;
            self.end_long_turn(acquire.keys.len()).await;
            if self.settle_loan(acquire).await? {
                return Ok(());
            }
        }
    }

    async fn load_for_loan(&self, acquire: &Acquire, has_begun: bool) -> Result<(), String> {
        let cold: Vec<Need> = {
            let mut partition = self.partition.borrow_mut();
            let keys = acquire.keys.iter();
            keys.filter(|(db, key)| !partition.store.is_hot(*db, key))
                .map(|(db, key)| Need { db: *db, key: key.clone(), part: None })
                .collect()
        };
        if !cold.is_empty() {
            self.load_in_turn(cold, has_begun).await?;
        }
        if !acquire.needs.is_empty() {
            self.load_in_turn(acquire.needs.clone(), has_begun).await?;
        }
        Ok(())
    }

    /// Waits until the entries to be lent are in the journal. Returns false if that failed: they have
    /// to be loaded again as they were before.
    async fn settle_loan(&self, acquire: &Acquire) -> Result<bool, RoundError> {
        let round = {
            let mut partition = self.partition.borrow_mut();
            let store = &mut partition.store;
            let newest = acquire.keys.iter().filter_map(|(db, key)| store.round_of(*db, key)).max();
            // Words of the open round may depend on the keys: they come before the loan's.
            let all = acquire.all || !store.words.is_empty();
            if all { store.round() } else { newest.unwrap_or(0) }
        };
        if round > self.partition.borrow().closed() {
            self.commit();
        }
        let shown = self.rounds.stored(round);
        self.rounds.wait(&shown, false).await;
        self.rounds.any_failure(&shown, false).map_or(Ok(()), Err)?;
        let mut partition = self.partition.borrow_mut();
        Ok(acquire.keys.iter().all(|(db, key)| partition.store.is_hot(*db, key)))
    }

    /// Returns the lsn for which replies wait that show what is lent; 0: for none.
    fn lsn_of_loan(&self, acquire: &Acquire) -> Lsn {
        if !self.is_always() {
            return 0;
        }
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        let newest = acquire.keys.iter().map(|(db, key)| store.round_shown(*db, key)).max();
        let newest = self.rounds.stored(newest.unwrap_or(0));
        let is_durable = !acquire.all && self.rounds.is_stored(&newest, true);
        if is_durable { 0 } else { partition.undurable() }
    }

    /// Lends the entries, which are locked by `lock` or by the hold of the request.
    fn lend(self: &Rc<Self>, acquire: &Acquire, lock: Option<Lock>, to: GrantTo) {
        let seen = self.lsn_of_loan(acquire);
        let mut entries = Vec::with_capacity(acquire.keys.len());
        let mut partition = self.partition.borrow_mut();
        for (db, key) in &acquire.keys {
            if let Some(entry) = partition.store.lend(*db, key) {
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
            let told = self.announced.count.get();
            self.remember(acquire.keys.iter().map(|(_, key)| &**key), client, told);
        }
        let table = self.waiters.table.borrow();
        let awaited = match table.is_empty() {
            true => Vec::new(),
            false => acquire.keys.iter().filter(|key| table.is_awaited(key)).cloned().collect(),
        };
        drop(table);
        let grant = Grant { hold, entries, awaited, generations, seen, error: None };
        if let Err(grant) = self.grant(to, grant)
            && let Some(apply) = grant.unused()
        {
            self.apply(apply);
        }
    }

    /// Gives the databases their new generations, and returns those that have changed.
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

    /// Ends a hold, and applies the coordinator's record.
    pub(crate) fn apply(self: &Rc<Self>, apply: Apply) {
        let came_back = apply.entries.len();
        let takes_long = came_back > MANY_KEYS;
        let dbs = self.arrange(&apply);
        let mut partition = self.partition.borrow_mut();
        partition.store.notes.want(self.node.interest(&self.settings()));
        for (db, key) in apply.forget {
            partition.forget(db, &key);
        }
        for (db, entry, written) in apply.entries {
            partition.store.give_back(db, entry, written);
        }
        if takes_long {
            // The time counts for the drain.
            self.start_watch();
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
            // The open round now shows the record; it is closed soon, so that readers need not wait
            // for long.
            self.commit_soon();
        }
        self.touch_all_waiters(&dbs);
        self.remember_reads_of_coordinator(&apply.reads, apply.reader, !notes.is_empty());
        let changed = notes.iter().filter(|note| note.what.is_change());
        let keys = changed.map(|note| (note.db, note.key[..].into())).collect();
        if !notes.is_empty() {
            self.note_news(self.rounds.stored(round), apply.client, notes, Vec::new());
            self.commit_soon();
        }
        if apply.keep {
            return;
        }
        // Waiters come before the tasks that queue for the locks.
        let lock = self.holds.borrow_mut().locks.remove(&apply.hold);
        let whole = lock.as_ref().is_some_and(Lock::is_whole);
        self.serve_holding(if whole { HeldLocks::All } else { HeldLocks::keys(keys) });
        drop(lock);
        self.evict_after(came_back);
    }
}
