//! The scripts that run for long, which may be killed; while one is *busy*, clients are told so.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// EVAL and the like.
    Script,
    /// FCALL.
    Function,
}

impl Kind {
    /// What clients are told while one is busy.
    pub fn busy_text(self) -> &'static str {
        match self {
            Self::Script => {
                "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN \
                NOSAVE."
            }
            Self::Function => {
                "BUSY Valkey is busy running a script. You can only call FUNCTION KILL or SHUTDOWN \
                NOSAVE."
            }
        }
    }
}

/// A script that runs on a thread of its own.
#[derive(Debug)]
pub struct Control {
    pub kind: Kind,
    /// The hash of the script, or the function's name.
    pub name: String,
    /// The command that has called it.
    pub command: Vec<Box<[u8]>>,
    pub began: Instant,
    killed: AtomicBool,
    /// It has called a command that writes.
    wrote: AtomicBool,
    /// It has run longer than `busy-reply-threshold`.
    busy: AtomicBool,
}

impl Control {
    pub fn new(kind: Kind, name: String, command: Vec<Box<[u8]>>, began: Instant) -> Self {
        let no = || AtomicBool::new(false);
        Self { kind, name, command, began, killed: no(), wrote: no(), busy: no() }
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// It is about to write: it cannot be killed any more, or has been.
    pub fn writes(&self) {
        self.wrote.store(true, Ordering::SeqCst);
    }
}

/// A script that runs; dropped, it has ended.
#[derive(Debug)]
pub struct Entered<'a> {
    running: &'a Running,
    pub control: Arc<Control>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.running.remove(&self.control);
    }
}

/// What became of a request to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Killed,
    /// Nothing runs.
    NotBusy,
    /// It has written.
    Unkillable,
    /// What runs is of the other kind.
    Other,
}

/// How long the log is silent about busy scripts after it has told of one.
const SILENCE: Duration = Duration::from_secs(60);

/// What the log has told of busy scripts.
#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    /// Busy scripts since then.
    untold: u64,
}

/// See the module's description.
#[derive(Debug, Default)]
pub struct Running {
    all: Mutex<Vec<Arc<Control>>>,
    busy: AtomicUsize,
    told: Mutex<Told>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Control>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A script runs until what comes back is dropped.
    pub fn add(&self, control: Control) -> Entered<'_> {
        let control = Arc::new(control);
        self.lock().push(control.clone());
        Entered { running: self, control }
    }

    fn remove(&self, control: &Arc<Control>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, control));
        if control.busy.load(Ordering::Relaxed) {
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// It has run for long; whether that is new.
    pub fn set_busy(&self, control: &Control) -> bool {
        let is_new = !control.busy.swap(true, Ordering::Relaxed);
        if is_new {
            self.busy.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }

    /// Whether the log is to tell of a script that has become busy at `now`: how many others it has
    /// not told of.
    pub fn tells(&self, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < SILENCE) {
            told.untold += 1;
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.untold))
    }

    /// The kind of the script that has run for long, if there is one.
    #[inline]
    pub fn busy(&self) -> Option<Kind> {
        if self.busy.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lock().iter().find(|c| c.busy.load(Ordering::Relaxed)).map(|c| c.kind)
    }

    /// What has run the longest.
    pub fn oldest(&self) -> Option<Arc<Control>> {
        self.lock().iter().min_by_key(|control| control.began).cloned()
    }

    /// Kills those of a kind that run for long; where there are none, all that run.
    pub fn kill(&self, kind: Kind) -> Kill {
        let all = self.lock();
        let any_busy = all.iter().any(|c| c.busy.load(Ordering::Relaxed));
        let candidates = all.iter().filter(|c| !any_busy || c.busy.load(Ordering::Relaxed));
        let mut result = Kill::NotBusy;
        for control in candidates {
            // One that writes at this moment is taken back with what it has written.
            let was = if control.wrote.load(Ordering::SeqCst) {
                Kill::Unkillable
            } else if control.kind != kind {
                Kill::Other
            } else {
                control.killed.store(true, Ordering::SeqCst);
                Kill::Killed
            };
            if result == Kill::NotBusy || was == Kill::Killed {
                result = was;
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(kind: Kind) -> Control {
        Control::new(kind, "x".into(), Vec::new(), Instant::now())
    }

    #[test]
    fn who_runs_may_be_killed_until_he_writes() {
        let running = Running::default();
        assert_eq!(running.kill(Kind::Script), Kill::NotBusy);
        let script = running.add(control(Kind::Script));
        assert_eq!(running.kill(Kind::Function), Kill::Other);
        assert_eq!(running.kill(Kind::Script), Kill::Killed);
        assert!(script.control.is_killed());
        script.control.writes();
        assert_eq!(running.kill(Kind::Script), Kill::Unkillable);
        drop(script);
        assert_eq!(running.kill(Kind::Script), Kill::NotBusy);
    }

    #[test]
    fn the_log_is_not_filled_by_busy_scripts() {
        let (running, now) = (Running::default(), Instant::now());
        assert_eq!(running.tells(now), Some(0));
        assert_eq!(running.tells(now + SILENCE / 2), None);
        assert_eq!(running.tells(now + SILENCE / 2), None);
        assert_eq!(running.tells(now + SILENCE), Some(2));
        assert_eq!(running.tells(now + SILENCE), None);
        assert_eq!(running.tells(now + SILENCE * 3), Some(1));
    }

    #[test]
    fn the_busy_ones_are_meant() {
        let running = Running::default();
        let young = running.add(control(Kind::Script));
        let old = running.add(control(Kind::Script));
        assert!(running.set_busy(&old.control) && !running.set_busy(&old.control));
        assert_eq!(running.busy(), Some(Kind::Script));
        assert_eq!(running.kill(Kind::Script), Kill::Killed);
        assert!(old.control.is_killed() && !young.control.is_killed());
        drop(old);
        assert_eq!(running.busy(), None);
    }
}
