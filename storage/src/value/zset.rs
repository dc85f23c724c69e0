//! Sorted sets: packed into the meta row while small; two element rows per member when big, one by
//! its name with its score, one in the order.

use super::collection::{Collection, ElementHint};
use super::members::{Members, Name, Payload};
pub use super::order::ZsetWalk;
use super::order::{Order, OrderPlace, PREFIX as ORDER_PREFIX};
use crate::encoding::{ElementRows, Row, RowKey};
use crate::need::{ElementRange, IndexPiece, Page, Part};
use crate::slot::Layout;
use crate::value::meta::{self, encode_zset};
use anyhow::Context;
use bytes::Bytes;
use smallvec::SmallVec;

/// The first byte of the element keys of members.
const PREFIX: &[u8] = &[0];

/// Members dropped from memory for which one block of the order is dropped.
const BLOCK_STEPS: usize = 64;

/// Number of members beyond which a "skiplist" with different scores is not searched linearly for
/// names.
const LEX_SEARCH: u64 = 512;

impl Payload for f64 {
    fn memory(&self) -> usize {
        0
    }

    fn packed(&self) -> usize {
        size_of::<Self>()
    }
}

/// A sorted set, some of whose members may not be in memory: their scores by name, and the order,
/// each independent of the other. A new one is an empty "listpack".
///
/// Operations take constant time in the number of members unless their comment says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Zset {
    members: Members<f64>,
    order: Order,
    /// True once it has outgrown the listpack limits: it stays a "skiplist", as in Redis.
    skiplist: bool,
}

/// Members from one place in the order to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    from: OrderPlace,
    to: OrderPlace,
}

/// An end of a range of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexEdge<'a> {
    /// Before all names.
    Min,
    /// Behind all names.
    Max,
    Including(&'a [u8]),
    Excluding(&'a [u8]),
}

impl LexEdge<'_> {
    /// Returns true if a range that begins here includes the name.
    fn begins(self, name: &[u8]) -> bool {
        match self {
            Self::Min => true,
            Self::Max => false,
            Self::Including(edge) => name >= edge,
            Self::Excluding(edge) => name > edge,
        }
    }

    /// Returns true if a range that ends here includes the name.
    fn ends(self, name: &[u8]) -> bool {
        match self {
            Self::Min => false,
            Self::Max => true,
            Self::Including(edge) => name <= edge,
            Self::Excluding(edge) => name < edge,
        }
    }

    /// Returns true if no name lies between the two.
    fn is_empty_to(self, end: Self) -> bool {
        match (self, end) {
            (Self::Max, _) | (_, Self::Min) => true,
            (Self::Including(a), Self::Including(b)) => a > b,
            (Self::Including(a) | Self::Excluding(a), Self::Including(b) | Self::Excluding(b)) => {
                a >= b
            }
            _ => false,
        }
    }
}

impl Span {
    /// Returns the span of all members.
    pub fn all() -> Self {
        Self { from: OrderPlace::first(), to: OrderPlace::last() }
    }

    /// Returns an empty span.
    pub fn none() -> Self {
        Self { from: OrderPlace::first(), to: OrderPlace::first() }
    }

    /// Returns the span of scores from `min` to `max`, each of which may be excluded.
    pub fn by_score((min, min_excluded): (f64, bool), (max, max_excluded): (f64, bool)) -> Self {
        let edge = |score, behind| {
            if behind { OrderPlace::after_score(score) } else { OrderPlace::before_score(score) }
        };
        Self { from: edge(min, min_excluded), to: edge(max, !max_excluded) }
    }
}

impl Zset {
    /// Creates an empty sorted set.
    pub fn new(skiplist: bool) -> Self {
        Self { skiplist, ..Self::default() }
    }

    /// Creates a big sorted set from its meta row, with all scores from `low` to `high`; no member
    /// is in memory.
    pub(crate) fn from_meta(
        version: u64,
        (len, bytes): (u64, u64),
        (low, high): (f64, f64),
        skiplist: bool,
    ) -> Self {
        let members = Members::from_meta(version, len, bytes);
        Self { members, order: Order::away(len, low, high), skiplist }
    }

    /// Returns the number of members.
    pub fn len(&self) -> u64 {
        self.members.len()
    }

