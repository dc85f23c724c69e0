//! The blind operations of a map: those that are not resolved, and the corrections of the others.

use super::{Pending, ROW_OVERHEAD, RowMark};
use crate::control::resolved_row;
use crate::encoding::{Row, RowKey};
use crate::resolved::{Replaced, Resolved};
use crate::value::JournaledState;
use bytes::Bytes;
use std::time::{Duration, Instant};

/// Maximum number of rows that a pass reads: with `MAX_UNRESOLVED` operations, as many puts wait for
/// its end.
const PASS_LIMIT: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct PendingBlind {
    /// True if the map has, or had, any blind operation.
    any: bool,
    /// Meta row keys of operations whose old row is in the engine, if there is one.
    unresolved: Vec<Box<[u8]>>,
    /// Time since when there are some.
    since: Option<Instant>,
    /// The corrections so far.
    replaced: Replaced,
    /// The control row of the hand-over.
    resolved: Option<Resolved>,
}

impl PendingBlind {
    /// Returns the control row that must be in the engine before any meta row of the map is.
    pub(super) fn resolved_row(&self) -> Option<(Bytes, Bytes)> {
        self.resolved.as_ref().map(resolved_row)
    }
}

/// Approximate memory use of an unresolved operation in bytes.
fn size(key: &[u8]) -> usize {
    key.len() + ROW_OVERHEAD
}

impl Pending {
    /// Notes that the map has a blind operation.
    pub(crate) fn note_blind(&mut self) {
        self.blind.any = true;
    }

    /// Returns true if the map has, or had, any blind operation.
    pub(crate) fn has_blind(&self) -> bool {
        self.blind.any
    }

    /// Returns the number of unresolved operations that no pass has taken.
    pub(crate) fn unresolved(&self) -> usize {
        self.blind.unresolved.len()
    }

    /// Returns for how long some operations have been unresolved.
    pub(crate) fn unresolved_for(&self) -> Duration {
        self.blind.since.map_or_else(Duration::default, |since| since.elapsed())
    }

    /// Notes blind operations, by their meta row keys, whose old rows are in the engine.
    pub(crate) fn add_unresolved(&mut self, keys: impl IntoIterator<Item = Box<[u8]>>) {
        for key in keys {
            self.bytes += size(&key);
            self.blind.unresolved.push(key);
        }
        if self.unresolved() > 0 {
            self.blind.since.get_or_insert_with(Instant::now);
        }
    }

    /// Takes unresolved operations out, for a pass.
    pub(crate) fn take_unresolved(&mut self) -> Vec<Box<[u8]>> {
        let rest = self.unresolved().saturating_sub(PASS_LIMIT);
        let mut keys = self.blind.unresolved.split_off(rest);
        self.bytes -= keys.iter().map(|key| size(key)).sum::<usize>();
        self.blind.since = (rest > 0).then(Instant::now);
        keys.sort_unstable();
        keys
    }

    /// Returns the corrections of resolved operations.
    pub(crate) fn replaced(&self) -> &Replaced {
        &self.blind.replaced
    }

    /// Sets the control row of the operations that the hand-over of the map resolves.
    pub(crate) fn set_resolved(&mut self, resolved: Resolved) {
        self.blind.resolved = Some(resolved);
    }

    /// Returns the control row of the operations that the hand-over of the map resolves.
    pub(crate) fn resolved(&self) -> Option<&Resolved> {
        self.blind.resolved.as_ref()
    }

    /// Adds the correction of an operation whose old row was read from the engine.
    pub(crate) fn correct_stored(&mut self, key: &[u8], old: &JournaledState) {
        let Some(Row::Meta { generation, slot, key, .. }) = Row::parse(key) else { return };
        self.correct(generation, slot, old);
        for (at_ms, fields) in old.times() {
            let time = RowKey::time(at_ms, slot, generation, fields, key);
            match self.others.get_mut(&time[..]) {
                // A later operation has put or deleted it; but the engine has it, too.
                Some(mark) => mark.new = false,
                None => self.set_other(&time, RowMark { put: false, new: false }),
            }
        }
    }

    /// Adds the correction of an operation whose old row was pending. `new`: the new state.
    pub(crate) fn correct_pending(
        &mut self,
        key: &[u8],
        old: &JournaledState,
        new: &JournaledState,
    ) {
        let Some(Row::Meta { generation, slot, key, .. }) = Row::parse(key) else { return };
        self.correct(generation, slot, old);
        for (at_ms, fields) in old.times().filter(|time| new.times().all(|other| other != *time)) {
            self.set(&RowKey::time(at_ms, slot, generation, fields, key), None, false);
        }
    }

    fn correct(&mut self, generation: u32, slot: u16, old: &JournaledState) {
        self.blind.replaced.add(generation, slot, old);
        if old.version() != 0 {
            self.set(&RowKey::dead(slot, old.version()), Some(b""), false);
        }
    }
}
