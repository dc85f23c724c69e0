//! Blind operations: puts and deletes of meta rows that were not read before (RFC 12).
//!
//! A blind operation is *resolved* once the row that it replaced is known: corrections of the
//! counters, the expiry index and the dead versions follow. Old rows are in a pending map or in the
//! engine, which keeps them until the map with the operation is handed over.

use crate::counters::Counters;
use crate::encoding::Row;
use crate::engine::{Engine, UnreadableFile};
use crate::journal::Lsn;
use crate::resolved::{Replaced, Resolved};
use crate::value::{JournaledState, decode_state};
use anyhow::{Context, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of a shard's unresolved operations; beyond it no put is blind.
pub(crate) const MAX_UNRESOLVED: usize = 16_384;

/// Number of unresolved operations at which a pass begins.
pub(crate) const PASS_FROM: usize = 512;

/// How long old rows that the system cannot read are tried again before they are lost: a disk may come
/// back.
const LOST_AFTER: Duration = Duration::from_secs(300);

/// How long after such a loss further ones are lost at once: most of them lie beside it.
const LOST_AT_ONCE: Duration = Duration::from_secs(3600);

/// The states of keys that a pass has read, in the order of its rows. `None`: the key did not exist.
/// Errors: its row cannot be read now.
pub type PassStates = Vec<Result<Option<JournaledState>>>;

/// Progress of a shard with its blind operations.
#[derive(Debug, Default)]
pub(crate) struct BlindState {
    /// Operations that were resolved and are in the engine, above its `applied`.
    pub(crate) carried: Option<Resolved>,
    /// True if the counters in memory have the corrections of `carried`.
    pub(crate) is_counted: bool,
    /// The last record that was merged, and the number of its blind operations so far.
    at: (Lsn, u64),
    /// The operations that a pass is resolving.
    pub(crate) pass: Option<Pass>,
    pub(crate) unreadable: UnreadableRows,
}

/// History of old rows that the system cannot read.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRows {
    /// Time since when each pass has had some.
    since: Option<Instant>,
    /// Time at which some were lost last.
    lost: Option<Instant>,
}

impl UnreadableRows {
    /// Notes the end of a pass, which has such rows if `any`. Returns true if they are lost.
    pub(crate) fn are_lost(&mut self, any: bool, now: Instant) -> bool {
        if !any {
            self.since = None;
            return false;
        }
        let since = *self.since.get_or_insert(now);
        let is_known = self.lost.is_some_and(|at| now.duration_since(at) < LOST_AT_ONCE);
        let are_lost = is_known || now.duration_since(since) >= LOST_AFTER;
        if are_lost {
            self.lost = Some(now);
        }
        are_lost
    }
}

/// A pass: old rows are being read.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) keys: Arc<Vec<Box<[u8]>>>,
    /// True if the map of the operations was cut since the pass began.
    pub(crate) is_cut: bool,
}

impl BlindState {
    /// Creates the state of a shard that is replayed from `applied` on.
    pub(crate) fn new(resolved: Option<Resolved>, applied: Lsn) -> Self {
        let carried = resolved.filter(|resolved| resolved.lsn > applied);
        Self { carried, ..Self::default() }
    }

    /// Notes the next blind operation, of the record at `lsn`. Returns true if it is to be
    /// resolved; otherwise the engine has resolved it already.
    pub(crate) fn next(&mut self, lsn: Lsn) -> bool {
        if self.at.0 != lsn {
            self.at = (lsn, 0);
        }
        self.at.1 += 1;
        let place = (lsn, self.at.1);
        self.carried.as_ref().is_none_or(|carried| place > (carried.lsn, carried.ops))
    }

    /// Returns true if the engine has the expiry index as it was behind the record at `lsn`, or
    /// later: a replay must not bring back the rows that corrections have removed.
    pub(crate) fn has_times(&self, lsn: Lsn) -> bool {
        self.carried.as_ref().is_some_and(|carried| lsn < carried.lsn)
    }

    /// Corrects the counters once all that `carried` covers is merged: records up to `merged`.
    pub(crate) fn count(&mut self, merged: Lsn, counters: &mut Counters) {
        let Some(carried) = &self.carried else { return };
        if !self.is_counted && merged > carried.lsn {
            carried.replaced.take_off(counters);
            self.is_counted = true;
        }
    }

    /// Returns the operations that are resolved once those up to `lsn` are: all of that record if
    /// `whole`, otherwise those that were merged. `replaced`: the corrections that `carried` does
    /// not have.
    pub(crate) fn resolved_up_to(&self, lsn: Lsn, whole: bool, replaced: &Replaced) -> Resolved {
        let merged = if self.at.0 == lsn { self.at.1 } else { 0 };
        let ops = if whole { u64::MAX } else { merged };
        let mut resolved = self.carried.clone().unwrap_or_default();
        if (lsn, ops) > (resolved.lsn, resolved.ops) {
            (resolved.lsn, resolved.ops) = (lsn, ops);
        }
        resolved.replaced.add_all(replaced);
        resolved
    }

    /// Notes that the current map was cut.
    pub(crate) fn cut(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.is_cut = true;
        }
    }

    /// Forgets resolved operations that the engine has applied.
    pub(crate) fn applied(&mut self, lsn: Lsn) {
        if self.carried.as_ref().is_some_and(|carried| carried.lsn <= lsn) {
            self.carried = None;
        }
    }
}

/// Old rows to be read from an engine.
pub struct OldRows {
    pub(crate) engine: Engine,
    /// Meta row keys, ascending.
    pub(crate) keys: Arc<Vec<Box<[u8]>>>,
}

