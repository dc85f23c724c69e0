//! What a command's handler has at hand.

use crate::settings::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::store::{Fault, Need};
use flagstone_storage::value::Value;
use flagstone_wire::resp::{Args, Reply};
use std::borrow::Cow;
use std::collections::HashSet;

/// What a handler returns: its reply is written, or it could not go on.
pub type Outcome = Result<(), Stop>;

/// Why a handler stopped. What it has written to the reply is taken back.
#[derive(Debug)]
pub enum Stop {
    /// These are not in memory: they are loaded, and the command run again from its start.
    Miss(Vec<Need>),
    /// The error text, with its code ("ERR …", "WRONGTYPE …").
    Error(Cow<'static, str>),
    /// The connection is to be closed after what was written so far.
    Close,
    /// There is nothing yet: it is run again when there may be.
    Block(Box<Block>),
    /// A unit would change what the open round has changed: it is run again in a round of its own.
    Unsettled,
    /// A unit cannot go on where it runs: it takes long, or asks for what takes time. What it has
    /// changed is taken back, and it is run again on a thread of its own.
    Apart,
    /// A unit is broken off: what it has changed is taken back, and this is the error.
    Undone(Cow<'static, str>),
    /// A unit needs all workers whole. What it has changed is taken back, and it is run again when
    /// it has them.
    Whole,
}

/// What a command waits for that has found nothing.
#[derive(Debug)]
pub struct Block {
    /// The keys that may have something for it one day; of the selected database.
    pub keys: Vec<Box<[u8]>>,
    pub on: Awaited,
    /// When it gives up: ms since the Unix epoch; 0: never.
    pub until_ms: u64,
    /// The reply when it has given up.
    pub nil: Nil,
    /// Arguments that are others when it is run again, by index: the `$` of XREAD is what the last
    /// entry was at first.
    pub replaced: Vec<(usize, Vec<u8>)>,
}

/// What a key must hold to have something for a command that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    List,
    Zset,
    Stream,
    /// A group of a stream: the command ends when there is no such stream any more, too.
    Group,
}

impl Awaited {
    pub const ALL: [Self; 4] = [Self::List, Self::Zset, Self::Stream, Self::Group];

    /// Whether it is to be looked at when a key holds a value of this type.
    pub fn fits(self, type_name: &str) -> bool {
        match self {
            Self::List => type_name == "list",
            Self::Zset => type_name == "zset",
            Self::Stream => type_name == "stream",
            Self::Group => true,
        }
    }

    /// Whether it is to be looked at when a key is gone.
    pub fn wants_absence(self) -> bool {
        self == Self::Group
    }
}

/// The reply to a command that has waited in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nil {
    Array,
    Bulk,
}

impl Nil {
    pub fn write(self, out: &mut Reply) {
        match self {
            Self::Array => out.null_array(),
            Self::Bulk => out.null(),
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Miss(need) => Self::Miss(vec![*need]),
            Fault::WrongType => Self::Error(Cow::Borrowed(error::WRONG_TYPE)),
            Fault::Unsettled => Self::Unsettled,
        }
    }
}

impl From<&'static str> for Stop {
    fn from(text: &'static str) -> Self {
        Self::Error(Cow::Borrowed(text))
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Self::Error(Cow::Owned(text))
    }
}

/// What several look-ups miss, so that it is asked for at once.
#[derive(Debug, Default)]
pub struct Misses(HashSet<Need>);

