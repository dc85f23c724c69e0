//! Ordered reads over pending rows and the engine: the keyspace for SCAN, the expiry index.

use crate::encoding::{Row, RowKey, prefix_range, row};
use crate::engine::Engine;
pub use crate::keyspace::{Cursor, ScanKey};
use crate::partition::Partition;
use crate::value::decode_entry;
use anyhow::Result;
use std::collections::BTreeMap;

/// Length of the head of a meta row's key: SCAN's cursor tells only heads apart.
const HEAD: usize = 13;

/// Pending rows of each map that a read of the expiry index copies, for each row that it is to find: the
/// others are behind what it reads.
const PENDING_PER_DUE: usize = 2;

/// Keys of one shard; `next` is `None` after the last ones.
#[derive(Clone, Debug, Default)]
pub struct ScanPage {
    pub keys: Vec<ScanKey>,
    pub next: Option<Cursor>,
}

type MetaOverlay = BTreeMap<Box<[u8]>, Option<Box<[u8]>>>;

/// A scan of one shard, planned on its worker.
pub struct ScanPlan {
    engine: Engine,
    overlay: MetaOverlay,
    /// Rows beyond this head belong to the next page.
    horizon: Option<Vec<u8>>,
    range: std::ops::Range<Vec<u8>>,
    limit: usize,
}

impl Partition {
    /// Plans to scan the keys of a database in one shard from a position on: about `limit` keys.
    pub fn plan_scan(&self, db: u32, shard: u16, from: Cursor, limit: usize) -> Option<ScanPlan> {
        let slots = self.store.layout().slots_of(shard);
        let generation = self.store.row_generation(db, shard);
        let shard = self.shards.get(&shard)?;
        let from = from.max(Cursor { slot: slots.start, hash48: 0 });
        let mut start = Vec::new();
        RowKey::meta_prefix(&mut start, generation, from.slot, from.hash48);
        let mut end = Vec::new();
        RowKey::meta_prefix(&mut end, generation, slots.end, 0);
        let mut overlay = MetaOverlay::new();
        let mut horizon: Option<Vec<u8>> = None;
        let maps: Vec<_> = shard.maps().collect();
        for map in maps.into_iter().rev() {
            let (rows, more) = map.meta_from(generation, &start, from.slot, limit.max(1));
            if more && let Some((last, _)) = rows.last() {
                let head = last[..HEAD].to_vec();
                horizon = Some(horizon.map_or(head.clone(), |h| h.min(head)));
            }
            overlay.extend(rows);
        }
        let engine = shard.engine().clone();
        Some(ScanPlan { engine, overlay, horizon, range: start..end, limit: limit.max(1) })
    }

    /// Begins a pass over the expiry index of a shard up to `until_ms`, and returns the time from
    /// which it starts. Times that earlier passes have handled are skipped, unless rows were put
    /// there since.
    pub fn begin_due(&mut self, shard: u16, until_ms: u64) -> u64 {
        self.shards.get_mut(&shard).map_or(u64::MAX, |shard| shard.begin_due(until_ms))
    }

    /// Ends a pass that began at `from_ms` but did not finish: the next one begins there again.
    pub fn abort_due(&mut self, shard: u16, from_ms: u64) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.abort_due(from_ms);
        }
    }

    /// Plans to find the expiry index rows of one shard up to `now_ms`, from a position on.
    pub fn plan_due(
        &self,
        shard: u16,
        from: &DueCursor,
        now_ms: u64,
        limit: usize,
    ) -> Option<DuePlan> {
        let live = self.store.row_generations(shard);
        let shard = self.shards.get(&shard)?;
        let mut range = from.0.clone()..DueCursor::at(now_ms.saturating_add(1)).0;
        let mut overlay = BTreeMap::new();
        let maps: Vec<_> = shard.maps().collect();
        let most = limit.saturating_mul(PENDING_PER_DUE);
        let mut is_cut = false;
        for map in maps.into_iter().rev() {
            let next = {
                let mut rows = map.times_in(&range);
                overlay.extend(rows.by_ref().take(most).map(|(key, put)| (key.to_vec(), put)));
                rows.next().map(|(key, _)| key.to_vec())
            };
            is_cut |= next.is_some();
            range.end = next.unwrap_or(range.end);
        }
        overlay.retain(|key, _| *key < range.end);
        let engine = shard.engine().clone();
        Some(DuePlan { is_cut, ..DuePlan::new(engine, overlay, range, limit, live) })
    }
}

