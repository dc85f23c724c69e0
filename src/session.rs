//! What a connection is to the server.

use crate::clients::{Client, state};
use crate::command::{Command, Request};
use crate::config::Settings;
use crate::monitor::Monitoring;
use crate::pubsub::Subscriptions;
use crate::tracking::Tracked;
use crate::transaction::Transaction;
use crate::worker::Watches;
use flagstone_commands::{Stop, int_arg};
use flagstone_wire::resp::{Args, Proto, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Which replies a client wants (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// The reply of the next command is left out.
    SkipNext,
    /// The reply of this command is left out.
    Skip,
}

/// A connection's state, owned by its task.
#[derive(Debug)]
pub struct Session {
    /// The part that other connections may see and act on.
    pub client: Arc<Client>,
    pub db: u32,
    pub proto: Proto,
    pub authenticated: bool,
    /// Wrong passwords that it has given in a row.
    pub wrong_passwords: u32,
    /// How long its next reply is kept back.
    pub penalty: Option<Duration>,
    pub reply_mode: ReplyMode,
    /// CLIENT NO-TOUCH: reads do not count as accesses.
    pub no_touch: bool,
    /// Close once the reply is written.
    pub closing: bool,
    /// What it listens to, if anything.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// CLIENT TRACKING.
    pub tracking: Option<Box<Tracked>>,
    /// MONITOR.
    pub monitoring: Option<Monitoring>,
    /// What is queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// It runs what was queued: no command may wait for long.
    pub in_exec: bool,
    /// What it watches.
    pub watches: Option<Box<Watches>>,
    /// The greatest journal position that holds a write of this connection (WAITAOF).
    pub written: u64,
}

impl Session {
    pub fn new(client: Arc<Client>, authenticated: bool) -> Self {
        Self {
            client,
            db: 0,
            proto: Proto::Resp2,
            authenticated,
            wrong_passwords: 0,
            penalty: None,
            reply_mode: ReplyMode::On,
            no_touch: false,
            closing: false,
            subscriptions: None,
            tracking: None,
            monitoring: None,
            transaction: None,
            in_exec: false,
            watches: None,
            written: 0,
        }
    }

    /// RESET: everything but the connection's identity as it was at the start.
    pub fn reset(&mut self, authenticated: bool) {
        self.end_transaction();
        let client = self.client.clone();
        let (wrong_passwords, penalty) = (self.wrong_passwords, self.penalty);
        *self = Self { wrong_passwords, penalty, ..Self::new(client, authenticated) };
        self.client.reset();
    }

    /// Whether it listens in RESP2, in which a client that does can run few commands only.
    #[inline]
    pub fn is_subscriber(&self) -> bool {
        self.subscriptions.is_some() && self.proto == Proto::Resp2
    }

    /// Takes what it was sent unasked into a reply: it comes before what the reply tells. Where
    /// replies are not wanted it stays where it is.
    pub fn take_pushes(&self, out: &mut Reply) {
        if self.reply_mode == ReplyMode::On {
            self.client.outbox.drain(|bytes| out.append(bytes));
        }
    }

    /// What a command on keys needs to know of it.
    pub fn request(&self) -> Request {
        Request {
            db: self.db,
            proto: self.proto,
            touch: !self.no_touch,
            client: self.client.id,
            track: self.tracking.as_ref().is_some_and(|tracked| tracked.remembers()),
            again: false,
            sees_expired: false,
        }
    }

    /// A command was run: CLIENT CACHING is of one command, but for those of CLIENT, or of one
    /// transaction.
    #[inline]
    pub fn end_caching(&mut self, command: Option<&Command>) {
        if let Some(tracked) = &mut self.tracking
            && tracked.caching
            && self.transaction.is_none()
            && !command.is_some_and(|command| command.full_name.starts_with("client|"))
        {
            tracked.caching = false;
        }
    }

    /// MULTI.
    pub fn begin_transaction(&mut self, transaction: Transaction) {
        self.client.set(state::MULTI, true);
        self.client.queued.store(0, Ordering::Relaxed);
        self.transaction = Some(Box::new(transaction));
    }

    /// A command was refused: what is queued will not run.
    #[inline]
    pub fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.break_off();
        }
    }

    /// EXEC and DISCARD.
    pub fn end_transaction(&mut self) -> Option<Box<Transaction>> {
        self.client.set(state::MULTI, false);
        self.client.queued.store(-1, Ordering::Relaxed);
        self.client.queued_bytes.store(0, Ordering::Relaxed);
        self.transaction.take()
    }

    /// What is queued will not run, and nothing is watched any more; whether anything was queued.
    pub fn discard(&mut self) -> bool {
        let transaction = self.end_transaction();
        if transaction.is_some() {
            self.watches = None;
        }
        transaction.is_some()
    }

    /// SELECT.
    pub fn select(&mut self, db: u32) {
        self.db = db;
        self.client.set_db(db);
    }

    /// HELLO's protocol version.
    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.set_resp(if proto == Proto::Resp3 { 3 } else { 2 });
    }
}

/// The database that SELECT chooses.
pub fn chosen_db(args: Args<'_>, settings: &Settings) -> Result<u32, Stop> {
    let index = i32::try_from(int_arg(args, 1)?)
        .map_err(|_| "ERR value is out of range, value must between -2147483648 and 2147483647")?;
    match u32::try_from(index) {
        Ok(db) if db < settings.databases => Ok(db),
        _ => Err("ERR DB index is out of range".into()),
    }
}
