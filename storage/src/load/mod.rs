//! Cold reads: pending rows first, then the engine, on the background runtime.
//!
//! A plan is made on the worker, which takes the pending rows; the engine is read in the
//! background. The keys stay locked meanwhile, so the rows that were found do not become stale.
//! Rounds are closed first, so that pending rows and engine together have every change.

mod range;
mod volume;

use crate::encoding::RowKey;
use crate::engine::Engine;
use crate::engine::points::{OnDisk, Point, Points};
use crate::need::{ElementRange, IndexPiece, Need, Page, Part, PointReads};
use crate::partition::Partition;
use crate::shard::Shard;
use crate::slot::{KeyHash, NotOwned};
use crate::store::Store;
use crate::value::{BigStr, EarliestExpiries, Entry, Str, Value, decode_entry};
use anyhow::{Context, Result};
use bytes::Bytes;
use range::RangeWork;
use std::collections::HashSet;

/// Tasks that read at the same time, and the items that each of them reads.
const PARALLEL: usize = 16;
const PER_TASK: usize = 8;

/// Rows that a plan looks for in the engines' files; it has the others read from the disk, although
/// the system may have them in memory.
const IN_PLACE: usize = 64;

/// One thing to load.
struct LoadItem {
    need: Need,
    at: KeyHash,
    engine: Engine,
    work: Work,
}

enum Work {
    /// The meta row.
    Meta(RowWork),
    /// Some element rows, each with its name (or chunk number).
    Elements(Vec<(Box<[u8]>, RowWork)>),
    /// Element rows of a version in a range.
    Range(RangeWork),
}

/// One row to load.
enum RowWork {
    /// Its value is known, or that there is none.
    Known(Option<Bytes>),
    /// It has to be read from the disk, as that row.
    OnDisk(Vec<u8>, OnDisk),
    /// It has to be read by the engine, as that row.
    InEngine(Vec<u8>),
}

/// A plan of reads.
pub struct LoadPlan {
    items: Vec<LoadItem>,
    reads: PointReads,
    /// Number of further rows to look for in place.
    tries: usize,
}

/// The rows found for one need.
enum LoadedRows {
    /// The meta row's value.
    Meta(Option<Bytes>),
    /// Elements by name (or chunk number) with their rows' values.
    Elements(Vec<(Box<[u8]>, Option<Bytes>)>),
    /// All element rows: element and value. The first ones may have been applied already.
    All {
        rows: Vec<(Bytes, Bytes)>,
        applied: usize,
    },
    Page(Page),
    Index(ElementRange, Vec<IndexPiece>),
    /// The earliest expiries in the rows of a version.
    Expiries(u64, EarliestExpiries),
}

/// Result of a [`LoadPlan`].
pub struct Loaded {
    found: Result<Vec<(Need, KeyHash, LoadedRows)>>,
    reads: PointReads,
}

impl Partition {
    /// Plans to load the needs.
    ///
    /// # Errors
    /// If one is of a key of a shard that is not attached here.
    pub fn plan_load(&mut self, needs: Vec<Need>) -> Result<LoadPlan, NotOwned> {
        let items = Vec::with_capacity(needs.len());
        let mut plan = LoadPlan { items, reads: PointReads::default(), tries: IN_PLACE };
        for need in needs {
            if let Some(item) = self.plan_one(need, &mut plan)? {
                plan.items.push(item);
            }
        }
        Ok(plan)
    }

    /// Loads the needs at once, if all their rows are in memory: pending, or in files that the
    /// system has there. Else returns the needs.
    ///
    /// Nothing can change meanwhile, so the keys need not be locked; but no other command may hold
    /// locks on them: it might be reading the same rows. Changes of the open round are not in the
    /// way: a value knows the elements that the round has changed until the round is closed, and
    /// does not ask for them.
    pub fn load_in_place(&mut self, needs: Vec<Need>) -> Result<(), Vec<Need>> {
        let is_point =
            |need: &Need| matches!(need.part, None | Some(Part::Fields(_) | Part::Chunks(_)));
        if !needs.iter().all(is_point) {
            return Err(needs);
        }
        let Ok(plan) = self.plan_load(needs.clone()) else { return Err(needs) };
        if plan.items.iter().all(LoadItem::is_known) && self.finish_load(plan.into_loaded()).is_ok()
        {
            return Ok(());
        }
        Err(needs)
    }

