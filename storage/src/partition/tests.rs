//! Shards that come and go while partitions run.

use super::*;
use crate::checkpoint::offline_options;
use crate::clock::Clock;
use crate::directory::{Directory, Location, Locks};
use crate::encoding::{OpWriter, SourceExtent};
use crate::need::{Fault, Need, OrLoad, Part};
use crate::place::Place;
use crate::scan::{Cursor, DueCursor};
use crate::slot::{NotOwned, slot_of};
use crate::value::{Entry, Hash, Str, Value};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

const NOW: u64 = 1_800_000_000_000;

/// Time limit, on a busy machine, for what happens at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fields of a hash whose elements have rows of their own.
const FIELDS: u32 = 600;

/// Three workers and two shards, which are dealt to the first worker or to the first two.
struct World {
    workers: Vec<Partition>,
    journal: Arc<dyn Journal>,
    layout: Arc<Layout>,
    _locks: Locks,
}

impl World {
    async fn open(root: &Path, shard_workers: usize) -> Self {
        let location = Location { store: Place::local(root).unwrap(), journal: None };
        let mut options = offline_options(&location).await.unwrap();
        (options.databases, options.default_shards) = (1, 2);
        (options.presence_bytes, options.archive) = (1 << 20, false);
        let opened = Directory::open(options, Clock::default()).await.unwrap();
        let (layout, journal) = (opened.layout.clone(), opened.journal.clone());
        let (workers, _locks) = opened.into_partitions(shard_workers, 3);
        Self { workers, journal, layout, _locks }
    }

    /// Returns the `n`-th key of a shard.
    fn key(&self, shard: u16, n: usize) -> Vec<u8> {
        let all = (0u32..).map(|n| n.to_string().into_bytes());
        let mut own = all.filter(|key| self.layout.shard_of(slot_of(key)) == shard);
        own.nth(n).unwrap()
    }

    async fn set(&mut self, worker: usize, key: &[u8], value: &[u8], expire_at_ms: u64) {
        let set = |store: &mut Store| {
            let mut entry = store.entry_mut(0, key)?;
            entry.value = Value::Str(Str::new(value));
            entry.expire_at_ms = expire_at_ms;
            Ok(())
        };
        self.run(worker, set).await.unwrap();
    }

    fn set_hash(&mut self, worker: usize, key: &[u8]) {
        let store = &mut self.workers[worker].store;
        store.begin(NOW, true);
        let mut hash = Hash::new();
        (0..FIELDS).for_each(|n| _ = hash.set(&n.to_be_bytes(), &n.to_le_bytes(), 0));
        store.entry_mut(0, key).unwrap().value = Value::Hash(Box::new(hash));
    }

    fn commit(&mut self, worker: usize) {
        self.workers[worker].commit(NOW).unwrap();
    }

    /// Commits, and makes the record durable.
    fn store(&mut self, worker: usize) {
        self.commit(worker);
        self.journal.sync_now().unwrap();
        self.workers[worker].observe_durable();
    }

