//! `math.random` and `math.randomseed`: the same numbers on every platform.

use std::ffi::c_int;

use crate::generator::Generator;
use crate::raw::{State, entry};
use crate::vm::Vm;

/// One more than the greatest number of the generator, as a divisor.
const RANGE: i64 = i32::MAX as i64;

/// Registers both functions in the table on top of the stack.
pub(crate) fn register(state: State, vm: *const Vm) {
    for (name, function) in [("random", entry!(random)), ("randomseed", entry!(randomseed))] {
        state.push_light(vm.cast_mut().cast());
        state.push_function(function, 1);
        state.set_name(-2, name);
    }
}

fn random(state: State) -> c_int {
    let generator = &state.vm().random;
    let mut now = generator.get();
    let fraction = (now.next() % RANGE) as f64 / RANGE as f64;
    generator.set(now);
    match state.top() {
        0 => state.push_number(fraction),
        1 => {
            let upper = state.check_int(1);
            if upper < 1 {
                state.arg_error(1, format_args!("interval is empty"));
            }
            state.push_number((fraction * f64::from(upper)).floor() + 1.0);
        }
        2 => {
            let lower = state.check_int(1);
            let upper = state.check_int(2);
            if lower > upper {
                state.arg_error(2, format_args!("interval is empty"));
            }
            // C computes the width in `int`, which wraps for the widest intervals.
            let width = upper.wrapping_sub(lower).wrapping_add(1);
            state.push_number((fraction * f64::from(width)).floor() + f64::from(lower));
        }
        _ => state.error(format_args!("wrong number of arguments")),
    }
    1
}

fn randomseed(state: State) -> c_int {
    let seed = state.check_int(1);
    state.vm().random.set(Generator::seeded(seed));
    0
}
