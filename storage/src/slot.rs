//! Slots, shards and the hash of a key.

use crate::cursor::CursorCipher;

/// Number of hash slots, as Redis Cluster has them.
pub const SLOTS: u16 = 16384;

/// Number of sub-tables of the slot space in memory, so that none pauses to grow.
pub const SUB_TABLES: usize = 256;

const CRC16: [u16; 256] = crc16_table();

/// Builds the table of CRC16-XMODEM (polynomial 0x1021), which the Redis Cluster specification
/// requires.
const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

/// Returns the part of a key that decides its slot: the bytes between the first `{` and the next
/// `}` if there are any, else the whole key.
fn hashtag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|&b| b == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// Returns the slot of a key (0–16383).
pub fn slot_of(key: &[u8]) -> u16 {
    let crc = hashtag(key)
        .iter()
        .fold(0u16, |crc, &b| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ b)]);
    crc % SLOTS
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

/// The division of the slot space into shards, and the seed of key hashes; fixed at creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub shards: u16,
    pub seed: u64,
}

impl Layout {
    /// Returns the shard that owns a slot: shards are contiguous slot ranges of nearly equal size.
    pub fn shard_of(&self, slot: u16) -> u16 {
        (u32::from(slot) * u32::from(self.shards) / u32::from(SLOTS)) as u16
    }

    /// Returns the slots of a shard.
    pub fn slots_of(&self, shard: u16) -> std::ops::Range<u16> {
        let first =
            |s: u16| (u32::from(s) * u32::from(SLOTS)).div_ceil(u32::from(self.shards)) as u16;
        first(shard)..first(shard + 1)
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
    fn shards_cover_the_slots_once() {
        for shards in [1u16, 2, 3, 5, 7, 16, 100] {
            let layout = Layout { shards, seed: 0 };
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
}
