//! The context of a command's handler, and the results that a handler returns.

use crate::settings::DataSettings;
use flagstone_storage::Store;
use flagstone_storage::notify::NotifyFlags;
use flagstone_storage::slot::NotOwned;
use flagstone_storage::store::{Fault, Need};
use flagstone_storage::value::Value;
use flagstone_storage::value::string::CHUNK;
use flagstone_storage::words::RemovalCause;
use flagstone_wire::resp::{Args, Reply};
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Deref;

/// A handler's result: its reply is written, or the reason why it stopped.
pub type Outcome = Result<(), Stop>;

/// The reason why a handler stopped. Its partial reply is discarded.
#[derive(Debug)]
pub enum Stop {
    /// These are not in memory: they are loaded, and the command runs again from its start.
    Miss(Vec<Need>),
    Error(ErrorText),
    /// No key has anything for the command yet: it runs again when one may.
    Block(Box<Block>),
    /// The store would change data for a unit that the open round has changed: the unit runs again
    /// in a round of its own. A command that is no part of a unit never stops so.
    Unsettled,
    /// A key belongs to a shard that is not attached: the caller knows who has it.
    NotOwned(NotOwned),
}

/// The text of an error reply, with its code ("ERR …", "WRONGTYPE …").
/// Names from arguments stand in it as they are, in UTF-8 or not.
#[derive(Clone, PartialEq, Eq)]
pub struct ErrorText(Cow<'static, [u8]>);

impl Deref for ErrorText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ErrorText {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&'static str> for ErrorText {
    fn from(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for ErrorText {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for ErrorText {
    fn from(text: Vec<u8>) -> Self {
        Self(Cow::Owned(text))
    }
}

impl fmt::Display for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for ErrorText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

/// The wait of a blocking command that has found nothing.
#[derive(Debug)]
pub struct Block {
    /// Keys of the selected database to wait for.
    pub keys: Vec<Box<[u8]>>,
    pub on: Awaited,
    /// End of the wait: ms since the Unix epoch; 0: never.
    pub until_ms: u64,
    /// Reply if it may not wait.
    pub nil: Nil,
    /// Arguments to replace when the command runs again, by index: the `$` of XREAD is the id of
    /// the last entry at the first run.
    pub replaced: Vec<(usize, Vec<u8>)>,
}

/// The type of value that a blocking command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    List,
    Zset,
    Stream,
    /// A group of a stream: the command also ends when the stream no longer exists.
    Group,
}

impl Awaited {
    pub const ALL: [Self; 4] = [Self::List, Self::Zset, Self::Stream, Self::Group];

    /// Returns true if a value of this type in a key may end the wait.
    pub fn fits(self, type_name: &str) -> bool {
        match self {
            Self::List => type_name == "list",
            Self::Zset => type_name == "zset",
            Self::Stream => type_name == "stream",
            Self::Group => true,
        }
    }

    /// Returns true if the removal of a key may end the wait.
    pub fn wants_absence(self) -> bool {
        self == Self::Group
    }
}

/// The reply to a command that may not wait. A wait that has timed out ends with a null array.
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
            Fault::WrongType => error::WRONG_TYPE.into(),
            Fault::Unsettled => Self::Unsettled,
            Fault::NotOwned(what) => Self::NotOwned(what),
        }
    }
}

impl From<ErrorText> for Stop {
    fn from(text: ErrorText) -> Self {
        Self::Error(text)
    }
}

impl From<&'static str> for Stop {
    fn from(text: &'static str) -> Self {
        Self::Error(text.into())
    }
}

impl From<String> for Stop {
    fn from(text: String) -> Self {
        Self::Error(text.into())
    }
}

impl From<Vec<u8>> for Stop {
    fn from(text: Vec<u8>) -> Self {
        Self::Error(text.into())
    }
}

/// The rows that several look-ups miss, collected so that they are requested together.
#[derive(Debug, Default)]
pub struct Misses(HashSet<Need>);

impl Misses {
    /// Returns the value found; `None`, and records the need, if it is not in memory.
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

    /// Returns true if no look-up missed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Stops the command if any look-up missed.
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
    pub const TOO_MUCH_MADE: &str =
        "OOM the value takes more memory than a command may make (a part of memory-budget)";
    pub const STRING_TOO_LONG: &str =
        "ERR string exceeds maximum allowed size (proto-max-bulk-len)";

    /// Returns `ERR invalid expire time in 'name' command`.
    pub fn invalid_expire(name: &str) -> String {
        format!("ERR invalid expire time in '{name}' command")
    }

    /// Returns `ERR wrong number of arguments for 'name' command`.
    pub fn arity(name: &str) -> String {
        format!("ERR wrong number of arguments for '{name}' command")
    }
}

/// The context of a command on keys: the store, the reply and the settings.
pub struct Ctx<'a> {
    pub store: &'a mut Store,
    pub out: &'a mut Reply,
    /// The selected database.
    pub db: u32,
    pub settings: &'a DataSettings,
    /// True if the command runs again after it has waited for its keys.
    pub again: bool,
    /// True if a script runs the command.
    pub in_script: bool,
    /// True if the user may read keys that the command does not name (SORT … BY and GET).
    pub reads_all: bool,
}

