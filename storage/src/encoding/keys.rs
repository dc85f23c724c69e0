//! Row keys: kind first, so that each kind can be an engine segment of its own; then the slot, so
//! that a shard can be split by ranges without rewriting it.

use super::library::LIBRARY;
use super::source::SOURCE;
use crate::slot::KeyHash;
use sha2::{Digest, Sha256};

/// The kinds of rows, by their first byte.
pub mod row {
    /// Meta row: type, expiry, size, and the value when it is small.
    pub const META: u8 = b'M';
    /// Element row: one field or chunk of a value that has outgrown its meta row.
    pub const ELEMENT: u8 = b'E';
    /// Expiry index.
    pub const TIME: u8 = b'T';
    /// Dead version, or a part of one: its element rows may be swept.
    pub const DEAD: u8 = b'D';
    /// Shard-wide: applied, reaches, generations, counters. Libraries of functions.
    pub const CONTROL: u8 = b'C';
}

/// Element names longer than this are keyed by their SHA-256.
const MAX_PLAIN_NAME: usize = 32 * 1024;

/// Longest user key in bytes, so that it fits into an engine key (64 KiB) behind a row's head.
pub const MAX_KEY: usize = 65_000;

const PLAIN: u8 = 0;
const DIGEST: u8 = 1;

/// Offset of the slot in a meta row key.
const META_SLOT: usize = 5;
/// Offset of the slot in the key of a row of the expiry index.
const TIME_SLOT: usize = 9;
/// Bits of the hash behind the slot, which are the last 48 of eight bytes.
const HASH_BITS: u32 = 48;
/// Length of a meta row key before the user key: kind, generation, slot, hash48.
const META_HEAD: usize = 1 + 4 + 2 + 6;
/// Length of an element row key before the element: kind, slot, version.
const ELEMENT_HEAD: usize = 1 + 2 + 8;

/// Builds row keys.
pub struct RowKey;

impl RowKey {
    /// Appends `M | generation u32 | slot u16 | hash48 | key`.
    pub fn meta(out: &mut Vec<u8>, generation: u32, at: KeyHash, key: &[u8]) {
        Self::meta_prefix(out, generation, at.slot, at.hash48());
        out.extend_from_slice(key);
    }

    /// Appends the beginning of the keys of meta rows from a hash on.
    pub fn meta_prefix(out: &mut Vec<u8>, generation: u32, slot: u16, hash48: u64) {
        let place = u64::from(slot) << HASH_BITS | hash48;
        let mut head = [row::META; META_HEAD];
        head[1..META_SLOT].copy_from_slice(&generation.to_be_bytes());
        head[META_SLOT..].copy_from_slice(&place.to_be_bytes());
        out.extend_from_slice(&head);
    }

    /// Appends `E | slot u16 | version u64`: the beginning of the keys of all element rows of a
    /// version.
    pub fn elements(out: &mut Vec<u8>, slot: u16, version: u64) {
        out.push(row::ELEMENT);
        out.extend_from_slice(&slot.to_be_bytes());
        out.extend_from_slice(&version.to_be_bytes());
    }

    /// Returns `hash u64 | 0 | name`, or `hash u64 | 1 | sha256` for a name too long for an engine
    /// key.
    pub fn named_element(hash: u64, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(9 + name.len().min(32));
        out.extend_from_slice(&hash.to_be_bytes());
        if name.len() <= MAX_PLAIN_NAME {
            out.push(PLAIN);
            out.extend_from_slice(name);
        } else {
            out.push(DIGEST);
            out.extend_from_slice(&Sha256::digest(name));
        }
        out
    }

    /// Returns true if rows of this name store the name in their value.
    pub fn name_is_digested(name: &[u8]) -> bool {
        name.len() > MAX_PLAIN_NAME
    }

    /// Returns a name for a key that sorts by names: the name itself, or its first 32 KiB and
    /// `sha256` if it is longer.
    pub fn ordered_name(name: &[u8]) -> std::borrow::Cow<'_, [u8]> {
        if !Self::name_is_digested(name) {
            return name.into();
        }
        let mut out = name[..MAX_PLAIN_NAME].to_vec();
        out.extend_from_slice(&Sha256::digest(name));
        out.into()
    }

    /// Returns `T | expire_at_ms u64 | slot u16 | generation u32 | what u8 | key`; `what` is 0 for
    /// the key itself and 1 for the earliest of its fields.
    pub fn time(at_ms: u64, slot: u16, generation: u32, fields: bool, key: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + key.len());
        out.push(row::TIME);
        out.extend_from_slice(&at_ms.to_be_bytes());
        out.extend_from_slice(&slot.to_be_bytes());
        out.extend_from_slice(&generation.to_be_bytes());
        out.push(u8::from(fields));
        out.extend_from_slice(key);
        out
    }

    /// Returns `D | slot u16 | version u64`.
    pub fn dead(slot: u16, version: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(11);
        out.push(row::DEAD);
        out.extend_from_slice(&slot.to_be_bytes());
        out.extend_from_slice(&version.to_be_bytes());
        out
    }

    /// Returns `D | slot u16 | version u64 | prefix`, given the head of the version's element rows:
    /// the elements with this prefix are dead, and no new ones will follow.
    pub fn dead_elements(head: &[u8], prefix: &[u8]) -> Vec<u8> {
        let mut out = [head, prefix].concat();
        out[0] = row::DEAD;
        out
    }
}

