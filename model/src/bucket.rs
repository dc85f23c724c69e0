//! The bucket: all that lives share. A put of a map or of a journal's object succeeds only where
//! there is none.

use crate::map::{ClusterMap, Epoch, LifeId, Number, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The place of a record in the order of its shard.
pub type Lsn = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    pub maps: BTreeMap<Number, Arc<ClusterMap>>,
    /// The journal of epoch `e` is at `e - 1`.
    pub journals: Vec<Journal>,
    pub engines: Vec<Engine>,
}

/// A write. Each shard is a counter, and a write raises it by one: a value that is lower than one
/// that a client has seen shows a lost write or a stale reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub shard: ShardId,
    pub at: Position,
}

/// A point in the history of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    pub lsn: Lsn,
    pub value: u8,
}

/// The objects of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Journal {
    /// All records that were stored before the seal. They stay here when their objects are deleted,
    /// so that the invariants can speak of them.
    pub records: Vec<Record>,
    /// The greatest lsn in it: of a record, or of an adopt record.
    pub end: Lsn,
    pub seal: Seal,
    /// True once its objects were deleted.
    pub deleted: bool,
    /// Objects that were stored, and those of them that their living owner has deleted. Counted
    /// only where a scene has owners that delete objects.
    pub stored: u8,
    pub dropped: u8,
}

/// The end of a journal. It takes the number behind the last object, so the owner stores no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Seal {
    #[default]
    Open,
    Sealed,
    /// Put by the owner itself, which answers nothing any more.
    Released,
}

/// A shard's SlateDB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Engine {
    /// The writer epoch of its manifest: each opening for writing raises it, and ends the writer
    /// before.
    pub writer: u8,
    /// The map that made its last opener the owner.
    pub since: Number,
    /// The last write that was flushed to it.
    pub applied: Position,
}

impl Bucket {
    pub fn new(shards: usize) -> Self {
        let engines = vec![Engine::default(); shards];
        Self { maps: BTreeMap::new(), journals: Vec::new(), engines }
    }

    /// Returns the greatest number that a listing of the maps shows.
    pub fn greatest(&self) -> Option<Number> {
        self.maps.last_key_value().map(|(number, _)| *number)
    }

    pub fn journal(&self, epoch: Epoch) -> &Journal {
        &self.journals[epoch - 1]
    }

    pub fn journal_mut(&mut self, epoch: Epoch) -> &mut Journal {
        &mut self.journals[epoch - 1]
    }

    /// Makes room for the journals of all epochs below `next`.
    pub fn grow(&mut self, next: Epoch) {
        let epochs = self.journals.len().max(next - 1);
        self.journals.resize(epochs, Journal::default());
    }

    pub fn is_sealed(&self, epoch: Epoch) -> bool {
        self.journal(epoch).seal != Seal::Open
    }

    /// Returns true if a journal has this record.
    pub fn has(&self, shard: ShardId, at: Position) -> bool {
        at.lsn == 0 || self.journals.iter().any(|j| j.records.contains(&Record { shard, at }))
    }
}

impl Journal {
    /// Returns the records of a shard that a replay finds.
    pub fn of(&self, shard: ShardId) -> impl Iterator<Item = Position> {
        let records = if self.deleted { &[] } else { self.records.as_slice() };
        records.iter().filter(move |record| record.shard == shard).map(|record| record.at)
    }
}

/// A copy of a request that is still under way: the client has sent it again, because no answer
/// came, and knows the outcome of the second attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Straggler {
    pub by: LifeId,
    pub number: Number,
    pub map: Arc<ClusterMap>,
}
