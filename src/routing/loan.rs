//! Commands that follow each other in a pipeline and run in one loan (RFC 23): a coordinator
//! acquires the keys of all, runs one after the other on one workspace, and stores their changes in
//! one record. Each command is as atomic as by itself, because the record is.
//!
//! Only commands of [`Route::Keys`](crate::command::Route::Keys) do: one that cannot go on has
//! changed nothing, so the loan ends before it. It runs by itself once its connection comes to it.

use super::coordinator::{
    Coordination, Requirements, acquire_all, commit_and_apply, run_here, to_end,
};
use crate::clients::Client;
use crate::command::{Answer, Command, Outcome, OwnedCommand, RoundError};
use crate::unit::UnitStop;
use crate::worker::{ABANDONED, FinishedCommand, LockKey, MAX_REPLIES, News, TURN, Worker};
use flagstone_commands::{Stop, flag};
use flagstone_storage::Store;
use flagstone_storage::notes::{Interest, Note};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time after which a loan comes late: its client may have been killed, or have other rights than
/// when its commands were admitted.
pub(super) const LATE: Duration = Duration::from_millis(1);

/// A command that has run in a loan.
struct Part {
    command: &'static Command,
    answer: Answer,
    /// Error text of the reply, if it is one.
    text: Option<Vec<u8>>,
}

/// Replaces the replies that show changes which are not stored by an error: those of commands that
/// write, and that read what these have written. `of_all`: what was lent is not known to be stored either.
fn fail(parts: &mut [Part], commands: &[OwnedCommand], error: &RoundError, of_all: bool) {
    let mut written = HashSet::new();
    for (part, one) in parts.iter_mut().zip(commands) {
        let keys = one.lock_keys();
        let only_reads = one.command.spec.has(flag!(READONLY));
        let shows_none = only_reads && !of_all && keys.iter().all(|key| !written.contains(key));
        if shows_none || part.answer.outcome == Outcome::Refused {
            continue;
        }
        written.extend(keys);
        part.answer.reply.clear();
        part.answer.reply.error(&error.text);
        part.answer.outcome = error.outcome;
        part.text = Some(error.text.clone().into());
    }
}

/// Runs commands of a client that tracks no keys, in order, with one loan of all their keys. Returns
/// the replies of those that have run: of the first ones, maybe of none. The others have changed
/// nothing.
pub(crate) async fn run_together(
    worker: &Rc<Worker>,
    client: Arc<Client>,
    commands: Rc<[OwnedCommand]>,
) -> Vec<Answer> {
    let (coordinator, lent) = (worker.clone(), commands.clone());
    let running = Box::pin(async move { lend_to_all(&coordinator, &client, &lent).await });
    to_end(worker, running).await.unwrap_or_else(|| {
        // They may have run.
        let abandoned = |one: &OwnedCommand| Answer::failed(one.request.proto, ABANDONED);
        commands.iter().map(abandoned).collect()
    })
}

async fn lend_to_all(
    worker: &Rc<Worker>,
    client: &Client,
    commands: &[OwnedCommand],
) -> Vec<Answer> {
    let Some(first) = commands.first() else { return Vec::new() };
    let asked = Instant::now();
    let mut held = Coordination::of(first);
    let keys = commands.iter().flat_map(OwnedCommand::lock_keys).collect();
    let wanted = Requirements { keys, ..Requirements::default() };
    // An error may be of the keys of one command: each finds its own.
    let Ok(space) = acquire_all(worker, &wanted, &mut held).await else { return Vec::new() };
    let is_late = asked.elapsed() > LATE;
    let admitted = if is_late { still_admitted(worker, client, commands) } else { commands };
    let (space, mut parts, notes) = run_all(worker, client, admitted, space, &held.awaited);
    let stored = match commit_and_apply(worker, &wanted, &mut held, space).await {
        Ok(()) => {
            let shown = worker.wait_shown(&held.shown).await;
            if shown.is_ok() {
                let (client, shown) = (held.client, std::mem::take(&mut held.shown));
                worker.tell(&News { shown, client, number: 0, notes, published: Vec::new() });
            }
            shown
        }
        error => error,
    };
    if let Err(error) = stored {
        fail(&mut parts, commands, &error, held.seen != 0);
    }
    let end = |part: Part| {
        if let Some(text) = part.text {
            worker.stats().failed(part.command, &text);
        }
        part.answer
    };
    parts.into_iter().map(end).collect()
}

