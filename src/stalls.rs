//! Shards that cannot store rows, as the gate and INFO see them: only their own writes are refused.
//!
//! The rows of a shard whose engine takes none stay in memory and in the journal. All stalled
//! shards together may use half of the memory for pending rows; rows beyond that do not count when
//! the server decides whether other writers have to wait. The journal keeps their records, and with
//! them those of all shards: beyond [`JOURNAL_PARTS`] times its size, all writes are refused.

use flagstone_commands::{CommandFlags, flag};
use flagstone_storage::Layout;
use flagstone_storage::slot::{MAX_SHARDS, slot_of};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Multiple of `journal-max-size` that the journal may take while shards are stalled.
pub const JOURNAL_PARTS: u64 = 2;

/// Refusals because of stalled shards.
const NOTHING: u8 = 0;
const THEIR_WRITES: u8 = 1;
const ALL_WRITES: u8 = 2;

/// Error of writes that are refused while stalled shards keep the journal from being dropped.
pub const JOURNAL_FULL: &str = "MISCONF The journal has reached twice journal-max-size, as a shard \
    cannot store its rows. Commands that may modify the data set are refused until it can. The log \
    says which shard, and why.";

/// Reason why a shard cannot store rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    pub why: String,
    /// True if the shard's data in memory differs from the commits: none of it may be shown.
    pub is_broken: bool,
}

#[derive(Debug, Default)]
struct ShardState {
    stall: Mutex<Option<Stall>>,
    is_stalled: AtomicBool,
    pending_bytes: AtomicU64,
}

/// State of all shards.
#[derive(Debug)]
pub struct Stalls {
    shards: Vec<ShardState>,
    /// Number of shards at the start; more may come when some are split.
    begun_with: usize,
    refused: AtomicU8,
    /// True if a shard is broken.
    broken: AtomicBool,
}

impl Stalls {
    pub fn new(shards: u16) -> Self {
        let all = (0..MAX_SHARDS).map(|_| ShardState::default()).collect();
        Self {
            shards: all,
            begun_with: usize::from(shards),
            refused: AtomicU8::new(NOTHING),
            broken: AtomicBool::new(false),
        }
    }

    /// Returns true if commands are refused because of stalled shards.
    #[inline]
    pub fn any(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != NOTHING || self.broken.load(Ordering::Relaxed)
    }

    /// Returns true if all writes are refused.
    pub fn refuses_all_writes(&self) -> bool {
        self.refused.load(Ordering::Relaxed) == ALL_WRITES
    }

