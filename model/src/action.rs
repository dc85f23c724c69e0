//! All actions: one step of a life, of the bucket, or of time.

use crate::life::{Fate, Payload, Phase};
use crate::map::{Epoch, LifeId, Number, ShardId};
use crate::rules::Rule;
use crate::scene::Scene;
use crate::state::State;
use crate::steps::proposal::{self, Proposal};
use crate::steps::{journal, maps, take, time};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Tick,
    // The map.
    ReadMap(LifeId),
    ListMaps(LifeId),
    GetMap(LifeId),
    Propose(LifeId, Proposal),
    ResendChange(LifeId),
    ChangeLands(LifeId),
    StragglerLands(usize),
    SettleChange(LifeId),
    DeleteMap(LifeId, Number),
    // The journals.
    Renew(LifeId),
    Write(LifeId, ShardId),
    PutLands(LifeId),
    PutAnswered(LifeId),
    Reply(LifeId, ShardId),
    SealJournal(LifeId, Epoch),
    LookForEnd(LifeId, Epoch),
    PutSeal(LifeId),
    Release(LifeId),
    DeleteJournal(LifeId, Epoch),
    DropObjects(LifeId),
    // A shard.
    ReadManifest(LifeId, ShardId),
    LookAtMap(LifeId, ShardId),
    OpenEngine(LifeId, ShardId),
    Replay(LifeId, ShardId),
    Flush(LifeId, ShardId),
    Hold(LifeId, ShardId),
    CallOff(LifeId, ShardId),
}

/// Adds the actions that are possible in a state.
pub fn possible(scene: &Scene, state: &State, actions: &mut Vec<Action>) {
    actions.push(Action::Tick);
    for life in scene.lives() {
        on_maps(scene, state, life, actions);
        on_journals(scene, state, life, actions);
        for shard in scene.shards() {
            on_shard(scene, state, (life, shard), actions);
        }
    }
    actions.extend((0..state.stragglers.len()).map(Action::StragglerLands));
}

fn on_maps(scene: &Scene, state: &State, life: LifeId, actions: &mut Vec<Action>) {
    let one = &state.lives[life];
    if maps::has_newer(state, life) && scene.keep.is_none() {
        actions.push(Action::ReadMap(life));
    } else if maps::has_newer(state, life) && one.listed.is_none() {
        actions.push(Action::ListMaps(life));
    }
    actions.extend(one.listed.map(|_| Action::GetMap(life)));
    let proposals = proposal::proposals(scene, state, life);
    actions.extend(proposals.into_iter().map(|change| Action::Propose(life, change)));
    if one.change.as_ref().is_some_and(|change| change.fate == Fate::UnderWay) {
        actions.push(Action::ChangeLands(life));
        actions.extend((state.left.stragglers > 0).then_some(Action::ResendChange(life)));
    }
    actions.extend(maps::may_settle(scene, state, life).then_some(Action::SettleChange(life)));
    let oldest = maps::deletable(scene, state, life);
    actions.extend(oldest.map(|number| Action::DeleteMap(life, number)));
}

fn on_journals(scene: &Scene, state: &State, life: LifeId, actions: &mut Vec<Action>) {
    let one = &state.lives[life];
    actions.extend(journal::may_renew(state, life).then_some(Action::Renew(life)));
    actions.extend(one.put.as_ref().map(|put| match put.fate {
        Fate::UnderWay => Action::PutLands(life),
        _ => Action::PutAnswered(life),
    }));
    actions.extend(one.sealing.map(|_| Action::PutSeal(life)));
    actions.extend(journal::may_release(scene, state, life).then_some(Action::Release(life)));
    actions.extend(journal::may_drop(state, life).then_some(Action::DropObjects(life)));
    for epoch in 1..=state.bucket.journals.len() {
        if journal::may_seal(scene, state, life, epoch) {
            let step = if scene.limits.drops > 0 && one.sealing.is_none() {
                Action::LookForEnd(life, epoch)
            } else {
                Action::SealJournal(life, epoch)
            };
            actions.push(step);
        }
        if journal::may_delete(scene, state, life, epoch) {
            actions.push(Action::DeleteJournal(life, epoch));
        }
    }
}

