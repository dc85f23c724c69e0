//! Expiries of hash fields: their form in commands, and setting them.

use super::{hash_in, remove_field};
use crate::{Stop, error, is_word};
use flagstone_storage::store::EntryMut;

/// Maximum expiry of a field, in ms since the Unix epoch, as in Redis 8.
const MAX_EXPIRE_AT_MS: i64 = (1 << 46) - 1;

/// Unit and origin of a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldTimeForm {
    pub(super) in_seconds: bool,
    /// True if the time counts from now, not from the Unix epoch.
    pub(super) relative: bool,
}

impl FieldTimeForm {
    pub(super) const EX: Self = Self { in_seconds: true, relative: true };
    pub(super) const PX: Self = Self { in_seconds: false, relative: true };
    pub(super) const EXAT: Self = Self { in_seconds: true, relative: false };
    pub(super) const PXAT: Self = Self { in_seconds: false, relative: false };

    /// Returns the form of one of the words EX, PX, EXAT, PXAT.
    pub(super) fn of_word(word: &[u8]) -> Option<Self> {
        [("EX", Self::EX), ("PX", Self::PX), ("EXAT", Self::EXAT), ("PXAT", Self::PXAT)]
            .into_iter()
            .find_map(|(name, form)| is_word(word, name).then_some(form))
    }

    /// Parses a time of this form, and returns it in ms since the Unix epoch; `command` is named in
    /// the error.
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

    /// Converts an expiry to this form for a reply: a relative one is the remaining time, in
    /// seconds rounded up.
    pub(super) fn show(self, expire_at_ms: u64, now_ms: u64) -> i64 {
        let ms = if self.relative { expire_at_ms.saturating_sub(now_ms) } else { expire_at_ms };
        (if self.in_seconds { ms.div_ceil(1000) } else { ms }).cast_signed()
    }
}

/// Condition for setting an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpiryCondition {
    Always,
    /// NX: the field has no expiry.
    None,
    /// XX: the field has an expiry.
    Some,
    /// GT: the field has an earlier expiry.
    Later,
    /// LT: the field has no expiry, or a later one.
    Earlier,
}

impl ExpiryCondition {
    /// Returns the condition of one of the words NX, XX, GT, LT.
    pub(super) fn of_word(word: &[u8]) -> Option<Self> {
        [("NX", Self::None), ("XX", Self::Some), ("GT", Self::Later), ("LT", Self::Earlier)]
            .into_iter()
            .find_map(|(name, condition)| is_word(word, name).then_some(condition))
    }

    /// Returns true if the expiry `new` may replace `old` (0: none).
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

/// The result of setting an expiry; the numbers are HEXPIRE's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Applied {
    NoField = -2,
    ConditionNotMet = 0,
    Set = 1,
    /// The expiry is in the past: the field was removed.
    Deleted = 2,
}

/// Sets the expiry of a known field; a time up to `due_ms` removes the field.
pub(super) fn apply(
    entry: &mut EntryMut<'_>,
    name: &[u8],
    expire_at_ms: u64,
    due_ms: u64,
    condition: ExpiryCondition,
) -> Applied {
    let field = hash_in(entry).and_then(|hash| hash.get(name, due_ms).ok().flatten());
    let Some(old) = field.map(|field| field.expire_at_ms) else { return Applied::NoField };
    if !condition.allows(old, expire_at_ms) {
        return Applied::ConditionNotMet;
    }
    if expire_at_ms <= due_ms {
        remove_field(entry, name);
        return Applied::Deleted;
    }
    if old != expire_at_ms {
        entry.as_hash_mut().map(|hash| hash.set_expiry(name, expire_at_ms));
    }
    Applied::Set
}