    /// Sets the state of a shard, and the bytes of its pending rows.
    pub fn set(&self, shard: u16, stall: Option<&Stall>, pending_bytes: u64) {
        let Some(state) = self.shards.get(usize::from(shard)) else { return };
        state.pending_bytes.store(pending_bytes, Ordering::Relaxed);
        let was = state.is_stalled.swap(stall.is_some(), Ordering::Relaxed);
        if let Some(stall) = stall {
            *state.stall.lock().unwrap_or_else(PoisonError::into_inner) = Some(stall.clone());
            if stall.is_broken {
                self.broken.store(true, Ordering::Relaxed);
            }
        } else if was {
            *state.stall.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Returns the bytes of pending rows of stalled shards.
    fn stalled_bytes(&self) -> u64 {
        let stalled = self.shards.iter().filter(|s| s.is_stalled.load(Ordering::Relaxed));
        stalled.map(|s| s.pending_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the bytes of pending rows of a shard, as of some ms ago.
    pub fn pending_bytes(&self, shard: u16) -> u64 {
        let state = self.shards.get(usize::from(shard));
        state.map_or(0, |state| state.pending_bytes.load(Ordering::Relaxed))
    }

    /// Returns the reason why a shard cannot store rows, if it cannot.
    pub fn why(&self, shard: u16) -> Option<String> {
        let state = self.shards.get(usize::from(shard))?;
        let stall = state.stall.lock().unwrap_or_else(PoisonError::into_inner);
        stall.as_ref().map(|stall| stall.why.clone())
    }

    /// Returns the stalled shards.
    pub fn list(&self) -> Vec<u16> {
        let all = (0..).zip(&self.shards);
        all.filter(|(_, s)| s.is_stalled.load(Ordering::Relaxed)).map(|(id, _)| id).collect()
    }

    /// Returns the part of `pending` bytes of rows that counts for a limit that all writers share.
    pub fn counted(&self, pending: u64, limit: u64) -> u64 {
        let stalled = self.stalled_bytes();
        pending.saturating_sub(stalled) + stalled.min(limit / 2)
    }

    /// Decides which writes are refused, by a limit for pending rows, and by the journal's size.
    pub fn weigh(&self, limit: u64, journal_bytes: u64, journal_max: u64) {
        let stalled = self.list();
        let share = if stalled.len() >= self.begun_with { limit } else { limit / 2 };
        let refused = if stalled.is_empty() {
            NOTHING
        } else if journal_bytes > journal_max.saturating_mul(JOURNAL_PARTS) {
            ALL_WRITES
        } else if self.stalled_bytes() > share {
            THEIR_WRITES
        } else {
            // Writes stay refused until the shard goes on, or the reason would come and go.
            self.refused.load(Ordering::Relaxed).min(THEIR_WRITES)
        };
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Returns the error if a command with these flags on these keys is refused.
    pub fn refusal<'a>(
        &self,
        layout: &Layout,
        flags: CommandFlags,
        keys: impl IntoIterator<Item = &'a [u8]>,
    ) -> Option<String> {
        let refuses_writes =
            flags.contains(flag!(WRITE)) && self.refused.load(Ordering::Relaxed) != NOTHING;
        for key in keys {
            let id = layout.shard_of(slot_of(key));
            let Some(state) = self.shards.get(usize::from(id)) else { continue };
            if !state.is_stalled.load(Ordering::Relaxed) {
                continue;
            }
            let stall = state.stall.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match stall {
                Some(Stall { why, is_broken: true }) => {
                    return Some(format!("MISCONF Shard {id} is out of order: {why}"));
                }
                Some(Stall { why, .. }) if refuses_writes => {
                    return Some(format!(
                        "MISCONF Shard {id} cannot store rows: {why}. Writes to its keys are \
                        refused until it can; those to other shards are not."
                    ));
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    fn stall(is_broken: bool) -> Stall {
        Stall { why: "the disk is gone".into(), is_broken }
    }

    /// Returns a key of each of two shards.
    fn keys(layout: &Layout) -> [Vec<u8>; 2] {
        [0, 1].map(|shard| {
            let names = (0..).map(|n: u32| n.to_string().into_bytes());
            names.into_iter().find(|key| layout.shard_of(slot_of(key)) == shard).expect("a key")
        })
    }

    fn refused(stalls: &Stalls, flags: CommandFlags) -> [bool; 2] {
        let layout = Layout::new(2, 0);
        keys(&layout).map(|key| stalls.refusal(&layout, flags, [&key[..]]).is_some())
    }

    #[test]
    fn a_stalled_shard_is_refused_writes_beyond_its_part_of_the_memory_and_others_are_not() {
        let stalls = Stalls::new(2);
        stalls.set(0, None, 10_000);
        stalls.weigh(LIMIT, 0, 100);
        assert!(!stalls.any());
        stalls.set(1, Some(&stall(false)), LIMIT / 2);
        stalls.weigh(LIMIT, 0, 100);
        assert_eq!(refused(&stalls, flag!(WRITE)), [false, false]);
        stalls.set(1, Some(&stall(false)), LIMIT / 2 + 1);
        stalls.weigh(LIMIT, 0, 100);
        assert!(stalls.any());
        assert_eq!(refused(&stalls, flag!(WRITE)), [false, true]);
        assert_eq!(refused(&stalls, flag!(READONLY)), [false, false]);
        // The shard's rows beyond its share do not count for the others.
        assert_eq!(stalls.counted(LIMIT / 2 + 100, LIMIT), LIMIT / 2 + 99);
        stalls.set(1, None, LIMIT / 2 + 1);
        stalls.weigh(LIMIT, 0, 100);
        assert_eq!(refused(&stalls, flag!(WRITE)), [false, false]);
        assert!(!stalls.any());
    }

    #[test]
    fn all_writes_are_refused_when_stalled_shards_let_the_journal_grow_too_long() {
        let stalls = Stalls::new(2);
        stalls.weigh(LIMIT, 1000, 100);
        assert!(!stalls.any());
        stalls.set(0, Some(&stall(false)), 0);
        stalls.weigh(LIMIT, 200, 100);
        assert!(!stalls.refuses_all_writes());
        stalls.weigh(LIMIT, 201, 100);
        assert!(stalls.refuses_all_writes());
    }

    #[test]
    fn nothing_of_a_broken_shard_is_shown() {
        let stalls = Stalls::new(2);
        stalls.set(0, Some(&stall(true)), 0);
        stalls.weigh(LIMIT, 0, 100);
        assert!(stalls.any());
        assert_eq!(refused(&stalls, flag!(READONLY)), [true, false]);
    }
}
