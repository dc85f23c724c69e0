//! The classes of keyspace events, `notify-keyspace-events`.

use crate::notes::class;
use std::fmt;

/// A set of event classes. Bits as in Valkey's module API (`VALKEYMODULE_NOTIFY_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotifyFlags(u32);

impl NotifyFlags {
    pub const KEYSPACE: Self = Self(1);
    pub const KEYEVENT: Self = Self(1 << 1);
    pub const GENERIC: Self = Self(class::GENERIC);
    pub const STRING: Self = Self(1 << 3);
    pub const LIST: Self = Self(1 << 4);
    pub const SET: Self = Self(1 << 5);
    pub const HASH: Self = Self(class::HASH);
    pub const ZSET: Self = Self(1 << 7);
    pub const EXPIRED: Self = Self(class::EXPIRED);
    pub const EVICTED: Self = Self(1 << 9);
    pub const STREAM: Self = Self(1 << 10);
    pub const KEY_MISS: Self = Self(class::KEY_MISS);
    pub const MODULE: Self = Self(1 << 13);
    pub const NEW: Self = Self(class::NEW);

    /// Returns true if nothing is published: no class, or neither channel kind.
    pub const fn is_silent(self) -> bool {
        self.0 & (Self::KEYSPACE.0 | Self::KEYEVENT.0) == 0
    }

    /// Returns true if all classes of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits of its classes; none if nothing is published.
    pub const fn classes(self) -> u32 {
        if self.is_silent() { 0 } else { self.0 }
    }

    /// Returns the union of both sets.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Parses letters of classes; `None` if one is unknown.
    pub fn parse(classes: &str) -> Option<Self> {
        let mut flags = Self::default();
        for letter in classes.chars() {
            if letter == 'A' {
                flags = flags.union(Self::all());
                continue;
            }
            let (_, class) = ORDER.iter().find(|(known, _)| *known == letter)?;
            flags = flags.union(*class);
        }
        Some(flags)
    }

    /// Returns the classes of the letter `A`.
    fn all() -> Self {
        ORDER[..ALL_COUNT].iter().fold(Self::default(), |all, (_, class)| all.union(*class))
    }
}

impl From<NotifyFlags> for u32 {
    /// Returns the bits of its classes.
    fn from(flags: NotifyFlags) -> Self {
        flags.0
    }
}

/// Letters in the order in which they are shown.
const ORDER: [(char, NotifyFlags); 14] = [
    ('g', NotifyFlags::GENERIC),
    ('$', NotifyFlags::STRING),
    ('l', NotifyFlags::LIST),
    ('s', NotifyFlags::SET),
    ('h', NotifyFlags::HASH),
    ('z', NotifyFlags::ZSET),
    ('x', NotifyFlags::EXPIRED),
    ('e', NotifyFlags::EVICTED),
    ('t', NotifyFlags::STREAM),
    ('d', NotifyFlags::MODULE),
    ('n', NotifyFlags::NEW),
    ('K', NotifyFlags::KEYSPACE),
    ('E', NotifyFlags::KEYEVENT),
    ('m', NotifyFlags::KEY_MISS),
];
/// Number of the first letters of [`ORDER`] that `A` comprises.
const ALL_COUNT: usize = 10;

impl fmt::Display for NotifyFlags {
    /// Writes the canonical letters. Unlike Valkey's, the text keeps `n` beside `A`, so that it can
    /// be read back without loss.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut letters = &ORDER[..];
        if self.contains(Self::all()) {
            formatter.write_str("A")?;
            letters = &ORDER[ALL_COUNT..];
        }
        for (letter, class) in letters {
            if self.contains(*class) {
                write!(formatter, "{letter}")?;
            }
        }
        Ok(())
    }
}
