//! The commits of a recovered journal, in order.

use super::{BucketRecovery, FoundObject, READS};
use crate::journal::{CommitPiece, JournalError, Lsn};
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use std::collections::VecDeque;

/// Reads the commits of a recovered journal, some objects ahead.
pub(in crate::journal) struct BucketPieces<'a> {
    recovery: &'a BucketRecovery,
    from: Lsn,
    objects: BoxStream<'a, (&'a FoundObject, Result<Bytes, JournalError>)>,
    /// Commits of the object that was read last.
    ready: VecDeque<CommitPiece>,
}

impl BucketPieces<'_> {
    pub(in crate::journal) async fn next(&mut self) -> Result<Option<CommitPiece>, JournalError> {
        while self.ready.is_empty() {
            let Some((found, records)) = self.objects.next().await else { return Ok(None) };
            let (records, mut chain) = (records?, found.entry);
            let ends = self.recovery.ends.get(&found.header.at.epoch).copied();
            let walked = chain.walk(&found.header, &records, |part| {
                let lsn = part.header.lsn;
                // A commit whose beginning was dropped is applied already, and one that its epoch
                // did not finish does not count.
                if !part.rest && lsn >= self.from && ends.is_none_or(|end| lsn <= end) {
                    self.ready.push_back(part.piece(records.slice_ref(part.body)));
                }
            });
            walked.map_err(|what| self.recovery.corrupt(found.header.at, what))?;
        }
        Ok(self.ready.pop_front())
    }
}

impl BucketRecovery {
    /// Returns the commits from the lsn `from` on, in order, and whole.
    pub(in crate::journal) fn pieces(&self, from: Lsn) -> BucketPieces<'_> {
        // A commit may end in a later object than the one it begins in.
        let is_needed = |found: &&FoundObject| found.spans.last().any(|(_, lsn)| lsn >= from);
        let needed: Vec<_> = self.chain.iter().filter(is_needed).collect();
        let reads =
            needed.into_iter().map(move |found| async move { (found, self.records(found).await) });
        let objects = stream::iter(reads).buffered(READS.0).boxed();
        BucketPieces { recovery: self, from, objects, ready: VecDeque::new() }
    }
}
