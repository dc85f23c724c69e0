//! Checks of a quiet store.

use super::ticks::quiet_after;
use super::*;
use crate::materialise::sweep;
use object_store::memory::InMemory;
use slatedb::db_cache::SplitCache;
use std::time::Instant;
use tokio::runtime::Runtime;

/// Interval of checks that no test lives to see.
const NEVER: Duration = Duration::from_secs(3600);

/// Time limit, on a busy machine, for steps that follow each other at once.
const PATIENCE: Duration = Duration::from_secs(20);

/// Interval of checks while the store changes, and a time after which it is quiet.
const POLL: Duration = Duration::from_millis(50);
const QUIET: Duration = Duration::from_millis(600);

/// A process with an engine in a store.
struct LoneEngine {
    runtime: Runtime,
    engine: Engine,
    place: Place,
}

impl LoneEngine {
    fn open(store: &Arc<InMemory>, quiet: Duration, merges: &MergePermits) -> Self {
        Self::polling(store, POLL, quiet, merges)
    }

    fn polling(
        store: &Arc<InMemory>,
        poll: Duration,
        quiet: Duration,
        merges: &MergePermits,
    ) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let upkeep = Upkeep {
            least_garbage: 64 << 10,
            poll,
            collect: NEVER / 2,
            quiet: Some(QuietIntervals { poll: quiet, collect: NEVER }),
            merges: merges.clone(),
            ..Upkeep::default()
        };
        let place = Place::within(store.clone(), "db".into(), "memory");
        let cache = Arc::new(SplitCache::new().build());
        let open = Engine::open(&place, cache, 1, Clock::default(), &upkeep);
        let engine = runtime.block_on(open).unwrap();
        Self { runtime, engine, place }
    }

    fn flush_row(&self, n: u8) -> Result<()> {
        let row = (Bytes::from(vec![b'r', n]), Some(Bytes::from_static(b"value")));
        self.runtime.block_on(self.engine.write(vec![row]))?;
        self.runtime.block_on(self.engine.flush())
    }

    /// Flushes as many files as one merge takes.
    fn flush_files(&self) {
        (0..4).for_each(|n| self.flush_row(n).unwrap());
    }

    fn gets(&self) -> u64 {
        self.place.requests().gets.load(Ordering::Relaxed)
    }

    fn level0(&self) -> usize {
        self.engine.db().manifest().l0().len()
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(POLL);
        }
    }
}

fn one_merge() -> MergePermits {
    MergePermits::new(1, 1)
}

#[test]
fn a_quiet_store_is_not_asked_and_merges_begin_at_once_after_a_flush() {
    let store = Arc::new(InMemory::new());
    let lone = LoneEngine::open(&store, NEVER, &one_merge());
    for _ in 0..2 {
        std::thread::sleep(QUIET);
        let before = lone.gets();
        std::thread::sleep(QUIET);
        assert_eq!(lone.gets(), before, "requests of an engine that nobody uses");
        lone.flush_files();
        lone.wait_until("the files are not merged", |lone| lone.level0() == 0);
    }
}

/// A shard that changes hands often leaves some files with each owner.
#[test]
fn merges_begin_soon_if_many_files_wait() {
    let store = Arc::new(InMemory::new());
    let lone = LoneEngine::polling(&store, NEVER / 4, NEVER / 4, &one_merge());
    (0..scheduler::LEVEL0_MANY - 1).for_each(|n| lone.flush_row(n as u8).unwrap());
    lone.engine.hurry_if_crowded();
    std::thread::sleep(QUIET);
    assert_eq!(lone.level0(), scheduler::LEVEL0_MANY - 1, "nothing is asked before its time");
    lone.flush_row(u8::MAX).unwrap();
    lone.engine.hurry_if_crowded();
    lone.wait_until("the files are not merged", |lone| lone.level0() < scheduler::LEVEL0_MANY);
}

#[test]
fn a_merge_that_waits_for_another_engine_begins_when_that_is_done() {
    let store = Arc::new(InMemory::new());
    let merges = one_merge();
    let others = merges.take_all();
    let lone = LoneEngine::open(&store, NEVER, &merges);
    lone.flush_files();
    std::thread::sleep(QUIET);
    assert_eq!(lone.level0(), 4);
    drop(others);
    lone.wait_until("the files are not merged", |lone| lone.level0() == 0);
}

