//! Active expiry: keys and fields of hashes that are due by the expiry indexes of a worker's shards are deleted.

use super::{LockKey, Worker};
use flagstone_storage::latency::{LATENCY, LatencyEvent};
use flagstone_storage::scan::{DueCursor, DueExpiry};
use flagstone_storage::store::{Need, Part};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Interval at which expired keys are looked for, as in Redis.
const EXPIRE_PERIOD: Duration = Duration::from_millis(100);

/// Maximum number of expired keys that are deleted at once.
const EXPIRE_BATCH: usize = 1000;

/// Bytes of the fields that are loaded at once to be deleted, unless those of one hash are more.
const LOADED: u64 = 16 << 20;

/// After the rows of all fields of a hash were walked to find those that are due, none are for so many times as long
/// as it took.
const REST: u32 = 4;

/// An expiry that is due, and the database of its key.
type Due = (u32, DueExpiry);

/// State of the active expiry of a worker.
#[derive(Default)]
pub(super) struct ActiveExpiry {
    /// Until then, no hash is walked.
    rests_until: Cell<Option<Instant>>,
}

impl Worker {
    /// Deletes expired keys and fields, until the worker ends.
    pub(crate) async fn run_expiry(self: Rc<Self>) {
        loop {
            tokio::time::sleep(EXPIRE_PERIOD).await;
            if self.is_stopping() {
                return;
            }
            let ids: Vec<u16> = self.partition.borrow().shards.keys().copied().collect();
            for id in ids {
                if self.may_expire() {
                    self.expire_shard(id).await;
                }
            }
        }
    }

    /// Returns true if expired keys may be deleted now. They stay while clients are paused, so that
    /// the data does not change, on a replica, whose primary deletes them, and while replicas do not
    /// confirm what is written (`repl-ack`), and in the import mode.
    fn may_expire(&self) -> bool {
        self.node.active_expire.load(Ordering::Relaxed)
            && self.node.pauses.now().is_none()
            && !self.node.health.replica.is_following()
            && !self.node.health.is_unconfirmed()
            && !self.node.imports.load(Ordering::Relaxed)
    }

    /// Runs one pass over a shard's expiry index, deleting all that is due.
    async fn expire_shard(self: &Rc<Self>, id: u16) {
        self.split_ended(id).await;
        let now_ms = self.node.clock.now_ms();
        let from_ms = self.partition.borrow_mut().begin_due(id, now_ms);
        if !self.expire_from(id, from_ms, now_ms).await {
            self.partition.borrow_mut().abort_due(id, from_ms);
        }
    }

    /// Deletes the keys that are due from `from_ms` on. Returns false if something may be left.
    async fn expire_from(self: &Rc<Self>, id: u16, from_ms: u64, now_ms: u64) -> bool {
        let (mut from, mut all) = (DueCursor::at(from_ms), true);
        loop {
            let plan = self.partition.borrow().plan_due(id, &from, now_ms, EXPIRE_BATCH);
            let Some(plan) = plan else { return all };
            let (due, rest) = match self.node.background.spawn(plan.run()).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) if self.passes.splitting.get() == Some(id) => return false,
                Ok(Err(error)) => {
                    self.tell_unreadable(&format!("the expiry index of shard {id}"), &error);
                    return false;
                }
                Err(_) => return false,
            };
            let Some(is_done) = self.expire(due).await else { return false };
            all &= is_done;
            match rest {
                Some(rest) if self.may_expire() && !self.is_stopping() => from = rest,
                rest => return rest.is_none() && all,
            }
        }
    }

    /// Deletes expired keys and fields. Returns true if that is all of them; `None` if they could not be read, or the
    /// deletion could not be stored.
    async fn expire(self: &Rc<Self>, due: Vec<DueExpiry>) -> Option<bool> {
        let due: Vec<Due> = {
            let partition = self.partition.borrow();
            due.into_iter()
                .filter_map(|due| Some((partition.store.db_of_row(due.generation, &due.key)?, due)))
                .collect()
        };
        if due.is_empty() {
            return Some(true);
        }
        let mut all = true;
        for hash in self.delete_due(due, false).await? {
            let begun = Instant::now();
            if self.expiry.rests_until.get().is_some_and(|until| begun < until) {
                return Some(false);
            }
            all &= self.delete_due(vec![hash], true).await?.is_empty();
            self.expiry.rests_until.set(Some(Instant::now() + begun.elapsed() * REST));
        }
        Some(all)
    }

    /// Deletes expired keys, and fields that are known to have expired, under the locks of the keys; with `walk`, the
    /// rows of hashes are walked for the fields that expire first. Returns the keys and hashes of which more may have to
    /// be deleted.
    async fn delete_due(self: &Rc<Self>, due: Vec<Due>, walk: bool) -> Option<Vec<Due>> {
        let keys: Vec<LockKey> = due.iter().map(|(db, due)| (*db, due.key.clone())).collect();
        let (_lock, granted) = self.lock(&keys);
        granted.await.ok()?;
        let now_ms = self.node.clock.now_ms();
        self.load_due(&due, now_ms, walk).await.ok()?;
        if !self.may_expire() {
            return None;
        }
        let begun = Instant::now();
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        store.begin(now_ms, false);
        store.notes.want(self.node.interest(&self.settings()));
        let mut left = Vec::new();
        for (db, due) in due {
            // Looking an expired key up deletes it.
            match store.peek(db, &due.key).map(|entry| entry.is_some()) {
                Ok(true) if due.fields => {
                    store.expire_fields(db, &due.key);
                    if store.missing_due(db, &due.key, now_ms).is_some() {
                        left.push((db, due));
                    }
                }
                Ok(_) => {}
                // It has left memory again.
                Err(_) => left.push((db, due)),
            }
        }
        store.see_open_round();
        self.take_notes(partition, 0);
        // Closes the round with these deletions, so that the index is read afresh.
        let stored = self.commit();
        LATENCY.note(LatencyEvent::ExpireCycle, begun.elapsed());
        stored.then_some(left)
    }

    /// Loads the keys that are due, and the fields of which it is known that they are due at that time; with `walk`,
    /// after the earliest expiries of the fields, where those are not known.
    async fn load_due(self: &Rc<Self>, due: &[Due], now_ms: u64, walk: bool) -> Result<(), String> {
        let need = |db: u32, key: &[u8], part| Need { db, key: key.into(), part };
        let cold: Vec<Need> = {
            let mut partition = self.partition.borrow_mut();
            let cold = due.iter().filter(|(db, due)| !partition.store.is_hot(*db, &due.key));
            cold.map(|(db, due)| need(*db, &due.key, None)).collect()
        };
        if !cold.is_empty() {
            self.load(cold).await?;
        }
        let missing = || -> (Vec<Need>, Vec<Need>) {
            let mut partition = self.partition.borrow_mut();
            let mut room = LOADED;
            let fields = due.iter().filter(|(_, due)| due.fields);
            let missing = fields.filter_map(|(db, due)| {
                let (part, bytes) = partition.store.missing_due(*db, &due.key, now_ms)?;
                // The first one is loaded in any case, the others if there is room for them.
                let fits = room == LOADED || bytes <= room;
                room = room.saturating_sub(bytes);
                fits.then(|| need(*db, &due.key, Some(part)))
            });
            missing.partition(|need| need.part == Some(Part::Expiries))
        };
        let (unknown, mut fields) = missing();
        if walk && !unknown.is_empty() {
            self.load(unknown).await?;
            fields = missing().1;
        }
        if fields.is_empty() { Ok(()) } else { self.load(fields).await }
    }
}
