//! Parts of the table `redis` that scripts and libraries share.

use crate::version::{COMPATIBLE_VERSION, REDIS_VERSION};
use mlua::{Lua, MultiValue, Table, Value};

/// Levels of `redis.log`.
const LEVELS: [&str; 4] = ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"];

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
    let parts: Vec<Vec<u8>> = args.iter().skip(1).filter_map(|arg| text_of(Some(arg))).collect();
    Ok((level, String::from_utf8_lossy(&parts.join(&b' ')).into_owned()))
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
