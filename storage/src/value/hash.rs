//! Hashes: packed into the meta row while small, an element row per field when big.

use super::collection::{Collection, ElementHint};
use super::expiries::EarliestExpiries;
use super::members::{Members, Name, Payload};
use crate::encoding::{ElementRows, Row, RowKey};
use crate::need::{Page, Part};
use crate::prefetch::prefetch;
use crate::reclaim::{Parts, Reclaimed};
use crate::value::meta::{self, encode_hash, field_parts};
use crate::value::{decode_field, encode_field};
use anyhow::Context;
use bytes::Bytes;
use std::collections::BTreeSet;

/// A field's value and expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub value: Box<[u8]>,
    /// 0: the field never expires.
    pub expire_at_ms: u64,
}

/// Approximate memory use of an expiry, in bytes.
const EXPIRY_OVERHEAD: usize = size_of::<Name>() + 24;

/// Maximum number of expiries that are known of a hash when fields leave memory, twice as many as a walk over its
/// rows finds, and the greatest length of their names: they are found without the other fields when they are due.
const MAX_KEPT: usize = 16_384;

/// Bytes of fields that are deleted at a time because they have expired, unless it is a single one.
const DUE_BYTES: u64 = 8 << 20;
const MAX_KEPT_NAME: usize = 64;

/// A hash, some of whose fields may not be in memory.
///
/// Operations take constant time in the number of fields unless their comment says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Hash {
    fields: Members<Field>,
    /// True once the hash has outgrown the listpack limits: it stays a "hashtable", as in Redis.
    table: bool,
    /// True if a field has had an expiry: the encoding is then "listpackex" in place of "listpack".
    timed: bool,
    /// Expiries of the fields in memory, and of some others.
    expiries: Reclaimed<BTreeSet<(u64, Name)>>,
    /// A lower bound of the expiries of all other fields, 0 when none expires.
    min_unknown_expire_at_ms: u64,
}

impl Parts for BTreeSet<(u64, Name)> {
    fn parts(&self) -> usize {
        self.len()
    }
}

impl Payload for Field {
    fn memory(&self) -> usize {
        self.value.len() + 16
    }

    fn packed(&self) -> usize {
        self.value.len() + if self.expire_at_ms == 0 { 1 } else { 9 }
    }

    fn prefetch(&self) {
        if let [first, .., last] = &self.value[..] {
            prefetch(first);
            prefetch(last);
        }
    }
}

impl Hash {
    /// Creates an empty hash, wholly in memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a big hash from its meta row; no field is in memory.
    pub(crate) fn from_meta(
        version: u64,
        (len, bytes): (u64, u64),
        timed: bool,
        min_expire_at_ms: u64,
    ) -> Self {
        let fields = Members::from_meta(version, len, bytes);
        let min_unknown_expire_at_ms = min_expire_at_ms;
        Self { fields, timed, min_unknown_expire_at_ms, ..Self::default() }
    }

