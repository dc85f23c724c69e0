//! One life of a server: runs commands as a worker does, shows their replies under the lease, and takes,
//! flushes and gives shards.

use super::ledger::SentCommand;
use super::world::{SimHost, SimWorld};
use super::{LEASE, PLAIN_KEYS, SHARDS, key_name};
use crate::checkpoint::offline_options;
use crate::clock::Clock;
use crate::cluster::{
    ClusterMap, ClusterSeat, GivenShard, Life, MapRefusal, MapShard, NodeAddress, NodeId,
    ServerRole,
};
use crate::directory::Location;
use crate::journal::{Journal, Lsn};
use crate::materialise::hand_over;
use crate::need::{Fault, Need};
use crate::partition::{DetachedShard, Partition};
use crate::place::Place;
use crate::shard::Shard;
use crate::slot::slot_of;
use crate::value::{Str, Value};
use anyhow::{Context, Result, bail};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, RwLock};
use tokio::time::{Instant, timeout};

/// How long commands may wait for the last flush of a shard that is given away.
const HELD: Duration = Duration::from_secs(2);

/// How long a reply waits for the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause between two looks at the journal.
const POLL: Duration = Duration::from_millis(2);

/// The reason why a command has no reply.
pub(super) enum Denied {
    /// It was not run.
    Elsewhere,
    /// It may have been run.
    Uncertain,
}

/// See the module's description.
pub(super) struct SimServer {
    pub(super) host: Rc<SimHost>,
    pub(super) world: Rc<SimWorld>,
    pub(super) seat: ClusterSeat,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) partition: RefCell<Partition>,
    clock: Clock,
    /// The barrier of the worker: commands share it, shards come and go alone.
    whole: RwLock<()>,
    locks: Vec<Mutex<()>>,
    /// The newest map that it has read.
    pub(super) map: RefCell<Arc<ClusterMap>>,
    /// Shards that are being taken or given.
    pub(super) busy: RefCell<BTreeSet<u16>>,
    /// Shards that are being handed over.
    handing: RefCell<BTreeSet<u16>>,
    /// Lsns up to which engines must have flushed, before other journals leave the lists.
    pub(super) adopted: RefCell<BTreeMap<u16, Lsn>>,
    pub(super) is_leaving: Cell<bool>,
    pub(super) is_forgetting: Cell<bool>,
}

fn number(value: &Value) -> u64 {
    match value {
        Value::Absent => 0,
        Value::Str(text) => std::str::from_utf8(&text.whole().unwrap()).unwrap().parse().unwrap(),
        _ => panic!("no other values are written"),
    }
}

impl SimServer {
    pub(super) async fn join(world: Rc<SimWorld>, host: Rc<SimHost>) -> Result<Rc<Self>> {
        let store = Place::within(host.client.clone(), "data".into(), "sim");
        let location = Location { store, journal: None };
        let mut options = offline_options(&location).await?;
        (options.databases, options.lease, options.default_shards) = (1, LEASE, SHARDS);
        options.store_timeout = PATIENCE;
        let address = NodeAddress { host: "127.0.0.1".to_owned(), port: 7000, tls_port: None };
        let clock = Clock::simulated(world.sim.below(5_000_000));
        let node = (NodeId([host.node; 20]), &address);
        let (directory, seat) =
            ClusterSeat::join(options, clock.clone(), node, ServerRole::Owner).await?;
        let map = seat.maps().newest().await?.context("there is no map")?;
        let journal = directory.journal.clone();
        let partition = directory.into_partitions(1, 1).0.remove(0);
        let keys = super::ALL_KEYS as usize;
        let server = Rc::new(Self {
            host,
            world,
            seat,
            journal,
            partition: RefCell::new(partition),
            clock,
            whole: RwLock::default(),
            locks: (0..keys).map(|_| Mutex::default()).collect(),
            map: RefCell::new(map),
            busy: RefCell::default(),
            handing: RefCell::default(),
            adopted: RefCell::default(),
            is_leaving: Cell::new(false),
            is_forgetting: Cell::new(false),
        });
        server.host.server.replace(Some(server.clone()));
        Ok(server)
    }

    pub(super) fn life(&self) -> Life {
        self.seat.life()
    }

