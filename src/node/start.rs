//! The start of the process.

use std::time::Instant;

/// Number of digits of a run id.
const RUN_ID_DIGITS: usize = 40;

/// Facts of the process's start.
pub struct StartFacts {
    pub at: Instant,
    /// Time of the start in ms since the Unix epoch.
    pub at_ms: u64,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// Number of records that the start has replayed.
    pub replayed: u64,
    /// Service manager that is told of the server's state, or "no".
    pub supervised: &'static str,
}

impl StartFacts {
    /// Creates the facts of a start at this moment.
    pub(super) fn now(at_ms: u64) -> Self {
        let digit = |_| char::from(b"0123456789abcdef"[rand::random_range(0..16)]);
        let run_id = (0..RUN_ID_DIGITS).map(digit).collect();
        Self { at: Instant::now(), at_ms, run_id, replayed: 0, supervised: "no" }
    }
}
