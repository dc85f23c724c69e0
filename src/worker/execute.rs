//! Runs commands on the worker's store: in place when all they need is in memory and free, else
//! parked with their locks until it is.

use super::Worker;
use super::batch::Request;
use super::locks::LockKey;
use crate::commands::registry::Command;
use crate::commands::{Ctx, Run, Stop};
use crate::config::Settings;
use crate::resp::{Args, Reply};
use flagstone_storage::KeyHash;
use flagstone_storage::store::Need;
use std::rc::Rc;
use tokio::sync::oneshot;

/// Why a command could not run in place.
#[derive(Debug)]
pub enum Blocked {
    /// Somebody holds one of its keys.
    Locked,
    /// Something is not in memory.
    Miss(Box<Need>),
}

/// What a parked command came to.
#[derive(Debug)]
pub struct Ran {
    pub reply: Vec<u8>,
    /// The greatest round that the reply shows.
    pub seen: u64,
}

/// A command with arguments of its own, for when it outlives the buffer it came in.
#[derive(Debug)]
pub struct OwnedCommand {
    pub command: &'static Command,
    pub request: Request,
    bytes: Vec<u8>,
    ranges: Vec<(u32, u32)>,
}

impl OwnedCommand {
    pub fn new(command: &'static Command, args: Args<'_>, request: Request) -> Self {
        let mut bytes = Vec::with_capacity(args.iter().map(<[u8]>::len).sum());
        let mut ranges = Vec::with_capacity(args.len());
        for arg in args.iter() {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(arg);
            ranges.push((start, bytes.len() as u32));
        }
        Self { command, request, bytes, ranges }
    }

    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
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
        &self,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
        at: Option<KeyHash>,
        now_ms: u64,
        settings: &Settings,
        out: &mut Reply,
    ) -> Result<u64, Blocked> {
        let locks = self.locks.borrow();
        if !locks.is_idle() {
            let keys = command.keys(args, request.db);
            let blocked = locks.blocks(request.db, std::iter::empty())
                || keys.iter().any(|(db, key)| locks.is_locked(*db, key));
            if blocked {
                return Err(Blocked::Locked);
            }
        }
        drop(locks);
        self.execute_unlocked(command, args, request, at, now_ms, settings, out)
    }

    #[allow(clippy::too_many_arguments, reason = "the hot path hands over what it has at hand")]
    fn execute_unlocked(
        &self,
        command: &'static Command,
        args: Args<'_>,
        request: Request,
        at: Option<KeyHash>,
        now_ms: u64,
        settings: &Settings,
        out: &mut Reply,
    ) -> Result<u64, Blocked> {
        let Run::Keys(handler) = command.spec.run else {
            out.error("ERR this command does not run on keys");
            return Ok(0);
        };
        let mark = out.len();
        let mut partition = self.partition.borrow_mut();
        let store = &mut partition.store;
        store.begin(now_ms, request.touch);
        if let (Some(at), Some(key)) = (at, args.get(1)) {
            store.hint(key, at);
        }
        let outcome = handler(&mut Ctx { store, out, db: request.db, settings }, args);
        match outcome {
            Ok(()) | Err(Stop::Close) => {}
            Err(Stop::Error(text)) => {
                self.stats().failed(command, &text);
                out.truncate(mark);
                out.error(&*text);
            }
            Err(Stop::Miss(need)) => {
                out.truncate(mark);
                return Err(Blocked::Miss(need));
            }
        }
        let store = &mut partition.store;
        let (seen, dirty) = (store.seen(), store.is_dirty());
        drop(partition);
        self.ran(command, args, request.client, settings);
        if dirty {
            self.commit_soon();
        }
        Ok(seen)
    }

    /// Parks a command: its locks are queued for now, in order; a task of its own waits for them,
    /// loads what it needs, and runs it.
    pub(crate) fn park(
        self: &Rc<Self>,
        command: OwnedCommand,
        blocked: Blocked,
    ) -> oneshot::Receiver<Ran> {
        self.stats().parked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (tx, rx) = oneshot::channel();
        let (lock, granted) = self.lock(command.lock_keys());
        let worker = self.clone();
        tokio::task::spawn_local(async move {
            if granted.await.is_ok() {
                let ran = worker.run_parked(&command, blocked).await;
                drop(lock);
                // The connection may be gone: the command ran all the same.
                let _ = tx.send(ran);
            }
        });
        rx
    }

    /// Runs a command whose locks are held, loading as often as it misses something.
    async fn run_parked(self: &Rc<Self>, command: &OwnedCommand, blocked: Blocked) -> Ran {
        let mut miss = match blocked {
            Blocked::Miss(need) => Some(need),
            Blocked::Locked => None,
        };
        let mut out = Reply::new(command.request.proto);
        loop {
            if let Some(need) = miss.take() {
                let mut needs = self.cold_keys(command);
                if !needs.contains(&need) {
                    needs.push(*need);
                }
                if let Err(text) = self.load(needs).await {
                    out.error(text);
                    return Ran { reply: out.into_bytes(), seen: 0 };
                }
            }
            let now_ms = self.node.clock.now_ms();
            let settings = self.settings();
            let args = command.args();
            self.start_watch();
            let ran = self.execute_unlocked(
                command.command,
                args,
                command.request,
                None,
                now_ms,
                &settings,
                &mut out,
            );
            match ran {
                Ok(seen) => return Ran { reply: out.into_bytes(), seen },
                Err(Blocked::Miss(need)) => miss = Some(need),
                Err(Blocked::Locked) => {}
            }
        }
    }

    /// The keys of a command that are not in memory.
    fn cold_keys(&self, command: &OwnedCommand) -> Vec<Need> {
        let mut partition = self.partition.borrow_mut();
        command
            .lock_keys()
            .into_iter()
            .filter(|(db, key)| !partition.store.is_hot(*db, key))
            .map(|(db, key)| Need { db, key, part: None })
            .collect()
    }
}
