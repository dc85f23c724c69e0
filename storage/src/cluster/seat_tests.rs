//! Servers of a cluster that share a store in memory, with engines and journals: they are killed, go
//! on although their shards were taken over, move shards, and leave.

use super::{
    ClusterMap, ClusterSeat, GivenShard, Life, MapRefusal, MapShard, MemberState, NodeAddress,
    NodeId, ServerRole,
};
use crate::checkpoint::offline_options;
use crate::clock::Clock;
use crate::directory::Location;
use crate::journal::tests::sim_disk::Rng;
use crate::journal::{Journal, Lsn, OBJECT_HEADER};
use crate::need::{Fault, Need};
use crate::partition::Partition;
use crate::place::Place;
use crate::place::sim::{Client, Sim};
use crate::slot::slot_of;
use crate::value::{Str, Value};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;

const NOW: u64 = 1_800_000_000_000;
pub(super) const SHARDS: u16 = 3;
pub(super) const KEYS: u64 = 40;
/// Times that a server tries to take its shards.
const TRIES: usize = 20;
/// Bytes of the filters of keys.
pub(super) const FILTERS: usize = 1 << 16;
pub(super) const LEASE: Duration = Duration::from_millis(90);

/// One life of a server.
pub(super) struct TestServer {
    pub(super) seat: ClusterSeat,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) partition: Partition,
    /// Lsns of adoptions whose journals are still listed.
    adopted: BTreeMap<u16, Lsn>,
    writes: Vec<(u64, u64, Lsn)>,
}

/// What all lives of all servers have done.
struct World {
    store: Place,
    dice: Rng,
    next: u64,
    /// The greatest number of each key that was durable once.
    durable: BTreeMap<u64, u64>,
    /// Killed lives that go on.
    zombies: Vec<TestServer>,
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn text(value: &Value) -> Vec<u8> {
    match value {
        Value::Absent => Vec::new(),
        Value::Str(text) => text.whole().unwrap().to_vec(),
        _ => panic!("no other values are written"),
    }
}

impl TestServer {
    pub(super) async fn join(store: &Place, node: u8) -> Self {
        Self::try_join(store, node).await.unwrap()
    }

    pub(super) async fn try_join(store: &Place, node: u8) -> anyhow::Result<Self> {
        Self::join_as(store, node, ServerRole::Owner).await
    }

    pub(super) async fn join_as(store: &Place, node: u8, role: ServerRole) -> anyhow::Result<Self> {
        let location = Location { store: store.clone(), journal: None };
        let mut options = offline_options(&location).await?;
        (options.databases, options.lease, options.default_shards) = (1, LEASE, SHARDS);
        options.presence_bytes = FILTERS;
        let address = NodeAddress { host: "127.0.0.1".to_owned(), port: 7000, tls_port: None };
        let node_id = NodeId([node; 20]);
        let joined = ClusterSeat::join(options, Clock::default(), (node_id, &address), role).await;
        let (directory, seat) = joined?;
        let journal = directory.journal.clone();
        let partition = directory.into_partitions(1, 1).0.remove(0);
        Ok(Self { seat, journal, partition, adopted: BTreeMap::new(), writes: Vec::new() })
    }

    pub(super) async fn map(&self) -> Arc<ClusterMap> {
        self.seat.maps().newest().await.unwrap().unwrap()
    }

    /// Takes all shards that the newest map gives it.
    pub(super) async fn take(&mut self) {
        // On a busy machine the store may seem to be away for a part of the lease.
        for _ in 0..TRIES {
            match self.try_take().await {
                Err(error) if format!("{error:#}").contains("is away") => {}
                taken => return taken.unwrap(),
            }
        }
        panic!("the store does not answer");
    }

