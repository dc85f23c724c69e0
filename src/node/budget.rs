//! The memory budget, and how it is split.

use crate::config::Settings;
use flagstone_storage::engine::Upkeep;

/// Minimum and maximum number of bytes that may wait for the store of a journal in a bucket.
const JOURNAL_MIN: u64 = 4 << 20;
const JOURNAL_MAX: u64 = 64 << 20;

/// Maximum budget for pending rows in bytes. More are of no use: rows are handed over faster than
/// they come, or not at all.
const PENDING_MAX: u64 = 1 << 30;

/// Memory in bytes that is in use whatever the data: threads, code, and SlateDB's buffers of 10 MiB
/// for each file that it writes. Small budgets reserve a quarter for it.
const OVERHEAD: u64 = 128 << 20;

/// Minimum number of bytes that users of access control may take.
const USERS_MIN: u64 = 4 << 20;

/// Bytes of the whole budget for each merge of a kind at a time: it takes 20 to 30 MiB.
const MERGE_BUDGET: u64 = 256 << 20;

/// Approximate memory in bytes of a key on which a command of several workers works: in its lists, in
/// the tables of locks, and as an entry that is lent.
const COORDINATED_KEY: u64 = 850;

/// Minimum number of keys on which such commands may work at a time.
const MANY_KEYS_MIN: usize = 4096;

/// The memory budget's parts in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Decoded values of all workers.
    pub hot: usize,
    /// Pending rows of all shards. Writers wait when the rows exceed it and the memory that decoded
    /// values lend.
    pub pending: usize,
    /// Blocks of the engines' files.
    pub block_cache: u64,
    /// Filters and indexes of the engines' files. A miss here costs far more than a missing block.
    pub meta_cache: u64,
    /// Memtables of the engines; while some are flushed, all take up to two or three times that.
    pub memtables: usize,
    /// Blocks that the engines read ahead when they merge files.
    pub merges: usize,
    /// Number of merges of each kind at a time.
    pub merges_at_once: usize,
    /// Filters of keys; while one is rebuilt, they take up to twice that.
    pub presence: usize,
    /// Records that may wait for the store of a journal in a bucket; from half of it on, writers
    /// wait.
    pub journal: usize,
    /// Parked commands, which wait for locks or for data: beyond it, a connection may have only one
    /// of them.
    pub parked: usize,
    /// Channels and patterns to which clients have subscribed.
    pub subscriptions: usize,
    /// Keys that tracking clients have read.
    pub tracking: usize,
    /// Prefixes of clients that track in broadcasting mode.
    pub prefixes: usize,
    /// Texts of scripts.
    pub scripts: usize,
    /// Libraries of functions.
    pub functions: usize,
    /// Each of the VMs that run scripts and functions.
    pub script_vm: usize,
    /// Keys that clients watch.
    pub watches: usize,
    /// Users of access control, with their rules.
    pub users: usize,
    /// Keys that clients wait for, of those clients that wait for many.
    pub waits: usize,
    /// Number of keys on which commands of several workers with very many keys may work at a time.
    pub many_keys: usize,
}

impl Budget {
    /// Splits the memory that the process does not need for itself: five sixteenths for decoded values, an
    /// eighth for pending rows, a sixteenth each for blocks and for filters and indexes (of these up
    /// to an eighth of a small budget), three thirty-seconds for memtables, a sixty-fourth for merges,
    /// a thirty-second for the filters of keys. The rest is for hand-overs and flushes, buffers, and the
    /// allocator's overhead. Decoded values get the memory that pending rows do not use.
    pub fn new(settings: &Settings) -> Self {
        let total = settings.memory_budget - (settings.memory_budget / 4).min(OVERHEAD);
        let pending = (total / 8).min(PENDING_MAX);
        Self {
            hot: (total / 16 * 5 + (total / 8 - pending)) as usize,
            pending: pending as usize,
            block_cache: settings.block_cache_size.unwrap_or(total / 16),
            meta_cache: (total / 8).min(64 << 20).max(total / 16),
            memtables: (total / 32 * 3) as usize,
            merges: (total / 64) as usize,
            merges_at_once: (settings.memory_budget / MERGE_BUDGET).max(1) as usize,
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
            users: (total / 32).max(USERS_MIN) as usize,
            waits: (total / 16) as usize,
            many_keys: ((total / 16 / COORDINATED_KEY) as usize).max(MANY_KEYS_MIN),
        }
    }

    /// Returns the bytes of pending rows that a start replays before the engines take them: there
    /// are no decoded values yet.
    pub fn replay(&self) -> usize {
        self.pending + self.hot / 2
    }

    /// Adds the memory that the memtables of so many shards do not use to decoded values.
    pub(super) fn with_shards(mut self, shards: u16) -> Self {
        let most = Upkeep::default().memtable_bytes * usize::from(shards);
        let unused = self.memtables.saturating_sub(most);
        // A shard writes to one memtable while others are flushed; the allocator keeps more memory
        // where more values change.
        self.hot += 2 * unused;
        self
    }
}