    pub(super) fn has(&self, shard: u16) -> bool {
        self.partition.borrow().shards.contains_key(&shard)
    }

    /// Returns the shard of a key.
    pub(super) fn shard_of(&self, key: u64) -> u16 {
        self.partition.borrow().store.layout().shard_of(slot_of(&key_name(key)))
    }

    pub(super) fn note(&self, event: std::fmt::Arguments<'_>) {
        self.world.sim.note(format_args!("life {} {event}", self.life()));
    }

    // ---- commands ----------------------------------------------------------------------------

    /// Runs a command, and returns its reply once it may be shown.
    pub(super) async fn run(&self, command: &SentCommand) -> Result<u64, Denied> {
        let (shown, round) = self.execute(command).await?;
        timeout(PATIENCE, self.until_durable(round)).await.unwrap_or(Err(Denied::Uncertain))?;
        let Some(lease) = self.journal.lease() else { return Err(Denied::Uncertain) };
        match lease.confirm(LEASE).await {
            Ok(()) => Ok(shown),
            Err(_) => Err(Denied::Uncertain),
        }
    }

    /// Runs a command under locks of its keys; returns the number that it shows, and the round.
    async fn execute(&self, command: &SentCommand) -> Result<(u64, u64), Denied> {
        let _here = self.whole.read().await;
        let mut locks = Vec::with_capacity(command.keys.len());
        for key in &command.keys {
            locks.push(self.locks[*key as usize].lock().await);
        }
        loop {
            let plan = {
                let partition = &mut *self.partition.borrow_mut();
                match self.handle(partition, command) {
                    Ok(done) => return done,
                    Err(need) => partition.plan_load(vec![need]).map_err(|_| Denied::Elsewhere)?,
                }
            };
            let loaded = plan.run(&Handle::current()).await;
            let finished = self.partition.borrow_mut().finish_load(loaded);
            if let Err(error) = finished {
                self.note(format_args!("a key cannot be loaded: {error:?}"));
                return Err(Denied::Elsewhere);
            }
        }
    }

    /// Runs the handler of a command.
    ///
    /// # Errors
    /// If data is missing.
    fn handle(
        &self,
        partition: &mut Partition,
        command: &SentCommand,
    ) -> Result<Result<(u64, u64), Denied>, Need> {
        partition.store.begin(self.clock.now_ms(), true);
        let mut numbers = Vec::with_capacity(command.keys.len());
        for key in &command.keys {
            match partition.store.entry(0, &key_name(*key)) {
                Ok(entry) => numbers.push(entry.map_or(0, |entry| number(&entry.value))),
                Err(Fault::Miss(need)) => return Err(*need),
                Err(_) => return Ok(Err(Denied::Elsewhere)),
            }
        }
        let shown = numbers[0];
        if numbers.iter().any(|number| *number != shown) {
            self.world.violated(format_args!("a record is torn: {:?} {numbers:?}", command.keys));
        }
        if !command.is_write {
            let seen = partition.store.seen();
            // What was loaded shows with the open round.
            if seen > partition.closed() && partition.commit(self.clock.now_ms()).is_err() {
                return Ok(Err(Denied::Elsewhere));
            }
            return Ok(Ok((shown, seen)));
        }
        for key in &command.keys {
            match partition.store.entry_mut(0, &key_name(*key)) {
                Ok(mut entry) => {
                    entry.value = Value::Str(Str::new((shown + 1).to_string().as_bytes()));
                }
                Err(Fault::Miss(_)) => panic!("it was just read"),
                Err(_) => return Ok(Err(Denied::Elsewhere)),
            }
        }
        if partition.commit(self.clock.now_ms()).is_err() {
            return Ok(Err(Denied::Elsewhere));
        }
        Ok(Ok((shown + 1, partition.closed())))
    }

    async fn until_durable(&self, round: u64) -> Result<(), Denied> {
        loop {
            let last = {
                let mut partition = self.partition.borrow_mut();
                if partition.observe_durable() >= round {
                    return Ok(());
                }
                partition.last_lsn()
            };
            if self.journal.failed().is_some() {
                return Err(Denied::Uncertain);
            }
            self.journal.request_sync(last);
            tokio::time::sleep(POLL).await;
        }
    }