    /// Runs a command, loading what it misses.
    async fn run<R>(
        &mut self,
        worker: usize,
        command: impl Fn(&mut Store) -> Result<R, Fault>,
    ) -> Result<R, NotOwned> {
        let partition = &mut self.workers[worker];
        loop {
            partition.store.begin(NOW, true);
            match command(&mut partition.store) {
                Ok(done) => return Ok(done),
                Err(Fault::Miss(need)) => {
                    let loaded = partition.plan_load(vec![*need])?.run(&Handle::current()).await;
                    partition.finish_load(loaded).unwrap();
                }
                Err(Fault::NotOwned(what)) => return Err(what),
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    async fn get(&mut self, worker: usize, key: &[u8]) -> Option<Vec<u8>> {
        let text = |store: &mut Store| match store.string(0, key)? {
            Some(text) => Ok(Some(text.whole().or_load(0, key)?.into_owned())),
            None => Ok(None),
        };
        self.run(worker, text).await.unwrap()
    }

    async fn field(&mut self, worker: usize, key: &[u8], n: u32) -> Option<Vec<u8>> {
        let name = n.to_be_bytes();
        let field = |store: &mut Store| {
            let hash = store.hash(0, key)?.expect("a hash");
            Ok(hash.get(&name, NOW).or_load(0, key)?.map(|field| field.value.to_vec()))
        };
        self.run(worker, field).await.unwrap()
    }

    fn detach(&mut self, worker: usize, shard: u16) -> DetachedShard {
        self.commit(worker);
        self.workers[worker].detach(shard).unwrap()
    }

    fn attach(&mut self, worker: usize, shard: DetachedShard) {
        self.workers[worker].attach(shard.into_shard()).unwrap();
    }

    /// Hands the pending rows of a shard over, and flushes them.
    async fn hand_over(&mut self, worker: usize, shard: u16) {
        let mut detached = self.detach(worker, shard);
        detached.flush(&self.journal).await.unwrap();
        self.attach(worker, detached);
    }

    async fn close(self) {
        for partition in self.workers {
            partition.close().await.unwrap();
        }
        self.journal.close().unwrap();
    }
}

fn root() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_moves_with_all_its_keys_and_their_counts() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let keys: Vec<_> = (0..31).map(|n| world.key(1, n)).collect();
    let (hash, strings) = keys.split_first().unwrap();
    world.set_hash(1, hash);
    for (n, key) in (0..).zip(strings) {
        world.set(1, key, &[n], if n < 5 { NOW + 1000 } else { 0 }).await;
    }
    world.store(1);
    let sizes = |of: &Partition| {
        (
            of.totals(0),
            of.data_set(),
            keys.iter().map(|key| of.slot_keys(slot_of(key))).sum::<u32>(),
        )
    };
    let before = sizes(&world.workers[1]);
    assert_eq!(before.0, (31, 5));
    for (from, to) in [(1, 2), (2, 1), (1, 0)] {
        let mut away = world.detach(from, 1);
        assert_eq!(sizes(&world.workers[from]).0, (0, 0));
        assert_eq!(world.workers[from].store.memory(), 0);
        assert_eq!(away.take_entries().len(), if from == 1 && to == 2 { 31 } else { 2 });
        let slot = slot_of(hash);
        let exists = |store: &mut Store| store.exists(0, hash);
        assert_eq!(world.run(from, exists).await, Err(NotOwned { slot }));
        world.attach(to, away);
        assert_eq!(sizes(&world.workers[to]), before);
        assert_eq!(world.field(to, hash, FIELDS - 1).await.unwrap(), (FIELDS - 1).to_le_bytes());
        assert_eq!(world.get(to, &strings[7]).await.unwrap(), [7]);
        let absent = world.key(1, 40);
        assert_eq!(world.get(to, &absent).await, None);
    }
    // Writes go on, and the engine gets all.
    world.set(0, &strings[0], b"later", 0).await;
    world.store(0);
    world.hand_over(0, 1).await;
    assert_eq!(world.workers[0].totals(0), (31, 4));
    assert_eq!(world.get(0, &strings[0]).await.unwrap(), b"later");
    assert_eq!(world.get(0, &strings[29]).await.unwrap(), [29]);
    world.close().await;
    let mut world = World::open(root.path(), 1).await;
    assert_eq!(world.workers[0].totals(0), (31, 4));
    assert_eq!(world.get(0, &strings[0]).await.unwrap(), b"later");
    assert_eq!(world.field(0, hash, 3).await.unwrap(), 3u32.to_le_bytes());
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_passes_deleted_keys_in_few_pages() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let keys: Vec<_> = (0..600).map(|n| world.key(0, n)).collect();
    for key in &keys {
        world.set(0, key, b"1", 0).await;
    }
    world.store(0);
    world.hand_over(0, 0).await;
    let kept: Vec<_> = keys.iter().step_by(200).collect();
    for key in keys.iter().filter(|key| !kept.contains(key)) {
        world.run(0, |store| store.remove(0, key)).await.unwrap();
    }
    world.store(0);
    for limit in [1, 2, 100] {
        let (mut found, mut pages, mut next) = (Vec::new(), 0, Some(Cursor::START));
        while let Some(from) = next {
            let plan = world.workers[0].plan_scan(0, 0, from, limit).unwrap();
            let page = plan.run().await.unwrap();
            assert!(page.keys.len() <= limit);
            found.extend(page.keys.into_iter().map(|found| found.key));
            (pages, next) = (pages + 1, page.next);
        }
        found.sort_unstable();
        let mut wanted: Vec<_> = kept.iter().map(|key| key[..].into()).collect();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert!(pages <= kept.len() + 2, "{pages} pages of {limit}");
    }
    world.close().await;
}

impl World {
    /// Flushes the database of a worker that has all attached shards.
    fn flush_all(&mut self, worker: usize) {
        self.commit(worker);
        let partition = &mut self.workers[worker];
        let next = partition.shards.values().map(|shard| shard.generations().next).max().unwrap();
        let (attached, before) =
            (partition.store.attached().clone(), partition.store.generation(0));
        let mut record = Sealed::default();
        for shard in attached.ids() {
            let dead = attached.row_generation(before, shard);
            record.ops.entry(shard).or_default().generation(0, next, dead);
        }
        let body = record.body();
        let lsn = self.journal.append(NOW, &record.shards(), &[&body]).unwrap();
        drop(partition.store.arrange(&[next]));
        partition.merge(lsn, &body);
        partition.note_lsn(lsn);
        self.store(worker);
    }

    async fn scan(&self, worker: usize, shard: u16) -> Vec<Vec<u8>> {
        let plan = self.workers[worker].plan_scan(0, shard, Cursor::START, 100).unwrap();
        let page = plan.run().await.unwrap();
        page.keys.into_iter().map(|found| found.key.into()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_that_were_flushed_apart_meet_on_one_worker() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let [a, b, due, cold] = [(0, 0), (1, 0), (1, 1), (1, 2)].map(|(s, n)| world.key(s, n));
    world.set(0, &a, b"1", 0).await;
    world.set(0, &b, b"1", 0).await;
    world.set(0, &due, b"1", NOW + 1).await;
    world.set(0, &cold, b"1", 0).await;
    world.store(0);
    let first = world.workers[0].store.generation(0);
    let away = world.detach(0, 1);
    world.flush_all(0);
    world.attach(0, away);
    let second = world.workers[0].store.generation(0);
    let rows = |world: &World| [0, 1].map(|shard| world.workers[0].store.row_generation(0, shard));
    assert_eq!((rows(&world), first != second), ([second, first], true));
    assert_eq!(world.get(0, &a).await, None);
    assert_eq!(world.get(0, &b).await.unwrap(), b"1");
    assert_eq!(world.workers[0].totals(0), (3, 1));
    assert_eq!(world.workers[0].slot_keys(slot_of(&b)), 1);
    // Writes, and the rows in the engine.
    world.set(0, &a, b"2", 0).await;
    world.set(0, &b, b"2", 0).await;
    world.store(0);
    for shard in [0, 1] {
        world.hand_over(0, shard).await;
    }
    assert_eq!(rows(&world), [second, first]);
    assert_eq!(
        (world.get(0, &a).await.unwrap(), world.get(0, &b).await.unwrap()),
        (b"2".into(), b"2".into())
    );
    let store = &mut world.workers[0].store;
    store.begin(NOW, true);
    store.replace(0, &cold, b"2", 0).unwrap();
    world.store(0);
    assert_eq!(world.workers[0].unresolved(), 1, "its row was not looked for elsewhere");
    let mut found = world.scan(0, 1).await;
    found.sort_unstable();
    let mut all = [b.clone(), due.clone(), cold.clone()];
    all.sort_unstable();
    assert_eq!((world.scan(0, 0).await, found), (vec![a.clone()], all.to_vec()));
    let plan = world.workers[0].plan_due(1, &DueCursor::at(0), NOW + 1, 10).unwrap();
    let (found, _) = plan.run().await.unwrap();
    assert!(found.len() == 1 && *found[0].key == *due, "{found:?}");
    let store = &world.workers[0].store;
    assert_eq!(store.db_of_row(found[0].generation, &found[0].key), Some(0));
    assert_eq!(store.db_of_row(found[0].generation, &a), None, "dead in the other shard");
    let plan = world.workers[0].plan_first_times(1).unwrap().0;
    let read = plan.run().await.unwrap();
    world.workers[0].end_first_times(1, Some((read.0, None)));
    assert_eq!(world.workers[0].first_to_expire(1, 9).0.len(), 1);
    // The next flush is of both, each with its own dead rows.
    world.flush_all(0);
    let third = world.workers[0].store.generation(0);
    assert_eq!(rows(&world), [third; 2]);
    let shards = &world.workers[0].shards;
    let dead = [0, 1].map(|shard| shards[&shard].generations().dead.clone());
    assert_eq!(dead, [[first, second].into(), [first].into()]);
    for key in [&a, &b, &due, &cold] {
        assert_eq!(world.get(0, key).await, None);
    }
    world.set(0, &b, b"3", 0).await;
    world.store(0);
    world.close().await;
    let mut world = World::open(root.path(), 1).await;
    assert_eq!((world.workers[0].totals(0), rows(&world)), ((1, 0), [third; 2]));
    assert_eq!((world.get(0, &a).await, world.get(0, &b).await.unwrap()), (None, b"3".into()));
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_into_a_shard_that_is_away() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let [key, other, third] = [0, 1, 2].map(|n| world.key(1, n));
    for key in [&key, &other, &third] {
        world.set(0, key, b"1", 0).await;
    }
    world.store(0);
    world.hand_over(0, 1).await;
    let partition = &mut world.workers[0];
    let need = |key: &[u8]| Need { db: 0, key: key.into(), part: None };
    let late = partition.plan_load(vec![need(&third)]).unwrap();
    for of in [&key, &other] {
        let found = partition.plan_load(vec![need(of)]).unwrap().run(&Handle::current()).await;
        partition.finish_load(found).unwrap();
    }
    let mut lent = partition.store.lend(0, &key).unwrap();
    let away = world.detach(0, 1);
    let partition = &mut world.workers[0];
    let store = &mut partition.store;
    store.begin(NOW, true);
    let not_owned = |fault: Option<Fault>| match fault {
        Some(Fault::NotOwned(what)) => assert_eq!(what.slot, slot_of(&other)),
        fault => panic!("{fault:?}"),
    };
    not_owned(store.string(0, &other).err());
    not_owned(store.entry_mut(0, &other).err());
    not_owned(store.remove(0, &other).err());
    not_owned(store.replace(0, &other, b"2", 0).err());
    not_owned(store.can_replace(0, [&other[..]].into_iter()).err());
    assert!(!store.is_hot(0, &other) && store.lend(0, &other).is_none());
    assert!(partition.plan_load(vec![need(&other)]).is_err());
    assert!(partition.load_in_place(vec![need(&other)]).is_err());
    let late = late.run(&Handle::current()).await;
    let late = partition.finish_load(late).unwrap_err();
    assert_eq!(late.downcast_ref(), Some(&NotOwned { slot: slot_of(&third) }));
    assert_eq!(partition.store.memory(), 0);
    // Even what should not come back is not stored.
    let end = world.journal.end();
    lent.value = Value::Str(Str::new(b"2"));
    lent.dirty = true;
    partition.store.give_back(0, lent, true);
    let failed = partition.commit(NOW).unwrap_err();
    assert!(matches!(failed.error, JournalError::NotOwned(_)), "{failed:?}");
    assert_eq!(failed.keys().collect::<Vec<_>>(), [(0, &key[..])]);
    let mut space = partition.store.workspace(&partition.store.generations());
    space.adopt(0, Entry::absent(&key, world.layout.key_hash(&key).hash));
    space.entry_mut(0, &key).unwrap().value = Value::Str(Str::new(b"2"));
    let sealed = space.seal();
    assert!(space.attached().check(&world.layout, sealed.shards()).is_err());
    let none = world.detach(0, 0);
    let partition = &mut world.workers[0];
    let refused = partition.put_libraries(NOW, &[(&b"gone"[..], None)], Vec::new());
    assert!(matches!(refused, Err(JournalError::NotOwned(NotOwned { slot: 0 }))));
    partition.store.source = Some(SourcePosition { serial: 7, ..SourcePosition::default() });
    let refused = partition.put_source(NOW, &SourcePosition::default());
    assert!(matches!(refused, Err(JournalError::NotOwned(_))));
    let open = partition.store.source.take();
    assert_eq!(open.map(|open| open.serial), Some(7), "that of the open round stays");
    assert_eq!(world.journal.end(), end);
    // It comes back as it was.
    world.attach(0, none);
    world.attach(0, away);
    for key in [&key, &other, &third] {
        assert_eq!(world.get(0, key).await.unwrap(), b"1");
    }
    world.close().await;
}

/// A unit of a stream leaves nothing, then another position is stored, and records without one follow.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_in_a_stream_comes_into_no_later_record() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let keys = [0, 1, 2].map(|n| world.key(0, n));
    let position = |serial, extent| SourcePosition { serial, extent, ..SourcePosition::default() };
    let stored = |world: &World| {
        let mut found = SourcePosition::default();
        let shards = world.workers[0].shards.values();
        shards.for_each(|shard| shard.apply_source(&mut found).expect("a whole one"));
        (found.serial, found.extent)
    };
    let end = world.journal.end();
    // The key is known to be absent.
    assert_eq!(world.get(0, &keys[0]).await, None);
    let store = &mut world.workers[0].store;
    store.begin(NOW, true);
    store.begin_unit();
    store.entry_mut(0, &keys[0]).unwrap().value = Value::Str(Str::new(b"1"));
    store.remove(0, &keys[0]).unwrap();
    store.set_source(position(1, SourceExtent::Whole));
    store.end_unit();
    world.store(0);
    // The unit was applied: its position is stored by itself.
    assert_eq!(world.journal.end(), end + 1);
    assert_eq!(stored(&world), (1, SourceExtent::Whole));
    assert_eq!(world.workers[0].take_reached().map(|reached| reached.serial), Some(1));
    world.workers[0].put_source(NOW, &position(2, SourceExtent::Part)).unwrap();
    world.set(0, &keys[0], b"1", 0).await;
    world.store(0);
    assert_eq!(stored(&world), (2, SourceExtent::Part));
    // Nor does one that is set, but not sealed when another one is stored; the rows are handed over between.
    assert_eq!(world.get(0, &keys[1]).await, None);
    let store = &mut world.workers[0].store;
    store.begin_unit();
    store.entry_mut(0, &keys[1]).unwrap().value = Value::Str(Str::new(b"1"));
    store.set_source(position(3, SourceExtent::Whole));
    store.end_unit();
    world.workers[0].put_source(NOW, &position(4, SourceExtent::Part)).unwrap();
    world.workers[0].cut(0);
    world.store(0);
    assert_eq!(stored(&world), (4, SourceExtent::Part));
    world.set(0, &keys[2], b"1", 0).await;
    world.store(0);
    // It is killed.
    drop(world);
    let location = Location { store: Place::local(root.path()).unwrap(), journal: None };
    let mut options = offline_options(&location).await.unwrap();
    options.archive = false;
    let opened = Directory::open(options, Clock::default()).await.unwrap();
    let found = opened.source.clone();
    assert_eq!((found.serial, found.extent), (4, SourceExtent::Part));
}

#[tokio::test(flavor = "multi_thread")]
async fn blind_operations_are_resolved_wherever_the_shard_is() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let keys: Vec<_> = (0..20).map(|n| world.key(1, n)).collect();
    for key in &keys {
        world.set(1, key, b"old", 0).await;
    }
    world.store(1);
    world.hand_over(1, 1).await;
    let replace = |world: &mut World, worker: usize, keys: &[Vec<u8>]| {
        let store = &mut world.workers[worker].store;
        store.begin(NOW, true);
        keys.iter().for_each(|key| _ = store.replace(0, key, b"new", 0).unwrap());
        world.store(worker);
        assert_eq!(world.workers[worker].unresolved(), keys.len());
    };
    replace(&mut world, 1, &keys[..10]);
    let stay = world.workers[1].stay(1).unwrap();
    let under_way = world.workers[1].begin_pass(1, true).unwrap();
    let away = world.detach(1, 1);
    world.attach(2, away);
    assert!(!world.workers[1].is_here(stay), "what the pass has read is dropped");
    drop(under_way);
    assert_eq!(world.workers[2].unresolved(), 10);
    let rows = world.workers[2].begin_pass(1, true).unwrap();
    let read = rows.read().await;
    world.workers[2].end_pass(1, read).unwrap();
    assert_eq!((world.workers[2].unresolved(), world.workers[2].totals(0)), (0, (20, 0)));
    replace(&mut world, 2, &keys[10..]);
    let away = world.detach(2, 1);
    away.close(&world.journal).await.unwrap();
    world.close().await;
    let mut world = World::open(root.path(), 1).await;
    assert_eq!((world.workers[0].unresolved(), world.workers[0].totals(0)), (0, (20, 0)));
    for key in &keys {
        assert_eq!(world.get(0, key).await.unwrap(), b"new");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_that_was_under_way_is_repeated() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let [a, b, c] = [0, 1, 2].map(|n| world.key(1, n));
    world.set(1, &a, b"1", 0).await;
    world.store(1);
    world.workers[1].cut(1);
    assert!(world.workers[1].take_cut(1).is_some());
    world.set(1, &b, b"1", 0).await;
    world.store(1);
    // A move that is called off.
    let stay = world.workers[1].stay(1).unwrap();
    let mut away = world.detach(1, 1);
    away.flush(&world.journal).await.unwrap();
    world.attach(1, away);
    assert!(!world.workers[1].is_here(stay), "the former hand-over is not noted");
    assert_eq!((world.workers[1].unflushed_ops(), world.workers[1].pending_bytes()), (0, 0));
    // A move with rows in every map.
    world.set(1, &c, b"1", 0).await;
    world.store(1);
    world.workers[1].cut(1);
    let cut = world.workers[1].take_cut(1).unwrap();
    world.set(1, &a, b"2", 0).await;
    world.store(1);
    world.workers[1].cut(1);
    let away = world.detach(1, 1);
    world.attach(2, away);
    assert_eq!(world.get(2, &a).await.unwrap(), b"2");
    world.set(2, &b, b"2", 0).await;
    world.store(2);
    assert_eq!(world.workers[2].shards[&1].handing().unwrap().lsn, cut.lsn);
    world.close().await;
    let mut world = World::open(root.path(), 1).await;
    assert_eq!(world.workers[0].totals(0), (3, 0));
    for (key, value) in [(&a, b"2"), (&b, b"2"), (&c, b"1")] {
        assert_eq!(world.get(0, key).await.unwrap(), value);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_durable_yet_is_not_shown_elsewhere_before_it_is() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let [set, deleted] = [0, 1].map(|n| world.key(1, n));
    world.set(1, &deleted, b"1", 0).await;
    world.store(1);
    let store = &mut world.workers[1].store;
    store.begin(NOW, true);
    store.remove(0, &deleted).unwrap();
    for set_one in [false, true] {
        // Once without any key in the shard.
        let from = if set_one { 2 } else { 1 };
        if set_one {
            world.set(from, &set, b"1", 0).await;
        }
        let away = world.detach(from, 1);
        let to = 3 - from;
        world.attach(to, away);
        let (key, expected) = if set_one { (&set, Some(b"1".to_vec())) } else { (&deleted, None) };
        assert_eq!(world.get(to, key).await, expected);
        let seen = world.workers[to].store.seen();
        world.commit(to);
        assert!(world.workers[to].observe_durable() < seen && world.workers[to].closed() >= seen);
        world.journal.sync_now().unwrap();
        assert!(world.workers[to].observe_durable() >= seen);
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_comes_and_goes_only_when_it_may() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let key = world.key(1, 0);
    let why = |partition: &mut Partition| partition.detach(1).err();
    assert_eq!(why(&mut world.workers[0]), Some(ShardRefusal::NotHere));
    world.set(1, &key, b"1", 0).await;
    assert_eq!(why(&mut world.workers[1]), Some(ShardRefusal::RoundOpen));
    world.store(1);
    world.workers[1].granted(5);
    assert_eq!(why(&mut world.workers[1]), Some(ShardRefusal::Lent));
    world.workers[1].released(5);
    let away = world.detach(1, 1);
    let own = world.key(0, 0);
    world.set(0, &own, b"1", 0).await;
    let refused = world.workers[0].attach(away.into_shard()).unwrap_err();
    assert_eq!(refused.why, ShardRefusal::RoundOpen);
    world.store(0);
    let mut shard = refused.shard;
    shard.id = 0;
    let refused = world.workers[1].attach(shard).unwrap_err();
    assert_eq!(refused.why, ShardRefusal::NotFree, "the first worker has it");
    let mut shard = refused.shard;
    shard.id = 1;
    let control = crate::control::Control::default();
    let fresh = Shard::new(1, shard.engine().clone(), 9, control, 0);
    let refused = world.workers[1].attach(fresh).unwrap_err();
    assert_eq!(refused.why, ShardRefusal::OtherDatabases, "it has no generation");
    assert!(!world.workers[1].store.attached().has(1));
    world.workers[1].attach(shard).unwrap();
    drop(world.workers[1].reopen(1));
    assert_eq!(why(&mut world.workers[1]), Some(ShardRefusal::Reopening));
    world.journal.sync_now().unwrap();
}

/// Databases of one process have the same generations in all shards, unless there is only one.
#[tokio::test(flavor = "multi_thread")]
async fn shards_that_were_flushed_apart_meet_only_in_one_database() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let away = world.detach(0, 1);
    world.flush_all(0);
    let partition = &mut world.workers[0];
    let generations = [partition.store.generation(0), 77];
    drop(partition.store.arrange(&generations));
    let mut shard = away.into_shard();
    let mut record = OpWriter::default();
    record.generation(1, 77, 0);
    shard.merge_sealed(world.journal.end(), &record);
    let refused = partition.attach(shard).unwrap_err();
    assert_eq!(refused.why, ShardRefusal::OtherDatabases);
    let mut record = OpWriter::default();
    record.generation(0, generations[0], 0);
    let mut shard = refused.shard;
    shard.merge_sealed(world.journal.end(), &record);
    partition.attach(shard).unwrap();
    assert!(!partition.store.attached().differ());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_read_again_after_a_loan_counts_as_not_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::open(dir.path(), 1).await;
    let key = world.key(0, 0);
    world.set_hash(0, &key);
    world.commit(0);
    assert_ne!(world.workers[0].undurable(), 0);
    // A coordinator was lent it, and its changes do not count.
    let partition = &mut world.workers[0];
    drop(partition.store.lend(0, &key).unwrap());
    partition.forget(0, &key);
    assert!(world.field(0, &key, 0).await.is_some());
    let partition = &mut world.workers[0];
    let durable = partition.observe_durable();
    assert!(partition.store.round_of(0, &key).unwrap() > durable);
    partition.journal.sync_now().unwrap();
    partition.observe_durable();
    // The round after it shows it at the latest.
    world.store(0);
    let partition = &mut world.workers[0];
    assert!(partition.store.round_of(0, &key).unwrap() <= partition.observe_durable());
    assert_eq!(partition.undurable(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_leaves_memory_in_the_middle_of_a_load_is_not_taken_for_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::open(dir.path(), 1).await;
    let key = world.key(0, 0);
    world.set_hash(0, &key);
    world.store(0);
    for is_forgotten in [true, false] {
        let partition = &mut world.workers[0];
        partition.store.forget(0, &key);
        let need = |part| vec![Need { db: 0, key: key[..].into(), part }];
        let meta = partition.plan_load(need(None)).unwrap().run(&Handle::current()).await;
        partition.finish_load(meta).unwrap();
        let all = partition.plan_load(need(Some(Part::All))).unwrap();
        let mut all = all.run(&Handle::current()).await;
        assert!(partition.apply_some(&mut all, 250).unwrap());
        if is_forgotten {
            partition.store.forget(0, &key);
            let meta = partition.plan_load(need(None)).unwrap().run(&Handle::current()).await;
            partition.finish_load(meta).unwrap();
            assert!(!partition.apply_some(&mut all, 250).unwrap());
        }
        while partition.apply_some(&mut all, 250).unwrap() {}
        partition.finish_load(all).unwrap();
        partition.store.begin(NOW, true);
        let hash = partition.store.hash(0, &key).unwrap().expect("a hash");
        assert_eq!(hash.require_all().is_err(), is_forgotten);
        for n in [0, FIELDS - 1] {
            assert_eq!(world.field(0, &key, n).await, Some(n.to_le_bytes().to_vec()));
        }
    }
}

/// Keys that are due, in files and pending, some of them deleted again.
#[tokio::test(flavor = "multi_thread")]
async fn due_keys_are_found_page_by_page() {
    let root = root();
    let mut world = World::open(root.path(), 1).await;
    let keys: Vec<Vec<u8>> = (0..60).map(|n| world.key(1, n)).collect();
    let mut wanted = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        world.set(0, key, b"v", NOW + 100 + n as u64 % 7).await;
        if n == 30 {
            world.commit(0);
            world.hand_over(0, 1).await;
        }
    }
    world.commit(0);
    for (n, key) in keys.iter().enumerate() {
        match n % 3 {
            0 => world.set(0, key, b"v", 0).await,
            _ => wanted.push(key.clone()),
        }
    }
    world.commit(0);
    for limit in [1, 3, 10, 100] {
        let (mut from, mut found) = (DueCursor::at(0), Vec::new());
        loop {
            let plan = world.workers[0].plan_due(1, &from, NOW + 1000, limit).unwrap();
            assert!(plan.pending() <= 3 * 2 * limit, "{} for {limit}", plan.pending());
            let (due, rest) = plan.run().await.unwrap();
            found.extend(due.into_iter().map(|due| (due.at_ms, due.key.into_vec())));
            let Some(rest) = rest else { break };
            from = rest;
        }
        assert!(found.is_sorted_by_key(|(at_ms, _)| *at_ms), "{limit}");
        let mut keys: Vec<Vec<u8>> = found.into_iter().map(|(_, key)| key).collect();
        keys.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(keys, wanted, "{limit}");
    }
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_opened_again_in_vain_is_closed() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let engine = world.workers[1].shards[&1].engine().clone();
    engine.close().await.unwrap();
    // Each engine that is open has the store.
    let store = engine.place().store();
    let users = Arc::strong_count(&store);
    for _ in 0..3 {
        let mut plan = world.workers[1].reopen(1).unwrap();
        plan.flushed = Lsn::MAX / 2;
        let refused = plan.run().await.unwrap_err().to_string();
        assert!(refused.contains("files are missing"), "{refused}");
    }
    let begun = Instant::now();
    while Arc::strong_count(&store) > users {
        assert!(begun.elapsed() < PATIENCE, "engines are open that nobody uses");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let reopened = world.workers[1].reopen(1).unwrap().run().await.unwrap();
    world.workers[1].reopened(1, reopened);
    world.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_row_that_cannot_be_read_holds_up_no_other_one() {
    let root = root();
    let mut world = World::open(root.path(), 2).await;
    let keys: Vec<_> = (0..10).map(|n| world.key(1, n)).collect();
    for key in &keys {
        world.set(1, key, b"old", 0).await;
    }
    world.store(1);
    world.hand_over(1, 1).await;
    let store = &mut world.workers[1].store;
    store.begin(NOW, true);
    keys.iter().for_each(|key| _ = store.replace(0, key, b"new", 0).unwrap());
    world.store(1);
    world.workers[1].cut(1);
    let worker = &mut world.workers[1];
    for unread in [3, 2, 0] {
        let mut states = worker.begin_pass(1, false).unwrap().read().await.unwrap();
        let failed = states.iter_mut().take(unread);
        failed.for_each(|state| *state = Err(anyhow::anyhow!("the disk is away")));
        assert_eq!(worker.end_pass(1, Ok(states)).is_err(), unread > 0);
        assert_eq!((worker.unresolved(), worker.totals(0)), (unread, (10 + unread as u64, 0)));
        assert_eq!(worker.take_cut(1).is_some(), unread == 0);
    }
    let handing = world.detach(1, 1);
    world.attach(1, handing);
    world.hand_over(1, 1).await;
    world.close().await;
}
