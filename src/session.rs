//! The session of a connection: the state that its commands depend on and change. Its task alone
//! has it; the part that other threads may see is its `Client`.

use crate::acl::Account;
use crate::clients::{Client, ClientState};
use crate::cluster::IncomingLink;
use crate::command::{Command, Request};
use crate::config::Settings;
use crate::followers::{ReplicaWish, SyncWish};
use crate::monitor::Monitoring;
use crate::pubsub::Subscriptions;
use crate::tracking::Tracked;
use crate::transaction::Transaction;
use crate::worker::Watches;
use flagstone_commands::{ErrorText, int_arg};
use flagstone_wire::resp::{Args, Proto, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Replies that a client wants (CLIENT REPLY).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// Suppress the reply of the next command.
    SkipNext,
    /// Suppress the reply of this command.
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
    /// True if it has authenticated, or did not need to, before a RESET or now.
    pub was_authenticated: bool,
    /// Account whose rights it has.
    pub account: Arc<Account>,
    /// Number of consecutive wrong passwords.
    pub wrong_passwords: u32,
    /// Delay of its next reply.
    pub penalty: Option<Duration>,
    pub reply_mode: ReplyMode,
    /// True if EXEC has run CLIENT REPLY SKIP: the reply behind that of EXEC is skipped.
    pub skips_next: bool,
    /// True after CLIENT NO-TOUCH ON: reads do not count as accesses.
    pub no_touch: bool,
    /// True if the connection is to be closed once the reply is written.
    pub closing: bool,
    /// Its subscriptions, if any.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// State of CLIENT TRACKING.
    pub tracking: Option<Box<Tracked>>,
    /// Registration of MONITOR.
    pub monitoring: Option<Monitoring>,
    /// Commands queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// True while it runs queued commands: none may wait for long.
    pub in_exec: bool,
    /// True if its commands may have been run before: they come from the stream of a primary.
    pub may_repeat: bool,
    /// Keys that it watches.
    pub watches: Option<Box<Watches>>,
    /// Facts of a replica (REPLCONF), before it asks for the stream.
    pub replica: Option<Box<ReplicaWish>>,
    /// Set once it has asked for the stream: it is served as a replica from now on.
    pub sync: Option<SyncWish>,
    /// The link of another server of the cluster, which sends messages.
    pub link: Option<Box<IncomingLink>>,
    /// Greatest journal position of a write of this connection (WAITAOF).
    pub written: u64,
}

impl Session {
    /// Creates the session of a client that has the rights of an account. `authenticated`: it need
    /// not log in first.
    pub fn new(client: Arc<Client>, account: Arc<Account>, authenticated: bool) -> Self {
        client.set_account(&account);
        Self {
            client,
            db: 0,
            proto: Proto::Resp2,
            authenticated,
            was_authenticated: authenticated,
            account,
            wrong_passwords: 0,
            penalty: None,
            reply_mode: ReplyMode::On,
            skips_next: false,
            no_touch: false,
            closing: false,
            subscriptions: None,
            tracking: None,
            monitoring: None,
            transaction: None,
            in_exec: false,
            may_repeat: false,
            watches: None,
            replica: None,
            sync: None,
            link: None,
            written: 0,
        }
    }

    /// Resets everything but the connection's identity and the protocol of its messages (RESET).
    pub fn reset(&mut self, account: Arc<Account>, authenticated: bool) {
        self.end_transaction();
        let client = self.client.clone();
        let (wrong_passwords, penalty) = (self.wrong_passwords, self.penalty);
        let was_authenticated = self.was_authenticated || authenticated;
        let mut fresh = Self::new(client, account, authenticated);
        if self.reply_mode == ReplyMode::Skip {
            // The skipped reply is that of RESET itself.
            fresh.reply_mode = ReplyMode::Skip;
        }
        *self = Self { wrong_passwords, penalty, was_authenticated, ..fresh };
        self.client.reset();
    }

    /// Returns true if it is subscribed in RESP2, in which a subscriber may run few commands only.
    #[inline]
    pub fn is_subscriber(&self) -> bool {
        // Others may have ended the last one.
        self.proto == Proto::Resp2
            && self.subscriptions.as_ref().is_some_and(|subscriptions| !subscriptions.is_empty())
    }

