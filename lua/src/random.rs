//! `math.random` and `math.randomseed`: the same numbers on every platform.

use std::ffi::c_int;

use crate::raw::{State, entry};
use crate::vm::Vm;

/// One more than the greatest number of the generator, as a divisor.
const RANGE: i64 = i32::MAX as i64;
const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const STATE_BITS: u32 = 48;

/// The generator of POSIX's `lrand48`: 48 bits, of which it returns the upper 31.
#[derive(Clone, Copy)]
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x1234_ABCD_330E)
    }
}

impl Random {
    pub(crate) fn seeded(seed: i32) -> Self {
        Self((u64::from(seed as u32) << 16) | 0x330E)
    }

    fn next(&mut self) -> i64 {
        let next = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        self.0 = next & ((1 << STATE_BITS) - 1);
        (self.0 >> 17) as i64
    }
}

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
    state.vm().random.set(Random::seeded(seed));
    0
}
