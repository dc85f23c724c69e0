//! Fuzz targets of what clients send and files bring. `fuzz/` runs them under libFuzzer; the tests
//! here run them over the same corpora.

pub use crate::commands::hyperloglog::fuzz::hyperloglog;
pub use crate::rdb::fuzz::{rdb_file, restore};
pub use crate::resp::fuzz::resp;

#[cfg(test)]
#[path = "../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn requests_are_parsed_or_refused() {
        replay("resp", super::resp);
    }

    #[test]
    fn payloads_are_restored_or_refused() {
        replay("restore", super::restore);
    }

    #[test]
    fn rdb_files_are_read_or_refused() {
        replay("rdb_file", super::rdb_file);
    }

    #[test]
    fn sketches_are_read_or_refused() {
        replay("hyperloglog", super::hyperloglog);
    }
}
