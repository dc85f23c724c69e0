//! Runs commands on the worker's store: in place when all they need is in memory and free, else
//! parked with their locks until it is.

use super::Worker;
use super::batch::Request;
use super::locks::LockKey;
use crate::blocking::Held;
use crate::commands::registry::Command;
use crate::commands::{Block, Ctx, Run, Stop, flag};
use crate::config::Settings;
use crate::resp::{Args, OwnedArgs, Reply};
use crate::routing::{self, coordinate};
use flagstone_storage::store::Need;
use flagstone_storage::{KeyHash, Scope};
use std::collections::HashSet;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Why a command could not run in place.
#[derive(Debug)]
pub enum Blocked {
    /// Somebody holds one of its keys.
    Locked,
    /// Something of its keys is not in memory.
    Miss(Vec<Need>),
    /// It needs keys that it has not declared, and that are not in memory here or are not free.
    Undeclared(Vec<Need>),
    /// It has found nothing, and waits.
    Empty(Box<Block>),
    /// It is a unit that cannot run on this thread.
    Apart,
    /// The same, and it needs all workers whole.
    Whole,
}

/// What a command needs of a coordinator.
#[derive(Debug, Default)]
pub struct Elsewhere {
    /// What it is known to miss.
    pub missed: Vec<Need>,
    /// It is a unit that runs on a thread of its own.
    pub apart: bool,
    /// It needs all workers whole.
    pub whole: bool,
}

impl Elsewhere {
    /// All workers whole.
    fn whole() -> Self {
        Self { missed: Vec::new(), apart: true, whole: true }
    }
}

/// What a parked command came to.
#[derive(Debug)]
pub struct Ran {
    pub reply: Vec<u8>,
    /// The greatest round that the reply shows.
    pub seen: u64,
    /// There is no reply: it waits.
    pub block: Option<Box<Block>>,
}

impl Ran {
    /// A reply that shows nothing that would have to be stored.
    pub fn reply(reply: Vec<u8>) -> Self {
        Self { reply, seen: 0, block: None }
    }

    /// The command has found nothing.
    pub fn blocked(block: Box<Block>) -> Self {
        Self { reply: Vec::new(), seen: 0, block: Some(block) }
    }

    /// The reply of a command that may not wait.
    pub fn into_reply(self, proto: crate::resp::Proto) -> Vec<u8> {
        match self.block {
            None => self.reply,
            Some(block) => {
                let mut out = Reply::new(proto);
                block.nil.write(&mut out);
                out.into_bytes()
            }
        }
    }

    /// The task that was to run it is gone.
    pub fn abandoned() -> Self {
        Self::reply(b"-ERR the command was abandoned\r\n".to_vec())
    }
}

/// A command with arguments of its own, for when it outlives the buffer it came in.
#[derive(Clone, Debug)]
pub struct OwnedCommand {
    pub command: &'static Command,
    pub request: Request,
    args: OwnedArgs,
}

impl OwnedCommand {
    pub fn new(command: &'static Command, args: impl Into<OwnedArgs>, request: Request) -> Self {
        Self { command, request, args: args.into() }
    }

    /// The same with other arguments in some places.
    pub fn with_args(&self, replaced: &[(usize, Vec<u8>)]) -> Self {
        let mut other = self.clone();
        replaced.iter().for_each(|(at, arg)| other.args.replace(*at, arg));
        other
    }

    pub fn args(&self) -> Args<'_> {
        self.args.args()
    }

    /// Its keys, for locking.
    pub(crate) fn lock_keys(&self) -> Vec<LockKey> {
        let args = self.args();
        self.command
            .keys(args, self.request.db)
            .into_iter()
            .map(|(db, key)| (db, key.into()))
            .collect()
    }
}

impl Worker {
    /// Runs a command of [`Run::Keys`] whose keys are all this worker's. The reply is appended to
    /// `out`; the greatest round it shows comes back.
    #[allow(clippy::too_many_arguments, reason = "the hot path hands over what it has at hand")]
    pub(crate) fn execute(
        self: &Rc<Self>,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
        at: Option<KeyHash>,
        now_ms: u64,
        settings: &Settings,
        out: &mut Reply,
    ) -> Result<u64, Blocked> {
        let locks = self.locks.borrow();
        let is_idle = locks.is_idle();
        if !is_idle {
            let keys = command.keys(args, request.db);
            let blocked = locks.blocks(request.db, std::iter::empty())
                || keys.iter().any(|(db, key)| locks.is_locked(*db, key));
            if blocked {
                return Err(Blocked::Locked);
            }
        }
        drop(locks);
        let scope = if is_idle { Scope::Own } else { declared(command, args, request) };
        self.execute_unlocked(command, args, request, at, scope, now_ms, settings, out)
    }

