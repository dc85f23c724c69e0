//! Runs the primary's commands on this server.

use super::stream::Batch;
use super::{OTHER, failover, primary};
use crate::clients::{Client, ClientState};
use crate::command::{Command, Patience, Request, registry};
use crate::followers::FailoverStep;
use crate::node::Node;
use crate::replica::{FollowedEnd, Primary};
use crate::routing::{self, Call, CallStop, at_rest};
use crate::session::Session;
use crate::transaction::{CommandsOrigin, Transaction, runs_in_unit};
use crate::transport::PeerAddr;
use crate::worker::{Peers, Worker, refusal};
use flagstone_commands::flag;
use flagstone_storage::encoding::{FormerStream, SourceExtent, SourcePosition};
use flagstone_wire::resp::{Args, OwnedArgs, Reply};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

/// Worker that coordinates the commands of the stream.
const COORDINATOR: usize = 0;

/// A command, with the database that is selected for it.
#[derive(Debug)]
pub(super) struct StreamCommand {
    pub(super) db: u32,
    pub(super) args: OwnedArgs,
}

impl StreamCommand {
    pub(super) fn new(db: u32, words: &[&[u8]]) -> Self {
        let mut args = OwnedArgs::default();
        words.iter().for_each(|word| args.push(word));
        Self { db, args }
    }
}

/// Applies commands, and stores the position that they reach.
#[derive(Clone)]
pub(super) struct Applier {
    pub(super) node: Arc<Node>,
    peers: Arc<Peers>,
}

impl Applier {
    pub(super) fn new(node: &Arc<Node>, peers: &Arc<Peers>) -> Self {
        Self { node: node.clone(), peers: peers.clone() }
    }

    /// Runs a job on the coordinator, after those of all former links, and before any later one, even
    /// if the caller gives up waiting for it. `epoch`: the choice of a primary that it belongs to.
    async fn on_coordinator<T, F, Fut>(&self, epoch: Option<u64>, job: F) -> Result<T, String>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Worker>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, String>> + 'static,
    {
        let replica = &self.node.health.replica;
        let turn = replica.turn().await;
        if epoch.is_some_and(|epoch| replica.epoch() != epoch) {
            return Err(OTHER.to_owned());
        }
        replica.set_at_work(epoch);
        let job = move |worker| async move {
            let done = job(worker).await;
            drop(turn);
            done
        };
        let done = self.peers.on_worker(COORDINATOR, false, job).await;
        done.unwrap_or_else(|_| Err("a worker is gone".to_owned()))
    }

    /// Applies a batch as one unit.
    ///
    /// # Errors
    /// Returns the reason if it could not be stored: nothing of it is applied, except commands that
    /// are no part of a unit.
    pub(super) async fn apply(&self, epoch: u64, batch: Batch) -> Result<(), String> {
        self.node.health.room().await;
        let Batch { commands, reached, bytes } = batch;
        self.on_coordinator(Some(epoch), |worker| async move {
            // They may be applied again after a crash, but they are never left out.
            let has_others = run_others(&worker, &commands, Errors::Logged).await?;
            let origin = CommandsOrigin::Stream(reached.clone());
            let end = reached.offset;
            if !run_unit(&worker, &commands, &origin).await? && has_others {
                store_position(&worker, reached).await?;
            } else {
                // If nothing was changed, nothing was stored either.
                let end = worker.node.journal.end();
                worker.node.health.replica.reached(reached, end);
            }
            let kept = worker.settings().repl_backlog_size;
            worker.node.health.replica.keep_applied(end - bytes.len() as u64, &bytes, kept);
            Ok(())
        })
        .await
    }

    /// Runs commands of the data set that is loaded: they reach no position.
    ///
    /// # Errors
    /// Returns the reason if one of them fails.
    pub(super) async fn load(
        &self,
        epoch: Option<u64>,
        commands: Vec<StreamCommand>,
    ) -> Result<(), String> {
        self.node.health.room().await;
        self.on_coordinator(epoch, |worker| async move {
            run_others(&worker, &commands, Errors::Stop).await?;
            run_unit(&worker, &commands, &CommandsOrigin::DataSet).await.map(drop)
        })
        .await
    }

