//! The typed configuration of the server.
//!
//! One table, `directives`, declares every directive; file, environment, command line, CONFIG GET,
//! CONFIG SET and CONFIG REWRITE derive from it. Precedence: defaults, file, environment, command
//! line. Values are kept as canonical text, from which [`Settings`] is read anew on each change.

mod arguments;
mod choices;
mod directive;
mod directives;
mod error;
mod group;
mod load;
mod machine;
mod networks;
mod parse;
mod rewrite;
mod settings;
mod structured;
#[cfg(test)]
mod tests;
mod value;

use std::collections::HashSet;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use flagstone_wire::glob;

use arguments::ProgramAction;
use directive::Mutability;
use directives::TABLE;
use machine::Machine;
use settings::Values;

pub use choices::{
    AcceptMode, AppendFsync, ClusterReplica, Compression, EndpointType, HttpTls, LogFormat,
    LogLevel, MaxmemoryPolicy, ProtectedAction, RdbVersionCheck, ReplAck, SupervisedBy,
    TlsClientAuth,
};
pub use error::{ConfigError, Origin};
pub use networks::Network;
pub use parse::{quote_into, split_bytes, split_words};
pub use rewrite::RewriteScope;
pub use settings::{
    ClientMemory, LogLimit, OutputBufferLimit, OutputBufferLimits, Settings, TlsSettings,
};

/// The server's configuration, shared by all threads.
pub struct Config {
    state: RwLock<State>,
    /// Counts changes; incremented after the new settings are in place.
    generation: AtomicU64,
    machine: Machine,
    file: Option<PathBuf>,
    notices: Vec<String>,
    users: Vec<UserLine>,
    renamed: Vec<[String; 2]>,
}

/// A statement `user name rule …`.
#[derive(Clone, Debug)]
pub struct UserLine {
    pub origin: Origin,
    pub name: Vec<u8>,
    pub rules: Vec<Vec<u8>>,
}

struct State {
    values: Values,
    settings: Arc<Settings>,
}

/// The prepared changes of a CONFIG SET.
pub struct Change {
    /// The new values, with their places in the table.
    values: Vec<(usize, String)>,
    /// The settings after the change, if nothing else changes before.
    pub settings: Arc<Settings>,
    /// The directives that the command names.
    pub named: Vec<&'static str>,
    /// The directives whose values change.
    pub changed: Vec<&'static str>,
    /// Notices of values without effect, to be logged.
    pub notices: Vec<String>,
}

/// The action that the command line requests.
pub enum Startup {
    /// Run with this configuration.
    Run(Config),
    /// Print this text on the server's options, and the list of subcommands, and exit.
    Help(String),
    /// Print this text on standard output, and exit.
    Print(String),
}

