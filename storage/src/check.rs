//! Whether a data directory is sound: every row of every shard is read.
//!
//! What is read is what a start would find: a branch of the directory (its files are shared, so
//! nothing of it is changed) is recovered, and the journal's tail is handed over to its engines.

mod rows;
mod shard;
mod tally;
#[cfg(test)]
mod tests;

use crate::checkpoint::{Catalog, branch_state, close_directory, open_as_it_is};
use crate::clock::Clock;
use crate::control::Generations;
use crate::directory::{Directory, is_data_directory, lock};
use crate::journal::{JournalError, LocalJournal, Options};
use crate::slot::Layout;
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the branch is, in the data directory, as long as it is checked.
const CHECKING: &str = "checking";

/// Who is told of what is wrong, and how it goes.
pub trait Listener: Send + Sync {
    /// Something is wrong.
    fn problem(&self, what: &str);
    /// So many rows have been read.
    fn rows(&self, count: u64);
}

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub shards: u16,
    pub keys: u64,
    pub rows: u64,
    pub records: u64,
    pub checkpoints: u64,
    pub problems: u64,
}

/// Counts what is wrong, and what was read.
struct Findings<'a> {
    listener: &'a dyn Listener,
    problems: AtomicU64,
    rows: AtomicU64,
    keys: AtomicU64,
}

impl Findings<'_> {
    fn problem(&self, what: impl AsRef<str>) {
        self.problems.fetch_add(1, Ordering::Relaxed);
        self.listener.problem(what.as_ref());
    }

    fn read(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.listener.rows(rows);
    }
}

/// Checks a data directory that no server has open.
pub async fn check(dir: &Path, listener: &dyn Listener) -> Result<Report> {
    if !is_data_directory(dir) {
        bail!("{} is no data directory", dir.display());
    }
    let _lock = lock(dir)?;
    let branch = dir.join(CHECKING);
    crate::checkpoint::remove_dir(&branch)?;
    let zero = AtomicU64::default;
    let findings = Findings { listener, problems: zero(), rows: zero(), keys: zero() };
    let mut report = Report::default();
    match check_journal(&dir.join("journal")) {
        Ok(records) => report.records = records,
        Err(error) => findings.problem(format!("journal: {error}")),
    }
    report.checkpoints = check_checkpoints(dir, &findings)?;
    if findings.problems.load(Ordering::Relaxed) == 0 {
        // Without its journal the shards are not what the directory holds.
        let checked = check_branch(dir, &branch, &findings).await;
        if let Err(error) = checked {
            findings.problem(format!("opening as a start would: {error:#}"));
        }
    }
    crate::checkpoint::remove_dir(&branch)?;
    report.shards = crate::directory::shards_of(dir)?;
    report.rows = findings.rows.into_inner();
    report.keys = findings.keys.into_inner();
    report.problems = findings.problems.into_inner();
    Ok(report)
}

/// Reads all records of a journal; how many there are.
fn check_journal(dir: &Path) -> Result<u64, JournalError> {
    let recovery = LocalJournal::recover(dir, Options::default())?;
    let mut records = 0;
    recovery.replay::<JournalError>(0, |_| {
        records += 1;
        Ok(())
    })?;
    Ok(records)
}

/// Reads the records of all checkpoints; how many checkpoints there are.
fn check_checkpoints(dir: &Path, findings: &Findings<'_>) -> Result<u64> {
    let catalog = Catalog::of(dir);
    let all = catalog.list().context("the descriptions of checkpoints")?;
    for checkpoint in &all {
        if let Err(error) = check_journal(&catalog.records(&checkpoint.id)) {
            findings.problem(format!("checkpoint {}: {error}", checkpoint.id));
        }
    }
    Ok(all.len() as u64)
}

async fn check_branch(dir: &Path, branch: &Path, findings: &Findings<'_>) -> Result<()> {
    branch_state(dir, branch).await.context("making a branch of it")?;
    let clock = Clock::default();
    // The journal's tail goes into the engines.
    close_directory(Directory::open(open_as_it_is(branch)?, clock.clone()).await?).await?;
    let opened = Directory::open(open_as_it_is(branch)?, clock).await?;
    let layout: Layout = (*opened.layout).clone();
    let generations: Generations = opened.generations.clone();
    for (id, engine) in (0..).zip(opened.engines()) {
        let shard = shard::ShardCheck { id, layout: &layout, engine: &engine, findings };
        if let Err(error) = shard.run(&generations).await {
            findings.problem(format!("shard {id}: {error:#}"));
        }
    }
    close_directory(opened).await
}
