//! `flagstone import`: sends the keys of a file of Redis or Valkey to a running server, or makes it
//! follow another one until clients move over.

mod aof;
mod follow;
mod loader;
mod shift;

use super::connection::Server;
use super::pipeline::Pipeline;
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use follow::MoveArguments;
use indicatif::ProgressBar;
use loader::{Existing, ImportLoader, Role};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Load an RDB file or an append-only file into a running server, or follow another server
///
/// FILE is an RDB file (dump.rdb), an append-only file (appendonly.aof), the directory of one
/// (appendonlydir) or its manifest, or - for standard input. All versions up to Valkey 8.1 and Redis
/// 8.0 are read. Keys that were loaded before an error stay.
///
/// Keys go into the database they were in. The command leaves out expired keys, and values of modules,
/// which it counts. It runs the commands of an append-only file, without --replace only on a server that
/// has no keys.
///
/// With --follow there is no file: the server copies another one that runs, Redis 6 or newer, Valkey or
/// Flagstone, and applies what clients write there, until the command is started with --switch. All keys
/// and libraries of its own are deleted before, which needs --replace. The command may be ended and
/// started again at any time.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    override_usage = "flagstone import [OPTIONS] <FILE>\n       \
        flagstone import [OPTIONS] --follow <URI> [--switch | --compare]"
)]
pub(super) struct ImportArguments {
    /// The file to load
    #[arg(required_unless_present = "follow")]
    file: Option<PathBuf>,
    #[command(flatten)]
    moving: MoveArguments,
    /// The server, in place of the options for it; with a database, all keys go into that one
    #[arg(
        long,
        short = 'u',
        visible_alias = "uri",
        value_name = "redis[s]://[[user]:password@]host[:port][/database]|unix:///path"
    )]
    to: Option<String>,
    #[command(flatten)]
    server: Server,
    /// Overwrite existing keys and libraries (default: an error); with --follow, delete them
    #[arg(long)]
    replace: bool,
    /// Leave out keys and libraries that exist on the server (default: an error)
    #[arg(long, conflicts_with = "replace")]
    skip: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the import.
///
/// # Errors
/// If the file is damaged, the server cannot be reached, or it refuses a command.
pub(super) fn run(arguments: &ImportArguments) -> Result<()> {
    if let Some(uri) = arguments.moving.source() {
        return follow::run(arguments, uri);
    }
    let file = arguments.file.as_deref().context("there is no file to load")?;
    let files = aof::files(file)?;
    let total = files.iter().map(|(path, _)| size(path)).sum::<Option<u64>>();
    let address = arguments.server.address(arguments.to.as_deref())?;
    let existing = match arguments {
        ImportArguments { replace: true, .. } => Existing::Replace,
        ImportArguments { skip: true, .. } => Existing::Skip,
        _ => Existing::Refuse,
    };
    let pipeline = Pipeline::new(address.connect()?)?;
    let mut loader = ImportLoader::new(pipeline, existing, address.database);
    let bar = progress::bytes(total, arguments.quiet);
    let loaded = load(&mut loader, &files, &bar).and_then(|()| loader.finish(&address));
    // Data read before the error is loaded, and counts.
    loader.pipeline.recover();
    bar.finish_and_clear();
    say!("{}", loader.summary());
    loaded
}

/// Returns the length of a regular file; `None` for any other.
fn size(path: &Path) -> Option<u64> {
    path.metadata().ok().filter(std::fs::Metadata::is_file).map(|metadata| metadata.len())
}

fn load(loader: &mut ImportLoader, files: &[(PathBuf, Role)], bar: &ProgressBar) -> Result<()> {
    let mut progress = 0;
    for (path, role) in files {
        let shown = path.display();
        let file: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(path).with_context(|| format!("{shown}"))?)
        };
        loader.begin_file(*role, progress, bar)?;
        aof::load(loader, file).with_context(|| format!("{shown}"))?;
        progress += size(path).unwrap_or(0);
    }
    if files.is_empty() {
        bail!("there is nothing to load");
    }
    Ok(())
}
