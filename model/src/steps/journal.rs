//! Journals: puts by their owners, seals by others, deletions.

use crate::bucket::{Journal, Position, Record, Seal};
use crate::invariants::Invariant;
use crate::life::{Fate, Payload, Phase, Put, Role};
use crate::map::{Epoch, LifeId, ShardId};
use crate::rules::Rule;
use crate::scene::Scene;
use crate::state::State;

/// Returns true if a life may begin a put: it has one under way at a time.
pub fn may_put(state: &State, life: LifeId) -> bool {
    state.lives[life].is_joined() && state.lives[life].put.is_none()
}

/// Returns true if a life may renew its lease: it has shards to answer for.
pub fn may_renew(state: &State, life: LifeId) -> bool {
    may_put(state, life) && state.lives[life].roles.iter().any(|role| *role != Role::None)
}

pub fn begin_put(state: &mut State, life: LifeId, payload: Payload) {
    state.lives[life].put = Some(Put { payload, age: 0, fate: Fate::UnderWay });
}

/// Returns true if a life takes a write for a shard.
pub fn may_write(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    state.left.writes > 0 && may_put(state, life) && state.serving(scene, life, shard).is_some()
}

/// A life raises a shard's counter, and begins to put the record.
pub fn write(state: &mut State, life: LifeId, shard: ShardId) {
    let one = &mut state.lives[life];
    let Some(value) = one.tenure(shard).map(|tenure| tenure.at.value + 1) else { return };
    one.lsn += 1;
    let record = Record { shard, at: Position { lsn: one.lsn, value } };
    state.left.writes -= 1;
    begin_put(state, life, Payload::Write(record));
}

/// The bucket stores a put, or refuses it if the journal is sealed.
pub fn land_put(scene: &Scene, state: &mut State, life: LifeId) {
    let one = &mut state.lives[life];
    let (Some(epoch), Some(put)) = (one.epoch, &mut one.put) else { return };
    let journal = state.bucket.journal_mut(epoch);
    if journal.seal != Seal::Open {
        put.fate = Fate::Refused;
        return;
    }
    put.fate = Fate::Stored;
    let is_counted = scene.limits.drops > 0 && put.payload != Payload::Renewal;
    journal.stored += u8::from(is_counted);
    match put.payload {
        Payload::Renewal => {}
        Payload::Adopt { lsn, .. } => journal.end = lsn,
        Payload::Write(record) => {
            journal.end = record.at.lsn;
            journal.records.push(record);
            let greatest = &mut state.ghosts.lsns[record.shard];
            if record.at.lsn <= *greatest {
                state.ghosts.broken.get_or_insert(Invariant::LsnsGrow);
            }
            *greatest = record.at.lsn.max(*greatest);
        }
    }
}

/// A life learns the outcome of its put: replies leave, or it ends.
pub fn answer_put(scene: &Scene, state: &mut State, life: LifeId) {
    let one = &mut state.lives[life];
    let Some(put) = one.put.take() else { return };
    if put.fate == Fate::Refused {
        return one.end();
    }
    let from_begin = scene.rules.has(Rule::LeaseFromBegin);
    let passed = if from_begin { put.age } else { 0 };
    one.lease = one.lease.max(scene.lease - passed);
    match put.payload {
        Payload::Renewal => {}
        Payload::Write(record) => {
            if let Some(tenure) = one.tenure_mut(record.shard) {
                tenure.at = record.at;
            }
            show(state, record.shard, record.at.value);
        }
        Payload::Adopt { shard, .. } => {
            if let Role::Replayed(tenure) = one.roles[shard] {
                one.roles[shard] = Role::Owner(tenure);
            }
        }
    }
}

/// A client sees a value.
pub fn show(state: &mut State, shard: ShardId, value: u8) {
    let shown = &mut state.ghosts.shown[shard];
    *shown = value.max(*shown);
}

/// Returns true if a reply would show a client more than any reply before.
pub fn may_read(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    let shown = state.ghosts.shown[shard];
    state.answering(scene, life, shard).is_some_and(|tenure| tenure.at.value > shown)
}

pub fn read(state: &mut State, life: LifeId, shard: ShardId) {
    if let Some(value) = state.lives[life].tenure(shard).map(|tenure| tenure.at.value) {
        show(state, shard, value);
    }
}

/// Returns true if a life may put a seal on a journal, or read the one that is there. Any member
/// may suspect any other; a life that starts may seal its own node's former journals.
pub fn may_seal(scene: &Scene, state: &State, life: LifeId, epoch: Epoch) -> bool {
    let one = &state.lives[life];
    let Some(member) = one.map.as_ref().and_then(|believed| believed.map.member(epoch)) else {
        return false;
    };
    let may = match one.phase {
        Phase::Outside => member.node == scene.nodes[life],
        Phase::Joined => one.epoch != Some(epoch),
        Phase::Ended => false,
    };
    let puts = state.left.seals > 0 && scene.sweepers.contains(&life);
    may && !one.knows_seal(epoch) && (state.bucket.is_sealed(epoch) || puts)
}

