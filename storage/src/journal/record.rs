//! A record on disk: a header of 64 bytes, the shards, the body, zeros up to a multiple of 8.

use std::ops::Range;

use super::Lsn;

/// Length of a record header in bytes.
pub(super) const HEADER: usize = 64;
/// Alignment of the offsets of records.
pub(super) const ALIGN: u64 = 8;

const MAGIC: [u8; 4] = *b"FSJR";
const KIND_COMMIT: u16 = 0;
const KIND_MARK: u16 = 1;
const KIND_ADOPTION: u16 = 2;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordKind {
    Commit,
    /// It is no commit, but states that everything before it is durable (written at a clean end).
    Mark,
    /// A commit of a life that has taken shards from other lives: its lsn may jump, beyond the
    /// records that these have written.
    Adoption,
}

/// The header of a part of a commit, or of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    /// CRC of this header and, by `body_crc`, of the whole record; the next record repeats it. Set
    /// by `encode`.
    pub(super) crc: u32,
    /// Bytes of the body in this part.
    pub(super) body_len: u32,
    pub(super) shard_count: u16,
    pub(super) kind: RecordKind,
    pub(super) epoch: u64,
    pub(super) lsn: Lsn,
    pub(super) time_ms: u64,
    /// The greatest durable lsn known when it was written.
    pub(super) durable: Lsn,
    /// `crc` of the record before it.
    pub(super) prev_crc: u32,
    /// Number of the part, from 1 on; 0 in a mark.
    pub(super) part: u32,
    /// Number of the commit's parts; 0 in a mark.
    pub(super) parts: u32,
    /// CRC of shards, body and padding.
    pub(super) body_crc: u32,
}

impl RecordHeader {
    /// Encodes the header and sets `crc`; `salt` is the journal's.
    pub(super) fn encode(&mut self, salt: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.shard_count.to_le_bytes());
        let kind = match self.kind {
            RecordKind::Commit => KIND_COMMIT,
            RecordKind::Mark => KIND_MARK,
            RecordKind::Adoption => KIND_ADOPTION,
        };
        bytes[14..16].copy_from_slice(&kind.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.time_ms.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.durable.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.prev_crc.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.part.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.parts.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.body_crc.to_le_bytes());
        self.crc = crc32c::crc32c_append(salt, &bytes[8..]);
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// Decodes the header at the beginning of `bytes` (at least [`HEADER`] long); `None` if there
    /// is no valid one.
    pub(super) fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        if bytes[0..4] != MAGIC {
            return None;
        }
        let crc = le_u32(bytes, 4);
        if crc != crc32c::crc32c_append(salt, &bytes[8..HEADER]) {
            return None;
        }
        let kind = match u16::from_le_bytes([bytes[14], bytes[15]]) {
            KIND_COMMIT => RecordKind::Commit,
            KIND_MARK => RecordKind::Mark,
            KIND_ADOPTION => RecordKind::Adoption,
            _ => return None,
        };
        Some(Self {
            crc,
            body_len: le_u32(bytes, 8),
            shard_count: u16::from_le_bytes([bytes[12], bytes[13]]),
            kind,
            epoch: le_u64(bytes, 16),
            lsn: le_u64(bytes, 24),
            time_ms: le_u64(bytes, 32),
            durable: le_u64(bytes, 40),
            prev_crc: le_u32(bytes, 48),
            part: le_u32(bytes, 52),
            parts: le_u32(bytes, 56),
            body_crc: le_u32(bytes, 60),
        })
    }

    /// Returns the length of the whole record in bytes, including padding.
    pub(super) fn record_len(&self) -> u64 {
        record_len(usize::from(self.shard_count), u64::from(self.body_len))
    }

    /// Returns the range of the body behind the header.
    pub(super) fn body_range(&self) -> Range<usize> {
        let start = 2 * usize::from(self.shard_count);
        start..start + self.body_len as usize
    }
}

/// Returns the length in bytes of a record of `shards` shards and `body` bytes, including padding.
pub(super) fn record_len(shards: usize, body: u64) -> u64 {
    (HEADER as u64 + 2 * shards as u64 + body).next_multiple_of(ALIGN)
}

/// Decodes the shards at the beginning of the bytes behind a header.
pub(super) fn decode_shards(payload: &[u8], count: u16) -> Vec<u16> {
    let (pairs, _) = payload[..2 * usize::from(count)].as_chunks::<2>();
    pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect()
}

pub(super) fn le_u32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

pub(super) fn le_u64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
