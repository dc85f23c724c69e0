//! The split of the memory budget.

use crate::config::Settings;
use flagstone_storage::engine::Upkeep;

/// Bytes that may wait for the store of a journal in a bucket, at least and at most.
const JOURNAL_MIN: u64 = 4 << 20;
const JOURNAL_MAX: u64 = 64 << 20;

/// Pending rows of more bytes than this are of no use: they are handed over faster than they come,
/// or not at all.
const PENDING_MAX: u64 = 1 << 30;

/// Bytes that are there whatever the data: threads, code, and SlateDB's buffers for files that it
/// writes, 10 MiB each. Small budgets keep a quarter for it.
const OVERHEAD: u64 = 128 << 20;

/// How the memory budget is split; bytes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Decoded values, all workers together.
    pub hot: usize,
    /// Pending rows, all shards together: beyond it, and what decoded values leave free, writers wait.
    pub pending: usize,
    /// Blocks of the engines' files.
    pub block_cache: u64,
    /// Their filters and indexes: a read of what is not cached here costs far more than one of a
    /// block.
    pub meta_cache: u64,
    /// What the engines gather before they flush; while a flush goes on, up to three times that.
    pub memtables: usize,
    /// What the engines read ahead when they merge files.
    pub merges: usize,
    /// The filters of keys; while one is made anew, up to twice that.
    pub presence: usize,
    /// What may wait for the store of a journal in a bucket; from half of it on writers wait.
    pub journal: usize,
    /// Commands that wait for locks or for data: beyond it, no connection has several of them.
    pub parked: usize,
    /// Channels and patterns that clients listen to.
    pub subscriptions: usize,
    /// Which keys clients have read that want to hear of their changes.
    pub tracking: usize,
    /// The prefixes of those that want to hear of keys that they have not read.
    pub prefixes: usize,
    /// The texts of scripts.
    pub scripts: usize,
    /// Libraries of functions.
    pub functions: usize,
    /// Each of the VMs that run them.
    pub script_vm: usize,
    /// Keys that clients watch.
    pub watches: usize,
}

impl Budget {
    /// Of what the process does not need for itself: five sixteenths for decoded values, an eighth
    /// for pending rows, a sixteenth each for blocks and memtables, and for filters and indexes too,
    /// but of a small budget up to an eighth; a sixty-fourth for merges, a thirty-second for the
    /// filters of keys. The rest is for what is being handed over or flushed, buffers, and what the
    /// allocator keeps. What pending rows have no use for decoded values get.
    pub fn new(settings: &Settings) -> Self {
        let total = settings.memory_budget - (settings.memory_budget / 4).min(OVERHEAD);
        let pending = (total / 8).min(PENDING_MAX);
        Self {
            hot: (total / 16 * 5 + (total / 8 - pending)) as usize,
            pending: pending as usize,
            block_cache: settings.block_cache_size.unwrap_or(total / 16),
            meta_cache: (total / 8).min(64 << 20).max(total / 16),
            memtables: (total / 16) as usize,
            merges: (total / 64) as usize,
            presence: (total / 32) as usize,
            journal: (total / 16).clamp(JOURNAL_MIN, JOURNAL_MAX) as usize,
            parked: (total / 32) as usize,
            subscriptions: (total / 16) as usize,
            tracking: (total / 64 * 3) as usize,
            prefixes: (total / 64) as usize,
            scripts: (total / 64) as usize,
            functions: (total / 64) as usize,
            script_vm: (total / 16) as usize,
            watches: (total / 64) as usize,
        }
    }

    /// Pending rows that a start replays before the engines get them: there are no decoded values yet.
    pub fn replay(&self) -> usize {
        self.pending + self.hot / 2
    }

    /// Gives decoded values what the memtables of so many shards have no use for.
    pub(super) fn with_shards(mut self, shards: u16) -> Self {
        let most = Upkeep::default().memtable_bytes * usize::from(shards);
        let unused = self.memtables.saturating_sub(most);
        // One is written to, others are flushed; the allocator keeps more where more values change.
        self.hot += 2 * unused;
        self
    }
}
