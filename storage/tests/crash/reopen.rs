//! Engines that close themselves, and are reopened while the storage is in use.

use crate::histories::History;
use crate::model::Model;
use crate::world::{SHARDS, World, fresh};
use flagstone_storage::commit::Sealed;
use flagstone_storage::engine::Closed;
use flagstone_storage::materialise::{each_hand_over_batch, hand_over};
use rand::RngExt;

impl History {
    /// Makes an engine close itself: at rest, or with a part of a hand-over.
    pub(crate) fn break_engine(&mut self) {
        self.world.commit();
        let shard = self.random.random_range(0..self.world.shards());
        let rows = self.random.random_range(1..20);
        let batches = self.random.random::<bool>().then(|| self.random.random_range(0..6));
        let is_flushed = self.random.random();
        self.world.break_engine(shard, batches.map(|batches| (rows, batches)), is_flushed);
        if self.random.random() {
            self.world.evict();
        }
        self.world.open_again();
    }
}

impl World {
    /// Makes the engine of a shard close itself, if its store can break. `part`: after it has taken
    /// so many batches of so many rows of a hand-over, the last of which may be flushed.
    pub(crate) fn break_engine(&mut self, id: u16, part: Option<(usize, usize)>, is_flushed: bool) {
        let engine = self.partition.shards[&id].engine().clone();
        self.journal.sync_now().unwrap();
        if part.is_some() {
            self.partition.cut(id);
            self.resolve(id, false);
        }
        // A checkpoint may be under way.
        let alone = self.block_on(engine.alone());
        if let Some((rows, batches)) = part
            && let Some(cut) = self.partition.take_cut(id)
        {
            let mut all = Vec::new();
            each_hand_over_batch(&cut, rows, &mut |batch| all.push(batch));
            // With the last one it would be whole.
            all.pop();
            for batch in all.into_iter().take(batches) {
                self.block_on(engine.write(batch)).unwrap();
            }
            if is_flushed {
                self.block_on(engine.flush()).unwrap();
            }
        }
        // An unflushed row without a meaning.
        self.block_on(engine.write(vec![(vec![0xff].into(), None)])).unwrap();
        self.probe.break_stores(true);
        let flushed = self.block_on(engine.flush());
        self.probe.break_stores(false);
        drop(alone);
        assert_eq!(engine.closed(), flushed.err().map(|_| Closed::Failed));
    }

    pub(crate) fn open_one_again(&mut self, id: u16) {
        self.probe.point(|| format!("the engine of shard {id} has closed itself"));
        let plan = self.partition.reopen(id).unwrap();
        // Its sequence numbers do not count meanwhile.
        self.partition.observe_flushed();
        let reopened = self.block_on(plan.run()).unwrap();
        self.partition.observe_flushed();
        self.partition.reopened(id, reopened);
        self.probe.point(|| format!("the engine of shard {id} is open again"));
    }

    /// Reopens engines that have closed themselves, like a worker does.
    pub(crate) fn open_again(&mut self) {
        for id in 0..self.shards() {
            let engine = self.partition.shards[&id].engine().clone();
            if engine.closed().is_some() {
                self.open_one_again(id);
            }
            if let Some(cut) = self.partition.shards[&id].handing() {
                let handed =
                    hand_over(engine, self.journal.clone(), cut.clone(), Default::default());
                let seq = self.block_on(handed).unwrap();
                self.partition.shards.get_mut(&id).unwrap().handed_over(cut.lsn, seq);
            }
        }
    }
}

fn model() -> Model {
    let mut model = Model { now_ms: 1_800_000_000_000, ..Model::default() };
    model.dbs.resize_with(2, Default::default);
    model
}

fn fill(world: &mut World, keys: std::ops::Range<u32>, mark: u8) {
    for n in keys {
        world.set(0, format!("key{n}").as_bytes(), &[mark; 200], 0);
        world.commit();
    }
}

/// Rows that were flushed, handed over in whole, in part, or not at all, when an engine closes
/// itself: all are read, and found after a kill, even if more was handed over and flushed since.
#[test]
fn an_engine_that_has_closed_itself_is_opened_again_with_all_that_it_had() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    for part in [None, Some((3, 1)), Some((3, 4))] {
        for is_flushed in [false, true] {
            let at = format!("{part:?}, flushed {is_flushed}");
            let dir = fresh(root.path(), &mut number);
            let mut world = World::open(&dir, model(), Box::new(|_| false));
            fill(&mut world, 0..40, 1);
            world.settle();
            fill(&mut world, 20..60, 2);
            (0..SHARDS).for_each(|shard| world.hand_over(shard, None));
            fill(&mut world, 30..80, 3);
            for shard in 0..SHARDS {
                world.break_engine(shard, part, is_flushed);
                assert!(world.partition.shards[&shard].engine().closed().is_some(), "{at}");
            }
            fill(&mut world, 70..90, 4);
            world.open_again();
            world.evict();
            world.verify(&at);
            let killed = world.probe.now("killed");
            world.settle();
            world.evict();
            world.verify(&at);
            let settled = world.probe.now("settled");
            drop(world);
            for image in [killed, settled] {
                let dir = fresh(root.path(), &mut number);
                image.unpack(&dir);
                let mut again = World::open(&dir, image.model.clone(), Box::new(|_| false));
                again.verify(&format!("{at}, {}", image.at));
                again.close();
            }
        }
    }
}

