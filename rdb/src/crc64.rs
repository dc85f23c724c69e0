//! The checksum of payloads and files: CRC-64 with Jones' polynomial.

use crc::{CRC_64_REDIS, Crc, Digest, Table};

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Returns the checksum of `bytes`.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    CRC.checksum(bytes)
}

/// Returns a digest for a checksum over successive bytes.
pub(crate) fn digest() -> Digest<'static, u64, Table<16>> {
    CRC.digest()
}

#[cfg(test)]
mod tests {
    #[test]
    fn check_value_of_the_polynomial() {
        assert_eq!(super::checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }
}
