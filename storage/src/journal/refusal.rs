//! Appends that are refused: what operators are told of it, and how often a full disk is asked for
//! room.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::JournalError;
use super::local::{Shared, lock};

/// How long appends take a full disk's word for it before they ask for room again. To ask means to
/// fill what is left with zeros.
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// See the module's description.
#[derive(Default)]
pub(super) struct Refusals {
    /// The last append was refused, or writes are: the fast check of appends.
    any: AtomicBool,
    /// The last append was refused.
    last: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when writes are refused, and how many were.
    refusing: Option<(Instant, u64)>,
    /// When no segment could be prepared, and why, if there is none left.
    full: Option<(Instant, Cause)>,
}

/// An error, to be told again.
struct Cause {
    doing: &'static str,
    kind: io::ErrorKind,
    text: String,
}

impl Shared {
    /// An append was made.
    #[inline]
    pub(super) fn appended(&self) {
        if self.refusals.any.load(Ordering::Relaxed) {
            self.appended_again();
        }
    }

    #[cold]
    fn appended_again(&self) {
        self.refusals.last.store(false, Ordering::Relaxed);
        if !lock(&self.writer).spares.is_empty() {
            self.end_refusal();
        }
    }

    /// An append was refused. That is a state, and told, unless only this commit was too large for
    /// what is left.
    #[cold]
    pub(super) fn refused(&self, error: &JournalError) {
        let for_segments = match error {
            JournalError::NoSpace { path } => *path == self.dir,
            JournalError::Io { .. } => false,
            _ => return,
        };
        let is_too_large = for_segments && !lock(&self.writer).spares.is_empty();
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

    /// Segments are ready, so there is room.
    pub(super) fn found_room(&self) {
        if self.refusals.any.load(Ordering::Relaxed) {
            self.end_refusal();
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

    /// No segment could be prepared, and there is none left.
    pub(super) fn found_full(&self, error: &JournalError) {
        let (doing, kind, text) = match error {
            JournalError::NoSpace { .. } => ("", io::ErrorKind::StorageFull, String::new()),
            JournalError::Io { doing, source, .. } => (*doing, source.kind(), source.to_string()),
            _ => return,
        };
        let mut state = lock(&self.refusals.state);
        state.full = Some((Instant::now(), Cause { doing, kind, text }));
        self.refusals.any.store(true, Ordering::Relaxed);
    }

    /// Why an append need not ask for room, as another has just asked in vain.
    pub(super) fn known_full(&self) -> Option<JournalError> {
        let state = lock(&self.refusals.state);
        let (at, cause) = state.full.as_ref()?;
        let Cause { doing, kind, text } = cause;
        let error = || JournalError::io(doing, &self.dir, io::Error::new(*kind, text.clone()));
        (at.elapsed() < ASK_AGAIN).then(error)
    }

    /// Returns true if the last append was refused, and whether writes are refused.
    pub(super) fn refusing(&self) -> (bool, bool) {
        let refusing = lock(&self.refusals.state).refusing.is_some();
        (self.refusals.last.load(Ordering::Relaxed), refusing)
    }
}
