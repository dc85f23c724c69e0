//! The start of the process.

use crate::replica::new_id;
use std::time::Instant;

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
        Self { at: Instant::now(), at_ms, run_id: new_id(), replayed: 0, supervised: "no" }
    }
}
