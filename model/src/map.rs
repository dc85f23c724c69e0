//! The map: who owns each shard, and which journals have its history. Each change is an object of
//! its own in the bucket, `cluster/map/<n>`, put only if there is none.

/// The number of a process life, from 0. A restart of a node is a new life.
pub type LifeId = usize;
/// The number of a shard, from 0.
pub type ShardId = usize;
/// The number of a journal; the map gives each to one life.
pub type Epoch = usize;
/// The number of a map, from 1.
pub type Number = usize;

/// The content of a map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterMap {
    /// The nonce: the life that wrote it. A life writes a number once.
    pub nonce: LifeId,
    pub next_epoch: Epoch,
    pub members: Vec<Member>,
    pub shards: Vec<ShardEntry>,
}

/// A life that has joined, and its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    pub life: LifeId,
    pub node: usize,
    pub epoch: Epoch,
    /// True once a change was based on the seal of its journal.
    pub sealed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardEntry {
    /// `None`: the shard is parked.
    pub owner: Option<Epoch>,
    /// The journals that have records which the engine may lack, the oldest first.
    pub journals: Vec<Epoch>,
    /// The number of the map that made the owner the owner.
    pub since: Number,
}

impl ClusterMap {
    /// Returns the first map of a cluster, in which all shards are parked.
    pub fn empty(nonce: LifeId, shards: usize) -> Self {
        let parked = ShardEntry { owner: None, journals: Vec::new(), since: 1 };
        Self { nonce, next_epoch: 1, members: Vec::new(), shards: vec![parked; shards] }
    }

    /// Adds a life; returns its epoch.
    pub fn add(&mut self, life: LifeId, node: usize) -> Epoch {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        self.members.push(Member { life, node, epoch, sealed: false });
        epoch
    }

    pub fn member(&self, epoch: Epoch) -> Option<&Member> {
        self.members.iter().find(|member| member.epoch == epoch)
    }

    /// Returns the entry of the life, if it has joined.
    pub fn member_of(&self, life: LifeId) -> Option<&Member> {
        self.members.iter().find(|member| member.life == life)
    }

    /// Returns true if the epoch is that of a life that may own shards.
    pub fn is_open(&self, epoch: Epoch) -> bool {
        self.member(epoch).is_some_and(|member| !member.sealed)
    }

    /// Notes that the journal of `epoch` is sealed.
    pub fn mark_sealed(&mut self, epoch: Epoch) {
        self.members.iter_mut().filter(|m| m.epoch == epoch).for_each(|m| m.sealed = true);
    }

    /// Returns the shards of an owner.
    pub fn shards_of(&self, epoch: Epoch) -> Vec<ShardId> {
        let owned = self.shards.iter().enumerate().filter(|(_, s)| s.owner == Some(epoch));
        owned.map(|(shard, _)| shard).collect()
    }

    /// Returns true if a shard's history is in the journal of `epoch`.
    pub fn lists(&self, epoch: Epoch) -> bool {
        self.shards.iter().any(|shard| shard.journals.contains(&epoch))
    }
}
