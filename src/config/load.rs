//! Reads the configuration at the start: file, environment, command line, in this order.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf, absolute};

use flagstone_wire::glob;

use super::UserLine;
use super::arguments::Arguments;
use super::directives::{self, OBSOLETE, TABLE};
use super::error::{ConfigError, Origin};
use super::parse::{quote_into, split_bytes, split_words};
use super::settings::Values;
use super::value;

/// Maximum nesting depth of included files.
const INCLUDE_DEPTH: usize = 16;
/// Prefix of the names of environment variables.
const ENVIRONMENT_PREFIX: &str = "FLAGSTONE_";

/// Result of reading the configuration.
pub(super) struct Loaded {
    pub(super) values: Values,
    pub(super) file: Option<PathBuf>,
    pub(super) notices: Vec<String>,
    pub(super) users: Vec<UserLine>,
    /// Names of commands, each with its new name.
    pub(super) renamed: Vec<[String; 2]>,
}

/// Reads all sources; a later one overrides an earlier one.
///
/// # Errors
/// The first statement that is refused, or a file that cannot be read.
pub(super) fn load(
    arguments: &Arguments,
    environment: impl Iterator<Item = (String, String)>,
    standard_input: &mut dyn Read,
) -> Result<Loaded, ConfigError> {
    let mut loader = Loader::new();
    if let Some(path) = &arguments.file {
        let file = absolute(path)
            .map_err(|error| refusal(&Origin::CommandLine, path, io_reason(&error)))?;
        loader.read_file(&file, &Origin::CommandLine, 0)?;
        loader.loaded.file = Some(file);
    }
    if arguments.standard_input {
        let mut text = String::new();
        let origin = Origin::StandardInput { line: 1 };
        let read = standard_input.read_to_string(&mut text);
        read.map_err(|error| refusal(&origin, "-", io_reason(&error)))?;
        loader.read_text(&text, 0, |line| Origin::StandardInput { line })?;
    }
    loader.read_environment(environment)?;
    for words in &arguments.statements {
        loader.apply(&Origin::CommandLine, &shown(words), words, 0)?;
    }
    loader.finish()
}

/// Returns a statement of the command line as an error shows it: the name, and quoted words.
fn shown(words: &[String]) -> String {
    let (name, values) = words.split_first().map_or(("", words), |(name, values)| (name, values));
    let mut text = name.to_owned();
    for value in values {
        text.push(' ');
        quote_into(&mut text, value.as_bytes());
    }
    text
}

const DUPLICATE_USER: &str =
    "Duplicate user found. A user can only be defined once in config files";

/// Returns true if a statement with this first word declares a user.
fn is_user_word(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"user")
}

struct Loader {
    loaded: Loaded,
    /// True if a `save` was read: the first one replaces the default, later ones add to it.
    save_seen: bool,
}

impl Loader {
    fn new() -> Self {
        let loaded = Loaded {
            values: Values::defaults(),
            file: None,
            notices: Vec::new(),
            users: Vec::new(),
            renamed: Vec::new(),
        };
        Self { loaded, save_seen: false }
    }

    fn read_file(&mut self, path: &Path, origin: &Origin, depth: usize) -> Result<(), ConfigError> {
        let shown = path.display().to_string();
        let text = fs::read_to_string(path).map_err(|error| {
            let reason = format!("can't open config file '{shown}': {}", io_reason(&error));
            refusal(origin, &shown, reason)
        })?;
        self.read_text(&text, depth, |line| Origin::File { path: shown.clone(), line })
    }