/// A parsed row key.
#[derive(Debug, PartialEq, Eq)]
pub enum Row<'a> {
    Meta {
        generation: u32,
        slot: u16,
        hash48: u64,
        key: &'a [u8],
    },
    Element {
        slot: u16,
        version: u64,
        element: &'a [u8],
    },
    Time {
        at_ms: u64,
        slot: u16,
        generation: u32,
        fields: bool,
        key: &'a [u8],
    },
    /// All elements of a version, or those with a prefix.
    Dead {
        slot: u16,
        version: u64,
        prefix: &'a [u8],
    },
    Control {
        name: &'a [u8],
    },
    Library {
        name: &'a [u8],
    },
    /// The position in the stream of another server.
    Source,
}

impl<'a> Row<'a> {
    /// Parses a row key; `None` if it is of no known form.
    pub fn parse(row_key: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = row_key.split_first()?;
        Some(match kind {
            row::META => {
                let (head, key) = row_key.split_at_checked(META_HEAD)?;
                let place = be_u64(&head[META_SLOT..])?;
                Self::Meta {
                    generation: be_u32(&head[1..META_SLOT])?,
                    slot: (place >> HASH_BITS) as u16,
                    hash48: place & ((1 << HASH_BITS) - 1),
                    key,
                }
            }
            row::ELEMENT => Self::Element {
                slot: be_u16(rest.get(..2)?)?,
                version: be_u64(rest.get(2..10)?)?,
                element: row_key.get(ELEMENT_HEAD..)?,
            },
            row::TIME => Self::Time {
                at_ms: be_u64(rest.get(..8)?)?,
                slot: be_u16(rest.get(8..10)?)?,
                generation: be_u32(rest.get(10..14)?)?,
                fields: *rest.get(14)? == 1,
                key: rest.get(15..)?,
            },
            row::DEAD => Self::Dead {
                slot: be_u16(rest.get(..2)?)?,
                version: be_u64(rest.get(2..10)?)?,
                prefix: row_key.get(ELEMENT_HEAD..)?,
            },
            row::CONTROL => match rest {
                [LIBRARY, name @ ..] => Self::Library { name },
                [SOURCE] => Self::Source,
                name => Self::Control { name },
            },
            _ => return None,
        })
    }

    /// Returns the name in an element built by [`RowKey::named_element`], unless it is digested.
    pub fn plain_name(element: &'a [u8]) -> Option<&'a [u8]> {
        (*element.get(8)? == PLAIN).then(|| &element[9..])
    }
}

/// Returns the slot of a row; `None` if it belongs to none, or is damaged.
pub(crate) fn slot_of_row(row_key: &[u8]) -> Option<u16> {
    let at = match row_key.first()? {
        &row::META => META_SLOT,
        &row::ELEMENT | &row::DEAD => 1,
        &row::TIME => TIME_SLOT,
        _ => return None,
    };
    be_u16(row_key.get(at..at + 2)?)
}

fn be_u16(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

fn be_u32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn be_u64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the key range of all rows that begin with `prefix`.
pub fn prefix_range(prefix: &[u8]) -> std::ops::Range<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    prefix.to_vec()..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_roundtrip() {
        let at = KeyHash { slot: 513, hash: 0x0123_4567_89ab_cdef };
        let mut key = Vec::new();
        RowKey::meta(&mut key, 7, at, b"user");
        assert_eq!(
            Row::parse(&key),
            Some(Row::Meta { generation: 7, slot: 513, hash48: 0x0123_4567_89ab, key: b"user" })
        );
        let time = RowKey::time(99, 5, 7, true, b"k");
        assert_eq!(
            Row::parse(&time),
            Some(Row::Time { at_ms: 99, slot: 5, generation: 7, fields: true, key: b"k" })
        );
        assert_eq!([&key, &time].map(|row| slot_of_row(row)), [Some(513), Some(5)]);
        assert_eq!(slot_of_row(&[row::CONTROL, b'n', 0, 0, 0, 0, 0, 0]), None);
        let dead = RowKey::dead(3, 9);
        assert_eq!(slot_of_row(&dead), Some(3));
        assert_eq!(Row::parse(&dead), Some(Row::Dead { slot: 3, version: 9, prefix: b"" }));
        let mut head = Vec::new();
        RowKey::elements(&mut head, 3, 9);
        let dead = RowKey::dead_elements(&head, b"p");
        assert_eq!(Row::parse(&dead), Some(Row::Dead { slot: 3, version: 9, prefix: b"p" }));
        assert_eq!(Row::parse(b"X"), None);
        let long = vec![b'x'; MAX_PLAIN_NAME + 1];
        assert_eq!(RowKey::named_element(1, &long).len(), 41);
        assert_eq!(Row::plain_name(&RowKey::named_element(1, b"f")), Some(&b"f"[..]));
    }
}