    /// Returns the stored position, after all that former links have begun.
    pub(super) async fn position(&self, epoch: u64) -> Result<SourcePosition, String> {
        self.on_coordinator(Some(epoch), |worker| async move {
            Ok(worker.node.health.replica.link().position.clone())
        })
        .await
    }

    /// Stores that the data no longer follows a stream, and whether it is only a part of a data
    /// set.
    pub(super) async fn forget_position(
        &self,
        epoch: Option<u64>,
        extent: SourceExtent,
    ) -> Result<(), String> {
        self.on_coordinator(epoch, move |worker| async move {
            let serial = worker.node.health.replica.link().position.serial + 1;
            let position = SourcePosition { serial, extent, ..SourcePosition::default() };
            store_position(&worker, position).await
        })
        .await
    }

    /// Becomes a primary: the stream for other replicas of the same primary begins where that primary's
    /// ended here, and the position is void. Returns the end of the former stream.
    pub(super) async fn succeed(&self) -> Result<Option<FollowedEnd>, String> {
        self.on_coordinator(None, |worker| async move {
            let replica = &worker.node.health.replica;
            let end = replica.followed_end();
            let mut formers = Vec::new();
            if let Some(end) = end.clone() {
                let is_in_group = worker.settings().is_in_group();
                let own = primary::succeed(&worker, end.clone(), is_in_group).await;
                match own {
                    // It is known by them after a start, too.
                    Ok(own) if is_in_group => {
                        let own = FormerStream { id: own.into_bytes().into(), offset: u64::MAX };
                        formers = [vec![own, end.stream], end.formers].concat();
                    }
                    Err(reason) if is_in_group => return Err(reason),
                    _ => {}
                }
            }
            let serial = replica.link().position.serial + 1;
            let void = SourcePosition { serial, formers, ..Default::default() };
            store_position(&worker, void).await?;
            Ok(end)
        })
        .await
    }

    /// Ends a failover that cannot go on.
    pub(super) async fn give_up_failover(&self, number: u64, reason: &str) {
        // This server becomes a primary again, which ends the link that calls; a client may be killed.
        let (node, peers, reason) = (self.node.clone(), self.peers.clone(), reason.to_owned());
        let ending = async move { failover::give_up(&node, &peers, number, &reason).await };
        let _ = self.node.background.spawn(ending).await;
    }

    /// Gives all replies up that cannot be given in the present role.
    pub(super) async fn settle(&self) {
        let settle = |worker: Rc<Worker>| async move { worker.settle_rounds() };
        // A worker that has ended answers nobody.
        let _ = self.peers.on_all(true, settle).await;
    }

    /// Waits until no command is in the middle.
    pub(super) async fn rest(&self) -> Result<(), String> {
        self.on_coordinator(None, |worker| async move {
            at_rest(&worker, Patience::Short, async {}).await.map_err(|error| error.text)
        })
        .await
    }

    /// Makes this primary a replica, from the end of its own stream on: that of another server, or of
    /// one of its own replicas in a failover with a number. `applied`: nothing happens if the stream has
    /// gone on since there, and `None` is returned. Otherwise returns the number of the choice.
    pub(super) async fn demote(
        &self,
        failover: Option<u64>,
        primary: Primary,
        applied: Option<u64>,
    ) -> Result<Option<u64>, String> {
        let peers = self.peers.clone();
        self.on_coordinator(None, move |worker| async move {
            let resting = worker.clone();
            let job = async move { demote_now(&resting, failover, primary, applied).await };
            let demoted =
                at_rest(&worker, Patience::Short, job).await.map_err(|error| error.text)??;
            if demoted.is_some() {
                primary::finish_stream(&worker.node, &peers).await;
            }
            Ok(demoted)
        })
        .await
    }

    /// Stores a position by itself.
    pub(super) async fn put_position(
        &self,
        epoch: u64,
        position: SourcePosition,
    ) -> Result<(), String> {
        self.on_coordinator(
            Some(epoch),
            |worker| async move { store_position(&worker, position).await },
        )
        .await
    }

