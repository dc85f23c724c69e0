//! Checks a data directory: every row of every shard is read.
//!
//! The check reads the state that a start would find: a branch of the directory (its files are
//! shared, or copied by the store, so the directory is not changed) is recovered, and the journal's
//! tail is handed over to its engines.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod rows;
mod shard;
mod sizes;
mod tally;
#[cfg(test)]
mod tests;

use crate::checkpoint::{Catalog, branch_state, offline_options};
use crate::clock::Clock;
use crate::control::Generations;
use crate::directory::{
    Directory, Location, Manifest, check_salt, check_shards, identity_problems, lock_all,
    manifest_of, peek_controls, unnamed_shards,
};
use crate::journal::{
    BucketJournal, BucketOptions, JournalError, LocalJournal, Options, RealDisk, Recovered,
    check_archive,
};
use crate::place::{self, Place, admin, remove_tree, tells_of_full_disk};
use crate::value::Entry;
use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use sizes::KeySizes;

/// Directory of the branch, in the data directory, while it is checked.
const CHECKING: &str = "checking";

/// Listings that are requested at the same time.
const LISTINGS: usize = 16;

/// Receiver of a check's findings and progress.
pub trait Listener: Send + Sync {
    /// Reports a problem.
    fn problem(&self, what: &str);
    /// Reports that so many more rows have been read.
    fn rows(&self, count: u64);
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub shards: u16,
    pub keys: u64,
    /// The sizes of the keys.
    pub sizes: KeySizes,
    pub rows: u64,
    pub records: u64,
    pub checkpoints: u64,
    pub problems: u64,
    /// Segments in the archive of the journal, or objects of one in a bucket.
    pub archived: u64,
    /// Problems of the archive, which only moments of the past need.
    pub archive_problems: u64,
}

/// Counts problems, rows read, and keys.
struct Findings<'a> {
    listener: &'a dyn Listener,
    problems: AtomicU64,
    rows: AtomicU64,
    keys: AtomicU64,
    sizes: Mutex<KeySizes>,
}

impl Findings<'_> {
    fn problem(&self, what: impl AsRef<str>) {
        self.problems.fetch_add(1, Ordering::Relaxed);
        self.listener.problem(what.as_ref());
    }

    /// Counts a key of a database.
    fn key(&self, db: u32, entry: &Entry) {
        self.keys.fetch_add(1, Ordering::Relaxed);
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).add(db, &entry.value);
    }

    fn read(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.listener.rows(rows);
    }
}

/// Checks a data directory that no server has open.
///
/// # Errors
/// If it is no data directory, or is in use; for a store in a bucket, if anything in it changed
/// meanwhile, because then the findings are of no single moment.
pub async fn check(location: &Location, listener: &dyn Listener) -> Result<Report> {
    let store = &location.store;
    let manifest = manifest_of(store).await?;
    let layout = manifest.layout();
    let _locks = lock_all(store, location.journal.as_ref())?;
    let unnamed = store.dir().map(|dir| unnamed_shards(dir, &manifest)).transpose()?;
    let before = state_of(location, &manifest).await?;
    let branch = store.join(CHECKING);
    remove_tree(&branch).await?;
    let zero = AtomicU64::default;
    let sizes = Mutex::default();
    let findings = Findings { listener, problems: zero(), rows: zero(), keys: zero(), sizes };
    let mut report = Report { shards: layout.shards(), ..Report::default() };
    unnamed.iter().flatten().for_each(|problem| findings.problem(problem));
    match check_journal(location, &manifest, &findings).await {
        Ok(records) => report.records = records,
        Err(error) => findings.problem(format!("journal: {error:#}")),
    }
    check_merges(store, &manifest, &findings).await;
    report.checkpoints = check_checkpoints(store, &findings).await?;
    if findings.problems.load(Ordering::Relaxed) == 0 {
        // Without its journal a shard is not in the directory's state.
        let checked = check_branch(location, &branch, &findings).await;
        if let Err(error) = checked {
            let why = format!("{error:#}");
            if tells_of_full_disk(&why) {
                remove_tree(&branch).await?;
                bail!(
                    "{store} is not checked: that needs room for a branch of it, but its disk is full ({why})"
                );
            }
            findings.problem(format!("opening as a start would: {why}"));
        }
    }
    remove_tree(&branch).await?;
    (report.archived, report.archive_problems) =
        look_at_archive(location, manifest.salt(), listener).await;
    if state_of(location, &manifest).await? != before {
        bail!("{store} was written to meanwhile: stop its server, or check a branch of it");
    }
    report.rows = findings.rows.into_inner();
    report.keys = findings.keys.into_inner();
    report.sizes = findings.sizes.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.problems = findings.problems.into_inner();
    Ok(report)
}

