//! Cold reads: pending rows first, then the engine, on the background runtime.
//!
//! A plan is made on the worker, which takes the pending rows; the engine is read in the
//! background. The keys stay locked meanwhile, so the rows that were found do not become stale.
//! Rounds are closed first, so that pending rows and engine together have every change.

mod range;

use crate::encoding::{RowKey, decode_entry};
use crate::engine::Engine;
use crate::need::{ElementRange, IndexPiece, Need, Page, Part};
use crate::partition::Partition;
use crate::shard::Shard;
use crate::slot::KeyHash;
use crate::store::Store;
use crate::value::{BigStr, Entry, Str, Value};
use anyhow::{Context, Result};
use bytes::Bytes;
use range::RangeWork;
use std::collections::HashSet;

/// Tasks that read at the same time, and the items that each of them reads.
const PARALLEL: usize = 16;
const PER_TASK: usize = 8;

/// One thing to load.
struct LoadItem {
    need: Need,
    at: KeyHash,
    engine: Engine,
    work: Work,
}

enum Work {
    /// The meta row: its pending value (`Some`), or the row key to read.
    Meta { pending: Option<Option<Vec<u8>>>, row_key: Vec<u8> },
    /// Some element rows: name or chunk, row key, pending value.
    Elements(Vec<ElementWork>),
    /// Element rows of a version in a range.
    Range(RangeWork),
}

struct ElementWork {
    name: Box<[u8]>,
    row_key: Vec<u8>,
    pending: Option<Option<Vec<u8>>>,
}

/// A plan of reads.
pub struct LoadPlan {
    items: Vec<LoadItem>,
}

/// The rows found for one need.
enum LoadedRows {
    /// The meta row's value.
    Meta(Option<Bytes>),
    /// Elements by name (or chunk number) with their rows' values.
    Elements(Vec<(Box<[u8]>, Option<Bytes>)>),
    /// All element rows: element and value.
    All(Vec<(Bytes, Bytes)>),
    Page(Page),
    Index(ElementRange, Vec<IndexPiece>),
}

/// Result of a [`LoadPlan`].
pub struct Loaded {
    found: Result<Vec<(Need, KeyHash, LoadedRows)>>,
}

impl Partition {
    /// Plans to load the needs. Needs of keys of other partitions are left out.
    pub fn plan_load(&mut self, needs: Vec<Need>) -> LoadPlan {
        let items = needs.into_iter().filter_map(|need| self.plan_one(need)).collect();
        LoadPlan { items }
    }

    fn plan_one(&mut self, need: Need) -> Option<LoadItem> {
        let at = self.store.layout().key_hash(&need.key);
        let shard = self.shards.get(&self.store.layout().shard_of(at.slot))?;
        let engine = shard.engine().clone();
        let Some(part) = &need.part else {
            let generation = self.store.generation(need.db);
            let pending = shard.pending_meta(generation, at, &need.key);
            let pending = pending.map(|value| value.map(<[u8]>::to_vec));
            let mut row_key = Vec::new();
            RowKey::meta(&mut row_key, generation, at, &need.key);
            return Some(LoadItem { at, engine, work: Work::Meta { pending, row_key }, need });
        };
        let layout = self.store.layout().clone();
        let value = &self.store.entry_for_part(need.db, &need.key)?.value;
        let version = value.version();
        let mut head = Vec::new();
        RowKey::elements(&mut head, at.slot, version);
        let work = match part {
            Part::Fields(names) => {
                let collection = value.collection()?;
                let elements =
                    names.iter().map(|n| (n.clone(), collection.element_key(n, &layout)));
                named(shard, &head, version, elements)
            }
            Part::Chunks(chunks) => {
                let elements = chunks.iter().map(|n| n.to_be_bytes());
                named(shard, &head, version, elements.map(|n| (n[..].into(), n.to_vec())))
            }
            ranged => Work::Range(RangeWork::new(shard, head, version, ranged)?),
        };
        Some(LoadItem { need, at, engine, work })
    }

    /// Applies loaded rows to the store.
    pub fn finish_load(&mut self, loaded: Loaded) -> Result<()> {
        for (need, at, found) in loaded.found? {
            self.apply_one(&need, at, found).with_context(|| {
                format!("reading the key {:?}", String::from_utf8_lossy(&need.key))
            })?;
        }
        Ok(())
    }

    fn apply_one(&mut self, need: &Need, at: KeyHash, found: LoadedRows) -> Result<()> {
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

/// Returns the reads of some element rows: name and element key of each.
fn named(
    shard: &Shard,
    head: &[u8],
    version: u64,
    elements: impl Iterator<Item = (Box<[u8]>, Vec<u8>)>,
) -> Work {
    let work = |(name, element): (Box<[u8]>, Vec<u8>)| ElementWork {
        name,
        pending: shard.pending_element(version, &element).map(|v| v.map(<[u8]>::to_vec)),
        row_key: [head, &element].concat(),
    };
    Work::Elements(elements.map(work).collect())
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
        LoadedRows::All(rows) => {
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
        LoadedRows::All(rows) => collection.apply_all(rows)?,
        LoadedRows::Page(page) => collection.apply_page(page)?,
        LoadedRows::Index(range, pieces) => collection.apply_index(&range, pieces)?,
        LoadedRows::Meta(_) => {}
    }
    Ok(())
}

impl LoadPlan {
    /// Reads on the background runtime.
    pub async fn run(self, background: &tokio::runtime::Handle) -> Loaded {
        let pending_only =
            |item: &LoadItem| matches!(&item.work, Work::Meta { pending: Some(_), .. });
        if self.items.iter().all(pending_only) {
            return Loaded { found: each(self.items, LoadItem::read).await };
        }
        let reading = background.spawn(each(self.items, LoadItem::read));
        Loaded { found: reading.await.unwrap_or_else(|e| Err(e.into())) }
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

async fn read_element(
    (engine, element): (Engine, ElementWork),
) -> Result<(Box<[u8]>, Option<Bytes>)> {
    let value = match element.pending {
        Some(value) => value.map(Into::into),
        None => engine.get(&element.row_key).await?,
    };
    Ok((element.name, value))
}

impl LoadItem {
    async fn read(self) -> Result<(Need, KeyHash, LoadedRows)> {
        let Self { need, at, engine, work } = self;
        let found = match work {
            Work::Meta { pending: Some(value), .. } => LoadedRows::Meta(value.map(Into::into)),
            Work::Meta { pending: None, row_key } => LoadedRows::Meta(engine.get(&row_key).await?),
            Work::Elements(elements) => {
                let elements = elements.into_iter().map(|element| (engine.clone(), element));
                LoadedRows::Elements(each(elements.collect(), read_element).await?)
            }
            Work::Range(range) => range.read(&engine).await?,
        };
        Ok((need, at, found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::tests::store;
    use crate::value::{Set, SetEncoding, Typed};

    fn unknown(store: &mut Store, names: &[&str]) -> Vec<String> {
        let found = store.unknown(0, b"k", names.iter().map(|name| name.as_bytes()));
        found.iter().map(|name| String::from_utf8_lossy(name).into()).collect()
    }

    #[test]
    fn only_what_is_not_known_is_read_ahead() {
        let mut store = store();
        assert!(unknown(&mut store, &["a"]).is_empty(), "there is no such key");
        let mut entry = Entry::absent(b"k", 0);
        entry.value = Set::from_meta(9, 3, SetEncoding::Table).into_value();
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