    /// Returns the bytes that all fields would take in a packed row.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.fields.whole_bytes()
    }

    /// Returns how many bytes a reply with all fields takes at least, in memory or not; 0 if some may have expired:
    /// the frames of name and value are longer than what a packed row has beside them.
    pub fn least_reply(&self, now_ms: u64) -> u64 {
        if self.is_due(now_ms) { 0 } else { self.whole_bytes() }
    }

    /// Returns the number of fields, including expired ones that were not yet removed.
    pub fn len(&self) -> u64 {
        self.fields.len()
    }

    /// Returns the number of fields that have not expired at `now_ms`; needs a complete hash. Takes
    /// time proportional to the number of expired ones.
    pub fn live_len(&self, now_ms: u64) -> u64 {
        if !self.is_due(now_ms) {
            return self.len();
        }
        let expired = self.expiries.iter().take_while(|(at, _)| *at <= now_ms).count();
        self.len() - expired as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn is_complete(&self) -> bool {
        self.fields.is_complete()
    }

    /// Returns true if the fields are packed into the meta row.
    pub fn is_packed(&self) -> bool {
        self.fields.version() == 0
    }

    /// Returns the number of rounds that changed little of it while it was packed.
    pub(crate) fn rewrites(&self) -> u32 {
        self.fields.rewrites()
    }

    /// Notes that it was decoded from a packed row, with its number of rewrites.
    pub(crate) fn set_rewrites(&mut self, rewrites: u32) {
        self.fields.set_rewrites(rewrites);
    }

    /// Returns true if OBJECT ENCODING calls it a "hashtable".
    pub fn is_table(&self) -> bool {
        self.table
    }

    /// Makes it a "hashtable" for good.
    pub fn make_table(&mut self) {
        self.table = true;
    }

    /// Returns true if a field has, or had, an expiry.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn set_timed(&mut self) {
        self.timed = true;
    }

    /// Returns the earliest expiry of a field, 0 when none expires. Exact while complete, else
    /// possibly too early.
    pub fn min_expire_at_ms(&self) -> u64 {
        match (self.expiries.first(), self.min_unknown_expire_at_ms) {
            (None, unknown) => unknown,
            (Some((at, _)), 0) => *at,
            (Some((at, _)), unknown) => unknown.min(*at),
        }
    }

    /// Returns true if a field may have expired at `now_ms` and is not removed yet.
    pub fn is_due(&self, now_ms: u64) -> bool {
        let at = self.min_expire_at_ms();
        at != 0 && at <= now_ms
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.fields.memory() + self.expiries.len() * EXPIRY_OVERHEAD
    }

    /// Checks that all `names` are known.
    pub fn require<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<(), Part> {
        self.fields.require(names)
    }

    /// Checks that all fields that have expired at `now_ms` are known, and in memory.
    pub fn require_due(&self, now_ms: u64) -> Result<(), Part> {
        if self.may_know_less(now_ms) {
            self.require_all()?;
        }
        let due = self.expiries.iter().take_while(|(at, _)| *at <= now_ms);
        self.require(due.map(|(_, name)| &**name))
    }

    /// Checks that some fields that have expired at `now_ms` are in memory, if there are any: the first ones, as
    /// many as are deleted at a time.
    pub fn require_some_due(&self, now_ms: u64) -> Result<(), Part> {
        let at_once = usize::try_from(DUE_BYTES / self.mean_bytes()).unwrap_or(usize::MAX).max(1);
        let due = || self.expiries.iter().take_while(|(at, _)| *at <= now_ms).take(at_once);
        self.require(due().map(|(_, name)| &**name))?;
        let knows_none = due().next().is_none();
        if knows_none && self.may_know_less(now_ms) { Err(Part::Expiries) } else { Ok(()) }
    }

    /// Checks that fields are in memory; asks for no more of them at once than take `most` bytes on average, but
    /// for one at least.
    pub fn require_some_of<'a>(
        &self,
        names: impl Iterator<Item = &'a [u8]>,
        most: u64,
    ) -> Result<(), Part> {
        let at_once = usize::try_from(most / self.mean_bytes()).unwrap_or(usize::MAX).max(1);
        self.fields.require_first(names, at_once)
    }

    /// Returns the bytes of a field on average, 1 at least.
    pub(crate) fn mean_bytes(&self) -> u64 {
        (self.fields.whole_bytes() / self.len().max(1)).max(1)
    }

    /// Returns true if fields may have expired at `now_ms` that are not known to expire then.
    fn may_know_less(&self, now_ms: u64) -> bool {
        (1..=now_ms).contains(&self.min_unknown_expire_at_ms)
    }

    /// Checks that every field is in memory.
    pub fn require_all(&self) -> Result<(), Part> {
        self.fields.require_all()
    }

    /// Returns an existing field, even if it has expired.
    pub fn peek(&self, name: &[u8]) -> Result<Option<&Field>, Part> {
        self.fields.get(name)
    }

    /// Returns an existing field that has not expired at `now_ms`.
    pub fn get(&self, name: &[u8], now_ms: u64) -> Result<Option<&Field>, Part> {
        Ok(self.peek(name)?.filter(|field| !field.is_expired(now_ms)))
    }

    /// Returns all existing fields, including expired ones; those of a packed hash oldest first.
    /// Only when complete (see [`Hash::require_all`]).
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Field)> {
        self.fields.iter()
    }

    /// Returns `count` random fields with repetition, including expired ones.
    pub fn draw(
        &self,
        count: usize,
    ) -> Result<impl ExactSizeIterator<Item = (&[u8], &Field)>, Part> {
        self.fields.draw(count, b"")
    }

    /// Returns `count` different random fields, including expired ones, or all if there are fewer.
    /// If not all are in memory they are neighbours by hash.
    pub fn sample(&self, count: usize) -> Result<Vec<(&[u8], &Field)>, Part> {
        self.fields.sample(count, b"")
    }

    /// Sets a known field (see [`Hash::require`]); returns true when it is new. `expire_at_ms` 0:
    /// it never expires.
    pub fn set(&mut self, name: &[u8], value: &[u8], expire_at_ms: u64) -> bool {
        let same_size = |field: &Field| field.value.len() == value.len();
        let old = match self.fields.known(name) {
            Some(field) if same_size(field) => self.fields.update(name, |field| {
                field.value.copy_from_slice(value);
                std::mem::replace(&mut field.expire_at_ms, expire_at_ms)
            }),
            _ => self
                .fields
                .insert(name, Field { value: value.into(), expire_at_ms })
                .map(|old| old.expire_at_ms),
        };
        self.move_expiry(name, old.unwrap_or(0), expire_at_ms);
        old.is_none()
    }

    /// Removes a known field, and returns it if it existed.
    pub fn remove(&mut self, name: &[u8]) -> Option<Field> {
        // A listpack keeps its order; packed hashes are small.
        let old = self.fields.remove(name, !self.table && self.is_packed())?;
        self.move_expiry(name, old.expire_at_ms, 0);
        Some(old)
    }

    /// Sets the expiry of a known field (0: never); returns false when the field does not exist.
    pub fn set_expiry(&mut self, name: &[u8], expire_at_ms: u64) -> bool {
        let old = self
            .fields
            .update(name, |field| std::mem::replace(&mut field.expire_at_ms, expire_at_ms));
        let Some(old) = old else { return false };
        self.move_expiry(name, old, expire_at_ms);
        true
    }

    /// Removes the fields that are known to have expired at `now_ms`, and returns their names; see
    /// [`require_some_due`](Self::require_some_due). Takes time proportional to them.
    pub fn remove_expired(&mut self, now_ms: u64) -> Vec<Box<[u8]>> {
        let mut removed = Vec::new();
        let is_due = |hash: &Self| {
            let first = hash.expiries.first().filter(|(at, _)| *at <= now_ms);
            first.is_some_and(|(_, name)| hash.require(std::iter::once(&**name)).is_ok())
        };
        while is_due(self) {
            let Some((_, name)) = self.expiries.pop_first() else { break };
            if self.remove(&name).is_some() {
                removed.push(name[..].into());
            }
        }
        removed
    }

    /// Runs a step of a scan over the fields from `cursor` on, ordered by `place`, the upper 48
    /// bits of the keyed hash of a name. Calls `visit` for about `count` of them, including expired
    /// ones, and returns the next cursor, 0 at the end. A field that exists from the first step to
    /// the last is visited.
    pub fn scan<'a>(
        &'a self,
        cursor: u64,
        count: usize,
        place: impl Fn(&[u8]) -> u64,
        visit: impl FnMut(&'a [u8], &'a Field),
    ) -> Result<u64, Part> {
        self.fields.scan(cursor, count, b"", place, visit)
    }

    /// Applies a field read from disk, unless the field is known already: that is newer.
    pub fn apply_loaded(&mut self, name: &[u8], field: Option<Field>) {
        let expire_at_ms = field.as_ref().map_or(0, |field| field.expire_at_ms);
        if self.fields.apply_loaded(name, field) {
            self.move_expiry(name, 0, expire_at_ms);
        }
    }

    /// Marks the hash as complete once every existing field was applied. Takes time proportional to
    /// the fields.
    pub fn mark_complete(&mut self) {
        self.fields.mark_complete();
        self.min_unknown_expire_at_ms = 0;
    }

    /// Notes that the expiry of a field in memory changed from `old` to `new`.
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

