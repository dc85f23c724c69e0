//! Set algebra over several collections: intersection, union and difference.
//!
//! Of a set that is only partly in memory, no more is loaded than the result depends on: an
//! intersection walks the smallest set and looks only the remaining candidates up in the others.

use flagstone_storage::Store;
use flagstone_storage::store::{Fault, OrLoad, Part};
use flagstone_storage::value::{Set, Value};
use std::collections::HashSet;

/// Operation that combines sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOperation {
    Inter,
    Union,
    Diff,
}

/// A collection that can be combined by its members' names.
pub(crate) trait Combinable<'a>: Copy {
    /// Returns true if a value is of this type.
    fn is(value: &Value) -> bool;
    /// Returns the value as this type, if it is of it.
    fn of(value: &'a Value) -> Option<Self>;
    /// Returns the number of members.
    fn size(self) -> u64;
    /// Checks that it is known for each of `names` whether it is a member.
    fn require<'n>(self, names: impl Iterator<Item = &'n [u8]>) -> Result<(), Part>;
    /// Checks that all members are in memory.
    fn require_all(self) -> Result<(), Part>;
    /// Returns all members, which must be in memory.
    fn names(self) -> Vec<&'a [u8]>;
    /// Returns up to `count` members behind the first `skip` ones, in an order that is stable
    /// during a command; returns none only at the end.
    fn next_names(self, skip: u64, count: usize) -> Result<Vec<&'a [u8]>, Part>;
    /// Returns true if a name is known to be a member.
    fn contains(self, name: &[u8]) -> bool;
}

impl<'a> Combinable<'a> for &'a Set {
    fn is(value: &Value) -> bool {
        matches!(value, Value::Set(_))
    }

    fn of(value: &'a Value) -> Option<Self> {
        match value {
            Value::Set(set) => Some(set),
            _ => None,
        }
    }

    fn size(self) -> u64 {
        self.len()
    }

    fn require<'n>(self, names: impl Iterator<Item = &'n [u8]>) -> Result<(), Part> {
        Set::require(self, names)
    }

    fn require_all(self) -> Result<(), Part> {
        Set::require_all(self)
    }

    fn names(self) -> Vec<&'a [u8]> {
        self.members()
    }

    fn next_names(self, skip: u64, count: usize) -> Result<Vec<&'a [u8]>, Part> {
        if skip == 0 {
            self.require_some(count)?;
        }
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let names: Vec<&[u8]> = self.iter().skip(skip).take(count).collect();
        if names.is_empty() {
            // No member is left in memory: the end is reached only if all of them are there.
            Set::require_all(self)?;
        }
        Ok(names)
    }

    fn contains(self, name: &[u8]) -> bool {
        Set::contains(self, name) == Ok(true)
    }
}

/// A key and the collection that it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a, M> {
    pub db: u32,
    pub key: &'a [u8],
    pub members: M,
}

/// Ratio of a set's size to the number of looked-up names below which the whole set is loaded
/// instead of each name by itself.
const MANY: u64 = 4;

/// Minimum and maximum number of members of the smallest set that an intersection with a limit
/// examines in its first step.
const BLOCK: (usize, usize) = (512, 8192);

impl<'a, M: Combinable<'a>> Source<'a, M> {
    /// Returns all members.
    fn names(&self) -> Result<Vec<&'a [u8]>, Fault> {
        self.members.require_all().or_load(self.db, self.key)?;
        Ok(self.members.names())
    }

    /// Returns the names that are members or, with `!inside`, those that are not.
    fn filter<'n>(&self, names: Vec<&'n [u8]>, inside: bool) -> Result<Vec<&'n [u8]>, Fault> {
        let is_many = (names.len() as u64).saturating_mul(MANY) > self.members.size();
        let known = match is_many {
            true => self.members.require_all(),
            false => self.members.require(names.iter().copied()),
        };
        known.or_load(self.db, self.key)?;
        Ok(names.into_iter().filter(|name| self.members.contains(name) == inside).collect())
    }
}

/// Returns the source of each key; `None` for a key that does not exist.
pub(crate) fn sources<'a, M: Combinable<'a>>(
    store: &'a mut Store,
    db: u32,
    keys: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<Vec<Option<Source<'a, M>>>, Fault> {
    for key in keys.clone() {
        if store.entry(db, key)?.is_some_and(|entry| !M::is(&entry.value)) {
            return Err(Fault::WrongType);
        }
    }
    let store = &*store;
    let source = |key| {
        let members = M::of(&store.found(db, key)?.value)?;
        Some(Source { db, key, members })
    };
    Ok(keys.map(source).collect())
}

