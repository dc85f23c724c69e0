//! Shards that are split: nothing is copied, nothing is lost or doubled, and the space comes back.

use super::seat_tests::{FILTERS, KEYS, TestServer, forget};
use super::splitting::ShardBranch;
use super::{Life, ServerRole};
use crate::clock::Clock;
use crate::control::slots_row;
use crate::encoding::{RowKey, prefix_range, row, slot_of_row};
use crate::engine::{Engine, OwnSlots, Upkeep};
use crate::place::sim::{Client, Sim};
use crate::place::{Place, SHARED, Share, Shares, admin, sizes};
use crate::slot::{KeyHash, SLOTS};
use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use slatedb::db_cache::foyer::FoyerCache;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Number of processes that die in a split, each three requests later than the one before.
const RUNS: u64 = 90;

/// Number of large rows.
const LARGE: u16 = 300;

fn store() -> Place {
    Place::within(Arc::new(InMemory::new()), "data".into(), "memory:")
}

/// Returns a store, and a server that has all shards there and a number in all keys.
async fn filled() -> (Place, TestServer) {
    let store = store();
    let mut server = TestServer::join(&store, 0).await;
    server.take().await;
    server.fill(1).await;
    (store, server)
}

/// Returns the bytes of the files with rows of each shard's directory.
async fn rows_of(store: &Place) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (name, size) in sizes(store).await.unwrap() {
        if let Some((dir, rest)) = name.split_once('/')
            && dir.starts_with("shard-")
        {
            let rows = if rest.starts_with("db/compacted/") { size } else { 0 };
            *found.entry(dir.to_owned()).or_default() += rows;
        }
    }
    found
}

impl TestServer {
    /// Asks for the split of a shard in the middle.
    async fn want_split(&self, id: u16) {
        let slots = self.map().await.slots_of(id);
        let at = slots.start + slots.len() as u16 / 2;
        self.seat.amend(|draft| draft.want_split(id, Some(at))).await.unwrap().unwrap();
    }

    /// Splits a shard, up to the change of the map. Returns the files of the new one.
    async fn try_begin_split(&mut self, id: u16) -> Result<ShardBranch> {
        let map = self.seat.maps().newest().await?.context("the map is gone")?;
        let lower = map.lower_half(id).context("nobody wants it")?;
        let mut detached = self.partition.detach(id)?;
        detached.flush(&self.journal).await?;
        detached.close_to_split(&self.journal, lower).await?;
        self.seat.branch(&map, id).await
    }

    async fn begin_split(&mut self, id: u16) -> ShardBranch {
        self.want_split(id).await;
        self.try_begin_split(id).await.unwrap()
    }

    async fn try_end_split(&mut self, id: u16, branch: &ShardBranch) -> Result<()> {
        let (life, new) = (self.seat.life(), branch.id);
        let map = self.seat.amend(|draft| draft.split(id, life, new)).await??;
        self.partition.store.layout().divide(map.division());
        self.try_take().await
    }

    async fn end_split(&mut self, id: u16, branch: &ShardBranch) {
        self.try_end_split(id, branch).await.unwrap();
    }

    async fn check(&mut self, number: u64) {
        for n in 0..KEYS {
            assert_eq!(self.get(n).await, number, "key {n}");
        }
        assert_eq!(self.partition.totals(0).0, KEYS);
    }