impl Collection for Hash {
    fn type_name(&self) -> &'static str {
        "hash"
    }

    fn encoding(&self) -> &'static str {
        match (self.table, self.timed) {
            (true, _) => "hashtable",
            (false, true) => "listpackex",
            (false, false) => "listpack",
        }
    }

    fn len(&self) -> u64 {
        self.fields.len()
    }

    fn touch(&self, wanted: &mut dyn Iterator<Item = ElementHint<'_>>) {
        self.fields.touch(wanted.map(|wanted| wanted.name));
    }

    fn knows(&self, name: &[u8]) -> bool {
        self.fields.knows(name)
    }

    fn version(&self) -> u64 {
        self.fields.version()
    }

    fn memory(&self) -> usize {
        Self::memory(self)
    }

    fn require_whole(&self) -> Result<(), Part> {
        self.require_all()
    }

    fn fields_expire_at_ms(&self) -> u64 {
        self.min_expire_at_ms()
    }

    fn is_too_big(&self) -> bool {
        self.fields.outgrow_packing()
    }

    fn is_small_again(&self) -> bool {
        self.fields.fit_packing_again()
    }

    fn note_rewrite(&mut self) {
        self.fields.note_rewrite();
    }

    fn unpack(&mut self, version: u64) {
        self.fields.unpack(version);
    }

    fn detach(&mut self) {
        self.fields.detach();
    }

    fn seal(&mut self, rows: &mut ElementRows<'_>) {
        let mut value = Vec::new();
        for (name, new) in self.fields.take_dirty() {
            let element = rows.named(&name);
            if let Some(field) = self.fields.known(&name) {
                value.clear();
                let kept = RowKey::name_is_digested(&name).then_some(&*name);
                encode_field(&mut value, field, kept);
                rows.put(&element, &value, new);
            } else if !new {
                rows.delete(&element);
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_hash(out, self);
    }

    fn kind(&self) -> (u8, u8) {
        let timed = if self.timed { meta::TIMED } else { 0 };
        (meta::TYPE_HASH, timed | if self.table { meta::TABLE } else { 0 })
    }

    fn apply_named(&mut self, name: &[u8], row: Option<&[u8]>) -> anyhow::Result<()> {
        let field = row.map(decode_field).transpose()?.map(|(_, field)| field);
        self.apply_loaded(name, field);
        Ok(())
    }

    fn apply_some(&mut self, rows: &[(Bytes, Bytes)]) -> anyhow::Result<usize> {
        for (element, row) in rows {
            let (name, field) = read_row(element, row)?;
            self.apply_loaded(&name, Some(field));
        }
        Ok(rows.len())
    }

    fn apply_all(&mut self, rows: Vec<(Bytes, Bytes)>) -> anyhow::Result<()> {
        self.apply_some(&rows)?;
        self.mark_complete();
        Ok(())
    }

    fn apply_page(&mut self, page: Page) -> anyhow::Result<()> {
        for (name, field) in self.fields.apply_page(page, b"", read_row)? {
            self.move_expiry(&name, 0, field.expire_at_ms);
        }
        Ok(())
    }

    fn apply_expiries(&mut self, earliest: EarliestExpiries) {
        if self.is_complete() {
            return;
        }
        let (found, rest_from_ms) = earliest.into_parts();
        // The rows may be older than fields in memory, the expiries of which are all known.
        self.expiries.extend(found.into_iter().filter(|(_, name)| !self.fields.knows(name)));
        self.min_unknown_expire_at_ms = rest_from_ms;
    }

    fn known(&self) -> usize {
        self.fields.known_len()
    }

    fn has_few_in_memory(&self) -> bool {
        self.fields.has_few_in_memory()
    }

    fn shed(&mut self, steps: usize) {
        let Self { fields, expiries, min_unknown_expire_at_ms: unknown, .. } = self;
        fields.shed(steps, |name, field| {
            let at = field.expire_at_ms;
            if at != 0 && (expiries.len() > MAX_KEPT || name.len() > MAX_KEPT_NAME) {
                expiries.remove(&(at, name.into()));
                *unknown = if *unknown == 0 { at } else { at.min(*unknown) };
            }
        });
    }
}

fn read_row(element: &[u8], row: &[u8]) -> anyhow::Result<(Name, Field)> {
    let (kept, field) = decode_field(row)?;
    Ok((name_of(element, kept)?.into(), field))
}

fn name_of<'a>(element: &'a [u8], kept: Option<&'a [u8]>) -> anyhow::Result<&'a [u8]> {
    kept.or_else(|| Row::plain_name(element)).context("an element row has no name")
}

/// Returns the name of a field and its expiry (0: it never expires) from its row, which may be without the value.
pub(super) fn read_expiry<'a>(element: &'a [u8], row: &'a [u8]) -> anyhow::Result<(&'a [u8], u64)> {
    let parts = field_parts(row)?;
    Ok((name_of(element, parts.name)?, parts.expire_at_ms))
}

