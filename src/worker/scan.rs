//! Walks the keyspace in its order: by slot, then by the 48 bits of the keyed hash that rows carry.

use super::{Blocked, OwnedCommand, Request, Worker};
use crate::commands::registry;
use crate::resp::{Args, Proto};
use flagstone_storage::Entry;
use flagstone_storage::slot::{KeyHash, SLOTS, SUB_TABLES};
use std::rc::Rc;

/// Bits of the hash in a cursor's number.
const HASH_BITS: u32 = 48;

/// A place in the keyspace's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub slot: u16,
    /// The greater 48 bits of the key's hash.
    pub hash48: u64,
}

impl Cursor {
    /// Where the keyspace begins.
    pub const START: Self = Self { slot: 0, hash48: 0 };

    /// The cursor as SCAN shows it: the slot in the bits from 48 on, 62 bits in all. 0 is the
    /// start.
    pub fn number(self) -> u64 {
        u64::from(self.slot) << HASH_BITS | self.hash48
    }

    /// The cursor of a number; `None` behind the last slot.
    pub fn from_number(number: u64) -> Option<Self> {
        let slot = u16::try_from(number >> HASH_BITS).ok().filter(|&slot| slot < SLOTS)?;
        Some(Self { slot, hash48: number & ((1 << HASH_BITS) - 1) })
    }

    fn of(at: KeyHash) -> Self {
        Self { slot: at.slot, hash48: at.hash48() }
    }
}

/// A key that a scan has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanKey {
    pub key: Box<[u8]>,
    /// The type as TYPE names it.
    pub type_name: &'static str,
    /// Ms since the Unix epoch; 0: never.
    pub expire_at_ms: u64,
}

/// What a scan has found.
#[derive(Debug, Default)]
pub struct ScanPage {
    /// In the keyspace's order; expired keys are among them.
    pub keys: Vec<ScanKey>,
    /// Where to go on; `None`: this shard is done.
    pub next: Option<Cursor>,
}

impl Worker {
    /// The keys of a shard of this worker from a place on: `limit` of them, or a few more, since it
    /// never stops between keys of equal hash.
    ///
    /// # Errors
    ///
    /// The text for the client, when what the page shows could not be stored.
    pub async fn scan(
        self: &Rc<Self>,
        db: u32,
        shard: u16,
        from: Cursor,
        limit: usize,
    ) -> Result<ScanPage, String> {
        self.commit();
        let page = self.hot_page(db, shard, from, limit);
        if self.is_always() {
            let round = self.partition.borrow().appended();
            self.wait_shown(round).await.map_err(|e| e.0)?;
        }
        Ok(page)
    }

    /// The page of what is in memory.
    fn hot_page(&self, db: u32, shard: u16, from: Cursor, limit: usize) -> ScanPage {
        const SLOTS_OF_TABLE: u16 = SLOTS / SUB_TABLES as u16;
        let end = self.node.layout.slots_of(shard).end;
        let partition = self.partition.borrow();
        let mut page = ScanPage::default();
        let mut slot = from.slot;
        while slot < end {
            let table_end = (slot / SLOTS_OF_TABLE + 1) * SLOTS_OF_TABLE;
            let slots = slot..table_end.min(end);
            let mut found: Vec<(Cursor, &Entry)> = partition
                .store
                .live_entries(db, slots.clone())
                .map(|(at, entry)| (Cursor::of(at), entry))
                .filter(|(at, _)| *at >= from)
                .collect();
            found.sort_unstable_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.key().cmp(y.key())));
            let mut last = None;
            for (at, entry) in found {
                if page.keys.len() >= limit && last != Some(at) {
                    page.next = Some(at);
                    return page;
                }
                last = Some(at);
                page.keys.push(ScanKey {
                    key: entry.key().into(),
                    type_name: entry.value.type_name(),
                    expire_at_ms: entry.expire_at_ms,
                });
            }
            slot = slots.end;
        }
        page
    }

    /// How many keys a database has on this worker, expired ones included that were not yet
    /// removed, and how many of them have an expiry.
    pub async fn key_count(self: &Rc<Self>, db: u32) -> (u64, u64) {
        let partition = self.partition.borrow();
        let mut count = (0, 0);
        for (_, entry) in partition.store.live_entries(db, 0..SLOTS) {
            count.0 += 1;
            count.1 += u64::from(entry.expire_at_ms != 0);
        }
        count
    }

    /// Removes those of these keys that have expired; all of them are this worker's.
    pub(crate) async fn remove_expired(self: &Rc<Self>, db: u32, keys: Vec<Box<[u8]>>) {
        // Whoever looks an expired key up removes it.
        let Some(exists) = registry::lookup(b"exists") else { return };
        let mut bytes = exists.spec.name.as_bytes().to_vec();
        let mut ranges = vec![(0, bytes.len() as u32)];
        for key in keys {
            let start = bytes.len() as u32;
            bytes.extend_from_slice(&key);
            ranges.push((start, bytes.len() as u32));
        }
        let request = Request { db, proto: Proto::Resp2, touch: false, client: 0 };
        let command = OwnedCommand::new(exists, Args::new(&bytes, &ranges), request);
        // Its reply says nothing of interest.
        let _ = self.park(command, Blocked::Locked).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_numbers() {
        let last = Cursor { slot: SLOTS - 1, hash48: (1 << HASH_BITS) - 1 };
        for cursor in [Cursor::START, Cursor { slot: 1, hash48: 0 }, last] {
            assert_eq!(Cursor::from_number(cursor.number()), Some(cursor));
        }
        assert_eq!(Cursor::START.number(), 0);
        assert_eq!(last.number(), (1 << 62) - 1);
        assert_eq!(Cursor::from_number(1 << 62), None);
        assert_eq!(Cursor::from_number(u64::MAX), None);
    }
}
