//! The filter of a shard's keys: it is in memory, and asked before the engine is.
//!
//! A key that is not in the hot tier may be on disk. To establish its absence, the engine asks the
//! filter of each of its files, on another thread, while the command waits. This filter knows all
//! keys of a shard, so that a new key costs a few cache misses on the command's own thread.
//!
//! It holds every key that exists and some that do not (any more): a key that it reports absent is
//! absent. Keys enter when the record that creates them is merged; keys that are older than the
//! filter enter by a scan of the engine ([`Presence::scan`]), and until that ends the filter is not
//! asked. Keys cannot leave: when most of them are gone the filter is rebuilt.
//!
//! It is a split block Bloom filter (Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient
//! Bloom Filters"; with the salts of Parquet's): a key is eight bits in one block of 32 bytes. It
//! grows by layers, each about twice the one before. At its memory bound the last layer fills up,
//! and its rate of false positives rises. A stored filter that is larger than the bound is shrunk, if its
//! shard is in a bucket: it was stored by a server with more memory, or before the shard was split.

use crate::control::FilterPiece;
use crate::encoding::{Row, get_varint, prefix_range, put_varint, row};
use crate::engine::Engine;
use anyhow::Result;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// 32-bit words of a block.
const WORDS: usize = 8;

const BLOCK_BYTES: usize = 4 * WORDS;

/// Bits for each key: about one in 150 absent keys passes a layer.
const BITS_PER_KEY: u64 = 12;

/// Keys of the smallest layer.
const LEAST_KEYS: u64 = 1 << 16;

/// Maximum number of layers; the last one would have more keys than fit into any memory.
const MAX_LAYERS: usize = 32;

/// Odd numbers that choose a bit of each word.
const SALTS: [u32; WORDS] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// The version of the algorithm, in the rows that store a filter over a restart.
const VERSION: u8 = 1;

/// Bytes of a filter that one row stores.
const ROW_BYTES: usize = 256 << 10;

/// Time for which a scan reads from one snapshot of the engine, and for which it pauses then.
const SCAN_PIECE: Duration = Duration::from_millis(20);

struct Layer {
    words: Box<[AtomicU32]>,
    /// Number of keys for which the layer is sized.
    capacity: u64,
    keys: AtomicU64,
}

impl Layer {
    fn new(capacity: u64) -> Self {
        let blocks = (capacity * BITS_PER_KEY).div_ceil(8 * BLOCK_BYTES as u64).max(1) as usize;
        Self { words: zeros(blocks * WORDS), capacity, keys: AtomicU64::new(0) }
    }

    fn bytes(&self) -> usize {
        4 * self.words.len()
    }