/// Returns the objects that change with any write to a bucket: those of the journal and the
/// manifests of the engines. Local directories have locks.
async fn state_of(location: &Location, manifest: &Manifest) -> Result<Vec<BTreeMap<String, u64>>> {
    let mut places = vec![location.journal()];
    let engines = manifest.homes().into_iter().map(|home| home.engine_place(&location.store));
    places.extend(engines.map(|engine| engine.join("manifest")));
    let listings = places.iter().filter(|place| place.dir().is_none()).map(place::sizes);
    futures::stream::iter(listings).buffered(LISTINGS).try_collect().await
}

/// Reads all records of the journal, compares it and the shards with `flagstone.json`, and returns
/// the number of records.
async fn check_journal(
    location: &Location,
    manifest: &Manifest,
    findings: &Findings<'_>,
) -> Result<u64> {
    let store = &location.store;
    let salt = manifest.salt();
    let journal = match location.journal().dir() {
        Some(dir) => {
            let options = Options { salt, ..Options::default() };
            Recovered::Local(Box::new(LocalJournal::recover(dir, options)?))
        }
        None => {
            let options = BucketOptions { salt, ..BucketOptions::default() };
            BucketJournal::view(&location.journal(), &options).await?.into()
        }
    };
    let mut records = 0;
    let mut pieces = journal.pieces(0);
    while let Some(piece) = pieces.next().await? {
        records += u64::from(piece.last);
    }
    check_salt(&journal, manifest, location)?;
    // A branch in a bucket has its rows in files of its parent at first.
    let shared = store.with_shared().await?;
    let controls = peek_controls(&shared, manifest).await?;
    let shards = controls.iter().map(|(id, control)| (*id, control));
    let problems = identity_problems(manifest, store, shards.clone());
    problems.iter().for_each(|problem| findings.problem(problem));
    if problems.is_empty() {
        check_shards(&journal, manifest, store, shards)?;
    }
    Ok(records)
}

/// Reads what the journal has dropped and the archive has. Returns the number of segments or objects, and of
/// problems.
async fn look_at_archive(location: &Location, salt: u32, listener: &dyn Listener) -> (u64, u64) {
    let mut problems = 0;
    let mut tell = |what: String| {
        problems += 1;
        listener.problem(&format!("archive: {what}"));
    };
    let (journal, archive) = (location.journal(), location.archive());
    let read = match (journal.dir(), archive.dir()) {
        (Some(journal), Some(archive)) => check_archive(&RealDisk, journal, archive, &mut tell),
        _ => {
            let options = BucketOptions { salt, ..BucketOptions::default() };
            BucketJournal::check_archive(&journal, &archive, &options, &mut tell).await
        }
    };
    let archived = read.unwrap_or_else(|error| {
        tell(error.to_string());
        0
    });
    (archived, problems)
}

/// Reads the engines' records of compactions, which no branch has, but which a start reads.
async fn check_merges(store: &Place, manifest: &Manifest, findings: &Findings<'_>) {
    for home in manifest.homes() {
        let (shard, engine) = (home.id, home.engine_place(store));
        let read = admin(engine.store(), engine.root().as_ref()).read_compactions(None).await;
        if let Err(error) = read.context("the state of its merges") {
            findings.problem(format!("shard {shard}: {error:#}"));
        }
    }
}

fn count_records(dir: &Path) -> Result<u64, JournalError> {
    let recovery = LocalJournal::recover(dir, Options::default())?;
    let mut records = 0;
    recovery.replay::<JournalError>(0, |_| {
        records += 1;
        Ok(())
    })?;
    Ok(records)
}

/// Reads the records of all checkpoints, and returns the number of checkpoints.
async fn check_checkpoints(store: &Place, findings: &Findings<'_>) -> Result<u64> {
    let catalog = Catalog::of(store);
    let all = catalog.list().await.context("the descriptions of checkpoints")?;
    for checkpoint in &all {
        let counted = async {
            let (records, _scratch) = catalog.local_records(&checkpoint.id).await?;
            anyhow::Ok(count_records(&records)?)
        };
        if let Err(error) = counted.await {
            findings.problem(format!("checkpoint {}: {error:#}", checkpoint.id));
        }
    }
    Ok(all.len() as u64)
}

async fn check_branch(location: &Location, to: &Place, findings: &Findings<'_>) -> Result<()> {
    branch_state(location, to).await.context("making a branch of it")?;
    let branch = Location::from(to.clone());
    let (options, clock) = (offline_options(&branch).await?, Clock::default());
    // Hands the journal's tail over to the engines.
    Directory::open(options.clone(), clock.clone()).await?.close().await?;
    let opened = Directory::open(options, clock).await?;
    let layout = opened.layout.clone();
    let generations: Generations = opened.generations.clone();
    for (id, engine) in (0..).zip(opened.engines()) {
        let shard = shard::ShardCheck { id, layout: &layout, engine: &engine, findings };
        if let Err(error) = shard.run(&generations).await {
            findings.problem(format!("shard {id}: {error:#}"));
        }
    }
    opened.close().await
}