/// Returns the first commands for which the gate decides as it did before the loan. It decides again
/// on the others.
fn still_admitted<'a>(
    worker: &Worker,
    client: &Client,
    commands: &'a [OwnedCommand],
) -> &'a [OwnedCommand] {
    let node = &worker.node;
    if client.is_killed() || node.pauses.now().is_some() {
        return &[];
    }
    let account = client.account().map_or(0, |account| account.checked_number());
    let accounts = &node.access.accounts;
    let may_run = |one: &&OwnedCommand| accounts.check(account, one.command, one.args()).is_ok();
    &commands[..commands.iter().take_while(may_run).count()]
}

/// Runs the commands on a workspace until one cannot go on, or enough was done for one loan.
/// `awaited`: keys for which clients wait, who are served before the next command.
fn run_all(
    worker: &Worker,
    client: &Client,
    commands: &[OwnedCommand],
    mut space: Store,
    awaited: &[LockKey],
) -> (Store, Vec<Part>, Vec<Note>) {
    let (node, settings) = (&worker.node, worker.settings());
    let mut parts = Vec::with_capacity(commands.len());
    let (mut notes, mut bytes) = (Vec::new(), 0);
    worker.start_watch();
    let until = worker.last_ran() + TURN;
    for one in commands {
        let now_ms = node.clock.now_ms();
        let command = one.command;
        if let Some(text) = worker.refused_late(&one.invocation(now_ms, &settings)) {
            worker.show(command, client, one.request.db, one.args());
            let reply = Answer::failed(one.request.proto, text).reply;
            let answer = Answer { reply, outcome: Outcome::Refused };
            parts.push(Part { command, answer, text: Some(text.into()) });
            continue;
        }
        let before = space.stats.lookups();
        node.begin_request(&mut space, now_ms, &one.request);
        // The workers that own the keys note the changes.
        space.notes.want(Interest { changes: false, ..node.interest(&settings) });
        let ran = run_here(worker, one, &settings, space);
        space = ran.store;
        let (mut reply, mut outcome, mut text) = (ran.out, Outcome::Done, None);
        match ran.outcome {
            Ok(()) => {}
            Err(UnitStop::Handler(Stop::Error(error))) => {
                reply.clear();
                reply.error(&*error);
                (outcome, text) = (Outcome::Failed, Some(error.to_vec()));
            }
            Err(_) => {
                // It will look its keys up again.
                space.stats.set_lookups(before);
                space.notes.retry(0);
                notes.append(&mut space.notes.take());
                break;
            }
        }
        if reply.replace_lost(0) {
            outcome = Outcome::Failed;
        }
        notes.append(&mut space.notes.take());
        worker.show(command, client, one.request.db, one.args());
        worker.ran(&FinishedCommand::of(one, reply.len()), &settings);
        bytes += reply.len();
        let is_full = bytes > MAX_REPLIES || reply.lacks_room() || worker.last_ran() > until;
        parts.push(Part { command, answer: Answer { reply, outcome }, text });
        if is_full || may_serve(one, awaited) {
            break;
        }
    }
    // The first one was counted when it was found to be a barrier.
    let others = parts.len().saturating_sub(1);
    worker.stats().commands.fetch_add(others as u64, Ordering::Relaxed);
    (space, parts, notes)
}

/// Returns true if a command may leave something for clients that wait for keys.
fn may_serve(one: &OwnedCommand, awaited: &[LockKey]) -> bool {
    !awaited.is_empty()
        && !one.command.spec.has(flag!(READONLY))
        && one.lock_keys().iter().any(|key| awaited.contains(key))
}
