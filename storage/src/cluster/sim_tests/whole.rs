//! The end of a simulation: the cluster becomes whole by itself, has all that clients have seen, and
//! nothing is left behind.

use super::agent::read_libraries;
use super::server::SimServer;
use super::world::SimWorld;
use super::{ALL_KEYS, LEASE, PLAIN_KEYS};
use crate::cluster::{ClusterMap, Life, MemberState};
use crate::journal::OBJECT_HEADER;
use crate::lease::BootTime;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::time::{Duration, Instant};

/// Leases after which the cluster must be whole.
const HEALING: u32 = 60;

/// Leases within which late requests arrive.
const LATE: u32 = 4;

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(100);

impl SimWorld {
    /// Waits until all shards are served by processes that are alive, and nothing is to be done.
    pub(super) async fn heal(self: &Rc<Self>) {
        self.end_trouble();
        // What is late arrives.
        self.leases(LATE).await;
        let (begun, since) = (Instant::now(), BootTime::now());
        loop {
            if self.living().is_empty() {
                self.start(self.nodes.get());
            }
            self.check_tasks().await;
            match self.what_is_missing(since).await {
                None => break,
                Some(what) if begun.elapsed() > HEALING * LEASE => {
                    self.violated(format_args!("the cluster does not become whole: {what}"));
                }
                Some(_) => tokio::time::sleep(LOOK).await,
            }
        }
        self.is_whole.set(true);
    }

    /// Returns the reason why the cluster is not whole. `since`: servers must have stored an object since
    /// then, as another one may have sealed their journals, and ended before it could change the map.
    async fn what_is_missing(&self, since: BootTime) -> Option<String> {
        let servers = self.servers();
        if !servers.iter().all(|server| server.seat.has_stored_since(since)) {
            return Some("a server has stored nothing".to_owned());
        }
        let map = match self.newest(&servers).await {
            Ok(map) => map,
            Err(error) => return Some(format!("no map: {error:#}")),
        };
        for member in map.members() {
            let is_up = servers.iter().any(|server| server.life() == member.life);
            if member.state != MemberState::Open || !is_up {
                return Some(format!("life {} has ended", member.life));
            }
        }
        for entry in map.shards() {
            let owner = servers.iter().find(|server| Some(server.life()) == entry.owner);
            let Some(owner) = owner else { return Some(format!("nobody owns shard {}", entry.id)) };
            if !owner.has(entry.id) || owner.busy.borrow().contains(&entry.id) {
                return Some(format!("life {} does not serve shard {}", owner.life(), entry.id));
            }
            if entry.journals.len() > 1 {
                return Some(format!("shard {} lists {:?}", entry.id, entry.journals));
            }
            let mut others = servers.iter().filter(|other| other.life() != owner.life());
            if let Some(other) = others.find(|other| other.has(entry.id)) {
                return Some(format!("life {} has shard {}, too", other.life(), entry.id));
            }
        }
        None
    }

    async fn newest(&self, servers: &[Rc<SimServer>]) -> Result<Arc<ClusterMap>> {
        let server = servers.first().context("nobody has joined")?;
        server.seat.maps().newest().await?.context("there is none")
    }

    /// Checks a whole cluster, ends all its processes, and checks what the next one finds.
    pub(super) async fn check_whole(self: &Rc<Self>) {
        // Commands and deletions are under way.
        self.leases(16).await;
        self.read_all().await;
        self.check_libraries().await;
        self.check_garbage().await;
        for host in self.living() {
            host.end();
        }
        self.start(self.nodes.get());
        self.heal().await;
        self.read_all().await;
    }

    /// Reads all keys of a whole cluster.
    async fn read_all(self: &Rc<Self>) {
        let mut numbers = Vec::new();
        for key in 0..ALL_KEYS {
            let command = self.ledger.borrow_mut().send(&[key], false);
            let begun = Instant::now();
            // A server may find only now that its engine was closed by a process that had slept, and end.
            let number = loop {
                let servers = self.servers();
                let owner = servers.iter().find(|server| server.has(server.shard_of(key)));
                if let Some(owner) = owner
                    && let Ok(number) = owner.run(&command).await
                {
                    break number;
                }
                if begun.elapsed() > HEALING * LEASE {
                    self.violated(format_args!("key {key} cannot be read in the end"));
                }
                if self.living().is_empty() {
                    self.start(self.nodes.get());
                }
                tokio::time::sleep(LOOK).await;
            };
            if let Err(what) = self.ledger.borrow_mut().reply(&command, number) {
                self.violated(format_args!("in the end {what}"));
            }
            numbers.push(number);
        }
        for pair in numbers[PLAIN_KEYS as usize..].chunks(2) {
            if pair[0] != pair[1] {
                self.violated(format_args!("a record was torn: {pair:?}"));
            }
        }
        let there = numbers.iter().filter(|number| **number > 0).count() as u64;
        let counted: u64 = self.servers().iter().map(|server| server.keys()).sum();
        if there != counted {
            self.violated(format_args!("{there} keys are there, and {counted} are counted"));
        }
    }

    async fn check_libraries(&self) {
        let servers = self.servers();
        let Ok(found) = read_libraries(&servers[0]).await else {
            self.violated(format_args!("the libraries cannot be read"));
        };
        let found: BTreeSet<Box<[u8]>> = found.into_iter().map(|one| one.name).collect();
        if !self.libraries.borrow().is_subset(&found) {
            self.violated(format_args!("libraries are lost: {found:?}"));
        }
    }

    /// Checks that of the journals of forgotten lives only fences are left, and what has arrived late.
    async fn check_garbage(&self) {
        let map = self.newest(&self.servers()).await.unwrap();
        for (name, bytes) in self.sim.sizes("data/lives/").await {
            let life = name.split('/').nth(2).and_then(|life| life.parse().ok());
            let is_known = life.is_some_and(|life| map.member(Life(life)).is_some());
            let is_late =
                || life.is_some_and(|life| self.sim.stored_at(&name) > self.ended_at(Life(life)));
            if !is_known && bytes != OBJECT_HEADER as u64 && !is_late() {
                self.violated(format_args!("{name} is left behind"));
            }
        }
        // Of splits that never came into the map, too, nothing is left.
        for name in self.sim.sizes("data/shard-").await.into_keys() {
            let dir = name.split('/').nth(1).unwrap_or_default();
            let by = dir.rsplit_once('-').and_then(|(_, life)| life.parse().ok()).map(Life);
            let is_known = map.shards().iter().any(|it| {
                dir == format!("shard-{}", it.id)
                    || it.origin.is_some_and(|from| dir == format!("shard-{}-{}", it.id, from.by))
            });
            let is_late = || by.is_some_and(|by| self.sim.stored_at(&name) > self.ended_at(by));
            let is_to_come = by.is_some_and(|by| map.member(by).is_some());
            if !is_known && !is_to_come && !is_late() {
                self.violated(format_args!("{name} is left behind"));
            }
        }
    }
}
