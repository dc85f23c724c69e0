//! Splitting shards: the upper slots of a shard become one of their own, with the same owner (RFC 22).
//!
//! The owner takes no commands for the shard, and its engine is closed with everything in it. A second
//! engine is made then, whose manifest names the same files: it reads them where they are, as a branch
//! does (RFC 8), and a checkpoint in the first engine keeps them. One change of the map makes them two
//! shards, which the owner takes again. Rows of the other one's slots do not count in either of them
//! ([`OwnSlots`](crate::engine::OwnSlots)), and are gone once all files of that time are merged.

use super::draft::{MapDraft, MapRefusal};
use super::map::{ClusterMap, MapShard, SplitOrigin};
use super::member::Life;
use super::seat::ClusterSeat;
use crate::directory::ShardHome;
use crate::engine::branch::{branch_engine, remove_branch, shares_files};
use crate::place::{Place, names};
use crate::slot::MAX_SHARDS;
use anyhow::{Context, Result};
use std::ops::Range;

impl MapDraft {
    /// Asks the owner of a shard to split it, so that `at` is the first slot of the new one; `None`: ends
    /// such a wish.
    ///
    /// # Errors
    /// If the shard does not have the slot, or if it is its first one; if it was asked so before; if there is
    /// no room for one more shard.
    pub fn want_split(&mut self, shard: u16, at: Option<u16>) -> Result<(), MapRefusal> {
        let slots = self.map.slots_of(shard);
        let entry = self.map.shards.get(usize::from(shard));
        let entry = entry.ok_or(MapRefusal::NoShard(shard))?;
        if entry.split_at == at {
            return Err(MapRefusal::NoChange);
        }
        if let Some(slot) = at.filter(|at| *at <= slots.start || *at >= slots.end) {
            return Err(MapRefusal::NoSplit { shard, slot });
        }
        let wished = self.map.shards.iter().filter(|it| it.id != shard && it.split_at.is_some());
        let shards = self.map.shards.len() + wished.count();
        if at.is_some() && shards >= usize::from(MAX_SHARDS) {
            return Err(MapRefusal::ManyShards);
        }
        self.map.shards[usize::from(shard)].split_at = at;
        Ok(())
    }

    /// Splits a shard as was asked: the slots from `split_at` on become shard `id`. For its owner the same
    /// holds as when it gives the shard away; it has also made the files of the new shard.
    ///
    /// # Errors
    /// If `life` does not own it, or nobody asks for it any more; if there is a shard `id`, or no room for one.
    pub fn split(&mut self, shard: u16, life: Life, id: u16) -> Result<(), MapRefusal> {
        self.owned(shard, life)?;
        let slots = self.map.slots_of(shard);
        let at = self.map.shards[usize::from(shard)].split_at.ok_or(MapRefusal::NoChange)?;
        if usize::from(id) != self.map.shards.len() {
            return Err(MapRefusal::NoShard(id));
        }
        if id >= MAX_SHARDS {
            return Err(MapRefusal::ManyShards);
        }
        let division = self.map.division();
        for (entry, slots) in self.map.shards.iter_mut().zip(division) {
            entry.slots = Some((slots.start, slots.end - 1));
        }
        self.hand_over(shard, Some(life), vec![life]);
        let lower = &mut self.map.shards[usize::from(shard)];
        (lower.is_begun, lower.split_at) = (true, None);
        lower.slots = Some((slots.start, at - 1));
        let origin = Some(SplitOrigin { shard, by: life });
        let upper = MapShard { id, slots: Some((at, slots.end - 1)), origin, ..lower.clone() };
        self.map.shards.push(MapShard { is_pinned: false, ..upper });
        Ok(())
    }
}

impl ClusterMap {
    /// Returns the slots that a shard keeps when it is split, if that is asked for.
    pub fn lower_half(&self, shard: u16) -> Option<Range<u16>> {
        let at = self.shards.get(usize::from(shard))?.split_at?;
        Some(self.slots_of(shard).start..at)
    }

    /// Returns true if there may be one more shard.
    pub fn has_room_for_shard(&self) -> bool {
        self.shards.len() < usize::from(MAX_SHARDS)
    }

    /// Returns where the files of a shard are, and which rows count there, if it has one. `created`: the
    /// number of shards at the creation of the cluster.
    pub(super) fn home_of(&self, shard: u16, created: u16) -> Option<ShardHome> {
        self.shards.get(usize::from(shard)).map(|entry| entry.home(created))
    }
}

impl MapShard {
    /// Returns where its files are, and which rows count there. `created`: the number of shards at the
    /// creation of the cluster.
    pub(super) fn home(&self, created: u16) -> ShardHome {
        let by = self.origin.map(|origin| origin.by.0);
        let slots = self.slots.map(|(first, last)| first..last + 1);
        ShardHome::with_slots(self.id, by, slots, created)
    }
}

/// The files of a shard in the making.
#[derive(Debug)]
pub struct ShardBranch {
    /// Number of the new shard.
    pub id: u16,
    engine: Place,
}

impl ClusterSeat {
    /// Returns true if a shard can be split: it reads no files of the one that it was split from itself.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn can_split(&self, entry: &MapShard) -> Result<bool> {
        let engine = entry.home(self.created()).engine_place(self.store());
        Ok(entry.origin.is_none() || !shares_files(&engine).await?)
    }

    /// Makes the files of a shard that has the upper slots of another one, whose engine is closed: it will be
    /// the shard behind all those of `map`.
    ///
    /// # Errors
    /// If the shard reads files of the one that it was split from itself, or if the store does not answer.
    pub async fn branch(&self, map: &ClusterMap, shard: u16) -> Result<ShardBranch> {
        let home = map.home_of(shard, self.created()).context("there is no such shard")?;
        let id = map.shards().len() as u16; // the map is checked
        let from = home.engine_place(self.store());
        let to = ShardHome::with_slots(id, Some(self.life().0), None, 0).engine_place(self.store());
        let branch = ShardBranch { id, engine: to };
        branch.remove().await.context("removing the files of an earlier try")?;
        let made = branch.make(&from).await;
        if made.is_err() {
            // The next try does it, or whoever forgets this life.
            let _ = branch.remove().await;
        }
        made.with_context(|| format!("making the files of shard {id} in {}", branch.engine))?;
        Ok(branch)
    }
}

impl ShardBranch {
    #[cfg(test)]
    pub(super) fn at(id: u16, engine: Place) -> Self {
        Self { id, engine }
    }

    pub(super) async fn make(&self, from: &Place) -> Result<()> {
        branch_engine(from, &self.engine).await
    }

    /// Removes the files: the map does not have the shard, and never will.
    ///
    /// # Errors
    /// If the store does not answer: some may be left.
    pub async fn remove(&self) -> Result<()> {
        remove_branch(&self.engine).await
    }
}

/// Removes the files of shards that a life has made, and that never came into the map: it has ended.
pub(super) async fn remove_unfinished(store: &Place, life: Life, map: &ClusterMap) -> Result<()> {
    let known = map.shards().iter().filter_map(|it| Some((it.id, it.origin?.by)));
    let known: Vec<(u16, Life)> = known.filter(|(_, by)| *by == life).collect();
    for name in names(store).await?.1 {
        let found = ShardHome::split_by(&name).filter(|(_, by)| *by == life.0);
        let Some((id, _)) = found else { continue };
        if !known.contains(&(id, life)) {
            remove_branch(&store.join(&name).join("db")).await?;
        }
    }
    Ok(())
}