    /// Runs a command that may use its keys, whoever holds their locks.
    pub(crate) fn execute_open(self: &Rc<Self>, command: &OwnedCommand) -> Result<Ran, Blocked> {
        let mut out = Reply::new(command.request.proto);
        let seen = self.execute_unlocked(
            command.command,
            command.args(),
            command.request,
            None,
            Scope::Own,
            self.node.clock.now_ms(),
            &self.settings(),
            &mut out,
        )?;
        Ok(Ran { reply: out.into_bytes(), seen, block: None })
    }

    #[allow(clippy::too_many_arguments, reason = "the hot path hands over what it has at hand")]
    fn execute_unlocked(
        self: &Rc<Self>,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
        at: Option<KeyHash>,
        scope: Scope,
        now_ms: u64,
        settings: &Settings,
        out: &mut Reply,
    ) -> Result<u64, Blocked> {
        let Run::Keys(handler) = command.spec.run else {
            out.error("ERR this command does not run on keys");
            return Ok(0);
        };
        if command.spec.unit {
            return self.execute_unit(command, args, request, &scope, now_ms, settings, out);
        }
        let mark = out.len();
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        store.begin(now_ms, request.touch);
        store.notes.want(self.node.interest(settings));
        if command.undeclared_keys {
            store.confine(scope);
        }
        if let (Some(at), Some(key)) = (at, args.get(1)) {
            store.hint(key, at);
        }
        let again = request.again;
        let outcome =
            handler(&mut Ctx { store, out, db: request.db, settings, again, unit: None }, args);
        let mut empty = None;
        match outcome {
            Ok(())
            | Err(Stop::Close | Stop::Unsettled | Stop::Apart | Stop::Whole | Stop::Undone(_)) => {}
            Err(Stop::Block(block)) => {
                out.truncate(mark);
                empty = Some(block);
            }
            Err(Stop::Error(text)) => {
                self.stats().failed(command, &text);
                out.truncate(mark);
                out.error(&*text);
            }
            Err(Stop::Miss(needs)) => {
                out.truncate(mark);
                // What it has met so far may have expired.
                partition.store.notes.retry();
                self.take_notes(partition, changer(command, request.client));
                return Err(blocked_by(needs, command, args, request));
            }
        }
        let (seen, dirty) = (partition.store.seen(), partition.store.is_dirty());
        if request.track && empty.is_none() {
            let has_news = !partition.store.notes.is_empty();
            self.remember_read(command, args, request, has_news);
        }
        if dirty {
            self.commit_soon();
        }
        if empty.is_none() {
            self.ran(command, args, request.client, settings);
        }
        if empty.is_some() {
            // It has nothing for those who wait as it does.
            partition.store.notes.drop_changes();
        }
        if request.client == 0 {
            // It is no reader who has missed something.
            partition.store.notes.retry();
        }
        self.take_notes(partition, changer(command, request.client));
        empty.map_or(Ok(seen), |block| Err(Blocked::Empty(block)))
    }