impl Field {
    /// Returns true if it has expired at `now_ms`.
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
    use crate::encoding::OpWriter;

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
        assert_eq!(hash.remove_expired(50).len(), 1);
        assert_eq!((hash.len(), hash.min_expire_at_ms()), (2, 0));
    }

    #[test]
    fn unknown_fields_are_asked_for() {
        let mut hash = Hash::from_meta(9, (2, 0), false, 0);
        assert_eq!(hash.get(b"a", 0).unwrap_err(), Part::Fields(vec![b"a"[..].into()]));
        hash.apply_loaded(b"a", None);
        assert!(hash.set(b"a", b"1", 0));
        assert_eq!(hash.len(), 3);
        assert_eq!(hash.require_all().unwrap_err(), Part::All);
        assert!(hash.remove(b"a").is_some());
        assert_eq!(hash.get(b"a", 0).unwrap(), None);
    }

    #[test]
    fn fields_that_are_due_are_found_although_they_have_left_memory() {
        let field = |expire_at_ms| Some(Field { value: b"1"[..].into(), expire_at_ms });
        let mut hash = Hash::from_meta(9, (3, 0), false, 0);
        for (name, at) in [(&b"a"[..], 30), (b"b", 50), (b"c", 0)] {
            hash.apply_loaded(name, field(at));
        }
        hash.shed(100);
        assert_eq!(hash.min_expire_at_ms(), 30);
        assert_eq!(hash.require_some_due(29), Ok(()));
        assert_eq!(hash.require_some_due(30), Err(Part::Fields(vec![b"a"[..].into()])));
        hash.apply_loaded(b"a", field(30));
        assert_eq!(hash.require_some_due(49), Ok(()));
        assert_eq!(hash.remove_expired(49), [b"a"[..].into()]);
        assert_eq!((hash.len(), hash.min_expire_at_ms()), (2, 50));
        // Only a bound is known of long names.
        hash.apply_loaded(&[b'n'; MAX_KEPT_NAME + 1], field(40));
        hash.shed(100);
        assert_eq!((hash.require_due(39), hash.require_due(40)), (Ok(()), Err(Part::All)));
        assert_eq!(
            (hash.require_some_due(39), hash.require_some_due(40)),
            (Ok(()), Err(Part::Expiries))
        );
    }

    #[test]
    fn the_earliest_expiries_are_found_without_the_fields() {
        let field = |expire_at_ms| Field { value: b"1"[..].into(), expire_at_ms };
        let mut hash = Hash::from_meta(9, (4, 0), true, 30);
        // Its row is older: a change of this round.
        hash.apply_loaded(b"changed", Some(field(30)));
        assert!(hash.set_expiry(b"changed", 90));
        assert_eq!(hash.require_some_due(29), Ok(()));
        assert_eq!(hash.require_some_due(40), Err(Part::Expiries));
        let mut earliest = EarliestExpiries::default();
        for (name, at) in [("changed", 30), ("a", 40), ("b", 50), ("c", 0)] {
            let mut row = Vec::new();
            encode_field(&mut row, &field(at), None);
            let element = RowKey::named_element(7, name.as_bytes());
            earliest.note_row(&element, meta::field_head(&row)).unwrap();
        }
        hash.apply_expiries(earliest);
        assert_eq!(hash.min_expire_at_ms(), 40);
        assert_eq!(hash.require_some_due(40), Err(Part::Fields(vec![b"a"[..].into()])));
        hash.apply_loaded(b"a", Some(field(40)));
        assert_eq!(hash.require_some_due(40), Ok(()));
        assert_eq!(hash.remove_expired(40), [b"a"[..].into()]);
        assert_eq!((hash.len(), hash.min_expire_at_ms()), (3, 50));
    }

    #[test]
    fn large_fields_are_deleted_some_at_a_time() {
        let mut hash = Hash::new();
        for n in 0..8u8 {
            hash.set(&[n], &vec![n; 3 << 20], 30);
        }
        hash.unpack(7);
        hash.seal(&mut ElementRows::new(&mut OpWriter::default(), 1, 7, &|_| 0));
        let (mut removed, mut loads) = (0, 0);
        while hash.is_due(30) {
            hash.shed(100);
            if let Err(part) = hash.require_some_due(30) {
                let Part::Fields(names) = part else { panic!("{part:?}") };
                assert!((1..=2).contains(&names.len()), "{}", names.len());
                loads += 1;
                for name in names {
                    let value = vec![name[0]; 3 << 20].into();
                    hash.apply_loaded(&name, Some(Field { value, expire_at_ms: 30 }));
                }
            }
            removed += hash.remove_expired(30).len();
        }
        assert_eq!((removed, hash.len()), (8, 0));
        assert!(loads >= 3, "{loads}");
    }

    #[test]
    fn no_more_names_are_gathered_than_are_loaded_at_once() {
        let mut hash = Hash::new();
        for n in 0..8u8 {
            hash.set(&[n], &vec![n; 3 << 20], 0);
        }
        hash.unpack(7);
        hash.seal(&mut ElementRows::new(&mut OpWriter::default(), 1, 7, &|_| 0));
        hash.shed(100);
        let all: Vec<Vec<u8>> = (0..200).map(|n| vec![n]).collect();
        let looked = std::cell::Cell::new(0);
        let names = all.iter().map(|name| {
            looked.set(looked.get() + 1);
            &name[..]
        });
        let missing = hash.require_some_of(names, 8 << 20);
        let Err(Part::Fields(names)) = missing else { panic!("{missing:?}") };
        assert!((1..=2).contains(&names.len()), "{}", names.len());
        assert!(looked.get() <= 8 + 2, "{}", looked.get());
    }

    #[test]
    fn the_bound_of_expiries_follows_what_is_known() {
        let mut hash = Hash::from_meta(9, (3, 0), true, 20);
        hash.apply_loaded(b"a", Some(Field { value: b"1"[..].into(), expire_at_ms: 30 }));
        assert_eq!(hash.min_expire_at_ms(), 20);
        hash.apply_loaded(b"b", Some(Field { value: b"2"[..].into(), expire_at_ms: 0 }));
        hash.apply_loaded(b"c", None);
        hash.mark_complete();
        assert_eq!(hash.min_expire_at_ms(), 30);
        assert!(hash.set_expiry(b"a", 0));
        assert_eq!((hash.min_expire_at_ms(), hash.is_timed()), (0, true));
    }

    fn order(name: &[u8]) -> u64 {
        name.iter().fold(7, |n, &b| n * 31 + u64::from(b)) % 50
    }

    /// Scans to the end, calling `between` after each step, and returns the visited names.
    fn scan_all(hash: &mut Hash, count: usize, between: impl Fn(&mut Hash)) -> Vec<Box<[u8]>> {
        let (mut seen, mut cursor) = (Vec::new(), 0);
        loop {
            cursor = hash.scan(cursor, count, order, |name, _| seen.push(name.into())).unwrap();
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
