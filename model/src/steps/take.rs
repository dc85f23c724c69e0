//! Taking a shard, step by step, and flushing it.

use crate::bucket::Position;
use crate::invariants::Invariant;
use crate::life::{Payload, Role, Tenure};
use crate::map::{LifeId, ShardId};
use crate::rules::Rule;
use crate::scene::Scene;
use crate::state::State;
use crate::steps::journal::{begin_put, may_put};
use crate::steps::maps;

/// Returns the part of step (b) and (c) that was made.
fn opening(state: &State, life: LifeId, shard: ShardId) -> Option<(bool, bool)> {
    match state.lives[life].roles[shard] {
        Role::None => Some((false, false)),
        Role::Opening { writer, since } => Some((writer.is_some(), since.is_some())),
        _ => None,
    }
    .filter(|_| state.lives[life].is_mine(shard))
}

/// Step (b): reads the writer epoch of the manifest.
pub fn may_read_manifest(state: &State, life: LifeId, shard: ShardId) -> bool {
    opening(state, life, shard).is_some_and(|(read, _)| !read)
}

pub fn read_manifest(state: &mut State, life: LifeId, shard: ShardId) {
    let role = &mut state.lives[life].roles[shard];
    let since = if let Role::Opening { since, .. } = role { *since } else { None };
    *role = Role::Opening { writer: Some(state.bucket.engines[shard].writer), since };
}

/// Step (c): sees that the newest map still makes it the owner.
pub fn may_look(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    let ordered = scene.rules.has(Rule::ManifestBeforeMap);
    opening(state, life, shard).is_some_and(|(read, looked)| !looked && (read || !ordered))
}

pub fn look(scene: &Scene, state: &mut State, life: LifeId, shard: ShardId) {
    maps::read_newest(scene, state, life);
    let one = &mut state.lives[life];
    let writer = if let Role::Opening { writer, .. } = one.roles[shard] { writer } else { None };
    let since = one.map.as_ref().map(|believed| believed.map.shards[shard].since);
    let mine = one.is_mine(shard);
    one.roles[shard] = if mine { Role::Opening { writer, since } } else { Role::None };
}

/// Step (d): opens the engine if nobody has opened it since step (b).
pub fn may_open(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> bool {
    opening(state, life, shard)
        .is_some_and(|(read, looked)| read && (looked || !scene.rules.has(Rule::MapBeforeOpen)))
}

pub fn open(scene: &Scene, state: &mut State, life: LifeId, shard: ShardId) {
    let one = &mut state.lives[life];
    let Role::Opening { writer, since } = one.roles[shard] else { return };
    let engine = &mut state.bucket.engines[shard];
    if writer != Some(engine.writer) && scene.rules.has(Rule::ExpectedEpoch) {
        one.roles[shard] = Role::None;
        return;
    }
    let believed = one.map.as_ref().map_or(0, |believed| believed.map.shards[shard].since);
    let since = since.unwrap_or(believed);
    engine.writer += 1;
    one.roles[shard] = Role::Open { writer: engine.writer, since };
    if since < engine.since {
        state.ghosts.broken.get_or_insert(Invariant::NoLateOpening);
    }
    engine.since = since.max(engine.since);
}

/// Steps (e) and (f): replays the listed journals, and begins to put the adopt record.
pub fn may_replay(state: &State, life: LifeId, shard: ShardId) -> bool {
    may_put(state, life) && matches!(state.lives[life].roles[shard], Role::Open { .. })
}

pub fn replay(scene: &Scene, state: &mut State, life: LifeId, shard: ShardId) {
    let one = &state.lives[life];
    let (Role::Open { writer, since }, Some(believed)) = (one.roles[shard], &one.map) else {
        return;
    };
    let mut listed = believed.map.shards[shard].journals.clone();
    if !scene.rules.has(Rule::ReplayAll) {
        listed = listed.split_off(listed.len().saturating_sub(2));
    }
    let mut at: Position = state.bucket.engines[shard].applied;
    let mut end = at.lsn;
    for epoch in listed {
        let journal = state.bucket.journal(epoch);
        at = journal.of(shard).filter(|record| record.lsn > at.lsn).last().unwrap_or(at);
        end = end.max(journal.end);
    }
    let wait = state.wait_of(scene, life, shard);
    let tenure = Tenure { writer, since, at, wait, held: false };
    let stored = scene.rules.has(Rule::AdoptStored);
    let one = &mut state.lives[life];
    one.roles[shard] = if stored { Role::Replayed(tenure) } else { Role::Owner(tenure) };
    if scene.rules.has(Rule::LsnJump) {
        one.lsn = one.lsn.max(end) + 1;
    }
    let lsn = one.lsn;
    begin_put(state, life, Payload::Adopt { shard, lsn });
}

/// Returns what a life would flush to an engine, if the engine takes it and lacks it.
pub fn flushable(scene: &Scene, state: &State, life: LifeId, shard: ShardId) -> Option<Position> {
    let one = &state.lives[life];
    let tenure = one.replayed(shard)?;
    let pending = match one.put.as_ref().map(|put| &put.payload) {
        Some(Payload::Write(record)) if record.shard == shard => Some(record.at),
        _ => None,
    };
    let pending = pending.filter(|_| !scene.rules.has(Rule::FlushDurable));
    let engine = &state.bucket.engines[shard];
    let at = pending.unwrap_or(tenure.at);
    let takes = engine.writer == tenure.writer && engine.applied.lsn < at.lsn;
    (takes && state.left.flushes > 0).then_some(at)
}

pub fn flush(state: &mut State, shard: ShardId, at: Position) {
    state.left.flushes -= 1;
    state.bucket.engines[shard].applied = at;
    if !state.bucket.has(shard, at) {
        state.breaks(Invariant::EngineBehindJournal);
    }
}

/// Returns true if the engine has everything of a shard that a life has replayed or written.
pub fn is_flushed(state: &State, life: LifeId, shard: ShardId) -> bool {
    let at = state.lives[life].replayed(shard).map(|tenure| tenure.at.lsn);
    at.is_some_and(|lsn| state.bucket.engines[shard].applied.lsn >= lsn)
}
