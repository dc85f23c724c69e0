//! What a connection has queued between MULTI and EXEC.
//!
//! It is kept as the arguments that EXEC is run with: its name, the number of watched keys, for each
//! of these the database, the key, and whether it was there ("1"); and for each command the number of
//! its arguments, the database, and the arguments. So a transaction is routed and run like any
//! other command on keys.

use crate::command::{Command, Route, registry};
use crate::unit;
use crate::worker::Watches;
use flagstone_commands::flag;
use flagstone_storage::need::Key;
use flagstone_wire::client_memory::Taken;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, OwnedArgs};
use std::collections::BTreeSet;

/// Arguments of EXEC before the first watched key: its name, their number.
const HEAD: usize = 2;

/// Arguments for each watched key.
const WATCHED: usize = 3;

/// Arguments before those of each command: their number, the database.
const COMMAND_HEAD: usize = 2;

/// See the module's description.
#[derive(Debug)]
pub struct Transaction {
    args: OwnedArgs,
    commands: Vec<&'static Command>,
    /// The flags that any of them has.
    flags: u32,
    /// A command was refused: EXEC is, too.
    broken: bool,
    /// The database of what is queued next.
    db: u32,
    taken: Taken,
}

impl Transaction {
    /// Of a connection that watches these keys: it can watch no more of them until EXEC.
    pub fn new(db: u32, watches: Option<&Watches>) -> Self {
        let mut this = Self {
            args: OwnedArgs::default(),
            commands: Vec::new(),
            flags: 0,
            broken: false,
            db,
            taken: Taken::default(),
        };
        let mut itoa = itoa::Buffer::new();
        let watched = || watches.into_iter().flat_map(Watches::keys);
        this.args.push(b"exec");
        this.args.push(itoa.format(watched().count()).as_bytes());
        for (db, key, existed) in watched() {
            this.args.push(itoa.format(db).as_bytes());
            this.args.push(key);
            this.args.push(if existed { b"1" } else { b"0" });
        }
        this
    }

    /// Queues a command. `selected`: the database that it chooses for those behind it.
    pub fn push(
        &mut self,
        command: &'static Command,
        flags: u32,
        args: Args<'_>,
        selected: Option<u32>,
    ) {
        // It will not run.
        if self.broken {
            return;
        }
        let mut itoa = itoa::Buffer::new();
        self.args.push(itoa.format(args.len()).as_bytes());
        self.args.push(itoa.format(self.db).as_bytes());
        args.iter().for_each(|arg| self.args.push(arg));
        self.commands.push(command);
        self.taken.set(self.bytes());
        self.flags |= flags;
        self.db = selected.unwrap_or(self.db);
    }

    /// Bytes of what is queued, about.
    pub fn bytes(&self) -> usize {
        self.args.memory() + self.commands.len() * size_of::<&Command>()
    }

    /// The flags that any of the commands has.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// A command was refused.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// The commands that are queued.
    pub fn commands(&self) -> &[&'static Command] {
        &self.commands
    }

    /// The database that is selected when they have run.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// The name of EXEC as its client has written it.
    pub fn named(&mut self, name: &[u8]) {
        self.args.replace(0, name);
    }

    /// What EXEC is run with.
    pub fn args(&self) -> Args<'_> {
        self.args.args()
    }

    /// Whether it can need no other keys than those it names: where it has to wait, it waits with
    /// their locks.
    pub fn names_its_keys(&self) -> bool {
        self.commands.iter().all(|command| {
            let route = command.spec.run;
            !command.undeclared_keys && (route.is_on_keys() || matches!(route, Route::Either))
        })
    }

    /// Whether some of it needs the connection: what is on keys runs first, as one, then that.
    pub fn is_mixed(&self) -> bool {
        self.commands.iter().any(|command| !runs_in_unit(command))
    }
}

/// Whether a queued command runs as a part of the transaction; else the connection runs it when
/// the transaction is done.
pub fn runs_in_unit(command: &Command) -> bool {
    unit::is_part(command)
}

/// A queued command.
pub struct Queued<'a> {
    pub command: &'static Command,
    pub args: Args<'a>,
    pub db: u32,
}

/// A watched key.
pub struct Watched<'a> {
    pub db: u32,
    pub key: &'a [u8],
    /// It was there when it was first watched.
    pub existed: bool,
}

fn number<T: TryFrom<i64>>(args: Args<'_>, at: usize) -> Option<T> {
    T::try_from(parse_i64(args.get(at)?)?).ok()
}

/// The watched keys among the arguments of EXEC.
pub fn watched(args: Args<'_>) -> impl Iterator<Item = Watched<'_>> {
    let count = number(args, HEAD - 1).unwrap_or(0);
    (0..count).map_while(move |n| {
        let at = HEAD + n * WATCHED;
        let existed = args.get(at + 2)? == b"1";
        Some(Watched { db: number(args, at)?, key: args.get(at + 1)?, existed })
    })
}

/// The commands among the arguments of EXEC.
pub fn queued(args: Args<'_>) -> impl Iterator<Item = Queued<'_>> {
    let mut at = HEAD + number::<usize>(args, HEAD - 1).unwrap_or(0) * WATCHED;
    std::iter::from_fn(move || {
        let (len, db) = (number(args, at)?, number(args, at + 1)?);
        let own = args.slice(at + COMMAND_HEAD, len);
        at += COMMAND_HEAD + len;
        Some(Queued { command: registry::resolve(own)?, args: own, db })
    })
}

/// The keys of those that only read.
pub fn read_keys(args: Args<'_>) -> BTreeSet<Key> {
    let reading = queued(args).filter(|queued| queued.command.spec.has(flag::READONLY));
    let keys = reading.flat_map(|queued| queued.command.keys(queued.args, queued.db));
    keys.map(|(db, key)| (db, key.into())).collect()
}

/// The keys of all of them, and those that are watched.
pub fn keys<'a>(args: Args<'a>, _: u32, _: &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])> {
    let on_keys = queued(args).filter(|queued| queued.command.spec.run.is_on_keys());
    let keys = on_keys.flat_map(|queued| queued.command.keys(queued.args, queued.db));
    watched(args).map(|watched| (watched.db, watched.key)).chain(keys).collect()
}
