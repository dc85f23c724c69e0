//! A command that a client has sent, with the state of its session that it depends on.

use super::{Command, aborted_by};
use crate::config::Settings;
use flagstone_commands::flag;
use flagstone_storage::KeyHash;
use flagstone_storage::need::Key;
use flagstone_wire::resp::{Args, OwnedArgs, Proto, Reply};
use std::time::Duration;

/// State of the session on which a command depends.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub db: u32,
    pub proto: Proto,
    pub touch: bool,
    /// Id of the connection.
    pub client: u64,
    /// Number of the account whose rights are checked while it runs; 0 if it may do everything.
    pub account: u64,
    /// True if the connection tracks the keys that it reads.
    pub track: bool,
    /// True if the client uses TLS: it is sent to the ports for that.
    pub secured: bool,
    /// True if the client is never closed for its memory (CLIENT NO-EVICT).
    pub spared: bool,
    /// True if the command was blocked, and runs again because there may be something for it.
    pub again: bool,
    /// True if a coordinator's command, or a unit, sees expired keys as long as nothing else has
    /// removed them (DEBUG, the commands of another server's stream, and CLIENT IMPORT-SOURCE).
    pub sees_expired: bool,
    /// Time in µs that earlier runs of the command have taken, which missed data.
    pub spent_us: u32,
}

impl Request {
    /// Creates the request of a command that the server itself runs; its reply is in RESP2.
    pub fn of_nobody(db: u32) -> Self {
        Self {
            db,
            proto: Proto::Resp2,
            touch: false,
            client: 0,
            account: 0,
            track: false,
            secured: false,
            spared: false,
            again: false,
            sees_expired: false,
            spent_us: 0,
        }
    }

    /// Adds the time of a run after which the command has to run again.
    pub fn spend(&mut self, took: Duration) {
        let took_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.spent_us = self.spent_us.saturating_add(took_us);
    }

    /// Returns the time of all such runs.
    pub fn spent(&self) -> Duration {
        Duration::from_micros(self.spent_us.into())
    }

    /// Creates a buffer for its reply.
    pub fn reply(&self) -> Reply {
        let mut reply = Reply::new(self.proto);
        reply.spare(self.spared);
        reply
    }

    /// Returns true if the stream of a primary has the command: the server's state does not refuse
    /// it.
    pub fn is_of_stream(&self) -> bool {
        self.client == 0 && self.sees_expired
    }
}

/// Limit of a command's wait for locks: a script may become busy meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It waits on: the server itself runs it, or its client was blocked and is about to be served.
    #[default]
    Endless,
    /// It is refused.
    Short,
    /// It is an EXEC, and refused with its transaction.
    ShortOfExec,
}

impl Patience {
    /// Returns that of a command.
    pub fn of(command: &Command, request: &Request) -> Self {
        if request.client == 0 || request.again || command.spec.has(flag!(ALLOW_BUSY)) {
            Self::Endless
        } else if command.spec.has(flag!(EXEC)) {
            Self::ShortOfExec
        } else {
            Self::Short
        }
    }

    /// Returns true if the command is refused.
    pub fn is_short(self) -> bool {
        self != Self::Endless
    }

    /// Returns the error of a refused command, made of the one about the script.
    pub fn refusal(self, busy: &str) -> Vec<u8> {
        match self {
            Self::ShortOfExec => aborted_by(busy.as_bytes()),
            Self::Endless | Self::Short => busy.into(),
        }
    }
}

/// A command that is about to run, with everything that a run needs to know.
pub struct Invocation<'a> {
    pub command: &'static Command,
    pub args: Args<'a>,
    pub request: Request,
    /// Hash of its only key, if it is known.
    pub at: Option<KeyHash>,
    /// Time of the run, in ms since the Unix epoch.
    pub now_ms: u64,
    pub settings: &'a Settings,
}

/// A command with its own copy of the arguments, for when it outlives the read buffer.
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

    /// Returns the command with some arguments replaced.
    pub fn with_args(&self, replaced: &[(usize, Vec<u8>)]) -> Self {
        let mut other = self.clone();
        replaced.iter().for_each(|(at, arg)| other.args.replace(*at, arg));
        other
    }

    pub fn args(&self) -> Args<'_> {
        self.args.args()
    }

    /// Returns the invocation of the command at a time.
    pub(crate) fn invocation<'a>(&'a self, now_ms: u64, settings: &'a Settings) -> Invocation<'a> {
        let Self { command, request, .. } = *self;
        Invocation { command, args: self.args(), request, at: None, now_ms, settings }
    }

    /// Returns the approximate memory of its arguments in bytes.
    pub fn memory(&self) -> usize {
        self.args.memory()
    }

    /// Returns the elements of a key that the command names, as far as they are declared.
    pub(crate) fn names(&self, db: u32, key: &[u8]) -> impl Iterator<Item = &[u8]> {
        let args = self.args();
        let names = self.command.spec.names.filter(|_| {
            if self.command.one_key {
                return self.request.db == db && args.get(1) == Some(key);
            }
            self.command.keys(args, self.request.db).contains(&(db, key))
        });
        names.into_iter().flat_map(move |names| names.find(args))
    }

    /// Returns its keys, for locking.
    pub(crate) fn lock_keys(&self) -> Vec<Key> {
        let args = self.args();
        self.command
            .keys(args, self.request.db)
            .into_iter()
            .map(|(db, key)| (db, key.into()))
            .collect()
    }
}
