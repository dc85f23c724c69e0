//! Engines that are not needed after all.
//!
//! SlateDB's tasks go on when nobody has its database any more, until another process opens it. So an
//! engine is closed also where something fails behind its opening.

use super::Engine;
use anyhow::Result;
use futures::future::join_all;
use std::time::Duration;

/// Time limit for closing an engine that is not needed.
const CLOSING: Duration = Duration::from_secs(5);

impl Engine {
    /// Closes an engine that is not needed any more. Errors do not matter, but its tasks must end.
    pub(crate) async fn abandon(&self) {
        // It goes on behind the limit: SlateDB ends its tasks last.
        let engine = self.clone();
        let closing = tokio::spawn(async move { engine.close().await });
        let _ = tokio::time::timeout(CLOSING, closing).await;
    }

    /// Returns the outcome of a step with an engine that was just opened, which is closed if it failed.
    pub(crate) async fn or_close<T>(&self, done: Result<T>) -> Result<T> {
        Self::or_close_all(std::slice::from_ref(self), done).await
    }

    /// Like [`or_close`](Self::or_close), for a step with several of them.
    pub(crate) async fn or_close_all<T>(engines: &[Self], done: Result<T>) -> Result<T> {
        if done.is_err() {
            join_all(engines.iter().map(Self::abandon)).await;
        }
        done
    }
}
