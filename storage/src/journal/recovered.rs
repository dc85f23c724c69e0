//! A journal that was read and not started yet, wherever it is.

use std::sync::Arc;

use super::bucket::BucketRecovery;
use super::{Journal, JournalError, Lsn, Record, Recovery};

/// A journal that was read and not started yet.
#[derive(Debug)]
pub enum Recovered {
    Local(Box<Recovery>),
    Bucket(Box<BucketRecovery>),
}

impl Recovered {
    /// The last lsn.
    pub fn end(&self) -> Lsn {
        match self {
            Self::Local(recovery) => recovery.end(),
            Self::Bucket(recovery) => recovery.end(),
        }
    }

    /// The greatest epoch met, 0 in a new journal.
    pub fn max_epoch(&self) -> u64 {
        match self {
            Self::Local(recovery) => recovery.max_epoch(),
            Self::Bucket(recovery) => recovery.max_epoch(),
        }
    }

    /// The greatest time in any record, dropped ones included.
    pub fn max_time_ms(&self) -> u64 {
        match self {
            Self::Local(recovery) => recovery.max_time_ms(),
            Self::Bucket(recovery) => recovery.max_time_ms(),
        }
    }

    /// The greatest lsn of `shard` that was dropped because its rows were flushed.
    pub fn floor(&self, shard: u16) -> Lsn {
        match self {
            Self::Local(recovery) => recovery.floor(shard),
            Self::Bucket(recovery) => recovery.floor(shard),
        }
    }

    /// Refuses the directory of `shard`, flushed up to `applied`, if it is an older copy.
    pub fn check_shard(&self, shard: u16, applied: Lsn) -> Result<(), JournalError> {
        match self.floor(shard) {
            floor if applied < floor => Err(JournalError::OlderShard { shard, applied, floor }),
            _ => Ok(()),
        }
    }

    /// Waits until whoever had the journal before cannot answer any more. A local one is locked.
    ///
    /// # Errors
    /// If somebody else has taken the journal over meanwhile.
    pub async fn outlast(&self) -> Result<(), JournalError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Bucket(recovery) => recovery.outlast().await,
        }
    }

    /// Hands every whole commit from the lsn `from` on to `each`, in order, until it fails.
    pub async fn replay<E: From<JournalError>>(
        &self,
        from: Lsn,
        each: impl FnMut(&Record) -> Result<(), E>,
    ) -> Result<(), E> {
        match self {
            Self::Local(recovery) => recovery.replay(from, each),
            Self::Bucket(recovery) => recovery.replay(from, each).await,
        }
    }

    /// Opens an epoch of at least `min_epoch` and starts the journal. The next lsn is at least
    /// `min_next_lsn`.
    pub async fn start(
        self,
        min_epoch: u64,
        min_next_lsn: Lsn,
    ) -> Result<Arc<dyn Journal>, JournalError> {
        Ok(match self {
            Self::Local(recovery) => recovery.start(min_epoch, min_next_lsn)?,
            Self::Bucket(recovery) => recovery.start(min_epoch, min_next_lsn).await?,
        })
    }
}