#[test]
fn garbage_is_merged_away_in_a_quiet_store() {
    let store = Arc::new(InMemory::new());
    let lone = LoneEngine::open(&store, NEVER, &one_merge());
    let dead = vec![(Bytes::from_static(b"row"), None)];
    lone.runtime.block_on(lone.engine.write_deleting(dead, 1 << 20)).unwrap();
    lone.runtime.block_on(lone.engine.flush()).unwrap();
    std::thread::sleep(QUIET);
    assert_eq!(lone.level0(), 1, "one file is not merged for itself");
    lone.runtime.block_on(sweep(&lone.engine, Vec::new())).unwrap();
    lone.wait_until("the file is not merged", |lone| lone.level0() == 0);
}

#[test]
fn a_sweep_reads_nothing_while_nothing_was_written() {
    let store = Arc::new(InMemory::new());
    let lone = LoneEngine::open(&store, NEVER, &one_merge());
    let sweep = |dead: &[u32]| lone.runtime.block_on(sweep(&lone.engine, dead.to_vec())).unwrap();
    let requests = |dead: &[u32]| {
        let before = lone.gets();
        sweep(dead);
        lone.gets() - before
    };
    // A file whose keys lie around those of dead versions.
    let around = [b"A", b"r"].map(|key| (Bytes::from_static(key), Some(Bytes::new())));
    lone.runtime.block_on(lone.engine.write(around.to_vec())).unwrap();
    lone.runtime.block_on(lone.engine.flush()).unwrap();
    std::thread::sleep(QUIET);
    assert!(requests(&[7]) > 0 && requests(&[7]) == 0);
    assert!(requests(&[]) > 0 && requests(&[]) == 0, "other generations are dead");
    // A row that marks a dead version is found, and goes with the elements of that.
    let dead: Bytes = crate::encoding::RowKey::dead(1, 7).into();
    let write = lone.engine.write(vec![(dead.clone(), Some(Bytes::new()))]);
    lone.runtime.block_on(write).unwrap();
    sweep(&[]);
    assert_eq!(lone.runtime.block_on(lone.engine.get(&dead)).unwrap(), None);
    // A reopened engine counts its writes anew.
    let opened = lone.runtime.block_on(lone.engine.open_again()).unwrap();
    lone.engine.replace(&opened);
    std::thread::sleep(QUIET);
    assert!(requests(&[]) > 0 && requests(&[]) == 0);
}

#[test]
fn an_idle_owner_learns_of_another_one_in_time_and_stores_nothing_before() {
    let store = Arc::new(InMemory::new());
    let soon = LoneEngine::open(&store, 2 * QUIET, &one_merge());
    let later = LoneEngine::open(&store, NEVER, &one_merge());
    soon.wait_until("it does not look", |lone| lone.engine.closed() == Some(Closed::Fenced));
    // The next one would not look for long, but what it flushes is refused.
    std::thread::sleep(QUIET);
    let last = LoneEngine::open(&store, NEVER, &one_merge());
    std::thread::sleep(QUIET);
    assert_eq!(later.engine.closed(), None);
    assert!(later.flush_row(1).is_err());
    assert_eq!(later.engine.closed(), Some(Closed::Fenced));
    assert_eq!(last.runtime.block_on(last.engine.get(b"r\x01")).unwrap(), None);
    last.flush_row(2).unwrap();
}

#[test]
fn ticks_of_merges_are_not_those_of_the_collector() {
    let upkeep = Upkeep::remote(Duration::from_secs(1));
    let worker = compactor_options(&upkeep).worker.unwrap();
    assert!(worker.heartbeat_interval < upkeep.collect);
    // A merge in work is not taken for one that its process has left.
    assert!(worker.heartbeat_interval < quiet_after(&upkeep));
    assert!(worker.heartbeat_interval * 2 < stale_after(&upkeep));
}

#[tokio::test(start_paused = true)]
async fn a_store_is_quiet_some_time_after_its_last_change() {
    let writes = Writes::default();
    let changes = writes.changes();
    let while_quiet = async |since| tokio::time::timeout(NEVER, changes.until_recent(since)).await;
    let second = Duration::from_secs(1);
    assert!(while_quiet(second).await.is_ok(), "a new store is not quiet");
    tokio::time::sleep(second).await;
    assert!(changes.is_quiet(second) && while_quiet(second).await.is_err());
    changes.note();
    assert!(!changes.is_quiet(second));
    // A change to come counts until it is long past; an earlier one does not replace it.
    changes.note_ahead(9 * second);
    changes.note();
    tokio::time::sleep(9 * second).await;
    assert!(!changes.is_quiet(second));
    tokio::time::sleep(second).await;
    assert!(changes.is_quiet(second));
}
