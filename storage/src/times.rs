//! Reads of the expiry index for eviction: rows in the order of their times, due or not.

use crate::encoding::{Row, RowKey, row};
use crate::partition::Partition;
use crate::scan::{DueCursor, DueExpiry, DuePlan};
use crate::slot::slot_of;
use std::collections::BTreeMap;

/// Rows that are read at once.
const READ: usize = 1024;

/// A key of the beginning of the expiry index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FirstToExpire {
    pub at_ms: u64,
    pub db: u32,
    pub key: Box<[u8]>,
    shard: u16,
    /// Key of the row.
    row: Box<[u8]>,
}

impl Partition {
    /// Plans to read about `limit` rows of a shard's expiry index from a position on. Also returns
    /// the position that it reaches, if that is not the end.
    pub fn plan_times(
        &self,
        shard: u16,
        from: &DueCursor,
        limit: usize,
    ) -> Option<(DuePlan, Option<DueCursor>)> {
        let live = self.store.row_generations(shard);
        let shard = self.shards.get(&shard)?;
        let mut range = from.bytes().to_vec()..vec![row::TIME + 1];
        let mut horizon = None;
        let mut overlay = BTreeMap::new();
        let maps: Vec<_> = shard.maps().collect();
        for map in maps.into_iter().rev() {
            let rows: Vec<(Vec<u8>, bool)> =
                map.times_in(&range).take(limit).map(|(key, put)| (key.to_vec(), put)).collect();
            if rows.len() == limit
                && let Some((last, _)) = rows.last()
            {
                // The map has more rows behind it, which belong to a later read.
                let end = DueCursor::behind(last);
                range.end = end.bytes().to_vec();
                horizon = Some(end);
                overlay.retain(|key: &Vec<u8>, _| *key < range.end);
            }
            overlay.extend(rows);
        }
        Some((DuePlan::new(shard.engine().clone(), overlay, range, limit, live), horizon))
    }

    /// Returns up to `count` keys of a shard that expire first. They may be all that are wanted, or
    /// all of the shard; if not, the second value is false, and further rows must be read first.
    pub fn first_to_expire(&mut self, shard: u16, count: usize) -> (Vec<FirstToExpire>, bool) {
        let (mut found, mut dead) = (Vec::new(), Vec::new());
        let Some(of) = self.shards.get_mut(&shard) else { return (found, true) };
        let first = of.first_times.get_or_insert_default();
        for row in first.rows() {
            let Some(Row::Time { at_ms, generation, key, .. }) = Row::parse(row) else { continue };
            match self.store.db_of_row(generation, key) {
                Some(db) => {
                    let (key, row) = (key.into(), row.into());
                    found.push(FirstToExpire { at_ms, db, key, shard, row });
                }
                None => dead.push(Box::<[u8]>::from(row)),
            }
            if found.len() == count {
                break;
            }
        }
        dead.iter().for_each(|row| first.remove(row));
        let is_all = found.len() >= count || first.is_complete();
        (found, is_all)
    }

    /// Notes that a row of [`first_to_expire`](Self::first_to_expire) is not in the index any more.
    pub fn forget_first(&mut self, gone: &FirstToExpire) {
        let shard = self.shards.get_mut(&gone.shard);
        if let Some(first) = shard.and_then(|shard| shard.first_times.as_mut()) {
            first.remove(&gone.row);
        }
    }

    /// Forgets the first rows of all expiry indexes: they are read again when they are asked for.
    pub fn forget_first_times(&mut self) {
        self.shards.values_mut().for_each(|shard| shard.first_times = None);
    }

    /// Plans to read further rows for [`first_to_expire`](Self::first_to_expire). The position is
    /// that which the read reaches, if it is not the end.
    pub fn plan_first_times(&mut self, shard: u16) -> Option<(DuePlan, Option<DueCursor>)> {
        let first = &mut self.shards.get_mut(&shard)?.first_times;
        let from = DueCursor::of(first.get_or_insert_default().begin_read());
        self.plan_times(shard, &from, READ)
    }

    /// Ends that read with the rows that it has found, and the position that it has reached; `None`:
    /// it has failed.
    pub fn end_first_times(
        &mut self,
        shard: u16,
        read: Option<(Vec<DueExpiry>, Option<DueCursor>)>,
    ) {
        let shard = self.shards.get_mut(&shard);
        let Some(first) = shard.and_then(|shard| shard.first_times.as_mut()) else { return };
        match read {
            Some((rows, to)) => {
                let rows = rows.into_iter().filter(|row| !row.fields);
                let rows = rows.map(|row| {
                    let slot = slot_of(&row.key);
                    RowKey::time(row.at_ms, slot, row.generation, false, &row.key)
                });
                first.end_read(rows, to.as_ref().map(DueCursor::bytes));
            }
            None => first.abort_read(),
        }
    }

    /// Returns the number of keys in these shards, of keys with an expiry, and the size of all keys
    /// in units.
    pub fn data_set(&self) -> DataSetSize {
        let mut size = DataSetSize::default();
        for shard in self.shards.values() {
            let (keys, expires) = shard.counts();
            size.keys += keys;
            size.expires += expires;
            size.units += shard.units();
        }
        size
    }
}

/// Size of the keys of some shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSetSize {
    pub keys: u64,
    /// Keys with an expiry.
    pub expires: u64,
    /// In units of [`SIZE_UNIT`](crate::value::SIZE_UNIT).
    pub units: u64,
}
