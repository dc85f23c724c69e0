//! Expired keys, while the commands of an append-only file are run.
//!
//! Commands may have changed a key while it was alive, which has expired since. If it were deleted
//! at once, the later commands would make another key, without an expiry: a counter that begins
//! anew. So times that are past, or soon will be, are postponed by a fixed span, to one that is no date;
//! at the end the keys that still have such a time get the true one.
//!
//! A command in the file has succeeded. Its condition is left out, as it does not hold beside postponed times.

use crate::cli::connection::{Address, Reply, ServerConnection};
use anyhow::{Result, bail};
use flagstone_storage::clock::Clock;

/// The span by which times are postponed: 73 million years, in milliseconds. It is a whole number of seconds.
const SPAN_MS: i64 = (1 << 61) / 1000 * 1000;
/// Assumed bound of the duration of an import, in milliseconds: keys that expire within it are
/// postponed, too.
const SOON_MS: i64 = 24 * 3600 * 1000;
/// Words of EXPIREAT and PEXPIREAT without a condition.
const EXPIRE_WORDS: usize = 3;
/// Number of keys that one SCAN asks for.
const SCAN_COUNT: &[u8] = b"1000";

/// Postpones expiries.
#[derive(Debug, Default)]
pub(super) struct Shift {
    /// True if commands are run, now or later.
    pub(super) begun: bool,
    /// True if an expiry was postponed.
    pub(super) is_used: bool,
}

impl Shift {
    /// Returns the time to set for `at_ms`.
    pub(super) fn later(&mut self, at_ms: i64) -> i64 {
        if at_ms > now_ms() + SOON_MS {
            return at_ms;
        }
        self.is_used = true;
        at_ms.max(0) + SPAN_MS
    }