    pub(super) async fn try_take(&mut self) -> anyhow::Result<()> {
        let map = self.map().await;
        let life = self.seat.life();
        let mut groups: BTreeMap<Vec<Life>, Vec<MapShard>> = BTreeMap::new();
        let is_here = |shard: &MapShard| self.partition.shards.contains_key(&shard.id);
        for shard in map.owned_by(life).filter(|shard| !is_here(shard)) {
            groups.entry(shard.journals.clone()).or_default().push(shard.clone());
        }
        for group in groups.into_values() {
            let given: Vec<_> = group.iter().map(|shard| GivenShard::of(shard, life)).collect();
            for taken in self.seat.take(&given).await? {
                self.adopted.insert(taken.shard.id, taken.adopted);
                self.partition.attach(taken.shard).unwrap();
            }
        }
        Ok(())
    }

    /// Takes as many parked shards as it lacks.
    async fn take_parked(&mut self) {
        self.try_take_parked().await.unwrap();
    }

    pub(super) async fn try_take_parked(&mut self) -> anyhow::Result<()> {
        let life = self.seat.life();
        let taken = self.seat.amend(|draft| {
            let parked = draft.map().shards().iter().filter(|shard| shard.owner.is_none());
            let parked: Vec<u16> = parked.map(|shard| shard.id).collect();
            if parked.is_empty() {
                return Err(MapRefusal::NoChange);
            }
            parked.into_iter().try_for_each(|shard| draft.take_parked(shard, life))
        });
        drop(taken.await?);
        self.try_take().await
    }

    async fn load(&mut self, need: Need) {
        let loaded = self.partition.plan_load(vec![need]).unwrap().run(&Handle::current()).await;
        self.partition.finish_load(loaded).unwrap();
    }

    /// Returns the shard of a key.
    pub(super) fn shard_of(&self, n: u64) -> u16 {
        self.partition.store.layout().shard_of(slot_of(&key(n)))
    }

    pub(super) fn owns(&self, n: u64) -> bool {
        self.partition.shards.contains_key(&self.shard_of(n))
    }

    /// Returns the number of a key.
    pub(super) async fn get(&mut self, n: u64) -> u64 {
        let text = self.get_text(n).await;
        if text.is_empty() { 0 } else { std::str::from_utf8(&text).unwrap().parse().unwrap() }
    }

    /// Returns the text of a key; empty: there is none.
    pub(super) async fn get_text(&mut self, n: u64) -> Vec<u8> {
        loop {
            self.partition.store.begin(NOW, true);
            match self.partition.store.entry(0, &key(n)) {
                Ok(entry) => return entry.map_or_else(Vec::new, |entry| text(&entry.value)),
                Err(Fault::Miss(need)) => self.load(*need).await,
                Err(fault) => panic!("{fault:?}"),
            }
        }
    }

    /// Writes a number. It is in the journal, and not durable yet; `None`: the journal has ended.
    pub(super) async fn put(&mut self, n: u64, value: u64) -> Option<()> {
        self.put_text(n, value.to_string().into_bytes()).await?;
        self.writes.push((n, value, self.journal.end()));
        Some(())
    }

    pub(super) async fn put_text(&mut self, n: u64, text: Vec<u8>) -> Option<()> {
        loop {
            self.partition.store.begin(NOW, true);
            match self.partition.store.entry_mut(0, &key(n)) {
                Ok(mut entry) => {
                    entry.value = Value::Str(Str::new(&text));
                    return self.partition.commit(NOW).ok().map(|_| ());
                }
                Err(Fault::Miss(need)) => self.load(*need).await,
                Err(fault) => panic!("{fault:?}"),
            }
        }
    }

    /// Writes a text over that of a key which is not in memory, without reading it.
    pub(super) fn put_blind(&mut self, n: u64, text: &[u8]) {
        let store = &mut self.partition.store;
        store.begin(NOW, true);
        assert!(!store.is_hot(0, &key(n)));
        let _ = store.replace(0, &key(n), text, 0).unwrap();
        self.partition.commit(NOW).unwrap();
    }

