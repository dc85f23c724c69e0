//! Refused appends: their log lines, and the pace of new attempts on a full disk.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::JournalError;
use super::local::{LocalShared, lock};
use super::room::ENOUGH;

/// How long appends take a disk for full before they try again. Each try fills the remaining space
/// with zeros.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// See the module's description.
#[derive(Default)]
pub(super) struct Refusals {
    /// True if the last append was refused, or writes are: the fast check of appends.
    any: AtomicBool,
    /// True if the last append was refused.
    last: AtomicBool,
    state: Mutex<RefusalState>,
}

#[derive(Default)]
struct RefusalState {
    /// Time since which writes are refused, and how many were.
    refusing: Option<(Instant, u64)>,
    /// Time and cause of a failure to prepare a segment, if none is left.
    full: Option<(Instant, Cause)>,
}

/// A copy of an error, to return again.
struct Cause {
    doing: &'static str,
    kind: io::ErrorKind,
    text: String,
    /// Free bytes that engines need.
    free: Option<u64>,
}

impl LocalShared {
    /// Notes a successful append.
    #[inline]
    pub(super) fn note_append(&self) {
        if self.refusals.any.load(Ordering::Relaxed) {
            self.note_append_after_refusal();
        }
    }

    #[cold]
    fn note_append_after_refusal(&self) {
        self.refusals.last.store(false, Ordering::Relaxed);
        if !lock(&self.writer).spares.is_empty() {
            self.note_room();
        }
    }

    /// Notes a refused append. It begins a state of refusal, which is logged, unless only this
    /// commit was too large for the remaining space.
    #[cold]
    pub(super) fn note_refusal(&self, error: &JournalError) {
        let for_segments = match error {
            JournalError::NoSpace { path } => *path == self.dir,
            JournalError::NoRoom { .. } => true,
            JournalError::Io { .. } => false,
            _ => return,
        };
        let is_too_large = for_segments && !lock(&self.writer).spares.is_empty() && self.has_room();
        let mut state = lock(&self.refusals.state);
        self.refusals.last.store(true, Ordering::Relaxed);
        self.refusals.any.store(true, Ordering::Relaxed);
        if let Some((_, refused)) = &mut state.refusing {
            *refused += 1;
        } else if !is_too_large {
            state.refusing = Some((Instant::now(), 1));
            tracing::error!("writes are refused: {error}");
        }
    }

    /// Notes that segments are ready, so there is space.
    pub(super) fn note_room(&self) {
        let any = self.refusals.any.load(Ordering::Relaxed);
        if any && self.check_room(0, ENOUGH).is_ok() {
            self.end_refusal();
        }
    }

    /// Notes that commands are refused before they reach the journal.
    pub(super) fn note_short(&self, error: &JournalError) {
        let mut state = lock(&self.refusals.state);
        if state.refusing.is_none() {
            state.refusing = Some((Instant::now(), 0));
            self.refusals.any.store(true, Ordering::Relaxed);
            tracing::error!("writes are refused: {error}");
        }
    }

    fn end_refusal(&self) {
        let mut state = lock(&self.refusals.state);
        state.full = None;
        self.refusals.last.store(false, Ordering::Relaxed);
        self.refusals.any.store(false, Ordering::Relaxed);
        if let Some((since, refused)) = state.refusing.take() {
            let seconds = since.elapsed().as_secs();
            tracing::warn!(seconds, refused, "writes are accepted again");
        }
    }

    /// Notes that no segment could be prepared, and none is left.
    pub(super) fn note_full(&self, error: &JournalError) {
        let (doing, kind, text, free) = match error {
            JournalError::NoSpace { .. } => ("", io::ErrorKind::StorageFull, String::new(), None),
            JournalError::NoRoom { free, .. } => {
                ("", io::ErrorKind::StorageFull, String::new(), Some(*free))
            }
            JournalError::Io { doing, source, .. } => {
                (*doing, source.kind(), source.to_string(), None)
            }
            _ => return,
        };
        let mut state = lock(&self.refusals.state);
        state.full = Some((Instant::now(), Cause { doing, kind, text, free }));
        self.refusals.any.store(true, Ordering::Relaxed);
    }

    /// Returns the error of another append that has just tried for space in vain, if there was one.
    pub(super) fn recent_full(&self) -> Option<JournalError> {
        let state = lock(&self.refusals.state);
        let (at, cause) = state.full.as_ref()?;
        let Cause { doing, kind, text, free } = cause;
        let error = || match *free {
            Some(free) => JournalError::NoRoom { path: self.dir.clone(), free },
            None => JournalError::io(doing, &self.dir, io::Error::new(*kind, text.clone())),
        };
        (at.elapsed() < ASK_AGAIN).then(error)
    }

    /// Returns whether the last append was refused, and whether writes are refused.
    pub(super) fn refusing(&self) -> (bool, bool) {
        let refusing = lock(&self.refusals.state).refusing.is_some();
        (self.refusals.last.load(Ordering::Relaxed), refusing)
    }
}
