//! The subcommands of the program: `flagstone COMMAND …`.
//!
//! A subcommand is a file of its own: its arguments, which clap reads, and a function `run` that does
//! it. An error ends the process with status 1 and its text; arguments that are refused, with 2.

mod connection;
mod export;
mod import;
mod pipeline;
mod progress;

use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// What the program can do beside running the server.
#[derive(Parser)]
#[command(name = "flagstone", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Import(import::Arguments),
    Export(export::Arguments),
}

impl Command {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Import(arguments) => import::run(&arguments),
            Command::Export(arguments) => export::run(&arguments),
        }
    }
}

/// Runs the subcommand that `args`, beginning with the program's name, ask for. `None` if the first
/// argument is not exactly the name of one: then the server is meant. `prepare` is called before.
pub fn run(args: impl Iterator<Item = OsString>, prepare: fn()) -> Option<ExitCode> {
    let args: Vec<OsString> = args.collect();
    let first = args.get(1)?;
    Cli::command().get_subcommands().find(|command| command.get_name() == first)?;
    prepare();
    let status = match Cli::try_parse_from(args) {
        Ok(cli) => match cli.command.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("flagstone: {error:#}");
                ExitCode::FAILURE
            }
        },
        // Help is such an error too; nobody can be told that it cannot be printed.
        Err(error) => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    };
    Some(status)
}

/// The subcommands, a line for each, for the help of the whole program.
pub fn overview() -> String {
    let mut text = String::from("Commands (flagstone COMMAND --help tells more):\n");
    for command in Cli::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("   {:<12} {about}\n", command.get_name()));
    }
    text
}
