//! A command that a client has sent, with what its connection says of it.

use super::Command;
use flagstone_storage::need::Key;
use flagstone_wire::resp::{Args, OwnedArgs, Proto};

/// What a command needs to know of its session.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub db: u32,
    pub proto: Proto,
    pub touch: bool,
    /// The connection.
    pub client: u64,
    /// The connection wants to hear when what it reads changes.
    pub track: bool,
    /// It has waited, and runs again as there may be something for it.
    pub again: bool,
    /// At a coordinator: keys that have expired are there until somebody else finds them (DEBUG).
    pub sees_expired: bool,
}

impl Request {
    /// Of a command that the server runs itself; its reply is in RESP2.
    pub fn of_nobody(db: u32) -> Self {
        Self {
            db,
            proto: Proto::Resp2,
            touch: false,
            client: 0,
            track: false,
            again: false,
            sees_expired: false,
        }
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

    /// Bytes of memory that its arguments take, about.
    pub fn memory(&self) -> usize {
        self.args.memory()
    }

    /// The elements of a key that it names, as far as is declared.
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

    /// Its keys, for locking.
    pub(crate) fn lock_keys(&self) -> Vec<Key> {
        let args = self.args();
        self.command
            .keys(args, self.request.db)
            .into_iter()
            .map(|(db, key)| (db, key.into()))
            .collect()
    }
}
