//! The data directory (`flagstone.json`, `journal/`, `shard-<id>/`) and its recovery. It may be a
//! prefix in a bucket.

mod controls;
#[cfg(test)]
mod damage_tests;
mod engines;
mod home;
mod identity;
#[cfg(test)]
mod identity_tests;
mod location;
mod lock;
mod manifest;
mod new_directory;
mod replay;
mod reshard;
mod splitting;
#[cfg(test)]
mod tests;

use crate::attached::AttachedShards;
use crate::clock::Clock;
use crate::commit::Sealed;
use crate::control::{Control, Generations};
use crate::encoding::{Library, SourcePosition};
use crate::engine::files::{OpenFiles, ShardFiles};
use crate::engine::machine::check_cpus;
use crate::engine::{Compression, Engine};
use crate::feed::{Feed, FeedTail};
use crate::journal::{
    BucketJournal, BucketOptions, Disk, HomeDisk, Journal, LocalJournal, Lsn, Options, RealDisk,
    Recovered, SyncMode,
};
use crate::partition::Partition;
use crate::place::{Guarded, Place};
use crate::shard::Shard;
use crate::slot::Layout;
use crate::store::{Store, Versions};
use anyhow::{Context, Result, bail};
use controls::{all_outdated, open_shards, read_control, read_manifest, take_shared};
pub(crate) use controls::{manifest_of, outdated, peek_control, peek_controls};
use engines::open_engines;
pub(crate) use engines::{EngineOpener, share};
pub(crate) use home::ShardHome;
pub(crate) use identity::identity_problems;
pub(crate) use location::ARCHIVE_MARK;
pub use location::Location;
pub(crate) use lock::lock_all;
pub use lock::{Locks, is_open, lock};
pub(crate) use manifest::Manifest;
pub use manifest::create_private_dir;
pub use manifest::is_data_directory;
#[cfg(test)]
pub(crate) use manifest::is_of_one_server;
pub(crate) use new_directory::NewDirectory;
pub(crate) use replay::StartReplay;
pub use reshard::{Resharded, carry_over, remove_old, remove_resharded, reshard};
pub(crate) use splitting::unnamed_shards;
pub use splitting::{ShardSplitter, SplitError};
use splitting::{end_splits, remove_remains};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Options to open a data directory.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub store: Place,
    /// Place of the journal; `None`: `journal` in the store.
    pub journal: Option<Place>,
    /// Time limit for reads from a store that is not a local directory.
    pub store_timeout: Duration,
    /// Number of shards; `None`: that of the directory, or `default_shards` if it is new.
    pub shards: Option<u16>,
    pub default_shards: u16,
    pub databases: u32,
    pub segment_bytes: u64,
    /// True to archive the parts that the journal drops.
    pub archive: bool,
    pub mode: SyncMode,
    pub everysec_bound: Duration,
    /// True if the only committer syncs by itself.
    pub inline_sync: bool,
    pub block_cache_bytes: u64,
    /// Bytes of filters and indexes of files in memory. In a local directory, half of them are for
    /// point reads, the other half for the engines' cache.
    pub meta_cache_bytes: u64,
    /// Bytes of the memtables of all engines together, before they are flushed.
    pub memtable_bytes: usize,
    /// Bytes that merges of files read ahead, all engines together.
    pub merge_bytes: usize,
    /// Maximum number of merges of each kind at a time, all engines together; at least one.
    pub merges: usize,
    /// How new files of the engines are compressed, if at all.
    pub compression: Option<Compression>,
    /// Bytes of the filters of keys, all shards together; 0: stored ones are kept as they are.
    pub presence_bytes: usize,
    /// Local directory for cached files of a bucket, and the bytes it may take.
    pub cache: Option<(PathBuf, u64)>,
    /// Bytes of rows that are replayed at the start, all shards together, before the engines get
    /// them.
    pub replay_bytes: usize,
    /// Bytes of the stream for replicas that are read at the start.
    pub feed_bytes: usize,
    /// Bytes that may wait for the store of a journal in a bucket.
    pub journal_bytes: usize,
    /// How long the proven owner of such a journal may answer: [`LEASE`](crate::lease::LEASE),
    /// except in tests. The same for all possible owners.
    pub lease: Duration,
}

