//! The queue of a connection between MULTI and EXEC.
//!
//! It is stored as the arguments with which EXEC runs: its name, the origin of the commands (for a
//! client, the logins among them), the number of watched keys, for each of these the database, the
//! key, and "1" if it existed; and for each command its head and the arguments.
//! So a transaction is routed and run like any other command on keys.

use crate::command::{Command, Route, registry};
use crate::unit;
use crate::worker::Watches;
use flagstone_commands::{CommandFlags, flag};
use flagstone_storage::KeyHash;
use flagstone_storage::encoding::SourcePosition;
use flagstone_wire::client_memory::Taken;
use flagstone_wire::num::parse_i64;
use flagstone_wire::resp::{Args, OwnedArgs};

/// Number of EXEC's arguments before the first watched key: its name, the origin, and their number.
const HEAD: usize = 3;

/// Number of arguments for each watched key.
const WATCHED: usize = 3;

/// Room of a new queue, which most transactions do not exceed: arguments, their bytes, commands.
const FIRST_ARGS: usize = 48;
const FIRST_BYTES: usize = 1024;
const FIRST_COMMANDS: usize = 12;

/// Describes a queued command, in one argument before those of the command.
#[derive(Clone, Copy)]
struct CommandHead {
    /// Number of arguments.
    len: u32,
    db: u32,
    /// The command, which the queue need not look up by its name again: [`Command::id`].
    id: u32,
    /// Hash of its only key, if that is known.
    at: Option<KeyHash>,
}

/// Stands for the slot of a key that was not hashed.
const NO_SLOT: u32 = u32::MAX;

impl CommandHead {
    fn encode(self) -> [u8; 24] {
        let Self { len, db, id, at } = self;
        let (slot, hash) = at.map_or((NO_SLOT, 0), |at| (u32::from(at.slot), at.hash));
        let fields = [len, db, id, slot, hash as u32, (hash >> 32) as u32];
        let mut bytes = [0; 24];
        for (field, value) in bytes.as_chunks_mut().0.iter_mut().zip(fields) {
            *field = value.to_le_bytes();
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[len, db, id, slot, low, high], []) = bytes.as_chunks() else { return None };
        let [len, db, id, slot, low, high] = [len, db, id, slot, low, high].map(u32::from_le_bytes);
        let hash = u64::from(high) << 32 | u64::from(low);
        let at = u16::try_from(slot).ok().map(|slot| KeyHash { slot, hash });
        Some(Self { len, db, id, at })
    }
}

/// First byte of the origin of commands of a client, of which some log it in. Each of these has its
/// place among the commands (u32) and the number of the account (u64) behind it.
const LOGINS: u8 = b'l';

/// Bytes of each of these.
const LOGIN: usize = 12;

/// Queue of a transaction.
#[derive(Debug)]
pub struct Transaction {
    args: OwnedArgs,
    commands: Vec<&'static Command>,
    /// Union of the commands' flags.
    flags: CommandFlags,
    /// Flags that all commands have.
    common: CommandFlags,
    /// True if a command was refused, so that EXEC fails.
    broken: bool,
    /// Database of the next command.
    db: u32,
    taken: Taken,
}

impl Transaction {
    /// Creates the queue of a connection that watches these keys: it can watch no more of them
    /// until EXEC.
    pub fn new(db: u32, watches: Option<&Watches>) -> Self {
        Self::from(&CommandsOrigin::Client, db, watches)
    }

    /// Creates the queue of commands that come from another server.
    pub fn of_server(origin: &CommandsOrigin) -> Self {
        Self::from(origin, 0, None)
    }

    fn from(origin: &CommandsOrigin, db: u32, watches: Option<&Watches>) -> Self {
        let mut this = Self {
            args: OwnedArgs::with_capacity(FIRST_ARGS, FIRST_BYTES),
            commands: Vec::with_capacity(FIRST_COMMANDS),
            flags: CommandFlags::empty(),
            common: CommandFlags::all(),
            broken: false,
            db,
            taken: Taken::default(),
        };
        let mut itoa = itoa::Buffer::new();
        let watched = || watches.into_iter().flat_map(Watches::keys);
        this.args.push(b"exec");
        this.args.push(&origin.encode());
        this.args.push(itoa.format(watched().count()).as_bytes());
        for (db, key, existed) in watched() {
            this.args.push(itoa.format(db).as_bytes());
            this.args.push(key);
            this.args.push(if existed { b"1" } else { b"0" });
        }
        this
    }