fn on_shard(
    scene: &Scene,
    state: &State,
    (life, shard): (LifeId, ShardId),
    actions: &mut Vec<Action>,
) {
    let steps = [
        (journal::may_write(scene, state, life, shard), Action::Write(life, shard)),
        (journal::may_read(scene, state, life, shard), Action::Reply(life, shard)),
        (take::may_read_manifest(state, life, shard), Action::ReadManifest(life, shard)),
        (take::may_look(scene, state, life, shard), Action::LookAtMap(life, shard)),
        (take::may_open(scene, state, life, shard), Action::OpenEngine(life, shard)),
        (take::may_replay(state, life, shard), Action::Replay(life, shard)),
        (take::flushable(scene, state, life, shard).is_some(), Action::Flush(life, shard)),
        (proposal::may_hold(scene, state, life, shard), Action::Hold(life, shard)),
        (proposal::may_call_off(state, life, shard), Action::CallOff(life, shard)),
    ];
    actions.extend(steps.into_iter().filter(|(may, _)| *may).map(|(_, action)| action));
}

/// Takes an action.
pub fn take(scene: &Scene, state: &mut State, action: &Action) {
    match *action {
        Action::Tick => time::tick(scene, state),
        Action::ReadMap(life) => maps::read_newest(scene, state, life),
        Action::ListMaps(life) => maps::list(state, life),
        Action::GetMap(life) => maps::get(scene, state, life),
        Action::Propose(life, ref change) => propose(scene, state, life, change),
        Action::ResendChange(life) => maps::resend(state, life),
        Action::ChangeLands(life) => maps::land(state, life),
        Action::StragglerLands(index) => maps::land_straggler(state, index),
        Action::SettleChange(life) => maps::settle(scene, state, life),
        Action::DeleteMap(_, number) => drop(state.bucket.maps.remove(&number)),
        Action::Renew(life) => journal::begin_put(state, life, Payload::Renewal),
        Action::Write(life, shard) => journal::write(state, life, shard),
        Action::PutLands(life) => journal::land_put(scene, state, life),
        Action::PutAnswered(life) => journal::answer_put(scene, state, life),
        Action::Reply(life, shard) => journal::read(state, life, shard),
        Action::SealJournal(life, epoch) => journal::seal(state, life, epoch),
        Action::LookForEnd(life, epoch) => journal::look_for_end(state, life, epoch),
        Action::PutSeal(life) => journal::put_seal(scene, state, life),
        Action::Release(life) => journal::release(scene, state, life),
        Action::DeleteJournal(_, epoch) => journal::delete(scene, state, epoch),
        Action::DropObjects(life) => journal::drop_objects(state, life),
        Action::ReadManifest(life, shard) => take::read_manifest(state, life, shard),
        Action::LookAtMap(life, shard) => take::look(scene, state, life, shard),
        Action::OpenEngine(life, shard) => take::open(scene, state, life, shard),
        Action::Replay(life, shard) => take::replay(scene, state, life, shard),
        Action::Flush(life, shard) => {
            if let Some(at) = take::flushable(scene, state, life, shard) {
                take::flush(state, shard, at);
            }
        }
        Action::Hold(life, shard) => {
            state.left.holds -= 1;
            hold(state, life, shard, true);
        }
        Action::CallOff(life, shard) => hold(state, life, shard, false),
    }
}

fn hold(state: &mut State, life: LifeId, shard: ShardId, held: bool) {
    if let Some(tenure) = state.lives[life].tenure_mut(shard) {
        tenure.held = held;
    }
}

/// Begins a change of the map. Without [`Rule::EpochFromMap`] a life takes the epoch that it asks for.
fn propose(scene: &Scene, state: &mut State, life: LifeId, change: &Proposal) {
    let map = proposal::apply(scene, state, life, change);
    if *change == Proposal::Join && !scene.rules.has(Rule::EpochFromMap) {
        let epoch = map.next_epoch - 1;
        state.bucket.grow(map.next_epoch);
        state.lives[life].epoch = Some(epoch);
        state.lives[life].phase = Phase::Joined;
    }
    maps::begin(state, life, map);
}