    /// Begins to load a data set: from here on the data is a part of one, until
    /// [`end_load`](Self::end_load). Replicas of this server keep what they have: they are disconnected first, so
    /// that no part is sent to them, neither now nor after a start.
    pub(super) async fn begin_load(&self, epoch: u64) -> Result<(), String> {
        let peers = self.peers.clone();
        self.on_coordinator(Some(epoch), move |worker| async move {
            let replica = &worker.node.health.replica;
            // No stream begins from here on.
            replica.set_loading(true);
            primary::end_stream(&worker.node, &peers).await;
            let serial = replica.link().position.serial + 1;
            let extent = SourceExtent::Part;
            let part = SourcePosition { serial, extent, ..SourcePosition::default() };
            let stored = store_position(&worker, part).await;
            if stored.is_err() {
                replica.set_loading(false);
            }
            stored
        })
        .await
    }

    /// Stores the position of a data set that is loaded, and admits clients.
    pub(super) async fn end_load(
        &self,
        epoch: u64,
        position: SourcePosition,
    ) -> Result<(), String> {
        self.on_coordinator(Some(epoch), |worker| async move {
            store_position(&worker, position).await?;
            worker.node.health.replica.set_loading(false);
            Ok(())
        })
        .await
    }

    /// Waits until a former link changes nothing any more.
    pub(super) async fn alone(&self) {
        drop(self.node.health.replica.turn().await);
    }

    /// Deletes the part of a data set that was loaded when that failed, if there is one.
    pub(super) async fn clear_part(&self, epoch: Option<u64>) -> Result<(), String> {
        let replica = &self.node.health.replica;
        // A former link may just have begun to load one, or have loaded all of it.
        self.alone().await;
        if !replica.is_loading() {
            return Ok(());
        }
        self.clear(epoch).await?;
        self.forget_position(epoch, SourceExtent::Whole).await?;
        replica.set_loading(false);
        tracing::warn!("what was loaded of the primary's data set is deleted: it was a part");
        Ok(())
    }

    /// Deletes all keys and libraries.
    pub(super) async fn clear(&self, epoch: Option<u64>) -> Result<(), String> {
        for words in [&[&b"FLUSHALL"[..]][..], &[b"FUNCTION", b"FLUSH"]] {
            self.load(epoch, vec![StreamCommand::new(0, words)]).await?;
        }
        Ok(())
    }
}

const UNKNOWN_END: &str = "ERR what is written does not get to the disk in time: the end of this server's \
     stream is not known, and needed in a group (repl-group-size)";

/// Becomes a replica while no command runs, unless the stream has gone on.
async fn demote_now(
    worker: &Worker,
    failover: Option<u64>,
    primary: Primary,
    applied: Option<u64>,
) -> Result<Option<u64>, String> {
    let node = &worker.node;
    let end = primary::end_of_stream(node).await;
    match (&end, applied) {
        (Some((_, end, _)), Some(applied)) if *end == applied => {}
        (None, None) if failover.is_none() && node.config.settings().is_in_group() => {
            return Err(UNKNOWN_END.to_owned());
        }
        (_, None) => {}
        _ => return Ok(None),
    }
    let (waits, takes_over) = (FailoverStep::WaitsForSync, FailoverStep::InProgress);
    if failover.is_some_and(|number| !node.followers.failover.go(number, waits, takes_over)) {
        return Err("it was aborted".to_owned());
    }
    // From here on writes are refused.
    let replica = &node.health.replica;
    let epoch = replica.follow(primary);
    node.apply_repl_ack();
    let Some((id, offset, db)) = end else { return Ok(Some(epoch)) };
    let serial = replica.link().position.serial + 1;
    let (id, formers) =
        (id.into_bytes().into(), node.followers.figures().unwrap_or_default().formers);
    let position = SourcePosition { serial, offset, db, id, formers, ..Default::default() };
    let stored = worker.partition.borrow_mut().put_source(node.clock.now_ms(), &position);
    let lsn = match stored {
        Ok(lsn) => lsn,
        Err(error) => {
            let reason = refusal(&error).text;
            // The whole data set comes instead.
            tracing::warn!(reason, "the position of this server is not stored");
            return Ok(Some(epoch));
        }
    };
    replica.reached(position, lsn);
    if let Some((first, bytes)) = node.followers.held() {
        replica.keep_applied(first, &bytes, worker.settings().repl_backlog_size);
    }
    Ok(Some(epoch))
}

