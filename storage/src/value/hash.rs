//! Hashes: packed into the meta row while small, an element row per field when big.

use crate::store::Part;
use std::cell::RefCell;
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

/// Bytes of memory that a name in a set takes beside itself, about.
const NAME_OVERHEAD: usize = 40;

/// Fields in the order they were added; names are hashed with a per-process seed.
type Names = indexmap::IndexMap<Box<[u8]>, Option<Field>, hashbrown::DefaultHashBuilder>;

/// A hash value, of which some fields may not be in memory.
///
/// Nothing here takes time in proportion to the number of fields but what says so.
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
    /// The expiries of the fields in memory.
    expiries: BTreeSet<(u64, Box<[u8]>)>,
    /// A lower bound of the expiries of fields not in memory, 0 when none expires.
    min_unknown_expire_at_ms: u64,
    /// Fields the journal has not heard of (used for element rows only).
    dirty: BTreeSet<Box<[u8]>>,
    /// The names in scan order, kept while a scan of a big hash goes on.
    scan: RefCell<Option<Box<ScanOrder>>>,
}

/// The names of a hash in the order of their keyed hashes, as they once were: all that existed
/// then. Names that were removed since are still here, later ones are not.
#[derive(Clone, Debug)]
struct ScanOrder {
    names: Vec<(u64, Box<[u8]>)>,
    /// A name was added since.
    stale: bool,
}

impl Hash {
    /// An empty hash, wholly in memory.
    pub fn new() -> Self {
        Self { complete: true, ..Self::default() }
    }

    /// What is known of a big hash from its meta row alone.
    pub(crate) fn from_meta(version: u64, len: u64, timed: bool, min_expire_at_ms: u64) -> Self {
        let min_unknown_expire_at_ms = min_expire_at_ms;
        Self { version, len, timed, min_unknown_expire_at_ms, ..Self::default() }
    }

    /// Number of fields, expired ones that were not yet removed included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Number of fields that have not expired at `now_ms`; needs a complete hash. Takes time in
    /// proportion to the number of expired ones.
    pub fn live_len(&self, now_ms: u64) -> u64 {
        if !self.is_due(now_ms) {
            return self.len;
        }
        let expired = self.expiries.iter().take_while(|(at, _)| *at <= now_ms).count();
        self.len - expired as u64
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

    /// The earliest expiry of a field, 0 when none expires. Exact while complete, else perhaps too
    /// early.
    pub fn min_expire_at_ms(&self) -> u64 {
        match (self.expiries.first(), self.min_unknown_expire_at_ms) {
            (None, unknown) => unknown,
            (Some((at, _)), 0) => *at,
            (Some((at, _)), unknown) => unknown.min(*at),
        }
    }

    /// Whether a field may have expired at `now_ms` that was not removed yet.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let at = self.min_expire_at_ms();
        at != 0 && at <= now_ms
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
        let scan = self.scan.borrow().as_ref().map_or(0, |s| s.names.len());
        let average = self.bytes / self.fields.len().max(1);
        size_of::<Self>()
            + self.fields.len() * FIELD_OVERHEAD
            + self.bytes
            + (self.expiries.len() + scan) * (NAME_OVERHEAD + average)
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

    /// A field that exists, be it expired.
    pub fn peek(&self, name: &[u8]) -> Result<Option<&Field>, Part> {
        match self.fields.get(name) {
            Some(field) => Ok(field.as_ref()),
            None if self.complete => Ok(None),
            None => Err(Part::Fields(vec![name.into()])),
        }
    }

    /// A field that exists and has not expired at `now_ms`.
    pub fn get(&self, name: &[u8], now_ms: u64) -> Result<Option<&Field>, Part> {
        Ok(self.peek(name)?.filter(|field| !field.is_expired(now_ms)))
    }

    /// All fields that exist, expired ones included; those of a packed hash oldest first. Only
    /// when complete (see [`Hash::require_all`]).
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Field)> {
        self.fields.iter().filter_map(|(n, f)| Some((&**n, f.as_ref()?)))
    }

