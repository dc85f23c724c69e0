//! Cursors and options shared by HSCAN, SSCAN, ZSCAN and SCAN.
//!
//! A position among the elements, ordered by the keyed hashes of their names, is 48 bits of such a
//! hash. The cursor is that position, encrypted. It needs no state, and stays valid over evictions
//! and restarts.

use super::{ErrorText, error, int_arg, is_word};
use flagstone_storage::slot::Layout;
use flagstone_wire::client_memory::SMALL;
use flagstone_wire::glob;
use flagstone_wire::resp::reply::FRAME;
use flagstone_wire::resp::{Args, Reply};

/// Number of bits of a position and of its cursor: few enough for a double.
const PLACE_BITS: u32 = 48;

/// Options that ask for names only, each with the one command that takes it.
const NAMES_ONLY: [(&str, &str); 2] = [("NOVALUES", "HSCAN"), ("NOSCORES", "ZSCAN")];

/// The options behind the cursor.
pub struct ScanOptions<'a> {
    pub count: usize,
    pattern: Option<&'a [u8]>,
    /// True with NOVALUES or NOSCORES.
    pub names_only: bool,
}

impl<'a> ScanOptions<'a> {
    /// Parses the options of `command`, a name in capitals.
    pub fn parse(args: Args<'a>, command: &str) -> Result<Self, ErrorText> {
        let mut options = Self { count: 10, pattern: None, names_only: false };
        let mut at = 3;
        while let Some(word) = args.get(at) {
            let has_value = at + 1 < args.len();
            if is_word(word, "COUNT") && has_value {
                let count = int_arg(args, at + 1)?;
                if count < 1 {
                    return Err(error::SYNTAX.into());
                }
                options.count = usize::try_from(count).unwrap_or(usize::MAX);
                at += 2;
            } else if is_word(word, "MATCH") && has_value {
                options.pattern = args.get(at + 1).filter(|pattern| *pattern != b"*");
                at += 2;
            } else {
                let found = NAMES_ONLY.iter().find(|(name, _)| is_word(word, name));
                let (name, only) = found.ok_or(error::SYNTAX)?;
                if *only != command {
                    return Err(format!("ERR {name} option can only be used in {only}").into());
                }
                options.names_only = true;
                at += 1;
            }
        }
        Ok(options)
    }

    /// Returns true if a name matches the pattern.
    pub fn takes(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// Parses a cursor like C's `strtoull`: skips leading spaces, a plus sign and zeros.
pub fn parse_cursor(text: &[u8]) -> Result<u64, ErrorText> {
    let digits = text.trim_ascii_start();
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    let zeros = digits.iter().take_while(|&&b| b == b'0').count();
    let digits = &digits[zeros.min(digits.len().saturating_sub(1))..];
    flagstone_wire::num::parse_u64(digits).ok_or_else(|| "ERR invalid cursor".into())
}

/// Returns the position of a cursor: behind all names if the number is no valid cursor.
pub fn parse_place(text: &[u8], layout: &Layout) -> Result<u64, ErrorText> {
    let cursor = parse_cursor(text)?;
    let is_ours = cursor >> PLACE_BITS == 0;
    Ok(if is_ours { layout.cursors().open(PLACE_BITS, cursor) } else { cursor })
}

/// Returns the cursor of a position.
pub fn cursor(layout: &Layout, place: u64) -> u64 {
    layout.cursors().seal(PLACE_BITS, place)
}

/// Returns the position of a name.
pub fn place(layout: &Layout, name: &[u8]) -> u64 {
    layout.hash(name) >> (u64::BITS - PLACE_BITS)
}

/// Replies with the next cursor and the elements found.
pub fn reply<T: AsRef<[u8]>>(out: &mut Reply, next: u64, found: &[T]) {
    let sizes = || found.iter().map(|item| item.as_ref().len() + FRAME);
    let all: usize = sizes().sum();
    if all > SMALL {
        out.reserve(all, sizes().max().unwrap_or_default());
    }
    out.array(2);
    out.bulk_str(&next.to_string());
    out.array(found.len());
    found.iter().for_each(|item| out.bulk(item.as_ref()));
}

#[cfg(test)]
mod tests {
    use super::parse_cursor;

    #[test]
    fn cursors_are_read_as_c_does() {
        for (text, want) in [
            ("0", Some(0)),
            ("007", Some(7)),
            ("00", Some(0)),
            (" +12", Some(12)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("-1", None),
            ("1x", None),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()).ok(), want, "{text:?}");
        }
    }
}
