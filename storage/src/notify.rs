//! The classes of keyspace events, `notify-keyspace-events`.

use bitflags::bitflags;
use std::fmt;

bitflags! {
    /// A set of event classes. Bits as in Valkey's module API (`VALKEYMODULE_NOTIFY_*`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct NotifyFlags: u32 {
        const KEYSPACE = 1;
        const KEYEVENT = 1 << 1;
        /// Commands on keys of any type.
        const GENERIC = 1 << 2;
        const STRING = 1 << 3;
        const LIST = 1 << 4;
        const SET = 1 << 5;
        const HASH = 1 << 6;
        const ZSET = 1 << 7;
        const EXPIRED = 1 << 8;
        const EVICTED = 1 << 9;
        const STREAM = 1 << 10;
        /// A key that was asked for does not exist.
        const KEY_MISS = 1 << 11;
        const MODULE = 1 << 13;
        /// A key came into existence.
        const NEW = 1 << 14;
    }
}

impl NotifyFlags {
    /// Returns the classes that are published: none without a kind of channel.
    pub const fn published(self) -> Self {
        let is_silent = !self.intersects(Self::KEYSPACE.union(Self::KEYEVENT));
        if is_silent { Self::empty() } else { self }
    }

    /// Parses letters of classes; `None` if one is unknown.
    pub fn parse(classes: &str) -> Option<Self> {
        let mut flags = Self::default();
        for letter in classes.chars() {
            if letter == 'A' {
                flags |= Self::lettered_a();
                continue;
            }
            let (_, class) = ORDER.iter().find(|(known, _)| *known == letter)?;
            flags |= *class;
        }
        Some(flags)
    }

    /// Returns the classes of the letter `A`.
    fn lettered_a() -> Self {
        ORDER[..ALL_COUNT].iter().map(|(_, class)| *class).collect()
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
        if self.contains(Self::lettered_a()) {
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
