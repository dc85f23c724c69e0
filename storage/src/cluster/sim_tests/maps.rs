//! The sequence of maps: each is checked against the one before it, and against the store.

use super::world::SimWorld;
use crate::cluster::{ClusterMap, Life, MapShard, MemberState};
use crate::journal::OBJECT_HEADER;
use chrono::{DateTime, Utc};
use std::rc::Rc;
use std::time::Duration;

/// Pause between two looks for a new map.
const LOOK: Duration = Duration::from_millis(40);

impl SimWorld {
    /// Returns the map of a number: the first content that its object had.
    pub(super) fn map(&self, number: u64) -> Option<ClusterMap> {
        let text = self.sim.first_content(&format!("data/cluster/map/{number:020}"))?;
        Some(ClusterMap::decode(number, &text).unwrap())
    }

    /// Returns the time of the first map that says that a life has ended.
    pub(super) fn ended_at(&self, life: Life) -> Option<DateTime<Utc>> {
        let maps = (1..=self.checked.get()).filter_map(|number| self.map(number));
        let mut maps =
            maps.skip_while(|map| !map.is_open(life)).skip_while(|map| map.is_open(life));
        self.sim.stored_at(&format!("data/cluster/map/{:020}", maps.next()?.number()))
    }

    /// Checks maps as they come, until the cluster is whole.
    pub(super) async fn watch_maps(self: Rc<Self>) {
        while !self.is_whole.get() {
            while let Some(map) = self.map(self.checked.get() + 1) {
                self.check_map(&map).await;
                self.checked.set(map.number());
            }
            self.check_owners();
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Checks that at most one process may answer for each shard.
    fn check_owners(&self) {
        for server in self.servers() {
            let here: Vec<u16> = server.partition.borrow().shards.keys().copied().collect();
            here.into_iter().for_each(|shard| self.assert_alone(&server, shard));
        }
    }

    async fn check_map(&self, map: &ClusterMap) {
        let Some(before) = self.map(map.number() - 1) else { return };
        let wrong = |what: std::fmt::Arguments<'_>| {
            self.violated(format_args!("map {}: {what}", map.number()));
        };
        for member in map.members() {
            let is_new = before.member(member.life).is_none();
            if is_new && member.life.0 < before.next_life {
                wrong(format_args!("life {} is given twice", member.life));
            }
            let was_open = before.is_open(member.life);
            let is_sealed = member.state == MemberState::Sealed;
            if was_open && is_sealed && !self.is_sealed(member.life).await {
                wrong(format_args!("life {} counts as sealed, and is not", member.life));
            }
        }
        for (was, is) in before.shards().iter().zip(map.shards()) {
            if let Some(what) = complaint(&before, map, was, is) {
                wrong(format_args!("shard {}: {what}: {was:?}, then {is:?}", is.id));
            }
        }
    }

    /// Returns true if the journal of a life has a fence in its own epoch, or no object of its own.
    async fn is_sealed(&self, life: Life) -> bool {
        let prefix = format!("data/lives/{0:020}/{0:020}/", life.0);
        let objects = self.sim.sizes(&prefix).await;
        let is_fence = |bytes: &u64| *bytes == OBJECT_HEADER as u64;
        objects.is_empty() || objects.values().any(is_fence)
    }
}

/// Returns what is wrong with a change of a shard's entry.
fn complaint(
    before: &ClusterMap,
    map: &ClusterMap,
    was: &MapShard,
    is: &MapShard,
) -> Option<&'static str> {
    if was.since == is.since && was.owner != is.owner {
        return Some("it has another owner since the same map");
    }
    let kept = is.journals.starts_with(&was.journals);
    let has_left = was.owner.is_some_and(|owner| before.is_open(owner) && !map.is_open(owner));
    if has_left && !kept {
        return Some("a failover drops journals");
    }
    if kept || was.owner.is_none() && was.journals.is_empty() {
        return None;
    }
    // Its owner has flushed: it keeps the shard, gives it away, or leaves it to nobody.
    let is_own = was.owner.is_some_and(|owner| before.is_open(owner));
    let rest = is.journals.len() <= 1;
    (!is_own || !rest).then_some("journals leave the list")
}
