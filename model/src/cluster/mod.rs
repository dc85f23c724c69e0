//! The model as the checker takes it.

pub mod goals;

use crate::action::{self, Action};
use crate::scene::Scene;
use crate::state::State;
use goals::Goal;
use stateright::{Model, Property};

/// The name of the property that all invariants hold.
pub const HOLDS: &str = "the invariants hold";

/// A scene, with the goals that some of its states must reach.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub scene: Scene,
    pub goals: Vec<Goal>,
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.scene)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.ghosts.broken.is_none() {
            action::possible(&self.scene, state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        action::take(&self.scene, &mut next, &action);
        next.judge(&self.scene);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let holds = Property::always(HOLDS, |_, state: &State| state.ghosts.broken.is_none());
        let goals =
            self.goals.iter().map(|goal| Property::sometimes(goal.text(), goal.condition()));
        [holds].into_iter().chain(goals).collect()
    }
}
