//! Takes shards: reads what other journals have of them, and gives them to their workers.

use super::{Seated, ShardChange, on_worker};
use crate::cluster::ServedState;
use crate::worker::Worker;
use anyhow::Result;
use flagstone_storage::cluster::{GivenShard, MapShard};
use flagstone_storage::journal::Lsn;
use std::rc::Rc;

/// Takes shards with the same list of journals, and serves them.
pub(super) async fn take(own: Seated, entries: Vec<MapShard>) -> Result<ShardChange> {
    let life = own.seat.life();
    let given: Vec<_> = entries.iter().map(|entry| GivenShard::of(entry, life)).collect();
    let taken = own.seat.take(&given).await?;
    let adopted = taken.iter().map(|one| one.adopted).max();
    let is_whole = given.iter().all(|(one, _)| one.journals.is_empty() && one.is_begun);
    let (mut served, mut refused) = (Vec::new(), Vec::new());
    for one in taken {
        let id = one.shard.id;
        let attach = move |worker: Rc<Worker>| async move { worker.attach_shard(one.shard).await };
        match on_worker(&own, id, attach).await? {
            Ok(()) => {
                own.cluster.set(id, ServedState::Served);
                served.push(id);
            }
            Err(why) => refused.push((id, why.why.to_string())),
        }
    }
    tracing::info!(shards = ?served, "serving shards");
    Ok(ShardChange::Taken { up_to: adopted.filter(|_| !is_whole), refused })
}

/// The progress of an engine.
pub(super) struct FlushProgress {
    /// True if no record up to the lsn is needed any more.
    pub(super) is_done: bool,
    /// The lsn up to which it has stored everything for sure.
    pub(super) stored: Lsn,
}

/// Has a shard flushed soon up to an lsn; `None`: it is not here.
pub(super) async fn flush(own: &Seated, shard: u16, up_to: Lsn) -> Option<FlushProgress> {
    let urge = move |worker: Rc<Worker>| async move {
        let (reached, stored) = (worker.urge_flush(shard, up_to)?, worker.stored_of(shard)?);
        Some(FlushProgress { is_done: reached >= up_to, stored })
    };
    on_worker(own, shard, urge).await.ok()?
}
