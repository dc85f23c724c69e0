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

impl StoreStats {
    /// Returns the numbers of hits and misses.
    pub fn lookups(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Takes back the lookups of a command that will run again.
    pub fn set_lookups(&mut self, before: (u64, u64)) {
        (self.hits, self.misses) = before;
    }

    /// Adds the counters of a workspace: of a command on keys of several workers.
    pub fn add(&mut self, other: &Self) {
        let Self { hits, misses, expired, expired_fields, evicted, dropped, loaded, changes } =
            other;
        for (counter, more) in [
            (&mut self.hits, hits),
            (&mut self.misses, misses),
            (&mut self.expired, expired),
            (&mut self.expired_fields, expired_fields),
            (&mut self.evicted, evicted),
            (&mut self.dropped, dropped),
            (&mut self.loaded, loaded),
            (&mut self.changes, changes),
        ] {
            *counter += more;
        }
    }
}
