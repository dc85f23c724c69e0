//! Units that run apart: their coordinator lends them more while they run, and answers what they
//! ask.

use super::coordinator::{Held, Wanted, borrow, loans, release, send_all};
use super::owner;
use crate::commands::Stop;
use crate::unit::{self, Apart, Ask};
use crate::worker::{LockKey, OwnedCommand, Worker};
use flagstone_storage::Store;
use flagstone_storage::store::Need;
use std::rc::Rc;

/// Runs a unit on a thread of its own.
pub(super) async fn run_apart(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    wanted: &Wanted,
    held: &mut Held,
    space: Store,
) -> Result<unit::Ran, Stop> {
    let apart = Apart {
        node: worker.node.clone(),
        worker: worker.id,
        settings: worker.settings(),
        command: command.clone(),
        store: space,
    };
    let (mut running, mut questions) = unit::spawn(apart);
    let ran = loop {
        tokio::select! {
            ran = &mut running => break ran,
            Some(question) = questions.recv() => {
                let mut store = question.store;
                let answer = match question.ask {
                    Ask::Load(needs) => lend_more(worker, wanted, held, &mut store, needs).await,
                    Ask::Run(command) => Err(not_here(&command)),
                };
                // The unit waits for it.
                let _ = question.answer.send((store, answer));
            }
        }
    };
    match ran {
        Ok(ran) => Ok(ran),
        Err(error) => {
            tracing::error!(%error, "a transaction or script has failed");
            lose(worker, wanted, held).await;
            Err("ERR the command was abandoned".into())
        }
    }
}

fn not_here(command: &OwnedCommand) -> Stop {
    format!("ERR '{}' is not available here", command.command.full_name).into()
}

/// Lends a unit what it has missed. Where its locks do not cover that, or it has changed what parts
/// are missing of, it has to begin anew.
async fn lend_more(
    worker: &Rc<Worker>,
    wanted: &Wanted,
    held: &mut Held,
    space: &mut Store,
    needs: Vec<Need>,
) -> Result<Vec<u8>, Stop> {
    let is_covered = |need: &Need, space: &mut Store| {
        let key: LockKey = (need.db, need.key.clone());
        (held.whole || wanted.keys.contains(&key))
            && !(need.part.is_some() && space.is_unsettled(need.db, &need.key))
    };
    if !needs.iter().all(|need| is_covered(need, space)) {
        return Err(Stop::Miss(needs));
    }
    let node = &worker.node;
    let mut applies = loans(held);
    for need in needs.iter().filter(|need| need.part.is_some()) {
        if let Some(apply) = applies.get_mut(&owner(node, &need.key))
            && let Some(entry) = space.lend(need.db, &need.key)
        {
            apply.entries.push((need.db, entry, false));
        }
    }
    applies.retain(|_, apply| !apply.entries.is_empty());
    send_all(node, applies).await;
    let mut more = Wanted { reader: wanted.reader, ..Wanted::default() };
    more.add(needs);
    held.lent.extend(more.keys.iter().cloned());
    borrow(worker, &more, held, space).await?;
    Ok(Vec::new())
}

/// What a unit was lent is lost with it: what is on disk counts.
async fn lose(worker: &Rc<Worker>, wanted: &Wanted, held: &mut Held) {
    let node = &worker.node;
    let mut applies = loans(held);
    for key in wanted.keys.union(&held.lent) {
        if let Some(apply) = applies.get_mut(&owner(node, &key.1)) {
            apply.forget.push(key.clone());
        }
    }
    send_all(node, applies).await;
    release(node, held, Vec::new()).await;
}
