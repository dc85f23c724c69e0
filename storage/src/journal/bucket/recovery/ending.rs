//! Ends a journal for good: a fence that opens no epoch.
//!
//! It is put like any other fence, where the owner's next object would be, so either it is stored or
//! another process goes on. Whoever starts later, or was about to start, finds it and refuses. It
//! says that no object before it is needed, so that it is found also when they are gone.

use super::fencing::End;
use super::{BucketRecovery, Reading};
use crate::journal::JournalError;
use crate::journal::bucket::object::{NO_EPOCH, OBJECT_HEADER, Position};
use crate::journal::bucket::{BucketJournal, BucketOptions};
use crate::place::Place;
use futures::stream::{self, StreamExt};
use object_store::Error;
use object_store::path::Path;

/// A short look at a journal in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLook {
    /// The newest epoch of which there are objects; 0: none was begun there.
    pub epoch: u64,
    /// True if it has ended for good.
    pub is_ended: bool,
}

impl BucketJournal {
    /// Looks at a journal in `place`, which may be in use. It costs a listing, and a request for each
    /// fence of its newest epoch.
    ///
    /// # Errors
    /// [`JournalError::Away`]; [`JournalError::Corrupt`] if it is that of other data;
    /// [`JournalError::NewerFormat`].
    pub async fn look(place: &Place, options: &BucketOptions) -> Result<JournalLook, JournalError> {
        let recovery = BucketRecovery::new(place.clone(), options.clone());
        let mut reading = Reading::default();
        recovery.list(&mut reading).await?;
        let epoch = reading.newest_epoch();
        reading.listed.retain(|_, size| *size == OBJECT_HEADER as u64);
        let first = Position { epoch, number: 1 };
        recovery.read_listed(&mut reading, first, first.last_of_epoch()).await?;
        let mut fences = reading.found.values().flatten();
        let is_ended = fences.any(|found| found.header.opens == NO_EPOCH);
        Ok(JournalLook { epoch, is_ended })
    }

    /// Ends the journal in `place` for good, which this process has begun with `epoch` and has closed.
    ///
    /// # Errors
    /// [`JournalError::Failed`] if another process has taken it over meanwhile;
    /// [`JournalError::Ended`] if it has ended. After [`JournalError::Away`] it may have ended, or
    /// may end yet.
    pub async fn end_for_good(
        place: &Place,
        options: &BucketOptions,
        epoch: u64,
    ) -> Result<(), JournalError> {
        let mut recovery = BucketRecovery::new(place.clone(), options.clone());
        let mut reading = Reading::default();
        recovery.list(&mut reading).await?;
        let first = Position { epoch, number: 1 };
        recovery.read_present(&mut reading, first, first.last_of_epoch()).await?;
        // The last object of the epoch, behind which the fence belongs, is deleted only when a later epoch has
        // objects.
        if reading.newest_epoch() != epoch {
            return Err(recovery.lost());
        }
        let next = match recovery.end_of(&mut reading, first).await? {
            End::Missing(next) => next,
            End::Fence(_, NO_EPOCH) => return Err(recovery.ended()),
            End::Fence(..) => return Err(recovery.lost()),
        };
        recovery.epoch = NO_EPOCH;
        reading.floor.first = next;
        match recovery.put_fence(&reading, next).await? {
            None => Ok(()),
            Some(_) => Err(recovery.lost()),
        }
    }
}

impl BucketRecovery {
    /// Deletes all objects but fences.
    pub(in crate::journal::bucket) async fn remove_records(&self) -> Result<(), JournalError> {
        let mut reading = Reading::default();
        self.list(&mut reading).await?;
        let records = reading.listed.iter().filter(|(_, size)| **size != OBJECT_HEADER as u64);
        let doomed: Vec<Path> = records.map(|(at, _)| at.path(self.place.root())).collect();
        let store = self.place.store();
        let delete = || async {
            let paths = stream::iter(doomed.clone().into_iter().map(Ok)).boxed();
            let mut outcomes = store.delete_stream(paths);
            while let Some(outcome) = outcomes.next().await {
                match outcome {
                    Ok(_) | Err(Error::NotFound { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        self.ask(delete).await
    }

    /// Returns true if the last owner has released the journal, or if there was none.
    pub(in crate::journal::bucket) fn is_released(&self) -> bool {
        match self.chain.last() {
            Some(last) => last.header.released,
            // Without objects, an owner may be there all the same, whose successor has owned nothing yet.
            None => self.epoch == 1,
        }
    }

    /// Returns the error for a journal that has ended for good.
    pub(super) fn ended(&self) -> JournalError {
        JournalError::Ended { place: self.place.to_string() }
    }
}