impl OpenOptions {
    /// Returns the location that is opened.
    pub fn location(&self) -> Location {
        Location { store: self.store.clone(), journal: self.journal.clone() }
    }
}

/// An open data directory.
pub struct Directory {
    pub layout: Arc<Layout>,
    pub store: Place,
    /// Place of the journal.
    pub journal_place: Place,
    pub journal: Arc<dyn Journal>,
    pub generations: Generations,
    /// The libraries of functions, by name.
    pub libraries: Vec<Library>,
    /// The position in the stream of another server, whose replica this one was.
    pub source: SourcePosition,
    /// Salt of the journal: identifies the data directory.
    pub origin: u32,
    /// Words of the records for replicas.
    pub feed: Arc<Feed>,
    /// The end of the stream for replicas, if it can be continued: then the feed is on.
    pub feed_tail: Option<FeedTail>,
    /// Number of records that were not in the shards, and were merged.
    pub replayed: u64,
    /// Splits its shards, unless they are those of a cluster.
    pub splitter: Option<Arc<ShardSplitter>>,
    versions: Arc<Versions>,
    shards: Vec<Shard>,
    databases: u32,
    locks: Locks,
}

impl Directory {
    /// Opens a data directory, or creates it, and recovers every commit. Must run on the background
    /// runtime, where the engines' tasks stay.
    pub async fn open(options: OpenOptions, clock: Clock) -> Result<Self> {
        // Before anything is created.
        check_cpus()?;
        for place in [Some(&options.store), options.journal.as_ref()].into_iter().flatten() {
            if place.dir().is_none() {
                place.preflight().await?;
            }
        }
        Self::open_with(options, clock, Arc::new(RealDisk), Arc::new(local_files())).await
    }

    /// Like [`open`](Self::open), with the journal on another disk, and with other stores:
    /// `open_store` returns the place of an engine's files, given the shard's place.
    pub async fn open_with(
        mut options: OpenOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
        open_store: Arc<OpenStore<'static>>,
    ) -> Result<Self> {
        options.store = options.store.with_shared().await?;
        let locks = lock_all(&options.store, options.journal.as_ref())?;
        let manifest = Manifest::open(&options).await?;
        if let Some(dir) = options.store.dir() {
            end_splits(dir, &manifest)?;
        }
        Self::open_as(manifest, options, clock, disk, open_store, locks).await
    }

    async fn open_as(
        mut manifest: Manifest,
        options: OpenOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
        open_store: Arc<OpenStore<'static>>,
        locks: Locks,
    ) -> Result<Self> {
        let store = &options.store;
        let location = options.location();
        let journal_place = location.journal();
        let recovery = recover(&location, &options, &manifest, disk).await?;
        check_unopened(&recovery, &location, &manifest).await?;
        // Opening the engines fences those of any other process, so it must be certain first that
        // this process owns the data.
        recovery.wait_out_lease().await?;
        clock.at_least(recovery.max_time_ms());
        let opener = EngineOpener::new(&options, &manifest, &clock);
        let mut opened = open_shards(&opener, &*open_store, &mut manifest, store).await?;
        let layout = Arc::new(manifest.layout());
        check_shards(&recovery, &manifest, store, opened.iter().map(|(id, _, c)| (*id, c)))?;
        let stale = all_outdated(&opened, &manifest);
        let epoch = opened.iter().map(|(.., c)| c.epoch).max().unwrap_or(0);
        let epoch = (recovery.max_epoch() + 1).max(epoch + 1).max(manifest.epoch + 1);
        let end = |c: &Control| c.reaches.max(c.applied).max(c.complete.unwrap_or(0));
        let highest = opened.iter().map(|(.., c)| end(c)).max().unwrap_or(0);
        let (libraries, source) = take_shared(opened.iter_mut().map(|(.., control)| control));
        let presence = |id: u16| share(options.presence_bytes, layout.slots_of(id).len());
        let complete: Vec<Lsn> =
            opened.iter().map(|(.., c)| c.applied.max(c.complete.unwrap_or(0))).collect();
        let mut shards: Vec<Shard> = opened
            .into_iter()
            .map(|(id, engine, control)| Shard::new(id, engine, epoch, control, presence(id)))
            .collect();
        let mut replay = StartReplay::new(stale, options.replay_bytes, Some(layout.clone()));
        (replay.libraries, replay.source) = (libraries, source);
        let replayed = replay.run(&recovery, &mut shards, &complete).await?;
        shards.iter_mut().for_each(Shard::end_replay);
        if replayed > 0 {
            tracing::info!(records = replayed, "the journal's tail was replayed");
        }
        replay.take_libraries(&shards)?;
        replay.take_source(&shards)?;
        let feed = Arc::new(Feed::new(manifest.salt));
        let next = (epoch, highest + 1);
        let (journal, feed_tail) = begin(recovery, next, &feed, options.feed_bytes).await?;
        // From here on the journal has a record of its end, which a new journal had not.
        replay.delete_stale().await?;
        manifest.note_begun(store, journal.epoch()).await?;
        shards.iter().for_each(|shard| journal.flushed(shard.id, shard.flushed()));
        check_generations(&shards, store)?;
        add_databases(&*journal, &mut shards, options.databases, &clock)?;
        feed.go_on(&*journal, feed_tail.as_ref());
        let generations = shards.first().map(|s| s.generations().clone()).unwrap_or_default();
        let next = shards.iter().map(|s| s.generations().next).max().unwrap_or(1);
        remove_remains(store, &manifest).await;
        let (origin, epoch) = (manifest.salt, journal.epoch());
        let splitter = shards.first().map(|first| {
            let (opening, first) = ((opener, open_store), (first.engine(), options.store_timeout));
            ShardSplitter::new(opening, store, manifest, first, epoch, options.presence_bytes)
        });
        Ok(Self {
            splitter: splitter.map(Arc::new),
            store: options.store,
            journal_place,
            layout,
            journal,
            generations: Generations { next, ..generations },
            libraries: replay.libraries.into_values().collect(),
            source: replay.source,
            origin,
            feed,
            feed_tail,
            replayed,
            versions: Arc::new(Versions::new(epoch)),
            shards,
            databases: options.databases,
            locks,
        })
    }

