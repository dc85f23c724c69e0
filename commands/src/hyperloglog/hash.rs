//! The hash of an element, and the register and rank that a sketch derives from it.

use super::registers::{INDEX_BITS, MAX_RANK, REGISTERS};

/// Seed of the hash, common to all sketches: it determines the registers of an element.
const SEED: u64 = 0xadc8_3b19;

/// Returns the MurmurHash2 of bytes, in its 64-bit variant for 64-bit machines.
fn murmur_hash_64a(bytes: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    const R: u32 = 47;
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut k = u64::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash ^= hash >> R;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> R
}

/// Returns the register of an element, and its rank: one more than the number of zeros at the
/// beginning of the rest of its hash.
pub(super) fn place(element: &[u8]) -> (usize, u8) {
    let hash = murmur_hash_64a(element, SEED);
    let rest = hash >> INDEX_BITS;
    let rank = (rest.trailing_zeros() + 1).min(u32::from(MAX_RANK));
    (hash as usize % REGISTERS, rank as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of SMHasher: hashes of 0, 1, … bytes under falling seeds, hashed.
    #[test]
    fn the_hash_is_murmur() {
        let key: Vec<u8> = (0..=255).collect();
        let hashes: Vec<u8> = (0..256usize)
            .flat_map(|len| murmur_hash_64a(&key[..len], 256 - len as u64).to_le_bytes())
            .collect();
        assert_eq!(murmur_hash_64a(&hashes, 0) as u32, 0x1f0d_3804);
    }

    #[test]
    fn ranks_end_where_the_hash_does() {
        let places = (0..100_000u32).map(|n| place(&n.to_le_bytes()));
        let (index, rank) = places.fold((0, 0), |(i, r), p| (p.0.max(i), p.1.max(r)));
        assert_eq!(index, REGISTERS - 1);
        assert!((12..=MAX_RANK).contains(&rank), "{rank}");
    }
}
