//! Runs units (transactions, scripts) in place: entirely, or not at all.

use super::execute::{Attempt, Executed, blocked_by};
use super::{Blocked, FinishedCommand, Worker, changer};
use crate::command::{Invocation, Outcome};
use crate::unit::{self, Effects, Unit, UnitOutcome, UnitStop};
use flagstone_commands::{Ctx, Stop};
use flagstone_storage::Scope;
use flagstone_storage::notes::Note;
use flagstone_wire::resp::Reply;
use std::rc::Rc;
use std::time::Instant;

/// Maximum number of runs of a unit that would change data which the open round has changed: the
/// round is committed in between.
const RUNS: usize = 2;

impl Worker {
    /// Runs a unit whose keys are this worker's, like [`Worker::execute`].
    pub(super) fn execute_unit(
        self: &Rc<Self>,
        run: &Invocation<'_>,
        scope: &Scope,
        out: &mut Reply,
    ) -> Attempt {
        let mark = out.len();
        let mut began = self.last_ran();
        for _ in 0..RUNS {
            let (outcome, mut effects) = self.try_unit(run, scope, began, out);
            let text = match outcome {
                Ok(()) => None,
                Err(UnitStop::Handler(Stop::Error(text))) => Some(text),
                // A unit in place asks for no loan, and stores nothing itself.
                Err(UnitStop::Unstored(error)) => Some(error.text.into()),
                Err(UnitStop::Undone(text)) => {
                    effects.published.clear();
                    Some(text)
                }
                Err(UnitStop::Handler(Stop::NotOwned(what))) => {
                    effects.published.clear();
                    Some(self.node.not_owned(what, Some(run.request.secured)).text.into())
                }
                Err(UnitStop::Handler(Stop::Unsettled)) => {
                    out.truncate(mark);
                    self.commit();
                    began = Instant::now();
                    continue;
                }
                Err(UnitStop::Handler(Stop::Miss(needs))) => {
                    out.truncate(mark);
                    return Err(blocked_by(needs, run).into());
                }
                Err(UnitStop::Exclusive) => {
                    out.truncate(mark);
                    return Err(Blocked::Exclusive.into());
                }
                // No part of a unit waits, and its coordinator notices by itself that a client has disconnected.
                Err(UnitStop::Detached | UnitStop::Closing | UnitStop::Handler(Stop::Block(_))) => {
                    out.truncate(mark);
                    return Err(Blocked::Detached.into());
                }
            };
            let mut ended = effects.outcome();
            if out.replace_lost(mark) || text.is_some() {
                ended = Outcome::Failed;
            }
            let is_counted = std::mem::take(&mut effects.error_counted);
            self.stats().unit_ended(run.command, text.as_deref(), is_counted);
            if let Some(text) = text {
                out.truncate(mark);
                out.error(&*text);
            }
            let reply_bytes = out.len().saturating_sub(mark);
            let round = self.unit_done(run, effects, reply_bytes);
            return Ok(Executed { round, outcome: ended });
        }
        Err(Blocked::Detached.into())
    }

    /// Runs a unit once, from that moment on. Its changes are rolled back if it could not run to its end.
    fn try_unit(
        &self,
        run: &Invocation<'_>,
        scope: &Scope,
        began: Instant,
        out: &mut Reply,
    ) -> (UnitOutcome, Effects) {
        let &Invocation { command, args, request, now_ms, settings, .. } = run;
        let Some(handler) = unit::handler(command) else {
            return (Err("ERR this command runs no others".into()), Effects::default());
        };
        let unit = Unit::here(&self.node, self.id, request, settings, began);
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        self.node.begin_request(store, now_ms, &request);
        store.notes.want(self.node.interest(settings));
        store.confine(scope.clone());
        store.begin_unit();
        let (db, again) = (request.db, request.again);
        let settings = &settings.data;
        let mut cx = Ctx { again, ..Ctx::new(store, out, db, settings) };
        cx.store.words.begin_group();
        let outcome = handler(&mut cx, &unit, args);
        cx.store.words.end_group();
        match outcome {
            Ok(()) | Err(UnitStop::Handler(Stop::Error(_))) => partition.store.end_unit(),
            Err(_) => partition.roll_back(),
        }
        (outcome, unit.into_effects())
    }

    /// Publishes the effects of a unit that has run to its end, and returns the greatest round that
    /// its reply shows.
    fn unit_done(
        self: &Rc<Self>,
        run: &Invocation<'_>,
        mut effects: Effects,
        reply_bytes: usize,
    ) -> u64 {
        let &Invocation { command, args, request, settings, .. } = run;
        let mut partition = self.partition.borrow_mut();
        let (seen, is_open) = (partition.store.seen(), partition.has_to_close());
        let notes: Vec<Note> = partition.store.notes.take();
        drop(partition);
        if !effects.read.is_empty() {
            self.remember_reads_of_unit(&effects.read, &notes, request.client);
        }
        if is_open {
            self.commit_soon();
        }
        self.log_parts(&mut effects, request.client);
        self.ran(&FinishedCommand::requested(command, args, request, reply_bytes), settings);
        self.tell_parts(&mut effects, command, request.client, settings);
        if !notes.is_empty() || !effects.published.is_empty() {
            let client = changer(command, request.client);
            self.spread(self.rounds.seen(seen), client, notes, effects.published);
        }
        seen
    }
}
