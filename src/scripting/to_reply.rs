//! Converts a Lua value to a reply.

use flagstone_commands::ErrorText;
use flagstone_wire::resp::{Proto, Reply};
use mlua::{LuaString, Table, Value};

/// Maximum depth of nested tables.
const MAX_DEPTH: usize = 1000;

/// Callback that counts the errors in a reply.
pub(super) type CountError<'a> = dyn FnMut(&[u8]) + 'a;

/// Limits on writing a reply.
pub(super) struct Limits<'a> {
    pub(super) max_bytes: usize,
    /// Called after some more work; returns false if the run has to end.
    pub(super) watch: &'a mut dyn FnMut(u64) -> bool,
}

/// Number of values that are written between two checks of the run.
const LOOK_EVERY: u64 = 128;

/// Number of instructions that writing a value counts as.
const VALUE: u64 = 40;

/// Writes the value that a script has returned. `proto`: the one that the script has chosen.
/// `errors` is called for each error in it with its text, or with nothing if the error is counted
/// already.
pub(super) fn write_value(
    out: &mut Reply,
    value: &Value,
    proto: Proto,
    limits: Limits<'_>,
    errors: &mut CountError<'_>,
) -> Result<(), ErrorText> {
    let max_len = out.len() + limits.max_bytes;
    let watch = limits.watch;
    let mut writer = Writer { out, proto, max_len, errors, watch, unseen: 0, is_ended: false };
    writer.write(value, 0);
    match out.len() > max_len {
        true => Err("ERR the reply takes more memory than a script may have".into()),
        false => Ok(()),
    }
}

struct Writer<'a, 'e> {
    out: &'a mut Reply,
    proto: Proto,
    /// Length beyond which nothing more is written.
    max_len: usize,
    errors: &'a mut CountError<'e>,
    watch: &'a mut dyn FnMut(u64) -> bool,
    /// Number of values that were written since the last check.
    unseen: u64,
    /// True if nothing more may be written.
    is_ended: bool,
}

impl Writer<'_, '_> {
    fn write(&mut self, value: &Value, depth: usize) {
        if !self.may_write() {
            return;
        }
        let out = &mut *self.out;
        if depth > MAX_DEPTH {
            let text = "ERR reached lua stack limit";
            (self.errors)(text.as_bytes());
            return out.error(text);
        }
        match value {
            Value::String(text) => out.bulk(&text.as_bytes()),
            Value::Boolean(true) if self.proto == Proto::Resp2 => out.int(1),
            Value::Boolean(false) if self.proto == Proto::Resp2 => out.null(),
            Value::Boolean(value) => out.bool(*value),
            Value::Integer(n) => out.int(*n),
            Value::Number(n) => out.int(truncated(*n)),
            Value::Table(table) => {
                if !self.write_tagged(table, depth) {
                    self.write_array(table, depth);
                }
            }
            _ => out.null(),
        }
    }

    /// Returns true if one more value may be written. The same value may occur many times.
    fn may_write(&mut self) -> bool {
        self.is_ended |= self.out.len() > self.max_len;
        self.unseen += 1;
        if !self.is_ended && self.unseen >= LOOK_EVERY {
            self.unseen = 0;
            self.is_ended = !(self.watch)(LOOK_EVERY * VALUE);
        }
        !self.is_ended
    }

