//! Follows a journal that another process is writing, object by object.

use super::super::{JournalError, Lsn, Record};
use super::object::{NEWEST_VERSION, ObjectHeader, Position, Unreadable};
use super::records::{Commits, ObjectChain};
use super::requests::read_object;
use super::{BucketOptions, BucketView};
use crate::place::Place;

/// The rest of a journal behind a view of it.
#[derive(Debug)]
pub struct JournalTail {
    place: Place,
    options: BucketOptions,
    /// The next object.
    at: Position,
    chain: ObjectChain,
    commits: Commits,
    /// Commits before this lsn are in the view.
    from: Lsn,
}

/// The next object of a journal.
#[derive(Debug)]
pub enum TailStep {
    /// It was stored: the commits that end in it.
    Records(Vec<Record>),
    /// There is none yet, or it was dropped before it was read.
    Missing,
    /// Another process has ended the journal behind the objects that were read.
    Ended,
}

impl BucketView {
    /// Returns what is written behind it.
    pub fn tail(&self) -> JournalTail {
        let recovery = &self.recovery;
        let (at, chain) = recovery.whole_end();
        JournalTail {
            place: recovery.place.clone(),
            options: recovery.options.clone(),
            at,
            chain,
            commits: Commits::default(),
            from: recovery.end() + 1,
        }
    }

    /// Returns the number of its last object in its last epoch; 0: there is none.
    pub fn last_number(&self) -> u64 {
        self.recovery.behind().number - 1
    }
}

impl JournalTail {
    /// Returns the number up to which all objects were read.
    pub fn read_up_to(&self) -> u64 {
        self.at.number - 1
    }

    /// Returns the lsn of the last whole commit in these.
    pub fn read_lsn(&self) -> Lsn {
        self.chain.last
    }

    /// Reads the next object.
    ///
    /// # Errors
    /// [`JournalError::Away`]: the call may be repeated. [`JournalError::Corrupt`] and
    /// [`JournalError::NewerFormat`].
    pub async fn next(&mut self) -> Result<TailStep, JournalError> {
        let path = || self.at.path(self.place.root()).to_string().into();
        let corrupt = |reason: String| JournalError::corrupt(path(), 0, reason);
        let Some(object) = read_object(&self.place, &self.options, self.at).await? else {
            return Ok(TailStep::Missing);
        };
        let (header, records) = match ObjectHeader::decode(&object) {
            Ok(decoded) => decoded,
            Err(Unreadable::Newer(found)) => {
                return Err(JournalError::NewerFormat {
                    path: path(),
                    found,
                    known: NEWEST_VERSION,
                });
            }
            Err(unreadable) => return Err(corrupt(unreadable.to_string())),
        };
        if header.at != self.at || header.salt != self.options.salt {
            return Err(corrupt("it is not what was put there".to_owned()));
        }
        if header.is_fence() {
            return Ok(TailStep::Ended);
        }
        let (mut found, from) = (Vec::new(), self.from);
        let commits = &mut self.commits;
        let walked =
            self.chain.walk(&header, &records, |part| found.extend(commits.take(part, from)));
        walked.map_err(|what| corrupt(what.to_owned()))?;
        self.at = self.at.next();
        Ok(TailStep::Records(found))
    }
}
