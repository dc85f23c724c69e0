//! The nodes of the cluster, as the commands describe them: those of the map, or this one alone.

use crate::clients::ClientState;
use crate::cluster::{Cluster, shown_primary};
use crate::config::{EndpointType, Settings};
use crate::routing::Call;
use crate::transport::PeerAddr;
use flagstone_storage::cluster::{ClusterMap, MapMember};
use flagstone_storage::slot::SLOTS;
use flagstone_wire::resp::Reply;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Difference between the port for clients and that of the cluster bus, on which no server listens.
const BUS_OFFSET: u32 = 10_000;

/// Returns an id with its digits in reverse order: the shard has another id than its node.
pub(super) fn reversed(id: &str) -> String {
    id.chars().rev().collect()
}

/// See the module's description.
pub(super) struct ShownNode {
    id: String,
    pub(super) is_myself: bool,
    /// True if it owns no slots, and shows those of all other nodes.
    pub(super) is_replica: bool,
    /// The node whose replica it is in CLUSTER NODES.
    pub(super) replica_of: Option<String>,
    /// False if it does not answer.
    pub(super) is_connected: bool,
    /// True if it is this one, and other servers may have taken its shards over.
    is_disowned: bool,
    /// The greatest number of a map that gave it a shard.
    epoch: u64,
    /// The slots that it owns, in order.
    pub(super) slots: Vec<RangeInclusive<u16>>,
    ip: String,
    port: u32,
    tls_port: u32,
    /// True if the client uses TLS.
    is_secured: bool,
    bus_port: u32,
    hostname: String,
    human_name: String,
    endpoint: EndpointType,
}

/// Returns the nodes that own slots, or could.
pub(super) fn all_nodes(cx: &Call<'_>, settings: &Settings) -> Vec<ShownNode> {
    let Some(cluster) = &cx.node.cluster else { return vec![ShownNode::alone(cx, settings)] };
    let map = cluster.map();
    let is_open = |member: &&MapMember| map.open_member(member.node) == Some(*member);
    let open = map.members().iter().filter(is_open);
    let mut nodes: Vec<ShownNode> =
        open.map(|member| ShownNode::member((cx, settings), (cluster, &map), member)).collect();
    let first = shown_primary(&map).map(|member| member.node.to_string());
    nodes.iter_mut().filter(|node| node.is_replica).for_each(|it| it.replica_of = first.clone());
    nodes
}

/// Returns the replicas that answer: each has all slots.
pub(super) fn replicas(nodes: &[ShownNode]) -> Vec<&ShownNode> {
    nodes.iter().filter(|node| node.is_replica && node.is_connected).collect()
}

/// Returns the slots of some shards as ranges, in order.
fn ranges(map: &ClusterMap, shards: impl Iterator<Item = u16>) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    let mut all: Vec<_> = shards.map(|shard| map.slots_of(shard)).collect();
    all.sort_by_key(|slots| slots.start);
    for slots in all {
        match ranges.last_mut() {
            Some(last) if last.end() + 1 == slots.start => *last = *last.start()..=slots.end - 1,
            _ => ranges.push(slots.start..=slots.end - 1),
        }
    }
    ranges
}

/// Returns the address at which a client has reached the server; empty if that says nothing.
fn reached_at(laddr: &PeerAddr) -> String {
    laddr.ip().map_or_else(String::new, |ip| ip.to_canonical().to_string())
}

