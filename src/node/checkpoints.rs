//! State of the node's checkpoints, as INFO shows it; `crate::checkpoints` takes them.

use flagstone_storage::checkpoint::{Ageing, Catalog, CheckpointSource};
use flagstone_storage::place::Place;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, watch};

/// Persistence figures of INFO.
#[derive(Clone, Debug)]
pub struct SaveStats {
    pub running_since: Option<Instant>,
    /// Time of the last checkpoint that succeeded, or of the start.
    pub last_save_ms: u64,
    pub last_ok: bool,
    pub last_took: Option<Duration>,
    /// Number of checkpoints since the start, or since CONFIG RESETSTAT.
    pub saves: u64,
    /// Number of changes to the data when the last successful checkpoint began.
    pub changes: u64,
}

/// Shared state of the node's checkpoints.
#[derive(Debug)]
pub struct Checkpoints {
    pub source: CheckpointSource,
    /// Place where the journal archives the segments that it drops.
    pub(crate) archive: Place,
    stats: Mutex<SaveStats>,
    /// Ages of the checkpoints, from the first look at them on.
    ageing: OnceCell<Mutex<Ageing>>,
    /// True once the checkpoint that is being taken is to end, also while it waits for its turn.
    cancelling: watch::Sender<bool>,
    /// Number of checkpoints that wait until the engines have taken the pending rows.
    pub(crate) wanting: AtomicUsize,
    /// Held while a checkpoint is taken, or a shard is split: not both at a time.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

impl Checkpoints {
    pub fn new(source: CheckpointSource, archive: Place) -> Self {
        let stats = SaveStats {
            running_since: None,
            last_save_ms: source.clock.now_ms(),
            last_ok: true,
            last_took: None,
            saves: 0,
            changes: 0,
        };
        Self {
            source,
            archive,
            stats: Mutex::new(stats),
            ageing: OnceCell::new(),
            cancelling: watch::Sender::new(false),
            wanting: AtomicUsize::new(0),
            turn: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SaveStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stats(&self) -> SaveStats {
        self.lock().clone()
    }

    /// Returns the time by which the ages of checkpoints count, if they are kept for so long.
    pub(crate) async fn ageing_ms(&self, max_age_ms: u64) -> anyhow::Result<u64> {
        let now = (Instant::now(), self.source.clock.now_ms());
        let begin = || async move {
            let there = Catalog::of(&self.source.store).list().await?;
            let oldest_ms = there.iter().map(|checkpoint| checkpoint.created_ms).min();
            anyhow::Ok(Mutex::new(Ageing::begin(now, oldest_ms, max_age_ms)))
        };
        let ageing = self.ageing.get_or_try_init(begin).await?;
        Ok(ageing.lock().unwrap_or_else(PoisonError::into_inner).now_ms(now, max_age_ms))
    }

    /// Sets the number of checkpoints to 0 (CONFIG RESETSTAT).
    pub(super) fn reset_count(&self) {
        self.lock().saves = 0;
    }

    /// Returns true if pending rows are to be handed over at once.
    pub fn wants_rows(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0
    }

    /// Begins a checkpoint; returns false if one is being taken.
    pub(crate) fn begin(&self) -> bool {
        let mut stats = self.lock();
        let begins = stats.running_since.is_none();
        if begins {
            stats.running_since = Some(Instant::now());
            stats.saves += 1;
            self.cancelling.send_replace(false);
        }
        begins
    }

    /// Cancels the running checkpoint; returns false if there is none.
    pub fn cancel(&self) -> bool {
        let stats = self.lock();
        let is_running = stats.running_since.is_some();
        if is_running {
            self.cancelling.send_replace(true);
        }
        is_running
    }

    /// Waits until the running checkpoint is cancelled.
    pub(crate) async fn cancelled(&self) {
        // It has a sender as long as this is there.
        let _ = self.cancelling.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}
