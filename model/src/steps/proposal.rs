//! The changes of the map that a life may propose, on the map that it believes.

use crate::life::{Life, Phase};
use crate::map::{ClusterMap, Epoch, LifeId, Number, ShardId};
use crate::rules::Rule;
use crate::scene::Scene;
use crate::state::State;
use crate::steps::take::is_flushed;

/// A change of the map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Proposal {
    /// A life gets an epoch, and the shards that its node had.
    Join,
    /// The shards of a sealed journal's owner, in their order, go to these heirs.
    FailOver {
        victim: Epoch,
        heirs: Vec<Epoch>,
    },
    /// The owner gives a shard away.
    Give {
        shard: ShardId,
        to: Epoch,
    },
    /// The owner leaves a shard to nobody, and a life takes it.
    Park {
        shard: ShardId,
    },
    Unpark {
        shard: ShardId,
    },
    /// The owner takes journals from a list.
    Unlist {
        shard: ShardId,
    },
    /// A change that touches no shard.
    Touch,
}

/// Returns all proposals that a life may make now.
pub fn proposals(scene: &Scene, state: &State, life: LifeId) -> Vec<Proposal> {
    let one = &state.lives[life];
    if one.change.is_some() || state.left.changes == 0 {
        return Vec::new();
    }
    match one.phase {
        Phase::Outside if may_join(scene, state, life) => vec![Proposal::Join],
        Phase::Joined => of_member(scene, state, life),
        _ => Vec::new(),
    }
}

/// Returns true if a life may join: it knows the seals of its node's former journals, and the map
/// has no entry of it yet. Without a map it founds the cluster.
fn may_join(scene: &Scene, state: &State, life: LifeId) -> bool {
    let one = &state.lives[life];
    let Some(believed) = &one.map else {
        return scene.changes.joins && state.bucket.maps.is_empty();
    };
    let mut former = believed.map.members.iter().filter(|m| m.node == scene.nodes[life]);
    let sealed = former.all(|m| m.sealed || knows(scene, one, m.epoch));
    scene.changes.joins && sealed && believed.map.member_of(life).is_none()
}

fn knows(scene: &Scene, one: &Life, epoch: Epoch) -> bool {
    one.knows_seal(epoch) || !scene.rules.has(Rule::SealFirst)
}

fn of_member(scene: &Scene, state: &State, life: LifeId) -> Vec<Proposal> {
    let one = &state.lives[life];
    let (Some(believed), Some(own)) = (&one.map, one.epoch) else { return Vec::new() };
    let map = &believed.map;
    let mut found = Vec::new();
    if scene.changes.failovers {
        for victim in map.members.iter().filter(|m| !m.sealed && m.epoch != own) {
            if knows(scene, one, victim.epoch) {
                found.extend(fail_overs(map, victim.epoch));
            }
        }
    }
    for shard in scene.shards() {
        if scene.changes.parks && map.shards[shard].owner.is_none() {
            found.push(Proposal::Unpark { shard });
        }
        if scene.changes.parks && may_give(scene, state, life, shard) {
            found.push(Proposal::Park { shard });
        }
        if scene.changes.moves && may_give(scene, state, life, shard) {
            let others = map.members.iter().filter(|m| !m.sealed && m.epoch != own);
            found.extend(others.map(|other| Proposal::Give { shard, to: other.epoch }));
        }
        if scene.changes.unlists && may_unlist(scene, state, life, shard) {
            found.push(Proposal::Unlist { shard });
        }
    }
    found.extend(Some(Proposal::Touch).filter(|_| scene.changes.touches));
    found
}

/// Returns each way to spread the shards of a victim over the other members.
fn fail_overs(map: &ClusterMap, victim: Epoch) -> Vec<Proposal> {
    let open = map.members.iter().filter(|m| !m.sealed && m.epoch != victim);
    let open: Vec<Epoch> = open.map(|member| member.epoch).collect();
    let mut ways = vec![Vec::new()];
    for _ in map.shards_of(victim) {
        let longer = |way: &Vec<Epoch>| {
            let way = way.clone();
            open.iter().map(move |heir| [way.clone(), vec![*heir]].concat()).collect::<Vec<_>>()
        };
        ways = ways.iter().flat_map(longer).collect();
    }
    ways.into_iter().map(|heirs| Proposal::FailOver { victim, heirs }).collect()
}

