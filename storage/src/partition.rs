//! The shards of one worker: their hot tier, and the rounds on their way into the journal.

use crate::commit::{Sealed, split_body};
use crate::journal::{Journal, JournalError, Lsn};
use crate::shard::Shard;
use crate::store::Store;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A round whose record could not be appended; what it showed must not be answered.
#[derive(Debug)]
pub struct FailedRound {
    pub round: u64,
    pub error: JournalError,
}

/// See the module's description.
pub struct Partition {
    pub store: Store,
    pub shards: BTreeMap<u16, Shard>,
    journal: Arc<dyn Journal>,
    /// Rounds in the journal that are not known to be durable, with their lsn.
    rounds: VecDeque<(u64, Lsn)>,
    appended: u64,
    durable: u64,
    /// The greatest lsn this worker knows to be in the journal.
    last_lsn: Lsn,
}

impl Partition {
    pub fn new(store: Store, shards: BTreeMap<u16, Shard>, journal: Arc<dyn Journal>) -> Self {
        let last_lsn = journal.end();
        Self { store, shards, journal, rounds: VecDeque::new(), appended: 0, durable: 0, last_lsn }
    }

    /// The greatest round that is in the journal.
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// The greatest round that is durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The greatest lsn this worker has written or been told of.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Closes the open round: what changed in it becomes one journal record, and once that is
    /// appended, pending rows. `Ok(false)`: nothing had changed.
    pub fn commit(&mut self, now_ms: u64) -> Result<bool, FailedRound> {
        let sealed = self.store.seal();
        if sealed.ops.is_empty() {
            self.close_round(sealed.round, self.last_lsn);
            return Ok(false);
        }
        let body = sealed.body();
        match self.journal.append(now_ms, &sealed.shards(), &[&body]) {
            Ok(lsn) => {
                self.merge(lsn, &body);
                self.close_round(sealed.round, lsn);
                Ok(true)
            }
            Err(error) => {
                self.fail(&sealed);
                Err(FailedRound { round: sealed.round, error })
            }
        }
    }

    /// Nothing of a sealed round counts.
    fn fail(&mut self, sealed: &Sealed) {
        self.store.unseal(sealed);
        self.close_round(sealed.round, self.last_lsn);
    }

    fn close_round(&mut self, round: u64, lsn: Lsn) {
        self.appended = round;
        self.last_lsn = self.last_lsn.max(lsn);
        self.rounds.push_back((round, self.last_lsn));
        self.observe_durable();
    }

    /// Merges a record's rows into the pending rows of the shards that are ours.
    pub fn merge(&mut self, lsn: Lsn, body: &[u8]) {
        for (shard, ops) in split_body(body).unwrap_or_default() {
            if let Some(shard) = self.shards.get_mut(&shard) {
                shard.merge(lsn, ops);
            }
        }
    }

    /// A record of another coordinator at `lsn` was applied here: what the open round shows from
    /// now on includes it.
    pub fn saw_lsn(&mut self, lsn: Lsn) {
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// Follows the journal's durable lsn; the greatest durable round.
    pub fn observe_durable(&mut self) -> u64 {
        let durable = self.journal.durable();
        while self.rounds.front().is_some_and(|&(_, lsn)| lsn <= durable) {
            if let Some((round, _)) = self.rounds.pop_front() {
                self.durable = round;
            }
        }
        self.store.settle(self.durable);
        self.durable
    }
}

/// What is to be read from disk.
#[derive(Debug)]
pub struct LoadPlan {}

/// What was read.
#[derive(Debug)]
pub struct Loaded {}

impl LoadPlan {
    pub async fn run(self, _background: &tokio::runtime::Handle) -> Loaded {
        Loaded {}
    }
}

impl Partition {
    pub fn plan_load(&self, _needs: Vec<crate::store::Need>) -> LoadPlan {
        LoadPlan {}
    }

    pub fn finish_load(&mut self, _loaded: Loaded, _now_ms: u64) -> Result<(), String> {
        Err("not found".into())
    }

    pub fn granted(&mut self) {}

    pub fn released(&mut self) {}

    pub async fn close(self) -> anyhow::Result<()> {
        Ok(())
    }
}

impl Partition {
    /// A partition of no shards, to leave behind when one is taken.
    pub fn empty(layout: &Arc<crate::slot::Layout>, journal: &Arc<dyn Journal>) -> Self {
        let versions = Arc::new(crate::store::Versions::new(0));
        let store = Store::new(layout.clone(), versions, &[], false);
        Self::new(store, BTreeMap::new(), journal.clone())
    }
}