    /// Queues a command. `at`: its only key, if it was hashed; `selected`: the database that it
    /// selects for those behind it.
    pub fn push(
        &mut self,
        command: &'static Command,
        flags: CommandFlags,
        args: Args<'_>,
        at: Option<KeyHash>,
        selected: Option<u32>,
    ) {
        // The command will not run.
        if self.broken {
            return;
        }
        // A command has at most as many arguments as fit into its limits, far below 2^32.
        let (len, id) = (args.len() as u32, command.id as u32);
        let head = CommandHead { len, db: self.db, id, at };
        self.args.push(&head.encode());
        args.iter().for_each(|arg| self.args.push(arg));
        self.commands.push(command);
        self.taken.set(self.bytes());
        self.flags |= flags;
        self.common &= flags;
        self.db = selected.unwrap_or(self.db);
    }

    /// Returns the approximate memory of the queue in bytes.
    pub fn bytes(&self) -> usize {
        self.args.memory() + self.commands.len() * size_of::<&Command>()
    }

    /// Returns the flags of EXEC, whose own are `exec`, with this queue: those of the commands, too;
    /// it may run on stale data, or while data is loaded, only if all of them may.
    pub fn flags(&self, exec: CommandFlags) -> CommandFlags {
        (exec | self.flags).difference(flag!(STALE | LOADING).difference(self.common))
    }

    /// Returns true if some commands may write.
    pub fn may_write(&self) -> bool {
        self.flags.intersects(flag!(WRITE | MAY_REPLICATE))
    }

    /// Records that a command was refused.
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Selects the database of the next commands.
    pub fn select(&mut self, db: u32) {
        self.db = db;
    }

    /// Returns the queued commands.
    pub fn commands(&self) -> &[&'static Command] {
        &self.commands
    }

    /// Returns the database that is selected after EXEC.
    pub fn db(&self) -> u32 {
        self.db
    }

    /// Sets the name of EXEC as the client has written it.
    pub fn named(&mut self, name: &[u8]) {
        self.args.replace(0, name);
    }

    /// Notes the queued commands that log the connection in, by their places: `account` returns the
    /// number of the account, or an error if the password is wrong. Those behind them run with its
    /// rights. Behind a wrong password none logs in any more.
    pub fn note_logins<E>(
        &mut self,
        account: impl Fn(&Command, Args<'_>) -> Option<Result<u64, E>>,
    ) {
        let tries = queued(self.args.args())
            .zip(0_u32..)
            .filter_map(|(queued, at)| Some((at, account(queued.command, queued.args)?)));
        let logins = tries.map_while(|(at, account)| Some((at, account.ok()?)));
        let logins =
            logins.map(|(at, account)| [&at.to_be_bytes()[..], &account.to_be_bytes()].concat());
        let logins: Vec<u8> = logins.flatten().collect();
        if !logins.is_empty() {
            self.args.replace(1, &[&[LOGINS][..], &logins].concat());
        }
    }

    /// Returns the arguments with which EXEC runs.
    pub fn args(&self) -> Args<'_> {
        self.args.args()
    }

    /// Returns true if the commands cannot need keys other than those they name: if EXEC has to
    /// wait, it waits with their locks.
    pub fn names_its_keys(&self) -> bool {
        self.commands.iter().all(|command| {
            let route = command.spec.run;
            !command.undeclared_keys && (route.is_on_keys() || matches!(route, Route::Either))
        })
    }

    /// Returns true if some commands need the connection: those on keys run first, as one unit,
    /// then these.
    pub fn is_mixed(&self) -> bool {
        self.commands.iter().any(|command| !runs_in_unit(command))
    }
}

/// Returns true if a queued command runs as part of the transaction; otherwise the connection runs
/// it after the transaction.
pub fn runs_in_unit(command: &Command) -> bool {
    unit::is_part(command)
}

/// CommandsOrigin of the commands of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandsOrigin {
    Client,
    /// The data set of another server: each error ends its loading.
    DataSet,
    /// The stream of another server, in which they reach this position.
    Stream(SourcePosition),
}

impl CommandsOrigin {
    const DATA_SET: u8 = b'd';
    const STREAM: u8 = b's';

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Client => Vec::new(),
            Self::DataSet => vec![Self::DATA_SET],
            Self::Stream(reached) => [&[Self::STREAM][..], &reached.encode()].concat(),
        }
    }

    /// Returns the origin of the commands among the arguments of EXEC.
    pub fn of(args: Args<'_>) -> Self {
        match args.get(1).and_then(<[u8]>::split_first) {
            Some((&Self::DATA_SET, _)) => Self::DataSet,
            Some((&Self::STREAM, reached)) => {
                SourcePosition::decode(reached).map_or(Self::DataSet, Self::Stream)
            }
            _ => Self::Client,
        }
    }
}

/// A queued command.
pub struct Queued<'a> {
    pub command: &'static Command,
    pub args: Args<'a>,
    pub db: u32,
    /// Hash of its only key, if that is known.
    pub at: Option<KeyHash>,
}

