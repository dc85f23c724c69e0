//! The worker's side of commands that iterate over the whole keyspace.

use super::{Blocked, Worker};
use crate::command::{OwnedCommand, Request, RoundError, registry};
pub use flagstone_storage::scan::{Cursor, ScanKey, ScanPage};
use flagstone_wire::resp::OwnedArgs;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

impl Worker {
    /// Waits until all earlier writes of this worker's clients are stored, so that a scan finds
    /// them.
    async fn settle_writes(self: &Rc<Self>) -> Result<(), RoundError> {
        self.commit();
        // If the round has failed, its changes are discarded, and not scanned.
        let closed = self.partition.borrow().closed();
        self.wait_shown(&self.rounds.stored(closed)).await
    }

    /// Returns about `limit` keys of a database from a cursor on, all of the shard of its slot, and that
    /// shard's slots. There are no keys if it is not attached here.
    pub async fn scan(
        self: &Rc<Self>,
        db: u32,
        from: Cursor,
        limit: usize,
    ) -> Result<(ScanPage, Range<u16>), RoundError> {
        loop {
            self.settle_writes().await?;
            let shard = self.node.layout.shard_of(from.slot);
            self.split_ended(shard).await;
            let slots = self.node.layout.slots_of(shard);
            let stay = self.partition.borrow().stay(shard);
            // In a cluster, another server may have the shard.
            let Some(plan) = self.partition.borrow().plan_scan(db, shard, from, limit) else {
                return Ok((ScanPage::default(), slots));
            };
            let scanned = self.node.background.spawn(plan.run()).await;
            if self.is_split(shard, stay) {
                continue;
            }
            let page = scanned
                .map_err(|e| format!("ERR the scan was abandoned: {e}"))?
                .map_err(|e| format!("ERR the data could not be read: {e:#}"))?;
            return Ok((page, slots));
        }
    }

    /// Returns the number of keys of a database in this worker's shards, and of those with an
    /// expiry.
    pub async fn key_count(self: &Rc<Self>, db: u32) -> Result<(u64, u64), RoundError> {
        self.settle_writes().await?;
        self.count_exactly().await?;
        Ok(self.partition.borrow().totals(db))
    }

    /// Like [`key_count`](Self::key_count), for each of the first databases, with changes that are not
    /// stored yet: who looks at figures must not wait for a disk or a replica. If the counters cannot
    /// be made exact, as the engine cannot be read, those that there are: replaced keys may count
    /// twice.
    pub async fn key_counts(self: &Rc<Self>, databases: u32) -> Vec<(u64, u64)> {
        self.commit();
        // The log has the error.
        let _exact = self.count_exactly().await.is_ok();
        let partition = self.partition.borrow();
        self.node.health.data_set.publish(self.id, partition.data_set());
        (0..databases).map(|db| partition.totals(db)).collect()
    }

    /// Returns the number of keys in each of some slots of this worker, in the first database.
    pub async fn slot_counts(
        self: &Rc<Self>,
        slots: RangeInclusive<u16>,
    ) -> Result<Vec<(u16, u32)>, RoundError> {
        self.settle_writes().await?;
        self.count_exactly().await?;
        let partition = self.partition.borrow();
        let own = slots.filter(|slot| self.node.worker_of(*slot) == self.id);
        Ok(own.map(|slot| (slot, partition.slot_keys(slot))).collect())
    }

    /// Removes the keys that have expired; all belong to this worker.
    pub(crate) async fn remove_expired(self: &Rc<Self>, db: u32, keys: Vec<Box<[u8]>>) {
        // Looking an expired key up removes it.
        let Some(exists) = registry::declared("exists") else { return };
        let words =
            std::iter::once(exists.spec.name.as_bytes()).chain(keys.iter().map(|key| &**key));
        let args: OwnedArgs = words.collect();
        let request = Request::of_nobody(db);
        let command = OwnedCommand::new(exists, args, request);
        // The reply is not needed.
        let _ = self.park(command, Blocked::Locked, None).await;
    }
}
