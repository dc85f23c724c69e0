//! Blind operations that are resolved (RFC 12): the corrections of the counters, and the control row
//! that says how far a shard has come.

use crate::counters::Counters;
use crate::encoding::{Row, get_varint, put_varint};
use crate::journal::Lsn;
use crate::value::JournaledState;
use std::collections::BTreeMap;

/// Keys, keys with an expiry, and the size of the keys in units, that blind operations replaced, by
/// generation and slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced(pub(crate) BTreeMap<(u32, u16), (u32, u32, u64)>);

impl Replaced {
    /// Adds a replaced row, given its key.
    pub(crate) fn add_row(&mut self, key: &[u8], old: &JournaledState) {
        if let Some(Row::Meta { generation, slot, .. }) = Row::parse(key) {
            self.add(generation, slot, old);
        }
    }

    /// Adds a replaced row.
    pub(crate) fn add(&mut self, generation: u32, slot: u16, old: &JournaledState) {
        let sum = self.0.entry((generation, slot)).or_default();
        sum.0 += 1;
        sum.1 += u32::from(old.expire_at_ms != 0);
        sum.2 += u64::from(old.units);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for (place, (keys, expires, units)) in &other.0 {
            let sum = self.0.entry(*place).or_default();
            *sum = (sum.0 + keys, sum.1 + expires, sum.2 + units);
        }
    }

    /// Takes the replaced keys off the counters.
    pub(crate) fn take_off(&self, counters: &mut Counters) {
        for (&(generation, slot), &sum) in &self.0 {
            counters.take_off(generation, slot, sum);
        }
    }
}

/// The control row that says which blind operations are resolved, although the shard has not
/// applied their records:
///
/// ```text
/// lsn u64 | operations | n | n × (generation | slot | keys | expires) | n × size    (varints)
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// All operations of earlier records are resolved,
    pub(crate) lsn: Lsn,
    /// and so many blind ones of the record at this lsn.
    pub(crate) ops: u64,
    /// The sum of their corrections since the shard's `applied`.
    pub(crate) replaced: Replaced,
}

impl Resolved {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.lsn.to_be_bytes().to_vec();
        put_varint(&mut out, self.ops);
        put_varint(&mut out, self.replaced.0.len() as u64);
        for ((generation, slot), (keys, expires, _)) in &self.replaced.0 {
            for number in [*generation, u32::from(*slot), *keys, *expires] {
                put_varint(&mut out, u64::from(number));
            }
        }
        for (.., units) in self.replaced.0.values() {
            put_varint(&mut out, *units);
        }
        out
    }

    /// Reads the control row; `None` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (lsn, mut rest) = bytes.split_first_chunk()?;
        let ops = get_varint(&mut rest)?;
        let mut replaced = BTreeMap::new();
        for _ in 0..get_varint(&mut rest)? {
            let mut number = || u32::try_from(get_varint(&mut rest)?).ok();
            let place = (number()?, u16::try_from(number()?).ok()?);
            replaced.insert(place, (number()?, number()?, 0));
        }
        // Earlier versions did not write sizes.
        let sizes = if rest.is_empty() { 0 } else { usize::MAX };
        for (.., units) in replaced.values_mut().take(sizes) {
            *units = get_varint(&mut rest)?;
        }
        let whole = rest.is_empty();
        whole.then(|| Self { lsn: u64::from_be_bytes(*lsn), ops, replaced: Replaced(replaced) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_roundtrips() {
        let mut replaced = Replaced::default();
        for slot in [0, 9, 16383, 9] {
            let state = JournaledState::new(u64::from(slot), 0, 0);
            replaced.add(7, slot, &state.of_size(u32::from(slot) + 1));
        }
        let resolved = Resolved { lsn: 5, ops: u64::MAX, replaced };
        let bytes = resolved.encode();
        assert_eq!(Resolved::decode(&bytes), Some(resolved));
        // Without any sizes it is that of an earlier version.
        let sizes = 5;
        assert!(Resolved::decode(&bytes[..bytes.len() - sizes]).is_some());
        for len in (0..bytes.len()).filter(|len| len + sizes != bytes.len()) {
            assert_eq!(Resolved::decode(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(Resolved::decode(&[&bytes[..], &[0]].concat()), None);
    }
}
