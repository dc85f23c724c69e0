//! Events that took long, of the storage and of the server (LATENCY): for each class of event its
//! latest spikes. An event counts from `latency-monitor-threshold` on.
//!
//! The events of a process are kept in one place, [`LATENCY`], so that code at any depth can report
//! one.

use crate::clock::Clock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Number of spikes of a class that are kept; those of one second are one.
pub const MAX_SPIKES: usize = 160;

/// A class of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LatencyEvent {
    /// A load of data that commands wait for.
    ColdRead,
    /// A command that may take long.
    Command,
    /// A batch of rows whose write to an engine waited, because the engine had no room.
    EngineWriteStall,
    /// A deletion of expired keys, on the worker's thread.
    ExpireCycle,
    /// A command of constant or logarithmic time.
    FastCommand,
    /// The parts of a hand-over that run on the worker's thread.
    HandOver,
    /// A sync of the journal, or a request that stores a part of it in a bucket.
    JournalSync,
}

impl LatencyEvent {
    pub const ALL: [Self; 7] = [
        Self::ColdRead,
        Self::Command,
        Self::EngineWriteStall,
        Self::ExpireCycle,
        Self::FastCommand,
        Self::HandOver,
        Self::JournalSync,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ColdRead => "cold-read",
            Self::Command => "command",
            Self::EngineWriteStall => "engine-write-stall",
            Self::ExpireCycle => "expire-cycle",
            Self::FastCommand => "fast-command",
            Self::HandOver => "hand-over",
            Self::JournalSync => "journal-sync",
        }
    }

    /// Returns the class of a name.
    pub fn named(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// The longest event of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spike {
    /// Seconds since the Unix epoch.
    pub time_s: u64,
    pub ms: u64,
}

/// The spikes of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpikeSeries {
    /// Latest last; at least one.
    pub spikes: VecDeque<Spike>,
    /// Longest event so far, and the sum and number of all.
    pub max_ms: u64,
    pub sum_ms: u64,
    pub count: u64,
}

impl SpikeSeries {
    fn add(&mut self, spike: Spike) {
        self.max_ms = self.max_ms.max(spike.ms);
        self.sum_ms += spike.ms;
        self.count += 1;
        match self.spikes.back_mut().filter(|last| last.time_s == spike.time_s) {
            Some(last) => last.ms = last.ms.max(spike.ms),
            None => {
                if self.spikes.len() >= MAX_SPIKES {
                    self.spikes.pop_front();
                }
                self.spikes.push_back(spike);
            }
        }
    }
}

/// A function that is told of an event that took long, how long, and when it ended, in microseconds
/// since the Unix epoch. It is called where the event has happened, so it must not wait.
pub type EventObserver = fn(LatencyEvent, Duration, u64);

/// The series of all classes that had an event.
#[derive(Debug)]
pub struct LatencyMonitor {
    /// Zero: no event is recorded.
    threshold_ms: AtomicU64,
    clock: OnceLock<Clock>,
    observer: OnceLock<EventObserver>,
    series: Mutex<BTreeMap<LatencyEvent, SpikeSeries>>,
}

/// The events of this process.
pub static LATENCY: LatencyMonitor = LatencyMonitor::new();

impl LatencyMonitor {
    const fn new() -> Self {
        Self {
            threshold_ms: AtomicU64::new(0),
            clock: OnceLock::new(),
            observer: OnceLock::new(),
            series: Mutex::new(BTreeMap::new()),
        }
    }

    fn series(&self) -> MutexGuard<'_, BTreeMap<LatencyEvent, SpikeSeries>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock that spikes are dated by; without one, none are recorded. To be called once.
    pub fn set_clock(&self, clock: Clock) {
        // A second call would be that of another server in the same process.
        let _ = self.clock.set(clock);
    }

    /// Sets the function that is told of the recorded events. To be called once.
    pub fn set_observer(&self, observer: EventObserver) {
        // A second call would be that of another server in the same process.
        let _ = self.observer.set(observer);
    }

    /// Sets the milliseconds from which events are recorded; zero: none.
    pub fn set_threshold(&self, ms: u64) {
        self.threshold_ms.store(ms, Ordering::Relaxed);
    }