impl std::fmt::Debug for OldRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OldRows").field("rows", &self.keys.len()).finish_non_exhaustive()
    }
}

impl OldRows {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Reads the states that were in the engine, by the keys. A row that is damaged is lost, because the
    /// shard could not store anything as long as it waits for the row. Runs on the background runtime.
    ///
    /// # Errors
    /// If the engine cannot be read. Of single rows that the system cannot read, the result has errors.
    pub async fn read(self) -> Result<PassStates> {
        let state = |key: &[u8], row: Option<&[u8]>| row.map(|row| state_in(key, row)).transpose();
        let states = self.engine.get_many(&self.keys, state).await?;
        let mut losses = Losses::default();
        let states = states.into_iter().map(|state| match state.flatten() {
            Err(error) if !error.is::<UnreadableFile>() => Ok(losses.note(error)),
            state => state,
        });
        let states = states.collect();
        losses.tell();
        Ok(states)
    }
}

/// Old rows that are lost.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    rows: usize,
    /// Reason of the first loss.
    reason: Option<anyhow::Error>,
}

impl Losses {
    /// Notes a lost row, and returns the state for which it counts: a key without an expiry and without
    /// elements.
    pub(crate) fn note(&mut self, error: anyhow::Error) -> Option<JournaledState> {
        self.rows += 1;
        self.reason.get_or_insert(error);
        Some(JournaledState::new(0, 0, 0))
    }

    /// Logs the losses.
    pub(crate) fn tell(self) {
        if let Self { rows, reason: Some(error) } = self {
            tracing::error!(
                "{rows} replaced rows are damaged or cannot be read, and their keys are counted as if \
                 they had been plain strings: {error:#}"
            );
        }
    }
}

/// Returns the state that a meta row holds.
pub(crate) fn state_in(key: &[u8], row: &[u8]) -> Result<JournaledState> {
    let Some(Row::Meta { key, .. }) = Row::parse(key) else {
        anyhow::bail!("the key of a meta row is damaged");
    };
    let name = || format!("the old value of the key {:?}", String::from_utf8_lossy(key));
    decode_state(key, row).with_context(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Delta;

    fn state(expire_at_ms: u64) -> JournaledState {
        JournaledState::new(expire_at_ms, 0, 0)
    }

    #[test]
    fn operations_that_the_engine_has_resolved_are_not_resolved_again() {
        let carried = Resolved { lsn: 5, ops: 2, replaced: Replaced::default() };
        let mut blind = BlindState::new(Some(carried.clone()), 3);
        let found: Vec<bool> = [4, 4, 4, 5, 5, 5, 6].map(|lsn| blind.next(lsn)).into();
        assert_eq!(found, [false, false, false, false, false, true, true]);
        assert!(BlindState::new(Some(carried), 5).next(5), "it is not above what is applied");
        assert!(BlindState::default().next(1));
    }

    #[test]
    fn corrections_come_behind_the_counts_that_they_correct() {
        let mut replaced = Replaced::default();
        replaced.add(1, 0, &state(0));
        let mut blind = BlindState::new(Some(Resolved { lsn: 5, ops: 1, replaced }), 3);
        let mut counters = Counters::default();
        // The key was created, and replaced blindly, by the records 4 and 5.
        for lsn in [4, 5] {
            blind.count(lsn, &mut counters);
            counters.add(1, 0, Delta { keys: 1, expires: 0 }, 0);
        }
        blind.count(5, &mut counters);
        assert_eq!(counters.totals(1), (2, 0));
        for _ in 0..2 {
            blind.count(6, &mut counters);
            assert_eq!(counters.totals(1), (1, 0));
        }
    }

    #[test]
    fn rows_that_cannot_be_read_are_lost_after_a_while_and_those_beside_them_at_once() {
        let (mut rows, begun) = (UnreadableRows::default(), Instant::now());
        let mut look = |after: Duration, any| rows.are_lost(any, begun + after);
        let moment = Duration::from_secs(1);
        assert!(!look(Duration::ZERO, true));
        assert!(!look(LOST_AFTER - moment, true));
        // The disk was away.
        assert!(!look(LOST_AFTER, false));
        let away = LOST_AFTER + moment;
        assert!(!look(away, true));
        assert!(!look(away + LOST_AFTER - moment, true));
        let lost = away + LOST_AFTER;
        assert!(look(lost, true));
        assert!(!look(lost + moment, false));
        assert!(look(lost + 2 * moment, true));
        let last = lost + LOST_AT_ONCE;
        assert!(look(last, true));
        assert!(!look(last + moment, false));
        assert!(!look(last + LOST_AT_ONCE, true));
    }

    #[test]
    fn resolved_operations_only_grow() {
        let mut blind = BlindState::default();
        blind.next(4);
        let mut replaced = Replaced::default();
        replaced.add(1, 0, &state(0));
        let some = blind.resolved_up_to(4, false, &replaced);
        assert_eq!((some.lsn, some.ops), (4, 1));
        blind.carried = Some(some.clone());
        blind.next(4);
        assert_eq!(blind.resolved_up_to(3, true, &Replaced::default()), some);
        assert_eq!(blind.resolved_up_to(4, false, &Replaced::default()).ops, 2);
        let all = blind.resolved_up_to(9, true, &replaced);
        assert_eq!((all.lsn, all.ops, all.replaced.0[&(1, 0)]), (9, u64::MAX, (2, 0, 0)));
        blind.applied(3);
        assert!(blind.carried.is_some());
        blind.applied(4);
        assert!(blind.carried.is_none());
    }
}
