//! Blind operations: puts and deletes of meta rows that were not read before (RFC 12).
//!
//! A blind operation is *resolved* once the row that it replaced is known: corrections of the
//! counters, the expiry index and the dead versions follow. Old rows are in a pending map or in the
//! engine, which keeps them until the map with the operation is handed over.

use crate::counters::Counters;
use crate::encoding::Row;
use crate::engine::Engine;
use crate::journal::Lsn;
use crate::resolved::{Replaced, Resolved};
use crate::value::{JournaledState, decode_state};
use anyhow::{Context, Result};
use std::sync::Arc;

/// Maximum number of a shard's unresolved operations; beyond it no put is blind.
pub(crate) const MAX_UNRESOLVED: usize = 16_384;

/// Number of unresolved operations at which a pass begins.
pub(crate) const PASS_FROM: usize = 512;

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

    /// Reads the states that were in the engine, by the keys. A row that is damaged is lost: it
    /// counts as a key without an expiry and without elements, because the shard could not store
    /// anything as long as it waits for the row. Runs on the background runtime.
    ///
    /// # Errors
    /// If a row cannot be read for another reason.
    pub async fn read(self) -> Result<Vec<Option<JournaledState>>> {
        let state = |key: &[u8], row: Option<&[u8]>| row.map(|row| state_in(key, row)).transpose();
        let states = self.engine.get_many(&self.keys, state).await?;
        let (mut lost, mut reason) = (0, None);
        let states = states.into_iter().map(|state| {
            state.flatten().unwrap_or_else(|error| {
                lost += 1;
                reason.get_or_insert(error);
                Some(JournaledState::new(0, 0, 0))
            })
        });
        let states = states.collect();
        if let Some(error) = reason {
            tracing::error!(
                "{lost} replaced rows are damaged, and their keys are counted as if they had been \
                plain strings: {error:#}"
            );
        }
        Ok(states)
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
