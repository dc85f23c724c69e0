//! Follows the journal of another life, from which shards are mirrored.
//!
//! From time to time the shards are read anew, because their engines are pinned and the records since then
//! fill the memory. That takes a while, and the follower goes on meanwhile: it keeps what it reads, and
//! brings the new shards up to where it is.

use super::mirroring::MirroredShards;
use crate::commit::split_body;
use crate::journal::{JournalError, JournalTail, Lsn, Record, TailStep};
use crate::shard::Shard;
use std::collections::VecDeque;

/// Bytes of records that are kept while shards are read anew: beyond them, the follower waits.
const KEPT_BYTES: usize = 64 << 20;

/// See the module's description.
#[derive(Debug)]
pub struct LifeFollower {
    tail: JournalTail,
    /// The objects that were read since shards are being read anew, by number; `None`: they are not.
    kept: Option<VecDeque<(u64, Vec<Record>)>>,
    kept_bytes: usize,
}

impl LifeFollower {
    /// Begins to follow a life where its shards were read.
    pub fn new(tail: JournalTail) -> Self {
        Self { tail, kept: None, kept_bytes: 0 }
    }

    /// Returns the number up to which all objects were read.
    pub fn read_up_to(&self) -> u64 {
        self.tail.read_up_to()
    }

    /// Returns the lsn of the last whole commit that was read.
    pub fn read_lsn(&self) -> Lsn {
        self.tail.read_lsn()
    }

    /// Reads the next object. Its records are to be applied before the next call of another method.
    ///
    /// # Errors
    /// See [`JournalTail::next`].
    pub async fn next(&mut self) -> Result<TailStep, JournalError> {
        let step = self.tail.next().await?;
        if let (TailStep::Records(records), Some(kept)) = (&step, &mut self.kept) {
            self.kept_bytes += records.iter().map(|record| record.body.len()).sum::<usize>();
            kept.push_back((self.tail.read_up_to(), records.clone()));
        }
        Ok(step)
    }

    /// Returns true if no more is kept: the shards that are read anew have to come first.
    pub fn is_full(&self) -> bool {
        self.kept_bytes > KEPT_BYTES
    }

    /// Begins to keep what is read: shards are being read anew from now on.
    pub fn begin_renewal(&mut self) {
        (self.kept, self.kept_bytes) = (Some(VecDeque::new()), 0);
    }

    /// Forgets what was kept: the shards could not be read.
    pub fn end_renewal(&mut self) {
        (self.kept, self.kept_bytes) = (None, 0);
    }

    /// Brings shards that were read anew up to where this is.
    ///
    /// # Errors
    /// If they are ahead: they are returned, and more has to be read before.
    pub fn renew(
        &mut self,
        renewed: Box<MirroredShards>,
    ) -> Result<Vec<Shard>, Box<MirroredShards>> {
        if renewed.end > self.read_up_to() {
            return Err(renewed);
        }
        let MirroredShards { mut shards, end, .. } = *renewed;
        let kept = self.kept.take().unwrap_or_default();
        self.kept_bytes = 0;
        let records = kept.iter().filter(|(number, _)| *number > end).flat_map(|(_, all)| all);
        for record in records {
            let Some(parts) = split_body(&record.body) else {
                shards.iter_mut().for_each(|shard| shard.fail(record.lsn));
                break;
            };
            for (id, ops) in parts {
                if let Some(shard) = shards.iter_mut().find(|shard| shard.id == id) {
                    shard.merge(record.lsn, ops);
                }
            }
        }
        Ok(shards)
    }
}
