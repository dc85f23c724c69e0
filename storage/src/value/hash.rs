//! Hashes: packed into the meta row while small, an element row per field when big.

use crate::store::Part;
use std::collections::BTreeSet;

/// A field's value and its expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub value: Box<[u8]>,
    /// 0: never.
    pub expire_at_ms: u64,
}

/// Bytes of memory that a field takes beside its name and value, about.
const FIELD_OVERHEAD: usize = 72;

/// Fields in the order they were added; names are hashed with a per-process seed.
type Names = indexmap::IndexMap<Box<[u8]>, Option<Field>, hashbrown::DefaultHashBuilder>;

/// A hash value, of which some fields may not be in memory.
#[derive(Clone, Debug, Default)]
pub struct Hash {
    /// Known fields; `None`: known not to exist (only while not complete).
    fields: Names,
    /// Bytes of the names and values in `fields`.
    bytes: usize,
    /// Fields that exist, in memory or not.
    len: u64,
    /// 0 while packed into the meta row.
    pub(crate) version: u64,
    /// Whether every field that exists is in `fields`.
    complete: bool,
    /// Once a hash has outgrown the listpack limits it stays a "hashtable", as in Redis.
    table: bool,
    /// A field has had an expiry: the encoding is "listpackex" where it would be "listpack".
    timed: bool,
    /// A lower bound of the fields' expiries, 0 when none expires. Exact while complete.
    min_expire_at_ms: u64,
    /// Fields the journal has not heard of (used for element rows only).
    dirty: BTreeSet<Box<[u8]>>,
}

impl Hash {
    /// An empty hash, wholly in memory.
    pub fn new() -> Self {
        Self { complete: true, ..Self::default() }
    }

    /// What is known of a big hash from its meta row alone.
    pub(crate) fn from_meta(version: u64, len: u64, timed: bool, min_expire_at_ms: u64) -> Self {
        Self { version, len, table: true, timed, min_expire_at_ms, ..Self::default() }
    }

    /// Number of fields, expired ones that were not yet removed included.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Whether the fields are packed into the meta row.
    pub fn is_packed(&self) -> bool {
        self.version == 0
    }

    /// Whether it is a "hashtable" for OBJECT ENCODING.
    pub fn is_table(&self) -> bool {
        self.table
    }

    /// Makes it a "hashtable"; it never goes back.
    pub fn make_table(&mut self) {
        self.table = true;
    }

