//! Cold reads: pending rows first, then the engine, on the background runtime.
//!
//! A plan is made on the worker, where it takes what is pending; what it must ask the engine for
//! it does in the background. The keys are locked meanwhile, so nothing that was found grows old.

use crate::encoding::{Row, RowKey, decode_entry, decode_field};
use crate::engine::{Engine, prefix_range};
use crate::partition::Partition;
use crate::slot::KeyHash;
use crate::store::{Need, Part};
use crate::value::{Entry, Str, Value};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Rows of one scan; a value of more is scanned on.
const SCAN_ROWS: usize = 16_384;

/// Tasks that read at the same time, and what each reads.
const PARALLEL: usize = 16;
const PER_TASK: usize = 8;

/// One thing to load.
struct Item {
    need: Need,
    at: KeyHash,
    engine: Engine,
    work: Work,
}

enum Work {
    /// The meta row: pending (`Some`), or to be got by its key.
    Meta { pending: Option<Option<Vec<u8>>>, row_key: Vec<u8> },
    /// Some element rows: name or chunk, row key, pending value.
    Elements(Vec<ElementWork>),
    /// All element rows of a version; what is pending of them, newest value.
    All { head: Vec<u8>, pending: BTreeMap<Vec<u8>, Option<Vec<u8>>> },
}

struct ElementWork {
    name: Box<[u8]>,
    row_key: Vec<u8>,
    pending: Option<Option<Vec<u8>>>,
}

/// What is to be read.
pub struct LoadPlan {
    items: Vec<Item>,
}

/// What was found for one need.
enum Found {
    /// The meta row's value.
    Meta(Option<Bytes>),
    /// Elements by name (or chunk number) with their rows' values.
    Elements(Vec<(Box<[u8]>, Option<Bytes>)>),
    /// All element rows: element and value.
    All(Vec<(Bytes, Bytes)>),
}

/// What was read.
pub struct Loaded {
    found: Result<Vec<(Need, KeyHash, Found)>>,
}

impl Partition {
    /// Plans to load what is needed. Needs of keys that are not this partition's are left out.
    pub fn plan_load(&mut self, needs: Vec<Need>) -> LoadPlan {
        let items = needs.into_iter().filter_map(|need| self.plan_one(need)).collect();
        LoadPlan { items }
    }

    fn plan_one(&mut self, need: Need) -> Option<Item> {
        let at = self.store.layout().key_hash(&need.key);
        let shard = self.shards.get(&self.store.layout().shard_of(at.slot))?;
        let engine = shard.engine().clone();
        let Some(part) = &need.part else {
            let generation = self.store.generation(need.db);
            let pending = shard.pending_meta(generation, at, &need.key);
            let pending = pending.map(|value| value.map(<[u8]>::to_vec));
            let mut row_key = Vec::new();
            RowKey::meta(&mut row_key, generation, at, &need.key);
            return Some(Item { at, engine, work: Work::Meta { pending, row_key }, need });
        };
        let layout = self.store.layout().clone();
        let version = self.store.entry_for_part(need.db, &need.key)?.value.version();
        let mut head = Vec::new();
        RowKey::elements(&mut head, at.slot, version);
        let element = |name: &[u8], element: Vec<u8>| ElementWork {
            name: name.into(),
            pending: shard.pending_element(version, &element).map(|v| v.map(<[u8]>::to_vec)),
            row_key: [&head[..], &element].concat(),
        };
        let work = match part {
            Part::Fields(names) => Work::Elements(
                names
                    .iter()
                    .map(|n| element(n, RowKey::named_element(layout.hash(n), n)))
                    .collect(),
            ),
            Part::Chunks(chunks) => Work::Elements(
                chunks
                    .iter()
                    .map(|n| element(&n.to_be_bytes(), n.to_be_bytes().to_vec()))
                    .collect(),
            ),
            Part::All => {
                let mut pending = BTreeMap::new();
                let maps: Vec<_> = shard.maps().collect();
                for map in maps.into_iter().rev() {
                    for (element, value) in map.elements(version) {
                        pending.insert(element.to_vec(), value.map(<[u8]>::to_vec));
                    }
                }
                Work::All { head: head.clone(), pending }
            }
        };
        Some(Item { need, at, engine, work })
    }

    /// Takes in what was read.
    pub fn finish_load(&mut self, loaded: Loaded) -> Result<()> {
        for (need, at, found) in loaded.found? {
            self.learn_one(&need, at, found).with_context(|| {
                format!("reading the key {:?}", String::from_utf8_lossy(&need.key))
            })?;
        }
        Ok(())
    }

