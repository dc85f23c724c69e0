//! A process life: what one server knows, and what it has under way.
//!
//! There is no crash: a life that takes no further step has crashed, and one that goes on after
//! others have sealed its journal was paused, or cut off. The checker tries both.

use crate::bucket::{Lsn, Position, Record};
use crate::map::{ClusterMap, Epoch, Number, ShardId};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    pub phase: Phase,
    /// The epoch that the map gave it.
    pub epoch: Option<Epoch>,
    pub map: Option<Believed>,
    /// The greatest lsn that it has given.
    pub lsn: Lsn,
    /// Ticks for which it may still answer.
    pub lease: u8,
    pub put: Option<Put>,
    pub change: Option<Change>,
    /// For each epoch whose seal it knows: ticks since then, up to those of a lease.
    pub seals: Vec<Option<u8>>,
    pub roles: Vec<Role>,
    /// The greatest map of a listing, which it has not read yet.
    pub listed: Option<Number>,
    /// A seal that it is about to put: the epoch, and the number behind the last object it saw.
    pub sealing: Option<(Epoch, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It has not joined, or does not know yet that it has.
    Outside,
    Joined,
    /// It knows that its journal is sealed. Only requests under way are left.
    Ended,
}

/// The newest map that it takes for part of the sequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Believed {
    pub number: Number,
    pub map: Arc<ClusterMap>,
}

/// The outcome of a request, which the life does not know before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    UnderWay,
    Stored,
    /// There was an object already.
    Refused,
}

/// An object for its own journal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Put {
    pub payload: Payload,
    /// Ticks since its put began, up to those of a lease.
    pub age: u8,
    pub fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Payload {
    /// Nothing: it renews the lease.
    Renewal,
    Write(Record),
    /// The shard is taken; later records have greater lsns.
    Adopt {
        shard: ShardId,
        lsn: Lsn,
    },
}

/// A change of the map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub number: Number,
    pub map: Arc<ClusterMap>,
    /// The map on which it is based.
    pub base: Option<Arc<ClusterMap>>,
    pub fate: Fate,
}

/// How far a life has come with a shard. The letters are those of the steps of taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    None,
    /// (b) It reads the writer epoch of the engine's manifest, (c) and sees that the newest map says
    /// since when it is the owner.
    Opening {
        writer: Option<u8>,
        since: Option<Number>,
    },
    /// (d) It has opened the engine as this writer.
    Open {
        writer: u8,
        since: Number,
    },
    /// (e, f) It has replayed; the adopt record is under way.
    Replayed(Tenure),
    /// (g) It serves when its waits are over.
    Owner(Tenure),
}

/// The state of a shard that was replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tenure {
    pub writer: u8,
    /// The map that made it the owner.
    pub since: Number,
    /// The last durable write.
    pub at: Position,
    /// Ticks until no former owner can answer any more.
    pub wait: u8,
    /// True while it takes no commands, to give the shard away.
    pub held: bool,
}

impl Life {
    pub fn new(shards: usize) -> Self {
        Self {
            phase: Phase::Outside,
            epoch: None,
            map: None,
            lsn: 0,
            lease: 0,
            put: None,
            change: None,
            seals: Vec::new(),
            roles: vec![Role::None; shards],
            listed: None,
            sealing: None,
        }
    }

    /// Ends it: all that is left is a change of the map under way, which nobody can call back.
    pub fn end(&mut self) {
        let change = self.change.take();
        *self =
            Self { epoch: self.epoch, phase: Phase::Ended, change, ..Self::new(self.roles.len()) };
    }

    pub fn is_joined(&self) -> bool {
        self.phase == Phase::Joined
    }

    pub fn knows_seal(&self, epoch: Epoch) -> bool {
        self.seals.get(epoch - 1).is_some_and(Option::is_some)
    }

    /// Notes that it knows a seal, from now on if it did not before.
    pub fn note_seal(&mut self, epoch: Epoch) {
        if self.seals.len() < epoch {
            self.seals.resize(epoch, None);
        }
        self.seals[epoch - 1].get_or_insert(0);
    }

    pub fn tenure(&self, shard: ShardId) -> Option<&Tenure> {
        match &self.roles[shard] {
            Role::Owner(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// Returns the number since which its role stands.
    pub fn since(&self, shard: ShardId) -> Option<Number> {
        match &self.roles[shard] {
            Role::None => None,
            Role::Opening { since, .. } => *since,
            Role::Open { since, .. } => Some(*since),
            Role::Replayed(tenure) | Role::Owner(tenure) => Some(tenure.since),
        }
    }

    /// Returns the state of a shard that it has replayed, whether it serves it or not.
    pub fn replayed(&self, shard: ShardId) -> Option<&Tenure> {
        match &self.roles[shard] {
            Role::Replayed(tenure) | Role::Owner(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// Returns the states of all shards that it has replayed.
    pub fn tenures_mut(&mut self) -> impl Iterator<Item = &mut Tenure> {
        self.roles.iter_mut().filter_map(|role| match role {
            Role::Replayed(tenure) | Role::Owner(tenure) => Some(tenure),
            _ => None,
        })
    }

    pub fn tenure_mut(&mut self, shard: ShardId) -> Option<&mut Tenure> {
        match &mut self.roles[shard] {
            Role::Owner(tenure) => Some(tenure),
            _ => None,
        }
    }

    /// Returns true if the map that it believes makes it the owner.
    pub fn is_mine(&self, shard: ShardId) -> bool {
        let owner = self.map.as_ref().and_then(|believed| believed.map.shards[shard].owner);
        self.is_joined() && owner.is_some() && owner == self.epoch
    }

    /// Returns true if a write of the shard is under way.
    pub fn is_writing(&self, shard: ShardId) -> bool {
        let payload = self.put.as_ref().map(|put| &put.payload);
        matches!(payload, Some(Payload::Write(record)) if record.shard == shard)
    }
}
