//! Versions of the protocol.

/// The protocol version a connection speaks (HELLO).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proto {
    #[default]
    Resp2,
    Resp3,
}
