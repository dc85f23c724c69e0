//! Reads of the expiry index for eviction: rows in the order of their times, due or not.

use crate::encoding::row;
use crate::partition::Partition;
use crate::scan::{DueCursor, DuePlan};
use std::collections::BTreeMap;

impl Partition {
    /// Plans to read about `limit` rows of a shard's expiry index from a position on. Also returns
    /// the position that it reaches, if that is not the end.
    pub fn plan_times(
        &self,
        shard: u16,
        from: &DueCursor,
        limit: usize,
    ) -> Option<(DuePlan, Option<DueCursor>)> {
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
        let live = self.store.generations();
        Some((DuePlan::new(shard.engine().clone(), overlay, range, limit, live), horizon))
    }

    /// Returns a lower bound of the times in a shard's expiry index; rows that are put from now on
    /// lower it.
    pub fn first_time(&mut self, shard: u16) -> u64 {
        self.shards.get_mut(&shard).map_or(u64::MAX, |shard| shard.begin_times())
    }

    /// Notes that a shard's index has no row before a time, except those put since
    /// [`first_time`](Self::first_time).
    pub fn note_first_time(&mut self, shard: u16, at_ms: u64) {
        if let Some(shard) = self.shards.get_mut(&shard) {
            shard.end_times(at_ms);
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
