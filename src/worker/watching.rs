//! WATCH on this worker (see [`crate::watch`]), and the connection's side of it.

use super::Worker;
use crate::clients::{Client, Watch};
use crate::command::Patience;
use flagstone_storage::Entry;
use flagstone_storage::need::Key;
use flagstone_storage::notes::Note;
use flagstone_storage::store::Need;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Approximate memory in bytes of a watched key beside its name: at its client, at its worker, and
/// in EXEC.
const ENTRY: usize = 256;

const TOO_MANY: &str = "ERR clients watch too many keys";

/// The connection's knowledge of a watched key.
#[derive(Clone, Copy, Debug)]
struct WatchedAt {
    /// The worker that watches it: another one may own the key by now, as shards can be split.
    worker: usize,
    existed: bool,
}

/// The connection's side of a [`Watch`], which ends when this is dropped.
pub struct Watches {
    worker: Rc<Worker>,
    client: Arc<Client>,
    watch: Arc<Watch>,
    keys: BTreeMap<Key, WatchedAt>,
    bytes: usize,
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Watches").field("keys", &self.keys).finish_non_exhaustive()
    }
}

impl Watches {
    fn new(worker: &Rc<Worker>, client: &Arc<Client>) -> Self {
        // From now on, writers note the keys that they change.
        worker.node.broadcast.listeners.count.fetch_add(1, Ordering::Relaxed);
        let watch: Arc<Watch> = Arc::default();
        client.set_watch(Some(watch.clone()));
        let (worker, client) = (worker.clone(), client.clone());
        Self { worker, client, watch, keys: BTreeMap::new(), bytes: 0 }
    }

    /// Returns the keys with their databases, each with true if it existed.
    pub fn keys(&self) -> impl Iterator<Item = (u32, &[u8], bool)> {
        self.keys.iter().map(|((db, key), watched)| (*db, &**key, watched.existed))
    }

    /// Adds the keys that are not watched yet, and returns them by worker.
    fn take_in(
        &mut self,
        db: u32,
        keys: Vec<Box<[u8]>>,
    ) -> Result<BTreeMap<usize, Vec<Key>>, &str> {
        let node = &self.worker.node;
        let mut by_worker: BTreeMap<usize, Vec<Key>> = BTreeMap::new();
        for key in keys {
            let key = (db, key);
            if self.keys.contains_key(&key) {
                continue;
            }
            let bytes = key.1.len() * 3 + ENTRY;
            let before = node.broadcast.listeners.watched_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.bytes += bytes;
            self.client.hold(bytes);
            if before + bytes > node.pressure.budget.watches {
                return Err(TOO_MANY);
            }
            let worker = node.owner(&key.1);
            by_worker.entry(worker).or_default().push(key.clone());
            self.keys.insert(key, WatchedAt { worker, existed: false });
        }
        self.client.watched.store(self.keys.len() as u32, Ordering::Relaxed);
        Ok(by_worker)
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        let node = &self.worker.node;
        self.watch.end();
        self.client.set_watch(None);
        self.client.watched.store(0, Ordering::Relaxed);
        self.client.release(self.bytes);
        node.broadcast.listeners.count.fetch_sub(1, Ordering::Relaxed);
        node.broadcast.listeners.watched_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut by_worker: BTreeMap<usize, Vec<Key>> = BTreeMap::new();
        for (key, watched) in std::mem::take(&mut self.keys) {
            by_worker.entry(watched.worker).or_default().push(key);
        }
        for (target, keys) in by_worker {
            // This may come before the keys, which are then not added.
            if target == self.worker.id {
                self.worker.observers.watching.borrow_mut().remove(&keys, &self.watch);
            } else {
                let watch = self.watch.clone();
                self.worker.peers.send(target, move |worker| {
                    worker.observers.watching.borrow_mut().remove(&keys, &watch);
                });
            }
        }
    }
}

/// Watches keys of the selected database from now on; fails with the error text for the client.
pub async fn begin_watch(
    worker: &Rc<Worker>,
    client: &Arc<Client>,
    watches: &mut Option<Box<Watches>>,
    db: u32,
    keys: Vec<Box<[u8]>>,
) -> Result<(), String> {
    let watches = watches.get_or_insert_with(|| Box::new(Watches::new(worker, client)));
    // EXEC fails anyway.
    if watches.watch.is_dirty() {
        return Ok(());
    }
    let watch = watches.watch.clone();
    let by_worker = match watches.take_in(db, keys) {
        Ok(by_worker) => by_worker,
        Err(text) => {
            let text = text.to_owned();
            // Some keys are watched, others are not: EXEC has to fail.
            watch.mark();
            return Err(text);
        }
    };
    for (target, keys) in by_worker {
        match look(worker, target, &watch, &keys).await {
            Ok(there) => {
                let watched =
                    there.into_iter().map(|existed| WatchedAt { worker: target, existed });
                watches.keys.extend(keys.into_iter().zip(watched));
            }
            Err(text) => {
                watch.mark();
                return Err(text);
            }
        }
    }
    Ok(())
}

/// Makes a worker watch some of its keys, and returns which of them exist.
async fn look(
    worker: &Rc<Worker>,
    target: usize,
    watch: &Arc<Watch>,
    keys: &[Key],
) -> Result<Vec<bool>, String> {
    if target == worker.id && worker.is_at_hand(keys) {
        return Ok(worker.watch_now(watch, keys));
    }
    let (watch, keys) = (watch.clone(), keys.to_vec());
    let gone = || Err(format!("ERR worker {target} is gone"));
    if target == worker.id {
        // The client may be gone before the keys are loaded. They stay locked until then all the same: nobody
        // may borrow them while values from before are on their way into memory.
        let worker = worker.clone();
        let looking = async move { worker.watch(&watch, &keys).await };
        return tokio::task::spawn_local(looking).await.unwrap_or_else(|_| gone());
    }
    let job = move |worker: Rc<Worker>| async move { worker.watch(&watch, &keys).await };
    let there = worker.peers.on_worker(target, false, job).await;
    there.unwrap_or_else(|_| gone())
}