    /// Records an event if it took long.
    #[inline]
    pub fn note(&self, event: LatencyEvent, took: Duration) {
        let threshold_ms = self.threshold_ms.load(Ordering::Relaxed);
        if threshold_ms != 0 && took.as_millis() >= u128::from(threshold_ms) {
            self.record(event, took);
        }
    }

    #[cold]
    fn record(&self, event: LatencyEvent, took: Duration) {
        let Some(clock) = self.clock.get() else { return };
        if let Some(observer) = self.observer.get() {
            observer(event, took, clock.now_us());
        }
        let spike = Spike { time_s: clock.now_ms() / 1000, ms: took.as_millis() as u64 };
        self.series().entry(event).or_default().add(spike);
    }

    /// Returns the series of a class, if it had an event.
    pub fn of(&self, event: LatencyEvent) -> Option<SpikeSeries> {
        self.series().get(&event).cloned()
    }

    /// Returns the series of all classes that had events.
    pub fn all(&self) -> Vec<(LatencyEvent, SpikeSeries)> {
        self.series().iter().map(|(event, series)| (*event, series.clone())).collect()
    }

    /// Forgets the events of a class; returns false if it had none.
    pub fn reset(&self, event: LatencyEvent) -> bool {
        self.series().remove(&event).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spikes_of_one_second_are_one_and_the_oldest_go() {
        let mut series = SpikeSeries::default();
        for (time_s, ms) in [(1, 10), (1, 30), (1, 20), (3, 5)] {
            series.add(Spike { time_s, ms });
        }
        assert_eq!(series.spikes, [Spike { time_s: 1, ms: 30 }, Spike { time_s: 3, ms: 5 }]);
        assert_eq!((series.max_ms, series.sum_ms, series.count), (30, 65, 4));
        (10..10 + MAX_SPIKES as u64).for_each(|time_s| series.add(Spike { time_s, ms: 1 }));
        assert_eq!(series.spikes.len(), MAX_SPIKES);
        assert_eq!(series.spikes[0].time_s, 10);
        assert_eq!(series.max_ms, 30, "that of all times stays");
    }

    #[test]
    fn an_observer_is_told_of_what_is_recorded() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let monitor = LatencyMonitor::new();
        monitor.set_clock(Clock::default());
        monitor.set_threshold(5);
        monitor.set_observer(|event, took, end_us| {
            assert_eq!(event, LatencyEvent::JournalSync);
            assert!(end_us > 1_000_000_000_000_000, "{end_us}");
            TOLD.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        });
        monitor.note(LatencyEvent::JournalSync, Duration::from_micros(4999));
        monitor.note(LatencyEvent::JournalSync, Duration::from_micros(5007));
        assert_eq!(TOLD.load(Ordering::Relaxed), 5007);
    }

    #[test]
    fn events_count_from_the_threshold_on() {
        let monitor = LatencyMonitor::new();
        let ms = Duration::from_millis;
        monitor.set_threshold(5);
        monitor.note(LatencyEvent::Command, ms(5));
        assert_eq!(monitor.all(), [], "there is no clock yet");
        monitor.set_clock(Clock::default());
        monitor.note(LatencyEvent::Command, ms(5) - Duration::from_nanos(1));
        assert_eq!(monitor.of(LatencyEvent::Command), None);
        monitor.note(LatencyEvent::Command, ms(5));
        monitor.set_threshold(0);
        monitor.note(LatencyEvent::Command, ms(50));
        let count = |event| monitor.of(event).map(|series| (series.count, series.max_ms));
        assert_eq!(count(LatencyEvent::Command), Some((1, 5)));
        assert!(monitor.reset(LatencyEvent::Command) && !monitor.reset(LatencyEvent::Command));
    }

    #[test]
    fn names_are_those_of_the_classes() {
        for event in LatencyEvent::ALL {
            assert_eq!(LatencyEvent::named(event.name().as_bytes()), Some(event));
        }
        assert_eq!(LatencyEvent::named(b"COMMAND"), Some(LatencyEvent::Command));
        assert_eq!(LatencyEvent::named(b"fork"), None);
    }
}
