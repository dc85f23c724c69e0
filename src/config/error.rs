//! Refusals to start.

use std::fmt;

/// Location of a directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    File {
        path: String,
        /// Line number from 1.
        line: usize,
    },
    StandardInput {
        /// Line number from 1.
        line: usize,
    },
    Environment {
        variable: String,
    },
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => {
                write!(formatter, "Reading the configuration file '{path}', at line {line}")
            }
            Self::StandardInput { line } => {
                write!(formatter, "Reading the configuration from standard input, at line {line}")
            }
            Self::Environment { variable } => {
                write!(formatter, "Reading the environment variable {variable}")
            }
            Self::CommandLine => formatter.write_str("Reading the command line"),
        }
    }
}

/// The reason why the configuration was refused. Shows origin, directive and reason, for the author
/// of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub origin: Origin,
    /// The directive as written, without the value of a secret.
    pub text: String,
    pub reason: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(formatter, "*** FATAL CONFIG FILE ERROR (Flagstone {version}) ***")?;
        writeln!(formatter, "{}", self.origin)?;
        writeln!(formatter, ">>> '{}'", self.text)?;
        formatter.write_str(&self.reason)
    }
}

impl std::error::Error for ConfigError {}
