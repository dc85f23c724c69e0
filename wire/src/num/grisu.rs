//! The digits of a double by the Grisu2 algorithm.
//!
//! From Florian Loitsch, "Printing Floating-Point Numbers Quickly and Accurately with Integers"
//! (PLDI 2010). The digits always read back as the same double and are nearly always the fewest
//! that do. Valkey uses Grisu2 as well; as the rest depends on which powers of ten are stored and
//! which of them is chosen, both are as there.

/// The decimal digits of a number: `digits` × 10^`exponent`.
pub(super) struct Decimal {
    digits: [u8; 20],
    len: usize,
    /// The power of ten of the last digit.
    pub(super) exponent: i32,
}

impl Decimal {
    /// Returns the digits in ASCII, the first one not zero.
    pub(super) fn digits(&self) -> &[u8] {
        &self.digits[..self.len]
    }

    /// Appends a digit, except leading zeros.
    fn push(&mut self, digit: u64) {
        if digit != 0 || self.len > 0 {
            self.digits[self.len] = b'0' + digit as u8;
            self.len += 1;
        }
    }

    /// Lowers the last digit as long as that brings the number nearer to the intended one. All
    /// arguments are distances below the upper bound: `rest` of the digits so far, `target` of the
    /// intended number, `delta` of the lower bound; `unit` is the value of one in the last digit.
    fn round(&mut self, mut rest: u64, target: u64, delta: u64, unit: u64) {
        while rest < target
            && delta - rest >= unit
            && (rest + unit < target || target - rest > rest + unit - target)
        {
            self.digits[self.len - 1] -= 1;
            rest += unit;
        }
    }
}

/// `fraction` × 2^`exponent`.
#[derive(Clone, Copy)]
struct Binary {
    fraction: u64,
    exponent: i32,
}

impl Binary {
    /// Returns the same number with the highest bit of the fraction set.
    fn normalized(self) -> Self {
        let shift = self.fraction.leading_zeros();
        Self { fraction: self.fraction << shift, exponent: self.exponent - shift as i32 }
    }

    /// Returns the product, rounded to 64 bits.
    fn times(self, other: Self) -> Self {
        let product = u128::from(self.fraction) * u128::from(other.fraction);
        Self {
            fraction: ((product + (1 << 63)) >> 64) as u64,
            exponent: self.exponent + other.exponent + 64,
        }
    }
}

/// Bits of a double's fraction that are stored.
const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
/// The bit of the fraction that is not stored.
const HIDDEN_BIT: u64 = 1 << FRACTION_BITS;
/// The exponent of the last bit of the fraction of subnormal numbers.
const MIN_EXPONENT: i32 = f64::MIN_EXP - f64::MANTISSA_DIGITS as i32;

/// Returns the digits of `value`, which must be finite and greater than zero.
pub(super) fn digits(value: f64) -> Decimal {
    let bits = value.to_bits();
    let (stored, biased) = (bits & (HIDDEN_BIT - 1), (bits >> FRACTION_BITS) as i32 & 0x7ff);
    let exact = match biased {
        0 => Binary { fraction: stored, exponent: MIN_EXPONENT },
        _ => Binary { fraction: stored | HIDDEN_BIT, exponent: MIN_EXPONENT + biased - 1 },
    };
    // Half way to the neighbours; the one below is nearer if the fraction is a power of two.
    let upper = Binary { fraction: exact.fraction * 2 + 1, exponent: exact.exponent - 1 };
    let upper = upper.normalized();
    let below = if exact.fraction == HIDDEN_BIT { 2 } else { 1 };
    let lower = Binary {
        fraction: ((exact.fraction << below) - 1) << (exact.exponent - below - upper.exponent),
        exponent: upper.exponent,
    };

    let (power, decimal_exponent) = scaling_power(upper.exponent);
    let target = exact.normalized().times(power);
    // One unit inside of the bounds, for the products are rounded.
    let lower = lower.times(power).fraction + 1;
    let upper = upper.times(power);
    let upper = Binary { fraction: upper.fraction - 1, ..upper };
    generate(upper, upper.fraction - target.fraction, upper.fraction - lower, -decimal_exponent)
}