    fn read_text(
        &mut self,
        text: &str,
        depth: usize,
        origin_of_line: impl Fn(usize) -> Origin,
    ) -> Result<(), ConfigError> {
        for (index, line) in text.split('\n').enumerate() {
            let line = line.trim_matches([' ', '\t', '\r', '\n']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let origin = origin_of_line(index + 1);
            let unbalanced = || refusal(&origin, line, "Unbalanced quotes in configuration line");
            // Names and rules of users need not be UTF-8.
            let words = split_bytes(line.as_bytes())
                .filter(|words| words.first().is_some_and(|word| is_user_word(word)));
            if let Some(words) = words {
                self.add_user(&origin, &words)?;
                continue;
            }
            let words = split_words(line).ok_or_else(unbalanced)?;
            self.apply(&origin, line, &words, depth)?;
        }
        Ok(())
    }

    fn read_environment(
        &mut self,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        let mut variables: Vec<_> = environment
            .filter(|(variable, value)| {
                variable.starts_with(ENVIRONMENT_PREFIX) && !is_service_link(variable, value)
            })
            .collect();
        variables.sort();
        for (variable, value) in variables {
            let name = variable[ENVIRONMENT_PREFIX.len()..].to_ascii_lowercase().replace('_', "-");
            if directives::find(&name).is_none() {
                let notice = format!("environment variable {variable} names no directive; ignored");
                self.loaded.notices.push(notice);
                continue;
            }
            let text = format!("{name} {value}");
            self.apply(&Origin::Environment { variable }, &text, &[name, value], 0)?;
        }
        Ok(())
    }

    /// Executes one statement.
    fn apply(
        &mut self,
        origin: &Origin,
        text: &str,
        words: &[String],
        depth: usize,
    ) -> Result<(), ConfigError> {
        let Some((name, arguments)) = words.split_first() else { return Ok(()) };
        let name = name.to_ascii_lowercase();
        if let Some((index, _)) = directives::find(&name) {
            let shown =
                if TABLE[index].sensitive { format!("{name} ***") } else { text.to_owned() };
            return self.assign(index, arguments).map_err(|reason| refusal(origin, &shown, reason));
        }
        match (name.as_str(), arguments) {
            ("include", [pattern]) => self.include(origin, text, pattern, depth),
            ("user", _) => {
                let words: Vec<Vec<u8>> = words.iter().map(|word| word.clone().into()).collect();
                self.add_user(origin, &words)
            }
            ("rename-command", [command, new]) => {
                self.loaded.renamed.push([command.clone(), new.clone()]);
                Ok(())
            }
            ("loadmodule", [_, ..]) => Err(refusal(origin, text, "modules are not supported")),
            (obsolete, [_]) if OBSOLETE.contains(&obsolete) => {
                self.loaded.notices.push(format!("directive '{obsolete}' is obsolete; ignored"));
                Ok(())
            }
            _ => Err(refusal(origin, text, "Bad directive or wrong number of arguments")),
        }
    }

    /// Adds a user; the rules are applied once all statements are read. They may be secrets.
    fn add_user(&mut self, origin: &Origin, words: &[Vec<u8>]) -> Result<(), ConfigError> {
        let [_, name, rules @ ..] = words else {
            return Err(refusal(origin, "user", "wrong number of arguments"));
        };
        if self.loaded.users.iter().any(|known| known.name == *name) {
            let shown = format!("user {} ***", String::from_utf8_lossy(name));
            return Err(refusal(origin, &shown, DUPLICATE_USER));
        }
        let (origin, name, rules) = (origin.clone(), name.clone(), rules.to_vec());
        self.loaded.users.push(UserLine { origin, name, rules });
        Ok(())
    }

    fn assign(&mut self, index: usize, arguments: &[String]) -> Result<(), String> {
        let directive = &TABLE[index];
        let split;
        let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        if directive.is_multi()
            && let [only] = words[..]
            && !only.is_empty()
        {
            split = split_words(only).ok_or("Unbalanced quotes in configuration line")?;
            words = split.iter().map(String::as_str).collect();
        }
        let current = self.loaded.values.at(index);
        let mut value = value::canonical(directive, &words, current)?;
        if directive.name == "save" {
            if self.save_seen && !value.is_empty() && !current.is_empty() {
                value = format!("{current} {value}");
            }
            self.save_seen = true;
        }
        self.loaded.values.put(index, value);
        Ok(())
    }

    fn include(
        &mut self,
        origin: &Origin,
        text: &str,
        pattern: &str,
        depth: usize,
    ) -> Result<(), ConfigError> {
        if depth == INCLUDE_DEPTH {
            return Err(refusal(origin, text, "files include one another too deeply"));
        }
        let paths =
            matching_files(pattern).map_err(|error| refusal(origin, text, io_reason(&error)))?;
        for path in paths {
            self.read_file(&path, origin, depth + 1)?;
        }
        Ok(())
    }

    /// Adjusts values that depend on several directives, and collects the notices.
    fn finish(mut self) -> Result<Loaded, ConfigError> {
        let values = &mut self.loaded.values;
        settle(values);
        let dir = directives::find("dir").map_or(0, |(index, _)| index);
        let path = absolute(values.at(dir)).map_err(|error| {
            refusal(&Origin::CommandLine, &format!("dir {}", values.at(dir)), io_reason(&error))
        })?;
        values.put(dir, path.display().to_string());
        let values = &self.loaded.values;
        let is_set = |index: usize| values.at(index) != TABLE[index].default;
        self.loaded.notices.extend(notices(is_set));
        Ok(self.loaded)
    }
}

/// Minimum and maximum of `hz`, per second.
const HZ: (i64, i64) = (1, 500);

/// Adjusts values that are bounded silently.
pub(super) fn settle(values: &mut Values) {
    for (index, directive) in TABLE.iter().enumerate() {
        if directive.name == "hz" {
            let hz = values.at(index).parse().unwrap_or(HZ.1).clamp(HZ.0, HZ.1);
            values.put(index, hz.to_string());
        }
    }
}

/// Returns a line for each requested directive that has no effect.
pub(super) fn notices(is_asked: impl Fn(usize) -> bool) -> Vec<String> {
    let mut notices = Vec::new();
    for (_, directive) in TABLE.iter().enumerate().filter(|(index, _)| is_asked(*index)) {
        if let Some(reason) = directive.inert {
            notices.push(format!("directive '{}' has no effect: {reason}", directive.name));
        }
    }
    notices.dedup();
    notices
}

fn refusal(origin: &Origin, text: &str, reason: impl Into<String>) -> ConfigError {
    ConfigError { origin: origin.clone(), text: text.to_owned(), reason: reason.into() }
}

/// Returns true if a container platform has set the variable for a service named `flagstone`.
fn is_service_link(variable: &str, value: &str) -> bool {
    let name = &variable[ENVIRONMENT_PREFIX.len()..];
    name == "LOG"
        || name.starts_with("SERVICE_")
        || name.starts_with("PORT_")
        || (name == "PORT" && value.starts_with("tcp://"))
}

/// Returns the files that a path matches; wildcards are allowed in its last part and may match
/// nothing.
fn matching_files(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let path = Path::new(pattern);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !name.contains(['*', '?', '[']) {
        return Ok(vec![path.to_path_buf()]);
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let Ok(entries) = fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?.file_name();
        let entry = entry.as_encoded_bytes();
        let hidden = entry.starts_with(b".") && !name.starts_with('.');
        if !hidden && glob::matches(name.as_bytes(), entry) {
            paths.push(directory.join(String::from_utf8_lossy(entry).as_ref()));
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the text of an input or output error without the number that Rust appends.
pub(super) fn io_reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
