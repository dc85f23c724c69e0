//! Sets: packed into the meta row while small, an element row per member when big.

use super::collection::{Collection, ElementHint};
use super::members::{Members, Name, Payload};
use crate::encoding::{ElementRows, Row, RowKey};
use crate::need::{Page, Part};
use crate::value::meta::{self, encode_set};
use anyhow::Context;
use bytes::Bytes;

/// Encoding of a set for OBJECT ENCODING. A set only moves to later ones in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetEncoding {
    /// Integers only, in ascending order.
    #[default]
    Intset,
    Listpack,
    Table,
}

impl Payload for () {
    fn memory(&self) -> usize {
        0
    }

    fn packed(&self) -> usize {
        0
    }
}

/// A set, some of whose members may not be in memory. A new one is an empty "intset".
///
/// Operations take constant time in the number of members unless their comment says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Set {
    members: Members<()>,
    encoding: SetEncoding,
}

impl Set {
    /// Creates an empty set.
    pub fn new(encoding: SetEncoding) -> Self {
        Self { encoding, ..Self::default() }
    }

    /// Creates a big set from its meta row; no member is in memory.
    pub(crate) fn from_meta(version: u64, (len, bytes): (u64, u64), encoding: SetEncoding) -> Self {
        Self { members: Members::from_meta(version, len, bytes), encoding }
    }

    /// Returns the bytes that all members would take in a packed row.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.members.whole_bytes()
    }

    /// Returns how many bytes a reply with all members takes at least, in memory or not.
    pub fn least_reply(&self) -> u64 {
        self.whole_bytes()
    }

    /// Returns the number of members.
    pub fn len(&self) -> u64 {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of rounds that changed little of it while it was packed.
    pub(crate) fn rewrites(&self) -> u32 {
        self.members.rewrites()
    }

    /// Notes that it was decoded from a packed row, with its number of rewrites.
    pub(crate) fn set_rewrites(&mut self, rewrites: u32) {
        self.members.set_rewrites(rewrites);
    }

    /// Returns the encoding for OBJECT ENCODING.
    pub fn encoding(&self) -> SetEncoding {
        self.encoding
    }

    /// Changes the encoding. An "intset" that becomes a "listpack" is sorted in ascending order, as
    /// in Redis, if all of it is in memory.
    pub fn set_encoding(&mut self, encoding: SetEncoding) {
        let sorts = (self.encoding, encoding) == (SetEncoding::Intset, SetEncoding::Listpack);
        if sorts && self.members.is_complete() {
            self.members.sort_by_key(integer);
        }
        self.encoding = encoding;
    }

    /// Checks that all `names` are known.
    pub fn require<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<(), Part> {
        self.members.require(names)
    }

    /// Checks that every member is in memory.
    pub fn require_all(&self) -> Result<(), Part> {
        self.members.require_all()
    }

    /// Checks that about `count` members are in memory, or a page of them was read.
    pub fn require_some(&self, count: usize) -> Result<(), Part> {
        self.members.require_some(count, b"")
    }

    /// Returns true if the set has a member.
    pub fn contains(&self, name: &[u8]) -> Result<bool, Part> {
        Ok(self.members.get(name)?.is_some())
    }

    /// Returns every member, those of an "intset" in ascending order. Only when all are in memory
    /// (see [`Set::require_all`]); takes time proportional to them.
    pub fn members(&self) -> Vec<&[u8]> {
        let mut members: Vec<&[u8]> = self.members.iter().map(|(name, ())| name).collect();
        if self.encoding == SetEncoding::Intset {
            members.sort_by_cached_key(|name| integer(name));
        }
        members
    }

    /// Returns every member in memory; those of a packed set in the order of addition.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.members.iter().map(|(name, ())| name)
    }

    /// Adds a known member (see [`Set::require`]); returns true when it is new. The encoding stays.
    pub fn add(&mut self, name: &[u8]) -> bool {
        // Adding an existing member changes nothing.
        self.members.known(name).is_none() && self.members.insert(name, ()).is_none()
    }

    /// Removes a known member; returns true if it existed.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        // A listpack keeps its order; it is small.
        self.members.remove(name, self.encoding == SetEncoding::Listpack).is_some()
    }

    /// Applies whether a member was found on disk, unless it is known already: that is newer.
    pub fn apply_loaded(&mut self, name: &[u8], is_member: bool) {
        self.members.apply_loaded(name, is_member.then_some(()));
    }

    /// Marks the set as complete once every member was applied. Takes time proportional to them.
    pub fn mark_complete(&mut self) {
        self.members.mark_complete();
    }

    /// Returns `count` different random members, or all if there are fewer. If not all are in
    /// memory they are neighbours by hash.
    pub fn sample(&self, count: usize) -> Result<Vec<&[u8]>, Part> {
        let drawn = self.members.sample(count, b"")?;
        Ok(drawn.into_iter().map(|(name, ())| name).collect())
    }

    /// Returns `count` random members with repetition.
    pub fn draw(&self, count: usize) -> Result<impl ExactSizeIterator<Item = &[u8]>, Part> {
        Ok(self.members.draw(count, b"")?.map(|(name, ())| name))
    }

    /// Runs a step of a scan over the members from `cursor` on, ordered by `place`, the upper 48
    /// bits of the keyed hash of a name. Calls `visit` for about `count` of them, and returns the
    /// next cursor, 0 at the end. A member that exists from the first step to the last is visited.
    pub fn scan<'a>(
        &'a self,
        cursor: u64,
        count: usize,
        place: impl Fn(&[u8]) -> u64,
        mut visit: impl FnMut(&'a [u8]),
    ) -> Result<u64, Part> {
        self.members.scan(cursor, count, b"", place, |name, ()| visit(name))
    }
}