    /// Notes which writes are durable by now.
    pub(super) fn settle(&mut self, durable: &mut BTreeMap<u64, u64>) {
        let up_to = self.journal.durable();
        self.partition.observe_durable();
        self.writes.retain(|(n, value, lsn)| {
            if *lsn <= up_to {
                let known = durable.entry(*n).or_default();
                *known = (*known).max(*value);
            }
            *lsn > up_to
        });
    }

    /// Waits until everything is durable; false if the journal has ended.
    pub(super) async fn sync(&self) -> bool {
        let end = self.journal.end();
        while self.journal.durable() < end {
            if self.journal.failed().is_some() {
                return false;
            }
            self.journal.request_sync(end);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Flushes a shard, and drops the journals of others from its list.
    pub(super) async fn flush(&mut self, id: u16) {
        self.try_flush(id).await.unwrap();
    }

    pub(super) async fn try_flush(&mut self, id: u16) -> anyhow::Result<()> {
        let mut detached = self.partition.detach(id).unwrap();
        detached.flush(&self.journal).await?;
        let shard = detached.into_shard();
        let flushed = shard.flushed();
        self.partition.attach(shard).unwrap();
        let life = self.seat.life();
        if self.adopted.get(&id).is_some_and(|lsn| flushed >= *lsn) {
            self.adopted.remove(&id);
            let noted = self.seat.amend(|draft| {
                draft.note_flushed(id, life)?;
                draft.note_stored(id, life, flushed)
            });
            drop(noted.await?);
        }
        Ok(())
    }

    /// Gives a shard to another life, or to nobody.
    pub(super) async fn give(&mut self, id: u16, to: Option<Life>) {
        self.try_give(id, to).await.unwrap();
    }

    pub(super) async fn try_give(&mut self, id: u16, to: Option<Life>) -> anyhow::Result<()> {
        let mut detached = self.partition.detach(id).unwrap();
        detached.flush(&self.journal).await?;
        let stored = detached.stored();
        detached.close(&self.journal).await?;
        self.adopted.remove(&id);
        let life = self.seat.life();
        let given = self.seat.amend(|draft| {
            draft.note_stored(id, life, stored)?;
            match to {
                Some(to) => draft.give(id, life, to),
                None => draft.park(id, life),
            }
        });
        given.await??;
        Ok(())
    }

    /// Ends a life that is to be taken for dead, and shares its shards out.
    pub(super) async fn take_over(&self, ended: Life, heirs: &[Life]) {
        self.try_take_over(ended, heirs).await.unwrap();
    }

    pub(super) async fn try_take_over(&self, ended: Life, heirs: &[Life]) -> anyhow::Result<()> {
        self.seat.seal(ended).await?;
        let sealed = self.seat.amend(|draft| {
            let owned: Vec<u16> = draft.map().owned_by(ended).map(|shard| shard.id).collect();
            let heirs = heirs.iter().cycle();
            let shares: Vec<(u16, Life)> = owned.into_iter().zip(heirs.copied()).collect();
            draft.seal(ended, &shares)
        });
        sealed.await??;
        Ok(())
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
        Self { store, dice: Rng::new(seed), next: 0, durable: BTreeMap::new(), zombies: Vec::new() }
    }

    /// Writes to some keys of a server; sometimes what was written is not durable when it ends.
    async fn write(&mut self, server: &mut TestServer) {
        for _ in 0..self.dice.below(12) {
            let n = self.dice.below(KEYS);
            if server.owns(n) {
                self.next += 1;
                server.put(n, self.next).await.unwrap();
            }
        }
        if self.dice.below(3) > 0 {
            assert!(server.sync().await);
        }
        server.settle(&mut self.durable);
    }

    /// Writes to all keys of a server that has all shards, durably.
    async fn fill(&mut self, server: &mut TestServer) {
        for n in 0..KEYS {
            server.put(n, n + 1).await.unwrap();
        }
        assert!(server.sync().await);
        server.settle(&mut self.durable);
    }

    /// Checks that a server shows everything that was durable once, of its keys.
    async fn check(&mut self, server: &mut TestServer, seed: u64) {
        for n in (0..KEYS).filter(|n| self.dice.below(4) == 0 || n % 5 == 0) {
            if server.owns(n) {
                let (found, least) = (server.get(n).await, self.durable.get(&n).copied());
                assert!(
                    found >= least.unwrap_or(0),
                    "seed {seed}: key {n}: {found}, not {least:?}"
                );
                // A later owner must not show less than that.
                if server.sync().await {
                    let known = self.durable.entry(n).or_default();
                    *known = (*known).max(found);
                }
            }
        }
    }

    /// Lets killed lives go on: whatever they write is never durable.
    async fn disturb(&mut self, seed: u64) {
        for zombie in &mut self.zombies {
            let Some(n) = (0..KEYS).find(|n| zombie.owns(*n)) else { continue };
            self.next += 1;
            if zombie.put(n, self.next).await.is_some() {
                let lsn = zombie.journal.end();
                tokio::time::sleep(Duration::from_millis(3)).await;
                let durable = zombie.journal.durable();
                assert!(durable < lsn, "seed {seed}: a sealed life has stored a write");
            }
        }
    }
}

/// Runs a history of some servers.
async fn history(seed: u64) {
    let mut world = World::new(seed);
    let mut servers = vec![TestServer::join(&world.store, 0).await];
    servers[0].take().await;
    let mut node = 0;
    for _ in 0..14 {
        let at = world.dice.below(servers.len() as u64) as usize;
        let mut server = servers.remove(at);
        world.write(&mut server).await;
        world.check(&mut server, seed).await;
        match world.dice.below(6) {
            0 if servers.len() < 3 => {
                node += 1;
                let mut joined = TestServer::join(&world.store, node).await;
                joined.take().await;
                servers.extend([server, joined]);
            }
            1 => {
                for id in server.partition.shards.keys().copied().collect::<Vec<_>>() {
                    server.flush(id).await;
                }
                servers.push(server);
            }
            2 | 3 if !servers.is_empty() => {
                let heirs: Vec<Life> = servers.iter().map(|other| other.seat.life()).collect();
                servers[0].take_over(server.seat.life(), &heirs).await;
                world.zombies.push(server);
                world.disturb(seed).await;
                for other in &mut servers {
                    other.take().await;
                }
            }
            4 if !servers.is_empty() => {
                let owned: Vec<u16> = server.partition.shards.keys().copied().collect();
                if let Some(id) = owned.first() {
                    server.give(*id, Some(servers[0].seat.life())).await;
                    servers[0].take().await;
                }
                servers.push(server);
            }
            _ => {
                let to = servers.first().map(|other| other.seat.life());
                for id in server.partition.shards.keys().copied().collect::<Vec<_>>() {
                    server.give(id, to).await;
                }
                server.journal.close().unwrap();
                server.seat.release().await.unwrap();
                if servers.is_empty() {
                    node += 1;
                    servers.push(TestServer::join(&world.store, node).await);
                }
                servers[0].take_parked().await;
            }
        }
        forget(&servers[0].seat).await;
    }
    for server in &mut servers {
        world.check(server, seed).await;
    }
    let owned: BTreeSet<u16> =
        servers.iter().flat_map(|server| server.partition.shards.keys().copied()).collect();
    assert_eq!(owned.len(), usize::from(SHARDS), "seed {seed}: not all shards are served");
}

/// Takes lives that nobody needs from the map, and deletes their journals.
pub(super) async fn forget(seat: &ClusterSeat) {
    let map = seat.maps().newest().await.unwrap().unwrap();
    let gone = map.ended();
    let map = seat.forget(&map).await.unwrap();
    assert!(gone.iter().all(|life| map.member(*life).is_none()));
}

/// Runs the histories of some seeds on threads.
pub(super) fn run_histories<F: Future<Output = ()>>(
    history: impl Fn(u64) -> F + Copy + Send + 'static,
) {
    let threads = (0..4u64).map(|thread| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            for seed in (0..12).filter(|seed| seed % 4 == thread) {
                runtime.block_on(history(seed));
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}

#[test]
fn nothing_durable_is_lost_whoever_owns_it() {
    run_histories(history);
}

/// A node whose process was killed joins again: it seals its former life itself, and has its shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_node_that_starts_again_has_what_it_had() {
    let mut world = World::new(5);
    let mut former = TestServer::join(&world.store, 1).await;
    former.take().await;
    world.fill(&mut former).await;
    let life = former.seat.life();
    world.zombies.push(former);
    let mut again = TestServer::join(&world.store, 1).await;
    let map = again.map().await;
    assert_eq!(map.member(life).map(|member| member.state), Some(MemberState::Sealed));
    assert_eq!(map.owned_by(again.seat.life()).count(), usize::from(SHARDS));
    again.take().await;
    for n in 0..KEYS {
        assert_eq!(again.get(n).await, n + 1);
    }
    world.disturb(5).await;
}

/// Its engine belongs to a later owner by now: it is neither opened nor closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_late_taker_closes_no_engine_of_a_later_owner() {
    let world = World::new(1);
    let late = TestServer::join(&world.store, 0).await;
    let map = late.map().await;
    let mut owner = TestServer::join(&world.store, 1).await;
    owner.take_over(late.seat.life(), &[owner.seat.life()]).await;
    owner.take().await;
    let shard = &map.shards()[0];
    let given = GivenShard::of(shard, late.seat.life());
    let refused = late.seat.take(&[given]).await.err().map(|error| error.to_string());
    assert!(refused.as_ref().is_some_and(|why| why.contains("another server")), "{refused:?}");
    for n in 0..KEYS {
        owner.put(n, 1).await.unwrap();
    }
    assert!(owner.sync().await);
    owner.flush(0).await;
}

/// The former owner may answer until its lease is over, whoever has sealed its journal, and when.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nobody_serves_what_a_life_may_still_show() {
    let world = World::new(2);
    let mut former = TestServer::join(&world.store, 0).await;
    former.take().await;
    let mut heir = TestServer::join(&world.store, 1).await;
    heir.take_over(former.seat.life(), &[heir.seat.life()]).await;
    let begun = std::time::Instant::now();
    let lease = former.journal.lease().unwrap();
    heir.take().await;
    assert!(!lease.holds(), "{:?} after the journal was sealed", begun.elapsed());
    // One that has released its journal is not waited for.
    for id in heir.partition.shards.keys().copied().collect::<Vec<_>>() {
        heir.give(id, None).await;
    }
    heir.journal.close().unwrap();
    let sealed = former_of(&world.store, heir.seat.life()).await;
    assert!(sealed.silent_from().is_none());
}

async fn former_of(store: &Place, life: Life) -> Arc<super::SealedLife> {
    TestServer::join(store, 9).await.seat.seal(life).await.unwrap()
}

/// Its records are deleted, and what it puts late still meets the seal.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_forgotten_life_stays_sealed() {
    let mut world = World::new(3);
    let mut former = TestServer::join(&world.store, 0).await;
    former.take().await;
    world.fill(&mut former).await;
    let life = former.seat.life();
    let mut heir = TestServer::join(&world.store, 1).await;
    heir.take_over(life, &[heir.seat.life()]).await;
    heir.take().await;
    for id in 0..SHARDS {
        heir.flush(id).await;
    }
    forget(&heir.seat).await;
    let sealed = heir.seat.seal(life).await.unwrap();
    assert_eq!((sealed.end(), heir.map().await.member(life)), (0, None), "records are left");
    world.zombies.push(former);
    world.disturb(3).await;
    world.check(&mut heir, 3).await;
}

/// Who ends while it deletes a journal leaves its life in the map: the next one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_life_is_forgotten_only_once_its_journal_is_deleted() {
    let mut world = World::new(6);
    let sim = Sim::new(6);
    let (client, dying) = (sim.client(0), sim.client(0));
    let place = |client: &Arc<Client>| Place::within(client.clone(), "data".into(), "sim");
    let mut former = TestServer::join(&place(&client), 0).await;
    former.take().await;
    world.fill(&mut former).await;
    let life = former.seat.life();
    drop(former);
    let mut heir = TestServer::join(&place(&dying), 1).await;
    heir.take_over(life, &[heir.seat.life()]).await;
    heir.take().await;
    for id in 0..SHARDS {
        heir.flush(id).await;
    }
    let map = heir.map().await;
    assert_eq!(map.ended(), [life]);
    // It lists the objects, and deletes none.
    dying.faults.store(100, Ordering::SeqCst);
    let forgetting = tokio::time::timeout(Duration::from_millis(200), heir.seat.forget(&map));
    assert!(!matches!(forgetting.await, Ok(Ok(_))));
    let next = TestServer::join(&place(&client), 2).await;
    assert_eq!(next.map().await.ended(), [life]);
    forget(&next.seat).await;
    let sizes = sim.sizes(&format!("data/lives/{:020}/", life.0)).await;
    assert!(sizes.values().all(|bytes| *bytes == OBJECT_HEADER as u64), "{sizes:?}");
}

