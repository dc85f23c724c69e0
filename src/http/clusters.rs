//! This server's sight of its cluster, for the dashboard: the servers, the shards, and what is amiss.
//!
//! All of it is what this server knows: nothing is asked for. The map may be old if the bucket is away, and so its
//! age is told; the state of another server is its last answer to a beat.

use crate::cluster::{Cluster, ServedState};
use crate::node::Node;
use flagstone_storage::cluster::{ClusterMap, Life, MapMember, MapShard, MemberState, ServerRole};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns the cluster as JSON.
pub(super) fn described(node: &Node, cluster: &Cluster) -> Value {
    let map = cluster.map();
    json!({
        "node": cluster.node().to_string(),
        "life": cluster.life(),
        "map": map.number(),
        "map_age_ms": ms(cluster.sight.map_age()),
        "newer_map": cluster.newer_map(),
        "lease_ms": ms(map.lease()),
        "lease_left_ms": node.health.lease_left_ms(),
        "servers": map.members().iter().map(|it| server(cluster, &map, it)).collect::<Vec<_>>(),
        "shards": map.shards().iter().map(|it| shard(cluster, &map, it)).collect::<Vec<_>>(),
        "untaken": cluster.sight.untaken(),
        "unsealed": cluster.sight.unsealed(),
    })
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn server(cluster: &Cluster, map: &ClusterMap, member: &MapMember) -> Value {
    let life = member.life;
    let allotment = map.balance().into_iter().find(|one| one.life == life);
    let links = cluster.messages.open();
    let link = links.iter().find(|link| link.life() == life);
    json!({
        "node": member.node.to_string(),
        "life": life,
        "state": state(cluster, member),
        "host": member.address.host,
        "port": member.address.port,
        "tls_port": member.address.tls_port,
        "shards": map.owned_by(life).count(),
        "target": allotment.map(|one| one.target),
        // Of this server itself, and of those that have ended, there is none.
        "silence_ms": cluster.sight.heard.silence(life).map(ms),
        // The link for messages of PUBLISH to it, and what waits there.
        "link_since_ms": link.map(|link| link.since_ms()),
        "link_bytes": link.map(|link| link.bytes()),
        // Shards that may need records in its journal.
        "needed_by": map.shards().iter().filter(|it| needs(it, life)).map(|it| it.id).collect::<Vec<_>>(),
    })
}

/// Returns true if a shard lists the journal of a former owner.
fn needs(shard: &MapShard, life: Life) -> bool {
    shard.owner != Some(life) && shard.journals.contains(&life)
}

/// Returns the state of a server as this one sees it.
fn state(cluster: &Cluster, member: &MapMember) -> &'static str {
    match member.state {
        MemberState::Sealed => "sealed",
        MemberState::Released => "released",
        MemberState::Open if cluster.sight.is_watched(member.life) => "suspected",
        MemberState::Open if !cluster.is_connected(member.life) => "silent",
        MemberState::Open if member.role == ServerRole::Standby => "standby",
        MemberState::Open if member.is_replica() => "replica",
        MemberState::Open if member.leaving => "leaving",
        MemberState::Open => "well",
    }
}

fn shard(cluster: &Cluster, map: &ClusterMap, shard: &MapShard) -> Value {
    let slots = map.slots_of(shard.id);
    // Of shards of other servers nothing is known but the map.
    let served = match (shard.owner == Some(cluster.life()), cluster.state(shard.id)) {
        (_, ServedState::Served) => Some("served"),
        (_, ServedState::Expected) => Some("changing"),
        (true, ServedState::Elsewhere) => Some("not served"),
        // A replica shows shards that others own.
        (false, ServedState::Elsewhere) if cluster.mirrors.shows(shard.id) => Some("shown"),
        (false, ServedState::Elsewhere) => None,
    };
    let journals = shard.journals.iter().filter(|life| Some(**life) != shard.owner);
    json!({
        "id": shard.id,
        "slots": [slots.start, slots.end.saturating_sub(1)],
        "owner": shard.owner,
        "moving_to": shard.moving_to,
        "pinned": shard.is_pinned,
        "split_at": shard.split_at,
        "journals": journals.collect::<Vec<_>>(),
        "since": shard.since,
        "here": served,
    })
}
