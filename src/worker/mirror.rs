//! Shards of other servers on a worker of a replica: records are applied to them, and they are exchanged
//! for ones with newer engines.

use super::turns::MANY_KEYS;
use super::{LockKey, Worker};
use crate::blocking::HeldLocks;
use bytes::Bytes;
use flagstone_storage::journal::Lsn;
use flagstone_storage::notes::NoteKind;
use flagstone_storage::partition::{ShardRefusal, Stay};
use flagstone_storage::shard::Shard;
use flagstone_storage::slot::slot_of;
use std::rc::Rc;

/// The operations of a record on one shard.
#[derive(Debug)]
pub(crate) struct MirroredOps {
    pub(crate) stay: Stay,
    pub(crate) lsn: Lsn,
    pub(crate) ops: Bytes,
}

impl Worker {
    /// Shows a shard of another server, in place of what was shown of it before. `elsewhere`: returns the
    /// error text for a client that waits for a key of one of its slots.
    ///
    /// # Errors
    /// The reason why it cannot be shown.
    pub(crate) async fn show_shard(
        self: &Rc<Self>,
        shard: Shard,
        elsewhere: impl Fn(u16, bool) -> String,
    ) -> Result<Stay, String> {
        let id = shard.id;
        self.hide_shard(id, elsewhere).await.map_err(|why| why.to_string())?;
        self.attach_shard(shard).await.map_err(|refused| refused.why.to_string())?;
        let stay = self.partition.borrow().stay(id);
        stay.ok_or_else(|| "it was not attached".to_owned())
    }

    /// Shows a shard of another server no more, if it is shown.
    ///
    /// # Errors
    /// The reason why that has to be tried again later.
    pub(crate) async fn hide_shard(
        self: &Rc<Self>,
        id: u16,
        elsewhere: impl Fn(u16, bool) -> String,
    ) -> Result<(), ShardRefusal> {
        if self.partition.borrow().stay(id).is_some() {
            let detached = self.detach_shard(id, elsewhere).await?;
            self.node.background.spawn_blocking(move || drop(detached));
        }
        Ok(())
    }

    /// Exchanges a shard that is shown for one with the same records and a newer engine. Nothing happens
    /// if another one is shown by now.
    pub(crate) async fn renew_shard(self: &Rc<Self>, stay: Stay, shard: Shard) {
        let _whole = self.whole().await;
        if !self.is_here(stay) {
            return;
        }
        let engine = shard.engine().clone();
        let exchanged = self.partition.borrow_mut().exchange(shard);
        if exchanged.is_ok() {
            self.node.engines.add(stay.shard, engine);
        }
        // Either the former one, or one that cannot be shown: then the former one stays.
        self.node.background.spawn_blocking(move || drop(exchanged));
    }

    /// Applies operations on shards of other servers, in their order.
    pub(crate) async fn follow(self: &Rc<Self>, parts: Vec<MirroredOps>) {
        let mut parts = parts.into_iter().peekable();
        while let Some(first) = parts.peek() {
            let mut group = Vec::new();
            let mut keys: Vec<LockKey> = Vec::new();
            if self.touched(first).is_none() {
                if let Some(flush) = parts.next() {
                    self.follow_flush(&flush).await;
                }
                continue;
            }
            while let Some(part) = parts.peek()
                && keys.len() < MANY_KEYS
                && let Some(touched) = self.touched(part)
            {
                keys.extend_from_slice(&touched);
                group.extend(parts.next().map(|part| (part, touched)));
            }
            let (lock, granted) = self.lock(&keys);
            // Endless patience is not refused.
            let _ = granted.await;
            self.follow_locked(group);
            self.serve_holding(HeldLocks::keys(keys));
            drop(lock);
            tokio::task::yield_now().await;
        }
    }

    fn touched(&self, part: &MirroredOps) -> Option<Vec<LockKey>> {
        self.partition.borrow().touched(part.stay.shard, &part.ops)
    }

    /// Applies operations whose keys are locked.
    fn follow_locked(&self, group: Vec<(MirroredOps, Vec<LockKey>)>) {
        let mut partition = self.partition.borrow_mut();
        partition.store.notes.want(self.node.interest(&self.settings()));
        for (part, keys) in group {
            if !partition.is_here(part.stay) {
                continue;
            }
            partition.follow((part.stay.shard, part.lsn), &part.ops, &keys);
            for (db, key) in &keys {
                partition.store.notes.changed(*db, key, NoteKind::Changed);
            }
        }
        let (round, notes) = (partition.store.stored_round(), partition.store.notes.take());
        drop(partition);
        if !notes.is_empty() {
            self.note_news(self.rounds.stored(round), 0, notes, Vec::new());
            self.commit_soon();
        }
    }

    /// Applies operations by which all keys of a shard are gone.
    async fn follow_flush(self: &Rc<Self>, part: &MirroredOps) {
        let _whole = self.whole().await;
        if !self.is_here(part.stay) {
            return;
        }
        self.commit();
        let emptied = self.partition.borrow_mut().follow_flush(part.stay, part.lsn, &part.ops);
        self.node.background.spawn_blocking(move || drop(emptied));
        let slots = self.node.layout.slots_of(part.stay.shard);
        let is_gone = |key: &[u8]| slots.contains(&slot_of(key));
        self.observers.watching.borrow().touch_where(is_gone);
        self.forget_reads_of(is_gone);
        self.hot_keys.forget(is_gone);
        self.commit_soon();
    }
}
