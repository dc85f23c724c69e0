//! Explores scenes whole, and prints states, seconds, and counterexamples:
//!
//! ```sh
//! cargo run --release -p flagstone-model --example explore -- [STATES [SCENE…]]
//! ```

use flagstone_model::cluster::HOLDS;
use flagstone_model::scenes;
use stateright::{Checker, Model};
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let most = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let names: Vec<String> = arguments.collect();
    for (name, model) in scenes::SMALL.into_iter().chain(scenes::LARGE) {
        if !names.is_empty() && !names.iter().any(|other| other == name) {
            continue;
        }
        let begin = Instant::now();
        let checker = model().checker().target_state_count(most).spawn_bfs().join();
        println!(
            "{name}: {} states, {} of them different, {} steps at most, {:.1} s{}",
            checker.state_count(),
            checker.unique_state_count(),
            checker.max_depth(),
            begin.elapsed().as_secs_f32(),
            if checker.state_count() < most { "" } else { ", NOT WHOLE" }
        );
        for goal in model().goals {
            let steps = checker.discovery(goal.text()).map(|path| path.into_actions().len());
            println!(
                "  {}: {}",
                goal.text(),
                steps.map_or("never".into(), |n| format!("{n} steps"))
            );
        }
        if let Some(path) = checker.discovery(HOLDS) {
            println!("  {path}\n  BROKEN: {:?}", path.last_state().ghosts.broken);
        }
    }
}
