//! The filter of a file: SlateDB's Bloom filter over whole keys (its `filter.rs`), read from the
//! file's filter block (`format/sst.rs`).
//!
//! The block is `filters u16`, then for each `name length u16 | name | data length u64 | data`, all
//! big-endian. A filter is `probes u16` and its bits. The bits of a key follow from SipHash-1-3
//! without a key by enhanced double hashing (P. C. Dillinger and P. Manolios, *Bloom Filters in
//! Probabilistic Verification*, 2004).

use siphasher::sip::SipHasher13;
use slatedb::filter_policy::BloomFilterPolicy;

/// Number of probes that are looked at together. Half of the bits of a filter are set, so a processor that
/// guesses after each one whether the next one is needed is wrong all the time.
const TOGETHER: u16 = 4;

/// A file's filter.
#[derive(Debug)]
pub(super) struct Bloom {
    probes: u16,
    bits: Box<[u8]>,
    divisor: Divisor,
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
                return Some(Self::new(u16::from_be_bytes(*probes), bits.into()));
            }
            rest = behind;
        }
        None
    }

    pub(super) fn bytes(&self) -> usize {
        self.bits.len()
    }

    fn new(probes: u16, bits: Box<[u8]>) -> Self {
        // SlateDB counts the bits in 32 bits.
        let divisor = Divisor::new((8 * bits.len()) as u32);
        Self { probes, bits, divisor }
    }

    /// Returns false if the file has no row of a key with this hash.
    pub(super) fn may_have(&self, hash: u64) -> bool {
        if self.divisor.number == 0 {
            return false;
        }
        let (mut at, mut step) =
            (self.divisor.remainder(hash as u32), self.divisor.remainder((hash >> 32) as u32));
        let mut probe = |n: u16| {
            step = self.divisor.remainder_of_sum(step, n.into());
            let bit = self.bits[at as usize / 8] >> (at % 8);
            at = self.divisor.remainder_of_sum(at, step);
            bit & 1
        };
        let together = self.probes.min(TOGETHER);
        (0..together).fold(1, |all, n| all & probe(n)) == 1
            && (together..self.probes).all(|n| probe(n) == 1)
    }
}

/// A divisor of many numbers (D. Lemire, O. Kaser, N. Kurz, *Faster Remainder by Direct Computation*, 2019).
#[derive(Debug)]
struct Divisor {
    number: u32,
    /// 2⁶⁴ divided by it, rounded up.
    inverse: u64,
}

impl Divisor {
    fn new(number: u32) -> Self {
        let inverse = u64::MAX.checked_div(number.into()).map_or(0, |floor| floor.wrapping_add(1));
        Self { number, inverse }
    }

    fn remainder(&self, of: u32) -> u32 {
        let fraction = self.inverse.wrapping_mul(of.into());
        ((u128::from(fraction) * u128::from(self.number)) >> 64) as u32
    }

    /// Returns the remainder of a sum that is nearly always less than twice the divisor.
    fn remainder_of_sum(&self, a: u32, b: u32) -> u32 {
        let (sum, number) = (u64::from(a) + u64::from(b), u64::from(self.number));
        let rest = if sum < number { sum } else { sum - number };
        (if rest < number { rest } else { rest % number }) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::points::tests::Random;

    /// The bits that SlateDB sets for a key, by remainders.
    fn places(hash: u64, bits: u64, probes: u16) -> Vec<u64> {
        let (mut at, mut step) = ((hash & u64::from(u32::MAX)) % bits, (hash >> 32) % bits);
        let place = |n| {
            step = (step + n) % bits;
            let place = at;
            at = (at + step) % bits;
            place
        };
        (0..u64::from(probes)).map(place).collect()
    }

    #[test]
    fn the_bits_of_a_key_are_those_that_slatedb_sets() {
        let mut random = Random(7);
        for round in 0..20_000 {
            let (bytes, probes) = (1 + random.below(40) as usize, random.below(40) as u16);
            let hash = random.below(u64::MAX);
            let mut bits = vec![0; bytes];
            for place in places(hash, 8 * bytes as u64, probes) {
                bits[place as usize / 8] |= 1 << (place % 8);
            }
            let filter = |bits: &[u8]| Bloom::new(probes, bits.into());
            assert!(filter(&bits).may_have(hash), "{round}");
            for place in places(hash, 8 * bytes as u64, probes) {
                let mut without = bits.clone();
                without[place as usize / 8] &= !(1 << (place % 8));
                assert!(!filter(&without).may_have(hash), "{round}: {place}");
            }
        }
    }

    #[test]
    fn remainders_are_right() {
        let mut random = Random(8);
        for round in 0..200_000 {
            let number = (1 + random.below(1 << (1 + round % 32))).min(u32::MAX.into()) as u32;
            let (a, b) = (random.below(1 << 32) as u32, random.below(1 << (round % 33)) as u32);
            let divisor = Divisor::new(number);
            assert_eq!(divisor.remainder(a), a % number, "{a} % {number}");
            let sum = (u64::from(a % number) + u64::from(b)) % u64::from(number);
            assert_eq!(
                u64::from(divisor.remainder_of_sum(a % number, b)),
                sum,
                "{a}, {b}, {number}"
            );
        }
    }

    #[test]
    fn an_empty_filter_has_nothing() {
        assert!(!Bloom::new(3, Box::default()).may_have(1));
    }
}
