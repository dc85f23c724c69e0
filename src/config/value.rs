//! Values of directives: from words to canonical text.

use flagstone_wire::num::{parse_i64, parse_memory};

use super::directive::{Directive, Kind, Range};

/// Checks `words` as the value of `directive`; returns the canonical text that CONFIG GET shows.
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
        Kind::AutoMemoryOrPercent if word.eq_ignore_ascii_case("auto") => Ok("auto".to_owned()),
        Kind::AutoMemoryOrPercent => memory_or_percent(word),
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

/// Maximum length of an error text in bytes, where the reference cuts it.
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
    let number = parse_i64(word.as_bytes())
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
    let percent = word
        .strip_suffix('%')
        .and_then(|percent| parse_i64(percent.as_bytes()))
        .filter(|percent| *percent >= 0);
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
