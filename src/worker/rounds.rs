//! Who waits for which round, and what became of it.
//!
//! A round fails if its record is not appended: then no reply may show its changes. The outcome is
//! known when the round is closed, but replies ask for it later, maybe much later: those of a batch
//! wait for a command of it that is parked. So a reply that shows an open round keeps a reference to
//! the round's [`Fate`]. There is no list of failed rounds that could become too long.

use flagstone_storage::journal::JournalError;
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The error text for commands whose round could not be stored.
#[derive(Clone, Debug)]
pub struct RoundError(pub String);

/// Errors that begin so say that the store of the journal is away.
const AWAY: &str = "MISCONF";

/// Whether a reply says that the store of the journal is away.
pub(crate) fn says_away(reply: &[u8]) -> bool {
    reply.strip_prefix(b"-").is_some_and(|text| text.starts_with(AWAY.as_bytes()))
}

/// What clients are told when a record could not be appended: nothing has changed.
pub(crate) fn refusal(error: &JournalError) -> String {
    match error {
        JournalError::NoSpace { .. } => format!("ERR no space left to store the write: {error}"),
        JournalError::Away { .. } => {
            format!("{AWAY} the write was not accepted: {error}")
        }
        _ => format!("ERR the write could not be stored: {error}"),
    }
}

/// The outcome of a round; it lives as long as replies that show the round.
#[derive(Debug)]
struct Fate {
    round: u64,
    /// Why its record was not appended.
    error: OnceCell<RoundError>,
}

impl Fate {
    fn of(round: u64) -> Rc<Self> {
        Rc::new(Self { round, error: OnceCell::new() })
    }
}

/// The rounds that replies show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// The greatest; 0: none that anybody would have to wait for.
    round: u64,
    /// Of those that were open when they were seen; the others are closed, and did not fail.
    fates: SmallVec<[Rc<Fate>; 1]>,
}

impl Shown {
    /// Of changes that are in the journal already, but may not be durable; see
    /// [`Store::stored_round`].
    ///
    /// [`Store::stored_round`]: flagstone_storage::Store::stored_round
    pub(crate) fn stored(round: u64) -> Self {
        Self { round, ..Self::default() }
    }

    /// The greatest of them; 0: all that is shown was stored long ago.
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// Adds what other replies show.
    pub(crate) fn add(&mut self, other: Self) {
        self.round = self.round.max(other.round);
        self.fates.extend(other.fates);
    }

    /// Why a round of these failed.
    fn failure(&self, round: u64) -> Option<&RoundError> {
        self.fates.iter().find(|fate| fate.round == round)?.error.get()
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// The greatest that is closed.
    closed: Cell<u64>,
    /// The same, with everything before it durable.
    durable: Cell<u64>,
    /// Of the round that is open.
    fate: RefCell<Rc<Fate>>,
    journal_failed: RefCell<Option<RoundError>>,
    /// What is in the journal waits for its store for too long.
    away: RefCell<Option<RoundError>>,
    waiting: RefCell<Vec<(u64, bool, Waker)>>,
}

impl Rounds {
    /// Of a worker whose first round is `open`.
    pub(crate) fn new(open: u64) -> Self {
        Self {
            closed: Cell::default(),
            durable: Cell::default(),
            fate: RefCell::new(Fate::of(open)),
            journal_failed: RefCell::default(),
            away: RefCell::default(),
            waiting: RefCell::default(),
        }
    }

    /// A command has seen a round, right now.
    #[inline]
    pub(crate) fn see(&self, round: u64, shown: &mut Shown) {
        if round > shown.round {
            shown.round = round;
            let fate = self.fate.borrow();
            debug_assert!(round <= fate.round, "a round was seen that is not open yet");
            if fate.round == round {
                shown.fates.push(Rc::clone(&fate));
            }
        }
    }

    /// The rounds that a command shows which has seen this one, right now.
    pub(crate) fn seen(&self, round: u64) -> Shown {
        let mut shown = Shown::default();
        self.see(round, &mut shown);
        shown
    }

