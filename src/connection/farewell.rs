//! The end of a connection whose server ends: the commands that have run are answered, and no others run.

use super::{Connection, TURN_BYTES};
use crate::clients::Client;
use bytes::BytesMut;
use std::future::poll_fn;
use std::io::{ErrorKind, Result};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// Time without further commands after which a client that has sent some has sent all. A socket that is
/// closed while more come drops the replies that the client has not read.
const SENT_ALL: Duration = Duration::from_millis(100);

/// Runs a connection until it ends, or is killed. `None`: it was killed.
pub(super) async fn unless_killed<T>(client: &Client, run: impl Future<Output = T>) -> Option<T> {
    let mut run = pin!(run);
    tokio::select! {
        biased;
        // The connection looks whether it is to end when it is polled.
        () = client.ended() => {}
        ran = &mut run => return Some(ran),
    }
    tokio::select! {
        biased;
        () = client.killed() => None,
        ran = &mut run => Some(ran),
    }
}

impl Connection {
    /// Writes the last replies. What the client still sends is read and ignored, since it may read nothing
    /// before it has sent everything.
    pub(super) async fn take_leave(&mut self) -> Result<()> {
        let mut ignored = BytesMut::with_capacity(TURN_BYTES);
        let mut has_sent = !self.buf.is_empty();
        let mut has_more = true;
        loop {
            let event = poll_fn(|cx| {
                if !self.unread.is_empty()
                    && let Poll::Ready(ready) = self.stream.poll_writable(cx)
                {
                    return Poll::Ready(ready.map(|()| false));
                }
                if !has_more {
                    return Poll::Pending;
                }
                self.stream.poll_readable(cx).map(|ready| ready.map(|()| true))
            });
            let is_input = if !self.unread.is_empty() {
                event.await?
            } else {
                let patience = if has_sent { SENT_ALL } else { Duration::ZERO };
                match timeout(patience, event).await {
                    Ok(event) => event?,
                    Err(_) => return Ok(()),
                }
            };
            if !is_input {
                self.wire().write_unread()?;
                continue;
            }
            ignored.clear();
            match self.stream.try_read_buf(&mut ignored) {
                Ok(0) => has_more = false,
                Ok(_) => has_sent = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            self.worker.turns.end().await;
        }
    }
}