/// Parses a member of an "intset".
fn integer(name: &[u8]) -> i64 {
    std::str::from_utf8(name).ok().and_then(|text| text.parse().ok()).unwrap_or(i64::MAX)
}

impl<'a> FromIterator<&'a [u8]> for Set {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(names: I) -> Self {
        let mut set = Self::default();
        for name in names {
            set.add(name);
        }
        set
    }
}

impl Collection for Set {
    fn type_name(&self) -> &'static str {
        "set"
    }

    fn encoding(&self) -> &'static str {
        match self.encoding {
            SetEncoding::Intset => "intset",
            SetEncoding::Listpack => "listpack",
            SetEncoding::Table => "hashtable",
        }
    }

    fn len(&self) -> u64 {
        self.members.len()
    }

    fn touch(&self, wanted: &mut dyn Iterator<Item = ElementHint<'_>>) {
        self.members.touch(wanted.map(|wanted| wanted.name));
    }

    fn knows(&self, name: &[u8]) -> bool {
        self.members.knows(name)
    }

    fn version(&self) -> u64 {
        self.members.version()
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.members.memory()
    }

    fn require_whole(&self) -> Result<(), Part> {
        self.require_all()
    }

    fn is_too_big(&self) -> bool {
        self.members.outgrow_packing()
    }

    fn is_small_again(&self) -> bool {
        self.members.fit_packing_again()
    }

    fn note_rewrite(&mut self) {
        self.members.note_rewrite();
    }

    fn unpack(&mut self, version: u64) {
        self.members.unpack(version);
    }

    fn detach(&mut self) {
        self.members.detach();
    }

    fn seal(&mut self, rows: &mut ElementRows<'_>) {
        for (name, new) in self.members.take_dirty() {
            let element = rows.named(&name);
            if self.members.known(&name).is_some() {
                let kept = if RowKey::name_is_digested(&name) { &*name } else { b"" };
                rows.put(&element, kept, new);
            } else if !new {
                rows.delete(&element);
            }
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_set(out, self);
    }

    fn kind(&self) -> (u8, u8) {
        let flag = match self.encoding {
            SetEncoding::Intset => meta::INTSET,
            SetEncoding::Listpack => 0,
            SetEncoding::Table => meta::TABLE,
        };
        (meta::TYPE_SET, flag)
    }

    fn apply_named(&mut self, name: &[u8], row: Option<&[u8]>) -> anyhow::Result<()> {
        self.apply_loaded(name, row.is_some());
        Ok(())
    }

    fn apply_some(&mut self, rows: &[(Bytes, Bytes)]) -> anyhow::Result<usize> {
        for (element, row) in rows {
            let (name, ()) = read_row(element, row)?;
            self.apply_loaded(&name, true);
        }
        Ok(rows.len())
    }

    fn apply_all(&mut self, rows: Vec<(Bytes, Bytes)>) -> anyhow::Result<()> {
        self.apply_some(&rows)?;
        self.mark_complete();
        Ok(())
    }

    fn apply_page(&mut self, page: Page) -> anyhow::Result<()> {
        self.members.apply_page(page, b"", read_row)?;
        Ok(())
    }

    fn known(&self) -> usize {
        self.members.known_len()
    }

    fn has_few_in_memory(&self) -> bool {
        self.members.has_few_in_memory()
    }

    fn shed(&mut self, steps: usize) {
        self.members.shed(steps, |_, ()| ());
    }
}

