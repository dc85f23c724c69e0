//! An open data directory, with the model of its expected contents.

use crate::image::{Image, Pick, Probe};
use crate::model::{Model, Pending, StreamModel, V};
use crate::store::Watched;
use flagstone_storage::OldRows;
use flagstone_storage::clock::Clock;
use flagstone_storage::commit::Sealed;
use flagstone_storage::directory::{Directory, Locks, OpenOptions, OpenStore, ShardSplitter};
use flagstone_storage::encoding::Library;
use flagstone_storage::engine::Engine;
use flagstone_storage::journal::{Disk, Journal, RealDisk, SyncMode};
use flagstone_storage::materialise::{each_hand_over_batch, hand_over, sweep};
use flagstone_storage::partition::Partition;
use flagstone_storage::place::Place;
use flagstone_storage::presence::Presence;
use flagstone_storage::scan::DueCursor;
use flagstone_storage::shard::Cut;
use flagstone_storage::store::{Fault, Need, OrLoad, Part, Store};
use flagstone_storage::value::stream::StreamEntry;
use flagstone_storage::value::{Stream, StreamId, Value};
use object_store::local::LocalFileSystem;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

pub(crate) const SHARDS: u16 = 3;

/// A filter of keys, the engine that has them, and the dead generations.
type Scan = (Arc<Presence>, Engine, BTreeSet<u32>);

/// Maximum number of flushes of one hand-over.
const MAX_FLUSHES: usize = 30;

pub(crate) struct World {
    pub(crate) runtime: Option<Runtime>,
    pub(crate) partition: Partition,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) probe: Arc<Probe>,
    /// The model, including uncommitted changes.
    pub(crate) model: Model,
    pub(crate) holds: u64,
    /// The libraries at the start, with later changes.
    pub(crate) libraries: Vec<Library>,
    /// Passes over blind operations that have begun, by shard.
    passes: BTreeMap<u16, OldRows>,
    /// Shards whose keys are being read; true if that is done.
    scans: BTreeMap<u16, (Scan, bool)>,
    /// Splits its shards, unless a checkpoint is under way.
    pub(crate) splitter: Option<Arc<ShardSplitter>>,
    _locks: Locks,
}

pub(crate) fn options(dir: &Path, databases: u32) -> OpenOptions {
    OpenOptions {
        store: Place::local(dir).unwrap(),
        journal: None,
        store_timeout: Duration::from_secs(1),
        shards: None,
        default_shards: SHARDS,
        databases,
        segment_bytes: 64 << 10,
        mode: SyncMode::No,
        everysec_bound: Duration::from_secs(1),
        inline_sync: false,
        archive: false,
        block_cache_bytes: 1 << 20,
        meta_cache_bytes: 1 << 20,
        memtable_bytes: 64 << 20,
        merge_bytes: 16 << 20,
        merges: 2,
        compression: None,
        presence_bytes: 4 << 20,
        replay_bytes: 4 << 20,
        feed_bytes: 1 << 20,
        cache: None,
        journal_bytes: 16 << 20,
        lease: Duration::from_millis(50),
    }
}

impl World {
    pub(crate) fn try_open(dir: &Path, model: Model, pick: Pick) -> anyhow::Result<Self> {
        let options = options(dir, model.dbs.len() as u32);
        Self::try_open_with(options, model, pick)
    }

    fn try_open_with(options: OpenOptions, model: Model, pick: Pick) -> anyhow::Result<Self> {
        let dir = options.store.dir().unwrap();
        let probe = Arc::new(Probe::new(dir, model.clone(), pick));
        let watch = probe.clone();
        let store = move |place: &Place| -> anyhow::Result<Place> {
            let local = Arc::new(LocalFileSystem::new_with_prefix(place.dir().unwrap())?);
            let watched = Arc::new(Watched::new(local, watch.clone()));
            Ok(place.through(watched))
        };
        Self::open_on(options, model, probe, Arc::new(RealDisk), Arc::new(store))
    }