    /// Creates the directory of one server of a cluster, whose shards come and go while it runs.
    pub(crate) fn without_shards(
        options: &OpenOptions,
        manifest: &Manifest,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let mut generations = Generations::default();
        for (db, generation) in generations.missing(options.databases) {
            generations.set(db, generation, 0);
        }
        Self {
            layout: Arc::new(manifest.layout()),
            store: options.store.clone(),
            journal_place: options.store.clone(),
            versions: Arc::new(Versions::new(journal.epoch())),
            journal,
            generations,
            libraries: Vec::new(),
            source: SourcePosition::default(),
            origin: manifest.salt,
            feed: Arc::new(Feed::new(manifest.salt)),
            feed_tail: None,
            replayed: 0,
            splitter: None,
            shards: Vec::new(),
            databases: options.databases,
            locks: Locks::default(),
        }
    }

    /// Closes the directory so that its shards are complete.
    pub(crate) async fn close(self) -> Result<()> {
        let journal = self.journal.clone();
        let (partitions, _locks) = self.into_partitions(1, 1);
        for partition in partitions {
            partition.close().await?;
        }
        journal.close()?;
        Ok(())
    }

    /// Returns the engines of the shards, in order.
    pub fn engines(&self) -> Vec<Engine> {
        self.shards.iter().map(|shard| shard.engine().clone()).collect()
    }

    /// Returns the number of keys in the databases from one on.
    pub fn keys_from(&self, database: u32) -> u64 {
        self.keys().skip(database as usize).sum()
    }

    /// Returns the number of keys of each database.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        let keys = |generation: &u32| self.shards.iter().map(|it| it.totals(*generation).0).sum();
        self.generations.live.iter().map(keys)
    }

    /// Distributes the shards: shard n to worker n mod `shard_workers`; further workers own none.
    /// The locks are returned with them.
    pub fn into_partitions(self, shard_workers: usize, total: usize) -> (Vec<Partition>, Locks) {
        let mut dealt: Vec<Vec<Shard>> = Vec::new();
        dealt.resize_with(total.max(shard_workers), Vec::new);
        for shard in self.shards {
            dealt[usize::from(shard.id) % shard_workers].push(shard);
        }
        let live = &self.generations.live[..self.databases as usize];
        let attached = Arc::new(AttachedShards::default());
        let partition = |shards: Vec<Shard>| {
            let shared = (self.layout.clone(), self.versions.clone(), attached.clone());
            let store = Store::sharing(shared, live, false);
            let mut partition = Partition::new(store, self.journal.clone()).with_feed(&self.feed);
            for shard in shards {
                let id = shard.id;
                if let Err(refused) = partition.attach(shard) {
                    unreachable!("shard {id}, which agrees with the others: {}", refused.why);
                }
            }
            partition
        };
        (dealt.into_iter().map(partition).collect(), self.locks)
    }
}