fn read_row(element: &[u8], row: &[u8]) -> anyhow::Result<(Name, ())> {
    let name = Row::plain_name(element).or_else(|| (!row.is_empty()).then_some(row));
    Ok((name.context("an element row has no name")?.into(), ()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::need::ElementRange;

    fn names(set: &Set) -> Vec<String> {
        set.members().into_iter().map(|name| String::from_utf8_lossy(name).into()).collect()
    }

    #[test]
    fn the_order_follows_the_encoding() {
        let mut set: Set = [&b"30"[..], b"-1", b"4", b"4"].into_iter().collect();
        assert_eq!((set.len(), names(&set)), (3, vec!["-1".into(), "4".into(), "30".into()]));
        set.set_encoding(SetEncoding::Listpack);
        assert!(set.add(b"x"));
        assert!(set.add(b"0"));
        assert!(set.remove(b"4"));
        assert_eq!(names(&set), ["-1", "30", "x", "0"]);
    }

    #[test]
    fn unknown_members_are_asked_for() {
        let mut set = Set::from_meta(9, (2, 0), SetEncoding::Table);
        assert_eq!(set.contains(b"a"), Err(Part::Fields(vec![b"a"[..].into()])));
        set.apply_loaded(b"a", false);
        set.apply_loaded(b"b", true);
        assert_eq!((set.contains(b"a"), set.contains(b"b")), (Ok(false), Ok(true)));
        assert!(set.add(b"a"));
        assert!(!set.add(b"b"));
        assert!(set.remove(b"b"));
        set.apply_loaded(b"b", true);
        assert_eq!((set.contains(b"b"), set.len()), (Ok(false), 2));
        assert_eq!(set.require_all(), Err(Part::All));
        set.apply_loaded(b"c", true);
        set.mark_complete();
        assert_eq!(names(&set), ["a", "c"]);
    }

    #[test]
    fn some_members_are_one_page_at_most() {
        let mut set = Set::from_meta(9, (1 << 20, 0), SetEncoding::Table);
        let Err(Part::Page { range, reverse, limit, .. }) = set.require_some(1000) else {
            panic!("nothing asked for")
        };
        assert_eq!((reverse, limit), (false, 2000));
        // A page may hold fewer than requested.
        let range = ElementRange { to: Some(vec![0; 8]), ..range };
        set.apply_page(Page { range, rows: Vec::new() }).unwrap();
        assert_eq!(set.require_some(1000), Ok(()));
        assert_eq!(set.require_all(), Err(Part::All));
    }
}
