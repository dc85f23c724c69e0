//! Goals: things that must happen in some states, or the model would hold because nothing happens.

use super::Cluster;
use crate::bucket::Seal;
use crate::life::Fate;
use crate::map::{Epoch, LifeId, ShardId};
use crate::state::State;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    FailoverServed,
    ChainServed,
    RestartServed,
    MoveServed,
    ParkedServed,
    ReleasedServedAtOnce,
    ZombieRefused,
    JournalDeleted,
    Straggled,
}

impl Goal {
    pub fn text(self) -> &'static str {
        match self {
            Self::FailoverServed => "a successor shows a write that it has replayed",
            Self::ChainServed => "the third successor in a row shows a write that none has flushed",
            Self::RestartServed => "a restarted node shows what it wrote before",
            Self::MoveServed => "a shard is served where it was moved to, beside its former owner",
            Self::ParkedServed => "a parked shard is served again",
            Self::ReleasedServedAtOnce => {
                "a successor serves before a former owner's lease is over"
            }
            Self::ZombieRefused => "the put of a life that was sealed is refused",
            Self::JournalDeleted => "the objects of a journal are deleted",
            Self::Straggled => "a request of old brings a deleted number back",
        }
    }

    pub fn condition(self) -> fn(&Cluster, &State) -> bool {
        match self {
            Self::FailoverServed => |model, state| {
                served(model, state).any(|(life, shard)| inherited(state, life, shard) >= 1)
            },
            Self::ChainServed => |model, state| {
                served(model, state).any(|(life, shard)| inherited(state, life, shard) >= 3)
            },
            Self::RestartServed => |model, state| {
                served(model, state).any(|(life, shard)| {
                    let nodes = &model.scene.nodes;
                    inherited(state, life, shard) == 1 && nodes[..life].contains(&nodes[life])
                })
            },
            Self::MoveServed => |model, state| {
                served(model, state).any(|(life, shard)| {
                    let former = former(state, life, shard).flatten();
                    former.is_some_and(|epoch| state.bucket.journal(epoch).seal == Seal::Open)
                })
            },
            Self::ParkedServed => |model, state| {
                served(model, state).any(|(life, shard)| former(state, life, shard) == Some(None))
            },
            Self::ReleasedServedAtOnce => |model, state| {
                served(model, state).any(|(life, shard)| {
                    let former = former(state, life, shard).flatten();
                    let is_released = |epoch| state.bucket.journal(epoch).seal == Seal::Released;
                    let seals = &state.lives[life].seals;
                    former.is_some_and(|e| is_released(e) && seals.get(e - 1) == Some(&Some(0)))
                })
            },
            Self::ZombieRefused => |_, state| {
                let puts = state.lives.iter().filter_map(|life| life.put.as_ref());
                puts.into_iter().any(|put| put.fate == Fate::Refused)
            },
            Self::JournalDeleted => {
                |_, state| state.bucket.journals.iter().any(|journal| journal.deleted)
            }
            Self::Straggled => |_, state| {
                let mut maps = state.bucket.maps.iter();
                maps.any(|(number, map)| {
                    state.ghosts.sequence.get(number - 1).is_some_and(|first| first != map)
                })
            },
        }
    }
}

/// Returns the shards that are answered for with a write in them, and by whom.
fn served<'a>(
    model: &'a Cluster,
    state: &'a State,
) -> impl Iterator<Item = (LifeId, ShardId)> + use<'a> {
    let scene = &model.scene;
    let all = scene.lives().flat_map(|life| scene.shards().map(move |shard| (life, shard)));
    all.filter(|(life, shard)| {
        state.answering(scene, *life, *shard).is_some_and(|tenure| tenure.at.value > 0)
    })
}

/// Returns the number of journals in the shard's list before that of its owner, if the engine has
/// nothing of them.
fn inherited(state: &State, life: LifeId, shard: ShardId) -> usize {
    let flushed = state.bucket.engines[shard].applied.lsn > 0;
    let map = state.lives[life].map.as_ref().filter(|_| !flushed);
    map.map_or(0, |believed| believed.map.shards[shard].journals.len() - 1)
}

/// Returns the owner before the present one, if the present one was not the first.
fn former(state: &State, life: LifeId, shard: ShardId) -> Option<Option<Epoch>> {
    let since = state.lives[life].tenure(shard)?.since;
    let before = state.ghosts.sequence.get(since.checked_sub(2)?)?;
    Some(before.shards[shard].owner)
}
