//! Divides a worker's memory between decoded values and pending rows. Memory that values leave
//! unused is lent to rows: the longer these gather, the more writes of the same row are merged.

use super::Worker;
use crate::process;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Number of entries that the eviction examines at least.
const EVICT_STEPS: usize = 2048;

/// Entries that it examines for each that a command has brought into memory: places of the table are
/// empty, and entries that were used lately stay for some passes.
const STEPS_EACH: usize = 8;

/// Maximum number of entries that it examines in one piece.
const MAX_EVICT_STEPS: usize = 1 << 18;

/// Bytes that were loaded for each further entry that it examines: a short string takes more.
const STEP_BYTES: usize = 64;

/// Bytes of loaded data that commands have used, after which it looks for room.
const USED_BYTES: usize = 256 << 10;

/// Part of the memory for decoded values, and number of bytes, that data may take which is being
/// loaded, or which no command has used yet.
const LOADING_PART: usize = 4;
const LOADING_MAX: usize = 64 << 20;

/// Bytes of decoded values and of pending rows: a budget, or a usage.
#[derive(Clone, Copy, Debug)]
struct Shares {
    hot: usize,
    pending: usize,
}

/// Returns how much of the values' budget pending rows may use from now on, if `lent` was lent so
/// far: at most half of it, out of the memory that values leave unused. When values need it, the
/// part that rows occupy returns as they are handed over; until then there is room for as many as
/// may gather meanwhile, as far as it was lent already.
fn loan(budget: Shares, used: Shares, lent: usize) -> usize {
    let borrowed = used.pending.saturating_sub(budget.pending);
    let kept = if borrowed == 0 { 0 } else { lent.min(borrowed + budget.pending / 2) };
    if used.hot > budget.hot.saturating_sub(lent) / 16 * 15 {
        return kept;
    }
    let free = budget.hot.saturating_sub(used.hot + used.hot / 8);
    kept.max(free.min(budget.hot / 2))
}

impl Worker {
    /// Returns this worker's budgets, before anything is lent.
    fn shares(&self) -> Shares {
        let (node, workers) = (&self.node, self.node.shard_workers);
        let hot = node.pressure.budget.hot.saturating_sub(node.pressure.squeeze.bytes() as usize);
        Shares { hot: hot / workers, pending: node.pressure.budget.pending / workers }
    }

    /// Updates how much memory pending rows may borrow.
    pub(super) fn share_memory(&self) {
        let partition = self.partition.borrow();
        if partition.shards.is_empty() {
            return;
        }
        let (budget, hot) = (self.settings().memory_budget, self.node.pressure.budget.hot as u64);
        self.node.pressure.squeeze.adapt(Instant::now(), budget, hot, process::resident);
        let used = Shares { hot: partition.store.memory(), pending: partition.pending_bytes() };
        self.upkeep.loan.set(loan(self.shares(), used, self.upkeep.loan.get()));
        self.stats().engine.loan_bytes.store(self.upkeep.loan.get() as u64, Ordering::Relaxed);
    }

    /// Returns the bytes of pending rows at which a shard hands them over: as many again may gather
    /// meanwhile.
    pub(super) fn shard_share(&self, shards: usize) -> usize {
        (self.shares().pending + self.upkeep.loan.get()) / shards / 2
    }

    /// Evicts entries if the hot tier is over its budget, after a commit.
    pub(crate) fn evict(&self) {
        self.evict_after(0);
    }

    /// Evicts entries if the hot tier is over its budget, after so many have come into memory.
    pub(crate) fn evict_after(&self, entries: usize) {
        self.evict_for(entries, 0);
    }

    /// Evicts entries if the hot tier is over its budget, after commands have used much loaded data: that
    /// was locked until now.
    pub(super) fn evict_used(&self) {
        if let Some(bytes) = self.loader.volume.take_used(USED_BYTES) {
            self.evict_for(0, bytes);
        }
    }

    /// Returns the bytes of loads from which on further ones wait.
    pub(super) fn load_limit(&self) -> usize {
        (self.shares().hot / LOADING_PART).min(LOADING_MAX)
    }

    /// Evicts entries if the hot tier is over its budget, after so many entries and bytes have come into
    /// memory.
    pub(super) fn evict_for(&self, entries: usize, bytes: usize) {
        let steps = entries.saturating_mul(STEPS_EACH).max(bytes / STEP_BYTES);
        let steps = steps.clamp(EVICT_STEPS, MAX_EVICT_STEPS);
        let budget = self.shares().hot.saturating_sub(self.upkeep.loan.get());
        let mut partition = self.partition.borrow_mut();
        if partition.store.memory() <= budget {
            return;
        }
        let durable = partition.durable();
        let locks = self.locks.borrow();
        let keep = |db, key: &[u8]| locks.blocks(db, std::iter::once(key));
        partition.store.evict(budget, durable, steps, keep);
        if partition.store.memory() > budget {
            // Entries that are not durable cannot be evicted.
            self.node.journal.request_sync(partition.last_lsn());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Shares = Shares { hot: 1600, pending: 400 };

    fn lent(hot: usize, pending: usize, lent: usize) -> usize {
        loan(BUDGET, Shares { hot, pending }, lent)
    }

    #[test]
    fn memory_that_values_leave_free_is_lent() {
        assert_eq!(lent(0, 0, 0), 800);
        assert_eq!(lent(800, 0, 0), 700);
        assert_eq!(lent(800, 0, 700), 700);
        assert_eq!(lent(1500, 0, 0), 0);
        assert_eq!(lent(1600, 5000, 0), 0);
    }

    #[test]
    fn lent_memory_in_use_comes_back_with_the_rows_and_leaves_room_meanwhile() {
        assert_eq!(lent(800, 1200, 800), 800);
        assert_eq!(lent(800, 600, 800), 400);
        assert_eq!(lent(800, 400, 800), 0);
        assert_eq!(lent(1500, 500, 100), 100);
        assert_eq!(lent(1500, 400, 100), 0);
    }

    #[test]
    fn a_loan_beyond_a_share_that_shrank_comes_back_with_the_rows() {
        let small = Shares { hot: 300, pending: 400 };
        assert_eq!(loan(small, Shares { hot: 100, pending: 1000 }, 800), 800);
        assert_eq!(loan(small, Shares { hot: 100, pending: 500 }, 800), 300);
        assert_eq!(loan(small, Shares { hot: 100, pending: 400 }, 300), 0);
    }

    #[test]
    fn neither_has_more_than_it_is_given() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut hot, mut pending, mut lent) = (0, 0, 0);
        for _ in 0..100_000 {
            lent = loan(BUDGET, Shares { hot, pending }, lent);
            assert!(hot <= BUDGET.hot - lent && pending <= BUDGET.pending + lent);
            hot = (hot + random(100)).min(BUDGET.hot - lent);
            pending = (pending + random(90)).min(BUDGET.pending + lent);
            match random(20) {
                0 => pending /= 2,
                1 => hot -= random(hot + 1),
                _ => {}
            }
        }
    }
}