/// Maximum length of a string in bytes, whatever `proto-max-bulk-len` is: chunk numbers have 32 bits.
const LONGEST: usize = CHUNK * (u32::MAX - 1) as usize;

impl<'a> Ctx<'a> {
    /// Creates the context of a command that runs for the first time, in no script, for a user that
    /// may read every key.
    pub fn new(
        store: &'a mut Store,
        out: &'a mut Reply,
        db: u32,
        settings: &'a DataSettings,
    ) -> Self {
        Self { store, out, db, settings, again: false, in_script: false, reads_all: true }
    }
}

impl Ctx<'_> {
    /// Returns the maximum length of a string in bytes. In the stream of a primary, its limit holds.
    pub fn longest_string(&self) -> usize {
        let limit = if self.store.obeys() { LONGEST } else { self.settings.proto_max_bulk_len };
        limit.min(LONGEST)
    }

    /// Returns how many bytes a value may take that a command makes from fewer. In the stream of a
    /// primary, any number.
    pub fn longest_made(&self) -> usize {
        if self.store.due_ms() == 0 { usize::MAX } else { self.settings.value_max_made }
    }

    /// Returns true if this run is to look at a key: a command that has waited for keys of several
    /// workers is run by each of them for its own keys. Any other run looks at all: a script may
    /// name keys that another worker owns, and has to miss them.
    pub fn is_here(&self, key: &[u8]) -> bool {
        !self.again || self.store.owns(key)
    }

    /// Publishes a keyspace event (`notify-keyspace-events`) once the change is stored. Where an
    /// entry is at hand, [`EntryMut::event`] does the same.
    ///
    /// [`EntryMut::event`]: flagstone_storage::store::EntryMut::event
    pub fn notify(&mut self, class: NotifyFlags, event: &'static str, key: &[u8]) {
        self.notify_in(self.db, class, event, key);
    }

    /// Publishes a keyspace event of a key in another database.
    pub fn notify_in(&mut self, db: u32, class: NotifyFlags, event: &'static str, key: &[u8]) {
        self.store.notes.event(db, key, class, event);
    }

    /// Deletes a key and publishes the event; returns true if the key existed.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, Fault> {
        let deleted = self.store.remove(self.db, key)?;
        if deleted {
            self.notify(NotifyFlags::GENERIC, "del", key);
        }
        Ok(deleted)
    }

    /// Stores a command's result in a key, replacing its value, and publishes the event. An absent
    /// value or an empty collection deletes the key.
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

    /// Returns true if a replica hears what commands do ([`say`](Self::say)).
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.store.words.is_wanted()
    }

    /// Says what this command has done, for replicas: they run this in place of the command itself. A
    /// command whose own words have the same effect at any time, on any server, says nothing.
    pub fn say(&mut self, words: &[&[u8]]) {
        self.store.words.command(self.db, words.iter().copied());
        self.store.words.tell();
    }

    /// Like [`say`](Self::say), for a command that may have changed nothing.
    pub fn say_change(&mut self, words: &[&[u8]]) {
        if self.store.words.is_unsaid(self.store.stats.changes) {
            self.say(words);
        }
    }

    /// Says that the running command has done nothing that replicas need.
    pub fn say_nothing(&mut self) {
        self.store.words.tell();
    }

    /// Says that this command has removed a key, and nothing else.
    pub fn say_removal(&mut self, key: &[u8], cause: RemovalCause) {
        self.store.words.removal(self.db, key, cause);
        self.store.words.tell();
    }

    /// Returns the time of this command in ms since the Unix epoch; fixed while it runs.
    pub fn now_ms(&self) -> u64 {
        self.store.now_ms()
    }

    /// Returns the time up to which keys count as expired; 0 for a command that sees expired keys.
    pub fn due_ms(&self) -> u64 {
        self.store.due_ms()
    }
}

/// Returns the argument at `index`, for handlers whose arity was checked.
pub fn arg<'a>(args: Args<'a>, index: usize) -> Result<&'a [u8], ErrorText> {
    args.get(index).ok_or_else(|| error::SYNTAX.into())
}

/// Returns the arguments from `first` on.
pub fn tail<'a>(
    args: Args<'a>,
    first: usize,
) -> std::iter::Skip<impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a>> {
    args.iter().skip(first)
}

/// Parses an integer argument; fails with Redis's "not an integer" error.
pub fn int_arg(args: Args<'_>, index: usize) -> Result<i64, ErrorText> {
    flagstone_wire::num::parse_i64(arg(args, index)?).ok_or_else(|| error::NOT_INTEGER.into())
}

/// Returns true if an argument is this word, ignoring case.
pub fn is_word(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Returns an argument as an error text shows it: up to its first zero byte.
pub fn until_zero_byte(arg: &[u8]) -> &[u8] {
    arg.split(|&byte| byte == 0).next().unwrap_or_default()
}