    /// Plans to load one need; `None`: its value is not in memory any more, or has no such part.
    fn plan_one(&mut self, need: Need, plan: &mut LoadPlan) -> Result<Option<LoadItem>, NotOwned> {
        let Self { store, shards, .. } = self;
        let at = store.layout().key_hash(&need.key);
        let shard = shards.get(&store.layout().shard_of(at.slot));
        let shard = shard.ok_or(NotOwned { slot: at.slot })?;
        let work = match &need.part {
            None => Some(meta_of(store, shard, (need.db, at, &need.key), plan)),
            Some(part) => part_of(store, shard, (need.db, at, &need.key), part, plan),
        };
        let engine = shard.engine().clone();
        Ok(work.map(|work| LoadItem { need, at, engine, work }))
    }

    /// Applies up to `most` rows of a big collection all of which was read: other commands may run
    /// before the next. Returns false if there is nothing to apply before
    /// [`finish_load`](Self::finish_load).
    ///
    /// # Errors
    /// If a row is damaged.
    pub fn apply_some(&mut self, loaded: &mut Loaded, most: usize) -> Result<bool> {
        for (need, at, found) in loaded.found.iter_mut().flatten() {
            let LoadedRows::All { rows, applied } = found else { continue };
            if rows.len() - *applied <= most || self.store.lacks(at.slot) {
                continue;
            }
            let entry = self.store.entry_for_part(need.db, &need.key);
            let Some(collection) = entry.and_then(|entry| entry.value.collection_mut()) else {
                continue;
            };
            if *applied > collection.known() {
                continue;
            }
            let some = collection.apply_some(&rows[*applied..*applied + most]);
            let some = some.with_context(|| reading(need))?;
            if some > 0 {
                *applied += some;
                self.store.recount(need.db, &need.key);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies loaded rows to the store.
    pub fn finish_load(&mut self, loaded: Loaded) -> Result<()> {
        self.reads.add(loaded.reads);
        for (need, at, found) in loaded.found? {
            self.apply_one(&need, at, found).with_context(|| reading(&need))?;
        }
        Ok(())
    }

    fn apply_one(&mut self, need: &Need, at: KeyHash, found: LoadedRows) -> Result<()> {
        if self.store.lacks(at.slot) {
            return Err(NotOwned { slot: at.slot }.into());
        }
        match found {
            LoadedRows::Meta(None) => {
                self.store.apply_loaded(need.db, Entry::absent(&need.key, at.hash))
            }
            LoadedRows::Meta(Some(row)) => {
                self.store.apply_loaded(need.db, decode_entry(&need.key, at.hash, &row)?);
            }
            part => {
                let Some(entry) = self.store.entry_for_part(need.db, &need.key) else {
                    return Ok(());
                };
                match &mut entry.value {
                    Value::Absent => {}
                    Value::Str(Str::Big(big)) => apply_chunks(big, part)?,
                    value => apply_elements(value, part)?,
                }
                self.store.recount(need.db, &need.key);
            }
        }
        Ok(())
    }
}

impl Store {
    /// Returns those of some names, each once, for which it is unknown whether a key's value has an
    /// element of that name.
    pub fn unknown<'a>(
        &mut self,
        db: u32,
        key: &[u8],
        names: impl Iterator<Item = &'a [u8]>,
    ) -> Vec<Box<[u8]>> {
        let Some(collection) = self.entry_for_part(db, key).and_then(|e| e.value.collection())
        else {
            return Vec::new();
        };
        let mut seen = HashSet::new();
        let unknown = names.filter(|name| !collection.knows(name) && seen.insert(*name));
        unknown.map(Into::into).collect()
    }
}

/// Returns the context of an error.
fn reading(need: &Need) -> String {
    format!("reading the key {:?}", String::from_utf8_lossy(&need.key))
}

/// Returns the read of the meta row of a key.
fn meta_of(
    store: &Store,
    shard: &Shard,
    (db, at, key): (u32, KeyHash, &[u8]),
    plan: &mut LoadPlan,
) -> Work {
    let generation = store.row_generation(db, shard.id);
    Work::Meta(match shard.pending_meta(generation, at, key) {
        Some(value) => RowWork::Known(value.map(Bytes::copy_from_slice)),
        None => {
            let mut row = Vec::new();
            RowKey::meta(&mut row, generation, at, key);
            plan.look_for(&shard.engine().points(), row)
        }
    })
}

/// Returns the reads of a part of a value, if the value is in memory and has such a part.
fn part_of(
    store: &mut Store,
    shard: &Shard,
    (db, at, key): (u32, KeyHash, &[u8]),
    part: &Part,
    plan: &mut LoadPlan,
) -> Option<Work> {
    let layout = store.layout().clone();
    let value = &store.entry_for_part(db, key)?.value;
    let version = value.version();
    let mut head = Vec::new();
    RowKey::elements(&mut head, at.slot, version);
    Some(match part {
        Part::Fields(names) => {
            let collection = value.collection()?;
            let elements = names.iter().map(|n| (n.clone(), collection.element_key(n, &layout)));
            named(shard, &head, version, elements, plan)
        }
        Part::Chunks(chunks) => {
            let elements = chunks.iter().map(|n| n.to_be_bytes());
            named(shard, &head, version, elements.map(|n| (n[..].into(), n.to_vec())), plan)
        }
        ranged => Work::Range(RangeWork::new(shard, head, version, ranged)?),
    })
}

/// Returns the reads of some element rows: name and element key of each.
fn named(
    shard: &Shard,
    head: &[u8],
    version: u64,
    elements: impl Iterator<Item = (Box<[u8]>, Vec<u8>)>,
    plan: &mut LoadPlan,
) -> Work {
    let points = shard.engine().points();
    let mut work = |(name, element): (Box<[u8]>, Vec<u8>)| {
        let row = match shard.pending_element(version, &element) {
            Some(value) => RowWork::Known(value.map(Bytes::copy_from_slice)),
            None => plan.look_for(&points, [head, &element].concat()),
        };
        (name, row)
    };
    Work::Elements(elements.map(&mut work).collect())
}

fn apply_chunks(big: &mut BigStr, found: LoadedRows) -> Result<()> {
    let number = |name: &[u8]| -> Result<u32> {
        Ok(u32::from_be_bytes(name.try_into().context("a chunk's number is damaged")?))
    };
    match found {
        LoadedRows::Elements(elements) => {
            for (name, row) in elements {
                big.apply_loaded(number(&name)?, row.as_deref().unwrap_or_default());
            }
        }
        LoadedRows::All { rows, .. } => {
            for (element, row) in rows {
                big.apply_loaded(number(&element)?, &row);
            }
            big.complete = true;
        }
        // The need was for a collection that is not here any more.
        _ => {}
    }
    Ok(())
}

fn apply_elements(value: &mut Value, found: LoadedRows) -> Result<()> {
    let collection = value.collection_mut().context("the value has no elements")?;
    match found {
        LoadedRows::Elements(elements) => {
            for (name, row) in elements {
                collection.apply_named(&name, row.as_deref())?;
            }
        }
        // The value has left memory meanwhile; whoever needs it asks again.
        LoadedRows::All { applied, .. } if applied > collection.known() => {}
        LoadedRows::All { mut rows, applied } => {
            rows.drain(..applied);
            collection.apply_all(rows)?;
        }
        LoadedRows::Page(page) => collection.apply_page(page)?,
        LoadedRows::Index(range, pieces) => collection.apply_index(&range, pieces)?,
        LoadedRows::Expiries(version, found) if version == collection.version() => {
            collection.apply_expiries(found);
        }
        LoadedRows::Expiries(..) => {}
        LoadedRows::Meta(_) => {}
    }
    Ok(())
}

impl LoadPlan {
    /// Looks for a row that is not pending.
    fn look_for(&mut self, points: &Points, key: Vec<u8>) -> RowWork {
        let tries = self.tries > 0;
        self.tries = self.tries.saturating_sub(1);
        match points.find(&key, tries, |value| value.map(Bytes::copy_from_slice)) {
            Point::Known(value) => {
                self.reads.cached += 1;
                RowWork::Known(value)
            }
            Point::OnDisk(place) => RowWork::OnDisk(key, place),
            Point::Elsewhere => RowWork::InEngine(key),
        }
    }

    /// Reads the parts that are not known yet: from the disk, then by the engine on the background runtime.
    pub async fn run(mut self, background: &tokio::runtime::Handle) -> Loaded {
        let mut reads = self.reads;
        if let Err(error) = self.read_from_disk(&mut reads).await {
            return Loaded { found: Err(error), reads };
        }
        if self.items.iter().all(LoadItem::is_known) {
            return Loaded { reads, ..self.into_loaded() };
        }
        let rest = self.items.iter_mut().flat_map(|item| item.work.rows());
        reads.elsewhere += rest.filter(|row| matches!(row, RowWork::InEngine(_))).count() as u64;
        let reading = background.spawn(each(self.items, LoadItem::read));
        Loaded { found: reading.await.unwrap_or_else(|e| Err(e.into())), reads }
    }

    /// Returns the rows, which are all known.
    fn into_loaded(self) -> Loaded {
        let known = self.items.into_iter().map(LoadItem::known);
        Loaded {
            found: known.collect::<Option<_>>().context("a row is missing"),
            reads: self.reads,
        }
    }

    /// Reads the rows that have to come from the disk. Those that it cannot read are left to the
    /// engine.
    async fn read_from_disk(&mut self, reads: &mut PointReads) -> Result<()> {
        let Some(engine) = self.items.first().map(|item| item.engine.clone()) else {
            return Ok(());
        };
        let mut rows: Vec<&mut RowWork> =
            self.items.iter_mut().flat_map(|item| item.work.rows()).collect();
        let mut wanted = Vec::new();
        for (number, row) in rows.iter_mut().enumerate() {
            match std::mem::replace(*row, RowWork::Known(None)) {
                RowWork::OnDisk(key, place) => {
                    **row = RowWork::InEngine(key.clone());
                    wanted.push((number, key, place));
                }
                other => **row = other,
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        for (number, found) in engine.read_from_disk(wanted).await? {
            if let Some(value) = found {
                reads.from_disk += 1;
                *rows[number] = RowWork::Known(value);
            }
        }
        Ok(())
    }
}

/// Runs `read` for each item: a few in sequence in each of a few concurrent tasks. The results come
/// in any order.
async fn each<T, R, F>(items: Vec<T>, read: fn(T) -> F) -> Result<Vec<R>>
where
    T: Send + 'static,
    R: Send + 'static,
    F: Future<Output = Result<R>> + Send + 'static,
{
    if items.len() <= PER_TASK {
        return one_by_one(items, read).await;
    }
    let mut found = Vec::with_capacity(items.len());
    let mut running = tokio::task::JoinSet::new();
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        if running.len() >= PARALLEL
            && let Some(some) = running.join_next().await
        {
            found.extend(some??);
        }
        running.spawn(one_by_one(items.by_ref().take(PER_TASK).collect(), read));
    }
    while let Some(some) = running.join_next().await {
        found.extend(some??);
    }
    Ok(found)
}

async fn one_by_one<T, R, F>(items: Vec<T>, read: fn(T) -> F) -> Result<Vec<R>>
where
    F: Future<Output = Result<R>>,
{
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        found.push(read(item).await?);
    }
    Ok(found)
}

impl Work {
    /// Returns its single rows.
    fn rows(&mut self) -> Vec<&mut RowWork> {
        match self {
            Self::Meta(row) => vec![row],
            Self::Elements(rows) => rows.iter_mut().map(|(_, row)| row).collect(),
            Self::Range(_) => Vec::new(),
        }
    }
}

impl RowWork {
    fn known(self) -> Option<Option<Bytes>> {
        match self {
            Self::Known(value) => Some(value),
            Self::OnDisk(..) | Self::InEngine(_) => None,
        }
    }

    async fn read(self, engine: &Engine) -> Result<Option<Bytes>> {
        match self {
            Self::Known(value) => Ok(value),
            Self::OnDisk(key, _) | Self::InEngine(key) => engine.get(&key).await,
        }
    }
}

async fn read_element(
    (engine, (name, row)): (Engine, (Box<[u8]>, RowWork)),
) -> Result<(Box<[u8]>, Option<Bytes>)> {
    Ok((name, row.read(&engine).await?))
}

impl LoadItem {
    /// Returns true if nothing has to be read for it.
    fn is_known(&self) -> bool {
        let is_known = |row: &RowWork| matches!(row, RowWork::Known(_));
        match &self.work {
            Work::Meta(row) => is_known(row),
            Work::Elements(rows) => rows.iter().all(|(_, row)| is_known(row)),
            Work::Range(_) => false,
        }
    }

    /// Returns its rows, if all are known.
    fn known(self) -> Option<(Need, KeyHash, LoadedRows)> {
        let found = match self.work {
            Work::Meta(row) => LoadedRows::Meta(row.known()?),
            Work::Elements(rows) => {
                let known = rows.into_iter().map(|(name, row)| Some((name, row.known()?)));
                LoadedRows::Elements(known.collect::<Option<_>>()?)
            }
            Work::Range(_) => return None,
        };
        Some((self.need, self.at, found))
    }

    async fn read(self) -> Result<(Need, KeyHash, LoadedRows)> {
        let Self { need, at, engine, work } = self;
        let found = match work {
            Work::Meta(row) => LoadedRows::Meta(row.read(&engine).await?),
            Work::Elements(rows) => {
                let rows = rows.into_iter().map(|row| (engine.clone(), row));
                LoadedRows::Elements(each(rows.collect(), read_element).await?)
            }
            Work::Range(range) => range.read(&engine).await?,
        };
        Ok((need, at, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::scope::tests::store;
    use crate::value::{Set, SetEncoding, Typed};

    fn unknown(store: &mut Store, names: &[&str]) -> Vec<String> {
        let found = store.unknown(0, b"k", names.iter().map(|name| name.as_bytes()));
        found.iter().map(|name| String::from_utf8_lossy(name).into()).collect()
    }

    #[test]
    fn only_unknown_parts_are_read_ahead() {
        let mut store = store();
        assert!(unknown(&mut store, &["a"]).is_empty(), "there is no such key");
        let mut entry = Entry::absent(b"k", 0);
        entry.value = Set::from_meta(9, (3, 0), SetEncoding::Table).into_value();
        store.apply_loaded(0, entry);
        assert_eq!(unknown(&mut store, &["a", "b", "a"]), ["a", "b"]);
        let apply_loaded = |store: &mut Store, name: &[u8], is_there: bool| {
            let entry = store.entry_for_part(0, b"k").unwrap();
            let rows = vec![(name.into(), is_there.then(Bytes::new))];
            apply_elements(&mut entry.value, LoadedRows::Elements(rows)).unwrap();
        };
        apply_loaded(&mut store, b"a", false);
        assert_eq!(unknown(&mut store, &["a", "b"]), ["b"]);
        // A change since the read is newer than the row.
        store.entry_mut(0, b"k").unwrap().typed_mut::<Set>().unwrap().add(b"a");
        apply_loaded(&mut store, b"a", false);
        let set = store.typed::<Set>(0, b"k").unwrap().unwrap();
        assert_eq!((set.contains(b"a"), set.len()), (Ok(true), 4));
        store.entry_mut(0, b"k").unwrap().clear();
        assert!(unknown(&mut store, &["b"]).is_empty());
    }
}