/// Applies a whole journal to the shards of a store that is no data directory yet: they need no
/// journal then, as after a clean stop.
pub(crate) async fn complete_shards(options: OpenOptions, manifest: Manifest) -> Result<()> {
    let clock = Clock::default();
    let locks = lock_all(&options.store, options.journal.as_ref())?;
    let files = Arc::new(local_files());
    let opened =
        Directory::open_as(manifest, options, clock, Arc::new(RealDisk), files, locks).await?;
    opened.close().await
}

/// Returns the place of the files of a shard's engine, given the shard's place.
pub type OpenStore<'a> = dyn Fn(&Place) -> Result<Place> + Send + Sync + 'a;

/// Keeps the files of shards in local directories open.
fn local_files() -> impl Fn(&Place) -> Result<Place> + Send + Sync {
    let kept = Arc::<OpenFiles>::default();
    move |place| {
        let Some(dir) = place.dir() else { return Ok(place.stamping()) };
        let files = Arc::new(ShardFiles::new(dir, kept.clone())?);
        Ok(place.through(Arc::new(Guarded::new(files, true))))
    }
}

/// Reads the journal, and takes ownership of it if it is in a bucket.
async fn recover(
    location: &Location,
    options: &OpenOptions,
    manifest: &Manifest,
    disk: Arc<dyn Disk>,
) -> Result<Recovered> {
    let (mode, everysec_bound, salt) = (options.mode, options.everysec_bound, manifest.salt);
    let journal = location.journal();
    if options.archive
        && let Err(error) = location.begin_archive().await
    {
        tracing::warn!("the journal's archive is not there: {error:#}");
    }
    let Some(dir) = journal.dir() else {
        let options = BucketOptions {
            mode,
            everysec_bound,
            wait_limit: options.store_timeout,
            max_waiting: options.journal_bytes,
            salt,
            lease: options.lease,
            archive: options.archive.then(|| location.archive()),
            ..BucketOptions::default()
        };
        let recovery = BucketJournal::recover(journal, options).await?;
        return Ok(Recovered::Bucket(Box::new(recovery)));
    };
    create_private_dir(dir).with_context(|| format!("creating {journal}"))?;
    let home = options.journal.as_ref().unwrap_or(&options.store).dir().unwrap_or(dir);
    let disk = HomeDisk::new(disk, home).with_context(|| format!("opening {}", home.display()))?;
    let archive = options.archive.then(|| location.archive());
    let archive = archive.and_then(|place| place.dir().map(Path::to_owned));
    let options = Options {
        segment_bytes: options.segment_bytes,
        everysec_bound,
        mode,
        inline_sync: options.inline_sync,
        salt,
        archive,
        leaves_room: options.journal.is_none() && options.store.dir().is_some(),
        disk: Arc::new(disk),
    };
    let recovery = LocalJournal::recover(dir, options)?;
    let recovered = Recovered::Local(Box::new(recovery));
    check_salt(&recovered, manifest, location)?;
    Ok(recovered)
}

/// Refuses the journal of another directory. In a bucket, each object was checked before.
pub(crate) fn check_salt(
    journal: &Recovered,
    manifest: &Manifest,
    location: &Location,
) -> Result<()> {
    if let Recovered::Local(found) = journal
        && found.salt() != manifest.salt
    {
        bail!(
            "{} is the journal of another data directory: its salt is {}, that of {} is {}. Put the \
             journal of this directory in its place, or restore a backup",
            location.journal(),
            found.salt(),
            location.store,
            manifest.salt
        );
    }
    Ok(())
}

/// Removes objects that a kill has left half-written: the local store writes them under names that
/// end in `#` and a number, and never reads them again.
pub(crate) fn remove_staged(dir: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| Some(name.rsplit_once('#')?.1));
        if entry.file_type()?.is_dir() {
            remove_staged(&entry.path())?;
        } else if number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Refuses shards of other directories, and shards that do not fit the journal. Without a journal
