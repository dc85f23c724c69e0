//! The command line: `[file | -] [--name value …]… [-]`.

use super::directive::Mutability;
use super::directives::TABLE;
use super::error::{ConfigError, Origin};
use super::parse::split_words;

/// The parsed command line.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) file: Option<String>,
    pub(super) standard_input: bool,
    /// Names of directives, without the dashes, and their words.
    pub(super) statements: Vec<Vec<String>>,
}

/// The action that the command line requests.
pub(super) enum ProgramAction {
    Run(Arguments),
    /// Print how the server is used, and exit.
    Help(String),
    /// Print a text, and exit.
    Print(String),
}

/// Parses the arguments after the program's name. As in Redis, the word directly after `--name` is
/// a value even if it begins with dashes, except after `--save`.
///
/// # Errors
/// If a word belongs to no directive.
pub(super) fn parse(args: impl Iterator<Item = String>) -> Result<ProgramAction, ConfigError> {
    let args: Vec<String> = args.collect();
    match args.first().map(String::as_str) {
        Some("-v" | "--version") => return Ok(ProgramAction::Print(version())),
        Some("-h" | "--help") => return Ok(ProgramAction::Help(help())),
        _ => {}
    }
    let mut parsed = Arguments::default();
    let mut wants_value = false;
    for (index, arg) in args.iter().enumerate() {
        let next = args.get(index + 1);
        let at_end = index == 0 || next.is_none();
        if arg == "-" && at_end && !wants_value {
            parsed.standard_input = true;
        } else if let Some(option) = arg.strip_prefix("--").filter(|_| !wants_value) {
            let mut words = split_words(option).unwrap_or_else(|| vec![option.to_owned()]);
            wants_value = words.len() == 1;
            let ends = next.is_none_or(|next| next.starts_with("--"));
            if wants_value && ends && words[0].eq_ignore_ascii_case("save") {
                words.push(String::new());
                wants_value = false;
            }
            parsed.statements.push(words);
        } else if let Some(statement) = parsed.statements.last_mut() {
            statement.push(arg.clone());
            wants_value = false;
        } else if index == 0 && !arg.starts_with('-') {
            parsed.file = Some(arg.clone());
        } else if !arg.starts_with('-') {
            // As in Redis, the first directive behind a file needs no dashes.
            parsed.statements.push(vec![arg.clone()]);
        } else {
            return Err(ConfigError {
                origin: Origin::CommandLine,
                text: arg.clone(),
                reason: "unexpected argument; try --help".to_owned(),
            });
        }
    }
    Ok(ProgramAction::Run(parsed))
}

fn version() -> String {
    format!("flagstone {}\n", env!("CARGO_PKG_VERSION"))
}

fn help() -> String {
    let mut text = String::from(
        "Usage: flagstone [FILE | -] [--DIRECTIVE VALUE…]… [-]\n\
         \x20      flagstone COMMAND …\n\
         \x20      flagstone -v | --version\n\
         \x20      flagstone -h | --help\n\n\
         FILE has the syntax of redis.conf; - stands for standard input. Every directive is also\n\
         read from the environment, as FLAGSTONE_ and its name in capitals with underscores. The\n\
         command line overrides the environment, which overrides the file. The commands are at the\n\
         end; a file that is named like one of them is given as ./NAME.\n\n\
         Example: flagstone flagstone.conf --port 6380 --appendfsync always\n\n\
         Directives and their defaults (* may be changed by CONFIG SET):\n",
    );
    for directive in TABLE.iter().filter(|directive| directive.inert.is_none() && !directive.hidden)
    {
        let live = if directive.mutability == Mutability::Live { '*' } else { ' ' };
        let default = if directive.default.is_empty() { "\"\"" } else { directive.default };
        let doc = directive.doc;
        text.push_str(&format!(" {live} --{} {default}\n       {doc}\n", directive.name));
    }
    text.push_str("\nFurther directives of Redis are accepted and have no effect here.\n");
    text
}