    /// Parks a command: its locks are queued for now, in order; a task of its own waits for them,
    /// loads what it needs, and runs it. One that needs undeclared keys goes to a coordinator.
    pub(crate) fn park(
        self: &Rc<Self>,
        command: OwnedCommand,
        blocked: Blocked,
    ) -> oneshot::Receiver<Ran> {
        self.stats().parked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (tx, rx) = oneshot::channel();
        let mut missed = Vec::new();
        let locked = match blocked {
            Blocked::Undeclared(missed) => Err(Elsewhere { missed, ..Elsewhere::default() }),
            Blocked::Apart => Err(Elsewhere { apart: true, ..Elsewhere::default() }),
            Blocked::Whole => Err(Elsewhere::whole()),
            Blocked::Locked => Ok(self.lock(self.own_keys(&command))),
            Blocked::Miss(needs) => {
                missed = needs;
                Ok(self.lock(self.own_keys(&command)))
            }
            Blocked::Empty(block) => {
                let _ = tx.send(Ran::blocked(block));
                return rx;
            }
        };
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            let elsewhere = match locked {
                Err(elsewhere) => elsewhere,
                Ok((lock, granted)) => {
                    if granted.await.is_err() {
                        return;
                    }
                    let ran = worker.run_parked(&command, missed).await;
                    drop(lock);
                    match ran {
                        Ok(ran) => {
                            // The connection may be gone: the command ran all the same.
                            let _ = tx.send(ran);
                            return;
                        }
                        Err(elsewhere) => elsewhere,
                    }
                }
            };
            let _ = tx.send(coordinate(&worker, &command, elsewhere).await);
        });
        rx
    }

    /// Runs a command whose locks are held, loading as often as it misses something. `Err`: it
    /// needs a coordinator.
    async fn run_parked(
        self: &Rc<Self>,
        command: &OwnedCommand,
        mut missed: Vec<Need>,
    ) -> Result<Ran, Elsewhere> {
        let mut out = Reply::new(command.request.proto);
        let mut parts: HashSet<Need> = HashSet::new();
        loop {
            if !missed.is_empty() {
                if !command.command.spec.unit {
                    parts.clear();
                }
                // A unit that is taken back forgets all that was loaded of what it has changed.
                parts.extend(missed.drain(..).filter(|need| need.part.is_some()));
                let mut needs = self.cold_keys(command);
                needs.extend(parts.iter().cloned());
                if let Err(text) = self.load(needs).await {
                    out.error(text);
                    return Ok(Ran::reply(out.into_bytes()));
                }
            }
            let now_ms = self.node.clock.now_ms();
            let settings = self.settings();
            let args = command.args();
            self.start_watch();
            let held = self.hold_for_waiters(command);
            let ran = self.execute_unlocked(
                command.command,
                args,
                command.request,
                None,
                declared(command.command, args, command.request),
                now_ms,
                &settings,
                &mut out,
            );
            self.waiting.borrow_mut().hold(held);
            match ran {
                Ok(seen) => return Ok(Ran { reply: out.into_bytes(), seen, block: None }),
                Err(Blocked::Empty(block)) => return Ok(Ran::blocked(block)),
                Err(Blocked::Miss(needs)) => missed = needs,
                Err(Blocked::Undeclared(missed)) => {
                    return Err(Elsewhere { missed, ..Elsewhere::default() });
                }
                Err(Blocked::Apart) => {
                    return Err(Elsewhere { apart: true, ..Elsewhere::default() });
                }
                Err(Blocked::Whole) => return Err(Elsewhere::whole()),
                Err(Blocked::Locked) => {}
            }
        }
    }

    /// The locks of a command do not keep those from being served who wait for what it does; what
    /// did not before.
    fn hold_for_waiters(&self, command: &OwnedCommand) -> Held {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() {
            return Held::Nothing;
        }
        waiting.hold(Held::Keys(self.own_keys(command)))
    }

    /// The keys of a command that belong to this worker; nearly always all of them.
    fn own_keys(&self, command: &OwnedCommand) -> Vec<LockKey> {
        let mut keys = command.lock_keys();
        keys.retain(|(_, key)| self.owns(key));
        keys
    }

    /// Whether a key belongs to this worker.
    pub(crate) fn owns(&self, key: &[u8]) -> bool {
        routing::owner(&self.node, key) == self.id
    }

    /// The keys of a command that are not in memory.
    fn cold_keys(&self, command: &OwnedCommand) -> Vec<Need> {
        let keys = self.own_keys(command);
        let mut partition = self.partition.borrow_mut();
        keys.into_iter()
            .filter(|(db, key)| !partition.store.is_hot(*db, key))
            .map(|(db, key)| Need { db, key, part: None })
            .collect()
    }
}

/// Whose changes the changes of a client's command are: what a reading one finds expired nobody has
/// changed (0).
pub(crate) fn changer(command: &Command, client: u64) -> u64 {
    if command.spec.has(flag::READONLY) { 0 } else { client }
}

/// What a command may ask for while others hold locks: the keys that it has declared.
pub(super) fn declared(command: &Command, args: Args<'_>, request: Request) -> Scope {
    if !command.undeclared_keys {
        return Scope::All;
    }
    let keys = command.keys(args, request.db).into_iter();
    Scope::Keys(keys.map(|(db, key)| (db, key.into())).collect())
}

/// Why a command that missed something could not run.
pub(super) fn blocked_by(
    needs: Vec<Need>,
    command: &Command,
    args: Args<'_>,
    request: Request,
) -> Blocked {
    let declared = command.keys(args, request.db);
    let is_declared = |need: &Need| declared.contains(&(need.db, &*need.key));
    if needs.iter().all(is_declared) { Blocked::Miss(needs) } else { Blocked::Undeclared(needs) }
}
