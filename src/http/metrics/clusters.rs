//! Figures of a cluster, as this server sees it; none if it has no part in one.

use super::text::MetricsText;
use crate::cluster::Cluster;
use crate::node::Node;
use flagstone_storage::cluster::{ClusterMap, MapShard, MemberState};
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn put(text: &mut MetricsText, node: &Node) {
    let Some(cluster) = &node.cluster else { return };
    let map = cluster.map();
    text.gauge("cluster_map", "Number of the newest map that this server knows.")
        .value(map.number());
    text.gauge("cluster_map_age_seconds", "Time since that was the newest one for sure.")
        .value(cluster.sight.map_age().as_secs_f64());
    text.gauge("cluster_lease_seconds", "Lease of the cluster.").value(map.lease().as_secs_f64());
    put_servers(text, cluster, &map);
    put_shards(text, cluster, &map);
    put_counts(text, cluster);
}

fn put_servers(text: &mut MetricsText, cluster: &Cluster, map: &ClusterMap) {
    let (sight, others) = (&cluster.sight, cluster.others());
    let silent = others.iter().filter(|it| !cluster.is_connected(it.life)).count();
    let suspected = others.iter().filter(|it| sight.is_watched(it.life)).count();
    let open = map.members().iter().filter(|it| it.state == MemberState::Open);
    let leaving = open.clone().filter(|it| it.leaving).count();
    let replicas = open.clone().filter(|it| it.is_replica()).count();
    text.gauge("cluster_servers", "Servers of the cluster, by state; one may be in several.");
    for (state, count) in [
        ("open", open.count()),
        ("replica", replicas),
        ("leaving", leaving),
        ("silent", silent),
        ("suspected", suspected),
        ("unsealed", sight.unsealed().len()),
    ] {
        text.sample(&[("state", &state)], count);
    }
}

fn put_shards(text: &mut MetricsText, cluster: &Cluster, map: &ClusterMap) {
    let count = |is: fn(&MapShard) -> bool| map.shards().iter().filter(|shard| is(shard)).count();
    let is_silent = |it: &&MapShard| it.owner.is_some_and(|life| !cluster.is_connected(life));
    let silent = map.shards().iter().filter(is_silent).count();
    text.gauge("cluster_shards", "Shards of the cluster, by state; one may be in several.");
    for (state, count) in [
        ("all", map.shards().len()),
        ("parked", count(|it| it.owner.is_none())),
        ("silent", silent),
        ("pinned", count(|it| it.is_pinned)),
        ("moving", count(|it| it.moving_to.is_some())),
        ("unflushed", count(|it| it.journals.len() > usize::from(it.owner.is_some()))),
    ] {
        text.sample(&[("state", &state)], count);
    }
    text.gauge("cluster_own_shards", "Shards of this server, by state.");
    for (state, count) in [
        ("owned", map.owned_by(cluster.life()).count()),
        ("served", cluster.served().count()),
        ("untaken", cluster.sight.untaken().len()),
    ] {
        text.sample(&[("state", &state)], count);
    }
}

fn put_counts(text: &mut MetricsText, cluster: &Cluster) {
    let (sight, messages) = (&cluster.sight, &cluster.messages);
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    text.counter("cluster_takeovers", "Servers that this one has taken over.")
        .value(get(&sight.takeovers));
    text.counter(
        "cluster_shard_changes",
        "Shards that this server has taken, given away or split.",
    );
    text.sample(&[("change", &"taken")], get(&sight.taken))
        .sample(&[("change", &"given")], get(&sight.given))
        .sample(&[("change", &"split")], get(&sight.split));
    text.counter("cluster_shard_change_failures", "Attempts to do so that have failed.")
        .value(get(&sight.failures));
    text.counter("cluster_messages", "Messages of PUBLISH to and from other servers.");
    text.sample(&[("fate", &"queued")], get(&messages.queued))
        .sample(&[("fate", &"received")], get(&messages.received))
        .sample(&[("fate", &"dropped")], get(&messages.dropped));
}
