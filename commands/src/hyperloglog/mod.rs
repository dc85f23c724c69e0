//! HyperLogLog: strings that hold sketches of sets, for estimating the number of different elements
//! within about 0.8 percent.

mod commands;
mod debug;
mod dense;
mod estimate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod hash;
mod registers;
mod sketch;
mod sparse;

use super::{Group, KeySpec, Run, Spec, Stop, flag, key};
pub use debug::self_test;
use registers::Corrupt;

const NOT_A_SKETCH: &str = "WRONGTYPE Key is not a valid HyperLogLog string value.";

impl From<Corrupt> for Stop {
    fn from(_: Corrupt) -> Self {
        "INVALIDOBJ Corrupted HLL object detected".into()
    }
}

/// Declarations of the commands on sketches.
pub const COMMANDS: &[Spec] = &[
    Spec {
        name: "pfadd",
        group: Group::Hyperloglog,
        since: "2.8.9",
        complexity: "O(1) for each element",
        summary: "Adds elements to a sketch, which is created if it is missing.",
        arity: -2,
        flags: flag!(WRITE | DENYOOM | FAST),
        keys: &[KeySpec::one(1, key!(RW | INSERT))],
        run: Run::Keys(commands::pfadd),
        ..Spec::NEW
    },
    Spec {
        name: "pfcount",
        group: Group::Hyperloglog,
        since: "2.8.9",
        complexity: "O(1) for one key, which keeps the estimate; O(N) for several",
        summary: "Estimates the number of different elements in one sketch or in the union of several.",
        arity: -2,
        flags: flag!(READONLY | MAY_REPLICATE),
        keys: &[KeySpec::to_end(1, 1, key!(RW | ACCESS))],
        run: Run::Keys(commands::pfcount),
        ..Spec::NEW
    },
    Spec {
        name: "pfmerge",
        group: Group::Hyperloglog,
        since: "2.8.9",
        complexity: "O(N) with N the number of keys",
        summary: "Merges sketches into one, which is created if it is missing.",
        arity: -2,
        flags: flag!(WRITE | DENYOOM),
        keys: &[
            KeySpec::one(1, key!(RW | ACCESS | INSERT)),
            KeySpec::to_end(2, 1, key!(RO | ACCESS)),
        ],
        run: Run::Keys(commands::pfmerge),
        ..Spec::NEW
    },
    Spec {
        name: "pfdebug",
        group: Group::Hyperloglog,
        since: "2.8.9",
        complexity: "O(N) with N the length of the sketch",
        summary: "Returns internals of a sketch, for debugging.",
        arity: 3,
        flags: flag!(WRITE | DENYOOM | ADMIN),
        keys: &[KeySpec::one(2, key!(RW | ACCESS))],
        run: Run::Keys(debug::pfdebug),
        ..Spec::NEW
    },
];

#[cfg(test)]
mod tests;
