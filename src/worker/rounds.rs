//! Who waits for which round.

use flagstone_storage::journal::JournalError;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Failed rounds that are remembered; those who showed one ask soon after.
const REMEMBERED: usize = 1024;

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

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    appended: Cell<u64>,
    durable: Cell<u64>,
    failed: RefCell<VecDeque<(u64, RoundError)>>,
    journal_failed: RefCell<Option<RoundError>>,
    /// What is in the journal waits for its store for too long.
    away: RefCell<Option<RoundError>>,
    waiting: RefCell<Vec<(u64, bool, Waker)>>,
}

impl Rounds {
    /// A round's record was not appended.
    pub(crate) fn fail(&self, round: u64, error: &JournalError) {
        let text = refusal(error);
        let mut failed = self.failed.borrow_mut();
        if failed.len() == REMEMBERED {
            failed.pop_front();
        }
        failed.push_back((round, RoundError(text)));
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

    /// Rounds up to `appended` are in the journal, up to `durable` durable.
    pub(crate) fn advance(&self, appended: u64, durable: u64) {
        self.appended.set(appended);
        self.durable.set(durable);
        self.wake(|round, to_disk| round <= if to_disk { durable } else { appended });
    }

    /// Whether nobody has to wait for a round.
    pub(crate) fn is_shown(&self, round: u64, to_disk: bool) -> bool {
        round <= if to_disk { self.durable.get() } else { self.appended.get() }
            && self.failed.borrow().is_empty()
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

    /// What became of a round; `None`: not known yet.
    pub(crate) fn outcome(&self, round: u64, to_disk: bool) -> Option<Result<(), RoundError>> {
        if let Some((_, error)) = self.failed.borrow().iter().find(|(n, _)| *n == round) {
            return Some(Err(error.clone()));
        }
        if round <= if to_disk { self.durable.get() } else { self.appended.get() } {
            return Some(Ok(()));
        }
        if to_disk || round > self.appended.get() {
            let failed = self.journal_failed.borrow().clone();
            let is_appended = round <= self.appended.get();
            let away = || self.away.borrow().clone().filter(|_| is_appended);
            return failed.or_else(away).map(Err);
        }
        None
    }

    /// Waits until a round is in the journal, or with `to_disk` until it is durable.
    pub(crate) async fn wait(&self, round: u64, to_disk: bool) -> Result<(), RoundError> {
        poll_fn(|cx| match self.outcome(round, to_disk) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                self.waiting.borrow_mut().push((round, to_disk, cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
