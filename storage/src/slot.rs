//! Slots, shards and the hash of a key.

use crate::cursor::CursorCipher;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};

/// Number of hash slots, as Redis Cluster has them.
pub const SLOTS: u16 = 16384;

/// Number of sub-tables of the slot space in memory, so that none pauses to grow.
pub const SUB_TABLES: usize = 256;

/// Bytes of a key that one step of the checksum takes.
const STEP: usize = 8;

/// Tables of CRC16-XMODEM (polynomial 0x1021), which the Redis Cluster specification requires:
/// `CRC16[n][byte]` is the checksum of the byte with `n` zero bytes behind it. So the bytes of a
/// step are looked up independently of each other (M. Kounavis, F. Berry, "A Systematic Approach to
/// Building High Performance, Software-based, CRC Generators", 2005: slicing by 8).
static CRC16: [[u16; 256]; STEP] = crc16_tables();

const fn crc16_tables() -> [[u16; 256]; STEP] {
    let mut tables = [[0u16; 256]; STEP];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 * STEP {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
            if bit % 8 == 0 {
                tables[bit / 8 - 1][i] = crc;
            }
        }
        i += 1;
    }
    tables
}

/// Returns the CRC16-XMODEM of some bytes.
fn crc16(bytes: &[u8]) -> u16 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let crc = steps.iter().fold(0u16, |crc, step| {
        let [high, low] = crc.to_be_bytes();
        let bytes =
            [step[0] ^ high, step[1] ^ low, step[2], step[3], step[4], step[5], step[6], step[7]];
        // The first byte has the most bytes behind it.
        let each = bytes.iter().zip(CRC16.iter().rev());
        each.fold(0, |crc, (&byte, table)| crc ^ table[usize::from(byte)])
    });
    rest.iter().fold(crc, |crc, &byte| (crc << 8) ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// Returns the part of a key that decides its slot: the bytes between the first `{` and the next
/// `}` if there are any, else the whole key.
fn hashtag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&b| b == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// Returns the slot of a key (0–16383).
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(hashtag(key)) % SLOTS
}

/// Returns the sub-table of a slot (0–255).
pub fn sub_table(slot: u16) -> usize {
    usize::from(slot) * SUB_TABLES / usize::from(SLOTS)
}

/// Address of a key: its slot and its keyed 64-bit hash, computed once per command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash {
    pub slot: u16,
    pub hash: u64,
}

impl KeyHash {
    /// Returns the 48 bits of the hash that rows and SCAN's cursor carry.
    pub fn hash48(self) -> u64 {
        self.hash >> 16
    }
}

/// The slot of a key that this store, or this process, does not have: its shard is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shard of slot {slot} is not attached")]
pub struct NotOwned {
    pub slot: u16,
}

/// Maximum number of shards of a node, or of a cluster.
pub const MAX_SHARDS: u16 = 1024;

/// The division of the slot space into shards, and the seed of key hashes. Both are fixed at creation, but
/// shards of a cluster may be split while it runs.
#[derive(Debug)]
pub struct Layout {
    /// Number of shards at creation, of nearly equal size.
    created: u16,
    pub seed: u64,
    /// The present shards, once one was split.
    split: OnceLock<SplitShards>,
}

/// Shards of unequal size.
#[derive(Debug)]
struct SplitShards {
    /// The shard of each slot.
    of_slot: Box<[AtomicU16]>,
    /// The slots of each shard.
    slots: RwLock<Vec<Range<u16>>>,
}

