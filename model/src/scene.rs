//! A scene: how many lives and shards there are, how the cluster begins, and how often each thing
//! may happen. A model without bounds has no end; a small scene is explored whole.

use crate::map::{LifeId, ShardId};
use crate::rules::Rules;

#[derive(Clone, Debug)]
pub struct Scene {
    pub rules: Rules,
    /// The node of each life. Two lives of one node: the second is its restart.
    pub nodes: Vec<usize>,
    /// So many of the lives, the first ones, have joined in the first map. 0: there is no map.
    pub founders: usize,
    /// For each shard the founder that owns and serves it; `None`: it is parked.
    pub owners: Vec<Option<LifeId>>,
    /// The lives that put seals on the journals of others, and delete old maps.
    pub sweepers: Vec<LifeId>,
    /// The ticks of a lease, and of a successor's wait.
    pub lease: u8,
    /// The newest maps that are kept; `None`: all are.
    pub keep: Option<usize>,
    pub changes: Changes,
    pub limits: Limits,
}

/// The changes of the map that lives may make.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    pub joins: bool,
    pub failovers: bool,
    pub moves: bool,
    pub parks: bool,
    /// Journals leave lists.
    pub unlists: bool,
    /// Changes that touch no shard, like loading a library of functions.
    pub touches: bool,
}

/// How often things happen at most, by all lives together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    pub changes: u8,
    pub writes: u8,
    pub flushes: u8,
    pub seals: u8,
    pub holds: u8,
    /// Owners that release their journals.
    pub releases: u8,
    /// Journals whose objects are deleted.
    pub deletions: u8,
    /// Owners that delete objects of the journal that they write to.
    pub drops: u8,
    /// Requests whose copies stay under way.
    pub stragglers: u8,
}

impl Scene {
    /// So many lives on as many nodes, which have joined, and one shard of the first.
    pub fn of(lives: usize) -> Self {
        Self {
            rules: Rules::all(),
            nodes: (0..lives).collect(),
            founders: lives,
            owners: vec![Some(0)],
            sweepers: (0..lives).collect(),
            lease: 1,
            keep: None,
            changes: Changes::default(),
            limits: Limits::default(),
        }
    }

    pub fn shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        0..self.owners.len()
    }

    pub fn lives(&self) -> impl Iterator<Item = LifeId> + use<> {
        0..self.nodes.len()
    }
}
