//! Permits that coordinators wait for before they lock anything: to run a unit on a thread of its
//! own, and to work on very many keys. A task that holds locks never waits for a permit, so those
//! that have one get their locks.

use crate::command::{Outcome, OwnedCommand, Patience, RoundError};
use crate::node::Node;
use crate::unit::UnitStop;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::{AcquireError, SemaphorePermit};

/// Number of arguments of a command that needs no permit for its keys.
const MAX_FREE: usize = 1000;

/// Interval at which a command that waits for a permit checks that its client is still connected,
/// and that no script is busy.
const CLIENT_CHECK: Duration = Duration::from_millis(100);

/// Waits until so many keys may be locked, lent and loaded beside those of other commands; commands
/// with few arguments need not wait. One that has more keys than all commands may have works alone.
///
/// # Errors
/// The client's connection ends before, or a script is busy.
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
    while_patient(node, command, acquiring).await.map(Some)
}

/// Waits for a permit to run detached.
///
/// # Errors
/// The client's connection ends before, or a script is busy.
pub(super) async fn to_run_detached<'a>(
    node: &'a Node,
    command: &OwnedCommand,
) -> Result<SemaphorePermit<'a>, UnitStop> {
    while_patient(node, command, node.code.detached_permits.acquire()).await
}

async fn while_patient<'a>(
    node: &Node,
    command: &OwnedCommand,
    acquiring: impl Future<Output = Result<SemaphorePermit<'a>, AcquireError>>,
) -> Result<SemaphorePermit<'a>, UnitStop> {
    let mut acquired = pin!(acquiring);
    let client = command.request.client;
    let patience = Patience::of(command.command, &command.request);
    loop {
        let permit = tokio::time::timeout(CLIENT_CHECK, &mut acquired).await;
        if client != 0 && node.clients.get(client).is_none() {
            return Err(UnitStop::Closing);
        }
        if let Ok(permit) = permit {
            return permit.map_err(|_| UnitStop::Closing);
        }
        if patience.is_short()
            && let Some(kind) = node.code.scripts.running.busy()
        {
            let text = patience.refusal(kind.busy_text());
            let text = String::from_utf8_lossy(&text).into_owned();
            return Err(RoundError { text, outcome: Outcome::Refused }.into());
        }
    }
}
