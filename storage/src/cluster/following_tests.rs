//! A replica beside servers that write, flush, move shards, are killed and taken over.

use super::seat_tests::{KEYS, TestServer, forget, run_histories};
use super::{Life, LifeFollower, MapShard, MirroredShards, ServerRole};
use crate::commit::split_body;
use crate::journal::tests::sim_disk::Rng;
use crate::journal::{Record, TailStep};
use crate::place::Place;
use crate::shard::Shard;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A replica of all shards.
struct TestReplica {
    server: TestServer,
    followed: BTreeMap<Life, LifeFollower>,
    /// The life in whose journal each shard is followed, since which map.
    owners: BTreeMap<u16, (Life, u64)>,
    shown: BTreeMap<u64, u64>,
}

impl TestReplica {
    async fn join(store: &Place) -> Self {
        let server = TestServer::join_as(store, 99, ServerRole::Replica).await.unwrap();
        Self { server, followed: BTreeMap::new(), owners: BTreeMap::new(), shown: BTreeMap::new() }
    }

    fn owner(entry: &MapShard) -> Option<(Life, u64)> {
        Some((entry.owner?, entry.since))
    }

    /// Mirrors the shards that have other owners in the newest map.
    async fn look(&mut self) {
        let map = self.server.map().await;
        let is_new = |entry: &&MapShard| {
            let owner = Self::owner(entry);
            owner.is_some() && owner.as_ref() != self.owners.get(&entry.id)
        };
        let lives: Vec<Life> =
            map.shards().iter().filter(is_new).filter_map(|it| it.owner).collect();
        for life in lives {
            self.mirror(life).await;
        }
    }

    /// Reads the shards of a life, and follows it from there on.
    async fn mirror(&mut self, life: Life) {
        let map = self.server.map().await;
        let entries: Vec<MapShard> = map.owned_by(life).cloned().collect();
        // The shard may not have been taken yet.
        let Ok(mirrored) = self.server.seat.mirror(life, &entries).await else { return };
        for shard in mirrored.shards {
            self.replace(shard);
        }
        for entry in &entries {
            self.owners.insert(entry.id, (life, entry.since));
        }
        self.followed.insert(life, LifeFollower::new(mirrored.tail));
    }

    fn replace(&mut self, shard: Shard) {
        let partition = &mut self.server.partition;
        let _ = partition.detach(shard.id);
        partition.attach(shard).unwrap();
    }

    fn apply(&mut self, life: Life, record: &Record) {
        for (id, ops) in split_body(&record.body).unwrap() {
            if self.owners.get(&id).is_some_and(|(owner, _)| *owner == life) {
                let partition = &mut self.server.partition;
                let keys = partition.touched(id, ops).unwrap_or_default();
                partition.follow((id, record.lsn), ops, &keys);
            }
        }
    }

    /// Reads what is in the journal of a life, at most so many objects. Returns false if there are no
    /// more.
    async fn read(&mut self, life: Life, most: u64) -> bool {
        for _ in 0..most {
            let Some(follower) = self.followed.get_mut(&life) else { return false };
            match follower.next().await.unwrap() {
                TailStep::Records(records) => {
                    records.iter().for_each(|record| self.apply(life, record));
                }
                TailStep::Missing => return false,
                TailStep::Ended => {
                    self.followed.remove(&life);
                    return false;
                }
            }
        }
        true
    }

    /// Reads all of the journal of a life. The owner may have dropped objects that were not read.
    async fn catch_up(&mut self, life: Life, published: u64) {
        while self.read(life, 1).await {}
        let follower = self.followed.get(&life);
        if follower.is_some_and(|follower| follower.read_up_to() < published) {
            self.mirror(life).await;
        }
    }

    /// Reads the shards of a life anew, and a part of its journal before.
    async fn begin_renewal(&mut self, life: Life, meanwhile: u64) -> Option<Box<MirroredShards>> {
        self.followed.get_mut(&life)?.begin_renewal();
        let entries: Vec<MapShard> = self.server.map().await.owned_by(life).cloned().collect();
        let is_followed =
            |entry: &MapShard| self.owners.get(&entry.id) == Self::owner(entry).as_ref();
        if !entries.iter().all(is_followed) {
            self.followed.get_mut(&life)?.end_renewal();
            return None;
        }
        self.read(life, meanwhile).await;
        self.server.seat.mirror(life, &entries).await.ok()
    }

