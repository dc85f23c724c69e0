//! Work of an engine that waits while nothing can be written to its store, as on a full disk.

use super::{Engine, opening_limit};
use anyhow::{Result, anyhow};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// Interval of the looks at work that takes long.
const LOOK: Duration = Duration::from_secs(1);

/// Time for which writes have failed when a line says that the work waits.
const SAID: Duration = Duration::from_secs(5);

impl Engine {
    /// Returns how long writes to the store may fail at the start.
    pub(crate) fn opening_limit(&self) -> Duration {
        opening_limit(&self.how.upkeep)
    }

    /// Waits for work, unless writes to the store fail for so long.
    ///
    /// # Errors
    /// The error of the work, or of the writes.
    pub(crate) async fn unless_stuck<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut work = pin!(work);
        let mut is_said = false;
        loop {
            if let Ok(done) = timeout(LOOK.min(limit), &mut work).await {
                return done;
            }
            let Some((since, why)) = self.trouble() else { continue };
            if since >= limit {
                let (place, limit) = (&self.how.place, limit.as_secs());
                return Err(anyhow!(
                    "{place} takes no rows: for {limit} s, this has failed: {why}"
                ));
            }
            if since >= SAID && !is_said {
                is_said = true;
                tracing::warn!(place = %self.how.place, reason = why, "the start waits until rows can be written");
            }
        }
    }
}
