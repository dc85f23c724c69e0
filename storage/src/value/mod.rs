//! Decoded values, in the form of the hot tier.

mod access;
pub(crate) mod collection;
mod draw;
mod expiries;
pub mod hash;
pub mod list;
pub(crate) mod members;
pub(crate) mod meta;
mod name_window;
pub(crate) mod order;
pub(crate) mod pack;
#[cfg(test)]
mod packing_tests;
mod payload;
pub(crate) mod sequence;
pub mod set;
mod size;
mod spread;
pub mod stream;
pub mod string;
#[cfg(test)]
mod test_rows;
pub mod zset;

use crate::need::Part;
pub use access::AccessCounting;
use collection::Collection;
pub use collection::ElementHint;
pub(crate) use expiries::EarliestExpiries;
pub use hash::{Field, Hash};
pub use list::List;
pub(crate) use meta::field_head;
pub use meta::{MetaError, decode_entry, decode_field, decode_state, encode_field, encode_meta};
pub use set::{Set, SetEncoding};
pub use size::{SIZE_UNIT, row_units};
pub use stream::{Stream, StreamId};
pub use string::{BigStr, Str};
pub use zset::{LexEdge, Span, Zset, ZsetWalk};

/// The value of a key. `Absent`: the key is known not to exist.
#[derive(Debug, Default)]
pub enum Value {
    #[default]
    Absent,
    Str(Str),
    Hash(Box<Hash>),
    Set(Box<Set>),
    List(Box<List>),
    Zset(Box<Zset>),
    Stream(Box<Stream>),
}

impl Value {
    /// Returns the type's name as TYPE answers it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Absent => "none",
            Self::Str(_) => "string",
            _ => self.collection().map_or("none", Collection::type_name),
        }
    }

    /// Returns the encoding's name as OBJECT ENCODING answers it.
    pub fn encoding(&self) -> &'static str {
        match self {
            Self::Str(s) => s.encoding(),
            _ => self.collection().map_or("none", Collection::encoding),
        }
    }

    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Returns the collection, if it is one.
    pub(crate) fn collection(&self) -> Option<&dyn Collection> {
        match self {
            Self::Absent | Self::Str(_) => None,
            Self::Hash(hash) => Some(&**hash),
            Self::Set(set) => Some(&**set),
            Self::List(list) => Some(&**list),
            Self::Zset(zset) => Some(&**zset),
            Self::Stream(stream) => Some(&**stream),
        }
    }

    pub(crate) fn collection_mut(&mut self) -> Option<&mut dyn Collection> {
        match self {
            Self::Absent | Self::Str(_) => None,
            Self::Hash(hash) => Some(&mut **hash),
            Self::Set(set) => Some(&mut **set),
            Self::List(list) => Some(&mut **list),
            Self::Zset(zset) => Some(&mut **zset),
            Self::Stream(stream) => Some(&mut **stream),
        }
    }

    /// Returns true if it is an empty collection of a type that cannot be empty.
    pub fn is_empty_collection(&self) -> bool {
        let is_empty = |it: &dyn Collection| it.len() == 0 && !it.may_be_empty();
        self.collection().is_some_and(is_empty)
    }

    /// Returns the version its element rows are under; 0 when it has none.
    pub fn version(&self) -> u64 {
        match self {
            Self::Str(Str::Big(big)) => big.version,
            _ => self.collection().map_or(0, Collection::version),
        }
    }

    /// Returns the earliest expiry of a field in ms; 0 when no field expires.
    pub fn fields_expire_at_ms(&self) -> u64 {
        self.collection().map_or(0, Collection::fields_expire_at_ms)
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        match self {
            Self::Str(s) => s.memory(),
            _ => self.collection().map_or(0, Collection::memory),
        }
    }

    /// Reads a little of the memory that it points to.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Str(s) => s.touch(),
            Self::Hash(hash) => hash.version(),
            Self::Set(set) => set.version(),
            Self::List(list) => list.version(),
            Self::Zset(zset) => zset.version(),
            Self::Stream(stream) => stream.version(),
        }
    }

    /// Checks that all of it is in memory.
    pub fn require_whole(&self) -> Result<(), Part> {
        match self {
            Self::Str(Str::Big(big)) => big.require_whole(),
            _ => self.collection().map_or(Ok(()), Collection::require_whole),
        }
    }

    /// Gives a packed collection element rows under a version, however small it is. Rounds do this
    /// for those that are too big.
    #[doc(hidden)]
    pub fn unpack(&mut self, version: u64) {
        if self.version() == 0
            && let Some(collection) = self.collection_mut()
        {
            collection.unpack(version);
        }
    }

    /// Detaches it from its element rows: they will be written anew under another version. All of
    /// it must be in memory.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::Str(Str::Big(big)) => big.detach(),
            _ => {
                if let Some(collection) = self.collection_mut() {
                    collection.detach();
                }
            }
        }
    }

    /// Returns a copy for another key (COPY). All of it must be in memory.
    pub fn copied(&self) -> Self {
        let mut copy = match self {
            Self::Absent => Self::Absent,
            Self::Str(s) => Self::Str(s.clone()),
            Self::Hash(hash) => Self::Hash(hash.clone()),
            Self::Set(set) => Self::Set(set.clone()),
            Self::List(list) => Self::List(list.clone()),
            Self::Zset(zset) => Self::Zset(zset.clone()),
            Self::Stream(stream) => Self::Stream(stream.clone()),
        };
        copy.detach();
        copy
    }
}

