//! Servers of a cluster whose processes die before or behind any request to the store: while they join,
//! take over, take shards, flush, give shards away, and leave; and the requests of which are lost, have
//! no answer, or arrive late.

use super::seat_tests::{KEYS, LEASE, SHARDS, TestServer, forget};
use super::{Life, MemberState};
use crate::journal::tests::sim_disk::Rng;
use crate::place::Place;
use crate::place::sim::{Client, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Steps of a history.
const STEPS: usize = 12;

/// Rounds in which processes may die while they make the cluster whole again, and rounds after which it
/// must be: requests of living processes fail, too.
const DEADLY: usize = 5;
const ROUNDS: usize = 60;

/// A server and its way to the store.
struct Mortal {
    client: Arc<Client>,
    server: TestServer,
}

/// All that has happened.
struct Deaths {
    seed: u64,
    sim: Sim,
    dice: Rng,
    alive: Vec<Mortal>,
    /// Dead processes, which are kept: their tasks go on, and no request of theirs arrives.
    dead: Vec<TestServer>,
    nodes: u8,
    next: u64,
    /// The greatest number of each key that was durable, or shown, once.
    known: BTreeMap<u64, u64>,
}

/// Runs a task of a process; `None`: the process has died meanwhile, or the store has failed it too often.
async fn survives<T>(client: &Client, work: impl Future<Output = anyhow::Result<T>>) -> Option<T> {
    let death = async {
        while !client.is_dead() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        done = work => done.ok(),
        () = death => None,
    }
}

fn place(client: &Arc<Client>) -> Place {
    Place::within(client.clone(), "data".into(), "sim")
}

impl Deaths {
    fn new(seed: u64) -> Self {
        Self {
            seed,
            sim: Sim::new(seed),
            dice: Rng::new(seed ^ 0xDEAD),
            alive: Vec::new(),
            dead: Vec::new(),
            nodes: 0,
            next: 0,
            known: BTreeMap::new(),
        }
    }

    /// Lets a process die at one of its next requests, or not.
    fn threaten(&mut self, client: &Client, most: u64) {
        if self.dice.below(2) == 0 {
            client.die_after(self.dice.below(most));
        }
    }

    /// Lets a server join: a new node, or one whose process has died.
    async fn join(&mut self, is_safe: bool) {
        let node = match self.dice.below(2) {
            0 if self.nodes > 0 => self.dice.below(u64::from(self.nodes)) as u8,
            _ => self.nodes,
        };
        if self.alive.iter().any(|mortal| mortal.server.node == node) {
            return;
        }
        self.nodes = self.nodes.max(node + 1);
        let faults = if is_safe { 0 } else { [0, 0, 3][self.dice.below(3) as usize] };
        let client = self.sim.client(faults);
        if !is_safe {
            self.threaten(&client, 60);
        }
        let store = place(&client);
        if let Some(server) = survives(&client, TestServer::try_join(&store, node)).await {
            client.die_after(u64::MAX);
            self.alive.push(Mortal { client, server });
        }
    }

    /// Notes a server that may have died or failed in its last task: its process ends, and it is noted
    /// which of its writes were durable.
    fn bury(&mut self, mut mortal: Mortal) {
        mortal.client.die();
        mortal.server.settle(&mut self.known);
        self.dead.push(mortal.server);
    }

    /// Runs one task of a server that may die meanwhile.
    async fn step(&mut self) {
        let at = self.dice.below(self.alive.len() as u64) as usize;
        let mut mortal = self.alive.remove(at);
        self.threaten(&mortal.client, 120);
        let (choice, heir) =
            (self.dice.below(5), self.alive.first().map(|it| it.server.seat.life()));
        let values: Vec<(u64, u64)> = (0..self.dice.below(12))
            .map(|_| {
                self.next += 1;
                (self.dice.below(KEYS), self.next)
            })
            .collect();
        let (client, server) = (mortal.client.clone(), &mut mortal.server);
        let task = async {
            for (key, value) in values.into_iter().filter(|_| choice < 4) {
                if server.owns(key) {
                    server.put(key, value).await;
                }
            }
            let shards: Vec<u16> = server.partition.shards.keys().copied().collect();
            match (choice, shards.first()) {
                (0, _) => drop(server.sync().await),
                (1, _) => {
                    for id in shards {
                        server.try_flush(id).await?;
                    }
                }
                (2 | 3, Some(id)) if heir.is_some() => server.try_give(*id, heir).await?,
                (4, _) => {
                    for id in shards {
                        server.try_give(id, heir).await?;
                    }
                    server.journal.close()?;
                    server.seat.release().await?;
                    // It has left, and ends.
                    anyhow::bail!("it has left");
                }
                _ => {}
            }
            Ok(())
        };
        match survives(&client, task).await {
            Some(()) => {
                mortal.server.settle(&mut self.known);
                self.check(&mut mortal).await;
                self.alive.push(mortal);
            }
            None => self.bury(mortal),
        }
    }

    /// Checks what a server shows, while it is alive.
    async fn check(&mut self, mortal: &mut Mortal) {
        for key in 0..KEYS {
            let least = self.known.get(&key).copied().unwrap_or(0);
            let server = &mut mortal.server;
            if !server.owns(key) {
                continue;
            }
            let shown = survives(&mortal.client, async {
                let found = server.get(key).await;
                Ok(server.sync().await.then_some(found))
            });
            let Some(Some(found)) = shown.await else { return };
            assert!(found >= least, "seed {}: key {key}: {found}, not {least}", self.seed);
            self.known.insert(key, found);
        }
    }

    /// Makes the cluster whole: servers that live take over from those that do not, and take what is
    /// theirs. They may die, too.
    async fn mend(&mut self) {
        for round in 0..ROUNDS {
            let is_safe = round >= DEADLY;
            while self.alive.is_empty() {
                self.join(is_safe).await;
            }
            let before = self.alive.len();
            let mut living: Vec<Life> = self.alive.iter().map(|it| it.server.seat.life()).collect();
            for mut mortal in std::mem::take(&mut self.alive) {
                match is_safe {
                    true => mortal.client.die_after(u64::MAX),
                    false => self.threaten(&mortal.client, 200),
                }
                let (client, life) = (mortal.client.clone(), mortal.server.seat.life());
                match survives(&client, mend(&mut mortal.server, &living)).await {
                    Some(()) => self.alive.push(mortal),
                    None => {
                        living.retain(|it| *it != life);
                        self.bury(mortal);
                    }
                }
            }
            if self.alive.len() == before && round > 1 && self.is_whole() {
                return;
            }
        }
        panic!("seed {}: not all shards are served", self.seed);
    }

    fn is_whole(&self) -> bool {
        let owned: BTreeSet<u16> = self
            .alive
            .iter()
            .flat_map(|mortal| mortal.server.partition.shards.keys().copied())
            .collect();
        owned.len() == usize::from(SHARDS)
    }
}

/// One round of a server's work for the cluster. `living`: the lives that go on; the others are taken for
/// dead, although they may have joined just now.
async fn mend(server: &mut TestServer, living: &[Life]) -> anyhow::Result<()> {
    let own = server.seat.life();
    let map = server.map().await;
    anyhow::ensure!(map.member(own).is_some_and(|it| it.state == MemberState::Open), "sealed");
    let ended = map.members().iter().filter(|it| it.state == MemberState::Open);
    for ended in ended.map(|it| it.life).filter(|life| !living.contains(life)) {
        server.try_take_over(ended, living).await?;
    }
    server.try_take_parked().await?;
    server.try_take().await?;
    forget(&server.seat).await;
    Ok(())
}

/// Runs a history.
async fn history(seed: u64) {
    let mut deaths = Deaths::new(seed);
    deaths.join(true).await;
    deaths.mend().await;
    for _ in 0..STEPS {
        if deaths.alive.len() < 3 && deaths.dice.below(2) == 0 {
            deaths.join(false).await;
        }
        if !deaths.alive.is_empty() {
            deaths.step().await;
        }
        if deaths.dice.below(3) > 0 {
            deaths.mend().await;
        }
    }
    deaths.mend().await;
    for mut mortal in std::mem::take(&mut deaths.alive) {
        mortal.client.die_after(u64::MAX);
        deaths.check(&mut mortal).await;
    }
}

fn run(seed: u64) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(history(seed));
    // Dead processes have requests under way for ever.
    runtime.shutdown_background();
}

/// Number of seeds, from the environment for longer runs: `FLAGSTONE_SEEDS=first-last`.
fn seeds() -> std::ops::Range<u64> {
    let chosen = std::env::var("FLAGSTONE_SEEDS").ok();
    let range = chosen.as_deref().and_then(|text| text.split_once('-'));
    let number = |text: &str| text.parse().unwrap();
    range.map_or(0..12, |(first, last)| number(first)..number(last) + 1)
}

#[test]
fn nothing_durable_is_lost_wherever_processes_die() {
    assert!(LEASE < Duration::from_secs(1), "each takeover waits for it");
    let threads = (0..4u64).map(|thread| {
        std::thread::spawn(move || seeds().filter(|seed| seed % 4 == thread).for_each(run))
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
}
