//! The numbers behind `math.random`.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const STATE_BITS: u32 = 48;

/// The generator of POSIX's `lrand48`: 48 bits, of which it returns the upper 31.
#[derive(Clone, Copy)]
pub(crate) struct Generator(u64);

impl Default for Generator {
    fn default() -> Self {
        Self(0x1234_ABCD_330E)
    }
}

impl Generator {
    pub(crate) fn seeded(seed: i32) -> Self {
        Self((u64::from(seed as u32) << 16) | 0x330E)
    }

    pub(crate) fn next(&mut self) -> i64 {
        let next = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
        self.0 = next & ((1 << STATE_BITS) - 1);
        (self.0 >> 17) as i64
    }
}