impl Worker {
    /// Watches some of this worker's keys, and returns which of them exist. It runs to its end in a task of its
    /// own: a load goes on if the task is dropped, and needs the lock.
    async fn watch(self: &Rc<Self>, watch: &Arc<Watch>, keys: &[Key]) -> Result<Vec<bool>, String> {
        let mut held = None;
        if !self.is_at_hand(keys) {
            let (lock, mut granted) = self.lock_for(keys, Patience::Short);
            let is_busy = || self.node.code.scripts.running.busy().is_some();
            let is_granted = granted.try_recv().is_ok() || (!is_busy() && granted.await.is_ok());
            if !is_granted {
                // The keys are those of a busy script, which may change them: EXEC fails.
                watch.mark();
                return Ok(vec![false; keys.len()]);
            }
            held = Some(lock);
            self.load_cold(keys.iter().map(|(db, key)| (*db, &**key))).await?;
        }
        let there = self.watch_now(watch, keys);
        drop(held);
        Ok(there)
    }

    /// Returns true if the keys are in memory and not locked.
    fn is_at_hand(&self, keys: &[Key]) -> bool {
        let locks = self.locks.borrow();
        let mut partition = self.partition.borrow_mut();
        keys.iter().all(|(db, key)| {
            !locks.blocks(*db, std::iter::once(&**key)) && partition.store.is_hot(*db, key)
        })
    }

    /// Loads keys that are locked.
    async fn load_cold(
        self: &Rc<Self>,
        keys: impl Iterator<Item = (u32, &[u8])>,
    ) -> Result<(), String> {
        let cold: Vec<Need> = {
            let mut partition = self.partition.borrow_mut();
            keys.filter(|(db, key)| !partition.store.is_hot(*db, key))
                .map(|(db, key)| Need { db, key: key.into(), part: None })
                .collect()
        };
        if cold.is_empty() { Ok(()) } else { self.load(cold).await }
    }

    fn watch_now(self: &Rc<Self>, watch: &Arc<Watch>, keys: &[Key]) -> Vec<bool> {
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        self.node.begin(store, self.node.clock.now_ms(), false);
        store.notes.want(self.node.interest(&self.settings()));
        let mut table = self.observers.watching.borrow_mut();
        let mut there = Vec::with_capacity(keys.len());
        for key in keys {
            // An expired key is removed before it is watched.
            let existed = store.peek(key.0, &key.1).is_ok_and(|entry| entry.is_some());
            table.add(key, watch, existed);
            there.push(existed);
        }
        drop(table);
        if store.is_dirty() {
            self.commit_soon();
        }
        self.take_notes(partition, 0);
        there
    }

    /// Returns true if clients watch keys of this worker.
    #[cfg(test)]
    pub(crate) fn watches_any(&self) -> bool {
        !self.observers.watching.borrow().is_empty()
    }

    /// Marks the clients that watch a changed key.
    pub(crate) fn touch_watches(&self, notes: &[Note]) {
        let table = self.observers.watching.borrow();
        if !table.is_empty() {
            let changes = notes.iter().filter(|note| note.what.is_visible());
            changes.for_each(|note| table.touch(note.db, &note.key, note.what));
        }
    }

    /// Marks the clients whose watched keys change because the databases are about to have other
    /// generations. The watched keys of a database are in memory in the one that replaces it
    /// ([`Worker::load_watched`]), or come back with the entries.
    pub(crate) fn touch_moved_watches(&self, generations: &[u32], back: &[(u32, Entry, bool)]) {
        let table = self.observers.watching.borrow();
        if table.is_empty() {
            return;
        }
        let now_ms = self.node.clock.now_ms();
        let is_there = |entry: &Entry| {
            entry.is_live() && (entry.expire_at_ms == 0 || entry.expire_at_ms > now_ms)
        };
        let back: HashMap<(u32, &[u8]), bool> =
            back.iter().map(|(db, entry, _)| ((*db, entry.key()), is_there(entry))).collect();
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        for (db, generation) in (0u32..).zip(generations) {
            let from = store.db_of(*generation);
            if from == Some(db) {
                continue;
            }
            // No expired key is removed here: the open round does not know keys that move between
            // databases.
            table.touch_all(db, |key| match (back.get(&(db, key)), from) {
                (Some(is_there), _) => *is_there,
                (None, None) => false,
                (None, Some(from)) => match store.found(from, key) {
                    Some(entry) => is_there(entry),
                    None => !store.is_hot(from, key),
                },
            });
        }
    }

    /// Loads the keys that are watched in databases from those that replace them, except lent ones.
    /// The whole worker is held.
    pub(crate) async fn load_watched(
        self: &Rc<Self>,
        moved: &[(u32, u32)],
        lent: &HashSet<Key>,
    ) -> Result<(), String> {
        let watched: Vec<Key> = {
            let table = self.observers.watching.borrow();
            let keys_of = |(db, from): &(u32, u32)| {
                let from = *from;
                table
                    .keys_of(*db)
                    .map(|key| (*db, key.into()))
                    .filter(|key| !lent.contains(key))
                    .map(move |(_, key)| (from, key))
                    .collect::<Vec<_>>()
            };
            moved.iter().flat_map(keys_of).collect()
        };
        self.load_cold(watched.iter().map(|(db, key)| (*db, &**key))).await
    }
}
