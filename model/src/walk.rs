//! Random walks through scenes that are too large to be explored whole. A seed gives one walk.

use crate::action::Action;
use crate::cluster::Cluster;
use crate::cluster::goals::Goal;
use crate::state::State;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use stateright::Model;

/// A walk: the actions, and the state at its end.
pub struct Walk {
    pub actions: Vec<Action>,
    pub end: State,
    /// The goals that a state on the way has reached.
    pub reached: Vec<Goal>,
}

/// Walks until an invariant is broken, or for so many steps.
pub fn walk(model: &Cluster, seed: u64, steps: usize) -> Walk {
    let mut random = StdRng::seed_from_u64(seed);
    let mut end = State::first(&model.scene);
    let (mut actions, mut reached, mut possible) = (Vec::new(), Vec::new(), Vec::new());
    while actions.len() < steps {
        possible.clear();
        model.actions(&end, &mut possible);
        let sum: u32 = possible.iter().map(weight).sum();
        if sum == 0 {
            break;
        }
        let mut at = random.random_range(0..sum);
        let chosen = possible.iter().find(|action| {
            let weight = weight(action);
            let found = at < weight;
            at = at.saturating_sub(weight);
            found
        });
        let Some(action) = chosen.cloned() else { break };
        let Some(next) = model.next_state(&end, action.clone()) else { break };
        end = next;
        actions.push(action);
        for goal in &model.goals {
            if !reached.contains(goal) && goal.condition()(model, &end) {
                reached.push(*goal);
            }
        }
    }
    Walk { actions, end, reached }
}

/// Returns how likely an action is chosen, next to others: what may go on for ever, and what ends
/// things, is rare.
fn weight(action: &Action) -> u32 {
    match action {
        Action::Tick | Action::Renew(_) | Action::Hold(..) => 2,
        Action::SealJournal(..) | Action::LookForEnd(..) | Action::Release(_) => 1,
        _ => 6,
    }
}

/// Walks by one seed after the other until an invariant is broken; returns a short way there.
pub fn counterexample(model: &Cluster, seeds: u64, steps: usize) -> Option<Walk> {
    let walks = (0..seeds).map(|seed| walk(model, seed, steps));
    let broken = walks.into_iter().find(|walk| walk.end.ghosts.broken.is_some())?;
    Some(shorten(model, broken))
}

/// Leaves out steps, as long as the same invariant is broken without them.
fn shorten(model: &Cluster, mut walk: Walk) -> Walk {
    let mut at = walk.actions.len();
    while at > 0 {
        at -= 1;
        let mut fewer = walk.actions.clone();
        fewer.remove(at);
        if let Some((actions, end)) = follow(model, &fewer)
            && end.ghosts.broken == walk.end.ghosts.broken
        {
            walk = Walk { actions, end, reached: Vec::new() };
            at = walk.actions.len();
        }
    }
    walk
}

/// Takes these actions until an invariant is broken; `None` if one of them is not possible.
pub fn follow(model: &Cluster, actions: &[Action]) -> Option<(Vec<Action>, State)> {
    let mut state = State::first(&model.scene);
    let mut possible = Vec::new();
    for (taken, action) in actions.iter().enumerate() {
        if state.ghosts.broken.is_some() {
            return Some((actions[..taken].to_vec(), state));
        }
        possible.clear();
        model.actions(&state, &mut possible);
        if !possible.contains(action) {
            return None;
        }
        state = model.next_state(&state, action.clone())?;
    }
    Some((actions.to_vec(), state))
}
