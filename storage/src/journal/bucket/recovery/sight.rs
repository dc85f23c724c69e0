//! A look at the objects of a journal, before another process may have to end it.
//!
//! The owner's lease runs from the moment at which the put of its newest object began ([`crate::lease`]).
//! An object that was seen was put before. So if a fence lands directly behind the objects that were seen,
//! and none of these was missing then, the owner has no lease from a later moment: a successor waits from
//! the look on, not from its fence on (RFC 20).

use super::{BucketRecovery, Reading};
use crate::journal::JournalError;
use crate::journal::bucket::object::{OBJECT_HEADER, Position};
use tokio::time::Instant;

/// The objects of a journal that were there at a moment.
#[derive(Clone, Copy, Debug)]
pub struct JournalSight {
    /// The newest object other than fences, and the oldest one from which on none was missing up to it; `None`: there was
    /// no object.
    whole: Option<(Position, Position)>,
    /// A moment at which they were there.
    at: Instant,
}

impl JournalSight {
    /// Returns the number of the newest object; 0: there was none.
    pub fn newest(&self) -> u64 {
        self.whole.map_or(0, |(newest, _)| newest.number)
    }

    /// Returns the earlier one of two looks that have seen the same objects, else the later one.
    #[must_use]
    pub fn or_earlier(self, before: Self) -> Self {
        if self.whole == before.whole { before } else { self }
    }
}

impl BucketRecovery {
    /// Looks at the objects. The journal may be in use.
    pub(in crate::journal::bucket) async fn see(&self) -> Result<JournalSight, JournalError> {
        let mut reading = Reading::default();
        self.list(&mut reading).await?;
        // Fences are those of processes that end the journal at the same time.
        let records = reading.listed.iter().filter(|(_, size)| **size != OBJECT_HEADER as u64);
        let mut newest_first = records.map(|(at, _)| *at).rev();
        let whole = newest_first.next().map(|newest| {
            let mut oldest = newest;
            for at in newest_first {
                if at.next() != oldest {
                    break;
                }
                oldest = at;
            }
            (newest, oldest)
        });
        // All that is listed was there before the answer came.
        Ok(JournalSight { whole, at: Instant::now() })
    }

    /// Takes into account how the journal looked before it was fenced: the wait for the former owner's lease
    /// may begin at that moment.
    pub(crate) fn was_seen(&mut self, sight: &JournalSight) {
        let Some((newest, oldest)) = sight.whole else { return };
        let read = self.chain.first().zip(self.chain.last());
        let is_whole = read.is_some_and(|(first, _)| first.header.at >= oldest);
        let is_last = read.is_some_and(|(_, last)| last.header.at == newest);
        if is_whole && is_last {
            self.outlived = self.outlived.map(|fenced| fenced.min(sight.at));
        }
    }
}