    /// The record of the round that is being closed was not appended.
    pub(crate) fn fail(&self, error: &JournalError) {
        // Only the first reason counts.
        let _ = self.fate.borrow().error.set(RoundError(refusal(error)));
    }

    /// Nothing becomes durable any more.
    pub(crate) fn fail_all(&self, reason: &str) {
        let text = format!("ERR the write could not be stored: the journal has failed: {reason}");
        *self.journal_failed.borrow_mut() = Some(RoundError(text));
        self.wake(|_, _| true);
    }

    /// Nothing becomes durable for now, or (`None`) it does again.
    pub(crate) fn set_away(&self, error: Option<&JournalError>) {
        if error.is_none() && self.away.borrow().is_none() {
            return;
        }
        let text = |error| {
            format!(
                "{AWAY} it is not known whether the write is stored, and it may be later: \
                 {error}"
            )
        };
        *self.away.borrow_mut() = error.map(|error| RoundError(text(error)));
        if error.is_some() {
            self.wake(|_, to_disk| to_disk);
        }
    }

    /// Rounds up to `closed` are in the journal or have failed, up to `durable` all is durable that
    /// they have brought into it; `open` is the one that follows.
    pub(crate) fn advance(&self, closed: u64, durable: u64, open: u64) {
        self.closed.set(closed);
        self.durable.set(durable);
        if self.fate.borrow().round != open {
            self.fate.replace(Fate::of(open));
        }
        self.wake(|round, to_disk| round <= if to_disk { durable } else { closed });
    }

    fn wake(&self, done: impl Fn(u64, bool) -> bool) {
        self.waiting.borrow_mut().retain(|(round, to_disk, waker)| {
            let done = done(*round, *to_disk);
            if done {
                waker.wake_by_ref();
            }
            !done
        });
    }

    /// Whether it is known what became of all that replies show: it is stored, or it failed, or that
    /// will not be known.
    pub(crate) fn is_known(&self, shown: &Shown, to_disk: bool) -> bool {
        self.outcome(shown.round, to_disk).is_some()
    }

    /// Whether all that replies show is stored.
    pub(crate) fn is_stored(&self, shown: &Shown, to_disk: bool) -> bool {
        matches!(self.outcome(shown.round, to_disk), Some(Ok(())))
            && shown.fates.iter().all(|fate| fate.error.get().is_none())
    }

    /// Why the one of these replies that shows a round is not to be given; it is known what became
    /// of all of them.
    pub(crate) fn failure(&self, shown: &Shown, round: u64, to_disk: bool) -> Option<RoundError> {
        let failed = shown.failure(round).cloned();
        failed.or_else(|| self.outcome(round, to_disk)?.err())
    }

    /// The same of all of these replies together.
    pub(crate) fn any_failure(&self, shown: &Shown, to_disk: bool) -> Option<RoundError> {
        let failed = shown.fates.iter().find_map(|fate| fate.error.get().cloned());
        failed.or_else(|| self.outcome(shown.round, to_disk)?.err())
    }

    /// Whether what rounds up to this one have brought into the journal is stored; `None`: not yet.
    fn outcome(&self, round: u64, to_disk: bool) -> Option<Result<(), RoundError>> {
        if round <= if to_disk { self.durable.get() } else { self.closed.get() } {
            return Some(Ok(()));
        }
        if to_disk || round > self.closed.get() {
            let failed = self.journal_failed.borrow().clone();
            let is_closed = round <= self.closed.get();
            let away = || self.away.borrow().clone().filter(|_| is_closed);
            return failed.or_else(away).map(Err);
        }
        None
    }

    /// Waits until it is known what became of all that replies show.
    pub(crate) async fn wait(&self, shown: &Shown, to_disk: bool) {
        poll_fn(|cx| {
            if self.is_known(shown, to_disk) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push((shown.round, to_disk, cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