fn may_give(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    let rules = scene.rules;
    let Some(tenure) = state.lives[life].tenure(shard) else { return false };
    let held = tenure.held || !rules.has(Rule::HoldToGive);
    held && (is_flushed(state, life, shard) || !rules.has(Rule::FlushToGive))
}

fn may_unlist(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    let one = &state.lives[life];
    let lists = one.map.as_ref().map_or(0, |believed| believed.map.shards[shard].journals.len());
    let flushed = is_flushed(state, life, shard) || !scene.rules.has(Rule::FlushToUnlist);
    lists > 1 && one.replayed(shard).is_some() && flushed
}

/// Returns true if an owner may stop to take commands for a shard, to give it away: its writes are
/// durable, and no former owner can answer any more.
pub fn may_hold(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    let one = &state.lives[life];
    let waits = scene.rules.has(Rule::WaitToGive);
    state.left.holds > 0
        && !one.is_writing(shard)
        && one.tenure(shard).is_some_and(|t| !t.held && (t.wait == 0 || !waits))
}

/// Returns true if an owner that holds a shard may serve it again: no change is under way.
pub fn may_call_off(state: &State, life: LifeId, shard: ShardId) -> bool {
    let one = &state.lives[life];
    one.change.is_none() && one.tenure(shard).is_some_and(|tenure| tenure.held)
}

/// Returns the map that a proposal makes of the one that the life believes.
pub fn apply(scene: &Scene, state: &State, life: LifeId, proposal: &Proposal) -> ClusterMap {
    let one = &state.lives[life];
    let (number, mut map) = match &one.map {
        None => (1, ClusterMap::empty(life, scene.owners.len())),
        Some(believed) => (believed.number + 1, (*believed.map).clone()),
    };
    map.nonce = life;
    let own = one.epoch;
    match proposal {
        Proposal::Join => join(scene, &mut map, life, number),
        Proposal::FailOver { victim, heirs } => {
            map.mark_sealed(*victim);
            for (shard, heir) in map.shards_of(*victim).into_iter().zip(heirs) {
                inherit(scene, &mut map, (shard, *heir), number);
            }
        }
        Proposal::Give { shard, to } => own_alone(&mut map, *shard, Some(*to), number),
        Proposal::Park { shard } => own_alone(&mut map, *shard, None, number),
        Proposal::Unpark { shard } => own_alone(&mut map, *shard, own, number),
        Proposal::Unlist { shard } => map.shards[*shard].journals = own.into_iter().collect(),
        Proposal::Touch => {}
    }
    map
}

fn join(scene: &Scene, map: &mut ClusterMap, life: LifeId, number: Number) {
    let node = scene.nodes[life];
    let former = map.members.iter().filter(|m| m.node == node && !m.sealed);
    let former: Vec<Epoch> = former.map(|member| member.epoch).collect();
    let epoch = map.add(life, node);
    for victim in former {
        map.mark_sealed(victim);
        for shard in map.shards_of(victim) {
            inherit(scene, map, (shard, epoch), number);
        }
    }
}

/// A shard goes to an heir, which reads the journals of the owners before it.
fn inherit(scene: &Scene, map: &mut ClusterMap, (shard, heir): (ShardId, Epoch), number: Number) {
    let entry = &mut map.shards[shard];
    if !scene.rules.has(Rule::ListKeeps) {
        entry.journals.clear();
    }
    entry.journals.push(heir);
    (entry.owner, entry.since) = (Some(heir), number);
}

/// A shard whose engine has everything goes to an owner.
fn own_alone(map: &mut ClusterMap, shard: ShardId, owner: Option<Epoch>, number: Number) {
    let entry = &mut map.shards[shard];
    entry.journals = owner.into_iter().collect();
    (entry.owner, entry.since) = (owner, number);
}