/// Puts a seal behind the last object, however often that takes, or reads the one that is there.
pub fn seal(state: &mut State, life: LifeId, epoch: Epoch) {
    if !state.bucket.is_sealed(epoch) {
        state.bucket.journal_mut(epoch).seal = Seal::Sealed;
        state.left.seals -= 1;
    }
    state.lives[life].note_seal(epoch);
}

/// Looks for the end of a journal, to put a seal there.
pub fn look_for_end(state: &mut State, life: LifeId, epoch: Epoch) {
    state.lives[life].sealing = Some((epoch, state.bucket.journal(epoch).stored + 1));
}

/// Puts a seal at the number that was missing when it was looked for. The owner may have stored it
/// since, and may have deleted it again, as it had flushed it.
pub fn put_seal(scene: &Scene, state: &mut State, life: LifeId) {
    let Some((epoch, number)) = state.lives[life].sealing.take() else { return };
    let Journal { stored, dropped, .. } = *state.bucket.journal(epoch);
    let is_dropped = number <= dropped;
    let is_sealed = state.bucket.is_sealed(epoch);
    if number == stored + 1 && (is_sealed || state.left.seals > 0) {
        seal(state, life, epoch);
    } else if is_dropped && !scene.rules.has(Rule::SealConfirmed) {
        state.lives[life].note_seal(epoch);
    }
}

/// Returns true if a life may end its journal by itself: nobody waits for a reply of it.
pub fn may_release(scene: &Scene, state: &State, life: LifeId) -> bool {
    let one = &state.lives[life];
    let waits = one.roles.iter().enumerate().any(|(shard, _)| {
        scene.rules.has(Rule::WaitToGive) && one.replayed(shard).is_some_and(|t| t.wait > 0)
    });
    state.left.releases > 0 && may_put(state, life) && one.change.is_none() && !waits
}

pub fn release(scene: &Scene, state: &mut State, life: LifeId) {
    let Some(epoch) = state.lives[life].epoch else { return };
    state.left.releases -= 1;
    let journal = state.bucket.journal_mut(epoch);
    if journal.seal == Seal::Open {
        journal.seal = Seal::Released;
    }
    if scene.rules.has(Rule::ReleaseStops) {
        state.lives[life].end();
    }
}

/// Returns true if a life may delete the objects of a journal.
pub fn may_delete(scene: &Scene, state: &State, life: LifeId, epoch: Epoch) -> bool {
    let one = &state.lives[life];
    let Some(believed) = &one.map else { return false };
    let says_sealed = believed.map.member(epoch).is_some_and(|member| member.sealed);
    let sealed = says_sealed || !scene.rules.has(Rule::DeleteSealed) && one.knows_seal(epoch);
    let unlisted = !believed.map.lists(epoch) || !scene.rules.has(Rule::DeleteUnlisted);
    state.left.deletions > 0
        && one.is_joined()
        && !state.bucket.journal(epoch).deleted
        && sealed
        && unlisted
}

pub fn delete(scene: &Scene, state: &mut State, epoch: Epoch) {
    state.left.deletions -= 1;
    let journal = state.bucket.journal_mut(epoch);
    journal.deleted = true;
    if !scene.rules.has(Rule::SealStays) {
        journal.seal = Seal::Open;
    }
    if state.truth().is_some_and(|map| map.lists(epoch)) {
        state.breaks(Invariant::DeletedUnlisted);
    }
}

/// Returns true if an owner may delete objects of its own journal: all that is in them is flushed.
/// The newest one stays, and says so.
pub fn may_drop(state: &State, life: LifeId) -> bool {
    let one = &state.lives[life];
    let Some(epoch) = one.epoch.filter(|_| one.is_joined() && one.put.is_none()) else {
        return false;
    };
    let flushed = one.roles.iter().enumerate().all(|(shard, _)| {
        one.replayed(shard).is_none_or(|t| state.bucket.engines[shard].applied.lsn >= t.at.lsn)
    });
    let journal = state.bucket.journal(epoch);
    state.left.drops > 0 && flushed && journal.stored > journal.dropped + 1
}

pub fn drop_objects(state: &mut State, life: LifeId) {
    let Some(epoch) = state.lives[life].epoch else { return };
    state.left.drops -= 1;
    let journal = state.bucket.journal_mut(epoch);
    journal.dropped = journal.stored - 1;
}