/// It reads that journal when they delete it.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_starts_again_needs_no_journal_that_others_have_taken_over() {
    let mut world = World::new(7);
    let sim = Sim::new(7);
    let (client, slow) = (sim.client(0), sim.client(0));
    let place = |client: &Arc<Client>| Place::within(client.clone(), "data".into(), "sim");
    let mut former = TestServer::join(&place(&client), 0).await;
    former.take().await;
    for _ in 0..50 {
        world.fill(&mut former).await;
    }
    let life = former.seat.life();
    drop(former);
    let journal = format!("data/lives/{:020}/", life.0);
    let is_fence = |bytes: &u64| *bytes == OBJECT_HEADER as u64;
    let before = sim.sizes(&journal).await.len();
    assert!(before > 40, "more than are read at a time");
    slow.pace.store(10_000, Ordering::SeqCst);
    let starting = tokio::spawn({
        let place = place(&slow);
        async move { TestServer::try_join(&place, 0).await.map(drop) }
    });
    while sim.sizes(&journal).await.len() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    slow.gets_wait.shut(true);
    let mut heir = TestServer::join(&place(&client), 1).await;
    heir.take_over(life, &[heir.seat.life()]).await;
    heir.take().await;
    for id in 0..SHARDS {
        heir.flush(id).await;
    }
    forget(&heir.seat).await;
    assert!(sim.sizes(&journal).await.values().all(is_fence));
    slow.gets_wait.shut(false);
    starting.await.unwrap().unwrap();
    world.check(&mut heir, 7).await;
}

