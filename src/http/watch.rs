//! Figures that need more than one look: how old the oldest record is that is not durable, and when
//! the disk will be full.

use super::Site;
use crate::node::Node;
use crate::process::{Disk, disk};
use flagstone_storage::checkpoint::Catalog;
use flagstone_storage::journal::{Journal, Lsn};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of looks at the journal.
const PERIOD: Duration = Duration::from_millis(100);

/// Maximum number of positions of the journal whose time is remembered. If a sync takes longer than
/// these looks, the oldest stays.
const MAX_POSITIONS: usize = 600;

/// Interval of looks at the disk, and the number of looks of which the trend is taken.
const DISK_PERIOD: Duration = Duration::from_secs(10);
const MAX_LOOKS: usize = 60;

/// Time over which there has to be a trend before there is a forecast.
const LEAST_TREND_S: f64 = 60.0;

/// The looks so far.
#[derive(Debug, Default)]
struct Looks {
    /// Positions of the journal, and when they were first seen.
    positions: VecDeque<(Lsn, Instant)>,
    disk: VecDeque<(Instant, Disk)>,
}

/// State of the watch.
#[derive(Debug)]
pub(super) struct FigureWatch {
    dir: PathBuf,
    looks: Mutex<Looks>,
    /// Time of the newest checkpoint of an earlier life, ms since the Unix epoch; 0: none is known.
    found_checkpoint_ms: AtomicU64,
}

impl FigureWatch {
    pub(super) fn new(node: &Node) -> Self {
        let dir = node.config.settings().dir.clone();
        Self { dir, looks: Mutex::default(), found_checkpoint_ms: AtomicU64::new(0) }
    }

    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the age of the oldest record that is not durable, as of the last look; zero if all
    /// are.
    pub(super) fn unsynced(&self, journal: &dyn Journal) -> Duration {
        self.looks().unsynced(journal.durable(), Instant::now())
    }

    /// Returns the room on the disk of the data directory.
    pub(super) fn disk(&self) -> Option<Disk> {
        disk(&self.dir)
    }

    /// Returns how long the disk lasts at the rate of the last minutes; `None`: it is not filling.
    pub(super) fn until_full(&self) -> Option<Duration> {
        self.looks().until_full()
    }

    /// Returns the time of the newest checkpoint in ms since the Unix epoch, if there is one.
    pub(super) fn checkpoint_ms(&self, node: &Node) -> Option<u64> {
        let stats = node.checkpoints.stats();
        // Before the first one of this life, the time is that of the start.
        let own_ms = stats.last_save_ms;
        let own = own_ms != node.figures.start.at_ms && stats.changes + stats.saves > 0;
        let found_ms = self.found_checkpoint_ms.load(Ordering::Relaxed);
        let newest_ms =
            if own && stats.last_took.is_some() { own_ms.max(found_ms) } else { found_ms };
        (newest_ms != 0).then_some(newest_ms)
    }
}

impl Looks {
    fn look(&mut self, end: Lsn, durable: Lsn, now: Instant) {
        while self.positions.front().is_some_and(|(lsn, _)| *lsn <= durable) {
            self.positions.pop_front();
        }
        let last = self.positions.back().map_or(durable, |(lsn, _)| *lsn);
        if end > last && self.positions.len() < MAX_POSITIONS {
            self.positions.push_back((end, now));
        }
    }

    fn unsynced(&self, durable: Lsn, now: Instant) -> Duration {
        let oldest = self.positions.iter().find(|(lsn, _)| *lsn > durable);
        oldest.map_or(Duration::ZERO, |(_, at)| now.saturating_duration_since(*at))
    }

    fn look_at_disk(&mut self, now: Instant, room: Disk) {
        self.disk.push_back((now, room));
        if self.disk.len() > MAX_LOOKS {
            self.disk.pop_front();
        }
    }

    fn until_full(&self) -> Option<Duration> {
        let ((from, before), (to, after)) = (self.disk.front()?, self.disk.back()?);
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        let filled = before.free.checked_sub(after.free).filter(|filled| *filled > 0)?;
        (seconds >= LEAST_TREND_S).then(|| {
            Duration::try_from_secs_f64(after.free as f64 * seconds / filled as f64).ok()
        })?
    }
}

/// Looks at the journal and the disk until the port closes.
pub(super) async fn run(site: Arc<Site>) {
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looked = None::<Instant>;
    loop {
        tick.tick().await;
        let Some(running) = site.loaded() else { continue };
        let (node, watcher) = (&running.node, &running.watcher);
        let now = Instant::now();
        watcher.looks().look(node.journal.end(), node.journal.durable(), now);
        if looked.is_none() {
            let catalog = Catalog::of(&node.checkpoints.source.store);
            let found = node.background.spawn(async move { catalog.list().await });
            // Without an answer of the store there is no figure.
            if let Ok(Ok(all)) = found.await {
                let newest_ms = all.iter().map(|checkpoint| checkpoint.created_ms).max();
                watcher.found_checkpoint_ms.store(newest_ms.unwrap_or(0), Ordering::Relaxed);
            }
        }
        if looked.is_none_or(|at| now.saturating_duration_since(at) >= DISK_PERIOD) {
            looked = Some(now);
            if let Some(room) = watcher.disk() {
                watcher.looks().look_at_disk(now, room);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_age_is_that_of_the_oldest_record_that_is_not_durable() {
        let (mut looks, begin) = (Looks::default(), Instant::now());
        looks.look(10, 10, begin);
        assert_eq!(looks.unsynced(10, begin + SECOND), Duration::ZERO);
        looks.look(12, 10, begin + SECOND);
        looks.look(12, 10, begin + 2 * SECOND);
        looks.look(15, 10, begin + 3 * SECOND);
        assert_eq!(looks.unsynced(10, begin + 4 * SECOND), 3 * SECOND);
        assert_eq!(looks.unsynced(12, begin + 4 * SECOND), SECOND);
        assert_eq!(looks.unsynced(15, begin + 4 * SECOND), Duration::ZERO);
        looks.look(15, 15, begin + 5 * SECOND);
        assert!(looks.positions.is_empty());
        for n in 0..2 * MAX_POSITIONS as u64 {
            looks.look(16 + n, 15, begin + 5 * SECOND);
        }
        assert_eq!(looks.positions.len(), MAX_POSITIONS);
    }

    #[test]
    fn the_forecast_is_the_trend_of_the_last_looks() {
        let (mut looks, begin) = (Looks::default(), Instant::now());
        let room = |free| Disk { free, total: 1000 };
        assert_eq!(looks.until_full(), None);
        looks.look_at_disk(begin, room(600));
        assert_eq!(looks.until_full(), None);
        looks.look_at_disk(begin + 50 * SECOND, room(550));
        assert_eq!(looks.until_full(), None, "it is too early to tell");
        looks.look_at_disk(begin + 100 * SECOND, room(500));
        assert_eq!(looks.until_full(), Some(500 * SECOND));
        looks.look_at_disk(begin + 200 * SECOND, room(700));
        assert_eq!(looks.until_full(), None, "it is not filling");
        for n in 0..2 * MAX_LOOKS as u32 {
            looks.look_at_disk(begin + n * SECOND, room(10));
        }
        assert_eq!(looks.disk.len(), MAX_LOOKS);
    }
}
