//! Expiries of fields: how commands write them, and what setting one does.

use super::{hash_in, take};
use crate::{Stop, error, is_word};
use flagstone_storage::store::EntryMut;

/// The latest expiry of a field, in ms since the Unix epoch, as in Redis 8.
const MAX_EXPIRE_AT_MS: i64 = (1 << 46) - 1;

/// How a time is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    pub(super) in_seconds: bool,
    /// Counted from now on, not from the Unix epoch.
    pub(super) relative: bool,
}

impl Form {
    pub(super) const EX: Self = Self { in_seconds: true, relative: true };
    pub(super) const PX: Self = Self { in_seconds: false, relative: true };
    pub(super) const EXAT: Self = Self { in_seconds: true, relative: false };
    pub(super) const PXAT: Self = Self { in_seconds: false, relative: false };

    /// The form that one of the words EX, PX, EXAT, PXAT asks for.
    pub(super) fn of_word(word: &[u8]) -> Option<Self> {
        [("EX", Self::EX), ("PX", Self::PX), ("EXAT", Self::EXAT), ("PXAT", Self::PXAT)]
            .into_iter()
            .find_map(|(name, form)| is_word(word, name).then_some(form))
    }

    /// Reads a time written so, in ms since the Unix epoch; `command` is for the error.
    pub(super) fn parse(self, text: &[u8], now_ms: u64, command: &str) -> Result<u64, Stop> {
        let time = flagstone_wire::num::parse_i64(text).ok_or(error::NOT_INTEGER)?;
        if time < 0 {
            return Err("ERR invalid expire time, must be >= 0".into());
        }
        let scale = if self.in_seconds { 1000 } else { 1 };
        let base = if self.relative { now_ms.cast_signed() } else { 0 };
        time.checked_mul(scale)
            .filter(|&ms| ms <= MAX_EXPIRE_AT_MS - base)
            .map(|ms| (ms + base).cast_unsigned())
            .ok_or_else(|| error::invalid_expire(command).into())
    }

    /// A time as it is answered: a relative one as what is left of it, seconds rounded up.
    pub(super) fn show(self, expire_at_ms: u64, now_ms: u64) -> i64 {
        let ms = if self.relative { expire_at_ms.saturating_sub(now_ms) } else { expire_at_ms };
        (if self.in_seconds { ms.div_ceil(1000) } else { ms }).cast_signed()
    }
}

/// When an expiry is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    /// The field has none (NX).
    None,
    /// It has one (XX).
    Some,
    /// It has an earlier one (GT).
    Later,
    /// It has none, or a later one (LT).
    Earlier,
}

impl Condition {
    /// The condition that one of the words NX, XX, GT, LT asks for.
    pub(super) fn of_word(word: &[u8]) -> Option<Self> {
        [("NX", Self::None), ("XX", Self::Some), ("GT", Self::Later), ("LT", Self::Earlier)]
            .into_iter()
            .find_map(|(name, condition)| is_word(word, name).then_some(condition))
    }

    /// Whether an expiry may follow `old` (0: none).
    fn allows(self, old: u64, new: u64) -> bool {
        match self {
            Self::Always => true,
            Self::None => old == 0,
            Self::Some => old != 0,
            Self::Later => old != 0 && old < new,
            Self::Earlier => old == 0 || old > new,
        }
    }
}

/// What became of setting an expiry; the numbers are what HEXPIRE answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    NoField = -2,
    ConditionNotMet = 0,
    Set = 1,
    /// It is in the past: the field is gone.
    Deleted = 2,
}

/// Sets the expiry of a known field; a time that has passed removes the field.
pub(super) fn apply(
    entry: &mut EntryMut<'_>,
    name: &[u8],
    expire_at_ms: u64,
    now_ms: u64,
    condition: Condition,
) -> Applied {
    let field = hash_in(entry).and_then(|hash| hash.get(name, now_ms).ok().flatten());
    let Some(old) = field.map(|field| field.expire_at_ms) else { return Applied::NoField };
    if !condition.allows(old, expire_at_ms) {
        return Applied::ConditionNotMet;
    }
    if expire_at_ms <= now_ms {
        take(entry, name);
        return Applied::Deleted;
    }
    if old != expire_at_ms {
        entry.as_hash_mut().map(|hash| hash.set_expiry(name, expire_at_ms));
    }
    Applied::Set
}