    /// Returns a layer of the same keys that takes at most about so many bytes, and one block at least. A block
    /// has the keys whose hashes are in one part of all, so it goes into each block of which it has a part.
    fn shrunk(&self, max_bytes: usize) -> Self {
        let from = self.words.len() / WORDS;
        let blocks = (max_bytes / BLOCK_BYTES).clamp(1, from);
        let words = zeros(blocks * WORDS);
        for (n, block) in self.words.chunks(WORDS).enumerate() {
            let into = n * blocks / from..((n + 1) * blocks).div_ceil(from);
            for target in words[into.start * WORDS..into.end * WORDS].chunks(WORDS) {
                for (word, bits) in target.iter().zip(block) {
                    word.fetch_or(bits.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
        let capacity = self.capacity * blocks as u64 / from as u64;
        Self { words, capacity, keys: AtomicU64::new(self.keys.load(Ordering::Relaxed)) }
    }

    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= self.capacity
    }

    fn block(&self, hash: u64) -> &[AtomicU32] {
        let blocks = (self.words.len() / WORDS) as u64;
        let first = (((hash >> 32) * blocks) >> 32) as usize * WORDS;
        &self.words[first..first + WORDS]
    }

    fn holds(&self, hash: u64) -> bool {
        let set = |(word, bit): (&AtomicU32, u32)| word.load(Ordering::Relaxed) & bit != 0;
        self.block(hash).iter().zip(bits(hash)).all(set)
    }

    fn insert(&self, hash: u64) {
        for (word, bit) in self.block(hash).iter().zip(bits(hash)) {
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
        self.keys.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns one bit for each word of a block.
fn bits(hash: u64) -> impl Iterator<Item = u32> {
    SALTS.iter().map(move |salt| 1 << ((hash as u32).wrapping_mul(*salt) >> 27))
}

/// Returns zeroed words: the system gives a large layer its memory on first write.
fn zeros(words: usize) -> Box<[AtomicU32]> {
    let words = Box::<[AtomicU32]>::new_zeroed_slice(words);
    // SAFETY: an `AtomicU32` of zero bytes is the number 0.
    unsafe { words.assume_init() }
}

/// Mixes a key's hash with the generation of its database (the finalizer of SplitMix64).
fn mix(generation: u32, hash48: u64) -> u64 {
    let mut h = hash48 ^ u64::from(generation).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h = (h ^ h >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ h >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ h >> 31
}

/// See the module's description. One thread asks and inserts, another one may insert.
pub struct Presence {
    layers: [OnceLock<Layer>; MAX_LAYERS],
    max_bytes: usize,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").field("keys", &self.keys()).finish_non_exhaustive()
    }
}

impl Presence {
    /// Creates a filter without keys, with room for `keys`; it takes at most about `max_bytes`.
    pub fn new(keys: u64, max_bytes: usize) -> Self {
        let most = max_bytes as u64 * 8 / BITS_PER_KEY;
        let this = Self { layers: [const { OnceLock::new() }; MAX_LAYERS], max_bytes };
        this.layers[0].get_or_init(|| Layer::new((keys + keys / 4).max(LEAST_KEYS).min(most)));
        this
    }

    fn layers(&self) -> impl Iterator<Item = &Layer> {
        self.layers.iter().map_while(OnceLock::get)
    }

    /// Returns true if a key may exist; false if it does not.
    pub fn may_hold(&self, generation: u32, hash48: u64) -> bool {
        let hash = mix(generation, hash48);
        self.layers().any(|layer| layer.holds(hash))
    }

    /// Inserts a key.
    pub fn insert(&self, generation: u32, hash48: u64) {
        let hash = mix(generation, hash48);
        let mut last = None;
        for layer in self.layers() {
            if layer.holds(hash) {
                return;
            }
            last = Some(layer);
        }
        let next = last.filter(|layer| layer.is_full()).and_then(|_| self.grow());
        if let Some(layer) = next.or(last) {
            layer.insert(hash);
        }
    }

    /// Adds a layer, unless the rest of the memory is too small to be worth it.
    fn grow(&self) -> Option<&Layer> {
        let last = self.layers().last()?;
        let left = self.max_bytes.saturating_sub(self.bytes()) as u64 * 8 / BITS_PER_KEY;
        let keys = (2 * last.capacity).min(left);
        let place = self.layers.iter().find(|place| place.get().is_none())?;
        (2 * keys >= last.capacity).then(|| place.get_or_init(|| Layer::new(keys)))
    }

    /// Returns the approximate number of inserted keys.
    pub fn keys(&self) -> u64 {
        self.layers().map(|layer| layer.keys.load(Ordering::Relaxed)).sum()
    }

    /// Returns the memory use of the filter in bytes.
    pub fn bytes(&self) -> usize {
        self.layers().map(Layer::bytes).sum()
    }

    /// Returns true if the filter keeps to its memory bound.
    pub(crate) fn is_within_bound(&self) -> bool {
        // Each layer is rounded up to whole blocks.
        self.bytes() <= self.max_bytes + MAX_LAYERS * BLOCK_BYTES
    }

    /// Returns a filter of the same keys that keeps to the memory bound, and reports more keys that do not
    /// exist.
    pub(crate) fn shrunk(&self) -> Self {
        let this =
            Self { layers: [const { OnceLock::new() }; MAX_LAYERS], max_bytes: self.max_bytes };
        let bytes = self.bytes() as u128;
        for (place, layer) in this.layers.iter().zip(self.layers()) {
            let part = layer.bytes() as u128 * self.max_bytes as u128 / bytes;
            place.get_or_init(|| layer.shrunk(part as usize));
        }
        this
    }

    /// Returns true if the filter would be much smaller, or much more precise, if it were rebuilt
    /// for so many keys.
    pub fn is_outgrown(&self, keys: u64) -> bool {
        self.keys() > LEAST_KEYS + 2 * keys
    }

    /// Inserts the keys of an engine, except those of dead generations. Takes about half of a
    /// thread's time.
    pub async fn scan(&self, engine: &Engine, dead: &BTreeSet<u32>) -> Result<()> {
        let mut range = prefix_range(&[row::META]);
        loop {
            let begun = Instant::now();
            let take = |key: Bytes, _| {
                if let Some(Row::Meta { generation, hash48, .. }) = Row::parse(&key)
                    && !dead.contains(&generation)
                {
                    self.insert(generation, hash48);
                }
                begun.elapsed() < SCAN_PIECE
            };
            let Some(next) = engine.walk(range.clone(), take).await? else {
                return Ok(());
            };
            range.start = next;
            tokio::time::sleep(SCAN_PIECE).await;
        }
    }
}

// ---- rows ------------------------------------------------------------------------------------

impl Presence {
    /// Returns the pieces that store the filter over a restart. The filter must not grow meanwhile.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = FilterPiece> + '_ {
        let layers = self.layers().count() as u8;
        (0u8..).zip(self.layers()).flat_map(move |(n, layer)| {
            (0u16..).zip(layer.words.chunks(ROW_BYTES / 4)).map(move |(piece, words)| {
                let mut value = vec![VERSION, layers];
                put_varint(&mut value, layer.capacity);
                put_varint(&mut value, layer.keys.load(Ordering::Relaxed));
                put_varint(&mut value, layer.words.len() as u64);
                let words = words.iter().map(|word| word.load(Ordering::Relaxed));
                value.extend(words.flat_map(u32::to_le_bytes));
                (n, piece, value)
            })
        })
    }

    /// Restores a stored filter, which may be larger than the bound. `None`: pieces are missing, or it is of
    /// another version.
    pub(crate) fn from_pieces(pieces: &[FilterPiece], max_bytes: usize) -> Option<Self> {
        let this = Self { layers: [const { OnceLock::new() }; MAX_LAYERS], max_bytes };
        let layers = *pieces.first()?.2.get(1)?;
        for pieces in pieces.chunk_by(|a, b| a.0 == b.0) {
            let place = this.layers.get(usize::from(pieces[0].0))?;
            place.set(Layer::from_pieces(layers, pieces)?).ok()?;
        }
        (this.layers().count() == usize::from(layers)).then_some(this)
    }
}

impl Layer {
    fn from_pieces(layers: u8, pieces: &[FilterPiece]) -> Option<Self> {
        let mut words = Vec::new();
        let mut head = None;
        for (number, (_, piece, value)) in (0u16..).zip(pieces) {
            let (head_bytes, mut rest) = value.split_first_chunk::<2>()?;
            let mut next = || get_varint(&mut rest);
            let found = (next()?, next()?, next()?);
            let (bytes, []) = rest.as_chunks::<4>() else { return None };
            if *head_bytes != [VERSION, layers]
                || *piece != number
                || *head.get_or_insert(found) != found
            {
                return None;
            }
            words.extend(bytes.iter().map(|bytes| AtomicU32::new(u32::from_le_bytes(*bytes))));
        }
        let (capacity, keys, len) = head?;
        let whole = len == words.len() as u64 && len > 0 && len % WORDS as u64 == 0;
        whole.then(|| Self { words: words.into(), capacity, keys: AtomicU64::new(keys) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: usize = 64 << 20;

    /// Numbers that look like hashes.
    fn hash48(n: u64) -> u64 {
        mix(77, n) >> 16
    }

    fn filled(keys: std::ops::Range<u64>, max_bytes: usize) -> Presence {
        let presence = Presence::new(0, max_bytes);
        keys.for_each(|n| presence.insert(1, hash48(n)));
        presence
    }

    fn passing(presence: &Presence, generation: u32, keys: std::ops::Range<u64>) -> u64 {
        keys.filter(|&n| presence.may_hold(generation, hash48(n))).count() as u64
    }

    #[test]
    fn every_key_is_found_and_few_others() {
        let presence = filled(0..1_000_000, ROOMY);
        assert_eq!(passing(&presence, 1, 0..1_000_000), 1_000_000);
        // Five layers; keys of another generation are distinct.
        let (others, generation) =
            (passing(&presence, 1, 2_000_000..2_100_000), passing(&presence, 2, 0..100_000));
        assert!(others < 3000 && generation < 3000, "{others}, {generation}");
        assert!(presence.bytes() < 4 << 20, "{}", presence.bytes());
        assert!((980_000..=1_000_000).contains(&presence.keys()), "{}", presence.keys());
    }

    #[test]
    fn it_is_bounded() {
        let presence = filled(0..1_000_000, 1 << 20);
        assert_eq!(passing(&presence, 1, 0..1_000_000), 1_000_000);
        assert!(presence.bytes() <= 1 << 20, "{}", presence.bytes());
        let one = Presence::new(1 << 40, 1 << 20);
        assert!(one.bytes() <= (1 << 20) + BLOCK_BYTES, "{}", one.bytes());
    }

    #[test]
    fn a_key_counts_once() {
        let presence = filled(0..1000, ROOMY);
        (0..1000).for_each(|n| presence.insert(1, hash48(n)));
        assert_eq!(presence.keys(), 1000);
        assert!(!presence.is_outgrown(0));
        let presence = filled(0..200_000, ROOMY);
        assert!(presence.is_outgrown(50_000) && !presence.is_outgrown(100_000));
    }

    #[test]
    fn a_stored_filter_that_is_too_large_is_shrunk() {
        let presence = filled(0..400_000, ROOMY);
        let pieces: Vec<FilterPiece> = presence.pieces().collect();
        let bytes = presence.bytes();
        assert!(Presence::from_pieces(&pieces, bytes).unwrap().is_within_bound());
        // Halves, odd parts, and hardly anything: layers have at least one block.
        for max_bytes in [bytes / 2, bytes / 3, bytes - 5000, 1000, 0] {
            let stored = Presence::from_pieces(&pieces, max_bytes).unwrap();
            assert!(!stored.is_within_bound());
            let shrunk = stored.shrunk();
            assert!(shrunk.is_within_bound(), "{} of {max_bytes}", shrunk.bytes());
            assert_eq!(passing(&shrunk, 1, 0..400_000), 400_000, "{max_bytes}");
            assert_eq!(shrunk.keys(), presence.keys());
            shrunk.insert(1, hash48(400_000));
            assert!(shrunk.may_hold(1, hash48(400_000)));
            assert!(shrunk.is_within_bound());
            if max_bytes >= bytes / 2 {
                let others = passing(&shrunk, 1, 500_000..600_000);
                assert!(others < 40_000, "{others} of 100,000 others at {max_bytes}");
            }
        }
        // One that was made within its bound is not.
        let full = filled(0..1_000_000, 1 << 20);
        let pieces: Vec<FilterPiece> = full.pieces().collect();
        assert!(Presence::from_pieces(&pieces, 1 << 20).unwrap().is_within_bound());
    }

    #[test]
    fn it_is_kept_whole_or_not_at_all() {
        let presence = filled(0..400_000, ROOMY);
        let pieces: Vec<FilterPiece> = presence.pieces().collect();
        assert!(pieces.len() > 3);
        let back = Presence::from_pieces(&pieces, ROOMY).unwrap();
        assert_eq!((back.keys(), back.bytes()), (presence.keys(), presence.bytes()));
        assert_eq!(passing(&back, 1, 0..400_000), 400_000);
        (400_000..500_000).for_each(|n| back.insert(1, hash48(n)));
        assert_eq!(passing(&back, 1, 0..500_000), 500_000);
        for gone in 0..pieces.len() {
            let mut some = pieces.clone();
            some.remove(gone);
            assert!(Presence::from_pieces(&some, ROOMY).is_none(), "without piece {gone}");
        }
        let mut cut = pieces.clone();
        cut[1].2.truncate(1000);
        assert!(Presence::from_pieces(&cut, ROOMY).is_none());
        let mut other = pieces;
        other[0].2[0] = 9;
        assert!(Presence::from_pieces(&other, ROOMY).is_none());
        assert!(Presence::from_pieces(&[], ROOMY).is_none());
    }
}