/// Generates digits of `upper` until the rest is smaller than `delta`, then rounds toward the
/// number `target` below `upper`. The digits count from 10^`exponent`.
fn generate(upper: Binary, target: u64, delta: u64, exponent: i32) -> Decimal {
    let mut out = Decimal { digits: [0; 20], len: 0, exponent };
    let shift = -upper.exponent as u32;
    let one = 1u64 << shift;
    let (mut whole, mut fraction) = (upper.fraction >> shift, upper.fraction & (one - 1));

    // The whole part has at most ten digits.
    for place in (0..10).rev() {
        let unit = 10u64.pow(place);
        out.push(whole / unit);
        whole %= unit;
        let rest = (whole << shift) + fraction;
        if rest <= delta {
            out.exponent += place as i32;
            out.round(rest, target, delta, unit << shift);
            return out;
        }
    }
    let (mut target, mut delta) = (target, delta);
    loop {
        fraction *= 10;
        delta = delta.wrapping_mul(10);
        target = target.wrapping_mul(10);
        out.exponent -= 1;
        out.push(fraction >> shift);
        fraction &= one - 1;
        if fraction < delta {
            out.round(fraction, target, delta, one);
            return out;
        }
    }
}

/// The decimal exponent of the first entry of [`POWERS`].
const FIRST_POWER: i32 = -348;
/// The decimal exponents between entries.
const POWER_STEP: i32 = 8;

/// Returns a power of ten whose product with a number of binary `exponent` has a binary exponent
/// from -60 to -32, and its decimal exponent.
fn scaling_power(exponent: i32) -> (Binary, i32) {
    let estimate = -f64::from(exponent + POWERS.len() as i32) * std::f64::consts::LOG10_2;
    let mut index = (estimate as i32 - FIRST_POWER) / POWER_STEP;
    loop {
        let decimal_exponent = FIRST_POWER + index * POWER_STEP;
        let power = Binary {
            fraction: POWERS[index as usize],
            // The integer part of its binary logarithm, less 63.
            exponent: ((decimal_exponent * 217_706) >> 16) - 63,
        };
        match exponent + power.exponent + 64 {
            ..-60 => index += 1,
            -60..=-32 => return (power, decimal_exponent),
            _ => index -= 1,
        }
    }
}

