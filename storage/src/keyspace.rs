//! Positions in the order of the keyspace, and the keys there, as SCAN sees them.

use crate::slot::{Layout, SLOTS};
use std::ops::Range;

/// Bits of the hash in a cursor's number.
const HASH_BITS: u32 = 48;

/// Bits of a cursor: those of a slot and of the hash.
const CURSOR_BITS: u32 = SLOTS.trailing_zeros() + HASH_BITS;

/// A position in the order of the keyspace: by slot, then by the 48-bit keyed hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    pub slot: u16,
    pub hash48: u64,
}

impl Cursor {
    /// The beginning of the keyspace.
    pub const START: Self = Self { slot: 0, hash48: 0 };

    /// Returns the position behind some slots, unless that is the end.
    pub fn behind(slots: &Range<u16>) -> Option<Self> {
        (slots.end < SLOTS).then_some(Self { slot: slots.end, hash48: 0 })
    }

    /// Returns the cursor's number for SCAN: slot and hash in 62 bits, encrypted. 0 is the start,
    /// and the position behind the last slot.
    pub fn number(self, layout: &Layout) -> u64 {
        if self.slot >= SLOTS {
            return 0;
        }
        layout.cursors().seal(CURSOR_BITS, u64::from(self.slot) << HASH_BITS | self.hash48)
    }

    /// Returns the cursor of a number; `None` if the number has too many bits.
    pub fn from_number(number: u64, layout: &Layout) -> Option<Self> {
        if number >> CURSOR_BITS != 0 {
            return None;
        }
        let place = layout.cursors().open(CURSOR_BITS, number);
        let slot = u16::try_from(place >> HASH_BITS).ok()?;
        Some(Self { slot, hash48: place & ((1 << HASH_BITS) - 1) })
    }

    /// Returns the next position.
    pub(crate) fn next(self) -> Self {
        if self.hash48 + 1 < 1 << HASH_BITS {
            Self { slot: self.slot, hash48: self.hash48 + 1 }
        } else {
            Self { slot: self.slot + 1, hash48: 0 }
        }
    }
}

/// A key found by a scan.
#[derive(Clone, Debug)]
pub struct ScanKey {
    pub key: Box<[u8]>,
    pub type_name: &'static str,
    /// 0: the key never expires.
    pub expire_at_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_step_over_slots() {
        let last = Cursor { slot: 3, hash48: (1 << 48) - 1 };
        assert_eq!(last.next(), Cursor { slot: 4, hash48: 0 });
        assert_eq!(Cursor { slot: 3, hash48: 9 }.next(), Cursor { slot: 3, hash48: 10 });
    }

    #[test]
    fn cursors_are_numbers() {
        let layout = Layout::new(1, 3);
        let last = Cursor { slot: SLOTS - 1, hash48: (1 << HASH_BITS) - 1 };
        for cursor in [Cursor::START, Cursor { slot: 1, hash48: 0 }, last] {
            assert_eq!(Cursor::from_number(cursor.number(&layout), &layout), Some(cursor));
        }
        assert_eq!(Cursor::START.number(&layout), 0);
        let place = Cursor { slot: 1, hash48: 1 };
        assert_ne!(place.number(&layout), 1 << HASH_BITS | 1, "a cursor tells no hash");
        let behind_all = last.next();
        assert_eq!(behind_all.number(&layout), 0, "the end of the walk");
        assert_eq!(Cursor::from_number(1 << 62, &layout), None);
        assert_eq!(Cursor::from_number(u64::MAX, &layout), None);
    }
}
