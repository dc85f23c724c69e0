//! Blocking commands: those that wait until one of their keys has something for them, such as BLPOP
//! and XREAD BLOCK.
//!
//! A handler of such a command that finds nothing stops with
//! [`Stop::Block`](flagstone_commands::Stop). Its connection then registers a [`Waiter`] with every
//! worker that owns one of its keys (`routing/wait.rs`). A worker checks the waiters of a key
//! whenever the key has changed (`serve.rs`, `worker/waiters.rs`): it runs their commands in FIFO
//! order, directly behind the command that made the change and before any other, so that a push and
//! the pop that it serves are in one journal record. A waiter may be at several workers: its
//! [`Turn`] lets only one serve it. Nothing is taken for a waiter whose turn is not claimed. A worker
//! that had something for it while another had the turn looks again when the turn is released. A
//! waiter that comes to a worker after its end is not queued.
//!
//! A waiter may have very many keys. A worker adds it to their queues, and removes it from them,
//! slice by slice, and yields in between. It checks the keys of each slice that it has added, as they
//! may have changed before the waiter was in their queues. A waiter that has been served may
//! still be in queues, which skip it because its turn is over.
//!
//! A key whose type cannot be seen, because it is locked or not in memory, is busy until a task has
//! locked and loaded it; only then is a turn claimed. A task that ends with locks held (a parked
//! command, a coordinator's hold) serves the waiters before it releases the locks.
//!
//! Waiters of the keys of a transaction that has commands on the server, too, are served when these
//! have run (`postponed.rs`).
//!
//! A command with further keys on other workers (BLMOVE) runs at a coordinator, which holds its
//! turn; until it has ended, no later waiter is served from the key.

mod postponed;
mod serve;
mod table;

pub use postponed::PostponedKeys;
pub(crate) use serve::{ServeAttempt, Serves, Step, end_detached, serve_all, step};
pub(crate) use table::{Content, HeldLocks, WaitTable};

use crate::clients::Turn;
use crate::command::OwnedCommand;
use flagstone_commands::{Awaited, Block};
use flagstone_storage::need::Key;
use std::sync::Arc;

/// Error of a client that waits when the server becomes a replica.
pub const DEMOTED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed \
                           (master -> replica?)";

/// Error text for a client that CLIENT UNBLOCK … ERROR has unblocked.
pub const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

/// A blocked command.
#[derive(Debug)]
pub struct Waiter {
    /// Number that orders all waiters by the time at which they began to wait, from 1 on.
    pub(crate) id: u64,
    /// The command, which runs when a key may have something.
    pub(crate) command: OwnedCommand,
    /// Keys that may have something for it, sorted and without duplicates.
    pub(crate) keys: Vec<Key>,
    /// Further keys of the command.
    pub(crate) others: Vec<Key>,
    pub(crate) on: Awaited,
    pub(crate) turn: Arc<Turn>,
    /// The socket of its connection.
    socket: i32,
}

impl Waiter {
    /// Creates the waiter for `keys` of a block.
    pub(crate) fn new(
        id: u64,
        command: &OwnedCommand,
        keys: Vec<Box<[u8]>>,
        block: &Block,
        socket: i32,
    ) -> Self {
        let db = command.request.db;
        let mut keys: Vec<Key> = keys.into_iter().map(|key| (db, key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut others = command.lock_keys();
        others.retain(|key| keys.binary_search(key).is_err());
        let mut command = command.with_args(&block.replaced);
        command.request.again = true;
        Self { id, command, keys, others, on: block.on, turn: Arc::default(), socket }
    }

    /// Returns true if the client has shut its side down, which its connection may not have noticed
    /// yet.
    pub(crate) fn has_hung_up(&self) -> bool {
        let mut byte = [0u8; 1];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the buffer has one byte. Nothing is taken from the socket; if its connection has
        // ended meanwhile, and the number is of another socket, the waiter is over anyway.
        unsafe { libc::recv(self.socket, byte.as_mut_ptr().cast(), 1, flags) == 0 }
    }
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_client_that_closed_its_side_is_known_before_its_connection_notices() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, _) = listener.accept().unwrap();
        let waiter = testing::waiter_at(1, &["x"], Awaited::List, socket.as_raw_fd());
        assert!(!waiter.has_hung_up());
        client.write_all(b"x").unwrap();
        drop(client);
        socket.peek(&mut [0]).unwrap();
        assert!(!waiter.has_hung_up(), "its last commands are still to be read");
        socket.read_exact(&mut [0]).unwrap();
        assert_eq!(socket.peek(&mut [0]).unwrap(), 0);
        assert!(waiter.has_hung_up());
        assert!(!testing::waiter(2, &["x"], Awaited::List).has_hung_up());
    }
}
