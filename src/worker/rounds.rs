//! Outcomes of rounds, and the tasks that wait for them.
//!
//! A round fails if its record is not appended: then no reply may show its changes. The outcome is
//! known when the round is closed, but replies may ask for it much later: those of a batch wait for
//! its parked commands. So a reply that shows an open round keeps a reference to the round's
//! [`Fate`], and no list of failed rounds can grow without bound.

use crate::command::{Outcome, RoundError};
use flagstone_storage::journal::JournalError;
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Returns the error for a record that could not be appended: nothing has changed.
pub(crate) fn refusal(error: &JournalError) -> RoundError {
    match error {
        JournalError::NoSpace { .. } | JournalError::NoRoom { .. } => {
            format!("ERR no space left to store the write: {error}").into()
        }
        JournalError::Away { .. } => {
            let text = format!("MISCONF the write was not accepted: {error}");
            RoundError { text, outcome: Outcome::Refused }
        }
        JournalError::NotOwned(_) => {
            let text = format!("TRYAGAIN the write was not accepted: {error}");
            RoundError { text, outcome: Outcome::Refused }
        }
        _ => format!("ERR the write could not be stored: {error}").into(),
    }
}

/// Returns the error for a record that may become durable, but has waited for the store for too long.
pub(super) fn unknown(error: &JournalError) -> RoundError {
    let text = format!(
        "MISCONF it is not known whether the write is stored, and it may be later: {error}"
    );
    RoundError { text, outcome: Outcome::Refused }
}

/// Returns the error for a record that no replica has confirmed in time.
pub(super) fn unconfirmed() -> RoundError {
    let text =
        "NOREPLICAS It is not known whether the write stays: too few replicas have confirmed it.";
    RoundError { text: text.to_owned(), outcome: Outcome::Refused }
}

/// Outcome of a round; it lives as long as replies that show the round.
#[derive(Debug)]
struct Fate {
    round: u64,
    /// Reason why the round's record was not appended.
    error: OnceCell<RoundError>,
}

impl Fate {
    fn of(round: u64) -> Rc<Self> {
        Rc::new(Self { round, error: OnceCell::new() })
    }
}

/// Rounds that replies show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// Greatest round; 0 if none has to be waited for.
    round: u64,
    /// How often rounds had been given up when the first one was seen.
    era: u64,
    /// Outcomes of the rounds that were open when they were seen; the others are closed, and did
    /// not fail.
    fates: SmallVec<[Rc<Fate>; 1]>,
}

impl Shown {
    /// Returns the greatest round; 0 if all that is shown was stored long ago.
    pub(crate) fn round(&self) -> u64 {
        self.round
    }

    /// Adds the rounds that other replies show.
    pub(crate) fn add(&mut self, other: Self) {
        self.era = match (self.round, other.round) {
            (_, 0) => self.era,
            (0, _) => other.era,
            _ => self.era.min(other.era),
        };
        self.round = self.round.max(other.round);
        self.fates.extend(other.fates);
    }

    /// Returns the error of a round that failed.
    fn failure(&self, round: u64) -> Option<&RoundError> {
        self.fates.iter().find(|fate| fate.round == round)?.error.get()
    }
}

/// Rounds of a worker.
#[derive(Debug)]
pub(crate) struct Rounds {
    /// Greatest round that is closed.
    closed: Cell<u64>,
    /// Greatest closed round up to which everything is durable.
    durable: Cell<u64>,
    /// Outcome of the open round.
    fate: RefCell<Rc<Fate>>,
    journal_failed: RefCell<Option<RoundError>>,
    /// Error while records in the journal have waited too long for its store, or for replicas.
    away: RefCell<Option<RoundError>>,
    /// The first and the last round that were given up; 0: none.
    given_up: Cell<(u64, u64)>,
    /// How often that has happened.
    give_ups: Cell<u64>,
    waiting: RefCell<Vec<(u64, bool, Waker)>>,
}

impl Rounds {
    /// Creates the rounds of a worker whose first round is `open`.
    pub(crate) fn new(open: u64) -> Self {
        Self {
            closed: Cell::default(),
            durable: Cell::default(),
            fate: RefCell::new(Fate::of(open)),
            journal_failed: RefCell::default(),
            away: RefCell::default(),
            given_up: Cell::default(),
            give_ups: Cell::default(),
            waiting: RefCell::default(),
        }
    }

    /// Adds a round that a command has seen just now.
    #[inline]
    pub(crate) fn see(&self, round: u64, shown: &mut Shown) {
        if round > shown.round {
            if shown.round == 0 {
                shown.era = self.give_ups.get();
            }
            shown.round = round;
            let fate = self.fate.borrow();
            debug_assert!(round <= fate.round, "a round was seen that is not open yet");
            if fate.round == round {
                shown.fates.push(Rc::clone(&fate));
            }
        }
    }

    /// Returns the rounds of changes that are in the journal already, but may not be durable; see
    /// [`Store::stored_round`].
    ///
    /// [`Store::stored_round`]: flagstone_storage::Store::stored_round
    pub(crate) fn stored(&self, round: u64) -> Shown {
        Shown { round, era: self.give_ups.get(), ..Shown::default() }
    }

    /// Returns the rounds that a command shows which has just seen `round`.
    pub(crate) fn seen(&self, round: u64) -> Shown {
        let mut shown = Shown::default();
        self.see(round, &mut shown);
        shown
    }

