//! A journal that was read but not started yet, local or in a bucket.

use std::sync::Arc;

use super::bucket::{BucketPieces, BucketRecovery};
use super::recovery::LocalPieces;
use super::{CommitPiece, Journal, JournalError, Lsn, Recovery};

/// A journal that was read but not started yet.
#[derive(Debug)]
pub enum Recovered {
    Local(Box<Recovery>),
    Bucket(Box<BucketRecovery>),
}

/// The commits of a recovered journal, piece by piece.
pub struct Pieces<'a>(PieceSource<'a>);

enum PieceSource<'a> {
    Local(LocalPieces<'a>),
    Bucket(BucketPieces<'a>),
}

impl Pieces<'_> {
    /// Returns the next piece: those of a commit follow each other.
    pub async fn next(&mut self) -> Result<Option<CommitPiece>, JournalError> {
        match &mut self.0 {
            PieceSource::Local(pieces) => pieces.next(),
            PieceSource::Bucket(pieces) => pieces.next().await,
        }
    }
}

impl Recovered {
    /// Returns the last lsn.
    pub fn end(&self) -> Lsn {
        match self {
            Self::Local(recovery) => recovery.end(),
            Self::Bucket(recovery) => recovery.end(),
        }
    }

    /// Returns the epoch in which it ends, 0 in a new journal.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Local(recovery) => recovery.epoch(),
            Self::Bucket(recovery) => recovery.last_epoch(),
        }
    }

    /// Returns the greatest epoch met, 0 in a new journal.
    pub fn max_epoch(&self) -> u64 {
        match self {
            Self::Local(recovery) => recovery.max_epoch(),
            Self::Bucket(recovery) => recovery.max_epoch(),
        }
    }

    /// Returns the greatest time in any record, dropped ones included.
    pub fn max_time_ms(&self) -> u64 {
        match self {
            Self::Local(recovery) => recovery.max_time_ms(),
            Self::Bucket(recovery) => recovery.max_time_ms(),
        }
    }

    /// Returns the greatest lsn of `shard` that was dropped because its rows were flushed.
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

    /// Waits until the former owner of the journal cannot answer any more. A local journal is
    /// locked.
    ///
    /// # Errors
    /// If another process has taken the journal over meanwhile.
    pub async fn wait_out_lease(&self) -> Result<(), JournalError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Bucket(recovery) => recovery.wait_out_lease().await,
        }
    }

    /// Returns the commits from the lsn `from` on, in order, and whole.
    pub fn pieces(&self, from: Lsn) -> Pieces<'_> {
        Pieces(match self {
            Self::Local(recovery) => PieceSource::Local(recovery.pieces(from)),
            Self::Bucket(recovery) => PieceSource::Bucket(recovery.pieces(from)),
        })
    }

    /// Makes everything that was read durable, unless it certainly is.
    pub fn settle(&self) -> Result<(), JournalError> {
        match self {
            Self::Local(recovery) => recovery.settle(),
            // Everything that can be read in a bucket is stored.
            Self::Bucket(_) => Ok(()),
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