    /// Returns the bytes that all members would take in a packed row.
    pub(crate) fn whole_bytes(&self) -> u64 {
        self.members.whole_bytes()
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

    /// Returns true if OBJECT ENCODING calls it a "skiplist".
    pub fn is_skiplist(&self) -> bool {
        self.skiplist
    }

    /// Returns true if its members have rows of their own.
    pub(crate) fn has_rows(&self) -> bool {
        self.members.version() != 0
    }

    /// Makes it a "skiplist" for good.
    pub fn make_skiplist(&mut self) {
        self.skiplist = true;
    }

    /// Returns true if all of it is in memory.
    pub fn is_complete(&self) -> bool {
        self.members.is_complete() && self.order.is_complete()
    }

    /// Returns bounds of all scores.
    pub(crate) fn bounds(&self) -> (f64, f64) {
        (self.order.low(), self.order.high())
    }

    /// Checks that the scores of all `names` are known.
    pub fn require<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<(), Part> {
        self.members.require(names)
    }

    /// Checks that all of it is in memory.
    pub fn require_all(&self) -> Result<(), Part> {
        if self.is_complete() { Ok(()) } else { Err(Part::All) }
    }

    /// Returns a member's score.
    pub fn score(&self, name: &[u8]) -> Result<Option<f64>, Part> {
        Ok(self.members.get(name)?.copied())
    }

    /// Returns the members in memory in order; all of them only when the order is complete (see
    /// [`Zset::require_all`]).
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> {
        self.order.iter()
    }

    // ---- changing ----------------------------------------------------------------------------

    /// Sets the score, which must be a number, of a known member (see [`Zset::require`]) or of a
    /// new one, and returns the old score. The encoding stays. A "listpack" has no negative zero.
    pub fn set(&mut self, name: &[u8], score: f64) -> Option<f64> {
        let score = if self.skiplist { score } else { score + 0.0 };
        let old = self.members.known(name).copied();
        if old == Some(score) {
            return old;
        }
        if let Some(old) = old {
            self.order.remove(old, name);
        }
        self.members.insert(name, score);
        self.order.insert(score, name);
        old
    }

    /// Removes a known member, and returns its score if it existed.
    pub fn remove(&mut self, name: &[u8]) -> Option<f64> {
        let score = self.members.remove(name, false)?;
        self.order.remove(score, name);
        Some(score)
    }

    /// Removes a member that was found in the order; it need not be known by name.
    pub fn remove_found(&mut self, name: &[u8], score: f64) {
        self.members.apply_loaded(name, Some(score));
        self.remove(name);
    }

    // ---- in order ----------------------------------------------------------------------------

    /// Returns a member's rank, from the end if `reverse`, and its score.
    pub fn rank(&self, name: &[u8], reverse: bool) -> Result<Option<(u64, f64)>, Part> {
        let Some(score) = self.score(name)? else { return Ok(None) };
        let rank = self.order.rank(score, name)?;
        Ok(Some((if reverse { self.len() - 1 - rank } else { rank }, score)))
    }

    /// Returns up to `count` members from a rank on; `reverse`: from the last one on. A member not
    /// in memory may be met while walking, too.
    pub fn by_rank(&self, rank: u64, count: u64, reverse: bool) -> Result<ZsetWalk<'_>, Part> {
        self.order.by_rank(rank, count, reverse)
    }

