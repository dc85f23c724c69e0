//! Journals that have lost objects: how far they can be read, and how a user accepts the loss.
//!
//! A journal that breaks is read by nobody: behind the break may be acknowledged records. If a user gives
//! these up, the objects behind the break are deleted, the newest first, and a fence is put at the break.
//! So the journal stays broken until nothing is left behind it, and from then on it is one that ends there.

use super::{BucketRecovery, Reading};
use crate::journal::bucket::object::{OBJECT_HEADER, Position};
use crate::journal::bucket::{BucketJournal, BucketOptions};
use crate::journal::{JournalError, Lsn};
use crate::place::Place;
use object_store::path::Path;
use object_store::{Error, ObjectStoreExt};

/// Times that a fence is put behind the last object because another process has put one there.
const FENCES: usize = 16;

/// How far a journal in a bucket can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalCondition {
    /// To its end.
    Whole,
    /// It has no records, nor any other object that an owner keeps: nobody has begun it, or its objects
    /// are gone.
    Missing,
    /// An object that is needed is missing or damaged.
    Broken {
        /// Which one, and what is wrong with it.
        why: String,
        /// The last lsn before it.
        end: Lsn,
        /// The number of objects from there on, fences not counted.
        objects: usize,
    },
}

/// The place where a journal breaks.
struct Break {
    at: Position,
    why: String,
    end: Lsn,
    /// The objects from there on, but not the fences that can be read, in order.
    objects: Vec<Path>,
}

impl BucketJournal {
    /// Finds out how far the journal in `place` can be read, which may be in use. Changes nothing.
    ///
    /// # Errors
    /// [`JournalError::Away`]; [`JournalError::Corrupt`] if it is that of other data;
    /// [`JournalError::NewerFormat`].
    pub async fn condition(
        place: &Place,
        options: &BucketOptions,
    ) -> Result<JournalCondition, JournalError> {
        let mut recovery = BucketRecovery::new(place.clone(), options.clone());
        match recovery.read_unfenced().await {
            Ok(()) if recovery.has_objects() => Ok(JournalCondition::Whole),
            Ok(()) => Ok(JournalCondition::Missing),
            Err(JournalError::Corrupt { .. }) => {
                let mut recovery = BucketRecovery::new(place.clone(), options.clone());
                let mut reading = recovery.read_all().await?;
                let Break { why, end, objects, .. } = recovery.find_break(&mut reading).await?;
                Ok(JournalCondition::Broken { why, end, objects: objects.len() })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the epoch and the number of the newest object in `place` that is no fence; `None`: there is
    /// none. It costs a listing.
    ///
    /// # Errors
    /// [`JournalError::Away`].
    pub async fn newest_record(
        place: &Place,
        options: &BucketOptions,
    ) -> Result<Option<(u64, u64)>, JournalError> {
        let recovery = BucketRecovery::new(place.clone(), options.clone());
        let mut reading = Reading::default();
        recovery.list(&mut reading).await?;
        let mut records = reading.listed.iter().filter(|(_, size)| **size != OBJECT_HEADER as u64);
        Ok(records.next_back().map(|(at, _)| (at.epoch, at.number)))
    }

    /// Ends the journal in `place` where it breaks, and deletes everything behind. Its owner must have
    /// ended. If it is cut off, the journal is broken still, or ends there.
    ///
    /// # Errors
    /// As of [`condition`](Self::condition); [`JournalError::Failed`] if another process writes to it.
    pub async fn cut_off(place: &Place, options: &BucketOptions) -> Result<(), JournalError> {
        let mut recovery = BucketRecovery::new(place.clone(), options.clone());
        let mut reading = recovery.read_all().await?;
        recovery.fence_all(&mut reading).await?;
        let found = recovery.find_break(&mut reading).await?;
        for path in found.objects.iter().rev() {
            let store = recovery.place.store();
            let delete = || async {
                match store.delete(path).await {
                    Err(Error::NotFound { .. }) => Ok(()),
                    deleted => deleted,
                }
            };
            recovery.ask(delete).await?;
        }
        recovery.epoch = recovery.epoch_behind(&reading, found.at);
        // If another process has put an object there meanwhile, that is such a fence.
        recovery.put_fence(&reading, found.at).await.map(drop)
    }
}

impl BucketRecovery {
    /// Reads all objects, as far as they can be read.
    async fn read_all(&self) -> Result<Reading, JournalError> {
        let mut reading = Reading::default();
        self.list(&mut reading).await?;
        self.read_present(&mut reading, Position::GENESIS, Position::LAST).await?;
        Ok(reading)
    }

    /// Puts a fence behind all objects, unless the last one is a fence. It tells which objects are needed, as
    /// those that know it may be deleted.
    async fn fence_all(&mut self, reading: &mut Reading) -> Result<(), JournalError> {
        for _ in 0..FENCES {
            let Some(last) = reading.listed.last_key_value().map(|(at, _)| *at) else {
                return Ok(());
            };
            let found = reading.found.get(&last);
            if found.is_some_and(|found| found.as_ref().is_ok_and(|it| it.header.is_fence())) {
                return Ok(());
            }
            self.epoch = last.epoch + 1;
            match self.put_fence(reading, last.next()).await? {
                None => {}
                Some(object) => self.take(reading, last.next(), &object)?,
            }
            self.list(reading).await?;
            self.read_present(reading, last, last.last_of_epoch()).await?;
        }
        Err(JournalError::Failed(format!("another process writes to {}", self.place)))
    }

    /// Returns the epoch that a fence at a break opens: that of the fence behind it, so that all fences which
    /// are there stay on the way of those who read them.
    fn epoch_behind(&self, reading: &Reading, at: Position) -> u64 {
        let behind = reading.found.range(at..=at.last_of_epoch()).map(|(_, found)| found);
        let mut fences = behind.filter_map(|it| it.as_ref().ok()).filter(|it| it.header.is_fence());
        let next = || reading.listed.range(at..).map(|(it, _)| it.epoch).find(|it| *it > at.epoch);
        fences.next().map(|fence| fence.header.opens).or_else(next).unwrap_or(at.epoch + 1)
    }

    /// Returns the place where a broken journal breaks.
    async fn find_break(&mut self, reading: &mut Reading) -> Result<Break, JournalError> {
        let mut at = reading.floor.first;
        let why = match self.follow_objects(reading, &mut at, Position::LAST).await {
            Err(JournalError::Corrupt { path, reason, .. }) => {
                format!("{}: {reason}", path.display())
            }
            Err(error) => return Err(error),
            // No journal has an object there.
            Ok(_) => return Err(self.corrupt(at, "it has no end")),
        };
        let is_lost = |at: &Position| {
            !reading
                .found
                .get(at)
                .is_some_and(|it| it.as_ref().is_ok_and(|it| it.header.is_fence()))
        };
        let behind = reading.listed.range(at..).map(|(at, _)| *at).filter(is_lost);
        let objects = behind.map(|at| at.path(self.place.root())).collect();
        let end = self.chain.last().map_or(0, |last| last.header.last);
        Ok(Break { at, why, end, objects })
    }
}
