//! The one node of the cluster, as the commands describe it.

use crate::clients::ClientState;
use crate::config::{EndpointType, Settings};
use crate::routing::Call;
use crate::transport::PeerAddr;
use flagstone_storage::slot::SLOTS;
use flagstone_wire::resp::Reply;

/// Difference between the port for clients and that of the cluster bus, on which no server listens.
const BUS_OFFSET: u32 = 10_000;

/// Returns an id with its digits in reverse order: the shard has another id than its node.
pub(super) fn reversed(id: &str) -> String {
    id.chars().rev().collect()
}

/// See the module's description.
pub(super) struct Myself {
    id: String,
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

/// Returns the address at which a client has reached the server; empty if that says nothing.
fn reached_at(laddr: &PeerAddr) -> String {
    laddr.ip().map_or_else(String::new, |ip| ip.to_canonical().to_string())
}

impl Myself {
    pub(super) fn new(cx: &Call<'_>, settings: &Settings) -> Self {
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
        let last = SLOTS - 1;
        format!("{id} {ip}:{port}@{bus_port}{name}{human} myself,master - 0 0 1 connected 0-{last}")
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
        texts.push(("role", "master"));
        for (name, text) in texts {
            out.bulk_str(name);
            out.bulk_str(text);
        }
        out.bulk_str("replication-offset");
        out.int(0);
        out.bulk_str("health");
        out.bulk_str("online");
    }
}