/// Returns the smallest source and the others, by size; `None` if a key does not exist.
pub(crate) fn smallest_first<'a, M: Combinable<'a>>(
    sources: &[Option<Source<'a, M>>],
) -> Option<(Source<'a, M>, Vec<Source<'a, M>>)> {
    let mut sources: Vec<Source<'a, M>> = sources.iter().copied().collect::<Option<_>>()?;
    sources.sort_by_key(|source| source.members.size());
    let mut sources = sources.into_iter();
    Some((sources.next()?, sources.collect()))
}

/// Returns the members common to all sources, in the order of the smallest. Afterwards they are in
/// memory in every source.
fn inter<'a, M: Combinable<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, others)) = smallest_first(sources) else { return Ok(Vec::new()) };
    let names = first.names()?;
    others.iter().try_fold(names, |names, other| other.filter(names, true))
}

/// Returns the members of any source.
fn union<'a, M: Combinable<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for source in sources.iter().flatten() {
        names.extend(source.names()?.into_iter().filter(|name| seen.insert(*name)));
    }
    Ok(names)
}

/// Returns the first source of a difference and those of the others that exist; `None` if the
/// difference is empty whatever they contain.
pub(crate) fn difference_sources<'a, M: Combinable<'a>>(
    sources: &[Option<Source<'a, M>>],
) -> Option<(Source<'a, M>, Vec<Source<'a, M>>)> {
    let (first, others) = sources.split_first()?;
    let first = (*first)?;
    let others: Vec<Source<'a, M>> = others.iter().copied().flatten().collect();
    (!others.iter().any(|other| other.key == first.key)).then_some((first, others))
}

/// Returns true if removing the others' members from the first source's is less work than looking
/// each member of the first up in all others. The criterion is that of Redis.
pub(crate) fn subtracts_union<'a, M: Combinable<'a>>(
    first: Source<'a, M>,
    others: &[Source<'a, M>],
) -> bool {
    let len = first.members.size();
    let sum: u64 = others.iter().map(|other| other.members.size()).sum();
    len * (others.len() as u64 + 1) / 2 > len + sum
}

/// Returns the members of the first source that are in none of the others.
fn diff<'a, M: Combinable<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, mut others)) = difference_sources(sources) else { return Ok(Vec::new()) };
    let names = first.names()?;
    if subtracts_union(first, &others) {
        let taken = union(&others.into_iter().map(Some).collect::<Vec<_>>())?;
        let taken: HashSet<&[u8]> = taken.into_iter().collect();
        return Ok(names.into_iter().filter(|name| !taken.contains(name)).collect());
    }
    others.sort_by_key(|other| std::cmp::Reverse(other.members.size()));
    others.iter().try_fold(names, |names, other| other.filter(names, false))
}

/// Returns the members of the combined sources.
pub(crate) fn combined<'a, M: Combinable<'a>>(
    op: SetOperation,
    sources: &[Option<Source<'a, M>>],
) -> Result<Vec<&'a [u8]>, Fault> {
    match op {
        SetOperation::Inter => inter(sources),
        SetOperation::Union => union(sources),
        SetOperation::Diff => diff(sources),
    }
}

/// Returns the number of members common to all sources, at most `limit` unless that is 0. With a
/// limit, members are loaded in steps until it is reached.
pub(crate) fn count_inter<'a, M: Combinable<'a>>(
    sources: &[Option<Source<'a, M>>],
    limit: u64,
) -> Result<usize, Fault> {
    if limit == 0 {
        return Ok(inter(sources)?.len());
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let Some((first, others)) = smallest_first(sources) else { return Ok(0) };
    let mut block = limit.clamp(BLOCK.0, BLOCK.1);
    let (mut seen, mut found) = (0, 0);
    loop {
        let names = first.members.next_names(seen, block).or_load(first.db, first.key)?;
        if names.is_empty() {
            return Ok(found);
        }
        seen += names.len() as u64;
        let left = others.iter().try_fold(names, |names, other| other.filter(names, true))?;
        found += left.len();
        if found >= limit {
            return Ok(limit);
        }
        block = block.saturating_mul(2);
    }
}
