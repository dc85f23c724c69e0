//! Fuzz targets for bytes that come from the disk. `fuzz/` runs them under libFuzzer; the tests
//! here run them over the same corpora.

pub use crate::check::fuzz::rows;
pub use crate::journal::fuzz::journal;

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn rows_are_decoded_or_refused() {
        replay("rows", super::rows);
    }

    #[test]
    fn segments_are_followed_or_refused() {
        replay("journal", super::journal);
    }
}
