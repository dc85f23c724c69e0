//! The fuzz target of requests. `fuzz/` runs it under libFuzzer; the test here runs it over the
//! same corpus.

pub use crate::resp::fuzz::resp;

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    #[test]
    fn requests_are_parsed_or_refused() {
        super::replay::replay("resp", super::resp);
    }
}