impl Layout {
    pub const fn new(shards: u16, seed: u64) -> Self {
        Self { created: shards, seed, split: OnceLock::new() }
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u16 {
        match self.split.get() {
            None => self.created,
            Some(split) => split.slots().len() as u16, // at most MAX_SHARDS
        }
    }

    /// Returns the shard that owns a slot: shards are contiguous slot ranges.
    #[inline]
    pub fn shard_of(&self, slot: u16) -> u16 {
        match self.split.get() {
            None => self.shard_at_creation(slot),
            Some(split) => split.of_slot[usize::from(slot)].load(Ordering::Acquire),
        }
    }

    /// Returns the slots of a shard; none if there is no such shard.
    pub fn slots_of(&self, shard: u16) -> Range<u16> {
        match self.split.get() {
            None => Self::slots_at_creation(self.created, shard),
            Some(split) => split.slots().get(usize::from(shard)).cloned().unwrap_or(0..0),
        }
    }

    /// Returns true if a shard has these slots; `None`: those at its creation.
    pub(crate) fn has_slots(&self, shard: u16, slots: Option<&Range<u16>>) -> bool {
        let present = self.slots_of(shard);
        match slots {
            Some(slots) => *slots == present,
            None => present == Self::slots_at_creation(self.created, shard),
        }
    }

    /// Returns the slots of one of some shards that have not been split.
    pub fn slots_at_creation(shards: u16, shard: u16) -> Range<u16> {
        let first = |s: u16| (u32::from(s) * u32::from(SLOTS)).div_ceil(u32::from(shards)) as u16;
        if shard < shards { first(shard)..first(shard + 1) } else { 0..0 }
    }

    /// Divides the slots anew: `slots` are those of each shard, which cover all slots once. No shard may be
    /// attached whose slots change.
    pub fn divide(&self, slots: Vec<Range<u16>>) {
        let is_new = (0..).zip(&slots).any(|(shard, slots)| self.slots_of(shard) != *slots);
        if !is_new {
            return;
        }
        let split = self.split.get_or_init(|| SplitShards {
            of_slot: (0..SLOTS).map(|slot| AtomicU16::new(self.shard_at_creation(slot))).collect(),
            slots: RwLock::new(self.all_at_creation()),
        });
        // Who finds a shard finds its slots.
        *split.slots.write().unwrap_or_else(PoisonError::into_inner) = slots.clone();
        for (shard, range) in (0..).zip(slots) {
            for slot in range {
                split.of_slot[usize::from(slot)].store(shard, Ordering::Release);
            }
        }
    }

    #[inline]
    fn shard_at_creation(&self, slot: u16) -> u16 {
        (u32::from(slot) * u32::from(self.created) / u32::from(SLOTS)) as u16
    }

    fn all_at_creation(&self) -> Vec<Range<u16>> {
        (0..self.created).map(|shard| Self::slots_at_creation(self.created, shard)).collect()
    }

    /// Returns the error that a shard is not attached: it names the first of its slots.
    pub(crate) fn not_owned(&self, shard: u16) -> NotOwned {
        NotOwned { slot: self.slots_of(shard).start }
    }

    /// Returns slot and keyed hash (XXH3) of a key.
    pub fn key_hash(&self, key: &[u8]) -> KeyHash {
        KeyHash { slot: slot_of(key), hash: self.hash(key) }
    }

    /// Returns the cipher that turns positions in the order of keyed hashes into clients' cursors.
    pub fn cursors(&self) -> CursorCipher {
        CursorCipher::new(self.seed)
    }

    /// Returns the keyed hash of a name (key, field, member).
    pub fn hash(&self, name: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64_with_seed(name, self.seed)
    }
}

impl SplitShards {
    fn slots(&self) -> RwLockReadGuard<'_, Vec<Range<u16>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(slot_of(b"123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"user1000"));
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"foo{bar}{zap}"), slot_of(b"bar"));
    }

    #[test]
    fn checksums_are_those_of_bytewise_steps() {
        let bytewise = |bytes: &[u8]| {
            let bit = |crc: u16| if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            let byte =
                |crc: u16, byte: u8| (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| bit(crc));
            bytes.iter().fold(0, |crc, &next| byte(crc, next))
        };
        let text: Vec<u8> = (0..70u8).map(|n| n.wrapping_mul(167) ^ 0x5a).collect();
        for len in 0..text.len() {
            assert_eq!(crc16(&text[..len]), bytewise(&text[..len]), "{len} bytes");
        }
    }

    #[test]
    fn shards_cover_the_slots_once() {
        for shards in [1u16, 2, 3, 5, 7, 16, 100] {
            let layout = Layout::new(shards, 0);
            let mut next = 0;
            for shard in 0..shards {
                let range = layout.slots_of(shard);
                assert_eq!(range.start, next);
                next = range.end;
                for slot in range {
                    assert_eq!(layout.shard_of(slot), shard);
                }
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn a_shard_that_is_split_keeps_its_lower_slots() {
        let layout = Layout::new(2, 0);
        layout.divide(vec![0..8192, 8192..16384]);
        assert!(layout.split.get().is_none(), "nothing has changed");
        layout.divide(vec![0..8192, 8192..10_000, 10_000..16384]);
        assert_eq!(layout.shards(), 3);
        let shards = [0, 8191, 8192, 9999, 10_000, 16383].map(|slot| layout.shard_of(slot));
        assert_eq!(shards, [0, 0, 1, 1, 2, 2]);
        assert_eq!([0, 1, 2, 3].map(|id| layout.slots_of(id).len()), [8192, 1808, 6384, 0]);
        layout.divide(vec![0..100, 8192..10_000, 10_000..16384, 100..8192]);
        assert_eq!((layout.shard_of(99), layout.shard_of(100), layout.shard_of(8192)), (0, 3, 1));
    }
}
