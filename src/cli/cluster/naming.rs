//! The names of servers, as people write and read them.

use anyhow::{Result, bail};
use flagstone_storage::cluster::{ClusterMap, Life, MapMember, MemberState, NodeAddress};

/// Digits of a node's id that are shown.
const SHORT: usize = 8;

/// Returns the beginning of a node's id, or all of it.
pub(super) fn id_of(member: &MapMember, wide: bool) -> String {
    let mut id = member.node.to_string();
    if !wide {
        id.truncate(SHORT);
    }
    id
}

/// Returns `host:port`.
pub(super) fn address_of(address: &NodeAddress) -> String {
    match address.host.contains(':') {
        true => format!("[{}]:{}", address.host, address.port),
        false => format!("{}:{}", address.host, address.port),
    }
}

/// Returns a server with its address, for a line of text.
pub(super) fn named(member: &MapMember) -> String {
    format!("{} ({})", id_of(member, false), address_of(&member.address))
}

/// Returns a life with its address; the life alone if the map has forgotten it.
pub(super) fn named_life(map: &ClusterMap, life: Life) -> String {
    map.member(life).map_or_else(|| format!("life {life}"), named)
}

/// Returns the open life of a node: by the beginning of its id, or by its address.
///
/// # Errors
/// If there is none, or several.
pub(super) fn find<'a>(map: &'a ClusterMap, name: &str) -> Result<&'a MapMember> {
    let is_meant = |member: &&MapMember| {
        let address = &member.address;
        let secured = address.tls_port.map(|port| NodeAddress { port, ..address.clone() });
        let is_id = !name.is_empty() && member.node.to_string().starts_with(name);
        is_id || address_of(address) == name || secured.is_some_and(|it| address_of(&it) == name)
    };
    let meant: Vec<&MapMember> = map.members().iter().filter(is_meant).collect();
    let mut open = meant.iter().filter(|member| member.state == MemberState::Open);
    match (open.next(), open.next()) {
        (Some(member), None) => Ok(member),
        (Some(one), Some(other)) => {
            let (one, other) = (id_of(one, true), id_of(other, true));
            bail!("`{name}` names several servers, such as {one} and {other}: write more of the id")
        }
        (None, _) if meant.is_empty() => bail!("the cluster has no server `{name}`"),
        (None, _) => bail!("server `{name}` has ended, and has not started again"),
    }
}