/// A type of values.
pub trait Typed: Sized {
    /// Returns the value, if it is of this type.
    fn of(value: &Value) -> Option<&Self>;
    /// Returns the value for changing it in place, if it is of this type.
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    /// Converts into a value.
    fn into_value(self) -> Value;
}

macro_rules! typed {
    ($type:ty, $variant:ident, $boxed:expr) => {
        impl Typed for $type {
            fn of(value: &Value) -> Option<&Self> {
                match value {
                    Value::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                match value {
                    Value::$variant(it) => Some(it),
                    _ => None,
                }
            }

            fn into_value(self) -> Value {
                Value::$variant($boxed(self))
            }
        }
    };
}

typed!(Str, Str, std::convert::identity);
typed!(Hash, Hash, Box::new);
typed!(Set, Set, Box::new);
typed!(List, List, Box::new);
typed!(Zset, Zset, Box::new);
typed!(Stream, Stream, Box::new);

/// A key's last journaled state: [`crate::commit`] compares with it to find changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournaledState {
    pub live: bool,
    /// True if nothing is known about it: the key's row is to be replaced blindly (RFC 12).
    pub(crate) unseen: bool,
    /// Size of the key, in units of [`SIZE_UNIT`](crate::value::SIZE_UNIT).
    pub(crate) units: u32,
    pub expire_at_ms: u64,
    /// Version and field expiry, which most keys do not have.
    elements: Option<Box<StoredElements>>,
}

/// Last journaled state of a key's element rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StoredElements {
    version: u64,
    fields_expire_at_ms: u64,
}

impl JournaledState {
    /// Creates the state of an existing key. `version` and `fields_expire_at_ms` may be 0: none.
    pub fn new(expire_at_ms: u64, version: u64, fields_expire_at_ms: u64) -> Self {
        let some = version != 0 || fields_expire_at_ms != 0;
        let elements = some.then(|| Box::new(StoredElements { version, fields_expire_at_ms }));
        Self { live: true, unseen: false, units: 0, expire_at_ms, elements }
    }

    /// Returns it with the size of the key, in units.
    pub(crate) fn of_size(self, units: u32) -> Self {
        Self { units, ..self }
    }

    /// Creates the state of a key whose row was not read.
    pub(crate) fn unseen() -> Self {
        Self { unseen: true, ..Self::default() }
    }

    /// Returns the times under which the expiry index has the key: those of the key itself and, with
    /// true, of its fields.
    pub(crate) fn times(&self) -> impl Iterator<Item = (u64, bool)> + use<> {
        let times = [(self.expire_at_ms, false), (self.fields_expire_at_ms(), true)];
        times.into_iter().filter(|(at_ms, _)| *at_ms != 0)
    }

    /// Returns the version of its element rows; 0: there is none.
    pub fn version(&self) -> u64 {
        self.elements.as_ref().map_or(0, |elements| elements.version)
    }

    /// Returns the earliest expiry of a field in ms; 0: no field expires.
    pub fn fields_expire_at_ms(&self) -> u64 {
        self.elements.as_ref().map_or(0, |elements| elements.fields_expire_at_ms)
    }

    /// Notes that its element rows belong to another key now.
    pub(crate) fn give_elements_away(&mut self) {
        if let Some(elements) = &mut self.elements {
            elements.version = 0;
        }
    }
}

