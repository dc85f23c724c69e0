//! Time: a tick passes for all clocks at once.

use crate::scene::Scene;
use crate::state::State;

/// Lets a tick pass: leases and waits get shorter, puts and known seals older.
pub fn tick(scene: &Scene, state: &mut State) {
    for life in &mut state.lives {
        life.lease = life.lease.saturating_sub(1);
        life.tenures_mut().for_each(|tenure| tenure.wait = tenure.wait.saturating_sub(1));
        let ages = life.put.iter_mut().map(|put| &mut put.age);
        for age in ages.chain(life.seals.iter_mut().flatten()) {
            *age = scene.lease.min(*age + 1);
        }
    }
}