/// It has begun its journal, so it may have stored something there.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nobody_goes_on_without_the_journal_of_a_life_that_has_begun_one() {
    let mut world = World::new(4);
    let mut former = TestServer::join(&world.store, 0).await;
    former.take().await;
    world.fill(&mut former).await;
    let life = former.seat.life();
    let heir = TestServer::join(&world.store, 1).await;
    let journal = super::lives::journal_of(&world.store, life);
    let (store, root) = (journal.store(), journal.root());
    let objects: Vec<_> = store.list(Some(root)).try_collect().await.unwrap();
    let mut kept = Vec::new();
    for object in objects {
        let content = store.get(&object.location).await.unwrap().bytes().await.unwrap();
        store.delete(&object.location).await.unwrap();
        kept.push((object.location, content));
    }
    drop(former);
    for _ in 0..2 {
        let refused = heir.try_take_over(life, &[heir.seat.life()]).await;
        let why = format!("{:#}", refused.unwrap_err());
        assert!(why.contains("is missing"), "{why}");
    }
    // Nothing was put in its place: it can come back.
    for (location, content) in kept {
        store.put(&location, content.into()).await.unwrap();
    }
    let mut heir = heir;
    heir.take_over(life, &[heir.seat.life()]).await;
    heir.take().await;
    world.check(&mut heir, 4).await;
}
