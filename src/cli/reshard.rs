//! `flagstone reshard`: another number of shards for a data directory.

use super::backup::block_on;
use super::progress;
use anyhow::{Context, Result, bail};
use clap::Args;
use flagstone_storage::checkpoint::offline_options;
use flagstone_storage::clock::Clock;
use flagstone_storage::directory::{
    Location, Locks, OpenOptions, Resharded, carry_over, remove_old, remove_resharded, reshard,
};
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
/// still needed, or make a backup first. Other files in it, as one of users, move into the new one.
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
        return copy(options, Place::parse(to)?, arguments).map(drop);
    }
    if arguments.journal.is_some() {
        bail!("a journal elsewhere belongs to the old directory: make the new one with --to");
    }
    let Some(dir) = from.dir() else {
        bail!("{from} is not a local directory: name a place for the new one with --to");
    };
    // Resolved, because links themselves must not be exchanged.
    let dir = dir.canonicalize().with_context(|| format!("{from}"))?;
    if arguments.keep {
        // The copy gets the name under which the old directory stays after the exchange.
        let before = beside(&dir, "before")?;
        if before.join("flagstone.json").exists() {
            bail!(
                "{} is there, kept by an earlier run: move it away, or remove it if nothing of yours is in it",
                before.display()
            );
        }
        let _locks = copy(options, Place::local(&before)?, arguments)?;
        exchange(&before, &dir)?;
        carry_over(&before, &dir)?;
        say!("the old directory is {}", before.display());
        return Ok(());
    }
    let beside = beside(&dir, "resharding")?;
    block_on({
        let (beside, dir) = (beside.clone(), dir.clone());
        async move { remove_resharded(&beside, &dir).await }
    })?;
    let _locks = copy(options, Place::local(&beside)?, arguments)?;
    exchange(&beside, &dir)?;
    carry_over(&beside, &dir)?;
    remove_old(&beside)
        .with_context(|| format!("removing the old directory, now {}", beside.display()))
}

/// Copies the data; returns the locks on the old directory.
fn copy(options: OpenOptions, to: Place, arguments: &ReshardArguments) -> Result<Locks> {
    let begun = Instant::now();
    let bar = progress::bytes(None, arguments.quiet);
    let told = {
        let bar = bar.clone();
        move |so_far: Resharded| bar.set_position(so_far.bytes)
    };
    let shards = arguments.shards;
    let (done, locks) = block_on(async move {
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
    Ok(locks)
}

/// Returns a name beside a directory.
fn beside(dir: &Path, what: &str) -> Result<PathBuf> {
    let name = dir.file_name().with_context(|| format!("{} has no name", dir.display()))?;
    let mut name = name.to_owned();
    name.push(format!(".{what}"));
    Ok(dir.with_file_name(name))
}

/// Exchanges a new directory and the one in whose place it comes, in one step, durably.
fn exchange(new: &Path, dir: &Path) -> Result<()> {
    let exchanged = renameat_with(CWD, new, CWD, dir, RenameFlags::EXCHANGE);
    let exchanged = exchanged.map_err(io::Error::from).and_then(|()| match dir.parent() {
        Some(parent) => File::open(parent)?.sync_all(),
        None => Ok(()),
    });
    exchanged
        .with_context(|| format!("putting {} in the place of {}", new.display(), dir.display()))
}
