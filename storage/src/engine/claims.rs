//! Who may open an engine, and proof that nobody else has.

use super::{Engine, with_causes};
use crate::place::{Place, admin};
use anyhow::{Context, Result, ensure};
use std::sync::{MutexGuard, PoisonError};

/// How a process comes to own an engine that another one may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It owns the engine already: whoever has it open is closed.
    Owner,
    /// It owns the engine if that has had this writer epoch, as it was seen before.
    After(u64),
}

impl Claim {
    /// Returns the claim with which the same process opens the engine once more.
    pub(super) fn again(self) -> Self {
        match self {
            Self::Owner => Self::Owner,
            Self::After(epoch) => Self::After(epoch + 1),
        }
    }
}

impl Engine {
    /// Returns the writer epoch of the engine in a place, which each opening raises; 0: there is no
    /// engine yet.
    pub(crate) async fn writer_epoch(place: &Place) -> Result<u64> {
        let manifest = admin(place.store(), place.root().as_ref()).read_manifest(None).await;
        let manifest = manifest.map_err(with_causes);
        let manifest = manifest.with_context(|| format!("reading the manifest of {place}"))?;
        Ok(manifest.map_or(0, |manifest| manifest.writer_epoch()))
    }

    /// Lets this process open the engine again only if nobody else has since it was opened here.
    pub(crate) fn claim_unless_taken(&self) {
        // Once it knows of a greater one, the engine is closed.
        self.claim_after(self.db().manifest().writer_epoch());
    }

    /// Lets this process open the engine again only if it has this writer epoch then.
    pub(crate) fn claim_after(&self, epoch: u64) {
        *self.next_claim() = Claim::After(epoch);
    }

    pub(super) fn next_claim(&self) -> MutexGuard<'_, Claim> {
        self.next_claim.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flushes everything written so far, and makes sure that nobody else had opened the engine by then. A flush
    /// alone does not: a former owner may put its manifest under a number that has been deleted since, where
    /// nobody reads it.
    ///
    /// # Errors
    /// Also if another process has the engine: it is not known if the rows are stored.
    pub(crate) async fn flush_as_owner(&self) -> Result<()> {
        self.flush().await?;
        let own = self.db().manifest().writer_epoch();
        let found = Self::writer_epoch(self.place()).await?;
        ensure!(found == own, "another process has opened {}", self.how.place);
        Ok(())
    }
}
