//! Clients that speak TLS at a port without it.

use super::Connection;
use crate::transport::is_tls;
use std::sync::atomic::Ordering;

impl Connection {
    /// Returns the number of bytes that were read; 0, as at the end of the stream, if they are a
    /// client's first ones and begin a TLS handshake.
    pub(super) fn understood(&self, bytes: &[u8]) -> usize {
        let client = &self.session.client;
        if is_tls(bytes) && client.bytes_in.load(Ordering::Relaxed) == 0 {
            self.worker.node.clients.refusals.tls_at_plain(&client.addr);
            return 0;
        }
        bytes.len()
    }
}