    /// The field at a position among the known (complete hashes: among all).
    pub fn at(&self, index: usize) -> Option<(&[u8], &Field)> {
        let (name, field) = self.fields.get_index(index)?;
        Some((name, field.as_ref()?))
    }

    /// Sets a field that is known (see [`Hash::require`]); true when it is new. `expire_at_ms` 0:
    /// never.
    pub fn set(&mut self, name: &[u8], value: &[u8], expire_at_ms: u64) -> bool {
        self.note(name);
        self.bytes += value.len();
        let slot = match self.fields.get_mut(name) {
            Some(slot) => slot,
            None => {
                self.bytes += name.len();
                self.fields.entry(name.into()).or_default()
            }
        };
        if let Some(field) = slot {
            self.bytes -= field.value.len();
            if field.value.len() == value.len() {
                field.value.copy_from_slice(value);
            } else {
                field.value = value.into();
            }
            let old = std::mem::replace(&mut field.expire_at_ms, expire_at_ms);
            self.move_expiry(name, old, expire_at_ms);
            return false;
        }
        *slot = Some(Field { value: value.into(), expire_at_ms });
        self.len += 1;
        self.move_expiry(name, 0, expire_at_ms);
        if let Some(scan) = self.scan.get_mut() {
            scan.stale = true;
        }
        true
    }

    /// Removes a field that is known; what it was, if it existed.
    pub fn remove(&mut self, name: &[u8]) -> Option<Field> {
        let old = if !self.complete {
            self.fields.get_mut(name).and_then(Option::take)?
        } else if self.table || !self.is_packed() {
            self.fields.swap_remove(name).flatten()?
        } else {
            // Keeps the order, as a listpack does; packed hashes are small.
            self.fields.shift_remove(name).flatten()?
        };
        self.bytes -= old.value.len() + if self.complete { name.len() } else { 0 };
        self.note(name);
        self.len -= 1;
        self.move_expiry(name, old.expire_at_ms, 0);
        Some(old)
    }

    /// Sets only the expiry of a known field (0: never); false when the field does not exist.
    pub fn set_expiry(&mut self, name: &[u8], expire_at_ms: u64) -> bool {
        let Some(Some(field)) = self.fields.get_mut(name) else { return false };
        let old = std::mem::replace(&mut field.expire_at_ms, expire_at_ms);
        self.note(name);
        self.move_expiry(name, old, expire_at_ms);
        true
    }

    /// Removes all fields expired at `now_ms`; needs a complete hash. How many were removed. Takes
    /// time in proportion to them.
    pub fn remove_expired(&mut self, now_ms: u64) -> u64 {
        let mut removed = 0;
        while self.expiries.first().is_some_and(|(at, _)| *at <= now_ms) {
            let Some((_, name)) = self.expiries.pop_first() else { break };
            removed += u64::from(self.remove(&name).is_some());
        }
        removed
    }

    /// A step of a scan: fields from `cursor` on in the order of `order_of`, a fixed hash of at
    /// most 48 bits of a name; needs a complete hash. `visit` is called for at least `count` of
    /// them, expired ones included, if there are as many. The next cursor comes back, 0 at the
    /// end. A field that is there from the first step to the last is visited.
    ///
    /// The first step takes time in proportion to all fields if some were added since the last
    /// scan began; the others, to `count`.
    pub fn scan(
        &self,
        cursor: u64,
        count: usize,
        order_of: impl Fn(&[u8]) -> u64,
        mut visit: impl FnMut(&[u8], &Field),
    ) -> u64 {
        let mut cache = self.scan.borrow_mut();
        if cache.as_ref().is_some_and(|order| order.stale && cursor == 0) {
            *cache = None;
        }
        let order = cache.get_or_insert_with(|| {
            let mut names: Vec<_> =
                self.iter().map(|(name, _)| (order_of(name), name.into())).collect();
            names.sort_unstable();
            Box::new(ScanOrder { names, stale: false })
        });
        let first = order.names.partition_point(|(at, _)| *at < cursor);
        let mut visited = 0;
        let mut last = None;
        for (at, name) in &order.names[first..] {
            // Names of one hash go together, for the cursor cannot tell them apart.
            if visited >= count && last != Some(*at) {
                return *at;
            }
            last = Some(*at);
            if let Some(Some(field)) = self.fields.get(name) {
                visit(name, field);
                visited += 1;
            }
        }
        *cache = None;
        0
    }

