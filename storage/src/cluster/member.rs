//! Members of a cluster: nodes, their lives, and where they listen.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Write};

/// Maximum length of a host in bytes, that of a name in DNS.
const MAX_HOST: usize = 255;

/// The number of a process life, from 1 on. The map gives each number once, so a node that starts
/// again has another one. It is also the epoch of the life's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Life(pub u64);

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of a node, as clients of Redis Cluster see it: 40 lower-case hexadecimal digits. A node
/// keeps it over restarts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(pub [u8; 20]);

impl NodeId {
    /// Parses 40 lower-case hexadecimal digits; `None` if the text is something else.
    pub fn parse(text: &str) -> Option<Self> {
        from_hex(text).map(Self)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for NodeId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("the id of a node has 40 lower-case hexadecimal digits")
    }
}

/// The random bytes by which servers prove to each other that they belong to one cluster. Neither
/// `Debug` nor an error shows them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterSecret([u8; 32]);

impl ClusterSecret {
    /// Makes a new one.
    pub(super) fn random() -> Self {
        Self(rand::random())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret")
    }
}

impl From<ClusterSecret> for String {
    fn from(secret: ClusterSecret) -> Self {
        to_hex(&secret.0)
    }
}

impl TryFrom<String> for ClusterSecret {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        from_hex(&text).map(Self).ok_or("the secret has 64 lower-case hexadecimal digits")
    }
}

/// The address at which a server listens for clients and for other servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAddress {
    /// A name or an IP address, of up to 255 bytes.
    pub host: String,
    pub port: u16,
    /// The port of TLS; `None`: it has none.
    pub tls_port: Option<u16>,
}

impl NodeAddress {
    /// Returns the port for clients with TLS (`secured`) or without; the other one if there is no such port.
    pub fn port_for(&self, secured: bool) -> u16 {
        match self.tls_port {
            Some(tls_port) if secured || self.port == 0 => tls_port,
            _ => self.port,
        }
    }

    /// Returns true if the host can stand in a reply and in a file.
    pub(super) fn is_valid(&self) -> bool {
        let is_shown = |byte: u8| byte.is_ascii_graphic();
        (1..=MAX_HOST).contains(&self.host.len()) && self.host.bytes().all(is_shown)
    }
}

/// Says if a life may own shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It may.
    Open,
    /// Its journal was sealed by another server; it may have records that engines lack.
    Sealed,
    /// It has ended its journal by itself, and owned nothing then.
    Released,
}

/// The part of a life in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerRole {
    /// It may own shards.
    #[default]
    Owner,
    /// It owns nothing, and only reads what others have.
    Replica,
    /// The same, but it becomes an owner once one is lost: it gets the shards of that one.
    Standby,
}

impl ServerRole {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    fn is_owner(&self) -> bool {
        *self == Self::Owner
    }
}

/// A life that has joined, and its journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapMember {
    pub node: NodeId,
    pub life: Life,
    pub state: MemberState,
    /// True once it has begun its journal, which it does before it takes a shard: its objects must be
    /// there until no list names it, or until a user gives them up.
    pub begun: bool,
    /// True once it is to own nothing any more: nobody gives it shards.
    pub leaving: bool,
    /// Maps without replicas are as those of programs that know none.
    #[serde(default, skip_serializing_if = "ServerRole::is_owner")]
    pub role: ServerRole,
    pub address: NodeAddress,
}

impl MapMember {
    /// Returns true if it may be given shards, as long as it is open.
    pub fn takes_shards(&self) -> bool {
        !self.leaving && self.role == ServerRole::Owner
    }

    /// Returns true if it may become an owner when one is lost, as long as it is open.
    pub fn stands_by(&self) -> bool {
        !self.leaving && self.role == ServerRole::Standby
    }

    /// Returns true if it owns nothing, and shows the shards of others.
    pub fn is_replica(&self) -> bool {
        self.role != ServerRole::Owner
    }
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}
