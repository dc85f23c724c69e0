//! The state of a failover: this server exchanges its role with that of a replica (FAILOVER).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// A failover that was asked for.
#[derive(Clone, Debug, Default)]
pub struct FailoverWish {
    /// Address of the replica, as it has announced it; `None`: any that has all data.
    pub target: Option<(String, u16)>,
    /// True if the replica becomes the primary after the timeout although it lacks data.
    pub is_forced: bool,
    pub timeout: Option<Duration>,
}

/// Step of a failover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailoverStep {
    #[default]
    None,
    /// Writes wait until the replica has all data.
    WaitsForSync,
    /// The replica is asked to become the primary.
    InProgress,
}

impl FailoverStep {
    /// Returns the name in INFO.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "no-failover",
            Self::WaitsForSync => "waiting-for-sync",
            Self::InProgress => "failover-in-progress",
        }
    }
}

/// The failover of this server, if there is one.
#[derive(Debug, Default)]
pub struct Failover {
    /// Number of the last one, and its step.
    state: Mutex<(u64, FailoverStep)>,
    /// Rings when it has ended.
    ended: Notify,
}

impl Failover {
    fn state(&self) -> MutexGuard<'_, (u64, FailoverStep)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the step.
    pub fn step(&self) -> FailoverStep {
        self.state().1
    }

    /// Returns the number of the last failover.
    pub fn number(&self) -> u64 {
        self.state().0
    }

    /// Begins a failover, unless there is one. Returns its number.
    pub fn begin(&self) -> Option<u64> {
        let mut state = self.state();
        if state.1 != FailoverStep::None {
            return None;
        }
        *state = (state.0 + 1, FailoverStep::WaitsForSync);
        Some(state.0)
    }

    /// Returns true if a failover is at a step.
    pub fn is_at(&self, number: u64, step: FailoverStep) -> bool {
        *self.state() == (number, step)
    }

    /// Takes a failover from one step to another. Returns false if it is not there.
    pub fn go(&self, number: u64, from: FailoverStep, to: FailoverStep) -> bool {
        let mut state = self.state();
        if *state != (number, from) {
            return false;
        }
        state.1 = to;
        true
    }

    /// Ends a failover, and what it holds by `release`, before another one can begin. Returns false if it is not at
    /// one of these steps.
    pub fn end(&self, number: u64, from: &[FailoverStep], release: impl FnOnce()) -> bool {
        let mut state = self.state();
        if state.0 != number || !from.contains(&state.1) {
            return false;
        }
        state.1 = FailoverStep::None;
        release();
        drop(state);
        self.ended.notify_waiters();
        true
    }

    /// Waits until it has ended, at most for some time.
    pub async fn wait_end(&self, limit: Duration) {
        let ended = self.ended.notified();
        if self.step() != FailoverStep::None {
            let _ = tokio::time::timeout(limit, ended).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_that_was_aborted_changes_no_later_one() {
        use FailoverStep::{InProgress, WaitsForSync};
        let failover = Failover::default();
        let first = failover.begin().unwrap();
        assert!(failover.begin().is_none() && failover.is_at(first, WaitsForSync));
        let mut released = 0;
        assert!(!failover.end(first, &[InProgress], || released += 10));
        assert!(failover.end(first, &[InProgress, WaitsForSync], || released += 1));
        assert_eq!(released, 1);
        let second = failover.begin().unwrap();
        assert!(!failover.is_at(first, WaitsForSync));
        assert!(!failover.go(first, WaitsForSync, InProgress));
        assert!(!failover.end(first, &[WaitsForSync], || released += 10));
        assert!(failover.go(second, WaitsForSync, InProgress));
        assert_eq!((failover.step().as_str(), failover.number()), ("failover-in-progress", second));
    }
}