    /// Takes a field found on disk in; what is known already is newer and stays.
    pub fn learn(&mut self, name: &[u8], field: Option<Field>) {
        if !self.fields.contains_key(name) {
            self.bytes += name.len() + field.as_ref().map_or(0, |f| f.value.len());
            self.move_expiry(name, 0, field.as_ref().map_or(0, |f| f.expire_at_ms));
            self.fields.insert(name.into(), field);
        }
    }

    /// Every field that exists has been learnt. Takes time in proportion to the fields.
    pub fn learnt_all(&mut self) {
        let mut forgotten = 0;
        self.fields.retain(|name, f| {
            forgotten += if f.is_none() { name.len() } else { 0 };
            f.is_some()
        });
        self.bytes -= forgotten;
        self.complete = true;
        self.min_unknown_expire_at_ms = 0;
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
        *self.scan.get_mut() = None;
    }

    fn note(&mut self, name: &[u8]) {
        if self.version != 0 && !self.dirty.contains(name) {
            self.dirty.insert(name.into());
        }
    }

    /// The expiry of a field in memory was `old` and is `new`.
    fn move_expiry(&mut self, name: &[u8], old: u64, new: u64) {
        if old == new {
            return;
        }
        if old != 0 {
            self.expiries.remove(&(old, name.into()));
        }
        if new != 0 {
            self.timed = true;
            self.expiries.insert((new, name.into()));
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

    #[test]
    fn the_bound_of_expiries_follows_what_is_known() {
        let mut hash = Hash::from_meta(9, 3, true, 20);
        hash.learn(b"a", Some(Field { value: b"1"[..].into(), expire_at_ms: 30 }));
        assert_eq!(hash.min_expire_at_ms(), 20);
        hash.learn(b"b", Some(Field { value: b"2"[..].into(), expire_at_ms: 0 }));
        hash.learn(b"c", None);
        hash.learnt_all();
        assert_eq!(hash.min_expire_at_ms(), 30);
        assert!(hash.set_expiry(b"a", 0));
        assert_eq!((hash.min_expire_at_ms(), hash.is_timed()), (0, true));
    }

    fn order(name: &[u8]) -> u64 {
        name.iter().fold(7, |n, &b| n * 31 + u64::from(b)) % 50
    }

    /// Scans to the end, calling `between` after each step; the names visited.
    fn scan_all(hash: &mut Hash, count: usize, between: impl Fn(&mut Hash)) -> Vec<Box<[u8]>> {
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            cursor = hash.scan(cursor, count, order, |name, _| seen.push(name.into()));
            if cursor == 0 {
                return seen;
            }
            between(hash);
        }
    }

    #[test]
    fn a_scan_visits_each_field_once_whatever_else_changes() {
        let mut hash = Hash::new();
        hash.make_table();
        for n in 0..200 {
            hash.set(n.to_string().as_bytes(), b"v", 0);
        }
        let mut seen = scan_all(&mut hash, 3, |hash| {
            let name = hash.len().to_string();
            hash.set(format!("new{name}").as_bytes(), b"v", 0);
            hash.remove(b"5");
        });
        seen.retain(|name| !name.starts_with(b"new") && **name != *b"5");
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 199);
        let later = hash.len() as usize;
        assert_eq!(scan_all(&mut hash, 7, |_| ()).len(), later);
    }
}