    /// Whether some field has, or had, an expiry.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn set_timed(&mut self) {
        self.timed = true;
    }

    pub fn min_expire_at_ms(&self) -> u64 {
        self.min_expire_at_ms
    }

    /// "listpack", "listpackex" or "hashtable".
    pub fn encoding(&self) -> &'static str {
        match (self.table, self.timed) {
            (true, _) => "hashtable",
            (false, true) => "listpackex",
            (false, false) => "listpack",
        }
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.fields.len() * FIELD_OVERHEAD + self.bytes
    }

    /// Checks that all `names` are known.
    pub fn require<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<(), Part> {
        if self.complete {
            return Ok(());
        }
        let unknown: Vec<Box<[u8]>> =
            names.filter(|n| !self.fields.contains_key(*n)).map(Into::into).collect();
        if unknown.is_empty() { Ok(()) } else { Err(Part::Fields(unknown)) }
    }

    /// Checks that every field is in memory.
    pub fn require_all(&self) -> Result<(), Part> {
        if self.complete { Ok(()) } else { Err(Part::All) }
    }

    /// A field that exists and has not expired at `now_ms`.
    pub fn get(&self, name: &[u8], now_ms: u64) -> Result<Option<&Field>, Part> {
        match self.fields.get(name) {
            Some(Some(field)) => Ok((!field.is_expired(now_ms)).then_some(field)),
            Some(None) => Ok(None),
            None if self.complete => Ok(None),
            None => Err(Part::Fields(vec![name.into()])),
        }
    }

    /// All fields that exist, oldest first, expired ones included. Only when complete
    /// (see [`Hash::require_all`]).
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Field)> {
        self.fields.iter().filter_map(|(n, f)| Some((&**n, f.as_ref()?)))
    }

    /// The field at a position among the known (complete hashes: among all), oldest first.
    pub fn at(&self, index: usize) -> Option<(&[u8], &Field)> {
        let (name, field) = self.fields.get_index(index)?;
        Some((name, field.as_ref()?))
    }

    /// Sets a field that is known (see [`Hash::require`]); true when it is new. `expire_at_ms` 0:
    /// never.
    pub fn set(&mut self, name: &[u8], value: &[u8], expire_at_ms: u64) -> bool {
        let field = Field { value: value.into(), expire_at_ms };
        if expire_at_ms != 0 {
            self.timed = true;
            if self.min_expire_at_ms == 0 || expire_at_ms < self.min_expire_at_ms {
                self.min_expire_at_ms = expire_at_ms;
            }
        }
        self.note(name);
        self.bytes += field.value.len();
        let old = match self.fields.get_mut(name) {
            Some(slot) => slot.replace(field),
            None => {
                self.bytes += name.len();
                self.fields.insert(name.into(), Some(field));
                None
            }
        };
        self.len += u64::from(old.is_none());
        if let Some(old) = &old {
            self.bytes -= old.value.len();
            self.forget_expiry(old.expire_at_ms, expire_at_ms);
        }
        old.is_none()
    }

    /// Removes a field that is known; what it was, if it existed.
    pub fn remove(&mut self, name: &[u8]) -> Option<Field> {
        let old = if self.complete {
            if self.table { self.fields.swap_remove(name) } else { self.fields.shift_remove(name) }
        } else {
            self.fields.get_mut(name).map(Option::take)
        }
        .flatten()?;
        self.bytes -= old.value.len() + if self.complete { name.len() } else { 0 };
        self.note(name);
        self.len -= 1;
        self.forget_expiry(old.expire_at_ms, 0);
        Some(old)
    }

    /// Sets only the expiry of a known field (0: never); false when the field does not exist.
    pub fn set_expiry(&mut self, name: &[u8], expire_at_ms: u64) -> bool {
        let Some(Some(field)) = self.fields.get_mut(name) else { return false };
        let old = std::mem::replace(&mut field.expire_at_ms, expire_at_ms);
        if expire_at_ms != 0 {
            self.timed = true;
            if self.min_expire_at_ms == 0 || expire_at_ms < self.min_expire_at_ms {
                self.min_expire_at_ms = expire_at_ms;
            }
        }
        self.note(name);
        self.forget_expiry(old, expire_at_ms);
        true
    }

    /// Removes all fields expired at `now_ms`; needs a complete hash. How many were removed.
    pub fn remove_expired(&mut self, now_ms: u64) -> u64 {
        if self.min_expire_at_ms == 0 || self.min_expire_at_ms > now_ms {
            return 0;
        }
        let expired: Vec<Box<[u8]>> =
            self.iter().filter(|(_, f)| f.is_expired(now_ms)).map(|(n, _)| n.into()).collect();
        for name in &expired {
            self.remove(name);
        }
        self.recount_expiry();
        expired.len() as u64
    }

    /// Takes a field found on disk in; what is known already is newer and stays.
    pub(crate) fn learn(&mut self, name: &[u8], field: Option<Field>) {
        if !self.fields.contains_key(name) {
            self.bytes += name.len() + field.as_ref().map_or(0, |f| f.value.len());
            self.fields.insert(name.into(), field);
        }
    }

    /// Every field that exists has been learnt.
    pub(crate) fn learnt_all(&mut self) {
        let mut forgotten = 0;
        self.fields.retain(|name, f| {
            forgotten += if f.is_none() { name.len() } else { 0 };
            f.is_some()
        });
        self.bytes -= forgotten;
        self.complete = true;
        self.recount_expiry();
    }

    /// The dirty fields, for their element rows, and forgets them.
    pub(crate) fn take_dirty(&mut self) -> BTreeSet<Box<[u8]>> {
        std::mem::take(&mut self.dirty)
    }

    /// What a known name holds.
    pub(crate) fn known(&self, name: &[u8]) -> Option<&Field> {
        self.fields.get(name)?.as_ref()
    }

    /// Gives a packed hash its own version: from now on each field is an element row.
    pub(crate) fn unpack(&mut self, version: u64) {
        self.version = version;
        self.dirty = self.fields.keys().cloned().collect();
    }

    pub(crate) fn detach(&mut self) {
        self.version = 0;
        self.dirty.clear();
    }

    fn note(&mut self, name: &[u8]) {
        if self.version != 0 && !self.dirty.contains(name) {
            self.dirty.insert(name.into());
        }
    }

    fn forget_expiry(&mut self, old: u64, new: u64) {
        if old != 0 && old == self.min_expire_at_ms && new != old {
            self.recount_expiry();
        }
    }

    /// With all fields at hand the bound is made exact; else it may only be too early.
    fn recount_expiry(&mut self) {
        if self.complete {
            self.min_expire_at_ms =
                self.iter().map(|(_, f)| f.expire_at_ms).filter(|&at| at != 0).min().unwrap_or(0);
        }
    }
}

impl Field {
    /// Whether it has expired at `now_ms`.
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expire_at_ms != 0 && self.expire_at_ms <= now_ms
    }
}

impl<'a> FromIterator<(&'a [u8], &'a [u8])> for Hash {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], &'a [u8])>>(pairs: I) -> Self {
        let mut hash = Self::new();
        for (name, value) in pairs {
            hash.set(name, value, 0);
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_expiries_follow() {
        let mut hash = Hash::new();
        assert!(hash.set(b"a", b"1", 0));
        assert!(hash.set(b"b", b"2", 50));
        assert!(hash.set(b"c", b"3", 40));
        assert_eq!(hash.min_expire_at_ms(), 40);
        assert!(!hash.set(b"c", b"3", 0));
        assert_eq!(hash.min_expire_at_ms(), 50);
        assert!(hash.get(b"b", 49).unwrap().is_some());
        assert!(hash.get(b"b", 50).unwrap().is_none());
        assert_eq!(hash.remove_expired(50), 1);
        assert_eq!((hash.len(), hash.min_expire_at_ms()), (2, 0));
    }

    #[test]
    fn unknown_fields_are_asked_for() {
        let mut hash = Hash::from_meta(9, 2, false, 0);
        assert_eq!(hash.get(b"a", 0).unwrap_err(), Part::Fields(vec![b"a"[..].into()]));
        hash.learn(b"a", None);
        assert!(hash.set(b"a", b"1", 0));
        assert_eq!(hash.len(), 3);
        assert_eq!(hash.require_all().unwrap_err(), Part::All);
        assert!(hash.remove(b"a").is_some());
        assert_eq!(hash.get(b"a", 0).unwrap(), None);
    }
}