    /// Opens a directory whose journal and engines may be elsewhere.
    pub(crate) fn open_on(
        options: OpenOptions,
        model: Model,
        probe: Arc<Probe>,
        disk: Arc<dyn Disk>,
        store: Arc<OpenStore<'static>>,
    ) -> anyhow::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let opening = Directory::open_with(options, Clock::default(), disk, store);
        let opened = runtime.block_on(opening)?;
        let journal = opened.journal.clone();
        let libraries = opened.libraries.clone();
        let splitter = opened.splitter.clone();
        let (mut partitions, locks) = opened.into_partitions(1, 1);
        let partition = partitions.remove(0);
        let runtime = Some(runtime);
        let scans = BTreeMap::new();
        Ok(Self {
            runtime,
            partition,
            journal,
            probe,
            model,
            holds: 0,
            libraries,
            passes: BTreeMap::new(),
            scans,
            splitter,
            _locks: locks,
        })
    }

    pub(crate) fn open(dir: &Path, model: Model, pick: Pick) -> Self {
        Self::try_open(dir, model, pick).unwrap_or_else(|e| panic!("opening {dir:?}: {e:#}"))
    }

    /// Opens a directory with other options than usual.
    pub(crate) fn open_with(options: OpenOptions, model: Model) -> Self {
        Self::try_open_with(options, model, Box::new(|_| false)).unwrap()
    }

    /// Gives an engine all batches of a cut but the last, of so many rows each.
    pub(crate) fn write_some(&mut self, shard: u16, cut: &Cut, rows: usize) {
        self.journal.sync_now().unwrap();
        let engine = self.partition.shards[&shard].engine().clone();
        let mut batches = Vec::new();
        each_hand_over_batch(cut, rows, &mut |batch| batches.push(batch));
        batches.pop();
        for batch in batches {
            self.block_on(engine.write(batch)).unwrap();
        }
    }

    /// Opens a copy of an image.
    pub(crate) fn reopen(image: &Image, dir: &Path, pick: Pick) -> Self {
        image.unpack(dir);
        Self::try_open(dir, image.model.clone(), pick)
            .unwrap_or_else(|e| panic!("{}: opening: {e:#}", image.at))
    }

    /// Opens a copy of an image with so much memory for replayed rows.
    pub(crate) fn reopen_within(
        image: &Image,
        dir: &Path,
        pick: Pick,
        replay_bytes: usize,
    ) -> Self {
        image.unpack(dir);
        let model = image.model.clone();
        let options = OpenOptions { replay_bytes, ..options(dir, model.dbs.len() as u32) };
        Self::try_open_with(options, model, pick)
            .unwrap_or_else(|e| panic!("{}: opening: {e:#}", image.at))
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().unwrap().block_on(future)
    }

    // ---- commands ----------------------------------------------------------------------------

    pub(crate) fn load(&mut self, need: Need) {
        let plan = self.partition.plan_load(vec![need]).unwrap();
        let handle = self.runtime.as_ref().unwrap().handle().clone();
        let loaded = self.block_on(plan.run(&handle));
        self.partition.finish_load(loaded).unwrap();
    }

    /// Runs a command, loading the parts that it misses.
    pub(crate) fn run<R>(&mut self, mut command: impl FnMut(&mut Store) -> Result<R, Fault>) -> R {
        loop {
            self.partition.store.begin(self.model.now_ms, true);
            match command(&mut self.partition.store) {
                Ok(result) => return result,
                Err(Fault::Miss(need)) => {
                    if need.part.is_some() {
                        self.commit();
                    }
                    self.load(*need);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn commit(&mut self) {
        let (partition, model) = (&mut self.partition, &self.model);
        self.probe.append(model, || partition.commit(model.now_ms).map(|_| ()).unwrap());
    }

    /// Returns a key's value in the store.
    pub(crate) fn get(&mut self, db: u32, key: &[u8]) -> Option<(V, u64)> {
        self.run(|store| {
            let Some(entry) = store.peek(db, key)? else { return Ok(None) };
            let value = match &entry.value {
                Value::Absent => return Ok(None),
                Value::Str(s) => V::Str(s.whole().or_load(db, key)?.into_owned()),
                Value::Hash(hash) => {
                    hash.require_all().or_load(db, key)?;
                    let fields: BTreeMap<_, _> = hash
                        .iter()
                        .map(|(n, f)| (n.to_vec(), (f.value.to_vec(), f.expire_at_ms)))
                        .collect();
                    assert_eq!(fields.len() as u64, hash.len(), "length of a hash");
                    V::Hash(fields)
                }
                Value::Set(set) => {
                    set.require_all().or_load(db, key)?;
                    assert_eq!(set.iter().count() as u64, set.len(), "length of a set");
                    V::Set(set.iter().map(<[u8]>::to_vec).collect())
                }
                Value::List(list) => {
                    let elements = list.range(0, list.len(), false).or_load(db, key)?;
                    let elements: Vec<_> = elements.map(<[u8]>::to_vec).collect();
                    assert_eq!(elements.len() as u64, list.len(), "length of a list");
                    V::List(elements)
                }
                Value::Stream(stream) => {
                    let all = (StreamId::MIN, StreamId::MAX);
                    let entries = stream.range(all.0, all.1, u64::MAX, false).or_load(db, key)?;
                    let value = |mut entry: StreamEntry<'_>| {
                        (entry.id, entry.fields.next().expect("a field").1.to_vec())
                    };
                    let entries: Vec<_> = entries.map(value).collect();
                    assert_eq!(entries.len() as u64, stream.len(), "length of a stream");
                    let first = entries.first().map_or(StreamId::MIN, |(id, _)| *id);
                    assert_eq!(stream.first_id(), first, "first id of a stream");
                    let (last, max_deleted) = (stream.last_id(), stream.max_deleted_id());
                    let added = stream.entries_added();
                    let groups = read_groups(stream).or_load(db, key)?;
                    V::Stream(StreamModel { entries, last, max_deleted, added, groups })
                }
                other => panic!("no history writes a {}", other.type_name()),
            };
            Ok(Some((value, entry.expire_at_ms)))
        })
    }

    /// Sets a string, blindly if its key is not in memory.
    pub(crate) fn set(&mut self, db: u32, key: &[u8], value: &[u8], expire_at_ms: u64) {
        self.run(|store| store.replace(db, key, value, expire_at_ms).map(|_| ()));
        let item = (Arc::new(V::Str(value.to_vec())), expire_at_ms);
        self.model.dbs[db as usize].insert(key.to_vec(), item);
    }

    /// Deletes keys and fields that are due by the index.
    pub(crate) fn expire(&mut self) {
        self.commit();
        self.model.expire();
        for shard in 0..self.shards() {
            for _ in 0..1000 {
                let plan = self
                    .partition
                    .plan_due(shard, &DueCursor::at(0), self.model.now_ms, 3)
                    .unwrap();
                let (due, _) = self.block_on(plan.run()).unwrap();
                if due.is_empty() {
                    break;
                }
                for due in due {
                    let db = self.partition.store.db_of(due.generation).unwrap();
                    self.run(|store| store.peek(db, &due.key).map(|_| ()));
                    let now_ms = self.model.now_ms;
                    while let Some((part, _)) = self
                        .partition
                        .store
                        .missing_due(db, &due.key, now_ms)
                        .filter(|_| due.fields)
                    {
                        self.load(Need { db, key: due.key.clone(), part: Some(part) });
                    }
                    self.partition.store.begin(self.model.now_ms, false);
                    if due.fields {
                        self.partition.store.expire_fields(db, &due.key);
                    }
                }
                self.commit();
            }
        }
    }

    // ---- databases ---------------------------------------------------------------------------

    fn generations(&mut self, changes: &[(u32, u32, u32)], apply: impl FnOnce(&mut Store)) {
        let mut record = Sealed::default();
        for shard in 0..self.shards() {
            let ops = record.ops.entry(shard).or_default();
            changes.iter().for_each(|&(db, generation, dead)| ops.generation(db, generation, dead));
        }
        let body = record.body();
        let shards: Vec<u16> = (0..self.shards()).collect();
        let (journal, model) = (&self.journal, &self.model);
        let append = || journal.append(model.now_ms, &shards, &[&body]).unwrap();
        let lsn = self.probe.append(model, append);
        self.probe.point(|| "between append and merge of generations".into());
        apply(&mut self.partition.store);
        self.partition.merge(lsn, &body);
        self.partition.note_lsn(lsn);
    }

    pub(crate) fn flush_db(&mut self, db: u32) {
        self.commit();
        self.model.dbs[db as usize].clear();
        let shards = self.partition.shards.values();
        let generation = shards.map(|s| s.generations().next).max().unwrap();
        let dead = self.partition.store.generation(db);
        self.generations(&[(db, generation, dead)], |store| {
            let mut generations = store.generations();
            generations[db as usize] = generation;
            drop(store.arrange(&generations));
        });
    }

    pub(crate) fn swap_db(&mut self, a: u32, b: u32) {
        self.commit();
        self.model.dbs.swap(a as usize, b as usize);
        let store = &self.partition.store;
        let changes = [(a, store.generation(b), 0), (b, store.generation(a), 0)];
        self.generations(&changes, |store| {
            let mut generations = store.generations();
            generations.swap(a as usize, b as usize);
            drop(store.arrange(&generations));
        });
    }

    // ---- libraries ---------------------------------------------------------------------------

    /// Sets the libraries, by one record.
    pub(crate) fn set_libraries(&mut self, libraries: Vec<Library>) {
        self.commit();
        let gone = self.libraries.iter().filter(|old| libraries.iter().all(|l| l.name != old.name));
        let gone = gone.map(|old| (&*old.name, None));
        let changes: Vec<_> = gone.chain(libraries.iter().map(|l| (&*l.name, Some(l)))).collect();
        self.model.libraries = libraries.clone();
        let (partition, model) = (&mut self.partition, &self.model);
        let append = || partition.put_libraries(model.now_ms, &changes, Vec::new()).unwrap();
        self.probe.append(model, append);
        drop(changes);
        self.libraries = libraries;
    }

    // ---- the background's work ---------------------------------------------------------------

    pub(crate) fn evict(&mut self) {
        self.commit();
        self.journal.sync_now().unwrap();
        let durable = self.partition.observe_durable();
        // Entries used often are evicted at the third time.
        for _ in 0..4 {
            self.partition.store.evict(0, durable, 200_000, |_, _| false);
        }
    }

    /// Begins a pass over the blind operations of a shard. Returns false if none is due.
    pub(crate) fn begin_pass(&mut self, shard: u16, all: bool) -> bool {
        let rows = self.partition.begin_pass(shard, all);
        let begun = rows.is_some();
        self.passes.extend(rows.map(|rows| (shard, rows)));
        begun
    }

    /// Ends the pass of a shard, if there is one: the rows are read, or cannot be.
    pub(crate) fn end_pass(&mut self, shard: u16, reads: bool) {
        let Some(rows) = self.passes.remove(&shard) else { return };
        if !reads {
            let failed = Err(anyhow::anyhow!("no answer"));
            assert!(self.partition.end_pass(shard, failed).is_err());
            return;
        }
        let read = self.block_on(rows.read());
        self.probe.point(|| format!("replaced rows of shard {shard} are read"));
        self.partition.end_pass(shard, read).unwrap();
        self.probe.point(|| format!("blind operations of shard {shard} are resolved"));
    }

    /// Resolves the blind operations of a shard that stand before a hand-over, or all of them.
    pub(crate) fn resolve(&mut self, shard: u16, all: bool) {
        self.end_pass(shard, true);
        while self.begin_pass(shard, all) {
            self.end_pass(shard, true);
        }
    }

    /// Hands a shard over at once or, with `batch`, step by step with a flush after every step.
    pub(crate) fn hand_over(&mut self, shard: u16, batch: Option<usize>) {
        self.partition.cut(shard);
        self.probe.point(|| format!("shard {shard} is cut"));
        self.resolve(shard, false);
        let Some(cut) = self.partition.take_cut(shard) else { return };
        let engine = self.partition.shards[&shard].engine().clone();
        let seq = if let Some(rows) = batch {
            self.journal.sync_now().unwrap();
            // Like a hand-over in one piece.
            let _alone = self.block_on(engine.alone());
            let mut seq = 0;
            let mut batches = Vec::new();
            each_hand_over_batch(&cut, rows, &mut |batch| batches.push(batch));
            // The engine delays a flush after many small ones.
            let flushed_together = batches.len().div_ceil(MAX_FLUSHES);
            for some in batches.chunks(flushed_together) {
                for batch in some {
                    seq = self.block_on(engine.write(batch.clone())).unwrap();
                }
                self.block_on(engine.flush()).unwrap();
                self.probe.point(|| format!("a batch of shard {shard} is flushed"));
            }
            seq
        } else {
            self.block_on(hand_over(engine, self.journal.clone(), cut.clone(), Default::default()))
                .unwrap()
        };
        self.probe.point(|| format!("shard {shard} is handed over"));
        self.partition.shards.get_mut(&shard).unwrap().handed_over(cut.lsn, seq);
    }

    pub(crate) fn flush(&mut self, shard: u16) {
        let engine = self.partition.shards[&shard].engine().clone();
        self.block_on(engine.flush()).unwrap();
        self.probe.point(|| format!("shard {shard} is flushed"));
        self.partition.observe_flushed();
        self.probe.point(|| format!("the journal knows of shard {shard}"));
    }

    /// Sweeps like the worker: only when no hand-over is under way. Returns true if there is more
    /// to do.
    pub(crate) fn sweep(&mut self, id: u16) -> bool {
        self.partition.observe_flushed();
        let shard = &self.partition.shards[&id];
        if !shard.may_sweep() {
            return false;
        }
        let dead = shard.generations().dead.iter().copied().collect();
        let engine = shard.engine().clone();
        let (swept, more) = self.block_on(sweep(&engine, dead)).unwrap();
        self.partition.shards.get_mut(&id).unwrap().swept(&swept);
        self.probe.point(|| format!("shard {id} is swept"));
        more
    }

    /// Takes the next step towards a filter of a shard's keys: begin, read, end. Returns true if
    /// there was one.
    pub(crate) fn look_for_keys(&mut self, shard: u16) -> bool {
        match self.scans.remove(&shard) {
            None => {
                let scan = self.partition.begin_scan(shard);
                let begun = scan.is_some();
                self.scans.extend(scan.map(|scan| (shard, (scan, false))));
                begun
            }
            Some(((presence, engine, dead), false)) => {
                self.block_on(presence.scan(&engine, &dead)).unwrap();
                self.scans.insert(shard, ((presence, engine, dead), true));
                true
            }
            Some((_, true)) => {
                self.partition.end_scan(shard, true);
                true
            }
        }
    }

    /// Hands over, flushes and sweeps until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        self.commit();
        for shard in 0..self.shards() {
            for _ in 0..2 {
                self.hand_over(shard, None);
                self.flush(shard);
            }
            while self.sweep(shard) {}
            while self.sweep(shard) {}
            self.flush(shard);
        }
    }

    /// Forgets the passes and reads of a shard that have begun, as a worker drops their results.
    pub(crate) fn forget_jobs(&mut self, shard: u16) {
        self.passes.remove(&shard);
        self.scans.remove(&shard);
    }

    pub(crate) fn close(mut self) {
        let runtime = self.runtime.take().unwrap();
        runtime.block_on(self.partition.close()).unwrap();
        self.journal.close().unwrap();
    }
}

/// Returns a directory below `root` for the next copy.
pub(crate) fn fresh(root: &Path, number: &mut u32) -> PathBuf {
    *number += 1;
    let dir = root.join(number.to_string());
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Returns the pending entries of a stream's groups, and their consumers.
fn read_groups(stream: &Stream) -> Result<Pending, Part> {
    let groups = stream.groups();
    let mut found = Pending::new();
    for row in groups.iter() {
        let (name, group) = row?;
        let mut pending = BTreeMap::new();
        for entry in groups.pending_from(group, StreamId::MIN)? {
            let entry = entry?;
            let consumer = groups.consumer_of(group, entry.consumer)?.expect("a consumer");
            pending.insert(entry.id, consumer.name().to_vec());
        }
        assert_eq!(group.pending(), pending.len() as u64, "pending entries of a group");
        for (_, consumer) in groups.consumers(group)? {
            let owned = pending.values().filter(|name| **name == consumer.name()).count();
            assert_eq!(consumer.pending(), owned as u64, "pending entries of a consumer");
        }
        found.insert(name.to_vec(), pending);
    }
    assert_eq!(groups.len(), found.len() as u64, "number of groups");
    Ok(found)
}