    /// Writes a table with a field that gives its type; returns false if it has none.
    fn write_tagged(&mut self, table: &Table, depth: usize) -> bool {
        let out = &mut *self.out;
        if let Some(error) = string(table, "err") {
            let text = error.as_bytes();
            (self.errors)(if is_counted(table) { &[] } else { &text });
            out.error(text);
        } else if let Some(status) = string(table, "ok") {
            out.simple(&one_line(&status));
        } else if let Ok(Value::Number(double)) = table.raw_get("double") {
            out.double(double);
        } else if let Ok(Value::Integer(double)) = table.raw_get("double") {
            out.double(double as f64);
        } else if let Some(digits) = string(table, "big_number") {
            out.big_number(&one_line(&digits));
        } else if let Some((format, text)) = inner(table, "verbatim_string")
            .and_then(|verbatim| Some((string(&verbatim, "format")?, string(&verbatim, "string")?)))
        {
            let mut short = *b"   ";
            let bytes = format.as_bytes();
            let len = bytes.len().min(3);
            short[..len].copy_from_slice(&bytes[..len]);
            out.verbatim(short, &text.as_bytes());
        } else if let Some(map) = inner(table, "map") {
            let (mark, mut len) = (out.begin_map(), 0);
            for (key, value) in map.pairs::<Value, Value>().flatten() {
                self.write(&key, depth + 1);
                self.write(&value, depth + 1);
                len += 1;
                if self.is_ended {
                    break;
                }
            }
            self.out.end(mark, len);
        } else if let Some(set) = inner(table, "set") {
            let (mark, mut len) = (out.begin_set(), 0);
            for (member, _) in set.pairs::<Value, Value>().flatten() {
                self.write(&member, depth + 1);
                len += 1;
                if self.is_ended {
                    break;
                }
            }
            self.out.end(mark, len);
        } else {
            return false;
        }
        true
    }

    /// Writes a table up to its first nil.
    fn write_array(&mut self, table: &Table, depth: usize) {
        let (mark, mut len) = (self.out.begin_array(), 0);
        while !self.is_ended
            && let Ok(value) = table.raw_get::<Value>(len + 1)
            && !value.is_nil()
        {
            self.write(&value, depth + 1);
            len += 1;
        }
        self.out.end(mark, len);
    }
}

/// Returns a number without its fraction. A number that is too large for an integer, or is not a
/// number, becomes the smallest integer, as on the processors on which the reference runs.
fn truncated(n: f64) -> i64 {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if (-END..END).contains(&n) { n as i64 } else { i64::MIN }
}

fn string(table: &Table, name: &str) -> Option<LuaString> {
    match table.raw_get(name) {
        Ok(Value::String(text)) => Some(text),
        _ => None,
    }
}

fn inner(table: &Table, name: &str) -> Option<Table> {
    match table.raw_get(name) {
        Ok(Value::Table(inner)) => Some(inner),
        _ => None,
    }
}

/// Returns a text without line ends.
fn one_line(text: &LuaString) -> String {
    String::from_utf8_lossy(&text.as_bytes()).replace(['\r', '\n'], " ")
}

/// Returns true if an error was counted already, as that of a command.
fn is_counted(table: &Table) -> bool {
    matches!(table.raw_get("ignore_error_stats_update"), Ok(Value::Boolean(true)))
}

/// Returns true if an error that a script has raised was counted already.
pub(super) fn is_counted_error(raised: &Value) -> bool {
    matches!(raised, Value::Table(table) if is_counted(table))
}

/// Returns the text behind the message of an error that says where a script has raised it, if that is known.
pub(super) fn place_of(raised: &Value, name: &str) -> Vec<u8> {
    let Value::Table(table) = raised else { return Vec::new() };
    match (field_of(table, "source"), field_of(table, "line")) {
        (Some(source), Some(line)) => {
            [b" script: ", name.as_bytes(), b", on ", &source, b":", &line, b"."].concat()
        }
        _ => Vec::new(),
    }
}

/// Returns a field of a raised table as text.
fn field_of(table: &Table, name: &str) -> Option<Vec<u8>> {
    match table.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.as_bytes().to_vec()),
        Ok(Value::Integer(n)) => Some(n.to_string().into_bytes()),
        Ok(Value::Number(n)) => Some(n.to_string().into_bytes()),
        _ => None,
    }
}

/// Returns the text of an error that a script has raised.
pub(super) fn error_text(raised: &Value, name: &str) -> ErrorText {
    let text = match raised {
        Value::Table(table) => {
            let message = field_of(table, "err").unwrap_or_else(|| b"ERR unknown error".to_vec());
            [message, place_of(raised, name)].concat()
        }
        Value::String(text) => {
            let text = text.as_bytes();
            let shown = &text[..text.len().min(100)];
            [b"ERR Error running script ", name.as_bytes(), b", ", shown].concat()
        }
        _ => format!("ERR Error running script {name}, execution failure").into_bytes(),
    };
    text.into()
}