/// A start with little memory has given rows to an engine that closes itself before any hand-over.
#[test]
fn rows_given_by_a_start_are_there_when_the_engine_is_opened_again() {
    let root = tempfile::tempdir().unwrap();
    let mut number = 0;
    let mut world = World::open(&fresh(root.path(), &mut number), model(), Box::new(|_| false));
    fill(&mut world, 0..40, 1);
    world.settle();
    fill(&mut world, 20..200, 2);
    let image = world.probe.now("killed");
    drop(world);
    let dir = fresh(root.path(), &mut number);
    let mut world = World::reopen_within(&image, &dir, Box::new(|_| false), 3000);
    assert!(world.partition.pending_bytes() < 10_000, "the engines have most rows");
    (0..SHARDS).for_each(|shard| world.break_engine(shard, None, false));
    world.open_again();
    world.verify("opened again");
    let killed = world.probe.now("killed again");
    world.settle();
    world.evict();
    world.verify("settled");
    let settled = world.probe.now("settled");
    drop(world);
    for image in [killed, settled] {
        let dir = fresh(root.path(), &mut number);
        World::reopen(&image, &dir, Box::new(|_| false)).verify(&image.at);
    }
}

/// Flushed files are missing: the engine must not be reopened.
#[test]
fn an_engine_that_has_lost_flushed_rows_is_not_opened_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = fresh(root.path(), &mut 0);
    let mut world = World::open(&dir, model(), Box::new(|_| false));
    fill(&mut world, 0..40, 1);
    world.settle();
    world.break_engine(0, None, false);
    // Its tasks may still be writing there: the directory is missing all the same.
    std::fs::rename(dir.join("shard-0/db"), dir.join("away")).unwrap();
    let plan = world.partition.reopen(0).unwrap();
    let error = world.block_on(plan.run()).map(|_| ()).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("missing") || error.contains("not found"), "{error}");
    assert!(world.partition.shards[&0].engine().closed().is_some());
}

/// The engine's files have less than was reported to the journal, which may have dropped the rest,
/// as with an older copy.
#[test]
fn an_engine_that_has_less_than_was_flushed_is_not_opened_again() {
    let root = tempfile::tempdir().unwrap();
    let mut world = World::open(&fresh(root.path(), &mut 0), model(), Box::new(|_| false));
    fill(&mut world, 0..40, 1);
    world.settle();
    fill(&mut world, 0..40, 2);
    world.journal.sync_now().unwrap();
    let lsn = world.journal.end();
    let shard = world.partition.shards.get_mut(&0).unwrap();
    shard.handed_over(lsn, 0);
    assert_eq!(shard.observe_flushed(), Some(lsn));
    let plan = world.partition.reopen(0).unwrap();
    let error = format!("{:#}", world.block_on(plan.run()).map(|_| ()).unwrap_err());
    assert!(error.contains("were flushed: files are missing"), "{error}");
    assert!(world.partition.shards[&0].engine().closed().is_some());
}

#[test]
fn a_record_that_cannot_be_merged_stops_its_shard_and_a_start() {
    let root = tempfile::tempdir().unwrap();
    let dir = fresh(root.path(), &mut 0);
    let mut world = World::open(&dir, model(), Box::new(|_| false));
    fill(&mut world, 0..10, 1);
    let mut record = Sealed::default();
    record.ops.entry(1).or_default().put(b"no kind of row", b"value", false);
    let mut body = record.body();
    // The operation's kind does not exist.
    let at = body.len() - record.ops[&1].pieces().1.len();
    body[at] = 0xff;
    let lsn = world.journal.append(world.model.now_ms, &[1], &[&body]).unwrap();
    world.partition.merge(lsn, &body);
    assert_eq!(world.partition.shards[&1].broken(), Some(lsn));
    assert_eq!(world.partition.shards[&0].broken(), None);
    // None of its rows are handed over: the journal keeps the record.
    world.partition.cut(1);
    assert!(world.partition.take_cut(1).is_none());
    world.journal.sync_now().unwrap();
    let image = world.probe.now("killed");
    drop(world);
    let dir = fresh(root.path(), &mut 1);
    image.unpack(&dir);
    let opened = World::try_open(&dir, image.model.clone(), Box::new(|_| false));
    let error = format!("{:#}", opened.err().unwrap());
    assert!(error.contains(&format!("record {lsn}")), "{error}");
}