    /// Returns true if it may send large requests: it has authenticated, or need not, or is a server of
    /// the cluster.
    #[inline]
    pub fn is_trusted(&self) -> bool {
        self.authenticated || self.link.as_ref().is_some_and(|link| link.is_proven())
    }

    /// Skips the next reply: if EXEC runs that, the one behind that of EXEC.
    pub fn skip_reply(&mut self) {
        match self.reply_mode {
            ReplyMode::Off => {}
            _ if self.in_exec => self.skips_next = true,
            _ => self.reply_mode = ReplyMode::SkipNext,
        }
    }

    /// Ends the reply of a command that has run. Returns false if the client does not want it.
    pub fn end_reply(&mut self) -> bool {
        let is_wanted = self.reply_mode == ReplyMode::On;
        if self.reply_mode == ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
        }
        if std::mem::take(&mut self.skips_next) && self.reply_mode == ReplyMode::On {
            self.reply_mode = ReplyMode::SkipNext;
        }
        is_wanted
    }

    /// Moves its pushes into a reply, ahead of the reply itself. If replies are switched off, they
    /// stay.
    pub fn take_pushes(&self, out: &mut Reply) {
        if self.reply_mode == ReplyMode::On {
            self.client.outbox.drain(|bytes| out.append(bytes));
        }
    }

    /// Returns the state on which a command on keys depends.
    pub fn request(&self) -> Request {
        Request {
            db: self.db,
            proto: self.proto,
            touch: !self.no_touch,
            client: self.client.id,
            account: self.account.checked_number(),
            track: self.tracking.as_ref().is_some_and(|tracked| tracked.remembers()),
            secured: self.client.is(ClientState::SECURED),
            spared: self.client.is(ClientState::NO_EVICT),
            again: false,
            sees_expired: self.client.is(ClientState::IMPORT),
            spent_us: 0,
        }
    }

    /// Gives it the rights of an account, whose password it has given.
    pub fn log_in(&mut self, account: Arc<Account>) {
        self.client.set_account(&account);
        self.account = account;
        self.authenticated = true;
        self.was_authenticated = true;
        self.wrong_passwords = 0;
    }

    /// Ends CLIENT CACHING after a command: it applies to one command, not counting those of
    /// CLIENT, or to one transaction.
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

    /// Begins a transaction (MULTI).
    pub fn begin_transaction(&mut self, transaction: Transaction) {
        self.client.set(ClientState::MULTI, true);
        self.client.queued.store(0, Ordering::Relaxed);
        self.transaction = Some(Box::new(transaction));
    }

    /// Breaks the transaction, because a command was refused.
    #[inline]
    pub fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.break_off();
        }
    }

    /// Ends the transaction (EXEC and DISCARD), and returns its queue.
    pub fn end_transaction(&mut self) -> Option<Box<Transaction>> {
        self.client.set(ClientState::MULTI, false);
        self.client.queued.store(-1, Ordering::Relaxed);
        self.client.queued_bytes.store(0, Ordering::Relaxed);
        self.client.queued_longest.store(0, Ordering::Relaxed);
        self.transaction.take()
    }

    /// Discards the transaction and the watched keys; returns false if there was no transaction.
    pub fn discard(&mut self) -> bool {
        let transaction = self.end_transaction();
        if transaction.is_some() {
            self.watches = None;
        }
        transaction.is_some()
    }

    /// Selects a database (SELECT).
    pub fn select(&mut self, db: u32) {
        self.db = db;
        self.client.set_db(db);
    }

    /// Sets the protocol version (HELLO).
    pub fn set_proto(&mut self, proto: Proto) {
        self.proto = proto;
        self.client.set_resp(if proto == Proto::Resp3 { 3 } else { 2 });
    }
}

/// Returns the database that SELECT chooses.
pub fn chosen_db(args: Args<'_>, settings: &Settings) -> Result<u32, ErrorText> {
    let index = i32::try_from(int_arg(args, 1)?)
        .map_err(|_| "ERR value is out of range, value must between -2147483648 and 2147483647")?;
    match u32::try_from(index) {
        _ if settings.cluster_enabled && index != 0 => {
            Err("ERR SELECT is not allowed in cluster mode".into())
        }
        Ok(db) if db < settings.databases => Ok(db),
        _ => Err("ERR DB index is out of range".into()),
    }
}
