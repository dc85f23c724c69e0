//! Expiry times in commands' arguments, for every family that sets them.

use super::{Stop, error, is_word};
use flagstone_wire::num::parse_i64;

/// Unit and origin of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeForm {
    /// `EX`: seconds from now.
    Seconds,
    /// `PX`: milliseconds from now.
    Millis,
    /// `EXAT`: seconds since the Unix epoch.
    SecondsAt,
    /// `PXAT`: milliseconds since the Unix epoch.
    MillisAt,
}

impl TimeForm {
    /// Returns the form of an option word, ignoring case.
    pub(crate) fn of_word(word: &[u8]) -> Option<Self> {
        let forms = [
            ("ex", Self::Seconds),
            ("px", Self::Millis),
            ("exat", Self::SecondsAt),
            ("pxat", Self::MillisAt),
        ];
        forms.into_iter().find(|(name, _)| is_word(word, name)).map(|(_, form)| form)
    }

    /// Returns true if the time counts from the Unix epoch rather than from now.
    pub(crate) fn is_absolute(self) -> bool {
        matches!(self, Self::SecondsAt | Self::MillisAt)
    }

    /// Returns the milliseconds in its unit.
    pub(crate) fn unit_ms(self) -> i64 {
        match self {
            Self::Seconds | Self::SecondsAt => 1000,
            Self::Millis | Self::MillisAt => 1,
        }
    }

    /// Returns the origin of a time of this form, in ms since the Unix epoch.
    pub(crate) fn base_ms(self, now_ms: u64) -> i64 {
        if self.is_absolute() { 0 } else { now_ms.cast_signed() }
    }
}

/// Parses the time of SET, GETEX and similar commands, which must be positive, and returns it in ms
/// since the Unix epoch. `command` is named in the error text.
pub(crate) fn positive_ms(
    text: &[u8],
    form: TimeForm,
    now_ms: u64,
    command: &str,
) -> Result<u64, Stop> {
    let time = parse_i64(text).ok_or(error::NOT_INTEGER)?;
    Some(time)
        .filter(|&time| time > 0)
        .and_then(|time| to_ms(time, form, now_ms))
        .map(i64::cast_unsigned)
        .ok_or_else(|| error::invalid_expire(command).into())
}

/// Converts a time to ms since the Unix epoch; `None` if it overflows.
fn to_ms(time: i64, form: TimeForm, now_ms: u64) -> Option<i64> {
    time.checked_mul(form.unit_ms())?.checked_add(form.base_ms(now_ms))
}

/// The expiry option of SET and GETEX. The options exclude one another, but the same one may be
/// repeated: the last time counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExpiryOption<'a> {
    #[default]
    None,
    /// An option without a time: KEEPTTL of SET, PERSIST of GETEX.
    Word,
    Time(TimeForm, &'a [u8]),
}

impl<'a> ExpiryOption<'a> {
    /// Parses an option: `name` is the option without a time, `next` the argument behind `option`.
    /// Returns the number of arguments consumed; `None` if it is no such option or contradicts an
    /// earlier one.
    pub(crate) fn take(
        &mut self,
        name: &str,
        option: &[u8],
        next: Option<&'a [u8]>,
    ) -> Option<usize> {
        if is_word(option, name) && matches!(self, Self::None | Self::Word) {
            *self = Self::Word;
            return Some(1);
        }
        let form = TimeForm::of_word(option)?;
        match self {
            Self::None => {}
            Self::Time(earlier, _) if *earlier == form => {}
            Self::Word | Self::Time(..) => return None,
        }
        *self = Self::Time(form, next?);
        Some(2)
    }

    /// Returns the option's time, parsed by [`positive_ms`].
    pub(crate) fn time_ms(&self, now_ms: u64, command: &str) -> Result<Option<u64>, Stop> {
        match *self {
            Self::Time(form, text) => positive_ms(text, form, now_ms, command).map(Some),
            Self::None | Self::Word => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(stop: Stop) -> String {
        match stop {
            Stop::Error(text) => text.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn times_are_checked_for_overflow() {
        assert_eq!(positive_ms(b"5", TimeForm::Seconds, 100, "set").unwrap(), 5100);
        assert_eq!(positive_ms(b"5", TimeForm::SecondsAt, 100, "set").unwrap(), 5000);
        for (time, form) in [
            ("0", TimeForm::Millis),
            ("-1", TimeForm::MillisAt),
            ("9223372036854775807", TimeForm::Millis),
            ("9223372036854775807", TimeForm::SecondsAt),
        ] {
            let stop = positive_ms(time.as_bytes(), form, 100, "set").unwrap_err();
            assert_eq!(text(stop), "ERR invalid expire time in 'set' command");
        }
        let stop = positive_ms(b"1.5", TimeForm::Seconds, 100, "set").unwrap_err();
        assert_eq!(text(stop), error::NOT_INTEGER);
    }

    #[test]
    fn options_exclude_one_another() {
        let mut option = ExpiryOption::default();
        assert_eq!(option.take("keepttl", b"EX", None), None);
        assert_eq!(option.take("keepttl", b"EX", Some(b"1")), Some(2));
        assert_eq!(option.take("keepttl", b"ex", Some(b"2")), Some(2));
        assert_eq!(option.take("keepttl", b"PX", Some(b"2")), None);
        assert_eq!(option.take("keepttl", b"KEEPTTL", None), None);
        assert_eq!(option, ExpiryOption::Time(TimeForm::Seconds, b"2"));
    }
}
