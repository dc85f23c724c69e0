//! The servers' machines and the clients of a simulation, and what all of them together must keep.

use super::ledger::{ClientLedger, SentCommand};
use super::server::{Denied, SimServer, choose_keys};
use super::{ALL_KEYS, LEASE, agent};
use crate::cluster::{ClusterMap, Life};
use crate::place::sim::{Client, Sim};
use crate::simulated::SimProcess;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Clients that send commands at the same time.
const CLIENTS: u64 = 6;

/// How long a client waits for a reply.
const PATIENCE: Duration = Duration::from_secs(4);

/// A process of a server, on a machine of its own.
pub(super) struct SimHost {
    pub(super) node: u8,
    pub(super) process: Arc<SimProcess>,
    pub(super) client: Arc<Client>,
    /// Its server, once that has joined.
    pub(super) server: RefCell<Option<Rc<SimServer>>>,
}

impl SimHost {
    /// Ends the process: what it has sent may arrive.
    pub(super) fn end(&self) {
        self.client.die();
        self.process.die();
    }

    pub(super) fn is_alive(&self) -> bool {
        if self.client.is_dead() {
            self.process.die();
        }
        !self.process.is_dead()
    }

    /// Returns true if it answers nobody.
    pub(super) fn is_silent(&self) -> bool {
        !self.is_alive() || self.process.is_asleep() || self.client.cut.is_shut()
    }
}

/// How often something has happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) reads: u64,
    pub(super) writes: u64,
    /// Commands that were refused, or had no reply.
    pub(super) refusals: u64,
    pub(super) maps: u64,
    pub(super) takeovers: u64,
    pub(super) wrong_takeovers: u64,
    pub(super) deaths: u64,
    pub(super) sleeps: u64,
    pub(super) cuts: u64,
    pub(super) left: u64,
    pub(super) libraries: u64,
    pub(super) splits: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.refusals += other.refusals;
        self.maps += other.maps;
        self.takeovers += other.takeovers;
        self.wrong_takeovers += other.wrong_takeovers;
        self.deaths += other.deaths;
        self.sleeps += other.sleeps;
        self.cuts += other.cuts;
        self.left += other.left;
        self.libraries += other.libraries;
        self.splits += other.splits;
    }
}

/// See the module's description.
pub(super) struct SimWorld {
    seed: u64,
    pub(super) sim: Sim,
    /// All processes, the dead ones included.
    pub(super) hosts: RefCell<Vec<Rc<SimHost>>>,
    pub(super) ledger: RefCell<ClientLedger>,
    seen: RefCell<Seen>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    numbers: Cell<u64>,
    pub(super) nodes: Cell<u8>,
    /// True once all trouble has ended.
    pub(super) healing: Cell<bool>,
    /// True once the cluster has become whole.
    pub(super) is_whole: Cell<bool>,
    /// The number of the last map that was checked.
    pub(super) checked: Cell<u64>,
    /// Libraries that were loaded.
    pub(super) libraries: RefCell<BTreeSet<Box<[u8]>>>,
}

impl SimWorld {
    pub(super) fn new(seed: u64) -> Rc<Self> {
        Rc::new(Self {
            seed,
            sim: Sim::new(seed),
            hosts: RefCell::default(),
            ledger: RefCell::new(ClientLedger::new(ALL_KEYS)),
            seen: RefCell::default(),
            tasks: RefCell::default(),
            numbers: Cell::new(0),
            nodes: Cell::new(0),
            healing: Cell::new(false),
            is_whole: Cell::new(false),
            checked: Cell::new(0),
            libraries: RefCell::default(),
        })
    }

