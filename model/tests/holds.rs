//! With all rules, no invariant is broken: small scenes are explored whole, large ones are walked
//! through at random. `FLAGSTONE_MODEL_WALKS` says how often, if that is not to be the default.

use flagstone_model::cluster::goals::Goal;
use flagstone_model::cluster::{Cluster, HOLDS};
use flagstone_model::scenes;
use flagstone_model::walk::walk;
use stateright::{Checker, Model};

/// Walks through each large scene, and the steps of each.
const WALKS: u64 = 2_000;
const STEPS: usize = 250;

#[test]
fn small_scenes_break_no_invariant_in_any_order_of_steps() {
    for (name, model) in scenes::SMALL {
        let checker = model().checker().spawn_bfs().join();
        println!("{name}: {} states", checker.unique_state_count());
        if let Some(path) = checker.discovery(HOLDS) {
            panic!("{name} breaks {:?}:\n{path}", path.last_state().ghosts.broken);
        }
        for goal in model().goals {
            assert!(checker.discovery(goal.text()).is_some(), "{name}: never {}", goal.text());
        }
    }
}

#[test]
fn large_scenes_break_no_invariant_in_random_walks() {
    let walks = std::env::var("FLAGSTONE_MODEL_WALKS").ok().and_then(|text| text.parse().ok());
    for (name, model) in scenes::LARGE {
        wander(name, &model(), walks.unwrap_or(WALKS));
    }
}

fn wander(name: &str, model: &Cluster, walks: u64) {
    let mut reached: Vec<Goal> = Vec::new();
    let mut steps = 0;
    for seed in 0..walks {
        let walk = walk(model, seed, STEPS);
        steps += walk.actions.len();
        if let Some(broken) = walk.end.ghosts.broken {
            panic!("{name}, seed {seed}, breaks {broken}:\n{:#?}", walk.actions);
        }
        reached.extend(walk.reached);
    }
    println!("{name}: {walks} walks, {steps} steps");
    for goal in &model.goals {
        let times = reached.iter().filter(|other| *other == goal).count();
        println!("  {}: {times} walks", goal.text());
        assert!(times > 0, "{name}: never {}", goal.text());
    }
}
