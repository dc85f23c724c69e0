//! The data of a single server becomes a cluster's, whenever the conversion is killed.

use super::{
    ClusterConversion, ClusterMap, ClusterSeat, GivenShard, LibraryStore, MapStore, NodeAddress,
    NodeId, ServerRole,
};
use crate::checkpoint::{Catalog, offline_options, take_stopped};
use crate::clock::Clock;
use crate::directory::{Directory, Location, Manifest, OpenOptions, is_of_one_server};
use crate::encoding::{Library, SourcePosition};
use crate::journal::Journal;
use crate::need::Fault;
use crate::partition::Partition;
use crate::place::Place;
use crate::place::sim::{Client, Sim};
use crate::value::{Str, Value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

const NOW: u64 = 1_800_000_000_000;
const SHARDS: u16 = 2;
const KEYS: usize = 12;
const LEASE: Duration = Duration::from_millis(20);
const CLUSTER_LEASE: Duration = Duration::from_millis(40);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates a process that sends so many requests before it dies.
fn client(sim: &Sim, requests: u64) -> Arc<Client> {
    let client = sim.client(0);
    client.pace.store(1, Ordering::SeqCst);
    client.die_after(requests);
    client
}

/// Returns the data as a process sees it.
fn within(client: &Arc<Client>) -> Place {
    Place::within(client.clone(), "data".into(), "sim:")
}

fn place(sim: &Sim) -> Place {
    within(&client(sim, u64::MAX))
}

async fn options(store: Place) -> OpenOptions {
    let mut options = offline_options(&Location::from(store)).await.unwrap();
    (options.databases, options.lease, options.default_shards) = (2, LEASE, SHARDS);
    // A process that dies does not wait for its store.
    options.store_timeout = Duration::from_secs(2);
    options
}

async fn conversion(store: Place, removes_checkpoints: bool) -> ClusterConversion {
    ClusterConversion::new(options(store).await, CLUSTER_LEASE, removes_checkpoints)
}

/// A process that has shards: a single server, or one of a cluster.
struct Owner {
    journal: Arc<dyn Journal>,
    partition: Partition,
}

impl Owner {
    async fn single(store: Place) -> anyhow::Result<Self> {
        let directory = Directory::open(options(store).await, Clock::default()).await?;
        let journal = directory.journal.clone();
        let partition = directory.into_partitions(1, 1).0.remove(0);
        Ok(Self { journal, partition })
    }

    /// Joins the cluster, and takes all shards.
    async fn join(store: Place) -> Self {
        let address = NodeAddress { host: "127.0.0.1".to_owned(), port: 7000, tls_port: None };
        let (options, node) = (options(store).await, NodeId([7; 20]));
        let role = ServerRole::Owner;
        let joined = ClusterSeat::join(options, Clock::default(), (node, &address), role).await;
        let (directory, seat) = joined.unwrap();
        let map = seat.maps().newest().await.unwrap().unwrap();
        let given = map.owned_by(seat.life()).map(|shard| GivenShard::of(shard, seat.life()));
        let given: Vec<_> = given.collect();
        assert_eq!(given.len(), usize::from(SHARDS));
        let journal = directory.journal.clone();
        let mut partition = directory.into_partitions(1, 1).0.remove(0);
        for taken in seat.take(&given).await.unwrap() {
            partition.attach(taken.shard).unwrap();
        }
        Self { journal, partition }
    }

    async fn load(&mut self, fault: Fault) {
        let Fault::Miss(need) = fault else { panic!("{fault:?}") };
        let loaded = self.partition.plan_load(vec![*need]).unwrap().run(&Handle::current()).await;
        self.partition.finish_load(loaded).unwrap();
    }

    async fn get(&mut self, db: u32, key: &str) -> Option<Vec<u8>> {
        loop {
            self.partition.store.begin(NOW, true);
            match self.partition.store.entry(db, key.as_bytes()) {
                Ok(Some(entry)) => {
                    let Value::Str(text) = &entry.value else { panic!("another type") };
                    return Some(text.whole().unwrap().to_vec());
                }
                Ok(None) => return None,
                Err(fault) => self.load(fault).await,
            }
        }
    }

    /// Writes a key, and waits until it is durable; false if this process has lost the data.
    async fn put(&mut self, db: u32, key: &str, value: &str) -> bool {
        self.set(db, key, Value::Str(Str::new(value.as_bytes()))).await
    }

    async fn set(&mut self, db: u32, key: &str, value: Value) -> bool {
        loop {
            self.partition.store.begin(NOW, true);
            match self.partition.store.entry_mut(db, key.as_bytes()) {
                Ok(mut entry) => {
                    entry.value = value;
                    break;
                }
                Err(fault) => self.load(fault).await,
            }
        }
        if self.partition.commit(NOW).is_err() {
            return false;
        }
        let end = self.journal.end();
        while self.journal.durable() < end {
            if self.journal.failed().is_some() {
                return false;
            }
            self.journal.request_sync(end);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.partition.observe_durable();
        true
    }

    async fn close(self) {
        self.partition.close().await.unwrap();
        tokio::task::spawn_blocking(move || self.journal.close()).await.unwrap().unwrap();
    }
}

async fn fill(owner: &mut Owner) {
    for n in 0..KEYS {
        assert!(owner.put(0, &format!("key:{n}"), &n.to_string()).await);
    }
}

/// Checks that all keys are there, and that writes go on.
async fn check(owner: &mut Owner) {
    for n in 0..KEYS {
        let found = owner.get(0, &format!("key:{n}")).await;
        assert_eq!(found, Some(n.to_string().into_bytes()), "key:{n}");
    }
    assert_eq!(owner.get(0, "missing").await, None);
    assert!(owner.put(0, "key:0", "0").await);
}

async fn map(sim: &Sim) -> Arc<ClusterMap> {
    MapStore::new(&place(sim)).newest().await.unwrap().unwrap()
}

#[test]
fn the_data_of_a_server_that_runs_becomes_a_clusters_and_the_server_loses_it() {
    runtime().block_on(async {
        let sim = Sim::new(1);
        let mut owner = Owner::single(place(&sim)).await.unwrap();
        fill(&mut owner).await;
        let conversion = conversion(place(&sim), false).await;
        let before = conversion.look().await.unwrap();
        assert!(!before.is_begun);
        assert!(owner.put(0, "key:1", "1").await, "a look changes nothing");
        let done = conversion.run(Clock::default()).await.unwrap();
        assert_eq!((done.shards, done.keys, done.lease), (SHARDS, KEYS as u64, CLUSTER_LEASE));
        assert!(!owner.put(0, "key:2", "lost").await);
        let refused = Owner::single(place(&sim)).await.err().unwrap().to_string();
        assert!(refused.contains("is the data of a cluster"), "{refused}");
        let epoch = owner.journal.epoch();
        let refused = conversion.run(Clock::default()).await.unwrap_err().to_string();
        assert!(refused.contains("a cluster already"), "{refused}");
        let first = map(&sim).await;
        assert_eq!((first.number(), first.lease()), (1, CLUSTER_LEASE));
        assert!(first.shards().iter().all(|shard| shard.is_begun && shard.owner.is_none()));
        let mut joined = Owner::join(place(&sim)).await;
        assert!(joined.journal.epoch() > epoch + 1, "above the epoch of the conversion");
        check(&mut joined).await;
    });
}

/// Runs a conversion that dies after some requests, then perhaps a single server, then the
/// conversion again. Returns true if the first one had ended the journal.
async fn killed_after(requests: u64, seed: u64) -> bool {
    let sim = Sim::new(seed);
    let mut owner = Owner::single(place(&sim)).await.unwrap();
    fill(&mut owner).await;
    if seed.is_multiple_of(2) {
        owner.close().await;
    } else {
        drop(owner);
    }
    let is_done = {
        let (store, client) = (place(&sim), client(&sim, requests));
        let options = OpenOptions { store: within(&client), ..options(store).await };
        let dying = ClusterConversion::new(options, CLUSTER_LEASE, false);
        let death = async {
            while !client.is_dead() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            ran = dying.run(Clock::default()) => ran.is_ok(),
            () = death => false,
        }
    };
    let store = place(&sim);
    if is_done {
        assert!(!is_of_one_server(&store).await.unwrap(), "{requests}");
    }
    let again = conversion(store.clone(), false).await;
    // The last request may have arrived.
    let is_ended = if is_of_one_server(&store).await.unwrap() {
        let is_ended = again.look().await.unwrap().is_begun;
        match Owner::single(store.clone()).await {
            Ok(mut owner) => {
                assert!(!is_ended, "{requests}: a server has started on what was given away");
                check(&mut owner).await;
                assert!(owner.put(0, "later", "x").await);
            }
            Err(error) => {
                assert!(is_ended, "{requests}: {error:#}");
                assert!(format!("{error:#}").contains("cluster convert"), "{error:#}");
            }
        }
        again.run(Clock::default()).await.unwrap();
        is_ended
    } else {
        true
    };
    let mut joined = Owner::join(store).await;
    check(&mut joined).await;
    assert_eq!(joined.get(0, "later").await.is_some(), !is_ended, "{requests}");
    is_ended
}

#[test]
fn a_conversion_that_is_killed_is_repeated_and_loses_nothing() {
    let whole = runtime().block_on(async {
        let sim = Sim::new(0);
        let mut owner = Owner::single(place(&sim)).await.unwrap();
        fill(&mut owner).await;
        owner.close().await;
        let client = client(&sim, u64::MAX);
        conversion(within(&client), false).await.run(Clock::default()).await.unwrap();
        // Each request is counted twice: when it is sent, and when it is answered.
        2 * (client.puts.load(Ordering::SeqCst) + client.gets.load(Ordering::SeqCst))
    });
    let early = (1..6).map(|part| whole * part / 6);
    let late = (0..8).map(|before| whole.saturating_sub(3 * before));
    let killed: Vec<_> = (0..)
        .zip(early.chain(late))
        .map(|(seed, requests)| {
            std::thread::spawn(move || runtime().block_on(killed_after(requests, seed)))
        })
        .collect();
    let ended: Vec<bool> = killed.into_iter().map(|one| one.join().unwrap()).collect();
    assert!(ended.contains(&true) && ended.contains(&false), "{ended:?}");
}

/// The steps behind the end of the journal, each as the last one before a kill.
#[test]
fn what_is_left_to_be_done_behind_the_end_is_done_by_the_next_run() {
    runtime().block_on(async {
        let sim = Sim::new(3);
        let store = place(&sim);
        let mut owner = Owner::single(store.clone()).await.unwrap();
        fill(&mut owner).await;
        owner.close().await;
        let single = sim.first_content("data/flagstone.json").unwrap();
        let noted = Manifest::read_any(&store).await.unwrap().unwrap();
        conversion(store.clone(), false).await.run(Clock::default()).await.unwrap();
        let map = map(&sim).await;
        // `flagstone.json` by a server that was asleep, with the map, and without it.
        for has_map in [true, false] {
            sim.damage("data/flagstone.json", |bytes| *bytes = single.to_vec()).await;
            assert!(noted.epoch() > 0);
            if !has_map {
                sim.remove(&format!("data/cluster/map/{:020}", 1)).await;
            }
            let refused = Owner::single(store.clone()).await.err().unwrap();
            assert!(format!("{refused:#}").contains("cluster convert"), "{refused:#}");
            let again = conversion(store.clone(), false).await;
            assert!(again.look().await.unwrap().is_begun);
            again.run(Clock::default()).await.unwrap();
            let newest = self::map(&sim).await;
            assert_eq!(newest == map, has_map);
            assert_eq!(newest.draft().map().next_life, map.next_life);
        }
        check(&mut Owner::join(store).await).await;
    });
}

#[test]
fn what_a_cluster_cannot_have_is_refused_and_nothing_changes() {
    runtime().block_on(async {
        let sim = Sim::new(4);
        let store = place(&sim);
        let epoch = async || Manifest::read_any(&store).await.unwrap().unwrap().epoch();
        let refused = async || {
            let (conversion, before) = (conversion(store.clone(), false).await, epoch().await);
            let seen = conversion.look().await.unwrap_err().to_string();
            let error = conversion.run(Clock::default()).await.unwrap_err();
            assert_eq!(error.to_string(), seen);
            assert_eq!(epoch().await, before, "it is not taken over");
            // It is a single server's, as before.
            Owner::single(store.clone()).await.unwrap().close().await;
            format!("{error:#}")
        };
        let nothing = conversion(store.clone(), false).await.run(Clock::default()).await;
        assert!(nothing.unwrap_err().to_string().contains("no data directory"));
        let mut owner = Owner::single(store.clone()).await.unwrap();
        fill(&mut owner).await;
        assert!(owner.put(1, "elsewhere", "x").await);
        // Only the journal has it.
        drop(owner);
        let error = refused().await;
        assert!(error.contains("has 1 keys in database 1, and"), "{error}");
        // It was stored by then.
        assert!(refused().await.contains("database 1"));
        // So is what came behind the look.
        let late = conversion(store.clone(), false).await.end_single_server(Clock::default()).await;
        assert!(late.unwrap_err().to_string().contains("database 1"));
        let mut owner = Owner::single(store.clone()).await.unwrap();
        assert!(owner.set(1, "elsewhere", Value::Absent).await);
        let source =
            SourcePosition { serial: 1, id: (*b"primary").into(), ..SourcePosition::default() };
        owner.partition.put_source(NOW, &source).unwrap();
        owner.close().await;
        assert!(refused().await.contains("the data set of a replica"));
    });
}

#[test]
fn libraries_of_functions_are_those_of_the_cluster_then() {
    runtime().block_on(async {
        let sim = Sim::new(6);
        let store = place(&sim);
        let mut owner = Owner::single(store.clone()).await.unwrap();
        let [name, engine, code] = [&b"lib"[..], b"LUA", b"code"].map(Into::into);
        let library = Library { name, engine, code, functions: Vec::new() };
        owner.partition.put_libraries(NOW, &[(b"lib", Some(&library))], Vec::new()).unwrap();
        owner.close().await;
        conversion(store.clone(), false).await.run(Clock::default()).await.unwrap();
        let map = MapStore::new(&store).newest().await.unwrap().unwrap();
        let id = map.functions().unwrap();
        assert_eq!(LibraryStore::new(&store).read(id).await.unwrap(), Some(vec![library]));
    });
}

#[test]
fn checkpoints_go_only_if_that_is_allowed() {
    runtime().block_on(async {
        let sim = Sim::new(5);
        let store = place(&sim);
        let mut owner = Owner::single(store.clone()).await.unwrap();
        fill(&mut owner).await;
        owner.close().await;
        take_stopped(&store.clone().into()).await.unwrap();
        let refused = conversion(store.clone(), false).await.run(Clock::default()).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("has 1 checkpoints"), "{refused}");
        assert_eq!(Catalog::of(&store).list().await.unwrap().len(), 1);
        let allowed = conversion(store.clone(), true).await;
        assert_eq!(allowed.look().await.unwrap().checkpoints, 1);
        assert_eq!(allowed.run(Clock::default()).await.unwrap().checkpoints, 1);
        assert_eq!(Catalog::of(&store).list().await.unwrap(), []);
        check(&mut Owner::join(store).await).await;
    });
}
