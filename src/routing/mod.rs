//! Routes commands to the workers that own their keys, and coordinates those that need several.
//!
//! The keys of some commands follow from data (`SORT … BY w_* GET d_*`); a key spec that is
//! `unknown` declares that. Such a command runs in a scope: the store answers only for the keys that
//! the command may ask for, and every other key is missing. On a worker these are the worker's own
//! keys while no lock is held, else the declared ones; at a coordinator, the keys that were lent.
//! The handler gathers its misses and stops with all of them. As soon as one of them is an undeclared
//! key, the command goes to a coordinator without locks, which locks the missed keys with the others
//! in the next attempt. When the keys keep changing, the coordinator holds all workers, as for
//! FLUSHALL, and lends the command whatever it asks for. On its connection such a command is a
//! barrier.

mod call;
mod coordinator;
mod databases;
mod holds;
mod loan;
mod permits;
mod rest;
mod units;
mod wait;

pub use call::{
    AccountFinder, Call, CallOutcome, CallStop, DatabasesHandler, FlagsFinder, Handlers,
    NO_HANDLER, SessionHandler, WaitHandler, Waiting, WrongPassword, flags, handlers, install,
    run_on_session, shows_data,
};
pub(crate) use coordinator::coordinate_boxed;
pub use coordinator::run_across;
pub use databases::Databases;
pub(crate) use loan::run_together;
pub(crate) use rest::at_rest;
pub(crate) use wait::{run, run_or_wait};

use crate::command::Command;
use crate::node::Node;
use flagstone_storage::KeyHash;
use flagstone_wire::resp::Args;

/// Worker or workers of a command on keys.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// All keys belong to one worker.
    One(usize, Option<KeyHash>),
    /// The keys belong to several workers.
    Many,
}

/// Returns the target of a command on keys. `at`: its only key, if it was hashed.
#[inline]
pub fn target(
    node: &Node,
    command: &Command,
    args: Args<'_>,
    at: Option<KeyHash>,
    db: u32,
    here: usize,
) -> Target {
    if command.one_key
        && let Some(key) = args.get(1)
    {
        let at = at.unwrap_or_else(|| node.layout.key_hash(key));
        return Target::One(node.worker_of(at.slot), Some(at));
    }
    if node.shard_workers == 1 {
        return Target::One(0, None);
    }
    let mut workers = command.keys(args, db).into_iter().map(|(_, key)| node.owner(key));
    let default = if here < node.shard_workers { here } else { 0 };
    let first = workers.next().unwrap_or(default);
    if workers.all(|w| w == first) { Target::One(first, None) } else { Target::Many }
}
