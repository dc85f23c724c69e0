//! One shard.

use crate::journal::Lsn;

/// A shard.
#[derive(Debug, Default)]
pub struct Shard {}

impl Shard {
    /// Takes the rows of a journal record in.
    pub fn merge(&mut self, _lsn: Lsn, _ops: &[u8]) {}
}
