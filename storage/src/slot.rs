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
/// shards may be split while a server runs.
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

    /// Returns the layout of shards of which some were split since the creation: `slots` are those of each
    /// shard.
    pub(crate) fn divided(created: u16, seed: u64, slots: Option<Vec<Range<u16>>>) -> Self {
        let layout = Self::new(created, seed);
        if let Some(slots) = slots {
            layout.divide(slots);
        }
        layout
    }

    /// Returns the number of shards at the creation.
    pub(crate) fn created(&self) -> u16 {
        self.created
    }

    /// Returns the slots of each shard, if any was split since the creation.
    pub(crate) fn division(&self) -> Option<Vec<Range<u16>>> {
        self.split.get().map(|split| split.slots().clone())
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

/// How a shard is to be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitPlan {
    /// The shard, which keeps its lower slots.
    pub shard: u16,
    /// The number of the shard that gets the others.
    pub into: u16,
    /// The slots of each shard then.
    division: Vec<Range<u16>>,
}

/// Reason why a shard cannot be split so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitRefusal {
    #[error("there is no shard {0}")]
    NoShard(u16),
    #[error(
        "slot {slot} is not one of shard {shard}, or its first one, which it keeps: it has {first} to {last}"
    )]
    NoSplit { shard: u16, slot: u16, first: u16, last: u16 },
    #[error("shard {0} has only one slot")]
    OneSlot(u16),
    #[error("there may be {MAX_SHARDS} shards")]
    ManyShards,
}

impl SplitPlan {
    /// Plans to split a shard so that `at` is the first slot of the new one; `None`: in its middle.
    ///
    /// # Errors
    /// If that is not possible.
    pub fn new(layout: &Layout, shard: u16, at: Option<u16>) -> Result<Self, SplitRefusal> {
        let into = layout.shards();
        if shard >= into {
            return Err(SplitRefusal::NoShard(shard));
        }
        if into >= MAX_SHARDS {
            return Err(SplitRefusal::ManyShards);
        }
        let Range { start, end } = layout.slots_of(shard);
        if end - start < 2 {
            return Err(SplitRefusal::OneSlot(shard));
        }
        let at = at.unwrap_or(start + (end - start) / 2);
        if at <= start || at >= end {
            return Err(SplitRefusal::NoSplit { shard, slot: at, first: start, last: end - 1 });
        }
        let mut division: Vec<_> = (0..into).map(|id| layout.slots_of(id)).collect();
        division[usize::from(shard)] = start..at;
        division.push(at..end);
        Ok(Self { shard, into, division })
    }

    /// Returns the slots that the shard keeps.
    pub(crate) fn lower(&self) -> Range<u16> {
        self.division[usize::from(self.shard)].clone()
    }

    /// Returns the slots of the new shard.
    pub(crate) fn upper(&self) -> Range<u16> {
        self.division[usize::from(self.into)].clone()
    }

    pub(crate) fn division(&self) -> &[Range<u16>] {
        &self.division
    }
}

/// Checks the slots of each shard, of which there were `created` at first.
///
/// # Errors
/// If the shards do not have all slots, each once, or are too few or too many.
pub(crate) fn check_division(created: u16, slots: &[Range<u16>]) -> Result<(), &'static str> {
    let mut ascending: Vec<&Range<u16>> = slots.iter().collect();
    ascending.sort_by_key(|slots| slots.start);
    let mut next = 0;
    for slots in ascending {
        if slots.start != next || slots.is_empty() {
            return Err("the shards do not have all slots, each once");
        }
        next = slots.end;
    }
    if next != SLOTS {
        return Err("the shards do not have all slots, each once");
    }
    let is_known = slots.len() >= usize::from(created) && slots.len() <= usize::from(MAX_SHARDS);
    if is_known { Ok(()) } else { Err("the number of shards is not possible") }
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
    fn a_division_has_each_slot_once() {
        let check = |slots: &[Range<u16>]| check_division(2, slots).is_ok();
        assert!(check(&[0..8192, 8192..SLOTS]) && check(&[0..10, 20..SLOTS, 10..20]));
        let holes = [0..10, 11..SLOTS];
        let twice = [0..10, 9..SLOTS];
        let short = [0..10, 10..SLOTS - 1];
        let none = [0..10, 10..10, 10..SLOTS];
        assert!(!check(&holes) && !check(&twice) && !check(&short) && !check(&none));
        let whole = 0..SLOTS;
        assert!(!check(&[whole]), "one was there at first");
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

    #[test]
    fn a_shard_is_split_in_its_middle_or_where_it_is_asked() {
        let layout = Layout::new(2, 0);
        let plan = SplitPlan::new(&layout, 1, None).unwrap();
        assert_eq!((plan.into, plan.lower()), (2, 8192..12288));
        assert_eq!(plan.division()[2], 12288..SLOTS);
        let plan = SplitPlan::new(&layout, 0, Some(1)).unwrap();
        assert_eq!(plan.lower(), 0..1);
        assert_eq!(plan.division(), [0..1, 8192..SLOTS, 1..8192]);
        layout.divide(plan.division().to_vec());
        assert_eq!(SplitPlan::new(&layout, 0, None), Err(SplitRefusal::OneSlot(0)));
        assert_eq!(SplitPlan::new(&layout, 3, None), Err(SplitRefusal::NoShard(3)));
        for slot in [0, 8192, 8193, 8191] {
            let refused = SplitPlan::new(&layout, 1, Some(slot)).is_err();
            assert_eq!(refused, slot != 8193, "{slot}");
        }
        let full = Layout::new(MAX_SHARDS, 0);
        assert_eq!(SplitPlan::new(&full, 0, None), Err(SplitRefusal::ManyShards));
    }
}