    async fn fill(&mut self, number: u64) {
        for n in 0..KEYS {
            self.put(n, number).await.unwrap();
        }
        assert!(self.sync().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn both_parts_of_a_shard_have_what_it_had_and_nothing_is_copied() {
    let (store, mut server) = filled().await;
    for id in [0, 1] {
        let branch = server.begin_split(id).await;
        let rows = rows_of(&store).await;
        assert!(rows[&format!("shard-{id}")] > 0, "{rows:?}");
        assert_eq!(rows[&format!("shard-{}-1", branch.id)], 0, "{rows:?}");
        server.end_split(id, &branch).await;
    }
    assert_eq!(server.partition.store.layout().shards(), 5);
    server.check(1).await;
    // The filters of the whole shards are in both parts, which have no more memory for them.
    assert!(server.partition.shards.values().all(|shard| shard.presence().is_some()));
    let filters = server.partition.presence_bytes();
    assert!((FILTERS / 2..FILTERS + FILTERS / 20).contains(&filters), "{filters}");
    server.fill(2).await;
    // Others take all parts over, with what only the journal has.
    let mut other = TestServer::join(&store, 1).await;
    other.try_take_over(server.seat.life(), &[other.seat.life()]).await.unwrap();
    let division = other.map().await.division();
    other.partition.store.layout().divide(division);
    other.take().await;
    other.check(2).await;
}

/// Splits a shard in a process that dies after some requests; then another one takes all over. Returns true if
/// the split counts.
async fn killed_after(requests: u64) -> bool {
    let sim = Sim::new(requests);
    let client = || {
        let client = sim.client(0);
        client.pace.store(1, Ordering::SeqCst);
        client
    };
    let place = |client: &Arc<Client>| Place::within(client.clone(), "data".into(), "sim");
    let mine = client();
    let mut server = TestServer::join(&place(&mine), 0).await;
    server.take().await;
    server.fill(1).await;
    server.want_split(0).await;
    mine.die_after(requests);
    let splitting = async {
        let branch = server.try_begin_split(0).await?;
        server.try_end_split(0, &branch).await
    };
    let death = async {
        while !mine.is_dead() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let is_done = tokio::select! {
        ran = splitting => ran.is_ok(),
        () = death => false,
    };
    let (life, store) = (server.seat.life(), place(&client()));
    let mut other = TestServer::join(&store, 1).await;
    other.try_take_over(life, &[other.seat.life()]).await.unwrap();
    let map = other.map().await;
    let is_split = map.shards().len() == 4;
    assert!(is_split || !is_done, "{requests}");
    other.partition.store.layout().divide(map.division());
    other.take().await;
    other.check(1).await;
    for shard in map.shards() {
        other.try_flush(shard.id).await.unwrap();
    }
    forget(&other.seat).await;
    assert_eq!(rows_of(&store).await.contains_key("shard-3-1"), is_split, "{requests}");
    // The wish is carried out by the next owner.
    if !is_split {
        let branch = other.try_begin_split(0).await.unwrap();
        other.end_split(0, &branch).await;
    }
    other.check(1).await;
    is_split
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_may_be_cut_off_at_any_request() {
    // Not all at once: none may be late for its lease.
    let runs = futures::stream::iter((0..RUNS).map(|n| killed_after(3 * n)));
    let runs: Vec<bool> = runs.buffer_unordered(16).collect().await;
    let split = runs.into_iter().filter(|is_split| *is_split).count();
    assert!((5..RUNS - 20).contains(&(split as u64)), "{split} were split");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_shard_that_has_other_slots_than_the_layout_is_not_attached() {
    let store = store();
    let mut server = TestServer::join(&store, 0).await;
    server.take().await;
    let branch = server.begin_split(0).await;
    let (life, new) = (server.seat.life(), branch.id);
    let map = server.seat.amend(|draft| draft.split(0, life, new)).await.unwrap().unwrap();
    let given: Vec<_> = map.owned_by(life).filter(|it| it.id == 0).cloned().collect();
    let given = crate::cluster::GivenShard::of(&given[0], life);
    let taken = server.seat.take(&[given]).await.unwrap().remove(0);
    let refused = server.partition.attach(taken.shard).unwrap_err();
    assert_eq!(refused.why, crate::partition::ShardRefusal::OtherSlots);
    server.partition.store.layout().divide(map.division());
    server.partition.attach(refused.shard).unwrap();
}

/// Merges leave rows out, of which such a reader knows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_replica_with_an_older_map_does_not_read_a_shard_that_was_split() {
    let (store, mut server) = filled().await;
    let replica = TestServer::join_as(&store, 1, ServerRole::Replica).await.unwrap();
    let (life, before) = (server.seat.life(), server.map().await);
    replica.seat.mirror(life, &before.shards()[..1]).await.unwrap();
    let branch = server.begin_split(0).await;
    let refused = |read: Result<_>| read.err().map(|error| format!("{error:#}"));
    let why = refused(replica.seat.mirror(life, &before.shards()[..1]).await);
    assert!(why.as_ref().is_some_and(|why| why.contains("is being split")), "{why:?}");
    server.end_split(0, &branch).await;
    let why = refused(replica.seat.mirror(life, &before.shards()[..1]).await);
    assert!(why.as_ref().is_some_and(|why| why.contains("is being split")), "{why:?}");
    let both: Vec<_> =
        server.map().await.shards().iter().filter(|it| [0, 3].contains(&it.id)).cloned().collect();
    let mirrored = replica.seat.mirror(life, &both).await.unwrap();
    assert_eq!(mirrored.shards.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_split_that_is_called_off_leaves_nothing() {
    let (store, mut server) = filled().await;
    let branch = server.begin_split(2).await;
    server.seat.amend(|draft| draft.want_split(2, None)).await.unwrap().unwrap();
    let (life, new) = (server.seat.life(), branch.id);
    let refused = server.seat.amend(|draft| draft.split(2, life, new)).await.unwrap();
    assert!(refused.is_err());
    branch.remove().await.unwrap();
    server.take().await;
    server.check(1).await;
    assert!(!rows_of(&store).await.contains_key("shard-3-1"));
    // The next try of a life that has ended in between is removed by those that forget it.
    server.begin_split(2).await;
    assert!(rows_of(&store).await.contains_key("shard-3-1"));
    let mut other = TestServer::join(&store, 1).await;
    other.try_take_over(server.seat.life(), &[other.seat.life()]).await.unwrap();
    other.take().await;
    other.check(1).await;
    for id in 0..3 {
        other.try_flush(id).await.unwrap();
    }
    forget(&other.seat).await;
    assert!(other.map().await.member(Life(1)).is_none());
    assert!(!rows_of(&store).await.contains_key("shard-3-1"));
}

/// Returns the meta row of a key of some slot, of 100 KiB.
fn large_row(n: u16) -> (Bytes, Option<Bytes>) {
    let mut key = Vec::new();
    RowKey::meta(&mut key, 1, KeyHash { slot: n * 50, hash: 7 }, b"key");
    (key.into(), Some(vec![n as u8; 100 << 10].into()))
}

async fn open_part(place: &Place, cache_id: u64, slots: Range<u16>) -> Engine {
    let cache = Arc::new(FoyerCache::new());
    let upkeep = Upkeep { slots: Some(OwnSlots(slots)), ..Upkeep::default() };
    Engine::open(place, cache, cache_id, Clock::default(), &upkeep).await.unwrap()
}

async fn numbers_of(engine: &Engine) -> Vec<u16> {
    let rows = engine.scan(prefix_range(&[row::META]), usize::MAX).await.unwrap();
    rows.iter().map(|(key, _)| slot_of_row(key).unwrap() / 50).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_space_of_rows_that_do_not_count_comes_back() {
    let store = store();
    let from = store.join("shard-0/db");
    let whole = open_part(&from, 0, 0..SLOTS).await;
    whole.write((0..LARGE).map(large_row).collect()).await.unwrap();
    whole.flush().await.unwrap();
    whole.expect_halves(slots_row(Some(&(0..7500)))).await.unwrap();
    whole.flush().await.unwrap();
    whole.close().await.unwrap();
    let before = rows_of(&store).await["shard-0"];
    let branch = ShardBranch::at(3, store.join("shard-3-1/db"));
    branch.make(&from).await.unwrap();
    let shared = store.join("shard-3-1/db").with_shared().await.unwrap();
    let lower = open_part(&from, 0, 0..7500).await;
    let upper = open_part(&shared, 3, 7500..SLOTS).await;
    assert_eq!(rows_of(&store).await["shard-3-1"], 0, "nothing is copied");
    assert_eq!(numbers_of(&lower).await, (0..150).collect::<Vec<_>>(), "others do not count");
    assert_eq!(numbers_of(&upper).await, (150..LARGE).collect::<Vec<_>>());
    let begun = Instant::now();
    loop {
        for engine in [&lower, &upper] {
            engine.check_garbage().await.unwrap();
            engine.release_shared().await.unwrap();
        }
        let rows = rows_of(&store).await;
        let is_half = |dir: &str| (before / 4..before / 4 * 3).contains(&rows[dir]);
        let shares = Shares::read(&store.join("shard-3-1/db")).await.unwrap().unwrap();
        if is_half("shard-0") && is_half("shard-3-1") && shares.shared().next().is_none() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{before}, and still {rows:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(numbers_of(&lower).await, (0..150).collect::<Vec<_>>());
    assert_eq!(numbers_of(&upper).await, (150..LARGE).collect::<Vec<_>>());
    let checkpoints = admin(store.store(), from.root().as_ref()).list_checkpoints(None).await;
    let kept = checkpoints.unwrap().into_iter().filter(|it| it.expire_time.is_none());
    assert_eq!(kept.count(), 0, "nothing keeps the files of shard 0");
}

/// A put of an earlier try may arrive at any time.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_list_of_shared_files_of_one_try_does_not_replace_that_of_another() {
    let store = store();
    let from = store.join("shard-0/db");
    let whole = open_part(&from, 0, 0..SLOTS).await;
    whole.write(vec![large_row(1)]).await.unwrap();
    whole.flush().await.unwrap();
    whole.close().await.unwrap();
    let to = store.join("shard-3-1/db");
    let (engine, files) = (from.root().to_string(), BTreeMap::new());
    let late = Share { engine, checkpoint: "of an earlier try".to_owned(), files };
    let late = Shares::new(BTreeMap::from([(to.root().to_string(), late)]));
    let branch = ShardBranch::at(3, to.clone());
    // It comes before the list of this try, which fails, ...
    late.create(&to).await.unwrap();
    branch.make(&from).await.unwrap_err();
    assert!(Shares::read(&to).await.unwrap().unwrap().has("of an earlier try"));
    // ... or behind that.
    to.store().delete(&to.path(SHARED)).await.unwrap();
    branch.make(&from).await.unwrap();
    late.create(&to).await.unwrap_err();
    assert!(!Shares::read(&to).await.unwrap().unwrap().has("of an earlier try"));
}
