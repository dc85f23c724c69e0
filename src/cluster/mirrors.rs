//! The shards of other servers that a replica shows, and how new they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// State of one shard.
#[derive(Debug, Default)]
struct Mirror {
    is_shown: AtomicBool,
    /// A moment whose data it certainly has.
    proven: Mutex<Option<Instant>>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Mirrors(Box<[Mirror]>);

impl Mirrors {
    pub(super) fn new(shards: u16) -> Self {
        Self((0..shards).map(|_| Mirror::default()).collect())
    }

    /// Returns true if a shard is shown.
    #[inline]
    pub fn shows(&self, shard: u16) -> bool {
        self.0.get(usize::from(shard)).is_some_and(|it| it.is_shown.load(Ordering::Acquire))
    }

    /// Shows a shard from now on.
    pub fn show(&self, shard: u16) {
        self.set(shard, true);
    }

    /// Shows a shard no more.
    pub fn hide(&self, shard: u16) {
        self.set(shard, false);
    }

    fn set(&self, shard: u16, is_shown: bool) {
        if let Some(mirror) = self.0.get(usize::from(shard)) {
            mirror.is_shown.store(is_shown, Ordering::Release);
        }
    }

    /// Notes that a shard has all that was acknowledged before a moment.
    pub fn prove(&self, shard: u16, moment: Instant) {
        let Some(mirror) = self.0.get(usize::from(shard)) else { return };
        let mut proven = mirror.proven.lock().unwrap_or_else(PoisonError::into_inner);
        *proven = (*proven).max(Some(moment));
    }

    /// Returns the number of shards that are shown.
    pub fn shown(&self) -> usize {
        self.0.iter().filter(|it| it.is_shown.load(Ordering::Acquire)).count()
    }

    /// Returns how old the data of any shard may be, at most; `None`: that is not known of all.
    pub fn lag(&self) -> Option<Duration> {
        let proven = |mirror: &Mirror| {
            let proven = *mirror.proven.lock().unwrap_or_else(PoisonError::into_inner);
            proven.filter(|_| mirror.is_shown.load(Ordering::Acquire))
        };
        let oldest: Option<Vec<Instant>> = self.0.iter().map(proven).collect();
        Some(oldest?.into_iter().min()?.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_lag_is_that_of_the_oldest_shard() {
        let mirrors = Mirrors::new(2);
        assert_eq!((mirrors.lag(), mirrors.shown()), (None, 0));
        let begin = Instant::now();
        for shard in [0, 1] {
            mirrors.show(shard);
            assert_eq!(mirrors.lag(), None, "nothing is known of shard 1");
            mirrors.prove(shard, begin);
        }
        tokio::time::advance(Duration::from_secs(3)).await;
        mirrors.prove(0, Instant::now());
        assert_eq!((mirrors.lag(), mirrors.shown()), (Some(Duration::from_secs(3)), 2));
        mirrors.prove(1, begin + Duration::from_secs(1));
        mirrors.prove(1, begin);
        assert_eq!(mirrors.lag(), Some(Duration::from_secs(2)), "proofs are not taken back");
        mirrors.hide(1);
        assert!(mirrors.lag().is_none() && mirrors.shows(0) && !mirrors.shows(1));
    }
}
