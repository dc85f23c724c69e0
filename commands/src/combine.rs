//! Several sets at once: what is in all, in any, or in none but the first of them.
//!
//! Of a set that is only partly in memory no more is asked for than the others leave possible: an
//! intersection walks the smallest set and asks the others for what is left of it.

use flagstone_storage::Store;
use flagstone_storage::store::{Fault, OrLoad, Part};
use flagstone_storage::value::{Set, Value};
use std::collections::HashSet;

/// How sets are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Inter,
    Union,
    Diff,
}

/// What can be combined.
pub(crate) trait Members<'a>: Copy {
    /// Whether a value is of this kind.
    fn is(value: &Value) -> bool;
    /// The value, if it is of this kind.
    fn of(value: &'a Value) -> Option<Self>;
    /// Number of members.
    fn size(self) -> u64;
    /// Checks that all `names` are known.
    fn require<'n>(self, names: impl Iterator<Item = &'n [u8]>) -> Result<(), Part>;
    /// Checks that everything is in memory.
    fn require_all(self) -> Result<(), Part>;
    /// All members, when all are in memory.
    fn names(self) -> Vec<&'a [u8]>;
    /// Up to `count` members behind the `skip` first ones in an order that stays for a command;
    /// none only at the end.
    fn some(self, skip: u64, count: usize) -> Result<Vec<&'a [u8]>, Part>;
    /// Whether a name is known to be a member.
    fn contains(self, name: &[u8]) -> bool;
}

impl<'a> Members<'a> for &'a Set {
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

    fn some(self, skip: u64, count: usize) -> Result<Vec<&'a [u8]>, Part> {
        if skip == 0 {
            self.require_some(count)?;
        }
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let names: Vec<&[u8]> = self.iter().skip(skip).take(count).collect();
        if names.is_empty() {
            // Of what is in memory it is too few.
            Set::require_all(self)?;
        }
        Ok(names)
    }

    fn contains(self, name: &[u8]) -> bool {
        Set::contains(self, name) == Ok(true)
    }
}

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a, M> {
    pub db: u32,
    pub key: &'a [u8],
    pub members: M,
}

/// From names for a part like this of a set's members on, the whole set is read instead of each
/// name by itself.
const MANY: u64 = 4;

/// Members of the smallest set that an intersection with a limit looks at first, at least and at
/// most.
const BLOCK: (usize, usize) = (512, 8192);

impl<'a, M: Members<'a>> Source<'a, M> {
    /// All members.
    fn names(&self) -> Result<Vec<&'a [u8]>, Fault> {
        self.members.require_all().or_load(self.db, self.key)?;
        Ok(self.members.names())
    }

    /// Those of the names that are members, or with `!inside`, that are not.
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

/// The sources of some keys; `None` for a key that does not exist.
pub(crate) fn sources<'a, M: Members<'a>>(
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

/// The smallest source and the others, by size; `None` if a key does not exist.
pub(crate) fn smallest_first<'a, M: Members<'a>>(
    sources: &[Option<Source<'a, M>>],
) -> Option<(Source<'a, M>, Vec<Source<'a, M>>)> {
    let mut sources: Vec<Source<'a, M>> = sources.iter().copied().collect::<Option<_>>()?;
    sources.sort_by_key(|source| source.members.size());
    let mut sources = sources.into_iter();
    Some((sources.next()?, sources.collect()))
}

/// The members that are in all of the sources, in the order of the smallest. They are known in all
/// of them.
fn inter<'a, M: Members<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, others)) = smallest_first(sources) else { return Ok(Vec::new()) };
    let names = first.names()?;
    others.iter().try_fold(names, |names, other| other.filter(names, true))
}

/// The members that are in any of the sources.
fn union<'a, M: Members<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let mut seen = HashSet::new();
    let mut names = Vec::new();
    for source in sources.iter().flatten() {
        names.extend(source.names()?.into_iter().filter(|name| seen.insert(*name)));
    }
    Ok(names)
}

/// What a difference is made of: the first source, and those that exist of the others; `None` if it
/// is empty whatever is in them.
pub(crate) fn minuend<'a, M: Members<'a>>(
    sources: &[Option<Source<'a, M>>],
) -> Option<(Source<'a, M>, Vec<Source<'a, M>>)> {
    let (first, others) = sources.split_first()?;
    let first = (*first)?;
    let others: Vec<Source<'a, M>> = others.iter().copied().flatten().collect();
    (!others.iter().any(|other| other.key == first.key)).then_some((first, others))
}

/// Whether it is less work to take the members of the others from those of the first than to look
/// for each member of the first in all others; as Redis decides it.
pub(crate) fn takes_away<'a, M: Members<'a>>(
    first: Source<'a, M>,
    others: &[Source<'a, M>],
) -> bool {
    let len = first.members.size();
    let sum: u64 = others.iter().map(|other| other.members.size()).sum();
    len * (others.len() as u64 + 1) / 2 > len + sum
}

/// The members of the first source that are in none of the others.
fn diff<'a, M: Members<'a>>(sources: &[Option<Source<'a, M>>]) -> Result<Vec<&'a [u8]>, Fault> {
    let Some((first, mut others)) = minuend(sources) else { return Ok(Vec::new()) };
    let names = first.names()?;
    if takes_away(first, &others) {
        let taken = union(&others.into_iter().map(Some).collect::<Vec<_>>())?;
        let taken: HashSet<&[u8]> = taken.into_iter().collect();
        return Ok(names.into_iter().filter(|name| !taken.contains(name)).collect());
    }
    others.sort_by_key(|other| std::cmp::Reverse(other.members.size()));
    others.iter().try_fold(names, |names, other| other.filter(names, false))
}

/// The members that the sources combine to.
pub(crate) fn combined<'a, M: Members<'a>>(
    op: Op,
    sources: &[Option<Source<'a, M>>],
) -> Result<Vec<&'a [u8]>, Fault> {
    match op {
        Op::Inter => inter(sources),
        Op::Union => union(sources),
        Op::Diff => diff(sources),
    }
}

/// The number of members that are in all sources, or `limit`, unless it is 0, if there are more.
/// As long as it may do with less, it does not ask for all.
pub(crate) fn count_inter<'a, M: Members<'a>>(
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
        let some = first.members.some(seen, block).or_load(first.db, first.key)?;
        if some.is_empty() {
            return Ok(found);
        }
        seen += some.len() as u64;
        let left = others.iter().try_fold(some, |some, other| other.filter(some, true))?;
        found += left.len();
        if found >= limit {
            return Ok(limit);
        }
        block = block.saturating_mul(2);
    }
}
