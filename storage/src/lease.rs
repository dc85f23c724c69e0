//! Whether this process still owns data in a bucket: a lease, which the journal's objects renew.
//!
//! Whoever takes the data over puts a fence behind the last object of the journal, and then waits
//! for longer than a lease lasts. So an object of ours that is stored, with all before it, proves
//! that nobody else answers for the lease's time from the moment in which it began to be put (RFC 9).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// How long a lease lasts.
pub const LEASE: Duration = Duration::from_secs(3);

/// A lease is renewed when a part of its time has gone: one of so many.
const RENEWALS: u32 = 3;

/// A successor waits for a part of the lease more, one of so many: clocks do not run alike.
const MARGIN: u32 = 10;

/// For how long it is renewed after somebody has asked for it last.
const WANTED_FOR: Duration = Duration::from_secs(60);

/// Who asks does not write that down each time.
const WANTED_STEP: Duration = Duration::from_secs(1);

/// A moment on the clock that counts the time in which the machine was suspended, in ns since some
/// moment in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(u64);

impl BootTime {
    pub fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for writes.
        let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
        debug_assert_eq!(result, 0, "Linux has this clock since 2.6.39");
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Self(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn later(self, by: Duration) -> Self {
        Self(self.0 + nanos(by))
    }

    /// How long it is until then.
    fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Self::now().0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Why it is not certain that the data is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// The store does not answer.
    Away,
    /// Another process has the data, or may have it.
    Lost,
}

/// See the module's description.
#[derive(Debug)]
pub struct Lease {
    lasts: Duration,
    /// Up to when it holds.
    until: AtomicU64,
    /// When it was asked for last; 0: not yet.
    wanted: AtomicU64,
    /// For good.
    ended: AtomicBool,
    away: AtomicBool,
    /// The one who renews it has something to do.
    renew: Arc<Notify>,
    /// Notified when it was renewed, and when it has ended.
    changed: Notify,
}

impl Lease {
    /// One that does not hold yet; `renew` is notified when it should be renewed.
    pub(crate) fn new(lasts: Duration, renew: Arc<Notify>) -> Self {
        Self {
            lasts,
            until: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            away: AtomicBool::new(false),
            renew,
            changed: Notify::new(),
        }
    }

    /// How long a successor waits, so that no lease of this length holds any more.
    pub(crate) fn outlast(lasts: Duration) -> Duration {
        lasts + lasts / MARGIN
    }

    /// Returns true if nobody else can have answered up to now.
    pub fn holds(&self) -> bool {
        let now = BootTime::now().0;
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 || now.saturating_sub(wanted) > nanos(WANTED_STEP) {
            self.wanted.store(now, Ordering::Relaxed);
        }
        !self.has_ended() && now < self.until.load(Ordering::Acquire)
    }

    /// Waits until it holds, for so long at most.
    ///
    /// # Errors
    /// If it has ended, or was not renewed in time; then everybody else is told so at once, until it
    /// is.
    pub async fn confirm(&self, limit: Duration) -> Result<(), Unconfirmed> {
        if self.holds() {
            return Ok(());
        }
        match tokio::time::timeout(limit, self.until_it_holds()).await {
            Ok(confirmed) => confirmed,
            Err(_) => {
                if !self.away.swap(true, Ordering::AcqRel) {
                    tracing::error!(
                        "the lease on the data has run out, as the journal's store does not answer: \
                        reads are refused, but for serve-stale-data yes"
                    );
                }
                // It may have been renewed in this moment.
                if self.holds() {
                    self.is_back();
                }
                Err(Unconfirmed::Away)
            }
        }
    }

    async fn until_it_holds(&self) -> Result<(), Unconfirmed> {
        loop {
            let changed = self.changed.notified();
            if self.holds() {
                return Ok(());
            }
            if self.has_ended() {
                return Err(Unconfirmed::Lost);
            }
            self.renew.notify_one();
            if self.is_away() {
                return Err(Unconfirmed::Away);
            }
            changed.await;
        }
    }

    /// Returns true if somebody has waited for it in vain, and it was not renewed since.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// How long it holds if nobody renews it.
    pub fn left(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        BootTime(self.until.load(Ordering::Acquire)).left()
    }

    /// When it should be renewed; `None`: nobody needs it.
    pub(crate) fn renew_in(&self) -> Option<Duration> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let is_wanted = wanted != 0 && !BootTime(wanted).later(WANTED_FOR).left().is_zero();
        (is_wanted && !self.has_ended())
            .then(|| self.left().saturating_sub(self.lasts - self.lasts / RENEWALS))
    }

    /// It was ours after this moment.
    pub(crate) fn renew(&self, proven: BootTime) {
        let until = proven.later(self.lasts).0;
        if self.until.fetch_max(until, Ordering::AcqRel) < until {
            self.is_back();
            self.changed.notify_waiters();
        }
    }

    fn is_back(&self) {
        if self.away.swap(false, Ordering::AcqRel) {
            tracing::info!("the lease on the data holds again: reads are answered");
        }
    }

    /// It does not hold any more, and never will.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ms: u64) -> Lease {
        Lease::new(Duration::from_millis(ms), Arc::new(Notify::new()))
    }

    #[test]
    fn it_holds_from_what_was_proven_and_is_renewed_while_it_is_wanted() {
        let lease = lease(3_600_000);
        assert_eq!(lease.renew_in(), None, "nobody has asked for it");
        assert!(!lease.holds());
        assert_eq!(lease.renew_in(), Some(Duration::ZERO));
        lease.renew(BootTime::now());
        assert!(lease.holds());
        let (left, due) = (lease.left(), lease.renew_in().unwrap());
        assert!(left > Duration::from_secs(3590) && left <= Duration::from_secs(3600), "{left:?}");
        assert!(due > Duration::from_secs(1190) && due <= Duration::from_secs(1200), "{due:?}");
        // What was proven long ago does not shorten it.
        lease.renew(BootTime(0));
        assert!(lease.holds());
        lease.end();
        lease.renew(BootTime::now().later(Duration::from_secs(9)));
        assert!(!lease.holds() && lease.left().is_zero() && lease.renew_in().is_none());
    }

    #[test]
    fn what_is_proven_too_late_proves_nothing() {
        let lease = lease(1);
        let long_ago = BootTime(BootTime::now().0 - 2_000_000);
        lease.renew(long_ago);
        assert!(!lease.holds());
    }

    #[tokio::test]
    async fn who_waits_for_it_is_told_what_has_become_of_it() {
        let lease = Arc::new(lease(3_600_000));
        let long = Duration::from_secs(20);
        let waiting = || {
            let lease = lease.clone();
            tokio::spawn(async move { lease.confirm(long).await })
        };
        let (one, other) = (waiting(), waiting());
        lease.renew.notified().await;
        lease.renew(BootTime::now());
        assert_eq!((one.await.unwrap(), other.await.unwrap()), (Ok(()), Ok(())));
        lease.until.store(0, Ordering::Release);
        assert_eq!(lease.confirm(Duration::from_millis(1)).await, Err(Unconfirmed::Away));
        // Once somebody has waited, the next one need not.
        assert_eq!(lease.confirm(long).await, Err(Unconfirmed::Away));
        lease.renew(BootTime::now());
        assert_eq!(lease.confirm(long).await, Ok(()));
        lease.until.store(0, Ordering::Release);
        let waiting = waiting();
        lease.renew.notified().await;
        lease.end();
        assert_eq!(waiting.await.unwrap(), Err(Unconfirmed::Lost));
    }
}