    /// Runs a task. If it panics, so does the simulation.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + 'static) {
        self.tasks.borrow_mut().push(tokio::task::spawn_local(work));
    }

    /// Ends the simulation if a task has panicked.
    pub(super) async fn check_tasks(&self) {
        let all = self.tasks.take();
        let (done, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|task| task.is_finished());
        self.tasks.borrow_mut().extend(left);
        for task in done {
            if let Err(error) = task.await
                && let Ok(panic) = error.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }

    /// Ends the simulation: a promise is broken.
    pub(super) fn violated(&self, what: fmt::Arguments<'_>) -> ! {
        for event in self.sim.last_events() {
            println!("{event}");
        }
        panic!("seed {}: {what}", self.seed)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Seen)) {
        count(&mut self.seen.borrow_mut());
    }

    pub(super) fn seen(&self) -> Seen {
        let ledger = self.ledger.borrow();
        let libraries = self.libraries.borrow().len() as u64;
        let (reads, writes, maps) = (ledger.reads, ledger.writes, self.checked.get());
        Seen { reads, writes, maps, libraries, ..self.seen.borrow().clone() }
    }

    /// Returns a number that it has not returned before.
    pub(super) fn next(&self) -> u64 {
        self.numbers.set(self.numbers.get() + 1);
        self.numbers.get()
    }

    pub(super) fn is_healing(&self) -> bool {
        self.healing.get()
    }

    // ---- machines ----------------------------------------------------------------------------

    /// Starts a process of a node.
    pub(super) fn start(self: &Rc<Self>, node: u8) -> Rc<SimHost> {
        self.nodes.set(self.nodes.get().max(node + 1));
        let client = self.sim.client(0);
        client.pace.store(1 + self.sim.below(12_000), std::sync::atomic::Ordering::SeqCst);
        client.late_ms.store(3000, std::sync::atomic::Ordering::SeqCst);
        let process = Arc::new(SimProcess::default());
        let host = Rc::new(SimHost { node, process, client, server: RefCell::default() });
        self.hosts.borrow_mut().push(host.clone());
        let (world, own) = (self.clone(), host.clone());
        let life = async move {
            let ended = match SimServer::join(world.clone(), own.clone()).await {
                Ok(server) => {
                    server.note(format_args!("has joined as node {node}"));
                    agent::run(&server).await.map(|()| world.count(|seen| seen.left += 1))
                }
                Err(error) => Err(error.context("joining")),
            };
            world.sim.note(format_args!("a process of node {node} ends: {ended:?}"));
            own.end();
        };
        let task = host.process.task(life);
        self.spawn(async move {
            task.await;
        });
        host
    }

    /// Returns the hosts whose processes are alive.
    pub(super) fn living(&self) -> Vec<Rc<SimHost>> {
        self.hosts.borrow().iter().filter(|host| host.is_alive()).cloned().collect()
    }

    /// Returns all servers that have joined, and did not end.
    pub(super) fn servers(&self) -> Vec<Rc<SimServer>> {
        let living = self.living();
        living.iter().filter_map(|host| host.server.borrow().clone()).collect()
    }

    /// Returns true if no process answers for a life: it has ended, or has not joined yet.
    pub(super) fn is_silent(&self, life: Life) -> bool {
        self.servers().iter().all(|server| server.life() != life || server.host.is_silent())
    }

    /// Returns one of some things.
    pub(super) fn one_of<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        let at = self.sim.below(all.len().max(1) as u64);
        all.get(usize::try_from(at).unwrap())
    }

    // ---- promises ----------------------------------------------------------------------------

    /// Checks that no other process may answer for a shard that a server begins to serve.
    pub(super) fn assert_alone(&self, server: &SimServer, shard: u16) {
        let left_of =
            |it: &SimServer| it.journal.lease().map(|lease| lease.left()).unwrap_or_default();
        if left_of(server).is_zero() {
            return;
        }
        for other in self.servers().iter().filter(|other| other.life() != server.life()) {
            let left = left_of(other);
            if other.has(shard) && !left.is_zero() {
                self.violated(format_args!(
                    "lives {} and {} serve shard {shard}: the lease of the latter has {left:?} left",
                    server.life(),
                    other.life()
                ));
            }
        }
    }

    /// Checks that a map that a server believes is in the sequence of maps.
    pub(super) fn believes(&self, map: &ClusterMap) {
        let number = map.number();
        if self.map(number).as_ref() != Some(map) {
            self.violated(format_args!("a map {number} is believed that is not in the sequence"));
        }
    }

    // ---- clients -----------------------------------------------------------------------------

    /// Lives through all trouble, heals, and is checked.
    pub(super) async fn live(self: Rc<Self>) {
        self.start(0);
        for _ in 0..CLIENTS {
            self.spawn(self.clone().be_client());
        }
        self.spawn(self.clone().watch_maps());
        self.trouble().await;
        self.healing.set(true);
        self.heal().await;
        self.check_whole().await;
        self.check_tasks().await;
    }

    /// Sends commands until all trouble has ended.
    async fn be_client(self: Rc<Self>) {
        while !self.is_healing() {
            tokio::time::sleep(Duration::from_millis(1 + self.sim.below(120))).await;
            let keys = choose_keys(&self);
            let is_write = self.sim.below(2) == 0;
            let servers = self.servers();
            let serves = |it: &&Rc<SimServer>| it.has(it.shard_of(keys[0]));
            let serving: Vec<_> = servers.iter().filter(serves).cloned().collect();
            // Some clients do not know who serves the key.
            let to = if self.sim.below(10) > 0 { &serving } else { &servers };
            let Some(server) = self.one_of(to).cloned() else { continue };
            let command = self.ledger.borrow_mut().send(&keys, is_write);
            let own = self.clone();
            let process = server.host.process.clone();
            let serving = process.task(async move { own.serve(&server, &command).await });
            let (tell, told) = oneshot::channel();
            self.spawn(async move {
                serving.await;
                let _ = tell.send(());
            });
            // Without a reply, the client does not know.
            let _ = timeout(PATIENCE, told).await;
        }
    }

    /// Runs a command on a server, and checks its reply when that is shown.
    async fn serve(&self, server: &SimServer, command: &SentCommand) {
        match server.run(command).await {
            Ok(number) => {
                let (kind, key) =
                    (if command.is_write { "write" } else { "read" }, command.keys[0]);
                server.note(format_args!("{kind} of key {key}: {number}"));
                if let Err(what) = self.ledger.borrow_mut().reply(command, number) {
                    self.violated(format_args!("life {}: {what}", server.life()));
                }
            }
            Err(Denied::Elsewhere | Denied::Uncertain) => self.count(|seen| seen.refusals += 1),
        }
    }

    /// Waits for a part of a lease.
    pub(super) async fn wait(&self, most: Duration) {
        let ms = u64::try_from(most.as_millis()).unwrap();
        tokio::time::sleep(Duration::from_millis(self.sim.below(ms.max(1)))).await;
    }

    /// Lets some leases pass.
    pub(super) async fn leases(&self, leases: u32) {
        tokio::time::sleep(leases * LEASE).await;
    }
}
