//! The subcommands of the program: `flagstone COMMAND …`.
//!
//! Each subcommand is a file: its arguments, which clap parses, and a function `run`. An error ends
//! the process with status 1 and its text; refused arguments with status 2.

/// Prints a line, as `println!` does, but see [`say`].
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::say(&format!($($text)*)) };
}

mod backup;
mod check;
mod cluster;
mod connection;
mod export;
mod import;
mod link;
mod pipeline;
mod progress;
mod reshard;

use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

/// The subcommands, beside running the server.
#[derive(Parser)]
#[command(name = "flagstone", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    Import(import::ImportArguments),
    Export(export::ExportArguments),
    Reshard(reshard::ReshardArguments),
    Cluster(cluster::ClusterArguments),
    /// Copy a checkpoint of a data directory to another place
    Backup(backup::BackupArgs),
    /// Make a data directory from a backup or a checkpoint
    Restore(backup::RestoreArgs),
    /// Make a data directory that shares its files with another one and copies none
    Branch(backup::BranchArgs),
    /// Read every row of a stopped data directory and report damage
    Check(check::CheckArgs),
    /// List the checkpoints of a data directory, or the backups in a place
    Checkpoints(backup::CheckpointsArgs),
}

impl CliCommand {
    fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Import(arguments) => import::run(&arguments),
            Self::Export(arguments) => export::run(&arguments),
            Self::Reshard(arguments) => reshard::run(&arguments),
            Self::Cluster(arguments) => cluster::run(&arguments),
            Self::Backup(args) => args.run(),
            Self::Restore(args) => args.run(),
            Self::Branch(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::Checkpoints(args) => args.run(),
        }
    }
}

/// Runs the subcommand in `args`, which begin with the program's name. Returns `None` if the first
/// argument is not exactly the name of one: then the server is to be run. Calls `prepare` first.
pub fn run(args: impl Iterator<Item = OsString>, prepare: fn()) -> Option<ExitCode> {
    let args: Vec<OsString> = args.collect();
    let first = args.get(1)?;
    Cli::command().get_subcommands().find(|command| command.get_name() == first)?;
    prepare();
    crate::signals::fail_long_writes();
    let status = match Cli::try_parse_from(args) {
        Ok(cli) => match cli.command.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // The reader may be gone.
                let _ = writeln!(std::io::stderr(), "flagstone: {error:#}");
                ExitCode::FAILURE
            }
        },
        // Help is such an error, too; failing to print it cannot be reported.
        Err(error) => {
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    };
    Some(status)
}

/// Prints a line. If the reader has closed the pipe, the command still ends as usual.
pub fn say(text: &str) {
    let mut out = std::io::stdout();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    if let Err(error) = said
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(std::io::stderr(), "flagstone: standard output: {error}");
    }
}

/// Returns the subcommands, a line for each, for the help of the whole program.
pub fn overview() -> String {
    let mut text = String::from("Commands (flagstone COMMAND --help tells more):\n");
    for command in Cli::command().get_subcommands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("   {:<12} {about}\n", command.get_name()));
    }
    text
}
