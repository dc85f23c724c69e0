//! Values of directives: from words to canonical text.

use super::directive::{Directive, Kind, Range};

/// Checks `words` as the value of `directive`; answers the canonical text that CONFIG GET shows.
///
/// # Errors
/// The reason in Valkey's words.
pub(super) fn canonical(
    directive: &Directive,
    words: &[&str],
    current: &str,
) -> Result<String, String> {
    let value = match (directive.kind, words) {
        (Kind::SomeOf(choices), _) => some_of(choices, words)?,
        (Kind::Structured(structure), _) => structure.canonical(words, current)?,
        (kind, [word]) => single(kind, word)?,
        _ => return Err("wrong number of arguments".to_owned()),
    };
    if let Some(check) = directive.check {
        check(&value)?;
    }
    Ok(value)
}

fn single(kind: Kind, word: &str) -> Result<String, String> {
    match kind {
        Kind::YesNo => yes_no(word),
        Kind::OneOf(choices) => one_of(choices, word),
        Kind::Integer(range) => integer(range, word),
        Kind::Memory(range) => memory(range, word),
        Kind::AutoInteger(range) => auto_or(word, |word| integer(range, word)),
        Kind::AutoMemory(range) => auto_or(word, |word| memory(range, word)),
        Kind::MemoryOrPercent => memory_or_percent(word),
        Kind::Octal(range) => octal(range, word),
        _ => Ok(word.to_owned()),
    }
}

fn yes_no(word: &str) -> Result<String, String> {
    let lower = word.to_ascii_lowercase();
    if lower == "yes" || lower == "no" {
        return Ok(lower);
    }
    Err("argument must be 'yes' or 'no'".to_owned())
}

/// Longest error text, in bytes, as the reference cuts it.
const CHOICES_LIMIT: usize = 255;

fn not_a_choice(choices: &[&str]) -> String {
    let mut text = format!("argument(s) must be one of the following: {}", choices.join(", "));
    text.truncate(CHOICES_LIMIT);
    text
}

fn one_of(choices: &[&str], word: &str) -> Result<String, String> {
    let choice = choices.iter().find(|choice| choice.eq_ignore_ascii_case(word));
    choice.map(|choice| (*choice).to_owned()).ok_or_else(|| not_a_choice(choices))
}

fn some_of(choices: &[&str], words: &[&str]) -> Result<String, String> {
    if words.is_empty() {
        return Err(not_a_choice(choices));
    }
    let chosen = words.iter().map(|word| one_of(choices, word)).collect::<Result<Vec<_>, _>>()?;
    let (none, flags) = choices.split_first().map_or(("", choices), |(none, rest)| (*none, rest));
    let flags: Vec<&str> =
        flags.iter().copied().filter(|flag| chosen.iter().any(|word| word == flag)).collect();
    Ok(if flags.is_empty() { none.to_owned() } else { flags.join(" ") })
}

fn in_range(number: i128, (least, greatest): Range) -> Result<String, String> {
    if (least..=greatest).contains(&number) {
        return Ok(number.to_string());
    }
    Err(format!("argument must be between {least} and {greatest} inclusive"))
}

fn integer(range: Range, word: &str) -> Result<String, String> {
    let number = parse_integer(word)
        .ok_or_else(|| "argument couldn't be parsed into an integer".to_owned())?;
    in_range(i128::from(number), range)
}

fn memory(range: Range, word: &str) -> Result<String, String> {
    let bytes = parse_memory(word).ok_or_else(|| "argument must be a memory value".to_owned())?;
    in_range(i128::from(bytes), range)
}

fn memory_or_percent(word: &str) -> Result<String, String> {
    if let Some(bytes) = parse_memory(word) {
        return in_range(i128::from(bytes), (0, i128::from(i64::MAX)));
    }
    let percent = word.strip_suffix('%').and_then(parse_integer).filter(|percent| *percent >= 0);
    match percent {
        Some(0) => Ok("0".to_owned()),
        Some(percent @ 1..=100) => Ok(format!("{percent}%")),
        Some(_) => Err("percentage argument must be less or equal to 100".to_owned()),
        None => Err("argument must be a memory or percent value".to_owned()),
    }
}

fn octal((least, greatest): Range, word: &str) -> Result<String, String> {
    let number = i64::from_str_radix(word, 8)
        .map_err(|_| "argument couldn't be parsed as an octal number".to_owned())?;
    if (least..=greatest).contains(&i128::from(number)) {
        return Ok(format!("{number:o}"));
    }
    Err(format!("argument must be between {least:o} and {greatest:o} inclusive"))
}

fn auto_or(word: &str, number: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    if word.eq_ignore_ascii_case("auto") {
        return Ok("auto".to_owned());
    }
    number(word).map_err(|reason| format!("{reason}, or 'auto'"))
}

/// A decimal integer in its only spelling: no plus sign, no spaces, no leading zeros.
pub(super) fn parse_integer(word: &str) -> Option<i64> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    let canonical = word == "0" || digits.starts_with(|first: char| matches!(first, '1'..='9'));
    if canonical { word.parse().ok() } else { None }
}

/// Bytes with an optional unit: k, m, g are powers of 1000, kb, mb, gb of 1024.
pub(super) fn parse_memory(word: &str) -> Option<u64> {
    let unit_start = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (digits, unit) = word.split_at(unit_start);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1024,
        "m" => 1000 * 1000,
        "mb" => 1024 * 1024,
        "g" => 1000 * 1000 * 1000,
        "gb" => 1024 * 1024 * 1024,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}
