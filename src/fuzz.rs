//! The fuzz target of HyperLogLogs. `fuzz/` runs it under libFuzzer; the test here over the same
//! corpus.

pub use crate::commands::hyperloglog::fuzz::hyperloglog;

#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn sketches_are_read_or_refused() {
        super::replay::replay("hyperloglog", super::hyperloglog);
    }
}