    /// Returns up to `count` members of a span, without the first `skip`; `reverse`: from the last
    /// one on. A member not in memory may be met while walking, too.
    pub fn within(
        &self,
        span: &Span,
        skip: u64,
        count: u64,
        reverse: bool,
    ) -> Result<ZsetWalk<'_>, Part> {
        self.order.within((&span.from, &span.to), skip, count, reverse)
    }

    /// Returns the number of members of a span.
    pub fn count(&self, span: &Span) -> Result<u64, Part> {
        self.order.count(&span.from, &span.to)
    }

    /// Returns the span of names from `min` to `max`, for members of equal scores.
    ///
    /// If scores differ, Redis does not define the result. There, a small set is searched as a
    /// "listpack": from its beginning, or with `reverse` from its end, up to the first name that is
    /// outside. In a large "skiplist" the names of the least score are taken.
    pub fn lex_span(
        &self,
        min: LexEdge<'_>,
        max: LexEdge<'_>,
        reverse: bool,
    ) -> Result<Span, Part> {
        if self.is_empty() || min.is_empty_to(max) {
            return Ok(Span::none());
        }
        let (low, high) = self.bounds();
        if low == high {
            return Ok(Self::lex_span_of(low, min, max));
        }
        if !self.skiplist || self.len() <= LEX_SEARCH {
            self.require_all()?;
            return Ok(self.lex_search(min, max, reverse));
        }
        let first = self.by_rank(0, 1, false)?.next().transpose()?;
        let last = self.by_rank(0, 1, true)?.next().transpose()?;
        match first.zip(last) {
            Some(((first, score), (last, _))) if max.ends(first) && min.begins(last) => {
                Ok(Self::lex_span_of(score, min, max))
            }
            _ => Ok(Span::none()),
        }
    }

    fn lex_span_of(score: f64, min: LexEdge<'_>, max: LexEdge<'_>) -> Span {
        Span {
            from: match min {
                LexEdge::Min | LexEdge::Max => OrderPlace::first(),
                LexEdge::Including(name) => OrderPlace::of(score, name),
                LexEdge::Excluding(name) => OrderPlace::after(score, name),
            },
            to: match max {
                LexEdge::Min | LexEdge::Max => OrderPlace::last(),
                LexEdge::Including(name) => OrderPlace::after(score, name),
                LexEdge::Excluding(name) => OrderPlace::of(score, name),
            },
        }
    }

    /// Examines the members in sequence; takes time proportional to their number.
    fn lex_search(&self, min: LexEdge<'_>, max: LexEdge<'_>, reverse: bool) -> Span {
        let is_outside = self.iter().next().is_none_or(|(name, _)| !max.ends(name))
            || self.iter().next_back().is_none_or(|(name, _)| !min.begins(name));
        if is_outside {
            return Span::none();
        }
        let place = |(name, score)| OrderPlace::of(score, name);
        let after = |(name, score)| OrderPlace::after(score, name);
        if reverse {
            let mut rest = self.iter().rev().skip_while(|(name, _)| !max.ends(name));
            let last = rest.next();
            let Some(last) = last.filter(|(name, _)| min.begins(name)) else {
                return Span::none();
            };
            let first = rest.take_while(|(name, _)| min.begins(name)).last();
            return Span { from: place(first.unwrap_or(last)), to: after(last) };
        }
        let mut rest = self.iter().skip_while(|(name, _)| !min.begins(name));
        let first = rest.next();
        let Some(first) = first.filter(|(name, _)| max.ends(name)) else { return Span::none() };
        let last = rest.take_while(|(name, _)| max.ends(name)).last();
        Span { from: place(first), to: after(last.unwrap_or(first)) }
    }

    // ---- random members and scans ------------------------------------------------------------

    /// Returns `count` different random members, or all if there are fewer. If not all are in
    /// memory they are neighbours by hash.
    pub fn sample(&self, count: usize) -> Result<Vec<(&[u8], f64)>, Part> {
        let drawn = self.members.sample(count, PREFIX)?;
        Ok(drawn.into_iter().map(|(name, score)| (name, *score)).collect())
    }

    /// Returns `count` random members with repetition.
    pub fn draw(&self, count: usize) -> Result<impl ExactSizeIterator<Item = (&[u8], f64)>, Part> {
        Ok(self.members.draw(count, PREFIX)?.map(|(name, score)| (name, *score)))
    }

    /// Runs a step of a scan over the members from `cursor` on, ordered by `place`, the upper 48
    /// bits of the keyed hash of a name. Calls `visit` for about `count` of them, and returns the
    /// next cursor, 0 at the end. A member that exists from the first step to the last is visited.
    pub fn scan(
        &self,
        cursor: u64,
        count: usize,
        place: impl Fn(&[u8]) -> u64,
        mut visit: impl FnMut(&[u8], f64),
    ) -> Result<u64, Part> {
        self.members.scan(cursor, count, PREFIX, place, |name, score| visit(name, *score))
    }
}

impl<'a> FromIterator<(&'a [u8], f64)> for Zset {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], f64)>>(members: I) -> Self {
        let mut zset = Self::default();
        for (name, score) in members {
            zset.set(name, score);
        }
        zset
    }
}

