//! Passwords: only their SHA-256 is kept, and comparisons take a time that does not depend on it.

use sha2::{Digest, Sha256};
use std::fmt::Write;
use subtle::{Choice, ConstantTimeEq};

/// SHA-256 of a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PasswordHash([u8; 32]);

impl PasswordHash {
    pub(super) fn of(password: &[u8]) -> Self {
        Self(Sha256::digest(password).into())
    }

    /// Parses 64 lower-case hexadecimal digits.
    pub(super) fn parse(hex: &[u8]) -> Option<Self> {
        let (pairs, []) = hex.as_chunks::<2>() else { return None };
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        Some(Self(bytes?.try_into().ok()?))
    }

    /// Compares in constant time.
    pub(super) fn is(&self, other: &Self) -> Choice {
        self.0.ct_eq(&other.0)
    }

    /// Returns it in hexadecimal digits.
    pub(super) fn hex(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in self.0 {
            // Writing into a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }
}

impl std::fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_reference() {
        let hash = PasswordHash::of(b"passwd1");
        let hex = "3b1d7e9a7c37141350fb473fa099b8b18030cde1909f363e3758e52d4ea1a7b4";
        assert_eq!(hash.hex(), hex);
        assert_eq!(PasswordHash::parse(hex.as_bytes()), Some(hash.clone()));
        assert!(bool::from(hash.is(&PasswordHash::of(b"passwd1"))));
        assert!(!bool::from(hash.is(&PasswordHash::of(b"passwd2"))));
        for wrong in
            ["", &hex[1..], &hex.to_uppercase(), &hex.replace('3', "g"), &[hex, "0"].concat()]
        {
            assert_eq!(PasswordHash::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
