//! Jobs that run while no command does.

use super::coordinator::{Coordination, to_end};
use super::holds::{hold_all, release};
use crate::command::{Patience, RoundError};
use crate::worker::{ABANDONED, Worker};
use std::future::Future;
use std::rc::Rc;

/// Runs a job while every worker is held entirely: all changes before are in the journal, and no
/// command is in the middle. It runs to its end even if the future is dropped. `patience`: the limit of the wait
/// for the hold.
///
/// # Errors
/// If a worker cannot be held within that, because a script runs for long.
pub(crate) async fn at_rest<T: 'static>(
    worker: &Rc<Worker>,
    patience: Patience,
    job: impl Future<Output = T> + 'static,
) -> Result<T, RoundError> {
    let coordinator = worker.clone();
    let resting = Box::pin(async move {
        let mut held = Coordination::default();
        held.patience = patience;
        hold_all(&coordinator, &mut held).await?;
        let done = job.await;
        release(&coordinator, &mut held, Vec::new()).await;
        Ok(done)
    });
    to_end(worker, resting).await.unwrap_or_else(|| Err(ABANDONED.into()))
}
