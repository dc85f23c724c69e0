//! Fuzz targets of decoders of bytes from disk. `fuzz/` runs them under libFuzzer; the tests here
//! run them over the same corpora.

pub use crate::hyperloglog::fuzz::hyperloglog;

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn sketches_are_read_or_refused() {
        super::replay::replay("hyperloglog", super::hyperloglog);
    }
}
