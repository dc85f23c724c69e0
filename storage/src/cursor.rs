//! Cursors that do not reveal the hash of a key.
//!
//! SCAN and its kin walk in the order of keyed hashes, so a position in the walk is a hash. A
//! client that knew some hashes could compute the seed, and then write keys that all collide.
//! Therefore clients get cursors encrypted: by a Feistel network (M. Luby, C. Rackoff, 1988) over
//! numbers of a few bits, its round function SipHash-1-3 under a key that does not reveal the seed.
//! It needs no state, and a cursor stays valid over a restart.

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// Number of rounds. Four make a strong permutation of large blocks; these blocks are small.
const ROUNDS: u32 = 10;

/// Encrypts and decrypts positions, under a key derived from the seed of key hashes.
#[derive(Clone, Copy, Debug)]
pub struct CursorCipher {
    keys: (u64, u64),
}

impl CursorCipher {
    pub(crate) fn new(seed: u64) -> Self {
        let digest = Sha256::new()
            .chain_update(b"flagstone cursor")
            .chain_update(seed.to_le_bytes())
            .finalize();
        let word = |at: usize| {
            digest[at..at + 8].iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte))
        };
        Self { keys: (word(0), word(8)) }
    }

    /// Encrypts a position of `bits` bits, an even number of at most 62. 0, the start and the end
    /// of a walk, stays 0.
    pub fn seal(self, bits: u32, place: u64) -> u64 {
        debug_assert!(place >> bits == 0, "a place of {bits} bits: {place}");
        walk(place, |number| self.permute(bits, number, 0..ROUNDS))
    }

    /// Decrypts a cursor of `bits` bits.
    pub fn open(self, bits: u32, cursor: u64) -> u64 {
        debug_assert!(cursor >> bits == 0, "a cursor of {bits} bits: {cursor}");
        let (half, mask) = halves(bits);
        // The inverse of a round is the same round with its halves exchanged.
        let swap = |number: u64| (number & mask) << half | number >> half;
        walk(cursor, |number| swap(self.permute(bits, swap(number), (0..ROUNDS).rev())))
    }

    fn permute(self, bits: u32, number: u64, rounds: impl Iterator<Item = u32>) -> u64 {
        let (half, mask) = halves(bits);
        let (mut left, mut right) = (number >> half, number & mask);
        for round in rounds {
            let mut hasher = SipHasher13::new_with_keys(self.keys.0, self.keys.1);
            hasher.write(&bits.to_le_bytes());
            hasher.write(&round.to_le_bytes());
            hasher.write(&right.to_le_bytes());
            (left, right) = (right, left ^ (hasher.finish() & mask));
        }
        left << half | right
    }
}

/// Returns the bits of a half, and their mask.
fn halves(bits: u32) -> (u32, u64) {
    let half = bits / 2;
    (half, (1 << half) - 1)
}

/// Applies a permutation changed to keep 0 fixed: a number that would become 0 gets the image of 0.
fn walk(number: u64, permute: impl Fn(u64) -> u64) -> u64 {
    if number == 0 {
        return 0;
    }
    match permute(number) {
        0 => permute(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_cursor_of_few_bits_is_of_one_place() {
        let cipher = CursorCipher::new(7);
        let mut seen = vec![false; 1 << 12];
        for place in 0..1 << 12 {
            let cursor = cipher.seal(12, place);
            assert_eq!(cipher.open(12, cursor), place);
            assert!(!std::mem::replace(&mut seen[cursor as usize], true), "{cursor} twice");
        }
        assert_eq!(cipher.seal(12, 0), 0);
    }

    proptest! {
        #[test]
        fn a_cursor_is_opened_to_its_place(seed: u64, place in 0u64..1 << 62) {
            let cipher = CursorCipher::new(seed);
            prop_assert_eq!(cipher.open(62, cipher.seal(62, place)), place);
            let place = place & ((1 << 48) - 1);
            prop_assert_eq!(cipher.open(48, cipher.seal(48, place)), place);
        }
    }

    /// Cursors of neighbours in the walk differ in about half of their bits.
    #[test]
    fn cursors_do_not_tell_how_far_apart_places_are() {
        let cipher = CursorCipher::new(1);
        let differing: u32 = (1..=1000u64)
            .map(|place| (cipher.seal(48, place) ^ cipher.seal(48, place + 1)).count_ones())
            .sum();
        assert!((22_000..26_000).contains(&differing), "{differing} of 48,000 bits");
    }
}
