//! Routes commands to the workers that own their keys, and coordinates those that need several.

mod call;
mod coordinator;
mod databases;
mod units;
mod wait;

pub use call::{
    Call, CallOutcome, CallStop, DatabasesHandler, FlagsFinder, Handlers, NO_HANDLER,
    SessionHandler, WaitHandler, Waiting, flags, handlers, install, run_on_session, shows_data,
};
pub use coordinator::run_across;
pub(crate) use coordinator::{coordinate, coordinate_boxed};
pub use databases::Databases;
pub(crate) use wait::run_or_wait;

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
