//! Replicas become owners: a standby when an owner is lost or the last one leaves, any replica if a user
//! wants it (`flagstone cluster promote`, CLUSTER FAILOVER). The map says so; then the server shows the shards of
//! others no more, and takes its own.

use super::Agent;
use crate::cluster::shown_primary;
use anyhow::Result;
use flagstone_storage::cluster::{ClusterMap, MapMember, MapRefusal, MemberState};

impl Agent {
    /// Owns shards from now on, if the map has made this replica an owner. Returns false if it is to be
    /// tried again.
    pub(super) async fn follow_role(&mut self, map: &ClusterMap) -> Result<bool> {
        let is_owner = map.member(self.life()).is_some_and(|member| !member.is_replica());
        let Some(mirroring) = self.mirroring.as_mut().filter(|_| is_owner) else {
            return Ok(true);
        };
        if !mirroring.end().await? {
            return Ok(false);
        }
        self.mirroring = None;
        self.own.node.health.replica.end_mirroring();
        tracing::warn!("this replica is an owner from now on, and shows its own shards only");
        Ok(true)
    }

    /// Makes this standby an owner if it has seen owners, and all of them leave or have left: a new
    /// cluster, or one that nobody serves, waits for the server that a user starts.
    pub(super) async fn succeed(&mut self, map: &ClusterMap) -> Result<()> {
        self.has_seen_owner |= has_owner(map);
        let stands_by = map.member(self.life()).is_some_and(MapMember::stands_by);
        if !stands_by || !self.has_seen_owner || has_owner(map) {
            return Ok(());
        }
        let life = self.life();
        self.change("succeeding the last owner", |draft| match has_owner(draft.map()) {
            true => Err(MapRefusal::NoChange),
            false => draft.promote(life),
        })
        .await
    }

    /// Makes this replica an owner, which is to get all shards of its primary, if a user wants that (CLUSTER
    /// FAILOVER).
    pub(super) async fn fail_over(&mut self) -> Result<()> {
        if !self.own.cluster.takes_over() {
            return Ok(());
        }
        let life = self.life();
        let taken = self.try_to_change("taking the place of the primary", |draft| {
            draft.promote(life)?;
            let primary = shown_primary(draft.map()).map(|member| member.life);
            let shards = primary.into_iter().flat_map(|primary| draft.map().owned_by(primary));
            let shards: Vec<u16> = shards.map(|shard| shard.id).collect();
            shards.into_iter().try_for_each(|shard| draft.want_move(shard, Some(life)))
        });
        if let Err(refusal) = taken.await? {
            // The client was told OK: the map has changed since.
            tracing::warn!("this replica does not take the place of its primary: {refusal}");
        }
        self.own.cluster.end_takeover();
        Ok(())
    }

    /// Returns true if a standby answers, which becomes an owner as soon as it knows that this server
    /// leaves.
    pub(super) fn awaits_standby(&self, map: &ClusterMap) -> bool {
        let answers = |it: &MapMember| self.suspicion.heard().answers(it.life, self.lease());
        map.members().iter().any(|it| is_open(it) && it.stands_by() && answers(it))
    }
}

fn is_open(member: &MapMember) -> bool {
    member.state == MemberState::Open
}

/// Returns true if there is a server that may be given shards.
fn has_owner(map: &ClusterMap) -> bool {
    map.members().iter().any(|it| is_open(it) && it.takes_shards())
}
