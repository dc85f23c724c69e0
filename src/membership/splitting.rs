//! Splits shards of this server, as users ask for it (RFC 22): the upper slots become a shard of their own.
//!
//! For the clients it is as if the shard moved to this server: commands wait until both parts are served.

use super::moving::{flush_ahead, settle, stop_serving};
use super::{Agent, Handled, Seated, ShardChange};
use anyhow::{Result, bail};
use flagstone_storage::cluster::{ClusterMap, MapRefusal, MapShard};
use tokio::time::Instant;

impl Agent {
    /// Begins to split a shard, if a user asks for it and nothing else is done with any.
    pub(super) fn split_one(&mut self, map: &ClusterMap) {
        if !self.busy.is_empty() || self.ending.is_some() {
            return;
        }
        // One that is to move is split by its next owner.
        let is_asked = |it: &&MapShard| it.split_at.is_some() && it.moving_to.is_none();
        let mut asked = map.owned_by(self.life()).filter(is_asked);
        let Some(shard) = asked.find(|it| self.can_give(it.id)).map(|it| it.id) else { return };
        self.busy.insert(shard);
        let splitting = split(self.own.clone(), shard);
        let shards = vec![shard];
        self.tasks.spawn(async move { Handled { shards, outcome: splitting.await } });
    }

    /// Divides the slots as a map does. Shards that this server owns are not served then if their slots
    /// change; on a replica, they are hidden before.
    ///
    /// # Errors
    /// If a worker is gone.
    pub(super) async fn follow_division(&mut self, map: &ClusterMap) -> Result<()> {
        let (layout, division) = (self.own.node.layout.clone(), map.division());
        let is_other = |id: &u16| layout.slots_of(*id) != division[usize::from(*id)];
        let others: Vec<u16> = (0..division.len() as u16).filter(is_other).collect();
        if others.is_empty() {
            return Ok(());
        }
        match &mut self.mirroring {
            Some(mirroring) => mirroring.divide(&others, division).await,
            None => {
                layout.divide(division);
                Ok(())
            }
        }
    }
}

/// Splits a shard. Both parts are to be taken then.
async fn split(own: Seated, shard: u16) -> Result<ShardChange> {
    let begun = Instant::now();
    let map = own.cluster.map();
    if !own.seat.can_split(&map.shards()[usize::from(shard)]).await? {
        bail!(
            "shard {shard} still reads files of the shard that it was split from: it is split once they are \
             merged, and replaced files are deleted"
        );
    }
    flush_ahead(&own, shard).await?;
    let held = Instant::now();
    own.cluster.begin_giving(shard, None);
    let outcome = divide(&own, shard).await;
    settle(&own, shard, outcome.is_ok()).await?;
    let into = outcome?;
    let (held_ms, took_ms) = (held.elapsed().as_millis(), begun.elapsed().as_millis());
    tracing::info!(shard, into, held_ms, took_ms, "split a shard");
    Ok(ShardChange::Split)
}

/// Takes a shard from its worker, completes its engine, makes a second one of the same files, and changes the
/// map. Returns the number of the new shard.
async fn divide(own: &Seated, shard: u16) -> Result<u16> {
    let (cluster, map) = (own.cluster.clone(), own.cluster.map());
    let lower = map.lower_half(shard).ok_or(MapRefusal::NoChange)?;
    let again = move |slot, secured| cluster.here(slot, secured);
    let detached = stop_serving(own, shard, again).await?;
    let stored = detached.stored();
    // From here on the shard is taken again, whatever comes.
    detached.close_to_split(&own.node.journal, lower).await?;
    let branch = own.seat.branch(&map, shard).await?;
    let (life, id) = (own.seat.life(), branch.id);
    let split = own.seat.amend(|draft| {
        draft.note_stored(shard, life, stored)?;
        draft.split(shard, life, id)
    });
    match split.await? {
        Ok(map) => {
            own.cluster.learn(&map);
            Ok(id)
        }
        Err(refusal) => {
            let removed = branch.remove().await;
            if let Err(error) = removed {
                tracing::warn!(shard, "files are left of a split that was called off: {error:#}");
            }
            bail!("it is not split: {refusal}")
        }
    }
}