/// Bytes of a key or of an element's name; short ones are stored inline.
pub type KeyBuf = smallvec::SmallVec<[u8; 24]>;

/// A key of the hot tier. The fields that a read needs are in the first of its two cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Entry {
    pub(crate) key: KeyBuf,
    pub value: Value,
    /// 0: the key never expires.
    pub expire_at_ms: u64,
    pub(crate) hash: u64,
    /// The round of its last write; see [`crate::Store`].
    pub(crate) round: u64,
    pub(crate) stored: JournaledState,
    /// Bytes for which it was last counted in its store's memory.
    pub(crate) counted: usize,
    /// Seconds (mod 2³²) of the last access, for OBJECT IDLETIME.
    pub(crate) accessed_s: u32,
    /// The unit that made it dirty; 0: none.
    pub(crate) unit: u32,
    /// True if it is in its store's list of large values.
    pub(crate) large: bool,
    /// Accesses lately, for what stays in memory.
    pub(crate) freq: u8,
    /// Logarithmic count of accesses, for OBJECT FREQ and `maxmemory-policy`.
    pub(crate) accesses: u8,
    pub(crate) dirty: bool,
    /// True if a change other than [`crate::notes::NoteKind::Touched`] was made since it was lent.
    pub(crate) visible: bool,
    /// True if a round that has changed it since it was lent was sealed.
    pub(crate) sealed: bool,
}

const _: () = assert!(size_of::<Entry>() == 128);

/// Bytes of memory from which on a value may be dropped from memory in part.
const LARGE: usize = 256 * 1024;

/// Result of recounting an entry's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) before: usize,
    pub(crate) after: usize,
    pub(crate) grew_large: bool,
}

impl Entry {
    /// Returns true if parts of it can be dropped from memory.
    pub(crate) fn can_shrink(&self) -> bool {
        self.large
            && self.value.collection().is_some_and(|collection| !collection.has_few_in_memory())
    }

    /// Recounts its memory.
    pub(crate) fn count(&mut self) -> Counted {
        let after = self.memory();
        let before = std::mem::replace(&mut self.counted, after);
        let grew_large = after >= LARGE && !self.large;
        self.large |= grew_large;
        Counted { before, after, grew_large }
    }

    /// Creates the entry of a key that does not exist.
    pub(crate) fn absent(key: &[u8], hash: u64) -> Self {
        Self {
            key: KeyBuf::from_slice(key),
            hash,
            value: Value::Absent,
            expire_at_ms: 0,
            stored: JournaledState::default(),
            round: 0,
            counted: 0,
            large: false,
            accessed_s: 0,
            freq: 0,
            accesses: access::LFU_FIRST,
            dirty: false,
            visible: false,
            sealed: false,
            unit: 0,
        }
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns true if its time has come.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expire_at_ms != 0 && self.expire_at_ms <= now_ms
    }

    /// Returns true if the key exists, ignoring its expiry.
    pub fn is_live(&self) -> bool {
        !self.value.is_absent()
    }

    /// Returns the approximate memory use of the entry in bytes.
    pub fn memory(&self) -> usize {
        // A table has 11 to 22 bytes of its index for each entry, and room for up to a quarter more.
        size_of::<Self>() * 5 / 4 + self.key.len().saturating_sub(24) + self.value.memory()
    }

    /// Returns the seconds since the last access.
    pub fn idle_s(&self, now_ms: u64) -> u32 {
        ((now_ms / 1000) as u32).wrapping_sub(self.accessed_s)
    }

    /// Sets the last access to `idle_s` seconds ago.
    pub fn set_idle_s(&mut self, now_ms: u64, idle_s: u32) {
        self.accessed_s = ((now_ms / 1000) as u32).wrapping_sub(idle_s);
    }

    /// Sets the logarithmic count of accesses.
    pub fn set_accesses(&mut self, accesses: u8) {
        self.accesses = accesses;
    }

    /// Returns true if it was changed since it was lent, whether or not in a sealed round.
    pub fn was_changed(&self) -> bool {
        self.dirty || self.sealed
    }

    /// Deletes the key: the entry becomes absent.
    pub fn clear(&mut self) {
        self.value = Value::Absent;
        self.expire_at_ms = 0;
        self.accesses = access::LFU_FIRST;
    }
}
