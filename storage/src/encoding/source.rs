//! The row of a shard's position in the stream of another server, whose replica this one is.
//!
//! ```text
//! C s | serial u64 | offset u64 | db u32 | extent u8 | id
//! C s | serial u64 | offset u64 | db u32 | extent u8 | id of 40 bytes | (end u64 | id of 40 bytes)*
//! ```
//!
//! The second form has the former streams, the last one first. A primary has an id of NULs there, and its own
//! stream first, with an end of all ones.
//!
//! The row is in the record of the rows that the stream has changed, in one of their shards: so the
//! position is exactly that of the data, after any crash. If the changes undo each other, the record has
//! nothing else. Of several shards' rows the one with the greatest serial counts.

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

/// Length of the ids in the form with former streams.
const ID: usize = 40;

/// Number of former streams that are stored, at most.
pub const MAX_FORMERS: usize = 5;

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
    /// The streams that went over into this one, the last one first, as far as they are known and their ids
    /// have 40 bytes. Without an id, the first one is this server's own stream.
    pub formers: Vec<FormerStream>,
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
        let is_whole = |former: &&FormerStream| former.id.len() == ID;
        let mut formers = self.formers.iter().take(MAX_FORMERS).take_while(is_whole).peekable();
        let has_formers = formers.peek().is_some() && (self.id.is_empty() || self.id.len() == ID);
        if !has_formers {
            out.extend_from_slice(&self.id);
            return out;
        }
        out.extend_from_slice(if self.id.is_empty() { &[0; ID] } else { &self.id });
        for former in formers {
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
        let (id, formers) = match id.split_at_checked(ID) {
            Some((id, rest)) if !rest.is_empty() => (id, decode_formers(rest)?),
            _ => (id, Vec::new()),
        };
        let id = if id == [0; ID] { &[] } else { id };
        Some(Self {
            serial: u64::from_be_bytes(*serial),
            offset: u64::from_be_bytes(*offset),
            db: u32::from_be_bytes(*db),
            extent,
            id: id.into(),
            formers,
        })
    }

    /// Returns the later one of two positions.
    #[must_use]
    pub fn later(self, other: Option<Self>) -> Self {
        other.filter(|other| other.serial > self.serial).unwrap_or(self)
    }
}

fn decode_formers(bytes: &[u8]) -> Option<Vec<FormerStream>> {
    let (formers, rest) = bytes.as_chunks::<{ 8 + ID }>();
    let decode = |former: &[u8; 8 + ID]| {
        let (end, id) = former.split_first_chunk()?;
        Some(FormerStream { id: id.into(), offset: u64::from_be_bytes(*end) })
    };
    rest.is_empty().then(|| formers.iter().map(decode).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::Row;

    #[test]
    fn a_position_roundtrips() {
        let (extent, id) = (SourceExtent::Part, b"0123456789"[..].into());
        let formers = Vec::new();
        let position = SourcePosition { serial: 3, offset: 1 << 40, db: 7, extent, id, formers };
        assert_eq!(SourcePosition::decode(&position.encode()), Some(position.clone()));
        assert_eq!(SourcePosition::decode(&position.encode()[..HEAD - 1]), None);
        let former = |n: u8| FormerStream { id: [n; ID].into(), offset: n.into() };
        for id in [vec![b'i'; ID], Vec::new()] {
            let formers = (1..=MAX_FORMERS as u8).map(former).collect();
            let long = SourcePosition { id: id.into(), formers, ..position.clone() };
            assert_eq!(SourcePosition::decode(&long.encode()), Some(long.clone()));
            assert_eq!(SourcePosition::decode(&long.encode()[..HEAD + ID + 7]), None);
            let mut more = long.clone();
            more.formers.push(former(9));
            assert_eq!(SourcePosition::decode(&more.encode()), Some(long.clone()));
            let alone = SourcePosition { formers: Vec::new(), ..long };
            assert_eq!(SourcePosition::decode(&alone.encode()), Some(alone));
        }
        let mut damaged = position.encode();
        damaged[HEAD - 1] = 2;
        assert_eq!(SourcePosition::decode(&damaged), None);
        assert_eq!(Row::parse(&SourcePosition::row_key()), Some(Row::Source));
        let later = SourcePosition { serial: 4, ..SourcePosition::default() };
        assert_eq!(position.clone().later(Some(later.clone())), later);
        assert_eq!(later.clone().later(Some(position)), later);
    }
}