async fn store_position(worker: &Worker, position: SourcePosition) -> Result<(), String> {
    let lsn = worker.put_source(&position).await?;
    worker.wait_shown(&worker.showing(lsn)).await.map_err(|error| error.text)?;
    worker.node.health.replica.reached(position, lsn);
    Ok(())
}

/// Runs those of the commands that are part of a unit, as one. Returns false if there are none.
async fn run_unit(
    worker: &Rc<Worker>,
    commands: &[StreamCommand],
    origin: &CommandsOrigin,
) -> Result<bool, String> {
    let mut unit = Transaction::of_server(origin);
    for (command, db, args) in admitted(commands) {
        if runs_in_unit(command) {
            unit.select(db);
            unit.push(command, command.spec.flags, args, None, None);
        }
    }
    if unit.commands().is_empty() {
        return Ok(false);
    }
    let exec = registry::declared("exec").ok_or("there is no command for transactions")?;
    let request = Request { sees_expired: true, ..Request::of_nobody(0) };
    let ran = routing::run(worker, exec, unit.args(), request).await;
    if ran.outcome.is_error() {
        return Err(String::from_utf8_lossy(ran.reply.as_bytes()).trim().to_owned());
    }
    Ok(true)
}

/// Treatment of the errors of commands that are no part of a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Errors {
    /// Such a command may have been applied before a crash, and fails when it comes again.
    Logged,
    Stop,
}

/// Runs those of the commands that are no part of a unit. Returns true if there are any.
async fn run_others(
    worker: &Rc<Worker>,
    commands: &[StreamCommand],
    errors: Errors,
) -> Result<bool, String> {
    let mut any = false;
    for (command, db, args) in admitted(commands).filter(|(other, ..)| !runs_in_unit(other)) {
        any = true;
        match run_alone(worker, command, db, args).await {
            Ok(()) => {}
            Err(CallStop::Unstored(error)) => return Err(error.text),
            Err(CallStop::Error(text)) if errors == Errors::Logged => {
                let reason = String::from_utf8_lossy(&text).into_owned();
                tracing::error!(
                    command = command.full_name,
                    %reason,
                    "a command of the primary has failed here"
                );
            }
            Err(CallStop::Error(text)) => {
                let reason = String::from_utf8_lossy(&text);
                return Err(format!("{}: {reason}", command.full_name));
            }
            Err(CallStop::Close) => return Err("a command has ended its session".to_owned()),
        }
    }
    Ok(any)
}

/// Runs a command in a session of its own, with all rights.
async fn run_alone(
    worker: &Rc<Worker>,
    command: &'static Command,
    db: u32,
    args: Args<'_>,
) -> Result<(), CallStop> {
    let addr = || PeerAddr::Unix("".into());
    let node = &worker.node;
    let client = Client::new(0, (addr(), addr()), -1, worker.id, node.clock.now_ms());
    // Its requests are of the stream, as those of units are.
    client.set(ClientState::IMPORT, true);
    let account = node.access.accounts.default_account().clone();
    let mut session = Session::new(Arc::new(client), account, true);
    (session.db, session.in_exec, session.may_repeat) = (db, true, true);
    let mut out = Reply::default();
    let mut call = Call { session: &mut session, node, worker, out: &mut out };
    match routing::handlers(command).wait {
        Some(handler) => handler(&mut call, args).await,
        None => routing::run_on_session(command, &mut call, args),
    }
}

/// Returns the commands that this server knows in this form, with their databases and arguments.
fn admitted(commands: &[StreamCommand]) -> impl Iterator<Item = (&'static Command, u32, Args<'_>)> {
    commands.iter().filter_map(|StreamCommand { db, args }| {
        let args = args.args();
        Some((known(args)?, *db, args))
    })
}

/// Returns the command that the arguments name, if they may be its arguments, and if it may be in a
/// stream: no primary sends commands on the server itself.
pub(super) fn known(args: Args<'_>) -> Option<&'static Command> {
    registry::resolve_declared(args).filter(|command| {
        let spec = command.spec;
        spec.arity_allows(args.len()) && (spec.has(flag!(WRITE)) || !spec.has(flag!(ADMIN)))
    })
}
