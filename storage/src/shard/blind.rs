//! Resolving the blind operations of a shard (RFC 12).

use super::unresolved::{Losses, MAX_UNRESOLVED, OldRows, PASS_FROM, Pass, PassStates};
use super::{Closing, Shard};
use crate::journal::Lsn;
use crate::pending::Pending;
use crate::resolved::{Replaced, Resolved};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Age of an unresolved operation at which a pass begins.
const PASS_AGE: Duration = Duration::from_secs(1);

/// A pass that is aborted if it does not end: nobody else would, and no other one begins before.
struct RunningPass<'a>(&'a mut Shard);

impl Drop for RunningPass<'_> {
    fn drop(&mut self) {
        self.0.abort_pass();
    }
}

impl Shard {
    /// Returns the number of unresolved operations.
    pub fn unresolved(&self) -> usize {
        let in_pass = self.blind.pass.as_ref().map_or(0, |pass| pass.keys.len());
        self.maps().map(Pending::unresolved).sum::<usize>() + in_pass
    }

    /// Returns how many more operations may be unresolved.
    pub(crate) fn may_be_blind(&self) -> usize {
        MAX_UNRESOLVED.saturating_sub(self.unresolved())
    }

    /// Begins a pass if one is due: returns the rows to read. With `all` it is due if anything is
    /// unresolved.
    pub(crate) fn begin_pass(&mut self, all: bool) -> Option<OldRows> {
        // What is not read for exact counters is found with the next engine of a mirrored shard.
        if self.blind.pass.is_some() || self.is_mirrored && !all {
            return None;
        }
        let closing = self.closing.as_mut().map(|closing| &mut closing.cut.pending);
        let closing = closing.filter(|pending| pending.unresolved() > 0);
        let (pending, is_cut) = match closing {
            Some(pending) => (pending, true),
            None => (&mut self.current, false),
        };
        let many = pending.unresolved() >= PASS_FROM || pending.unresolved_for() >= PASS_AGE;
        if pending.unresolved() == 0 || !(all || is_cut || many) {
            return None;
        }
        let keys = Arc::new(pending.take_unresolved());
        self.blind.pass = Some(Pass { keys: keys.clone(), is_cut });
        Some(OldRows { engine: self.engine.clone(), keys })
    }

    /// Ends the pass with the old states.
    ///
    /// # Errors
    /// If rows cannot be read, and are not lost yet: their operations are unresolved again.
    pub(crate) fn end_pass(&mut self, states: PassStates) -> anyhow::Result<()> {
        let Some(pass) = self.blind.pass.take() else { return Ok(()) };
        let any_unread = states.iter().any(Result::is_err);
        // Nothing is said about single rows while the engine cannot write, either.
        let any_unread = any_unread && self.engine.trouble().is_none();
        let are_lost = self.blind.unreadable.are_lost(any_unread, Instant::now());
        let (pending, cut_counters) = match &mut self.closing {
            Some(Closing { cut, .. }) if pass.is_cut => (&mut cut.pending, Some(&mut cut.counters)),
            _ => (&mut self.current, None),
        };
        let (mut replaced, mut losses) = (Replaced::default(), Losses::default());
        let (mut unread, mut outcome) = (Vec::new(), Ok(()));
        for (key, state) in pass.keys.iter().zip(states) {
            let old = match state {
                Ok(old) => old,
                Err(error) if are_lost => losses.note(error),
                Err(error) => {
                    unread.push(key.clone());
                    outcome = outcome.and(Err(error));
                    continue;
                }
            };
            if let Some(old) = old {
                pending.correct_stored(key, &old);
                replaced.add_row(key, &old);
            }
        }
        pending.add_unresolved(unread);
        replaced.take_off(&mut self.counters);
        if let Some(counters) = cut_counters {
            replaced.take_off(counters);
        }
        losses.tell();
        outcome
    }

    /// Ends a pass that has read nothing: its operations are unresolved again.
    pub(crate) fn abort_pass(&mut self) {
        let Some(pass) = self.blind.pass.take() else { return };
        let keys = Arc::unwrap_or_clone(pass.keys);
        match &mut self.closing {
            Some(closing) if pass.is_cut => closing.cut.pending.add_unresolved(keys),
            _ => self.current.add_unresolved(keys),
        }
    }

    /// Resolves all operations. No pass may be running. If it fails, or is dropped, none is afterwards.
    ///
    /// # Errors
    /// If an old row cannot be read.
    pub(crate) async fn resolve_all(&mut self) -> anyhow::Result<()> {
        while let Some(rows) = self.begin_pass(true) {
            let pass = RunningPass(self);
            let states = rows.read().await?;
            pass.0.end_pass(states)?;
        }
        Ok(())
    }

    /// Returns true if every operation of the closing map is resolved.
    pub(super) fn is_closing_resolved(&self) -> bool {
        let is_open = |closing: &Closing| closing.cut.pending.unresolved() > 0;
        let in_pass = self.blind.pass.as_ref().is_some_and(|pass| pass.is_cut);
        !in_pass && !self.closing.as_ref().is_some_and(is_open)
    }

    /// Returns true if the dead rows of the engine may be swept now: everything that was handed
    /// over is flushed, and no replay could bring them back without the record that they are dead.
    pub fn may_sweep(&self) -> bool {
        let is_flushed = self.unflushed.is_empty() && self.handing.is_none();
        is_flushed && self.blind.carried.is_none() && !self.is_mirrored
    }

    /// Ends the replay: every record that the engine may have rows of is merged.
    pub(crate) fn end_replay(&mut self) {
        self.blind.count(Lsn::MAX, &mut self.counters);
    }

    /// Sets the control row of a map whose operations are resolved: with its rows the engine has
    /// those of records up to `lsn`; `whole`: all of them.
    pub(super) fn note_resolved(&mut self, lsn: Lsn, whole: bool, pending: &mut Pending) {
        if !pending.has_blind() && self.blind.carried.is_none() {
            return;
        }
        debug_assert_eq!(pending.unresolved(), 0, "a row leaves before it is resolved");
        let resolved = self.blind.resolved_up_to(lsn, whole, pending.replaced());
        pending.set_resolved(resolved);
    }

    /// Takes replayed rows out, to give them to the engine before the replay ends: those of records
    /// up to `lsn`, the last one perhaps in part. All operations must be resolved. `applied` stays:
    /// a further start begins where this one did.
    pub(crate) fn take_replayed(&mut self, lsn: Lsn) -> Pending {
        // `since` stays: a hand-over must follow, even if it has only counters.
        let mut replayed = std::mem::take(&mut self.current);
        self.note_resolved(lsn, false, &mut replayed);
        if let Some(resolved) = replayed.resolved() {
            self.carry(resolved.clone());
        }
        replayed
    }

    /// Notes the operations above its `applied` that the engine is about to have resolved.
    fn carry(&mut self, resolved: Resolved) {
        let same = |carried: &Resolved| (carried.lsn, carried.ops) == (resolved.lsn, resolved.ops);
        // If the replay has not passed the carried operations, their corrections are still to be
        // counted.
        if !self.blind.carried.as_ref().is_some_and(same) {
            self.blind.count(Lsn::MAX, &mut self.counters);
            self.blind.is_counted = true;
        }
        self.blind.carried = Some(resolved);
    }
}
