//! Shards of another process, which are read here and followed record by record.
//!
//! The engine of such a shard is pinned: it has the files of one moment. All records since then are in the
//! current map, which is never handed over; from time to time the shard is exchanged for one with a newer
//! engine, which needs fewer of them.

use super::Shard;
use crate::control::Control;
use crate::engine::Engine;

impl Shard {
    /// Creates a shard that another process owns, from the control rows of its pinned engine.
    pub(crate) fn mirror(id: u16, engine: Engine, control: Control, presence_bytes: usize) -> Self {
        let mut shard = Self::new(id, engine, 0, control, presence_bytes);
        shard.is_mirrored = true;
        shard
    }

    /// Returns true if another process owns it: nothing is written to its engine.
    pub fn is_mirrored(&self) -> bool {
        self.is_mirrored
    }
}
