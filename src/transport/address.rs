//! Addresses of clients, and of the server's ends of their connections.

use std::fmt::{Display, Formatter, Result};
use std::net::SocketAddr;
use std::sync::Arc;

/// One end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAddr {
    Tcp(SocketAddr),
    /// The path of the server's Unix socket: its clients have no address of their own.
    Unix(Arc<str>),
}

impl PeerAddr {
    /// Returns true if it is on this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Returns the address as a line of MONITOR has it.
    pub fn in_monitor(&self) -> String {
        match self {
            Self::Tcp(addr) => addr.to_string(),
            Self::Unix(path) => format!("unix:{path}"),
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
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "{path}:0"),
        }
    }
}