    fn learn_one(&mut self, need: &Need, at: KeyHash, found: Found) -> Result<()> {
        match found {
            Found::Meta(None) => self.store.learn(need.db, Entry::absent(&need.key, at.hash)),
            Found::Meta(Some(row)) => {
                self.store.learn(need.db, decode_entry(&need.key, at.hash, &row)?);
            }
            Found::Elements(elements) => {
                let Some(entry) = self.store.entry_for_part(need.db, &need.key) else {
                    return Ok(());
                };
                for (name, row) in elements {
                    learn_element(&mut entry.value, &name, row.as_deref())?;
                }
                self.store.recount(need.db, &need.key);
            }
            Found::All(rows) => {
                let Some(entry) = self.store.entry_for_part(need.db, &need.key) else {
                    return Ok(());
                };
                for (element, row) in rows {
                    learn_scanned(&mut entry.value, &element, &row)?;
                }
                entry.value.learnt_all();
                self.store.recount(need.db, &need.key);
            }
        }
        Ok(())
    }
}

fn learn_element(value: &mut Value, name: &[u8], row: Option<&[u8]>) -> Result<()> {
    match value {
        Value::Hash(hash) => {
            let field = row.map(decode_field).transpose()?.map(|(_, field)| field);
            hash.learn(name, field);
        }
        Value::Str(Str::Big(big)) => {
            let n = u32::from_be_bytes(name.try_into().context("a chunk's number is damaged")?);
            big.learn(n, row.unwrap_or_default());
        }
        Value::Absent | Value::Str(_) => {}
    }
    Ok(())
}

fn learn_scanned(value: &mut Value, element: &[u8], row: &[u8]) -> Result<()> {
    match value {
        Value::Hash(hash) => {
            let (kept, field) = decode_field(row)?;
            let name = kept.or_else(|| Row::plain_name(element));
            hash.learn(name.context("an element row has no name")?, Some(field));
            Ok(())
        }
        _ => learn_element(value, element, Some(row)),
    }
}

impl LoadPlan {
    /// Reads, on the background runtime.
    pub async fn run(self, background: &tokio::runtime::Handle) -> Loaded {
        let pending_only = |item: &Item| matches!(&item.work, Work::Meta { pending: Some(_), .. });
        if self.items.iter().all(pending_only) {
            return Loaded { found: read_some(self.items).await };
        }
        let reading = background.spawn(read_all(self.items));
        Loaded { found: reading.await.unwrap_or_else(|e| Err(e.into())) }
    }
}

/// Reads everything: a few items after one another in each of a few tasks at the same time.
async fn read_all(items: Vec<Item>) -> Result<Vec<(Need, KeyHash, Found)>> {
    if items.len() <= PER_TASK {
        return read_some(items).await;
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
        running.spawn(read_some(items.by_ref().take(PER_TASK).collect()));
    }
    while let Some(some) = running.join_next().await {
        found.extend(some??);
    }
    Ok(found)
}

async fn read_some(items: Vec<Item>) -> Result<Vec<(Need, KeyHash, Found)>> {
    let mut found = Vec::with_capacity(items.len());
    for item in items {
        found.push(item.read().await?);
    }
    Ok(found)
}

impl Item {
    async fn read(self) -> Result<(Need, KeyHash, Found)> {
        let Self { need, at, engine, work } = self;
        let found = match work {
            Work::Meta { pending: Some(value), .. } => Found::Meta(value.map(Into::into)),
            Work::Meta { pending: None, row_key } => Found::Meta(engine.get(&row_key).await?),
            Work::Elements(elements) => {
                let mut found = Vec::with_capacity(elements.len());
                for element in elements {
                    let value = match element.pending {
                        Some(value) => value.map(Into::into),
                        None => engine.get(&element.row_key).await?,
                    };
                    found.push((element.name, value));
                }
                Found::Elements(found)
            }
            Work::All { head, pending } => Found::All(read_version(&engine, &head, pending).await?),
        };
        Ok((need, at, found))
    }
}

/// All element rows of a version, pending values over the engine's.
async fn read_version(
    engine: &Engine,
    head: &[u8],
    mut pending: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
) -> Result<Vec<(Bytes, Bytes)>> {
    let mut out = Vec::new();
    let mut range = prefix_range(head);
    loop {
        let rows = engine.scan(range.clone(), SCAN_ROWS).await?;
        let more = rows.len() == SCAN_ROWS;
        if let Some((last, _)) = rows.last() {
            range.start = [last, &[0][..]].concat();
        }
        for (key, value) in rows {
            let element = key.slice(head.len()..);
            match pending.remove(&element[..]) {
                None => out.push((element, value)),
                Some(Some(newer)) => out.push((element, newer.into())),
                Some(None) => {}
            }
        }
        if !more {
            break;
        }
    }
    out.extend(pending.into_iter().filter_map(|(k, v)| Some((k.into(), v?.into()))));
    Ok(out)
}