impl Config {
    /// Calls [`Config::load`] with the arguments and the environment of this process.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_process() -> Result<Startup, ConfigError> {
        let text = |value: OsString| value.to_string_lossy().into_owned();
        let environment = env::vars_os().map(|(name, value)| (text(name), text(value)));
        Self::load(env::args_os().skip(1).map(text), environment)
    }

    /// Reads the configuration: `args` after the program's name, `environment` of the process,
    /// standard input if `-` asks for it.
    ///
    /// # Errors
    /// The first statement that is refused, naming origin, line, directive and reason.
    pub fn load(
        args: impl Iterator<Item = String>,
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Startup, ConfigError> {
        Self::load_from(args, environment, &mut io::stdin().lock())
    }

    fn load_from(
        args: impl Iterator<Item = String>,
        environment: impl Iterator<Item = (String, String)>,
        standard_input: &mut dyn Read,
    ) -> Result<Startup, ConfigError> {
        let arguments = match arguments::parse(args)? {
            ProgramAction::Run(arguments) => arguments,
            ProgramAction::Help(text) => return Ok(Startup::Help(text)),
            ProgramAction::Print(text) => return Ok(Startup::Print(text)),
        };
        let loaded = load::load(&arguments, environment, standard_input)?;
        let machine = Machine::detect();
        let settings = Arc::new(Settings::read(&loaded.values, machine));
        Ok(Startup::Run(Self {
            state: RwLock::new(State { values: loaded.values, settings }),
            generation: AtomicU64::new(0),
            machine,
            file: loaded.file,
            notices: loaded.notices,
            users: loaded.users,
            renamed: loaded.renamed,
        }))
    }

    /// Returns the present settings. A thread may keep them until [`Config::generation`] changes.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner).settings)
    }

    /// Returns a number that changes whenever the settings do.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the configuration file the server was started with, absolute.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the notices of values without effect, to be logged at the start.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Returns the users of the configuration, as it was at the start.
    pub fn users(&self) -> &[UserLine] {
        &self.users
    }

    /// Returns the commands that get other names, each with the new one; empty: none.
    pub fn renamed(&self) -> &[[String; 2]] {
        &self.renamed
    }

    /// Executes CONFIG GET: returns names and values for exact names or glob patterns, in any case.
    /// An alias is a name of its own, as in Redis: patterns find both, and an exact name is
    /// returned as requested. The time is in proportion to the number of patterns, which is for the
    /// caller to bound.
    pub fn get(&self, patterns: &[&[u8]]) -> Vec<(String, String)> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let (mut found, mut known) = (Vec::new(), HashSet::new());
        let mut add = |name: &str, value: &str| {
            if !known.contains(name) {
                known.insert(name.to_owned());
                found.push((name.to_owned(), value.to_owned()));
            }
        };
        for pattern in patterns {
            if !pattern.iter().any(|byte| b"[*?".contains(byte)) {
                let name = String::from_utf8_lossy(pattern);
                if let Some((index, _)) = directives::find(&name) {
                    add(&name, state.values.at(index));
                }
                continue;
            }
            for (index, directive) in TABLE.iter().enumerate().filter(|(_, d)| !d.hidden) {
                for name in [Some(directive.name), directive.alias].into_iter().flatten() {
                    if glob::matches_nocase(pattern, name.as_bytes()) {
                        add(name, state.values.at(index));
                    }
                }
            }
        }
        found
    }

    /// Calls [`Config::prepare`] and [`Config::commit`].
    ///
    /// # Errors
    /// As [`Config::prepare`].
    pub fn set(
        &self,
        pairs: &[(&[u8], &[u8])],
        client_is_local: bool,
    ) -> Result<Vec<&'static str>, String> {
        let change = self.prepare(pairs, client_is_local)?;
        let changed = change.changed.clone();
        self.commit(change);
        Ok(changed)
    }

    /// Executes CONFIG SET: returns the changes that these pairs make, all of them or none.
    /// `client_is_local` matters for protected directives that local clients may set.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn prepare(
        &self,
        pairs: &[(&[u8], &[u8])],
        client_is_local: bool,
    ) -> Result<Change, String> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let protected_allowed = state.settings.enable_protected_configs.allows(client_is_local);
        let mut places: Vec<(usize, &'static str)> = Vec::with_capacity(pairs.len());
        for (typed, _) in pairs {
            let typed = String::from_utf8_lossy(typed);
            let Some(place) = directives::find(&typed) else {
                return Err(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{typed}'"
                ));
            };
            let directive = &TABLE[place.0];
            if directive.mutability == Mutability::Immutable {
                return Err(set_failed(&typed, "can't set immutable config"));
            }
            if directive.protected && !protected_allowed {
                return Err(set_failed(&typed, "can't set protected config"));
            }
            if places.contains(&place) {
                return Err(set_failed(&typed, "duplicate parameter"));
            }
            places.push(place);
        }
        let mut values = state.values.clone();
        for ((index, name), (_, value)) in places.iter().zip(pairs) {
            let value = new_value(*index, value, values.at(*index));
            values.put(*index, value.map_err(|reason| set_failed(name, &reason))?);
        }
        load::settle(&mut values);
        let changed: Vec<usize> =
            (0..TABLE.len()).filter(|&index| values.at(index) != state.values.at(index)).collect();
        let is_changed = |index: usize| changed.contains(&index);
        Ok(Change {
            settings: Arc::new(Settings::read(&values, self.machine)),
            notices: load::notices(is_changed),
            named: places.iter().map(|&(index, _)| TABLE[index].name).collect(),
            changed: changed.iter().map(|&index| TABLE[index].name).collect(),
            values: changed.iter().map(|&index| (index, values.at(index).to_owned())).collect(),
        })
    }

    /// Sets a directive that CONFIG SET may not change, because a command of its own does that.
    pub fn assign(&self, name: &str, value: &str) {
        let Some((index, _)) = directives::find(name) else { return };
        self.replace(vec![(index, value.to_owned())]);
    }

    /// Puts a change into effect. Other directives may have been assigned since it was prepared, and
    /// keep their values.
    pub fn commit(&self, change: Change) {
        if !change.values.is_empty() {
            self.replace(change.values);
        }
    }

    /// Replaces some values, given with their places in the table.
    fn replace(&self, changed: Vec<(usize, String)>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut values = state.values.clone();
        for (index, value) in changed {
            values.put(index, value);
        }
        let settings = Arc::new(Settings::read(&values, self.machine));
        *state = State { values, settings };
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Executes CONFIG REWRITE: writes the values that differ from the defaults into the file the
    /// server was started with, keeping its comments and order.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn rewrite(&self) -> Result<(), String> {
        self.rewrite_with_users(None, RewriteScope::Changed)
    }

    /// Like [`rewrite`](Self::rewrite), but also replaces the file's `user` lines by `users`, each
    /// the words after `user`. `None` leaves them as they are.
    ///
    /// # Errors
    /// The text of the error reply.
    pub fn rewrite_with_users(
        &self,
        users: Option<&[String]>,
        scope: RewriteScope,
    ) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Err("ERR The server is running without a config file".to_owned());
        };
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        rewrite::rewrite(file, &state.values, users, scope)
            .map_err(|error| format!("ERR Rewriting config file: {}", load::io_reason(&error)))
    }
}

/// Returns true if a directive's value must not be shown in logs.
pub fn is_secret(name: &str) -> bool {
    directives::find(name).is_some_and(|(index, _)| TABLE[index].sensitive)
}

/// Returns the canonical new value of the directive at `index`.
fn new_value(index: usize, value: &[u8], current: &str) -> Result<String, String> {
    let directive = &TABLE[index];
    let value = str::from_utf8(value).map_err(|_| "argument must be valid UTF-8".to_owned())?;
    let words: Vec<&str> = match value {
        "" if directive.is_multi() => Vec::new(),
        _ if directive.is_multi() => value.split(' ').collect(),
        _ => vec![value],
    };
    let value = value::canonical(directive, &words, current)?;
    if directive.mutability == Mutability::AtStart && value != current {
        return Err("can't set immutable config".to_owned());
    }
    Ok(value)
}

/// Returns the error reply of a CONFIG SET that fails because of one directive.
pub fn set_failed(name: &str, reason: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
}