impl Misses {
    /// What was found; nothing, and a note of it, if it is missing.
    pub fn note<T>(&mut self, found: Result<Option<T>, Fault>) -> Result<Option<T>, Stop> {
        match found {
            Ok(found) => Ok(found),
            Err(Fault::Miss(need)) => {
                self.0.insert(*need);
                Ok(None)
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Stops if anything was missing.
    pub fn check(self) -> Outcome {
        if self.0.is_empty() { Ok(()) } else { Err(Stop::Miss(self.0.into_iter().collect())) }
    }
}

/// Error texts that several commands share.
pub mod error {
    pub const WRONG_TYPE: &str =
        "WRONGTYPE Operation against a key holding the wrong kind of value";
    pub const SYNTAX: &str = "ERR syntax error";
    pub const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
    pub const NOT_FLOAT: &str = "ERR value is not a valid float";
    pub const NO_SUCH_KEY: &str = "ERR no such key";
    pub const INDEX_OUT_OF_RANGE: &str = "ERR index out of range";
    pub const STRING_TOO_LONG: &str =
        "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

    /// `ERR invalid expire time in 'name' command`
    pub fn invalid_expire(name: &str) -> String {
        format!("ERR invalid expire time in '{name}' command")
    }

    /// `ERR wrong number of arguments for 'name' command`
    pub fn arity(name: &str) -> String {
        format!("ERR wrong number of arguments for '{name}' command")
    }
}

/// For commands on keys: the store, and where the reply goes.
pub struct Ctx<'a> {
    pub store: &'a mut Store,
    pub out: &'a mut Reply,
    /// The selected database.
    pub db: u32,
    pub settings: &'a DataSettings,
    /// It has waited for its keys, and runs again as there may be something for it.
    pub again: bool,
    /// A script runs it.
    pub in_script: bool,
}

impl Ctx<'_> {
    /// Whether a key is to be looked at. A command that has waited for keys of several workers is
    /// run by each of them for its own.
    pub fn is_here(&self, key: &[u8]) -> bool {
        self.store.owns(key)
    }

    /// Tells of a keyspace event (`notify-keyspace-events`), once what it tells of is stored.
    /// Where an entry is at hand, [`EntryMut::event`] does.
    ///
    /// [`EntryMut::event`]: flagstone_storage::store::EntryMut::event
    pub fn notify(&mut self, class: NotifyFlags, event: &'static str, key: &[u8]) {
        self.notify_in(self.db, class, event, key);
    }

    /// The same for a key of another database.
    pub fn notify_in(&mut self, db: u32, class: NotifyFlags, event: &'static str, key: &[u8]) {
        self.store.notes.event(db, key, class.into(), event);
    }

    /// Deletes a key, and tells of it; whether it existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Fault> {
        let deleted = self.store.remove(self.db, key)?;
        if deleted {
            self.notify(NotifyFlags::GENERIC, "del", key);
        }
        Ok(deleted)
    }

    /// Puts what a command has made into a key, whatever it held, and tells of it. Nothing, or an
    /// empty collection, deletes the key.
    pub fn put_result(
        &mut self,
        key: &[u8],
        value: Value,
        class: NotifyFlags,
        event: &'static str,
    ) -> Result<(), Fault> {
        if value.is_absent() || value.is_empty_collection() {
            self.delete(key)?;
            return Ok(());
        }
        let mut entry = self.store.entry_mut(self.db, key)?;
        entry.value = value;
        entry.expire_at_ms = 0;
        entry.event(class, event);
        Ok(())
    }

    /// The time of this command in ms since the Unix epoch; fixed while it runs.
    pub fn now_ms(&self) -> u64 {
        self.store.now_ms()
    }
}

/// The argument at `index`, for handlers whose arity was checked.
pub fn arg<'a>(args: Args<'a>, index: usize) -> Result<&'a [u8], Stop> {
    args.get(index).ok_or(Stop::Error(Cow::Borrowed(error::SYNTAX)))
}

/// The arguments from `first` on.
pub fn tail<'a>(
    args: Args<'a>,
    first: usize,
) -> std::iter::Skip<impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a>> {
    args.iter().skip(first)
}

/// An integer argument, or Redis's "not an integer" error.
pub fn int_arg(args: Args<'_>, index: usize) -> Result<i64, Stop> {
    flagstone_wire::num::parse_i64(arg(args, index)?).ok_or_else(|| error::NOT_INTEGER.into())
}

/// Whether an argument is this word, case apart.
pub fn is_word(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}
