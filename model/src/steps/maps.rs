//! Maps: reading, changing and deleting them.

use crate::bucket::Straggler;
use crate::invariants::Invariant;
use crate::life::{Change, Fate, Phase};
use crate::map::{ClusterMap, LifeId, Number};
use crate::rules::Rule;
use crate::scene::Scene;
use crate::state::State;
use std::sync::Arc;

/// Returns true if a listing shows a map that is newer than the one that a life knows.
pub fn has_newer(state: &State, life: LifeId) -> bool {
    let one = &state.lives[life];
    let known = one.map.as_ref().map_or(0, |believed| believed.number);
    one.phase != Phase::Ended && state.bucket.greatest() > Some(known)
}

/// Reads the newest map. The listing and the reading are one step: that nothing is deleted between
/// them, [`get`] makes sure.
pub fn read_newest(scene: &Scene, state: &mut State, life: LifeId) {
    if let Some((number, map)) = state.bucket.maps.last_key_value() {
        let (number, map) = (*number, map.clone());
        state.believe(scene, life, (number, &map));
    }
}

/// Lists the maps; the greatest one will be read.
pub fn list(state: &mut State, life: LifeId) {
    state.lives[life].listed = state.bucket.greatest();
}

/// Reads the map that was listed. It may have been deleted since, and another one put in its place.
pub fn get(scene: &Scene, state: &mut State, life: LifeId) {
    let Some(number) = state.lives[life].listed.take() else { return };
    let Some(map) = state.bucket.maps.get(&number).cloned() else { return };
    if is_kept(scene, state, number) || !scene.rules.has(Rule::ListAgain) {
        state.believe(scene, life, (number, &map));
    }
}

/// Returns true if a listing shows a map among the newest, which nobody deletes.
fn is_kept(scene: &Scene, state: &State, number: Number) -> bool {
    let greatest = state.bucket.greatest().unwrap_or(0);
    scene.keep.is_none_or(|keep| greatest < number + keep)
}

/// Begins a change.
pub fn begin(state: &mut State, life: LifeId, map: ClusterMap) {
    let one = &mut state.lives[life];
    let number = one.map.as_ref().map_or(1, |believed| believed.number + 1);
    let base = one.map.as_ref().map(|believed| believed.map.clone());
    one.change = Some(Change { number, map: Arc::new(map), base, fate: Fate::UnderWay });
    state.left.changes -= 1;
}

/// The client sends the request of a change again; the first one stays under way.
pub fn resend(state: &mut State, life: LifeId) {
    state.left.stragglers -= 1;
    straggle(state, life);
}

fn straggle(state: &mut State, life: LifeId) {
    if let Some(change) = &state.lives[life].change {
        let (number, map) = (change.number, change.map.clone());
        state.stragglers.push(Straggler { by: life, number, map });
    }
}

/// The bucket stores a change, or refuses it.
pub fn land(state: &mut State, life: LifeId) {
    let Some(change) = &state.lives[life].change else { return };
    let (number, map) = (change.number, change.map.clone());
    let fate = arrive(state, life, number, map);
    if let Some(change) = &mut state.lives[life].change {
        change.fate = fate;
        if let Some(winner) = state.bucket.maps.get(&number) {
            // The content of a refused change does not matter any more.
            change.map = winner.clone();
        }
    }
}

pub fn land_straggler(state: &mut State, index: usize) {
    let Straggler { by, number, map } = state.stragglers.remove(index);
    arrive(state, by, number, map);
}

fn arrive(state: &mut State, life: LifeId, number: Number, map: Arc<ClusterMap>) -> Fate {
    let before = state.bucket.maps.get(&number);
    if let Some(before) = before {
        // A client that finds its own object knows that an earlier attempt has stored it.
        return if *before == map { Fate::Stored } else { Fate::Refused };
    }
    state.bucket.maps.insert(number, map.clone());
    if number == state.ghosts.sequence.len() + 1 {
        judge(state, life, &map);
        state.bucket.grow(map.next_epoch);
        state.ghosts.sequence.push(map);
    }
    Fate::Stored
}

/// Looks at a change that becomes part of the sequence (invariants 3 and 6).
fn judge(state: &mut State, life: LifeId, new: &ClusterMap) {
    let Some(old) = state.ghosts.sequence.last().cloned() else { return };
    for (shard, (old, new)) in old.shards.iter().zip(&new.shards).enumerate() {
        let applied = state.bucket.engines[shard].applied.lsn;
        if let Some(owner) = old.owner.filter(|_| old.owner != new.owner) {
            let is_given = state.lives[life].epoch == Some(owner);
            if !is_given && !state.bucket.is_sealed(owner) {
                state.breaks(Invariant::OwnerChanges);
            }
        }
        for epoch in old.journals.iter().filter(|epoch| !new.journals.contains(epoch)) {
            let records = &state.bucket.journal(*epoch).records;
            if records.iter().any(|record| record.shard == shard && record.at.lsn > applied) {
                state.breaks(Invariant::FlushedBeforeUnlisted);
            }
        }
    }
}

/// Returns true if a life may decide on its change. While its number is free, it may still be
/// stored: the life puts it again until somebody has that number.
pub fn may_settle(scene: &Scene, state: &State, life: LifeId) -> bool {
    let change = state.lives[life].change.as_ref();
    change.is_some_and(|c| c.fate != Fate::UnderWay || !scene.rules.has(Rule::FateKnown))
        && state.lives[life].phase != Phase::Ended
}

/// A life decides on its change: it reads the newest map, and goes by what that says.
pub fn settle(scene: &Scene, state: &mut State, life: LifeId) {
    let Some(change) = state.lives[life].change.clone() else { return };
    if change.fate == Fate::UnderWay {
        straggle(state, life);
        state.lives[life].change = None;
        return;
    }
    state.lives[life].change = None;
    if scene.rules.has(Rule::BelieveNewest) {
        return read_newest(scene, state, life);
    }
    let base = change.number.checked_sub(1).and_then(|number| state.bucket.maps.get(&number));
    let stands = match base {
        None => change.base.is_none(),
        Some(found) => !scene.rules.has(Rule::CompareBase) || change.base.as_ref() == Some(found),
    };
    if change.fate == Fate::Stored && stands {
        state.believe(scene, life, (change.number, &change.map));
    } else {
        read_newest(scene, state, life);
    }
}

/// Returns the map that a life may delete: the oldest, if so many newer ones are kept.
pub fn deletable(scene: &Scene, state: &State, life: LifeId) -> Option<Number> {
    let known = state.lives[life].map.as_ref().filter(|_| scene.sweepers.contains(&life))?.number;
    let oldest = *state.bucket.maps.first_key_value()?.0;
    (oldest + scene.keep? <= known).then_some(oldest)
}
