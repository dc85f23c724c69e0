//! Ranges of element rows: pending rows over the engine's.

use super::LoadedRows;
use crate::encoding::{get_varint, prefix_range};
use crate::engine::{Engine, ScanLimit};
use crate::need::{ElementRange, IndexBy, IndexPiece, Page, Part};
use crate::shard::Shard;
use crate::value::{EarliestExpiries, field_head};
use anyhow::{Context, Result};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Bytes of keys and values from which on a page ends, if it has the least rows that are needed.
pub(super) const PAGE_BYTES: usize = 8 << 20;

/// Least number of pending rows that a page considers: any number of them may be deleted.
const PENDING_ROWS: usize = 1024;

/// Pending rows by element: newest value, or deleted.
type ElementOverlay = BTreeMap<Vec<u8>, Option<Bytes>>;

/// Element rows of one version in a range, planned on the shard's worker.
pub(super) struct RangeWork {
    /// Common beginning of all row keys of the version.
    head: Vec<u8>,
    version: u64,
    /// The range that `pending` covers.
    range: ElementRange,
    pending: ElementOverlay,
    what: RangeRead,
}

enum RangeRead {
    All,
    Page { reverse: bool, limit: ScanLimit },
    Index { by: IndexBy },
    Expiries,
}

impl ScanLimit {
    /// Takes rows up to the limit, and returns the key of the next one, if there is one.
    fn take(
        &self,
        mut rows: impl Iterator<Item = (Vec<u8>, Option<Bytes>)>,
        into: &mut ElementOverlay,
    ) -> Option<Vec<u8>> {
        let (mut count, mut bytes) = (0, 0);
        while !self.is_reached(count, bytes) {
            let (key, value) = rows.next()?;
            bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
            count += 1;
            into.insert(key, value);
        }
        rows.next().map(|(key, _)| key)
    }
}

impl RangeWork {
    /// Plans the read of a part; `None` if the part is no range.
    pub(super) fn new(shard: &Shard, head: Vec<u8>, version: u64, part: &Part) -> Option<Self> {
        let everything = ElementRange { from: Vec::new(), to: None };
        let (range, what) = match part {
            Part::All => (everything, RangeRead::All),
            Part::Page { range, reverse, limit, least } => {
                let rows = (*limit).max(1);
                let limit = ScanLimit { rows, bytes: PAGE_BYTES, least: (*least).clamp(1, rows) };
                (range.clone(), RangeRead::Page { reverse: *reverse, limit })
            }
            Part::Index { range, by } => (range.clone(), RangeRead::Index { by: *by }),
            Part::Expiries => (everything, RangeRead::Expiries),
            Part::Fields(_) | Part::Chunks(_) => return None,
        };
        let mut work = Self { head, version, range, pending: ElementOverlay::new(), what };
        work.capture(shard);
        Some(work)
    }

    /// Copies the pending rows of the range; for a page, no more than it may need.
    fn capture(&mut self, shard: &Shard) {
        let (reverse, most) = match self.what {
            RangeRead::Page { reverse, limit } => {
                let rows = PENDING_ROWS.max(2 * limit.rows);
                (reverse, ScanLimit { rows, ..limit })
            }
            RangeRead::All | RangeRead::Index { .. } | RangeRead::Expiries => {
                (false, ScanLimit { rows: usize::MAX, bytes: usize::MAX, least: usize::MAX })
            }
        };
        let heads = matches!(self.what, RangeRead::Expiries);
        let maps: Vec<_> = shard.maps().collect();
        let mut narrowed = self.range.clone();
        for map in maps.into_iter().rev() {
            let rows = map.elements_in(self.version, &self.range);
            let copy = |(element, value): (&[u8], Option<&[u8]>)| {
                let value = value.map(|value| if heads { field_head(value) } else { value });
                (element.to_vec(), value.map(Bytes::copy_from_slice))
            };
            if reverse {
                if let Some(next) = most.take(rows.rev().map(copy), &mut self.pending) {
                    narrowed.from = narrowed.from.max([&next[..], &[0]].concat());
                }
            } else if let Some(next) = most.take(rows.map(copy), &mut self.pending) {
                narrowed.to = Some(narrowed.to.map_or(next.clone(), |to| to.min(next)));
            }
        }
        self.range = narrowed;
        self.pending.retain(|element, _| self.range.contains(element));
    }

