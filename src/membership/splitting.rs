//! Splits shards of this server, as users ask for it (RFC 22): the upper slots become a shard of their own.
//!
//! For the clients it is as if the shard moved to this server: commands wait until both parts are served.

use super::moving::{flush_ahead, settle, stop_serving};
use super::{Agent, Handled, Seated, ShardChange};
use anyhow::{Result, bail};
use flagstone_storage::cluster::{ClusterMap, MapRefusal, MapShard};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Number of times that the pause behind a failed split doubles, which is a lease at first: each try holds the
/// commands of the shard.
const DOUBLINGS: u32 = 6;

/// Splits that are put off, as they could not be done yet. The shards are served meanwhile, and may move.
#[derive(Debug, Default)]
pub(super) struct PutOffSplits(BTreeMap<u16, PutOffSplit>);

#[derive(Debug)]
struct PutOffSplit {
    /// Tries for which the shard was not served.
    tries: u32,
    until: Instant,
}

impl PutOffSplits {
    /// Puts the split of a shard off. `was_held`: commands have waited for it.
    fn put_off(&mut self, shard: u16, was_held: bool, lease: Duration) {
        let of = self.0.entry(shard).or_insert(PutOffSplit { tries: 0, until: Instant::now() });
        let doublings = if was_held { of.tries.min(DOUBLINGS) } else { 0 };
        of.tries = of.tries.saturating_add(u32::from(was_held));
        of.until = Instant::now() + lease * (1 << doublings);
    }

    fn is_due(&self, shard: u16) -> bool {
        self.0.get(&shard).is_none_or(|of| of.until <= Instant::now())
    }
}

impl Agent {
    /// Begins to split a shard, if a user asks for it and nothing else is done with any.
    pub(super) fn split_one(&mut self, map: &ClusterMap) {
        let asked: Vec<&MapShard> =
            map.owned_by(self.life()).filter(|it| it.split_at.is_some()).collect();
        self.put_off_splits.0.retain(|id, _| asked.iter().any(|it| it.id == *id));
        // All shards move then: they are split by their next owners, as are those that are to move otherwise.
        if !self.busy.is_empty() || self.is_leaving(map) {
            return;
        }
        let may_begin = |it: &&&MapShard| {
            it.moving_to.is_none() && self.put_off_splits.is_due(it.id) && self.can_give(it.id)
        };
        let Some(shard) = asked.iter().find(may_begin).map(|it| it.id) else { return };
        self.busy.insert(shard);
        let splitting = split(self.own.clone(), shard);
        let shards = vec![shard];
        self.tasks.spawn(async move { Handled { shards, outcome: Ok(splitting.await) } });
    }

    /// Notes that a shard was not split. If it is not served, it is taken again at once.
    pub(super) fn put_split_off(&mut self, shard: u16, why: &str, was_held: bool) {
        self.warn(format!("shard {shard} is not split yet: {why}"));
        self.own.cluster.sight.failures.fetch_add(1, Ordering::Relaxed);
        let lease = self.lease();
        self.put_off_splits.put_off(shard, was_held, lease);
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
async fn split(own: Seated, shard: u16) -> ShardChange {
    let mut was_held = false;
    match try_to_split(&own, shard, &mut was_held).await {
        Ok(()) => ShardChange::Split,
        Err(error) => ShardChange::Unsplit { why: format!("{error:#}"), was_held },
    }
}

/// Splits a shard. `is_held` becomes true once commands wait for it.
async fn try_to_split(own: &Seated, shard: u16, is_held: &mut bool) -> Result<()> {
    let begun = Instant::now();
    // An earlier try may count although nobody knew: its new shard has the files that this one would replace.
    if let Some(newest) = own.seat.maps().newest().await? {
        own.cluster.learn(&newest);
    }
    let map = own.cluster.map();
    if map.lower_half(shard).is_none() {
        bail!("it is split already, or nobody asks for it any more");
    }
    if !map.has_room_for_shard() {
        return call_off(own, shard, &MapRefusal::ManyShards).await;
    }
    if !own.seat.can_split(&map.shards()[usize::from(shard)]).await? {
        bail!(
            "shard {shard} still reads files of the shard that it was split from: it is split once they are \
             merged, and replaced files are deleted"
        );
    }
    flush_ahead(own, shard).await?;
    let held = Instant::now();
    *is_held = true;
    own.cluster.begin_giving(shard, None);
    let outcome = divide(own, shard).await;
    settle(own, shard, outcome.is_ok()).await?;
    let into = outcome?;
    let (held_ms, took_ms) = (held.elapsed().as_millis(), begun.elapsed().as_millis());
    tracing::info!(shard, into, held_ms, took_ms, "split a shard");
    Ok(())
}

/// Ends the wish for a split that will never be possible.
///
/// # Errors
/// Always: the shard is not split.
async fn call_off(own: &Seated, shard: u16, why: &MapRefusal) -> Result<()> {
    match own.seat.amend(|draft| draft.want_split(shard, None)).await? {
        Ok(map) => own.cluster.learn(&map),
        Err(MapRefusal::NoChange) => {}
        Err(refusal) => bail!("{why}, and the wish cannot be ended: {refusal}"),
    }
    bail!("{why}: the split is called off")
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
            // The next try begins with the map that does not allow this one.
            if let Ok(Some(newest)) = own.seat.maps().newest().await {
                own.cluster.learn(&newest);
            }
            bail!("it is not split: {refusal}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_split_that_fails_is_put_off_longer_and_longer_up_to_a_bound() {
        let lease = Duration::from_secs(3);
        let mut splits = PutOffSplits::default();
        assert!(splits.is_due(1));
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6, 6] {
            splits.put_off(1, true, lease);
            assert!(splits.is_due(2), "others are not");
            tokio::time::advance(lease * (1 << doublings) - Duration::from_millis(1)).await;
            assert!(!splits.is_due(1), "{doublings}");
            tokio::time::advance(Duration::from_millis(1)).await;
            assert!(splits.is_due(1), "{doublings}");
        }
        // A look that holds nobody is made at each lease, ...
        for _ in 0..9 {
            splits.put_off(2, false, lease);
            tokio::time::advance(lease).await;
            assert!(splits.is_due(2));
        }
        // ... and makes no later pause longer.
        splits.put_off(2, true, lease);
        tokio::time::advance(lease).await;
        assert!(splits.is_due(2));
    }
}
