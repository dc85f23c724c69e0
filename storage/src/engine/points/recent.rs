//! The keys of rows that may be in an engine's memtables, as a filter of bits.
//!
//! Every batch notes its keys before it is written ([`RecentKeys::begin`]), so a row in a memtable
//! is always noted. Keys are noted in layers. A layer is dropped when the files have all its rows:
//! a memtable becomes a file as a whole, in the order of the sequence numbers, and the manifest
//! names the last one that files have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of layers of an engine. Further keys go into the last one.
const MAX_LAYERS: usize = 4;

/// Bytes of memtables for a byte of a layer: at least twelve bits a row, as each takes 192 bytes.
const MEMTABLE_PART: usize = 128;

/// Bits of a layer for each key; then another layer begins, if there is room for one.
const KEY_BITS: usize = 12;

/// The bits of one layer.
#[derive(Debug)]
pub(super) struct KeyBits(Box<[AtomicU64]>);

impl KeyBits {
    fn new(bytes: usize) -> Self {
        let words = (bytes / size_of::<AtomicU64>()).max(1);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Returns a key's word and its three bits there.
    fn place(&self, hash: u64) -> (&AtomicU64, u64) {
        let word = ((u128::from(hash) * self.0.len() as u128) >> 64) as usize;
        let bits = (1 << (hash & 63)) | (1 << ((hash >> 6) & 63)) | (1 << ((hash >> 12) & 63));
        (&self.0[word], bits)
    }

    // Relaxed: a reader looks a key up only once a message has told it that the key's batch was
    // written, and the message orders the two.
    fn insert(&self, hash: u64) {
        let (word, bits) = self.place(hash);
        word.fetch_or(bits, Ordering::Relaxed);
    }

    /// Returns false if no key with this hash was noted.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        let (word, bits) = self.place(hash);
        word.load(Ordering::Relaxed) & bits == bits
    }
}

/// Returns the hash of a key in layers.
pub(super) fn hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

#[derive(Debug)]
struct KeyLayer {
    number: u64,
    bits: Arc<KeyBits>,
    keys: usize,
    /// The greatest sequence number of its batches.
    last: u64,
    /// Number of batches whose sequence number is not known yet. One that failed stays: some of its
    /// rows may have been taken.
    open: usize,
    /// True if further keys go into another layer, if there may be one.
    closed: bool,
}

/// The layers of one engine, oldest first.
#[derive(Debug)]
pub(super) struct RecentKeys {
    layers: Vec<KeyLayer>,
    made: u64,
    layer_bytes: usize,
}

impl RecentKeys {
    pub(super) fn new(memtable_bytes: usize) -> Self {
        Self { layers: Vec::new(), made: 0, layer_bytes: memtable_bytes / MEMTABLE_PART }
    }

    /// Returns the bits of all layers.
    pub(super) fn bits(&self) -> Vec<Arc<KeyBits>> {
        self.layers.iter().map(|layer| layer.bits.clone()).collect()
    }

    /// Begins a batch of `keys` rows. Returns the layer for its keys, and whether that is new.
    pub(super) fn begin(&mut self, keys: usize) -> (u64, Arc<KeyBits>, bool) {
        let most = 8 * self.layer_bytes / KEY_BITS;
        let is_full = |layer: &KeyLayer| layer.closed || layer.keys >= most;
        let is_new =
            self.layers.last().is_none_or(|last| is_full(last) && self.layers.len() < MAX_LAYERS);
        if is_new {
            self.made += 1;
            let bits = Arc::new(KeyBits::new(self.layer_bytes));
            let (number, last) = (self.made, 0);
            self.layers.push(KeyLayer { number, bits, keys: 0, last, open: 0, closed: false });
        }
        let at = self.layers.len() - 1;
        let layer = &mut self.layers[at];
        layer.keys += keys;
        layer.open += 1;
        (layer.number, layer.bits.clone(), is_new)
    }

    /// Notes the sequence number of a batch.
    pub(super) fn written(&mut self, layer: u64, seq: u64) {
        if let Some(layer) = self.layers.iter_mut().find(|one| one.number == layer) {
            layer.open -= 1;
            layer.last = layer.last.max(seq);
        }
    }

    /// Drops layers whose rows up to the sequence number `seq` are all; begins another layer for
    /// further keys.
    pub(super) fn flushed(&mut self, seq: u64) {
        self.layers.retain(|layer| layer.open > 0 || layer.last > seq);
        if let Some(last) = self.layers.last_mut() {
            last.closed = true;
        }
    }
}

/// Notes the keys of a batch.
pub(super) fn note<'a>(bits: &KeyBits, keys: impl Iterator<Item = &'a [u8]>) {
    keys.for_each(|key| bits.insert(hash(key)));
}
