//! The journals of a cluster: each life of a process has one of its own, `lives/<life>/` below the
//! data, with the bytes and rules of a journal in a bucket.
//!
//! A life ends when another process *seals* its journal: that is the fence which a takeover puts
//! behind the last object (RFC 7). Any number of processes may seal the same one, at any time, and all
//! read the same records. A seal is never removed, so a life cannot go on behind it.

use super::member::Life;
use crate::directory::OpenOptions;
use crate::journal::{
    BucketJournal, BucketOptions, BucketRecovery, JournalError, JournalSight, Lsn, Recovered,
};
use crate::place::Place;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Returns the place of a life's journal.
pub(crate) fn journal_of(store: &Place, life: Life) -> Place {
    store.join(&format!("lives/{:020}", life.0))
}

/// Returns the options of the journals of a cluster. `lease`: how long a life may answer after its
/// last object, the same for all servers of the cluster.
pub(crate) fn journal_options(options: &OpenOptions, salt: u32, lease: Duration) -> BucketOptions {
    BucketOptions {
        mode: options.mode,
        everysec_bound: options.everysec_bound,
        wait_limit: options.store_timeout,
        max_waiting: options.journal_bytes,
        salt,
        attempt: lease / 3,
        lease,
        contested: true,
        ..BucketOptions::default()
    }
}

/// Begins the journal of a new life.
///
/// # Errors
/// Also if another process has sealed it already.
pub(crate) async fn begin(
    store: &Place,
    life: Life,
    options: BucketOptions,
) -> Result<Arc<BucketJournal>, JournalError> {
    let recovery = BucketJournal::recover(journal_of(store, life), options).await?;
    if recovery.max_epoch() > 0 {
        return Err(JournalError::Failed(format!(
            "the life {life} was begun before, or is sealed"
        )));
    }
    recovery.start(life.0, 1).await
}

/// The journal of a life that has ended.
#[derive(Debug)]
pub struct SealedLife {
    life: Life,
    recovered: Recovered,
    silent_from: Option<Instant>,
    end: Lsn,
}

impl SealedLife {
    /// Seals the journal of a life, which may go on until then, and reads it. `is_begun`: its objects
    /// must be there. If there are none, nothing is put: they may come back.
    pub(crate) async fn seal(
        store: &Place,
        (life, is_begun): (Life, bool),
        sight: Option<JournalSight>,
        options: BucketOptions,
    ) -> Result<Self, JournalError> {
        let place = journal_of(store, life);
        let missing = || JournalError::Failed(format!("the journal {place} is missing"));
        let was_there = sight.is_some_and(|sight| sight.newest() > 0);
        if is_begun && !was_there && BucketJournal::see(&place, &options).await?.newest() == 0 {
            return Err(missing());
        }
        let mut recovery = match BucketJournal::recover(place.clone(), options.clone()).await {
            // Its process has died while it joined; or the journal is given up, and the process has slept and
            // put another object since. Nothing in it counts.
            Err(JournalError::Corrupt { .. }) if !is_begun => {
                BucketJournal::cut_off(&place, &options).await?;
                BucketJournal::recover(place.clone(), options).await?
            }
            recovered => recovered?,
        };
        if is_begun && !recovery.has_objects() {
            return Err(missing());
        }
        if let Some(sight) = sight {
            recovery.was_seen(&sight);
        }
        Ok(Self::new(life, recovery))
    }

    fn new(life: Life, recovery: BucketRecovery) -> Self {
        let (silent_from, end) = (recovery.silent_from(), recovery.end());
        Self { life, recovered: Recovered::Bucket(Box::new(recovery)), silent_from, end }
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Returns its last lsn.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Returns the moment from which on the life certainly answers no client any more; `None`: it
    /// has released its journal.
    pub fn silent_from(&self) -> Option<Instant> {
        self.silent_from
    }

    /// Returns the records.
    pub(crate) fn recovered(&self) -> &Recovered {
        &self.recovered
    }
}