impl Collection for Zset {
    fn type_name(&self) -> &'static str {
        "zset"
    }

    fn encoding(&self) -> &'static str {
        if self.skiplist { "skiplist" } else { "listpack" }
    }

    fn len(&self) -> u64 {
        self.members.len()
    }

    fn touch(&self, wanted: &mut dyn Iterator<Item = ElementHint<'_>>) {
        let wanted: SmallVec<[ElementHint<'_>; 16]> = wanted.collect();
        self.members.touch(wanted.iter().map(|wanted| wanted.name));
        let places = wanted.iter().flat_map(|wanted| {
            let old = self.members.known(wanted.name).copied();
            old.into_iter().chain(wanted.score).map(|score| (score, wanted.name))
        });
        self.order.touch(places);
    }

    fn knows(&self, name: &[u8]) -> bool {
        self.members.knows(name)
    }

    fn has(&self, part: &Part) -> bool {
        match part {
            Part::Fields(names) => names.iter().all(|name| self.members.knows(name)),
            Part::All => self.is_complete(),
            Part::Page { range, reverse, .. } if range.from.first() == Some(&ORDER_PREFIX) => {
                self.order.has_page(range, *reverse)
            }
            Part::Index { range, .. } => self.order.has_index(range),
            Part::Page { .. } | Part::Chunks(_) | Part::Expiries => false,
        }
    }

    fn version(&self) -> u64 {
        self.members.version()
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.members.memory() + self.order.memory()
    }

    fn require_whole(&self) -> Result<(), Part> {
        self.require_all()
    }

    fn is_too_big(&self) -> bool {
        self.members.outgrow_packing()
    }

    fn is_small_again(&self) -> bool {
        self.order.is_complete() && self.members.fit_packing_again()
    }

    fn note_rewrite(&mut self) {
        self.members.note_rewrite();
    }

    fn unpack(&mut self, version: u64) {
        self.members.unpack(version);
        self.order.unpack();
    }

    fn detach(&mut self) {
        self.members.detach();
        self.order.detach();
    }

    fn seal(&mut self, rows: &mut ElementRows<'_>) {
        let mut row = Vec::new();
        for (name, new) in self.members.take_dirty() {
            let element = [PREFIX, &rows.named(&name)].concat();
            let Some(score) = self.members.known(&name) else {
                if !new {
                    rows.delete(&element);
                }
                continue;
            };
            row.clear();
            row.extend_from_slice(&score.to_bits().to_be_bytes());
            if RowKey::name_is_digested(&name) {
                row.extend_from_slice(&name);
            }
            rows.put(&element, &row, new);
        }
        self.order.seal(rows);
    }

    fn encode(&self, out: &mut Vec<u8>) {
        encode_zset(out, self);
    }

    fn kind(&self) -> (u8, u8) {
        (meta::TYPE_ZSET, if self.skiplist { meta::TABLE } else { 0 })
    }

    fn element_key(&self, name: &[u8], layout: &Layout) -> Vec<u8> {
        [PREFIX, &RowKey::named_element(layout.hash(name), name)].concat()
    }

    fn apply_named(&mut self, name: &[u8], row: Option<&[u8]>) -> anyhow::Result<()> {
        let score = row.map(read_score).transpose()?.map(|(score, _)| score);
        self.members.apply_loaded(name, score);
        Ok(())
    }

    fn apply_some(&mut self, rows: &[(Bytes, Bytes)]) -> anyhow::Result<usize> {
        let order = rows.partition_point(|(element, _)| element.first() < Some(&ORDER_PREFIX));
        for (element, row) in &rows[..order] {
            let (name, score) = read_row(element, row)?;
            self.members.apply_loaded(&name, Some(score));
        }
        Ok(order)
    }

    fn apply_all(&mut self, rows: Vec<(Bytes, Bytes)>) -> anyhow::Result<()> {
        let order = self.apply_some(&rows)?;
        self.members.mark_complete();
        self.order.apply_all(&rows[order..])
    }

    fn apply_page(&mut self, page: Page) -> anyhow::Result<()> {
        if page.range.from.first() == Some(&ORDER_PREFIX) {
            return self.order.apply_page(&page);
        }
        self.members.apply_page(page, PREFIX, read_row)?;
        Ok(())
    }

    fn apply_index(&mut self, range: &ElementRange, pieces: Vec<IndexPiece>) -> anyhow::Result<()> {
        self.order.apply_index(range, pieces)
    }

    fn known(&self) -> usize {
        self.members.known_len()
    }

    fn has_few_in_memory(&self) -> bool {
        self.members.has_few_in_memory() && self.order.has_few_in_memory()
    }

    fn shed(&mut self, steps: usize) {
        self.members.shed(steps, |_, _| ());
        self.order.shed(steps.div_ceil(BLOCK_STEPS));
    }
}

/// Decodes a member's row: the score, and the name if the row has it.
fn read_score(row: &[u8]) -> anyhow::Result<(f64, &[u8])> {
    let (score, name) = row.split_first_chunk::<8>().context("an element row has no score")?;
    let score = f64::from_bits(u64::from_be_bytes(*score));
    anyhow::ensure!(!score.is_nan(), "a score is no number");
    Ok((score, name))
}

fn read_row(element: &[u8], row: &[u8]) -> anyhow::Result<(Name, f64)> {
    let (score, kept) = read_score(row)?;
    let plain = element.get(PREFIX.len()..).and_then(Row::plain_name);
    let name = plain.or_else(|| (!kept.is_empty()).then_some(kept));
    Ok((name.context("an element row has no name")?.into(), score))
}

#[cfg(test)]
#[path = "zset_tests.rs"]
mod tests;
