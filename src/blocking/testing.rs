//! Waiters for tests.

use super::Waiter;
use crate::command::{OwnedCommand, Request, registry};
use flagstone_commands::{Awaited, Block, Nil};
use flagstone_wire::resp::{Args, Proto};
use std::sync::Arc;

/// Creates a waiter for some keys of database 0.
pub(super) fn waiter(id: u64, keys: &[&str], on: Awaited) -> Arc<Waiter> {
    waiter_at(id, keys, on, -1)
}

/// Creates such a waiter with a socket.
pub(super) fn waiter_at(id: u64, keys: &[&str], on: Awaited, socket: i32) -> Arc<Waiter> {
    let command = registry::lookup(b"blpop").expect("a command");
    let request = Request {
        db: 0,
        proto: Proto::Resp2,
        touch: true,
        track: false,
        secured: false,
        spared: false,
        again: false,
        sees_expired: false,
        spent_us: 0,
        account: 0,
        client: id,
    };
    let command = OwnedCommand::new(command, Args::new(b"blpop", &[(0, 5)]), request);
    let keys = keys.iter().map(|key| key.as_bytes().into()).collect();
    let block = Block { keys: Vec::new(), on, until_ms: 0, nil: Nil::Array, replaced: Vec::new() };
    Arc::new(Waiter::new(id, &command, keys, &block, socket))
}