    /// Postpones the times that a command sets.
    pub(super) fn command(&mut self, words: &mut Vec<Vec<u8>>) {
        let Some(name) = words.first().map(|name| name.to_ascii_uppercase()) else { return };
        match name.as_slice() {
            b"PEXPIREAT" | b"EXPIREAT" => {
                self.word(words, 2, if name[0] == b'P' { 1 } else { 1000 });
                words.truncate(EXPIRE_WORDS);
            }
            b"RESTORE" | b"RESTORE-ASKING" if is_absolute(words) => self.word(words, 2, 1),
            b"SET" => {
                for at in 3..words.len() {
                    match words[at].to_ascii_uppercase().as_slice() {
                        b"PXAT" => self.word(words, at + 1, 1),
                        b"EXAT" => self.word(words, at + 1, 1000),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    /// Postpones the time in a word, in units of so many milliseconds.
    fn word(&mut self, words: &mut [Vec<u8>], at: usize, unit_ms: i64) {
        let Some(word) = words.get_mut(at) else { return };
        let number = std::str::from_utf8(word).ok().and_then(|text| text.parse::<i64>().ok());
        let Some(at_ms) = number.and_then(|number| number.checked_mul(unit_ms)) else { return };
        *word = (self.later(at_ms) / unit_ms).to_string().into_bytes();
    }
}

/// Returns true if a RESTORE sets a time.
fn is_absolute(words: &[Vec<u8>]) -> bool {
    let says_so = words.iter().skip(4).any(|word| word.eq_ignore_ascii_case(b"ABSTTL"));
    says_so && words.get(2).is_some_and(|ttl| ttl != b"0")
}

/// Sets the true expiry of all postponed keys.
pub(super) fn undo(address: &Address) -> Result<()> {
    let mut connection = address.connect()?;
    let info = connection.call(&[b"INFO", b"keyspace"])?.into_bulk()?;
    for line in String::from_utf8_lossy(&info).lines() {
        let Some((name, _)) = line.split_once(":keys=") else { continue };
        let Some(number) = name.strip_prefix("db") else { continue };
        connection.call(&[b"SELECT", number.as_bytes()])?;
        let mut cursor = b"0".to_vec();
        loop {
            let page = connection.call(&[b"SCAN", &cursor, b"COUNT", SCAN_COUNT])?.into_array()?;
            let Ok([next, keys]) = <[Reply; 2]>::try_from(page) else {
                bail!("a malformed reply to SCAN")
            };
            let keys = keys.into_array()?.into_iter().map(Reply::into_bulk);
            undo_page(&mut connection, &keys.collect::<Result<Vec<_>>>()?)?;
            cursor = next.into_bulk()?;
            if cursor == b"0" {
                break;
            }
        }
    }
    Ok(())
}

fn undo_page(connection: &mut ServerConnection, keys: &[Vec<u8>]) -> Result<()> {
    for key in keys {
        connection.send(&[b"PEXPIRETIME", key])?;
    }
    connection.flush()?;
    let mut late = Vec::new();
    for key in keys {
        let at_ms = connection.receive()?.integer()?;
        if let Some(true_ms) = true_time(at_ms) {
            late.push((key, true_ms.to_string()));
        }
    }
    for (key, at_ms) in &late {
        connection.send(&[b"PEXPIREAT", key, at_ms.as_bytes()])?;
    }
    connection.flush()?;
    for _ in &late {
        connection.receive()?.integer()?;
    }
    Ok(())
}

/// Returns the true time behind a postponed one; `None`: it is not postponed.
fn true_time(at_ms: i64) -> Option<i64> {
    let postponed = SPAN_MS..=now_ms() + SOON_MS + SPAN_MS;
    postponed.contains(&at_ms).then(|| at_ms - SPAN_MS)
}

/// Returns the present time, in milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    i64::try_from(Clock::default().now_ms()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shifted(command: &str) -> String {
        let mut words: Vec<Vec<u8>> = command.split(' ').map(|word| word.into()).collect();
        Shift::default().command(&mut words);
        let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        words.join(" ")
    }

    #[test]
    fn past_times_are_put_off_and_others_stay() {
        let far = now_ms() + 10 * SOON_MS;
        for (command, expected) in [
            ("PEXPIREAT k 5".to_owned(), format!("PEXPIREAT k {}", 5 + SPAN_MS)),
            ("expireat k 5".to_owned(), format!("expireat k {}", 5 + SPAN_MS / 1000)),
            ("SET k v PXAT 7".to_owned(), format!("SET k v PXAT {}", 7 + SPAN_MS)),
            ("SET PXAT PXAT KEEPTTL".to_owned(), "SET PXAT PXAT KEEPTTL".to_owned()),
            ("RESTORE k 9 p ABSTTL".to_owned(), format!("RESTORE k {} p ABSTTL", 9 + SPAN_MS)),
            ("RESTORE k 0 p ABSTTL".to_owned(), "RESTORE k 0 p ABSTTL".to_owned()),
            ("RESTORE k 9 p".to_owned(), "RESTORE k 9 p".to_owned()),
            (
                "restore-asking k 9 p REPLACE ABSTTL".to_owned(),
                format!("restore-asking k {} p REPLACE ABSTTL", 9 + SPAN_MS),
            ),
            ("RESTORE-ASKING k 0 p ABSTTL".to_owned(), "RESTORE-ASKING k 0 p ABSTTL".to_owned()),
            (format!("PEXPIREAT k {far}"), format!("PEXPIREAT k {far}")),
            ("INCRBY k 5".to_owned(), "INCRBY k 5".to_owned()),
        ] {
            assert_eq!(shifted(&command), expected);
        }
    }

    #[test]
    fn conditions_are_left_out_since_they_held() {
        let far = now_ms() + 10 * SOON_MS;
        for condition in ["GT", "lt", "NX", "XX", "XX GT"] {
            let command = format!("PEXPIREAT k {far} {condition}");
            assert_eq!(shifted(&command), format!("PEXPIREAT k {far}"));
            let command = format!("EXPIREAT k 7 {condition}");
            assert_eq!(shifted(&command), format!("EXPIREAT k {}", 7 + SPAN_MS / 1000));
        }
        assert_eq!(shifted("PEXPIREAT k"), "PEXPIREAT k", "the server refuses it");
    }

    #[test]
    fn only_postponed_times_are_given_back() {
        for at_ms in [0, 5, now_ms(), now_ms() + SOON_MS] {
            assert_eq!(true_time(Shift::default().later(at_ms)), Some(at_ms));
        }
        assert_eq!(SPAN_MS % 1000, 0, "EXPIREAT has the same span");
        // Dates of any year with four or five digits, and the greatest time.
        let year_ms = 31_556_952_000;
        for at_ms in (0..100_000).map(|year| year * year_ms).chain([-1, -2, i64::MAX]) {
            assert_eq!(true_time(at_ms), None, "{at_ms}");
        }
    }
}
