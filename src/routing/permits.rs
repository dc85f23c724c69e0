//! Permits that coordinators wait for before they lock anything: to run a unit on a thread of its
//! own, and to work on very many keys. A task that holds locks never waits for a permit, so those
//! that have one get their locks.

use crate::command::OwnedCommand;
use crate::node::Node;
use crate::unit::UnitStop;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::{AcquireError, SemaphorePermit};

/// Number of arguments of a command that needs no permit for its keys.
const MAX_FREE: usize = 1000;

/// Interval at which a command that waits for a permit checks that its client is still connected.
const CLIENT_CHECK: Duration = Duration::from_millis(100);

/// Waits until so many keys may be locked, lent and loaded beside those of other commands; commands
/// with few arguments need not wait. One that has more keys than all commands may have works alone.
///
/// # Errors
/// The client's connection ends before.
pub(super) async fn for_keys<'a>(
    node: &'a Node,
    command: &OwnedCommand,
) -> Result<Option<SemaphorePermit<'a>>, UnitStop> {
    let arguments = command.args().len();
    if arguments <= MAX_FREE {
        return Ok(None);
    }
    let keys = u32::try_from(arguments.min(node.pressure.budget.many_keys)).unwrap_or(u32::MAX);
    let acquiring = node.pressure.key_permits.acquire_many(keys);
    while_connected(node, command.request.client, acquiring).await.map(Some)
}

/// Waits for a permit to run detached.
///
/// # Errors
/// The client's connection ends before.
pub(super) async fn to_run_detached(
    node: &Node,
    client: u64,
) -> Result<SemaphorePermit<'_>, UnitStop> {
    while_connected(node, client, node.code.detached_permits.acquire()).await
}

async fn while_connected<'a>(
    node: &Node,
    client: u64,
    acquiring: impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>,
) -> Result<SemaphorePermit<'a>, UnitStop> {
    let mut acquired = pin!(acquiring);
    loop {
        let permit = tokio::time::timeout(CLIENT_CHECK, &mut acquired).await;
        if client != 0 && node.clients.get(client).is_none() {
            return Err(UnitStop::Closing);
        }
        if let Ok(permit) = permit {
            return permit.map_err(|_| UnitStop::Closing);
        }
    }
}