    /// Reads a part of the journal of a life, and puts its shards that were read anew in their places.
    async fn end_renewal(&mut self, life: Life, mut renewed: Box<MirroredShards>, meanwhile: u64) {
        self.read(life, meanwhile).await;
        loop {
            let Some(follower) = self.followed.get_mut(&life) else { return };
            match follower.renew(renewed) {
                Ok(shards) => {
                    for shard in shards {
                        drop(self.server.partition.exchange(shard).unwrap());
                    }
                    return;
                }
                Err(ahead) => renewed = ahead,
            }
            if !self.read(life, 1).await {
                return self.mirror(life).await;
            }
        }
    }

    /// Checks that no key shows less than before, or more than was ever written.
    async fn check(&mut self, seed: u64, next: u64) {
        for n in (0..KEYS).filter(|n| self.server.owns(*n)).collect::<Vec<_>>() {
            let found = self.server.get(n).await;
            let before = self.shown.insert(n, found).unwrap_or(0);
            assert!(
                found >= before && found <= next,
                "seed {seed}: key {n}: {before}, then {found}"
            );
        }
    }
}

/// Writes some keys of a server, with greater numbers.
async fn write(server: &mut TestServer, dice: &mut Rng, next: &mut u64) {
    for _ in 0..dice.below(6) {
        let n = dice.below(KEYS);
        if server.owns(n) {
            *next += 1;
            server.put(n, *next).await.unwrap();
        }
    }
    assert!(server.sync().await);
}

async fn history(seed: u64) {
    let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
    let (mut dice, mut next, mut durable) = (Rng::new(seed), 0, BTreeMap::new());
    let mut servers = Vec::new();
    for node in 0..2 {
        let mut server = TestServer::try_join(&store, node).await.unwrap();
        server.try_take_parked().await.unwrap_or_default();
        server.take().await;
        servers.push(server);
    }
    let mut replica = TestReplica::join(&store).await;
    for step in 0..40 {
        let at = dice.below(servers.len() as u64) as usize;
        write(&mut servers[at], &mut dice, &mut next).await;
        servers[at].settle(&mut durable);
        let life = servers[at].seat.life();
        match dice.below(8) {
            0 => replica.look().await,
            1 | 2 => {
                for id in servers[at].partition.shards.keys().copied().collect::<Vec<_>>() {
                    servers[at].try_flush(id).await.unwrap();
                }
            }
            3 if servers.len() > 1 => {
                let to = servers[1 - at].seat.life();
                if let Some(id) = servers[at].partition.shards.keys().next().copied() {
                    servers[at].try_give(id, Some(to)).await.unwrap();
                    servers[1 - at].take().await;
                }
            }
            4 if servers.len() > 1 => {
                let ended = servers.remove(at);
                let heir = servers[0].seat.life();
                servers[0].try_take_over(ended.seat.life(), &[heir]).await.unwrap();
                servers[0].take().await;
            }
            5 if servers.len() < 2 => {
                servers.push(TestServer::try_join(&store, 2 + step).await.unwrap());
            }
            6 => {
                if let Some(renewed) = replica.begin_renewal(life, dice.below(4)).await {
                    write(&mut servers[at], &mut dice, &mut next).await;
                    servers[at].settle(&mut durable);
                    replica.end_renewal(life, renewed, dice.below(4)).await;
                }
            }
            _ => drop(replica.read(life, dice.below(5)).await),
        }
        replica.check(seed, next).await;
        forget(&servers[0].seat).await;
    }
    replica.look().await;
    for server in &mut servers {
        replica.catch_up(server.seat.life(), server.seat.published()).await;
        for n in (0..KEYS).filter(|n| server.owns(*n)).collect::<Vec<_>>() {
            let (owned, mirrored) = (server.get(n).await, replica.server.get(n).await);
            assert_eq!(owned, mirrored, "seed {seed}: key {n}");
        }
    }
}

#[test]
fn nothing_is_written_to_the_shards_of_others() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap().block_on(async {
        let store = Place::within(Arc::new(InMemory::new()), "data".into(), "memory:");
        let mut server = TestServer::try_join(&store, 0).await.unwrap();
        server.take().await;
        server.put(1, 1).await.unwrap();
        assert!(server.sync().await);
        let mut replica = TestReplica::join(&store).await;
        replica.look().await;
        assert_eq!(replica.server.get(1).await, 1);
        let end = replica.server.journal.end();
        assert!(replica.server.put(1, 2).await.is_none());
        assert_eq!((replica.server.journal.end(), replica.server.get(1).await), (end, 1));
        for shard in replica.server.partition.shards.values_mut() {
            assert!(!shard.can_cut() && !shard.may_sweep() && shard.unflushed_ops() == 0);
        }
    });
}

#[test]
fn a_replica_never_goes_back_and_ends_with_what_its_owners_have() {
    run_histories(history);
}