impl ScanPlan {
    /// Runs the scan; must run on the background runtime.
    pub async fn run(mut self) -> Result<ScanPage> {
        // Each deleted row may hide one of the engine.
        let limit = self.limit + self.overlay.values().filter(|value| value.is_none()).count();
        if let Some(horizon) = &self.horizon {
            let end = prefix_range(horizon).end;
            self.range.end = end.min(std::mem::take(&mut self.range.end));
        }
        let mut rows = self.engine.scan(self.range.clone(), limit).await?;
        if rows.len() == limit
            && let Some((last, _)) = rows.last()
        {
            // A group of equal hashes is never cut.
            let head = last[..HEAD].to_vec();
            let rest = [last, &[0][..]].concat()..prefix_range(&head).end;
            rows.extend(self.engine.scan(rest, usize::MAX).await?);
            self.horizon = Some(self.horizon.map_or(head.clone(), |h| h.min(head)));
        }
        for (key, value) in rows {
            self.overlay.entry((*key).into()).or_insert_with(|| Some((*value).into()));
        }
        let mut page = ScanPage::default();
        let mut last = Vec::new();
        for (key, value) in self.overlay {
            if self.horizon.as_ref().is_some_and(|horizon| key[..HEAD] > horizon[..]) {
                break;
            }
            let Some(value) = value else { continue };
            if page.keys.len() >= self.limit && key[..HEAD] != last {
                self.horizon = Some(last);
                break;
            }
            last = key[..HEAD].to_vec();
            let Some(Row::Meta { key, .. }) = Row::parse(&key) else { continue };
            let entry = decode_entry(key, 0, &value)?;
            page.keys.push(ScanKey {
                key: key.into(),
                type_name: entry.value.type_name(),
                expire_at_ms: entry.expire_at_ms,
            });
        }
        if let Some(horizon) = self.horizon
            && let Some(Row::Meta { slot, hash48, .. }) = Row::parse(&horizon)
        {
            page.next = Some(Cursor { slot, hash48 }.next());
        }
        Ok(page)
    }
}

/// An expiry that is due.
#[derive(Clone, Debug)]
pub struct DueExpiry {
    /// That of the row: see [`Store::db_of_row`](crate::Store::db_of_row).
    pub generation: u32,
    pub key: Box<[u8]>,
    pub at_ms: u64,
    /// True if it is the earliest expiry of the key's fields, not that of the key.
    pub fields: bool,
}

/// A position in the expiry index.
#[derive(Clone, Debug)]
pub struct DueCursor(Vec<u8>);

impl DueCursor {
    /// Returns the position before all expiries at a time.
    pub fn at(at_ms: u64) -> Self {
        Self([&[row::TIME], &at_ms.to_be_bytes()[..]].concat())
    }

    /// Returns the position before the row of a key, and those behind it.
    pub(crate) fn of(key: Vec<u8>) -> Self {
        Self(key)
    }

    /// Returns its place among the rows.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the position right behind a row.
    pub(crate) fn behind(key: &[u8]) -> Self {
        Self([key, &[0]].concat())
    }
}

/// A read of the expiry index, planned on the shard's worker.
pub struct DuePlan {
    engine: Engine,
    overlay: BTreeMap<Vec<u8>, bool>,
    range: std::ops::Range<Vec<u8>>,
    /// True if there are pending rows behind the range.
    is_cut: bool,
    limit: usize,
    /// The generations of the databases in the shard; rows of others are left to the sweep.
    live: Vec<u32>,
}

impl DuePlan {
    /// Creates a read of rows; `overlay` has those that are pending, and true for those that are put.
    pub(crate) fn new(
        engine: Engine,
        overlay: BTreeMap<Vec<u8>, bool>,
        range: std::ops::Range<Vec<u8>>,
        limit: usize,
        live: Vec<u32>,
    ) -> Self {
        Self { engine, overlay, range, is_cut: false, limit, live }
    }

    /// Reads; must run on the background runtime. Returns the due rows, earliest first, and the
    /// position of the rest, if there may be more.
    pub async fn run(mut self) -> Result<(Vec<DueExpiry>, Option<DueCursor>)> {
        let mut due = Vec::new();
        loop {
            let rows = self.engine.scan(self.range.clone(), self.limit).await?;
            let all = rows.len() < self.limit;
            let next = rows.last().map(|(key, _)| DueCursor::behind(key));
            for (key, _) in rows {
                self.overlay.entry(key.to_vec()).or_insert(true);
            }
            let rest = match next.filter(|_| !all) {
                Some(next) => {
                    self.range.start = next.0;
                    self.overlay.split_off(&self.range.start)
                }
                None => BTreeMap::new(),
            };
            let within = std::mem::replace(&mut self.overlay, rest);
            for (key, _) in within.into_iter().filter(|(_, put)| *put) {
                due.extend(self.due(&key));
                if due.len() >= self.limit {
                    return Ok((due, Some(DueCursor::behind(&key))));
                }
            }
            if all {
                let rest = self.is_cut.then_some(DueCursor(self.range.end));
                return Ok((due, rest));
            }
        }
    }

    /// Decodes a row; `None` if its database is gone.
    fn due(&self, key: &[u8]) -> Option<DueExpiry> {
        match Row::parse(key)? {
            Row::Time { at_ms, generation, fields, key, .. } if self.live.contains(&generation) => {
                Some(DueExpiry { generation, key: key.into(), at_ms, fields })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
impl DuePlan {
    /// Returns the number of pending rows that it has.
    pub(crate) fn pending(&self) -> usize {
        self.overlay.len()
    }
}
