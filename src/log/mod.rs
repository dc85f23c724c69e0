//! The log: selects lines, escapes and cuts them, and writes them to standard error or a file.

mod format;

pub use format::set_format;

use crate::config::LogLevel;
use format::LineFormat;
use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Environment variable with a filter in the syntax of `tracing-subscriber`, which overrides
/// `loglevel`.
const FILTER: &str = "FLAGSTONE_LOG";

/// Maximum length of a line in bytes; longer lines are cut. Clients choose some of the logged
/// texts.
const LINE_MAX: usize = 16 << 10;

/// Replaces the filter in effect.
type Reload = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// Absent if `FLAGSTONE_LOG` decides, or the log belongs to another server of the process (tests).
static RELOAD: OnceLock<Reload> = OnceLock::new();

/// True if lines go to a file.
static TO_FILE: AtomicBool = AtomicBool::new(false);

/// Begins to log: to standard error, or to a file, which is opened anew for each line so that it
/// may be moved away at any time.
///
/// # Errors
/// The file cannot be written.
pub fn init(level: LogLevel, file: Option<PathBuf>) -> io::Result<()> {
    if let Some(path) = &file {
        append_to(path)?;
        TO_FILE.store(true, Ordering::Relaxed);
    }
    let is_terminal = file.is_none() && io::stderr().is_terminal();
    let chosen = EnvFilter::try_from_env(FILTER).ok();
    let is_fixed = chosen.is_some();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(chosen.unwrap_or_else(|| filter(level)))
        .with_writer(LogOutput { file, keeps_colours: is_terminal })
        .with_ansi(is_terminal)
        // The subscriber would report a log that cannot be written on standard error, and panic if
        // that fails, too: the terminal is closed, or the disk full.
        .log_internal_errors(false)
        .event_format(LineFormat::new())
        .with_filter_reloading();
    let handle = builder.reload_handle();
    // A second server in one process (tests) keeps the first one's log.
    if builder.try_init().is_ok() && !is_fixed {
        let _ = RELOAD.set(Box::new(move |filter| handle.reload(filter).is_ok()));
    }
    Ok(())
}

/// Returns true if the log goes to a file.
pub fn is_file() -> bool {
    TO_FILE.load(Ordering::Relaxed)
}

/// Returns true if [`set_level`] has an effect.
pub fn is_settable() -> bool {
    RELOAD.get().is_some()
}

/// Reason why the level cannot be set.
pub const FIXED: &str = "the environment variable FLAGSTONE_LOG decides what is logged";

/// Sets the level.
pub fn set_level(level: LogLevel) {
    let is_set = RELOAD.get().is_some_and(|reload| reload(filter(level)));
    debug_assert!(is_set, "the log was asked before whether it can");
}

/// Logs nothing more of the engines, as another server has their files: each would say so several times.
pub fn silence_engines(level: LogLevel) {
    if let Some(reload) = RELOAD.get() {
        reload(directives(level, "off").into());
    }
}

/// Returns the filter of a level. Libraries' lines are limited where the server logs the event
/// itself: an unreachable store would cause many lines a second.
fn filter(level: LogLevel) -> EnvFilter {
    directives(level, "error").into()
}

fn directives(level: LogLevel, engines: &str) -> String {
    let level = match level {
        LogLevel::Debug => "debug",
        LogLevel::Verbose | LogLevel::Notice => "info",
        LogLevel::Warning => "warn",
        LogLevel::Nothing => "off",
    };
    format!("{level},slatedb={engines},slatedb::compaction_worker=off,foyer=off,object_store=error")
}

fn append_to(path: &std::path::Path) -> io::Result<std::fs::File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Destination of the lines.
struct LogOutput {
    /// The file; `None` for standard error.
    file: Option<PathBuf>,
    /// True if lines may have escape sequences, all of which are the subscriber's own.
    keeps_colours: bool,
}

impl<'a> MakeWriter<'a> for LogOutput {
    type Writer = Lines<'a>;

    fn make_writer(&'a self) -> Lines<'a> {
        Lines(self)
    }
}

struct Lines<'a>(&'a LogOutput);

impl Write for Lines<'_> {
    /// Writes one whole line: the subscriber writes each at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let one_line = one_line(line, self.0.keeps_colours);
        match &self.0.file {
            Some(path) => append_to(path)?.write_all(&one_line)?,
            None => io::stderr().write_all(&one_line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the line with its control characters escaped, except the line feed at its end: a logged
/// text cannot forge a line, or control a terminal.
fn one_line(line: &[u8], keeps_colours: bool) -> Vec<u8> {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let cut = &text[..text.len().min(LINE_MAX)];
    let mut out = Vec::with_capacity(cut.len() + 1);
    for character in String::from_utf8_lossy(cut).chars() {
        let is_kept = !character.is_control() || (keeps_colours && character == '\x1b');
        let shown: Cow<'_, str> = match is_kept {
            true => character.to_string().into(),
            false => character.escape_default().to_string().into(),
        };
        out.extend_from_slice(shown.as_bytes());
    }
    if cut.len() < text.len() {
        out.extend_from_slice(b"...");
    }
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_forges_no_line_and_rules_no_terminal() {
        let forged = one_line(b"a\r\nERROR forged\x1b[2J\x07\x7f\xc2\x85 \xc3\xa4\n", false);
        let shown = String::from_utf8(forged).unwrap();
        assert_eq!(shown, "a\\r\\nERROR forged\\u{1b}[2J\\u{7}\\u{7f}\\u{85} ä\n");
        assert_eq!(one_line(b"\x1b[32mINFO\x1b[0m x", true), b"\x1b[32mINFO\x1b[0m x\n");
    }

    #[test]
    fn a_long_line_is_cut() {
        let line = one_line(&[b'x'; 10 * LINE_MAX], false);
        assert_eq!(line.len(), LINE_MAX + 4);
    }
}
