//! The worker's side of commands over the whole keyspace.

use super::{Blocked, Shown, Worker};
use crate::command::{OwnedCommand, Request, registry};
pub use flagstone_storage::scan::{Cursor, ScanKey, ScanPage};
use flagstone_wire::resp::OwnedArgs;
use std::rc::Rc;

impl Worker {
    /// What this worker's clients wrote before is in what follows, and may be shown.
    async fn settle(self: &Rc<Self>) -> Result<(), String> {
        self.commit();
        // If the round has failed, what it staged is gone, and not in what follows.
        let closed = self.partition.borrow().closed();
        self.wait_shown(&Shown::stored(closed)).await.map_err(|e| e.0)
    }

    /// Keys of a database in one of this worker's shards, from a place on: about `limit`.
    pub async fn scan(
        self: &Rc<Self>,
        db: u32,
        shard: u16,
        from: Cursor,
        limit: usize,
    ) -> Result<ScanPage, String> {
        self.settle().await?;
        let Some(plan) = self.partition.borrow().plan_scan(db, shard, from, limit) else {
            return Err(format!("ERR shard {shard} is not on worker {}", self.id));
        };
        let scanned = self.node.background.spawn(plan.run()).await;
        scanned
            .map_err(|e| format!("ERR the scan was abandoned: {e}"))?
            .map_err(|e| format!("ERR the data could not be read: {e:#}"))
    }

    /// Keys of a database in this worker's shards, and those with an expiry.
    pub async fn key_count(self: &Rc<Self>, db: u32) -> Result<(u64, u64), String> {
        self.settle().await?;
        Ok(self.partition.borrow().totals(db))
    }

    /// Removes those of these keys that have expired; all of them are this worker's.
    pub(crate) async fn remove_expired(self: &Rc<Self>, db: u32, keys: Vec<Box<[u8]>>) {
        // Whoever looks an expired key up removes it.
        let Some(exists) = registry::lookup(b"exists") else { return };
        let words =
            std::iter::once(exists.spec.name.as_bytes()).chain(keys.iter().map(|key| &**key));
        let args: OwnedArgs = words.collect();
        let request = Request::of_nobody(db);
        let command = OwnedCommand::new(exists, args, request);
        // Its reply says nothing of interest.
        let _ = self.park(command, Blocked::Locked, None).await;
    }
}
