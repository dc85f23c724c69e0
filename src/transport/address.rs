//! Addresses of clients, and of the server's ends of their connections.

use std::fmt::{Display, Formatter, Result};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// One end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAddr {
    Tcp(SocketAddr),
    /// An address that a proxy on another machine names. It may be one of that machine alone.
    Behind(SocketAddr),
    /// The path of the server's Unix socket: its clients have no address of their own.
    Unix(Arc<str>),
}

impl PeerAddr {
    /// Returns true if it is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Behind(_) => false,
            Self::Unix(_) => true,
        }
    }

    /// Returns the address as a line of MONITOR has it.
    pub fn in_monitor(&self) -> String {
        match self {
            Self::Tcp(addr) | Self::Behind(addr) => addr.to_string(),
            Self::Unix(path) => format!("unix:{path}"),
        }
    }
}

impl PeerAddr {
    /// Returns the address without the port, as a text; empty for a Unix socket.
    pub fn host(&self) -> String {
        self.ip().map_or_else(String::new, |ip| ip.to_string())
    }

    /// Returns the address of a client that this peer, a proxy, names.
    pub fn names(&self, client: SocketAddr) -> Self {
        if self.is_local() { Self::Tcp(client) } else { Self::Behind(client) }
    }

    /// Returns its address in the network; a Unix socket has none.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(addr) | Self::Behind(addr) => Some(addr.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl From<SocketAddr> for PeerAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl Display for PeerAddr {
    /// Writes `ip:port`, or `path:0` as the reference does.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Tcp(addr) | Self::Behind(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "{path}:0"),
        }
    }
}
