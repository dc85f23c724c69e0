//! Forms of a line: text for people, logfmt and JSON for programs.

use crate::config::LogFormat;
use serde_json::{Map, Value};
use std::fmt::{Debug, Result, Write};
use std::sync::RwLock;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Maximum length in bytes of a value in logfmt and JSON: lines are not cut in the middle of one.
const FIELD_MAX: usize = 4 << 10;

/// The form in effect.
static CHOSEN: RwLock<LogFormat> = RwLock::new(LogFormat::Text);

/// Sets the form of the lines that follow.
pub fn set_format(format: LogFormat) {
    if let Ok(mut chosen) = CHOSEN.write() {
        *chosen = format;
    }
}

/// Formats an event in the form in effect.
pub(super) struct LineFormat {
    text: Format,
}

impl LineFormat {
    pub(super) fn new() -> Self {
        Self { text: Format::default().with_target(false) }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        cx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> Result {
        let format = CHOSEN.read().map_or(LogFormat::Text, |chosen| *chosen);
        if matches!(format, LogFormat::Text | LogFormat::Legacy) {
            return self.text.format_event(cx, writer, event);
        }
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        let mut values = EventValues(Map::new());
        values.put("time", Value::from(time));
        values.put("level", Value::from(level));
        event.record(&mut values);
        match format {
            LogFormat::Json => writeln!(writer, "{}", Value::Object(values.0)),
            _ => writeln!(writer, "{}", logfmt(&values.0)),
        }
    }
}

/// Returns names and values as logfmt.
fn logfmt(values: &Map<String, Value>) -> String {
    let mut line = String::new();
    for (name, value) in values {
        let space = if line.is_empty() { "" } else { " " };
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !"=\"\\".contains(c);
        // Writing into a String cannot fail.
        let _ = match value {
            Value::String(text) if !text.is_empty() && text.chars().all(is_plain) => {
                write!(line, "{space}{name}={text}")
            }
            value => write!(line, "{space}{name}={value}"),
        };
    }
    line
}

/// The values of an event.
struct EventValues(Map<String, Value>);

impl EventValues {
    /// Adds a value, unless there is one of that name.
    fn put(&mut self, name: &str, value: Value) {
        self.0.entry(name).or_insert(value);
    }

    fn put_text(&mut self, field: &Field, text: &str) {
        let cut = text.floor_char_boundary(FIELD_MAX);
        let mut shown = String::with_capacity(cut);
        for character in text[..cut].chars() {
            match character.is_control() {
                true => shown.extend(character.escape_default()),
                false => shown.push(character),
            }
        }
        if cut < text.len() {
            shown.push_str("...");
        }
        self.put(field.name(), Value::from(shown));
    }
}

impl Visit for EventValues {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put_text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), Value::from(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), Value::from(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), Value::from(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), Value::from(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logfmt_quotes_what_is_not_plain() {
        let values = [("level", "info"), ("message", "a \"b\" = c"), ("empty", "")];
        let mut map: Map<String, Value> =
            values.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        map.insert("n".to_owned(), Value::from(7));
        let line = logfmt(&map);
        for part in ["level=info", "message=\"a \\\"b\\\" = c\"", "empty=\"\"", "n=7"] {
            assert!(line.contains(part), "{line}");
        }
    }
}