    // ---- shards ------------------------------------------------------------------------------

    /// Takes shards with the same list of journals.
    pub(super) async fn take(&self, entries: &[MapShard]) -> Result<()> {
        let life = self.life();
        let given: Vec<_> = entries.iter().map(|entry| GivenShard::of(entry, life)).collect();
        let taken = self.seat.take(&given).await?;
        let is_whole = given.iter().all(|(one, _)| one.journals.is_empty() && one.is_begun);
        for one in taken {
            let (id, adopted) = (one.shard.id, one.adopted);
            self.attach(one.shard).await?;
            self.note(format_args!("serves shard {id}"));
            self.world.assert_alone(self, id);
            if !is_whole {
                self.adopted.borrow_mut().insert(id, adopted);
            }
        }
        Ok(())
    }

    async fn attach(&self, shard: Shard) -> Result<()> {
        let _whole = self.whole.write().await;
        let now_ms = self.clock.now_ms();
        let mut partition = self.partition.borrow_mut();
        partition.commit(now_ms).map_err(|failed| failed.error)?;
        if let Err(refused) = partition.attach(shard) {
            bail!("a shard cannot be attached: {}", refused.why);
        }
        partition.commit(now_ms).map_err(|failed| failed.error)?;
        Ok(())
    }

    /// Stops serving a shard, and flushes it; `None`: it stays.
    async fn stop(&self, id: u16) -> Result<Option<DetachedShard>> {
        let mut detached = {
            let _whole = self.whole.write().await;
            let mut partition = self.partition.borrow_mut();
            if partition.commit(self.clock.now_ms()).is_err() {
                return Ok(None);
            }
            let Ok(detached) = partition.detach(id) else { return Ok(None) };
            detached
        };
        self.handing.borrow_mut().remove(&id);
        if !matches!(timeout(HELD, detached.flush(&self.journal)).await, Ok(Ok(()))) {
            self.attach(detached.into_shard()).await?;
            return Ok(None);
        }
        self.adopted.borrow_mut().remove(&id);
        Ok(Some(detached))
    }

    /// Gives a shard to another life, or to nobody.
    ///
    /// # Errors
    /// If this life can go on no more.
    pub(super) async fn give(&self, id: u16, to: Option<Life>) -> Result<()> {
        let Some(detached) = self.stop(id).await? else { return Ok(()) };
        let stored = detached.stored();
        let _ = detached.close(&self.journal).await;
        let life = self.life();
        let given = self.seat.amend(|draft| {
            draft.note_stored(id, life, stored)?;
            match to {
                Some(to) => draft.give(id, life, to),
                None => draft.park(id, life),
            }
        });
        match given.await? {
            Ok(map) => {
                self.note(format_args!("gave shard {id} to {to:?}"));
                self.learn(&map);
                Ok(())
            }
            Err(MapRefusal::NotOpen(ended)) if ended == life => bail!("it is sealed"),
            // It is taken again, if the map still says so.
            Err(refusal) => {
                self.note(format_args!("keeps shard {id}: {refusal}"));
                Ok(())
            }
        }
    }

    /// Splits a shard, as a user asks for it.
    ///
    /// # Errors
    /// If this life can go on no more.
    pub(super) async fn split(&self, id: u16) -> Result<()> {
        let map = self.map.borrow().clone();
        let Some(lower) = map.lower_half(id) else { return Ok(()) };
        if !matches!(self.seat.can_split(&map.shards()[usize::from(id)]).await, Ok(true)) {
            return Ok(());
        }
        let Some(detached) = self.stop(id).await? else { return Ok(()) };
        let (life, stored) = (self.life(), detached.stored());
        if let Err(error) = detached.close_to_split(&self.journal, lower).await {
            self.note(format_args!("cannot close shard {id}: {error:#}"));
            return Ok(());
        }
        let branch = match self.seat.branch(&map, id).await {
            Ok(branch) => branch,
            Err(error) => {
                self.note(format_args!("cannot split shard {id}: {error:#}"));
                return Ok(());
            }
        };
        let into = branch.id;
        let split = self.seat.amend(|draft| {
            draft.note_stored(id, life, stored)?;
            draft.split(id, life, into)
        });
        match split.await? {
            Ok(map) => {
                self.note(format_args!("split shard {id} into {into}"));
                self.world.count(|seen| seen.splits += 1);
                self.learn(&map);
                Ok(())
            }
            Err(MapRefusal::NotOpen(ended)) if ended == life => bail!("it is sealed"),
            Err(refusal) => {
                self.note(format_args!("does not split shard {id}: {refusal}"));
                let _ = branch.remove().await;
                Ok(())
            }
        }
    }

