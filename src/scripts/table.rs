//! Parts of the table `redis` that scripts and libraries share.

use crate::version::{COMPATIBLE_VERSION, REDIS_VERSION};
use mlua::{Lua, MultiValue, Table, Value};

/// Levels of `redis.log`.
const LEVELS: [&str; 4] = ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"];

/// Maximum length in bytes of a line that a script logs; longer ones are cut.
pub const MAX_LOGGED_BYTES: usize = 1024;

/// Adds the constants of log levels and versions.
pub fn put_constants(lua: &Lua, table: &Table) -> mlua::Result<()> {
    for (level, name) in LEVELS.iter().enumerate() {
        table.raw_set(*name, level)?;
    }
    for (name, version) in
        [("REDIS_VERSION", REDIS_VERSION), ("VALKEY_VERSION", COMPATIBLE_VERSION)]
    {
        table.raw_set(name, lua.create_string(version)?)?;
        let number = version.split('.').filter_map(|part| part.parse::<i64>().ok());
        table.raw_set(format!("{name}_NUM"), number.fold(0, |sum, part| sum << 8 | part))?;
    }
    table.raw_set("SERVER_NAME", lua.create_string("valkey")?)
}

pub fn error_table(lua: &Lua, text: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(table)
}

/// Returns a string, or a number as Lua prints it.
pub fn text_of(value: Option<&Value>) -> Option<Vec<u8>> {
    match value? {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        number @ (Value::Integer(_) | Value::Number(_)) => number.to_string().ok().map(Into::into),
        _ => None,
    }
}

/// Returns an integer, as Lua converts strings and floats to one.
pub fn number_of(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Integer(n) => Some(*n),
        Value::Number(n) => Some(*n as i64),
        Value::String(text) => text.to_str().ok()?.trim().parse::<f64>().ok().map(|n| n as i64),
        _ => None,
    }
}

/// Returns the level and text of a log line, or the error text if the arguments are wrong.
pub fn log_line(args: &MultiValue) -> Result<(usize, String), &'static str> {
    if args.len() < 2 {
        return Err("ERR redis.log() requires two arguments or more.");
    }
    let level = number_of(args.front());
    let level = level.ok_or("ERR First argument must be a number (log level).")?;
    let level = usize::try_from(level).ok().filter(|level| *level < LEVELS.len());
    let level = level.ok_or("ERR Invalid log level.")?;
    Ok((level, cut_line(args.iter().skip(1))))
}

/// Returns strings and numbers with blanks between them as a line that is not too long. Not more than
/// that is copied: a script may pass the same long string thousands of times.
fn cut_line<'a>(parts: impl Iterator<Item = &'a Value>) -> String {
    let mut line: Vec<u8> = Vec::new();
    let mut is_first = true;
    for part in parts {
        let before = line.len();
        if !is_first {
            line.push(b' ');
        }
        let room = MAX_LOGGED_BYTES.saturating_sub(line.len());
        match part {
            Value::String(text) => {
                let text = text.as_bytes();
                line.extend_from_slice(&text[..text.len().min(room)]);
            }
            number @ (Value::Integer(_) | Value::Number(_)) => {
                line.extend_from_slice(number.to_string().unwrap_or_default().as_bytes());
            }
            _ => {
                line.truncate(before);
                continue;
            }
        }
        is_first = false;
        if line.len() >= MAX_LOGGED_BYTES {
            break;
        }
    }
    let mut text = String::from_utf8_lossy(&line).into_owned();
    text.truncate(text.floor_char_boundary(MAX_LOGGED_BYTES));
    text.shrink_to_fit();
    text
}

/// Writes a line of a script to the log. Levels: 0 (debug) to 3 (warning).
pub fn write_log(level: usize, text: &str) {
    match level {
        0 | 1 => tracing::debug!("script: {text}"),
        2 => tracing::info!("script: {text}"),
        3 => tracing::warn!("script: {text}"),
        _ => tracing::error!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: Vec<Value>) -> String {
        let args = [Value::Integer(2)].into_iter().chain(values).collect();
        log_line(&args).unwrap().1
    }

    #[test]
    fn a_line_has_its_strings_and_numbers_with_blanks_between_them() {
        let lua = Lua::new();
        let text = |text: &str| Value::String(lua.create_string(text).unwrap());
        assert_eq!(line(vec![text("a"), Value::Nil, text(""), Value::Integer(7)]), "a  7");
        assert_eq!(line(vec![Value::Nil, text("a"), Value::Boolean(true)]), "a");
        assert_eq!(line(vec![Value::Boolean(true)]), "");
    }

    #[test]
    fn a_line_takes_no_more_memory_than_it_may_be_long() {
        let lua = Lua::new();
        let long = Value::String(lua.create_string("x".repeat(1 << 20)).unwrap());
        // It is cut in the middle of a character; what is no UTF-8 takes three bytes each.
        let odd = Value::String(lua.create_string(format!("x{}", "é".repeat(1 << 20))).unwrap());
        let bytes = Value::String(lua.create_string([0xff; 4096]).unwrap());
        for value in [long, odd, bytes] {
            let text = line(vec![value; 5000]);
            let least = MAX_LOGGED_BYTES - 3;
            assert!((least..=MAX_LOGGED_BYTES).contains(&text.len()), "{}", text.len());
            assert!(text.capacity() <= MAX_LOGGED_BYTES, "{}", text.capacity());
        }
    }
}
