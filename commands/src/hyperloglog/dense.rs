//! The dense encoding: registers packed into six bits each, from the lowest bit of the first byte
//! on.

use super::registers::REGISTERS;

/// Size of all registers in bytes.
pub(super) const BYTES: usize = REGISTERS * 6 / 8;

/// Returns the byte and the bit at which a register begins.
fn position(index: usize) -> (usize, usize) {
    (index * 6 / 8, index * 6 % 8)
}

/// Returns a byte and the next one as one number.
fn window(packed: &[u8], byte: usize) -> u16 {
    u16::from_le_bytes([packed[byte], packed.get(byte + 1).copied().unwrap_or(0)])
}

pub(super) fn get(packed: &[u8], index: usize) -> u8 {
    let (byte, bit) = position(index);
    (window(packed, byte) >> bit) as u8 & 63
}

pub(super) fn set(packed: &mut [u8], index: usize, value: u8) {
    let (byte, bit) = position(index);
    let both = window(packed, byte) & !(63 << bit) | u16::from(value) << bit;
    let [low, high] = both.to_le_bytes();
    packed[byte] = low;
    if let Some(next) = packed.get_mut(byte + 1) {
        *next = high;
    }
}

fn unpack_four(&[a, b, c]: &[u8; 3]) -> [u8; 4] {
    [a & 63, (a >> 6 | b << 2) & 63, (b >> 4 | c << 4) & 63, c >> 2]
}

/// Returns all registers in order.
pub(super) fn unpack(packed: &[u8]) -> impl Iterator<Item = u8> {
    packed.as_chunks::<3>().0.iter().flat_map(unpack_four)
}

/// Raises each of `registers` to the packed one.
pub(super) fn merge(packed: &[u8], registers: &mut [u8]) {
    let (fours, _) = registers.as_chunks_mut::<4>();
    for (four, three) in fours.iter_mut().zip(packed.as_chunks::<3>().0) {
        for (register, value) in four.iter_mut().zip(unpack_four(three)) {
            *register = value.max(*register);
        }
    }
}

/// Packs all registers.
pub(super) fn pack(registers: &[u8]) -> Vec<u8> {
    let (fours, _) = registers.as_chunks::<4>();
    fours.iter().flat_map(|&[a, b, c, d]| [a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn registers_begin_at_the_lowest_bit() {
        let mut packed = vec![0; BYTES];
        for (index, value) in [(0, 1), (1, 63), (3, 0b10_0001), (REGISTERS - 1, 51)] {
            set(&mut packed, index, value);
        }
        assert_eq!(packed[..3], [0b1100_0001, 0b0000_1111, 0b1000_0100]);
        assert_eq!(packed[BYTES - 1], 51 << 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn packed_registers_read_back(
            registers in prop::collection::vec(0..64u8, REGISTERS),
            changes in prop::collection::vec((0..REGISTERS, 0..64u8), 0..50),
        ) {
            let (mut registers, mut packed) = (registers.clone(), pack(&registers));
            prop_assert_eq!(packed.len(), BYTES);
            for (index, value) in changes {
                registers[index] = value;
                set(&mut packed, index, value);
            }
            prop_assert!(unpack(&packed).eq(registers.iter().copied()));
            prop_assert!((0..REGISTERS).all(|i| get(&packed, i) == registers[i]));
            prop_assert_eq!(pack(&registers), packed);
        }
    }
}
