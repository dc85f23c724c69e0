//! The clock of SlateDB, and how often it asks a store in which nothing changes.
//!
//! Four tasks of an engine wait for ticks of this clock and then read from the store: the database
//! its manifest, the compactor that and the list of merges, the compactor's worker the list, the
//! collector what may be deleted. Each such check costs two requests and more. What the checks
//! look for is what another task of the same engine has stored: a flushed file, a merge to begin,
//! a merge that has ended. An engine has one owner, all of whose writes go through
//! [`Guarded`](crate::place::Guarded). So while that stores nothing and no merge waits to begin,
//! checks find nothing, and are made rarely ([`QuietIntervals`]); the next change wakes all tasks
//! whose usual interval has passed.
//!
//! If many files of level 0 wait to be merged ([`Hurry`]), the checks of the first three tasks are made
//! often: from a flush to the end of a merge each takes its turn, and at the usual interval of a bucket
//! that would be longer than a shard of a cluster may stay with one owner, so that the files grew to
//! the limit at which nothing is flushed.
//!
//! No rule of safety needs the checks. A former owner is kept from storing anything by the numbers
//! of manifests and lists of merges, each of which is created once; it learns from them that it
//! was replaced, at its next write or at its next check. What it may answer is up to the lease
//! (RFC 9).

use super::Upkeep;
use crate::clock::Clock;
use crate::place::Writes;
use chrono::{DateTime, Utc};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Number of checks that are made after a change of the store before it counts as quiet. Each step
/// from a flush to the end of a merge is a change, so one would do.
const CHECKS: u32 = 3;

/// Returns how long nothing has changed when a store counts as quiet. A merge in work notes more often
/// that it goes on, so a store is not quiet meanwhile.
pub(super) fn quiet_after(upkeep: &Upkeep) -> Duration {
    CHECKS * upkeep.poll
}

/// Number of rounds of the collector after the time for which replaced files are kept: one drops
/// the checkpoint that keeps them, which is a change, and the next one deletes them.
const ROUNDS: u32 = 4;

/// Intervals of checks of a quiet bucket. The first one is how late a server that nobody uses
/// learns that another one has opened its files.
const QUIET_POLL: Duration = Duration::from_secs(60);
const QUIET_COLLECT: Duration = Duration::from_secs(3600);

/// Intervals of checks of a store in which this process has changed nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuietIntervals {
    /// Of checks for merges to start, for merges that ended, and for another owner.
    pub poll: Duration,
    /// Of checks for files to delete.
    pub collect: Duration,
}

impl QuietIntervals {
    /// Those of a bucket, in which each check is paid.
    pub(super) const BUCKET: Self = Self { poll: QUIET_POLL, collect: QUIET_COLLECT };
}

/// Interval of checks while many files of level 0 wait.
const HURRIED: Duration = Duration::from_millis(250);

/// True while merges should begin as soon as possible.
#[derive(Debug, Default)]
pub(super) struct Hurry(watch::Sender<bool>);

impl Hurry {
    pub(super) fn set(&self, hurry: bool) {
        self.0.send_if_modified(|now| std::mem::replace(now, hurry) != hurry);
    }

    /// Waits until merges should begin, and for a short interval then.
    async fn interval(&self, timer: &DefaultSystemClock) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|hurry| *hurry).await;
        timer.sleep(HURRIED).await;
    }
}

/// The clock given to SlateDB: a [`Clock`], which does not step back (a clock that does closes the
/// writer).
#[derive(Debug)]
pub(super) struct EngineClock {
    polls: EngineTicks,
    collections: EngineTicks,
    /// Ticks of this interval or a longer one are the collector's.
    collect: Duration,
}

impl EngineClock {
    /// Returns the clock of an engine whose writes to its store are these.
    pub(super) fn new(
        clock: &Clock,
        upkeep: &Upkeep,
        writes: &Arc<Writes>,
        hurry: &Arc<Hurry>,
    ) -> Self {
        let ticks = |after: Duration, interval: fn(&QuietIntervals) -> Duration| EngineTicks {
            clock: clock.clone(),
            timer: DefaultSystemClock::new(),
            hurry: None,
            quiet: upkeep.quiet.as_ref().map(|quiet| QuietStore {
                writes: writes.clone(),
                after,
                interval: interval(quiet),
            }),
        };
        let kept = upkeep.keep_files.unwrap_or_default();
        let polls = ticks(quiet_after(upkeep), |quiet| quiet.poll);
        Self {
            polls: EngineTicks { hurry: Some(hurry.clone()), ..polls },
            collections: ticks(kept + ROUNDS * upkeep.collect, |quiet| quiet.collect),
            collect: upkeep.collect,
        }
    }
}

impl SystemClock for EngineClock {
    fn now(&self) -> DateTime<Utc> {
        self.polls.now()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.polls.timer.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        let ticks = if duration >= self.collect { &self.collections } else { &self.polls };
        ticks.ticker(duration)
    }
}

/// When a store is quiet, and how often it is checked then.
#[derive(Debug)]
struct QuietStore {
    writes: Arc<Writes>,
    /// How long nothing has changed.
    after: Duration,
    interval: Duration,
}

/// A clock whose sleeps are the pauses between ticks: they last longer while the store is quiet.
#[derive(Debug)]
struct EngineTicks {
    clock: Clock,
    timer: DefaultSystemClock,
    /// `None`: they never do.
    quiet: Option<QuietStore>,
    /// `None`: they are never shorter.
    hurry: Option<Arc<Hurry>>,
}

impl EngineTicks {
    /// Sleeps for an interval of checks, and for longer while the store is quiet.
    async fn usual(&self, duration: Duration) {
        self.timer.sleep(duration).await;
        if let Some(quiet) = &self.quiet {
            let recent = quiet.writes.changes().until_recent(quiet.after);
            let rest = quiet.interval.saturating_sub(duration);
            // The time limit is how long it may be quiet.
            let _ = tokio::time::timeout(rest, recent).await;
        }
    }
}

impl SystemClock for EngineTicks {
    fn now(&self) -> DateTime<Utc> {
        let now_us = i64::try_from(self.clock.now_us()).unwrap_or(i64::MAX);
        DateTime::from_timestamp_micros(now_us).unwrap_or_default()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            match &self.hurry {
                Some(hurry) => tokio::select! {
                    () = self.usual(duration) => {}
                    () = hurry.interval(&self.timer) => {}
                },
                None => self.usual(duration).await,
            }
        })
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
