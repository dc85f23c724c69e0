//! Versions, which name the element rows of big values.

use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out versions: the journal epoch in the high bits, so that none repeats after a restart.
#[derive(Debug)]
pub struct Versions(AtomicU64);

/// Bits of a version below the epoch.
const VERSION_BITS: u32 = 44;

impl Versions {
    /// Creates the versions of a journal epoch (1 to 2²⁰ − 1).
    pub fn new(epoch: u64) -> Self {
        Self(AtomicU64::new(epoch << VERSION_BITS | 1))
    }

    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the epoch a version was given in.
    pub fn epoch_of(version: u64) -> u64 {
        version >> VERSION_BITS
    }
}
