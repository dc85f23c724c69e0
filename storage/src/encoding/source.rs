//! The row of a shard's position in the stream of another server, whose replica this one is.
//!
//! ```text
//! C s | serial u64 | offset u64 | db u32 | extent u8 | id
//! C s | serial u64 | offset u64 | db u32 | extent u8 | id of 40 bytes | former offset u64 | former id
//! ```
//!
//! The row is in the record of the rows that the stream has changed, in one of their shards: so the
//! position is exactly that of the data, after any crash. Of several shards' rows the one with the
//! greatest serial counts.

use super::keys::row;

/// Second byte of the key of the row.
pub(super) const SOURCE: u8 = b's';

/// Length of the row's value before the id.
const HEAD: usize = 8 + 8 + 4 + 1;

/// Part of another server's data set that is stored here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceExtent {
    /// The data is that of this server alone, or of the stream at the position.
    #[default]
    Whole,
    /// A data set was being loaded: the stored data is an unknown part of it.
    Part,
}

/// Length of an id that a former stream may be behind.
const ID: usize = 40;

/// A stream that ended, and went over into another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerStream {
    pub id: Box<[u8]>,
    /// Number of its bytes.
    pub offset: u64,
}

/// A position in the stream of another server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePosition {
    /// Counts the positions that were stored.
    pub serial: u64,
    /// Number of bytes of the stream that are applied.
    pub offset: u64,
    /// Database that the stream has selected there.
    pub db: u32,
    pub extent: SourceExtent,
    /// Replication id of the stream; empty if the data is not that of a stream.
    pub id: Box<[u8]>,
    /// The stream that went over into this one; `None`: not known. Ids of less or more than 40 bytes have
    /// none.
    pub former: Option<FormerStream>,
}

impl SourcePosition {
    /// Returns the key of the row.
    pub fn row_key() -> [u8; 2] {
        [row::CONTROL, SOURCE]
    }

    /// Returns the value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.id.len());
        out.extend_from_slice(&self.serial.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        out.extend_from_slice(&self.db.to_be_bytes());
        out.push(match self.extent {
            SourceExtent::Whole => 0,
            SourceExtent::Part => 1,
        });
        out.extend_from_slice(&self.id);
        if let Some(former) = self.former.as_ref().filter(|_| self.id.len() == ID) {
            out.extend_from_slice(&former.offset.to_be_bytes());
            out.extend_from_slice(&former.id);
        }
        out
    }

    /// Decodes the row's value; `None` if it is damaged.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let (serial, rest) = value.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (db, rest) = rest.split_first_chunk()?;
        let (extent, id) = rest.split_first()?;
        let extent = match extent {
            0 => SourceExtent::Whole,
            1 => SourceExtent::Part,
            _ => return None,
        };
        let (id, rest) = id.split_at_checked(ID).unwrap_or((id, &[]));
        let former = match rest.split_first_chunk() {
            Some((offset, id)) => {
                Some(FormerStream { id: id.into(), offset: u64::from_be_bytes(*offset) })
            }
            None if rest.is_empty() => None,
            None => return None,
        };
        Some(Self {
            serial: u64::from_be_bytes(*serial),
            offset: u64::from_be_bytes(*offset),
            db: u32::from_be_bytes(*db),
            extent,
            id: id.into(),
            former,
        })
    }

    /// Returns the later one of two positions.
    #[must_use]
    pub fn later(self, other: Option<Self>) -> Self {
        other.filter(|other| other.serial > self.serial).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Row;

    #[test]
    fn a_position_roundtrips() {
        let (extent, id) = (SourceExtent::Part, b"0123456789"[..].into());
        let former = None;
        let position = SourcePosition { serial: 3, offset: 1 << 40, db: 7, extent, id, former };
        assert_eq!(SourcePosition::decode(&position.encode()), Some(position.clone()));
        assert_eq!(SourcePosition::decode(&position.encode()[..HEAD - 1]), None);
        let former = FormerStream { id: b"former"[..].into(), offset: 5 };
        let id = b"i".repeat(ID).into();
        let long = SourcePosition { id, former: Some(former), ..position.clone() };
        assert_eq!(SourcePosition::decode(&long.encode()), Some(long.clone()));
        assert_eq!(SourcePosition::decode(&long.encode()[..HEAD + ID + 7]), None);
        let alone = SourcePosition { former: None, ..long };
        assert_eq!(SourcePosition::decode(&alone.encode()), Some(alone));
        let mut damaged = position.encode();
        damaged[HEAD - 1] = 2;
        assert_eq!(SourcePosition::decode(&damaged), None);
        assert_eq!(Row::parse(&SourcePosition::row_key()), Some(Row::Source));
        let later = SourcePosition { serial: 4, ..SourcePosition::default() };
        assert_eq!(position.clone().later(Some(later.clone())), later);
        assert_eq!(later.clone().later(Some(position)), later);
    }
}
