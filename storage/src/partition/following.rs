//! Follows records of other processes in shards that these own.
//!
//! A record is applied under the locks of the keys that it touches, as a command that writes them would
//! be: a value that is being loaded must not come from before the record. Its rows join the pending ones,
//! and the entries of its keys leave the memory.

use super::{Partition, Stay};
use crate::encoding::{Op, OpReader, Row};
use crate::journal::Lsn;
use crate::need::Key;
use crate::shard::Shard;
use crate::store::RemovedEntries;

impl Partition {
    /// Returns the keys that operations on a shard touch; `None`: all keys of the shard, because it gets
    /// another generation.
    pub fn touched(&self, shard: u16, ops: &[u8]) -> Option<Vec<Key>> {
        let mut keys = Vec::new();
        for op in OpReader::new(ops) {
            let key = match op {
                Op::Put { key, .. } | Op::Delete { key, .. } => key,
                Op::Generation { .. } => return None,
                Op::Resize { .. } => continue,
            };
            let Some(Row::Meta { generation, key, .. }) = Row::parse(key) else { continue };
            let db = (0..self.store.databases())
                .find(|db| self.store.row_generation(*db, shard) == generation);
            keys.extend(db.map(|db| (db, Box::from(key))));
        }
        Some(keys)
    }

    /// Applies the operations of a record on a shard of another process. `keys`: those that it touches.
    pub fn follow(&mut self, (shard, lsn): (u16, Lsn), ops: &[u8], keys: &[Key]) {
        let Some(shard) = self.shards.get_mut(&shard).filter(|shard| shard.is_mirrored()) else {
            return;
        };
        shard.merge(lsn, ops);
        for (db, key) in keys {
            self.store.forget(*db, key);
        }
    }

    /// Applies the operations of a record by which a shard gets other generations: its entries leave the
    /// memory, and are returned. No command may run meanwhile.
    pub fn follow_flush(&mut self, stay: Stay, lsn: Lsn, ops: &[u8]) -> RemovedEntries {
        let Ok(mut detached) = self.detach(stay.shard) else { return RemovedEntries::default() };
        let entries = detached.take_entries();
        let mut shard = detached.into_shard();
        shard.merge(lsn, ops);
        if self.attach(shard).is_ok()
            && let Some(shard) = self.shards.get_mut(&stay.shard)
        {
            shard.stay = stay.number;
        }
        entries
    }

    /// Exchanges a shard for one with the same records, whose engine is newer. Entries stay in memory. No
    /// command may run meanwhile.
    ///
    /// # Errors
    /// If none of that number is here, or if it has other generations.
    pub fn exchange(&mut self, mut shard: Shard) -> Result<Shard, Box<Shard>> {
        let id = shard.id;
        match self.shards.get_mut(&id) {
            Some(old)
                if old.is_mirrored() && old.generations().live == shard.generations().live =>
            {
                shard.stay = old.stay;
                self.store.set_presence(id, shard.presence());
                Ok(std::mem::replace(old, shard))
            }
            _ => Err(Box::new(shard)),
        }
    }
}
