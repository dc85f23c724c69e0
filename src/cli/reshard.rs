//! `flagstone reshard`: another number of shards for a data directory.

use super::backup::block_on;
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use flagstone_storage::checkpoint::offline_options;
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{Location, OpenOptions, Resharded, reshard};
use flagstone_storage::place::Place;
use indicatif::HumanBytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Give a data directory another number of shards
///
/// The server must be stopped. All rows are copied into a new directory and read back; then, in one
/// step, it takes the place of the old one, which is removed. Until then nothing of the old one is
/// changed, so the command may be interrupted at any time. There must be room for both.
///
/// Checkpoints and archived segments stay behind with the old directory: keep it (--keep) if they are
/// still needed, or make a backup first.
#[derive(Args)]
pub(super) struct ReshardArguments {
    /// The new number of shards
    #[arg(long, value_name = "N")]
    shards: u16,
    /// The data directory; or the place of a store, with --to
    #[arg(long, default_value = "data", value_name = "DIR|URL")]
    dir: String,
    /// The place of its journal, if that is not in the directory
    #[arg(long, value_name = "URL")]
    journal: Option<String>,
    /// Where to make the new directory; then the old one stays
    #[arg(long, value_name = "DIR|URL")]
    to: Option<String>,
    /// Keep the old directory, beside the new one, under the name DIR.before
    #[arg(long, conflicts_with = "to")]
    keep: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Runs the resharding.
///
/// # Errors
/// If the directory is in use or damaged, or there is no room.
pub(super) fn run(arguments: &ReshardArguments) -> Result<()> {
    let from = Place::parse(&arguments.dir)?;
    let journal = arguments.journal.as_deref().map(Place::parse).transpose()?;
    let location = Location { store: from.clone(), journal };
    let options = block_on(async move { offline_options(&location).await })?;
    if let Some(to) = &arguments.to {
        return copy(options, Place::parse(to)?, arguments);
    }
    if arguments.journal.is_some() {
        bail!("a journal elsewhere belongs to the old directory: make the new one with --to");
    }
    let Some(dir) = from.dir() else {
        bail!("{from} is not a local directory: name a place for the new one with --to");
    };
    // Resolved, because links themselves must not be exchanged.
    let dir = dir.canonicalize().with_context(|| format!("{from}"))?;
    let beside = beside(&dir, "resharding")?;
    let before = self::beside(&dir, "before")?;
    // Removes the remains of an earlier run that was interrupted before the exchange.
    let taken = [(&beside, beside.join("flagstone.json").exists()), (&before, before.exists())];
    for (path, is_taken) in taken {
        if is_taken {
            bail!(
                "{} is there, perhaps from a run that was interrupted: remove it, if {} is whole",
                path.display(),
                dir.display()
            );
        }
    }
    copy(options, Place::local(&beside)?, arguments)?;
    exchange(&beside, &dir).with_context(|| {
        format!("putting {} in the place of {}", beside.display(), dir.display())
    })?;
    if arguments.keep {
        std::fs::rename(&beside, &before)
            .with_context(|| format!("naming {}", before.display()))?;
        say!("the old directory is {}", before.display());
    } else {
        std::fs::remove_dir_all(&beside)
            .with_context(|| format!("removing the old directory, now {}", beside.display()))?;
    }
    Ok(())
}

fn copy(options: OpenOptions, to: Place, arguments: &ReshardArguments) -> Result<()> {
    let begun = Instant::now();
    let bar = progress::bytes(None, arguments.quiet);
    let told = {
        let bar = bar.clone();
        move |so_far: Resharded| bar.set_position(so_far.bytes)
    };
    let shards = arguments.shards;
    let done = block_on(async move {
        // The engines' tasks belong to the runtime's threads.
        let work = async move { reshard(options, to, shards, Clock::default(), &told).await };
        tokio::spawn(work).await?
    })?;
    bar.finish_and_clear();
    say!(
        "{} keys in {} rows, {}, are in {shards} shards ({:.1} s)",
        done.keys,
        done.rows,
        HumanBytes(done.bytes),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Returns a name beside a directory.
fn beside(dir: &Path, what: &str) -> Result<PathBuf> {
    let name = dir.file_name().with_context(|| format!("{} has no name", dir.display()))?;
    let mut name = name.to_owned();
    name.push(format!(".{what}"));
    Ok(dir.with_file_name(name))
}

/// Exchanges two directories in one step, durably.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?;
    match b.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    }
}
