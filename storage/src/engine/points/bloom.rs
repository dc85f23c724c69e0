//! The filter of a file: SlateDB's Bloom filter over whole keys (its `filter.rs`), read from the
//! file's filter block (`format/sst.rs`).
//!
//! The block is `filters u16`, then for each `name length u16 | name | data length u64 | data`, all
//! big-endian. A filter is `probes u16` and its bits. The bits of a key follow from SipHash-1-3
//! without a key by enhanced double hashing (P. C. Dillinger and P. Manolios, *Bloom Filters in
//! Probabilistic Verification*, 2004).

use siphasher::sip::SipHasher13;
use slatedb::filter_policy::BloomFilterPolicy;

/// A file's filter.
#[derive(Debug)]
pub(super) struct Bloom {
    probes: u16,
    bits: Box<[u8]>,
}

/// Returns the hash of a key for any filter.
pub(super) fn hash(key: &[u8]) -> u64 {
    SipHasher13::new().hash(key)
}

impl Bloom {
    /// Parses a filter block without its checksum; `None` if it has no filter over whole keys, or
    /// is damaged.
    pub(super) fn parse(block: &[u8]) -> Option<Self> {
        let (filters, mut rest) = block.split_first_chunk()?;
        for _ in 0..u16::from_be_bytes(*filters) {
            let (length, behind) = rest.split_first_chunk()?;
            let (name, behind) = behind.split_at_checked(u16::from_be_bytes(*length).into())?;
            let (length, behind) = behind.split_first_chunk()?;
            let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
            let (data, behind) = behind.split_at_checked(length)?;
            if name == BloomFilterPolicy::NAME.as_bytes() {
                let (probes, bits) = data.split_first_chunk()?;
                return Some(Self { probes: u16::from_be_bytes(*probes), bits: bits.into() });
            }
            rest = behind;
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        self.bits.len()
    }

    /// Returns false if the file has no row of a key with this hash.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        // SlateDB counts the bits in 32 bits.
        let bits = u64::from((8 * self.bits.len()) as u32);
        if bits == 0 {
            return false;
        }
        let (mut at, mut step) = ((hash & u64::from(u32::MAX)) % bits, (hash >> 32) % bits);
        for n in 0..u64::from(self.probes) {
            step = (step + n) % bits;
            let byte = self.bits[(at / 8) as usize];
            if byte & (1 << (at % 8)) == 0 {
                return false;
            }
            at = (at + step) % bits;
        }
        true
    }
}