/// they must be complete, all up to the same end: copies of the shards after a clean stop.
pub(crate) fn check_shards<'a>(
    recovery: &Recovered,
    manifest: &Manifest,
    store: &Place,
    shards: impl Iterator<Item = (u16, &'a Control)> + Clone,
) -> Result<()> {
    if let Some(problem) = identity_problems(manifest, store, shards.clone()).first() {
        bail!("{problem}");
    }
    let mut completes = shards.clone().map(|(_, control)| control.complete);
    let whole = completes.next().flatten();
    let restored = recovery.end() == 0 && whole.is_some() && completes.all(|other| other == whole);
    let begun = manifest.epoch;
    for (id, control) in shards {
        recovery.check_shard(id, control.applied)?;
        if restored && control.closed_in < begun {
            bail!(
                "shard {id} is an older copy: it was closed in epoch {} of the journal, but epoch \
                 {begun} was begun later, and there is no journal. Put the newest copy of all files \
                 in place, or restore a backup",
                control.closed_in
            );
        }
        let reaches = control.reaches.max(control.complete.unwrap_or(0));
        if reaches > recovery.end() && !restored {
            bail!(
                "shard {id} reaches lsn {reaches}, but the journal ends at {}: the journal's files \
                 are older than the shard's, or missing",
                recovery.end()
            );
        }
    }
    if !restored && recovery.epoch() < begun {
        bail!(
            "the journal of {store} is an older copy, or a part of it is missing: it ends in epoch \
             {}, but epoch {begun} was begun. Put the newest copy of all its files in place, or \
             restore a backup",
            recovery.epoch()
        );
    }
    Ok(())
}

/// Opening the engines closes those of a server that has them open. A journal in a bucket has told
/// that server, and a lock on the store's directory keeps others out; a local journal beside a
/// store in a bucket does neither, so a journal that does not belong to this store is refused here,
/// before the engines are opened.
async fn check_unopened(
    recovery: &Recovered,
    location: &Location,
    manifest: &Manifest,
) -> Result<()> {
    if location.store.dir().is_some() || location.journal().dir().is_none() {
        return Ok(());
    }
    let manifest = &manifest.clone().with_present_shards(&location.store).await?;
    let found = peek_controls(&location.store.with_shared().await?, manifest).await?;
    check_shards(recovery, manifest, &location.store, found.iter().map(|(id, c)| (*id, c)))
}

/// Begins the journal's epoch, and returns the end of the stream for replicas, which stays in it.
/// `next`: the least numbers of the epoch and of its first record.
async fn begin(
    recovery: Recovered,
    next: (u64, Lsn),
    feed: &Feed,
    feed_bytes: usize,
) -> Result<(Arc<dyn Journal>, Option<FeedTail>)> {
    let tail = feed.read_tail(&recovery, feed_bytes).await?;
    let journal = recovery.start(next.0, next.1).await?;
    feed.keep_tail(&*journal, tail.as_ref());
    Ok((journal, tail))
}

/// Refuses shards that do not have the same databases.
fn check_generations(shards: &[Shard], store: &Place) -> Result<()> {
    let live = |shard: &Shard| shard.generations().live.clone();
    if shards.windows(2).any(|pair| live(&pair[0]) != live(&pair[1])) {
        bail!("the shards in {store} do not agree on the databases' generations");
    }
    Ok(())
}

/// Gives new databases a generation, by a journal record.
fn add_databases(
    journal: &dyn Journal,
    shards: &mut [Shard],
    databases: u32,
    clock: &Clock,
) -> Result<()> {
    let Some(first) = shards.first() else { return Ok(()) };
    let missing = first.generations().missing(databases);
    if missing.is_empty() {
        return Ok(());
    }
    let mut record = Sealed::default();
    for shard in shards.iter() {
        let ops = record.ops.entry(shard.id).or_default();
        missing.iter().for_each(|&(db, generation)| ops.generation(db, generation, 0));
    }
    let lsn = journal.append(clock.now_ms(), &record.shards(), &[&record.body()])?;
    journal.sync_now()?;
    for shard in shards {
        shard.merge_sealed(lsn, &record.ops[&shard.id]);
    }
    Ok(())
}
