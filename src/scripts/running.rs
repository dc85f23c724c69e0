//! Running scripts on threads of their own, which may be killed. While one is *busy*, most commands
//! are answered with an error.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Kind of the code that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptKind {
    /// A script of EVAL and the like.
    Script,
    /// A function of FCALL.
    Function,
}

impl ScriptKind {
    /// Returns the error for other commands while one is busy.
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
    pub kind: ScriptKind,
    /// Hash of the script, or name of the function.
    pub name: String,
    /// The command that has called it.
    pub command: Vec<Box<[u8]>>,
    pub began: Instant,
    killed: AtomicBool,
    /// True if it has called a command that writes.
    wrote: AtomicBool,
    /// True if it has run longer than `busy-reply-threshold`.
    busy: AtomicBool,
}

impl Control {
    pub fn new(kind: ScriptKind, name: String, command: Vec<Box<[u8]>>, began: Instant) -> Self {
        let no = || AtomicBool::new(false);
        Self { kind, name, command, began, killed: no(), wrote: no(), busy: no() }
    }

    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// Records that it is about to write: it cannot be killed any more, or has been.
    pub fn writes(&self) {
        self.wrote.store(true, Ordering::SeqCst);
    }
}

/// Registration of a running script, which ends when this is dropped.
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

/// Result of a request to kill scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillResult {
    Killed,
    /// No script runs.
    NotBusy,
    /// The script has written.
    Unkillable,
    /// The running script is of the other kind.
    Other,
}

/// How long no further busy script is logged after one.
const SILENCE: Duration = Duration::from_secs(60);

/// State of the log lines about busy scripts.
#[derive(Debug, Default)]
struct BusyLog {
    last: Option<Instant>,
    /// Number of busy scripts since the last line.
    untold: u64,
}

/// All running scripts.
#[derive(Debug, Default)]
pub struct Running {
    all: Mutex<Vec<Arc<Control>>>,
    busy: AtomicUsize,
    /// Number of scripts that have become busy so far.
    onsets: watch::Sender<u64>,
    told: Mutex<BusyLog>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Control>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a script, which runs until the result is dropped.
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

    /// Marks a script as busy; returns true if it was not before.
    pub fn set_busy(&self, control: &Control) -> bool {
        let is_new = !control.busy.swap(true, Ordering::Relaxed);
        if is_new {
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.onsets.send_modify(|onsets| *onsets += 1);
        }
        is_new
    }

    /// Returns a receiver that changes when a script has become busy.
    pub fn onsets(&self) -> watch::Receiver<u64> {
        self.onsets.subscribe()
    }

    /// Returns the number of busy scripts that were not logged, if a script that has become busy at
    /// `now` is to be logged.
    pub fn tells(&self, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < SILENCE) {
            told.untold += 1;
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.untold))
    }

    /// Returns the kind of a busy script, if there is one.
    #[inline]
    pub fn busy(&self) -> Option<ScriptKind> {
        if self.busy.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lock().iter().find(|c| c.busy.load(Ordering::Relaxed)).map(|c| c.kind)
    }

    /// Returns the script that has run longest.
    pub fn oldest(&self) -> Option<Arc<Control>> {
        self.lock().iter().min_by_key(|control| control.began).cloned()
    }

    /// Kills the busy scripts of a kind; if none is busy, all running ones.
    pub fn kill(&self, kind: ScriptKind) -> KillResult {
        let all = self.lock();
        let any_busy = all.iter().any(|c| c.busy.load(Ordering::Relaxed));
        let candidates = all.iter().filter(|c| !any_busy || c.busy.load(Ordering::Relaxed));
        let mut result = KillResult::NotBusy;
        for control in candidates {
            // A script that writes at this moment is rolled back with its changes.
            let was = if control.wrote.load(Ordering::SeqCst) {
                KillResult::Unkillable
            } else if control.kind != kind {
                KillResult::Other
            } else {
                control.killed.store(true, Ordering::SeqCst);
                KillResult::Killed
            };
            if result == KillResult::NotBusy || was == KillResult::Killed {
                result = was;
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(kind: ScriptKind) -> Control {
        Control::new(kind, "x".into(), Vec::new(), Instant::now())
    }

    #[test]
    fn a_script_may_be_killed_until_it_writes() {
        let running = Running::default();
        assert_eq!(running.kill(ScriptKind::Script), KillResult::NotBusy);
        let script = running.add(control(ScriptKind::Script));
        assert_eq!(running.kill(ScriptKind::Function), KillResult::Other);
        assert_eq!(running.kill(ScriptKind::Script), KillResult::Killed);
        assert!(script.control.is_killed());
        script.control.writes();
        assert_eq!(running.kill(ScriptKind::Script), KillResult::Unkillable);
        drop(script);
        assert_eq!(running.kill(ScriptKind::Script), KillResult::NotBusy);
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
        let young = running.add(control(ScriptKind::Script));
        let old = running.add(control(ScriptKind::Script));
        assert!(running.set_busy(&old.control) && !running.set_busy(&old.control));
        assert_eq!(running.busy(), Some(ScriptKind::Script));
        assert_eq!(running.kill(ScriptKind::Script), KillResult::Killed);
        assert!(old.control.is_killed() && !young.control.is_killed());
        drop(old);
        assert_eq!(running.busy(), None);
    }
}
