//! HSCAN.
//!
//! The cursor is a place among the fields in the order of their names' keyed hashes, of which it
//! holds 48 bits. It needs no state, and stays good over evictions and restarts.

use super::{READS, key_arg};
use crate::commands::{Ctx, Group, Outcome, Run, Spec, Stop, arg, error, flag, int_arg, is_word};
use crate::glob;
use crate::resp::Args;
use flagstone_storage::store::OrLoad;

/// Bits of a name's hash that the cursor leaves out, so that it fits a double.
const LEFT_OUT: u32 = 16;

/// What follows the cursor.
struct Options<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    values: bool,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>) -> Result<Self, Stop> {
        let mut options = Self { count: 10, pattern: None, values: true };
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
            } else if is_word(word, "NOVALUES") {
                options.values = false;
                at += 1;
            } else if is_word(word, "NOSCORES") {
                return Err("ERR NOSCORES option can only be used in ZSCAN".into());
            } else {
                return Err(error::SYNTAX.into());
            }
        }
        Ok(options)
    }

    fn takes(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// A cursor as C's `strtoull` reads it: spaces, a plus and zeros may lead.
fn parse_cursor(text: &[u8]) -> Result<u64, Stop> {
    let digits = text.trim_ascii_start();
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    let zeros = digits.iter().take_while(|&&b| b == b'0').count();
    let digits = &digits[zeros.min(digits.len().saturating_sub(1))..];
    crate::num::parse_u64(digits).ok_or_else(|| "ERR invalid cursor".into())
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`
///
/// A listpack is answered whole.
fn hscan(cx: &mut Ctx<'_>, args: Args<'_>) -> Outcome {
    let key = key_arg(args)?;
    let cursor = parse_cursor(arg(args, 2)?)?;
    let now_ms = cx.now_ms();
    let layout = cx.store.layout().clone();
    let Some(hash) = cx.store.hash(cx.db, key)? else {
        cx.out.array(2);
        cx.out.bulk_str("0");
        cx.out.array(0);
        return Ok(());
    };
    let options = Options::parse(args)?;
    let mut shown = Vec::new();
    let mut visit = |name: &[u8], field: &flagstone_storage::value::Field| {
        if !field.is_expired(now_ms) && options.takes(name) {
            shown.push(Box::<[u8]>::from(name));
            if options.values {
                shown.push(field.value.clone());
            }
        }
    };
    let next = if hash.is_table() {
        let place = |name: &[u8]| layout.hash(name) >> LEFT_OUT;
        hash.scan(cursor, options.count, place, visit).or_load(cx.db, key)?
    } else {
        hash.require_all().or_load(cx.db, key)?;
        hash.iter().for_each(|(name, field)| visit(name, field));
        0
    };
    cx.out.array(2);
    cx.out.bulk_str(&next.to_string());
    cx.out.array(shown.len());
    shown.iter().for_each(|item| cx.out.bulk(item));
    Ok(())
}

/// The commands of this file.
pub const COMMANDS: &[Spec] = &[Spec {
    name: "hscan",
    group: Group::Hash,
    since: "2.8.0",
    complexity: "O(1) for each call, O(N) for a whole scan of N fields.",
    summary: "Iterates over the fields.",
    arity: -3,
    flags: flag::READONLY,
    keys: READS,
    tips: &["nondeterministic_output"],
    run: Run::Keys(hscan),
    ..Spec::NEW
}];

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
