//! The slots that a server has given away in this life: records of its journal may be of them.

use flagstone_storage::slot::{MAX_SHARDS, SLOTS};
use std::ops::Range;

/// The word for no slots.
const NOTHING: &str = "-";

/// Slots as ranges, in order, none of which touches the next one. Slots stay the same when the next owner
/// splits their shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenSlots(Vec<Range<u16>>);

impl GivenSlots {
    pub(super) fn add(&mut self, slots: Range<u16>) {
        self.0.push(slots);
        self.0.sort_by_key(|it| it.start);
        let mut merged: Vec<Range<u16>> = Vec::with_capacity(self.0.len());
        for slots in self.0.drain(..) {
            match merged.last_mut() {
                Some(last) if last.end >= slots.start => last.end = last.end.max(slots.end),
                _ => merged.push(slots),
            }
        }
        self.0 = merged;
    }

    /// Returns true if a slot of a range is one of them.
    pub fn has_any_of(&self, slots: &Range<u16>) -> bool {
        self.0.iter().any(|it| it.start < slots.end && slots.start < it.end)
    }

    /// Returns them as a word of a beat, such as `0-511,1024-1535`.
    pub fn word(&self) -> String {
        if self.0.is_empty() {
            return NOTHING.to_owned();
        }
        let ranges = self.0.iter().map(|it| format!("{}-{}", it.start, it.end - 1));
        ranges.collect::<Vec<_>>().join(",")
    }

    /// Reads such a word.
    pub fn parse(word: &str) -> Option<Self> {
        let mut slots = Self::default();
        if word == NOTHING {
            return Some(slots);
        }
        for range in word.split(',').take(usize::from(MAX_SHARDS) + 1) {
            let (first, last) = range.split_once('-')?;
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            let is_next = slots.0.last().is_none_or(|it| it.end < first);
            if !is_next || first > last || last >= SLOTS {
                return None;
            }
            slots.0.push(first..last + 1);
        }
        (slots.0.len() <= usize::from(MAX_SHARDS)).then_some(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut slots = GivenSlots::default();
        assert_eq!((&*slots.word(), slots.has_any_of(&(0..SLOTS))), ("-", false));
        for range in [100..200, 10..20, 200..300, 15..18, 0..10, 100..300] {
            slots.add(range);
        }
        assert_eq!(slots.word(), "0-19,100-299");
        let asked = [0..1, 19..20, 20..100, 90..101, 299..400, 300..400];
        assert_eq!(asked.map(|it| slots.has_any_of(&it)), [true, true, false, true, true, false]);
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        for word in ["-", "0-0", "0-16383", "0-19,100-299"] {
            assert_eq!(GivenSlots::parse(word).expect(word).word(), word);
        }
        for word in ["", "0", "0-", "5-4", "0-16384", "0-19,20-30", "9-10,1-2", "0-1,", "-,-"] {
            assert_eq!(GivenSlots::parse(word), None, "{word}");
        }
        let many = |count: u16| (0..count).map(|n| format!("{0}-{0}", 2 * n)).collect::<Vec<_>>();
        assert!(GivenSlots::parse(&many(MAX_SHARDS).join(",")).is_some());
        assert!(GivenSlots::parse(&many(MAX_SHARDS + 1).join(",")).is_none());
    }
}
