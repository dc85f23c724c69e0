//! Counters of the hot tier.

/// Counters of one worker's commands, for INFO.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreStats {
    pub hits: u64,
    pub misses: u64,
    pub expired: u64,
    pub expired_fields: u64,
    /// Keys deleted to keep the data set within `maxmemory`.
    pub evicted: u64,
    /// Entries dropped from memory to stay within its budget.
    pub dropped: u64,
    pub loaded: u64,
    /// Keys changed, counted once per command.
    pub changes: u64,
}
