//! A lease on data: proves that this process still owns it. The objects of a journal in a bucket renew
//! it, or replicas.
//!
//! A successor puts a fence behind the last object of the journal, and then waits for longer than a
//! lease lasts. So an object of this process that is stored, with all before it, proves that no
//! other process answers for the lease's time from the moment at which its put began (RFC 9).

use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

/// Duration of a lease.
pub const LEASE: Duration = Duration::from_secs(3);

/// A lease is renewed when one part in so many of its time has passed.
const RENEWALS: u32 = 3;

/// A successor waits for the lease plus one part in so many of it, as clocks run at different
/// speeds.
const MARGIN: u32 = 10;

/// How long after its last use a lease is still renewed.
const WANTED_FOR: Duration = Duration::from_secs(60);

/// Uses closer together than this are not noted.
const WANTED_STEP: Duration = Duration::from_secs(1);

/// A moment on the clock that counts suspended time, in ns since some moment in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(u64);

impl BootTime {
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(time) = crate::simulated::time() {
            return Self(nanos(time));
        }
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Self(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    /// Returns the moment that is so much later.
    #[must_use]
    pub fn later(self, by: Duration) -> Self {
        Self(self.0 + nanos(by))
    }

    /// Returns the time until this moment; zero if it has passed.
    pub fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(Self::now().0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The reason why the ownership of the data is not confirmed.
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
    /// Reason why it runs out, for the log.
    silence: &'static str,
    /// The moment at which it ends.
    until: AtomicU64,
    /// The moment of its last use; 0: none.
    wanted: AtomicU64,
    /// True once it has ended for good.
    ended: AtomicBool,
    away: AtomicBool,
    /// Wakes the task that renews it.
    renew: Arc<Notify>,
    /// Notified when it was renewed, and when it has ended for good.
    changed: Notify,
}

impl Lease {
    /// Creates a lease that does not hold yet; `renew` is notified when it must be renewed. `silence`:
    /// the reason why it runs out, for the log.
    pub fn new(lasts: Duration, silence: &'static str, renew: Arc<Notify>) -> Self {
        Self {
            lasts,
            silence,
            until: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            away: AtomicBool::new(false),
            renew,
            changed: Notify::new(),
        }
    }

    /// Returns how long a successor must wait, so that no lease of this length holds any more.
    pub fn successor_wait(lasts: Duration) -> Duration {
        lasts + lasts / MARGIN
    }

    /// Returns true if no other process can have answered up to now.
    pub fn holds(&self) -> bool {
        let now = BootTime::now().0;
        let wanted = self.wanted.load(Ordering::Relaxed);
        if wanted == 0 || now.saturating_sub(wanted) > nanos(WANTED_STEP) {
            self.wanted.store(now, Ordering::Relaxed);
        }
        !self.has_ended() && now < self.until.load(Ordering::Acquire)
    }

    /// Waits until the lease holds, at most for `limit`.
    ///
    /// # Errors
    /// If it has ended, or was not renewed in time; from then on every caller gets the error at
    /// once, until it is renewed.
    pub async fn confirm(&self, limit: Duration) -> Result<(), Unconfirmed> {
        if self.holds() {
            return Ok(());
        }
        match tokio::time::timeout(limit, self.until_it_holds()).await {
            Ok(confirmed) => confirmed,
            Err(_) => {
                self.give_up();
                Err(Unconfirmed::Away)
            }
        }
    }

    /// Notes that it is not renewed in time: every caller gets the error at once, until it is.
    pub(crate) fn give_up(&self) {
        if !self.away.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "the lease on the data has run out, as {}: reads are refused, but for \
                serve-stale-data yes",
                self.silence
            );
        }
        // It may just have been renewed.
        if self.holds() {
            self.is_back();
        }
        self.changed.notify_waiters();
    }