    /// Fails the open round, whose record was not appended.
    pub(crate) fn fail(&self, error: &JournalError) {
        // The first reason counts.
        let _ = self.fate.borrow().error.set(refusal(error));
    }

    /// Fails all rounds that are not durable, for good.
    pub(crate) fn fail_all(&self, reason: &str) {
        let text = format!("ERR the write could not be stored: the journal has failed: {reason}");
        *self.journal_failed.borrow_mut() = Some(text.into());
        self.wake(|_, _| true);
    }

    /// Records the error of rounds that do not become durable for now, or (`None`) that they do again.
    pub(crate) fn set_away(&self, error: Option<RoundError>) {
        if error.is_none() && self.away.borrow().is_none() {
            return;
        }
        let is_away = error.is_some();
        *self.away.borrow_mut() = error;
        if is_away {
            self.wake(|_, to_disk| to_disk);
        }
    }

    /// Returns true if rounds have to be given up: this server has become a replica so often.
    pub(crate) fn has_to_give_up(&self, count: u64) -> bool {
        self.give_ups.get() != count
    }

    /// Gives up the rounds up to `to` that are not durable, as this server has become a replica:
    /// whether its primary has them is not known. `count`: how often that has happened. They may
    /// become durable here later all the same: who sees them from now on sees the data of a replica.
    pub(crate) fn give_up(&self, count: u64, to: u64) {
        if self.give_ups.replace(count) == count {
            return;
        }
        let from = self.durable.get() + 1;
        let former = self.given_up.get();
        let from = if former.1 == 0 { from } else { from.min(former.0) };
        self.given_up.set((from, to));
        self.wake(|round, _| (from..=to).contains(&round));
    }

    /// Returns true if rounds were given up.
    pub(crate) fn has_given_up(&self) -> bool {
        self.given_up.get().1 != 0
    }

    /// Forgets that rounds were given up, once all of them are durable, and replicas have confirmed them.
    pub(crate) fn forget_given_up(&self) {
        if self.durable.get() >= self.given_up.get().1 {
            self.given_up.set((0, 0));
        }
    }

    /// Advances: rounds up to `closed` are in the journal or have failed, all that those up to
    /// `durable` have appended is durable, and `open` is the next one.
    pub(crate) fn advance(&self, closed: u64, durable: u64, open: u64) {
        self.closed.set(closed);
        self.durable.set(durable);
        if self.fate.borrow().round != open {
            self.fate.replace(Fate::of(open));
        }
        // A round that is closed while the store or the replicas are away has its outcome, too.
        let known = if self.away.borrow().is_some() { closed } else { durable };
        self.wake(|round, to_disk| round <= if to_disk { known } else { closed });
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

    /// Returns true if the outcome of all rounds that replies show is known: stored, failed, or
    /// unknowable.
    pub(crate) fn is_known(&self, shown: &Shown, to_disk: bool) -> bool {
        self.outcome(shown, shown.round, to_disk).is_some()
    }

    /// Returns true if all rounds that are shown are stored or have failed: a store or replicas that do
    /// not answer for now do not count.
    pub(crate) fn is_final(&self, shown: &Shown, to_disk: bool) -> bool {
        self.final_outcome(shown, shown.round, to_disk).is_some()
    }

    /// Returns true if all rounds that replies show are stored.
    pub(crate) fn is_stored(&self, shown: &Shown, to_disk: bool) -> bool {
        matches!(self.outcome(shown, shown.round, to_disk), Some(Ok(())))
            && shown.fates.iter().all(|fate| fate.error.get().is_none())
    }

    /// Returns the error in place of the reply that shows a round; the outcome of all replies is
    /// known.
    pub(crate) fn failure(&self, shown: &Shown, round: u64, to_disk: bool) -> Option<RoundError> {
        let failed = shown.failure(round).cloned();
        failed.or_else(|| self.outcome(shown, round, to_disk)?.err())
    }

    /// Returns the error of any of these replies.
    pub(crate) fn any_failure(&self, shown: &Shown, to_disk: bool) -> Option<RoundError> {
        let failed = shown.fates.iter().find_map(|fate| fate.error.get().cloned());
        failed.or_else(|| self.outcome(shown, shown.round, to_disk)?.err())
    }

    /// Returns the outcome of the records of all rounds up to this one; `None` if they are not
    /// stored yet.
    fn outcome(&self, shown: &Shown, round: u64, to_disk: bool) -> Option<Result<(), RoundError>> {
        let away = || {
            let waits = to_disk && round <= self.closed.get();
            self.away.borrow().clone().filter(|_| waits).map(Err)
        };
        self.final_outcome(shown, round, to_disk).or_else(away)
    }

    /// Returns the outcome if it cannot change any more.
    fn final_outcome(
        &self,
        shown: &Shown,
        round: u64,
        to_disk: bool,
    ) -> Option<Result<(), RoundError>> {
        let (from, to) = self.given_up.get();
        if shown.era < self.give_ups.get() && round >= from && round <= to && round != 0 {
            return Some(Err(unconfirmed()));
        }
        if round <= if to_disk { self.durable.get() } else { self.closed.get() } {
            return Some(Ok(()));
        }
        if to_disk || round > self.closed.get() {
            return self.journal_failed.borrow().clone().map(Err);
        }
        None
    }

    /// Waits until the outcome of all rounds that replies show is known.
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