    /// Divides the slots as a map does.
    pub(super) fn follow_division(&self, map: &ClusterMap) {
        let partition = self.partition.borrow();
        let layout = partition.store.layout();
        for (id, slots) in (0..).zip(map.division()) {
            if layout.slots_of(id) != slots && partition.shards.contains_key(&id) {
                self.world
                    .violated(format_args!("the slots of shard {id} change while it is here"));
            }
        }
        layout.divide(map.division());
    }

    /// Hands the rows of a shard over while it is served, and flushes its engine.
    pub(super) async fn flush(&self, id: u16) -> Result<()> {
        let (stay, engine, cut) = {
            let mut partition = self.partition.borrow_mut();
            let Some(stay) = partition.stay(id) else { return Ok(()) };
            if !self.handing.borrow_mut().insert(id) {
                return Ok(());
            }
            if partition.shards[&id].can_cut() {
                partition.cut(id);
            }
            let again = partition.shards[&id].handing();
            let cut = again.or_else(|| partition.take_cut(id));
            (stay, partition.shards[&id].engine().clone(), cut)
        };
        let handing = async {
            if let Some(cut) = cut {
                let seq = hand_over(
                    engine.clone(),
                    self.journal.clone(),
                    cut.clone(),
                    Default::default(),
                )
                .await?;
                let mut partition = self.partition.borrow_mut();
                if partition.is_here(stay)
                    && let Some(shard) = partition.shards.get_mut(&id)
                {
                    drop(shard.handed_over(cut.lsn, seq));
                }
            }
            engine.flush().await
        };
        let flushed = handing.await;
        let mut partition = self.partition.borrow_mut();
        if partition.is_here(stay) {
            self.handing.borrow_mut().remove(&id);
            partition.observe_flushed();
        }
        flushed
    }

    /// Returns the lsn up to which all of a shard is flushed; `None`: it is not here.
    pub(super) fn flushed(&self, id: u16) -> Option<Lsn> {
        let partition = self.partition.borrow();
        let shard = partition.shards.get(&id)?;
        Some(if shard.unflushed_ops() == 0 { Lsn::MAX } else { shard.flushed() })
    }

    /// Returns a shard whose engine has closed itself.
    pub(super) fn closed_engine(&self) -> Option<u16> {
        let partition = self.partition.borrow();
        partition.shards.values().find(|it| it.engine().closed().is_some()).map(|it| it.id)
    }

    pub(super) fn learn(&self, map: &Arc<ClusterMap>) {
        self.world.believes(map);
        let mut known = self.map.borrow_mut();
        if known.number() < map.number() {
            *known = map.clone();
        }
    }

    /// Returns the number of keys of the shards that are here.
    pub(super) fn keys(&self) -> u64 {
        self.partition.borrow().totals(0).0
    }

    /// Waits for a pause of the agent.
    pub(super) async fn rest(&self) {
        let step = LEASE / 6;
        let more = self.world.sim.below(step.as_millis() as u64);
        tokio::time::sleep(step / 2 + Duration::from_millis(more)).await;
    }

    /// Ends its journal in order, and says so in the map. It must own nothing.
    pub(super) async fn release(&self) -> Result<()> {
        let begun = Instant::now();
        self.seat.journal.close_simulated().await?;
        timeout(LEASE, self.seat.release()).await??;
        self.note(format_args!("has left in {:?}", begun.elapsed()));
        Ok(())
    }
}

/// Returns the keys of a command: one counter, or two that are always increased together.
pub(super) fn choose_keys(world: &SimWorld) -> Vec<u64> {
    let key = world.sim.below(super::ALL_KEYS);
    match key < PLAIN_KEYS {
        true => vec![key],
        false => {
            let first = key - (key - PLAIN_KEYS) % 2;
            vec![first, first + 1]
        }
    }
}
