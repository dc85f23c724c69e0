//! Units that run on a thread of their own: their coordinator lends them further entries while they
//! run, and runs commands for them.
//!
//! For a unit that keeps asking for undeclared keys the coordinator holds all workers; so it does for
//! commands on databases. These commands see the databases with the unit's changes over them, and
//! change them in the workspace; the unit's one record has the generations that the databases have in
//! the end. Commands that are neither on keys nor on databases run at the coordinator, with a session
//! of their own.

use super::coordinator::{Coordination, Requirements};
use super::holds::{borrow, loans, release};
use super::{Databases, handlers, run_on_session};
use crate::command::{OwnedCommand, Request};
use crate::routing::Call;
use crate::session::Session;
use crate::unit::{self, Ask, DetachedUnit, UnitStop};
use crate::worker::{LockKey, Worker};
use flagstone_commands::Stop;
use flagstone_storage::Store;
use flagstone_storage::store::Need;
use std::rc::Rc;
use std::sync::Arc;

/// Runs a unit on a thread of its own.
pub(super) async fn run_detached(
    worker: &Rc<Worker>,
    command: &OwnedCommand,
    wanted: &Requirements,
    held: &mut Coordination,
    space: Store,
) -> Result<unit::UnitRun, UnitStop> {
    let detached = DetachedUnit {
        node: worker.node.clone(),
        worker: worker.id,
        settings: worker.settings(),
        command: command.clone(),
        store: space,
    };
    let (mut running, mut questions) = unit::spawn(detached);
    let ran = loop {
        tokio::select! {
            ran = &mut running => break ran,
            Some(question) = questions.recv() => {
                let mut store = question.store;
                let answer = match question.ask {
                    Ask::Load(needs) => lend_more(worker, wanted, held, &mut store, needs).await,
                    Ask::Exclusive if held.exclusive => Ok(Vec::new()),
                    Ask::Exclusive => Err(UnitStop::Exclusive),
                    Ask::Run(command) => run_for(worker, held, &mut store, &command).await,
                };
                // The unit waits for the answer.
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

/// Runs a command that is not on keys as part of a unit, and returns its reply.
async fn run_for(
    worker: &Rc<Worker>,
    held: &Coordination,
    store: &mut Store,
    command: &OwnedCommand,
) -> Result<Vec<u8>, UnitStop> {
    let Request { db, proto, client, .. } = command.request;
    let mut out = command.request.reply();
    let (handlers, args) = (handlers(command.command), command.args());
    if let Some(handler) = handlers.databases {
        // A command that changes databases needs a hold on every worker before it changes anything.
        if !held.exclusive {
            return Err(UnitStop::Exclusive);
        }
        let mut databases = Databases::in_unit(worker, store, db, &mut out);
        databases.begin(command.command, args)?;
        handler(&mut databases, args).await?;
        return Ok(out.into_bytes());
    }
    let node = &worker.node;
    // The command has a session of its own; that of the connection is unchanged.
    let client = node.clients.get(client).ok_or(UnitStop::Closing)?;
    let account =
        client.account().unwrap_or_else(|| node.access.accounts.default_account().clone());
    let mut session = Session::new(Arc::new(client.double()), account, true);
    (session.db, session.proto) = (db, proto);
    // A unit holds keys, so it must not wait for other clients.
    session.in_exec = true;
    let mut call = Call { session: &mut session, node, worker, out: &mut out };
    match handlers.wait {
        Some(handler) => handler(&mut call, args).await?,
        None => run_on_session(command.command, &mut call, args)?,
    }
    Ok(out.into_bytes())
}

/// Lends a unit the entries that it has missed. If its locks do not cover them, or it has changed
/// an entry of which parts are missing, it has to start again.
async fn lend_more(
    worker: &Rc<Worker>,
    wanted: &Requirements,
    held: &mut Coordination,
    space: &mut Store,
    needs: Vec<Need>,
) -> Result<Vec<u8>, UnitStop> {
    let dbs = Moved::new(worker, held, space);
    let is_covered = |need: &Need, space: &mut Store| {
        let key: LockKey = (need.db, need.key.clone());
        (held.exclusive || wanted.keys.contains(&key))
            && !(need.part.is_some() && space.is_unsettled(need.db, &need.key))
    };
    if !needs.iter().all(|need| is_covered(need, space)) {
        return Err(Stop::Miss(dbs.at_owners(needs)).into());
    }
    let node = &worker.node;
    let mut applies = loans(held);
    for need in needs.iter().filter(|need| need.part.is_some()) {
        if let Some(apply) = applies.get_mut(&node.owner(&need.key))
            && let Some(entry) = space.lend(need.db, &need.key)
        {
            apply.entries.push((dbs.at_owner(need.db).unwrap_or(need.db), entry, false));
        }
    }
    applies.retain(|_, apply| !apply.entries.is_empty());
    worker.give_back(applies).await;
    let mut more = Requirements::default();
    more.add(dbs.at_owners(needs));
    held.lent.extend(more.keys.iter().cloned());
    borrow(worker, &more, held, space, |db| dbs.here(db)).await?;
    Ok(Vec::new())
}

/// Databases that a unit has swapped: their contents have other numbers at the owners.
struct Moved {
    here: Vec<u32>,
    owners: Option<Vec<u32>>,
}

impl Moved {
    fn new(worker: &Worker, held: &Coordination, space: &Store) -> Self {
        // Only under a hold on every worker do all agree on the databases.
        let owners = held.exclusive.then(|| worker.partition.borrow().store.generations());
        Self { here: space.generations(), owners }
    }

    /// Returns the owners' number of a database of the unit; `None` if it is new.
    fn at_owner(&self, db: u32) -> Option<u32> {
        let Some(owners) = &self.owners else { return Some(db) };
        let generation = self.here.get(db as usize)?;
        owners.iter().position(|owner| owner == generation).map(|at| at as u32)
    }

    /// Returns the unit's number of a database of the owners.
    fn here(&self, db: u32) -> u32 {
        let Some(owners) = &self.owners else { return db };
        let generation = owners.get(db as usize);
        let at = self.here.iter().position(|here| Some(here) == generation);
        at.map_or(db, |at| at as u32)
    }

    /// Translates needs to the owners' databases. A new database has nothing to load.
    fn at_owners(&self, needs: Vec<Need>) -> Vec<Need> {
        let at_owner = |need: Need| Some(Need { db: self.at_owner(need.db)?, ..need });
        needs.into_iter().filter_map(at_owner).collect()
    }
}

/// Discards the entries that a unit was lent: the owners read them again from disk.
pub(super) async fn lose(worker: &Rc<Worker>, wanted: &Requirements, held: &mut Coordination) {
    let mut applies = loans(held);
    for key in wanted.keys.union(&held.lent) {
        if let Some(apply) = applies.get_mut(&worker.node.owner(&key.1)) {
            apply.forget.push(key.clone());
        }
    }
    worker.give_back(applies).await;
    release(worker, held, Vec::new()).await;
}
