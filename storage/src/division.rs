//! Which slots the shards of one server have once some were split, and where those are that were split from
//! others in a bucket (RFC 22).
//!
//! In a bucket a control row of the first shard's engine has it, as only the owner can write that:
//!
//! ```text
//! C division  id of the directory u128 | n × (first u16 | last u16 | split from shard u16 | in epoch u64)
//! ```
//!
//! The epoch is 0 for a shard that is in the directory of its number.

use crate::slot::SplitPlan;
use std::ops::Range;

/// Bytes of a shard in the control row.
const PART_BYTES: usize = 14;

/// A shard among others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardPart {
    pub(crate) slots: Range<u16>,
    /// The shard that it was split from, in a bucket.
    pub(crate) origin: Option<PartOrigin>,
}

/// Where a shard in a bucket comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartOrigin {
    pub(crate) shard: u16,
    /// The epoch of the server that has split it, which is a part of its place: an owner of before that still
    /// writes there disturbs nobody.
    pub(crate) epoch: u64,
}

/// The shards of a directory in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    /// Id of the directory: in a copy of its files the row means nothing.
    pub(crate) id: u128,
    pub(crate) parts: Vec<ShardPart>,
}

impl ShardPart {
    /// Returns the shards of `parts` once one was split as planned; `None`: none was split before.
    pub(crate) fn split(
        parts: Option<&[Self]>,
        plan: &SplitPlan,
        origin: Option<PartOrigin>,
    ) -> Vec<Self> {
        let origins = parts.into_iter().flatten().map(|part| part.origin);
        let missing = plan.division().len().saturating_sub(1 + parts.map_or(0, <[Self]>::len));
        let origins = origins.chain(std::iter::repeat_n(None, missing)).chain([origin]);
        let slots = plan.division().iter().cloned();
        slots.zip(origins).map(|(slots, origin)| Self { slots, origin }).collect()
    }
}

impl Division {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.id.to_be_bytes().to_vec();
        for ShardPart { slots, origin } in &self.parts {
            let last = slots.end.saturating_sub(1);
            let (shard, epoch) = origin.map_or((0, 0), |from| (from.shard, from.epoch));
            [slots.start, last, shard].iter().for_each(|number| out.extend(number.to_be_bytes()));
            out.extend(epoch.to_be_bytes());
        }
        out
    }

    /// Decodes the row; `None` if it is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (parts, rest) = rest.as_chunks::<PART_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let parts = parts.iter().map(part).collect::<Option<_>>()?;
        Some(Self { id: u128::from_be_bytes(*id), parts })
    }
}

fn part(bytes: &[u8; PART_BYTES]) -> Option<ShardPart> {
    let number = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let epoch = u64::from_be_bytes(*bytes.last_chunk()?);
    let origin = Some(PartOrigin { shard: number(4)?, epoch }).filter(|from| from.epoch > 0);
    Some(ShardPart { slots: number(0)?..number(2)?.checked_add(1)?, origin })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Layout;

    #[test]
    fn a_division_reads_as_it_was_written() {
        let origin = Some(PartOrigin { shard: 1, epoch: 7 });
        let layout = Layout::new(2, 0);
        let plan = SplitPlan::new(&layout, 1, None).unwrap();
        let parts = ShardPart::split(None, &plan, origin);
        assert_eq!(parts.iter().map(|part| part.origin).collect::<Vec<_>>(), [None, None, origin]);
        let division = Division { id: 9, parts: parts.clone() };
        let bytes = division.encode();
        assert_eq!(Division::decode(&bytes), Some(division));
        assert_eq!(Division::decode(&bytes[1..]), None);
        layout.divide(plan.division().to_vec());
        let plan = SplitPlan::new(&layout, 0, None).unwrap();
        let again = ShardPart::split(Some(&parts), &plan, None);
        let origins: Vec<_> = again.iter().map(|part| part.origin).collect();
        assert_eq!(origins, [None, None, origin, None]);
        assert_eq!(again.iter().map(|part| part.slots.len()).sum::<usize>(), 16384);
    }
}