/// A watched key.
pub struct WatchedKey<'a> {
    pub db: u32,
    pub key: &'a [u8],
    /// True if the key existed when it was first watched.
    pub existed: bool,
}

fn number<T: TryFrom<i64>>(args: Args<'_>, at: usize) -> Option<T> {
    T::try_from(parse_i64(args.get(at)?)?).ok()
}

/// Returns the watched keys among the arguments of EXEC.
pub fn watched(args: Args<'_>) -> impl Iterator<Item = WatchedKey<'_>> {
    let count = number(args, HEAD - 1).unwrap_or(0);
    (0..count).map_while(move |n| {
        let at = HEAD + n * WATCHED;
        let existed = args.get(at + 2)? == b"1";
        Some(WatchedKey { db: number(args, at)?, key: args.get(at + 1)?, existed })
    })
}

/// Returns the commands among the arguments of EXEC.
pub fn queued(args: Args<'_>) -> impl Iterator<Item = Queued<'_>> {
    let mut at = HEAD + number::<usize>(args, HEAD - 1).unwrap_or(0) * WATCHED;
    std::iter::from_fn(move || {
        let head = CommandHead::decode(args.get(at)?)?;
        let own = args.slice(at + 1, head.len as usize);
        at += 1 + own.len();
        let command = registry::by_id(head.id as usize)?;
        Some(Queued { command, args: own, db: head.db, at: head.at })
    })
}

/// Facts about all commands among the arguments of EXEC.
pub struct QueueFacts {
    /// Union of the commands' flags.
    pub flags: CommandFlags,
    /// Number of the commands that run as part of the transaction.
    pub parts: usize,
    /// True if some commands do not.
    pub is_mixed: bool,
    /// True if some commands are on databases.
    pub on_databases: bool,
}

impl QueueFacts {
    pub fn of(args: Args<'_>) -> Self {
        let (flags, parts) = (CommandFlags::empty(), 0);
        let none = Self { flags, parts, is_mixed: false, on_databases: false };
        queued(args).fold(none, |mut facts, Queued { command, .. }| {
            let is_part = runs_in_unit(command);
            facts.flags |= command.spec.flags;
            facts.parts += usize::from(is_part);
            facts.is_mixed |= !is_part;
            facts.on_databases |= matches!(command.spec.run, Route::Databases);
            facts
        })
    }
}

/// Returns the places among the arguments of EXEC of the commands that log the connection in, and the
/// numbers of the accounts.
pub fn logins(args: Args<'_>) -> impl Iterator<Item = (u32, u64)> {
    let logins = args.get(1).and_then(|origin| origin.strip_prefix(&[LOGINS])).unwrap_or_default();
    let (logins, _) = logins.as_chunks::<LOGIN>();
    logins.iter().filter_map(|login| {
        let (at, account) = login.split_first_chunk()?;
        Some((u32::from_be_bytes(*at), u64::from_be_bytes(*account.first_chunk()?)))
    })
}

/// Returns the keys of all commands, and the watched keys.
pub fn keys<'a>(args: Args<'a>, _: u32, _: &[(u32, &'a [u8])]) -> Vec<(u32, &'a [u8])> {
    let on_keys = queued(args).filter(|queued| queued.command.spec.run.is_on_keys());
    let keys = on_keys.flat_map(|queued| queued.command.keys(queued.args, queued.db));
    watched(args).map(|watched| (watched.db, watched.key)).chain(keys).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flagstone_storage::Layout;

    #[test]
    fn commands_are_as_they_were_queued() {
        let mut transaction = Transaction::new(3, None);
        let words = [&[&b"set"[..], b"k", b"v"][..], &[b"get", b"k"], &[b"dbsize"]];
        let at = Layout::new(1, 7).key_hash(b"k");
        for (words, at) in words.into_iter().zip([Some(at), None, None]) {
            let owned: OwnedArgs = words.iter().copied().collect();
            let Some(command) = registry::resolve(owned.args()) else { panic!("no such command") };
            transaction.push(command, command.spec.flags, owned.args(), at, None);
        }
        let found: Vec<_> = queued(transaction.args())
            .map(|queued| (queued.args.iter().collect::<Vec<_>>(), queued.db, queued.at))
            .collect();
        let expected = words.map(<[_]>::to_vec).into_iter().zip([Some(at), None, None]);
        assert_eq!(found, expected.map(|(words, at)| (words, 3, at)).collect::<Vec<_>>());
        let facts = QueueFacts::of(transaction.args());
        assert_eq!((facts.parts, facts.is_mixed, facts.on_databases), (3, false, true));
        assert!(facts.flags.contains(flag!(WRITE | READONLY)));
    }
}
