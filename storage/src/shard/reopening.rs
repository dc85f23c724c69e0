//! A shard whose engine is reopened: the data that this needs, and its result. The work is in
//! `reopen.rs`.

use super::{HandedOver, Shard};
use crate::control::Generations;
use crate::engine::Engine;
use crate::journal::{Journal, Lsn};
use std::sync::Arc;
use std::time::Instant;

/// State of a shard whose engine is to be reopened.
pub struct Reopen {
    pub(crate) shard: u16,
    pub(crate) engine: Engine,
    pub(crate) journal: Arc<dyn Journal>,
    /// The greatest lsn that is known to be flushed.
    pub(crate) flushed: Lsn,
    /// Every record up to this lsn was in the old engine.
    pub(crate) handed: Lsn,
    pub(crate) epoch: u64,
    /// True if the own journal lacks records that are not flushed.
    pub(crate) lacks_records: bool,
}

/// State of an engine that was reopened.
#[derive(Debug)]
pub struct Reopened {
    /// Greatest lsn in its files.
    pub(crate) flushed: Lsn,
    /// The lsn up to which it was given all records, and the sequence number of the last batch.
    /// `None`: its files have them all.
    pub(crate) handed: Option<(Lsn, u64)>,
    /// Number of operations that it was given.
    pub(crate) ops: u64,
    /// Number of records that it was given.
    pub records: u64,
    pub(crate) generations: Generations,
}

impl Shard {
    /// Returns the data needed to reopen the engine. Until [`reopened`](Self::reopened), or another
    /// try, nothing counts as flushed.
    pub(crate) fn reopen(&mut self, journal: Arc<dyn Journal>) -> Reopen {
        self.reopening = true;
        Reopen {
            shard: self.id,
            engine: self.engine.clone(),
            journal,
            flushed: self.flushed,
            handed: self.handed,
            epoch: self.epoch,
            lacks_records: self.flushed < self.inherited,
        }
    }

    /// Takes over the reopened engine's state.
    pub(crate) fn reopened(&mut self, reopened: Reopened) {
        self.reopening = false;
        self.flushed = self.flushed.max(reopened.flushed);
        self.unflushed.clear();
        if let Some((applied, seq)) = reopened.handed {
            let (ops, at) = (reopened.ops, Instant::now());
            self.unflushed.push_back(HandedOver { applied, seq, ops, at });
        }
        // Swept rows may be in the engine again.
        self.generations.dead.extend(reopened.generations.dead);
    }
}