    pub(crate) async fn until_it_holds(&self) -> Result<(), Unconfirmed> {
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

    /// Returns true if a caller has waited for it in vain, and it was not renewed since.
    pub fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns true if it was renewed by a proof from `moment` on, or later.
    pub fn is_proven_since(&self, moment: BootTime) -> bool {
        self.until.load(Ordering::Acquire) >= moment.later(self.lasts).0
    }

    /// Has it renewed soon, as if data were to be shown.
    pub fn want(&self) {
        self.holds();
        self.renew.notify_one();
    }

    /// Returns how long it holds without a renewal.
    pub fn left(&self) -> Duration {
        if self.has_ended() {
            return Duration::ZERO;
        }
        BootTime(self.until.load(Ordering::Acquire)).left()
    }

    /// Returns when it must be renewed; `None`: it is not in use.
    pub(crate) fn renew_in(&self) -> Option<Duration> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let is_wanted = wanted != 0 && !BootTime(wanted).later(WANTED_FOR).left().is_zero();
        (is_wanted && !self.has_ended())
            .then(|| self.left().saturating_sub(self.lasts - self.lasts / RENEWALS))
    }

    /// Renews it: the data was owned after the moment `proven`.
    pub fn renew(&self, proven: BootTime) {
        let until = proven.later(self.lasts).0;
        // A proof that comes too late changes nothing.
        if self.until.fetch_max(until, Ordering::AcqRel) < until && until > BootTime::now().0 {
            self.is_back();
            self.changed.notify_waiters();
        }
    }

    fn is_back(&self) {
        if self.away.swap(false, Ordering::AcqRel) {
            tracing::info!("the lease on the data holds again: reads are answered");
        }
    }

    /// Lets it run out now, until it is renewed.
    pub fn expire(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Ends it for good.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(ms: u64) -> Lease {
        Lease::new(Duration::from_millis(ms), "of a test", Arc::new(Notify::new()))
    }

    #[test]
    fn a_lease_holds_from_its_proof_and_is_renewed_while_it_is_wanted() {
        let lease = lease(3_600_000);
        assert_eq!(lease.renew_in(), None, "nobody has asked for it");
        assert!(!lease.holds());
        assert_eq!(lease.renew_in(), Some(Duration::ZERO));
        lease.renew(BootTime::now());
        assert!(lease.holds());
        let (left, due) = (lease.left(), lease.renew_in().unwrap());
        assert!(left > Duration::from_secs(3590) && left <= Duration::from_secs(3600), "{left:?}");
        assert!(due > Duration::from_secs(1190) && due <= Duration::from_secs(1200), "{due:?}");
        // An older proof does not shorten it.
        lease.renew(BootTime(0));
        assert!(lease.holds());
        lease.end();
        lease.renew(BootTime::now().later(Duration::from_secs(9)));
        assert!(!lease.holds() && lease.left().is_zero() && lease.renew_in().is_none());
    }

    #[test]
    fn a_late_proof_does_not_renew_a_lease() {
        let lease = lease(1);
        let long_ago = BootTime(BootTime::now().0 - 2_000_000);
        lease.give_up();
        lease.renew(long_ago);
        assert!(!lease.holds() && lease.is_away());
        assert!(lease.is_proven_since(long_ago) && !lease.is_proven_since(BootTime::now()));
    }

    #[tokio::test]
    async fn waiters_for_a_lease_are_told_its_fate() {
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
        // After one caller has waited, the next one need not.
        assert_eq!(lease.confirm(long).await, Err(Unconfirmed::Away));
        lease.renew(BootTime::now());
        assert_eq!(lease.confirm(long).await, Ok(()));
        lease.until.store(0, Ordering::Release);
        let early = waiting();
        lease.renew.notified().await;
        lease.give_up();
        assert_eq!(early.await.unwrap(), Err(Unconfirmed::Away));
        lease.renew(BootTime::now());
        lease.until.store(0, Ordering::Release);
        let waiting = waiting();
        lease.renew.notified().await;
        lease.end();
        assert_eq!(waiting.await.unwrap(), Err(Unconfirmed::Lost));
    }
}
