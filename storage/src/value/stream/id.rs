//! Ids of stream entries.

use super::paged::PagedKey;

/// The time at which an entry was added, in ms since the Unix epoch, and its number among that
/// time's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    pub ms: u64,
    pub seq: u64,
}

impl StreamId {
    /// The least id, which no entry has.
    pub const MIN: Self = Self { ms: 0, seq: 0 };
    /// The greatest id.
    pub const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    pub const fn new(ms: u64, seq: u64) -> Self {
        Self { ms, seq }
    }

    /// Returns the least greater id.
    pub fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { ms: self.ms, seq }),
            None => Some(Self { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// Returns the greatest lesser id.
    pub fn prev(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { ms: self.ms, seq }),
            None => Some(Self { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Encodes the id in 16 bytes, which sort like ids.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.ms.to_be_bytes());
        out[8..].copy_from_slice(&self.seq.to_be_bytes());
        out
    }

    /// Decodes an id from 16 bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let n = u128::from_be_bytes(bytes);
        Self { ms: (n >> 64) as u64, seq: n as u64 }
    }

    /// Decodes an id from the front of `input`.
    pub fn take(input: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = input.split_first_chunk::<16>()?;
        *input = rest;
        Some(Self::from_bytes(*bytes))
    }
}

impl PagedKey for StreamId {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_bytes(bytes.try_into().ok()?))
    }

    fn at_least(bytes: &[u8]) -> Option<Self> {
        let mut whole = [0; 16];
        let n = bytes.len().min(16);
        whole[..n].copy_from_slice(&bytes[..n]);
        let id = Self::from_bytes(whole);
        if bytes.len() > 16 { id.next() } else { Some(id) }
    }

    fn first() -> Self {
        Self::MIN
    }

    fn after(&self) -> Option<Self> {
        self.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_carry_over() {
        let id = StreamId::new(5, u64::MAX);
        assert_eq!(id.next(), Some(StreamId::new(6, 0)));
        assert_eq!(StreamId::new(6, 0).prev(), Some(id));
        assert_eq!(StreamId::MAX.next(), None);
        assert_eq!(StreamId::MIN.prev(), None);
    }

    #[test]
    fn bytes_sort_as_ids() {
        let ids = [StreamId::MIN, StreamId::new(0, 9), StreamId::new(1, 0), StreamId::MAX];
        for pair in ids.windows(2) {
            assert!(pair[0].to_bytes() < pair[1].to_bytes());
        }
        for id in ids {
            assert_eq!(StreamId::decode(&id.to_bytes()), Some(id));
            assert_eq!(StreamId::at_least(&id.to_bytes()), Some(id));
            assert_eq!(StreamId::at_least(&[&id.to_bytes()[..], &[0]].concat()), id.next());
        }
        assert_eq!(StreamId::at_least(&[1]), Some(StreamId::new(1 << 56, 0)));
    }
}