impl ShownNode {
    /// Returns a server of the map.
    fn member(
        (cx, settings): (&Call<'_>, &Settings),
        (cluster, map): (&Cluster, &ClusterMap),
        member: &MapMember,
    ) -> Self {
        let owned = || map.owned_by(member.life);
        let address = &member.address;
        let is_ip = address.host.parse::<IpAddr>().is_ok();
        let (endpoint, hostname) = match is_ip {
            true => (EndpointType::Ip, String::new()),
            false => (EndpointType::Hostname, address.host.clone()),
        };
        Self {
            id: member.node.to_string(),
            is_myself: member.life == cluster.life(),
            is_replica: member.is_replica(),
            replica_of: None,
            is_connected: cluster.is_connected(member.life),
            is_disowned: member.life == cluster.life() && cx.node.health.refuses_data(settings),
            epoch: owned().map(|shard| shard.since).max().unwrap_or(0),
            slots: ranges(map, owned().map(|shard| shard.id)),
            ip: address.host.clone(),
            port: address.port.into(),
            tls_port: address.tls_port.unwrap_or(0).into(),
            is_secured: cx.session.client.is(ClientState::SECURED),
            bus_port: u32::from(address.port_for(false)) + BUS_OFFSET,
            hostname,
            human_name: String::new(),
            endpoint,
        }
    }

    /// Returns this server as the only node, which owns all slots.
    fn alone(cx: &Call<'_>, settings: &Settings) -> Self {
        let client = &cx.session.client;
        let is_v6 = client.laddr.ip().is_some_and(|ip| !ip.to_canonical().is_ipv4());
        let for_clients = match is_v6 {
            true => &settings.cluster_announce_client_ipv6,
            false => &settings.cluster_announce_client_ipv4,
        };
        let announced = for_clients.clone().or_else(|| settings.cluster_announce_ip.clone());
        let or = |announced: u16, own: u32| if announced == 0 { own } else { u32::from(announced) };
        let port = or(settings.cluster_announce_port, settings.port.into());
        let bus = or(settings.cluster_port, port + BUS_OFFSET);
        Self {
            id: cx.node.cluster_id(),
            is_myself: true,
            is_replica: false,
            replica_of: None,
            is_connected: true,
            is_disowned: cx.node.health.refuses_data(settings),
            epoch: 1,
            slots: std::iter::once(0..=SLOTS - 1).collect(),
            ip: announced.unwrap_or_else(|| reached_at(&client.laddr)),
            port,
            tls_port: or(settings.cluster_announce_tls_port, settings.tls_port.into()),
            is_secured: client.is(ClientState::SECURED),
            bus_port: or(settings.cluster_announce_bus_port, bus),
            hostname: settings.cluster_announce_hostname.clone().unwrap_or_default(),
            human_name: settings.cluster_announce_human_nodename.clone().unwrap_or_default(),
            endpoint: settings.cluster_preferred_endpoint_type,
        }
    }

    /// Returns the port for clients like the one that asks.
    fn client_port(&self) -> u32 {
        if self.is_secured { self.tls_port } else { self.port }
    }

    /// Returns its line of CLUSTER NODES.
    pub(super) fn line(&self) -> String {
        let Self { id, ip, bus_port, hostname, human_name, .. } = self;
        let port = self.client_port();
        let name = if hostname.is_empty() { String::new() } else { format!(",{hostname}") };
        let human = match human_name.is_empty() {
            true => String::new(),
            false if name.is_empty() => format!(",,nodename={human_name}"),
            false => format!(",nodename={human_name}"),
        };
        let myself = if self.is_myself { "myself," } else { "" };
        let role = if self.is_replica { "slave" } else { "master" };
        let primary = self.replica_of.as_deref().unwrap_or("-");
        let link = if self.is_connected { "connected" } else { "disconnected" };
        let slots: String = self
            .slots
            .iter()
            .map(|slots| match slots.start() == slots.end() {
                true => format!(" {}", slots.start()),
                false => format!(" {}-{}", slots.start(), slots.end()),
            })
            .collect();
        let epoch = self.epoch;
        format!(
            "{id} {ip}:{port}@{bus_port}{name}{human} {myself}{role} {primary} 0 0 {epoch} {link}{slots}"
        )
    }

    /// Returns its address in the preferred form; `None` if clients are to use the one they know.
    fn preferred(&self) -> Option<&str> {
        match self.endpoint {
            EndpointType::Ip => Some(&self.ip),
            EndpointType::Hostname if self.hostname.is_empty() => Some("?"),
            EndpointType::Hostname => Some(&self.hostname),
            EndpointType::UnknownEndpoint => None,
        }
    }

    /// Writes it as a node of CLUSTER SLOTS.
    pub(super) fn write_endpoint(&self, out: &mut Reply) {
        out.array(4);
        match self.preferred() {
            Some(address) => out.bulk_str(address),
            None => out.null(),
        }
        out.int(i64::from(self.client_port()));
        out.bulk_str(&self.id);
        let more = [
            ("ip", &self.ip, self.endpoint != EndpointType::Ip),
            (
                "hostname",
                &self.hostname,
                self.endpoint != EndpointType::Hostname && !self.hostname.is_empty(),
            ),
        ];
        out.map(more.iter().filter(|(.., shown)| *shown).count());
        for (name, value, _) in more.iter().filter(|(.., shown)| *shown) {
            out.bulk_str(name);
            out.bulk_str(value);
        }
    }

    /// Writes it as a node of CLUSTER SHARDS.
    pub(super) fn write_details(&self, out: &mut Reply) {
        let has_name = !self.hostname.is_empty();
        let ports = [("port", self.port), ("tls-port", self.tls_port)];
        let ports: Vec<_> = ports.into_iter().filter(|(_, port)| *port != 0).collect();
        out.map(6 + ports.len() + usize::from(has_name));
        out.bulk_str("id");
        out.bulk_str(&self.id);
        for (name, port) in ports {
            out.bulk_str(name);
            out.int(i64::from(port));
        }
        let mut texts = vec![("ip", &*self.ip), ("endpoint", self.preferred().unwrap_or("?"))];
        if has_name {
            texts.push(("hostname", &self.hostname));
        }
        texts.push(("role", if self.is_replica { "replica" } else { "master" }));
        for (name, text) in texts {
            out.bulk_str(name);
            out.bulk_str(text);
        }
        out.bulk_str("replication-offset");
        out.int(0);
        out.bulk_str("health");
        out.bulk_str(if self.is_connected && !self.is_disowned { "online" } else { "fail" });
    }
}