/// The 64 highest bits, rounded, of 10^-348, 10^-340, … 10^340.
#[rustfmt::skip]
const POWERS: [u64; 87] = [
    0xfa8fd5a0081c0288, 0xbaaee17fa23ebf76, 0x8b16fb203055ac76, 0xcf42894a5dce35ea,
    0x9a6bb0aa55653b2d, 0xe61acf033d1a45df, 0xab70fe17c79ac6ca, 0xff77b1fcbebcdc4f,
    0xbe5691ef416bd60c, 0x8dd01fad907ffc3c, 0xd3515c2831559a83, 0x9d71ac8fada6c9b5,
    0xea9c227723ee8bcb, 0xaecc49914078536d, 0x823c12795db6ce57, 0xc21094364dfb5637,
    0x9096ea6f3848984f, 0xd77485cb25823ac7, 0xa086cfcd97bf97f4, 0xef340a98172aace5,
    0xb23867fb2a35b28e, 0x84c8d4dfd2c63f3b, 0xc5dd44271ad3cdba, 0x936b9fcebb25c996,
    0xdbac6c247d62a584, 0xa3ab66580d5fdaf6, 0xf3e2f893dec3f126, 0xb5b5ada8aaff80b8,
    0x87625f056c7c4a8b, 0xc9bcff6034c13053, 0x964e858c91ba2655, 0xdff9772470297ebd,
    0xa6dfbd9fb8e5b88f, 0xf8a95fcf88747d94, 0xb94470938fa89bcf, 0x8a08f0f8bf0f156b,
    0xcdb02555653131b6, 0x993fe2c6d07b7fac, 0xe45c10c42a2b3b06, 0xaa242499697392d3,
    0xfd87b5f28300ca0e, 0xbce5086492111aeb, 0x8cbccc096f5088cc, 0xd1b71758e219652c,
    0x9c40000000000000, 0xe8d4a51000000000, 0xad78ebc5ac620000, 0x813f3978f8940984,
    0xc097ce7bc90715b3, 0x8f7e32ce7bea5c70, 0xd5d238a4abe98068, 0x9f4f2726179a2245,
    0xed63a231d4c4fb27, 0xb0de65388cc8ada8, 0x83c7088e1aab65db, 0xc45d1df942711d9a,
    0x924d692ca61be758, 0xda01ee641a708dea, 0xa26da3999aef774a, 0xf209787bb47d6b85,
    0xb454e4a179dd1877, 0x865b86925b9bc5c2, 0xc83553c5c8965d3d, 0x952ab45cfa97a0b3,
    0xde469fbd99a05fe3, 0xa59bc234db398c25, 0xf6c69a72a3989f5c, 0xb7dcbf5354e9bece,
    0x88fcf317f22241e2, 0xcc20ce9bd35c78a5, 0x98165af37b2153df, 0xe2a0b5dc971f303a,
    0xa8d9d1535ce3b396, 0xfb9b7cd9a4a7443c, 0xbb764c4ca7a44410, 0x8bab8eefb6409c1a,
    0xd01fef10a657842c, 0x9b10a4e5e9913129, 0xe7109bfba19c0c9d, 0xac2820d9623bf429,
    0x80444b5e7aa7cf85, 0xbf21e44003acdd2d, 0x8e679c2f5e44ff8f, 0xd433179d9c8cb841,
    0x9e19db92b4e31ba9, 0xeb96bf6ebadf77d9, 0xaf87023b9bf0ee6b,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: f64) -> String {
        let decimal = digits(value);
        format!("{}e{}", String::from_utf8_lossy(decimal.digits()), decimal.exponent)
    }

    #[test]
    fn every_stored_power_is_one_of_ten() {
        for (index, &fraction) in POWERS.iter().enumerate() {
            let decimal_exponent = FIRST_POWER + index as i32 * POWER_STEP;
            assert!(fraction >> 63 == 1, "10^{decimal_exponent}");
            if decimal_exponent.abs() <= 280 {
                let exact: f64 = format!("1e{decimal_exponent}").parse().unwrap();
                let binary_exponent = ((decimal_exponent * 217_706) >> 16) - 63;
                let stored = fraction as f64 * 2f64.powi(binary_exponent);
                assert!((stored / exact - 1.0).abs() < 1e-14, "10^{decimal_exponent}");
            }
        }
    }

    #[test]
    fn extremes() {
        assert_eq!(text(f64::from_bits(1)), "5e-324");
        assert_eq!(text(f64::MIN_POSITIVE), "22250738585072014e-324");
        assert_eq!(text(f64::MAX), "17976931348623157e292");
        assert_eq!(text(1.0), "1e0");
        assert_eq!(text(0.1), "1e-1");
    }

    #[test]
    fn where_it_is_not_the_nearest_or_shortest() {
        assert_eq!(text(f64::from_bits(0x6e4f_1a6b_e02f_a091)), "22485989149227411e207");
        assert_eq!(text(f64::from_bits(0x3ed6_e20c_e503_133b)), "54557345522995914e-22");
    }

    #[test]
    fn powers_of_two_read_back() {
        for exponent in 0..2046 {
            for bits in [exponent << 52, (exponent << 52) + 1, ((exponent + 1) << 52) - 1] {
                let value = f64::from_bits(bits);
                if value > 0.0 {
                    assert_eq!(text(value).parse(), Ok(value));
                }
            }
        }
    }
}