    /// Reads; must run on the background runtime.
    pub(super) async fn read(self, engine: &Engine) -> Result<LoadedRows> {
        match self.what {
            RangeRead::All => {
                Ok(LoadedRows::All { rows: self.read_all(engine).await?, applied: 0 })
            }
            RangeRead::Page { reverse, limit } => {
                Ok(LoadedRows::Page(self.read_page(engine, reverse, limit).await?))
            }
            RangeRead::Index { by } => self.read_index(engine, by).await,
            RangeRead::Expiries => self.read_expiries(engine).await,
        }
    }

    /// Returns the row keys of a range of elements.
    fn row_range(&self, range: &ElementRange) -> std::ops::Range<Vec<u8>> {
        let start = [&self.head[..], &range.from].concat();
        let end = match &range.to {
            Some(to) => [&self.head[..], to].concat(),
            None => prefix_range(&self.head).end,
        };
        start..end
    }

    async fn read_all(mut self, engine: &Engine) -> Result<Vec<(Bytes, Bytes)>> {
        let mut out = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        self.each(engine, pending, |element, value| {
            out.push((element, value));
            Ok(())
        })
        .await?;
        Ok(out)
    }

    /// Calls `visit` for every row in order.
    async fn each(
        &self,
        engine: &Engine,
        mut pending: ElementOverlay,
        mut visit: impl FnMut(Bytes, Bytes) -> Result<()>,
    ) -> Result<()> {
        let mut range = self.row_range(&self.range);
        let mut each = |key: Bytes, value| -> Result<()> {
            let element = key.slice(self.head.len()..);
            while let Some(first) = pending.first_entry()
                && first.key()[..] < element[..]
            {
                let (element, value) = first.remove_entry();
                if let Some(value) = value {
                    visit(element.into(), value)?;
                }
            }
            match pending.remove(&element[..]) {
                None => visit(element, value),
                Some(Some(newer)) => visit(element, newer),
                Some(None) => Ok(()),
            }
        };
        loop {
            let mut visited = Ok(());
            let rest = engine.walk(range.clone(), |key, value| {
                visited = each(key, value);
                visited.is_ok()
            });
            let rest = rest.await?;
            visited?;
            let Some(rest) = rest else { break };
            range.start = rest;
        }
        for (element, value) in pending {
            if let Some(value) = value {
                visit(element.into(), value)?;
            }
        }
        Ok(())
    }

    async fn read_page(mut self, engine: &Engine, reverse: bool, limit: ScanLimit) -> Result<Page> {
        let asked = self.row_range(&self.range);
        let (rows, is_cut) = engine.scan_page(reverse, asked, limit).await?;
        if let Some((last, _)) = rows.last().filter(|_| is_cut) {
            let last = &last[self.head.len()..];
            if reverse {
                self.range.from = last.to_vec();
            } else {
                self.range.to = Some([last, &[0]].concat());
            }
        }
        let Self { head, range, mut pending, .. } = self;
        pending.retain(|element, _| range.contains(element));
        for (key, value) in rows {
            pending.entry(key[head.len()..].to_vec()).or_insert(Some(value));
        }
        let rows = pending.into_iter().filter_map(|(k, v)| Some((k.into(), v?))).collect();
        Ok(Page { range, rows })
    }

    async fn read_index(mut self, engine: &Engine, by: IndexBy) -> Result<LoadedRows> {
        let mut pieces: Vec<IndexPiece> = Vec::new();
        let pending = std::mem::take(&mut self.pending);
        self.each(engine, pending, |element, value| {
            match by {
                IndexBy::Values => {
                    let count = get_varint(&mut &value[..]).context("a row has no count")?;
                    pieces.push((element, count));
                }
                IndexBy::Rows(most) => match pieces.last_mut() {
                    Some((_, count)) if *count < most => *count += 1,
                    _ => pieces.push((Bytes::copy_from_slice(&element), 1)),
                },
            }
            Ok(())
        })
        .await?;
        Ok(LoadedRows::Index(self.range, pieces))
    }

    async fn read_expiries(mut self, engine: &Engine) -> Result<LoadedRows> {
        let mut found = EarliestExpiries::default();
        let pending = std::mem::take(&mut self.pending);
        self.each(engine, pending, |element, value| found.note_row(&element, &value)).await?;
        Ok(LoadedRows::Expiries(self.version, found))
    }
}
