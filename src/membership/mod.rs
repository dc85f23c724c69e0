//! Takes part in a cluster (RFC 16, RFC 20): joins it, takes the shards that the map gives to this
//! server, gives shards away, notices servers that have ended and takes their shards over, and leaves.
//!
//! One task, the *agent*, looks at the newest map in steps and begins what follows from it; each shard
//! that is being taken or given has a task of its own. Nothing that the agent believes of others is
//! needed for safety: a server owns its shards as long as its own journal is unsealed.

mod beats;
mod joining;
mod libraries;
mod mirroring;
mod moving;
mod splitting;
mod spreading;
mod standing_by;
mod suspicion;
mod taking;

pub(crate) use beats::{answer_beat, answers, tell_of};
pub(crate) use joining::{Opened, open};

use crate::cluster::{Cluster, ServedState};
use crate::config::ClusterReplica;
use crate::node::{Node, ShutdownRequest};
use crate::worker::{Peers, Worker};
use flagstone_storage::cluster::{
    ClusterMap, ClusterSeat, Life, MapRefusal, MapShard, MemberState,
};
use flagstone_storage::journal::Lsn;
use mirroring::Mirroring;
use splitting::PutOffSplits;
use spreading::Spreading;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use suspicion::Suspicion;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Parts of a lease that pass between two steps of the agent, and between two beats.
const STEPS: u32 = 6;

/// Leases between two looks for a newer map, if no other server has named one.
const LOOK: u32 = 3;

/// Pause before a shard that could not be taken or given is tried again, in leases.
const RETRY: u32 = 1;

/// How long the same trouble is not logged again, and how many kinds of it are remembered.
const TOLD: Duration = Duration::from_secs(60);
const MAX_TOLD: usize = 64;

/// Error of a task whose worker has ended.
const GONE: &str = "a worker is gone";

/// The parts of the process that take part in a cluster.
#[derive(Clone)]
pub(crate) struct Seated {
    pub(crate) node: Arc<Node>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) seat: Arc<ClusterSeat>,
    pub(crate) cluster: Arc<Cluster>,
}

/// Runs a closure on the worker of a shard.
async fn on_worker<T, F, Fut>(own: &Seated, shard: u16, job: F) -> anyhow::Result<T>
where
    T: Send + 'static,
    F: FnOnce(Rc<Worker>) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let worker = own.node.worker_of_shard(shard);
    own.peers.on_worker(worker, true, job).await.map_err(|_| anyhow::anyhow!(GONE))
}

/// The end of a task on some shards.
struct Handled {
    shards: Vec<u16>,
    outcome: anyhow::Result<ShardChange>,
}

/// A task's result.
enum ShardChange {
    /// The shards were taken, and lack rows of other journals, or anything at all, in their engines
    /// until these have flushed up to an lsn; `None`: they lack nothing. Those in `refused` were not,
    /// each for a reason.
    Taken {
        up_to: Option<Lsn>,
        refused: Vec<(u16, String)>,
    },
    Given,
    Split,
    /// The shard stays whole. `was_held`: commands have waited for it.
    Unsplit {
        why: String,
        was_held: bool,
    },
}

/// See the module's description.
struct Agent {
    own: Seated,
    tasks: JoinSet<Handled>,
    /// Shards that a task takes or gives, or that are tried again at some time.
    busy: BTreeSet<u16>,
    again: BTreeMap<u16, Instant>,
    put_off_splits: PutOffSplits,
    /// Shards whose engines have not flushed all that other journals have of them: the lsns up to
    /// which they must.
    adopted: BTreeMap<u16, Lsn>,
    suspicion: Suspicion,
    /// The task that forgets ended lives.
    forgetting: Option<JoinHandle<()>>,
    spreading: Spreading,
    /// Shards of others, on a replica.
    mirroring: Option<Mirroring>,
    /// True once a map had a server that may be given shards.
    has_seen_owner: bool,
    looked: Instant,
    /// Trouble that was logged lately.
    told: BTreeMap<String, Instant>,
    /// Since when the process is to end: it keeps no shard.
    ending: Option<Instant>,
}

/// A task that ends with its handle.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The agent of a server that takes part.
pub(crate) struct Membership {
    seat: Arc<ClusterSeat>,
    cluster: Arc<Cluster>,
    leaving: watch::Sender<bool>,
    agent: Mutex<Option<JoinHandle<()>>>,
}

impl Membership {
    /// Begins to take part.
    pub(crate) fn begin(
        (seat, cluster): (Arc<ClusterSeat>, Arc<Cluster>),
        node: Arc<Node>,
        peers: Arc<Peers>,
    ) -> Self {
        if node.config.settings().cluster_replica != ClusterReplica::No {
            node.health.replica.begin_mirroring();
        }
        let own = Seated { node, peers, seat: seat.clone(), cluster: cluster.clone() };
        let (leaving, told) = watch::channel(false);
        let agent = own.node.background.clone().spawn(run(own, told));
        Self { seat, cluster, leaving, agent: Mutex::new(Some(agent)) }
    }

    /// Gives all shards to others, unless the server is to end at once.
    pub(crate) async fn leave(&self, request: ShutdownRequest) {
        if request.now {
            return self.end();
        }
        self.leaving.send_replace(true);
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut agent) = agent.map(AbortOnDrop) else { return };
        if let Err(error) = (&mut agent.0).await {
            tracing::error!(%error, "the server's part in the cluster has ended too early");
        }
    }

    /// Returns how long leaving may take, with the change of the map that is under way before and after it.
    pub(crate) fn leaving_limit(&self) -> Duration {
        (moving::LEAVING + 2 * LOOK) * self.cluster.map().lease()
    }

    /// Returns the shards that the map gives to this server.
    pub(crate) fn owned(&self) -> Vec<u16> {
        self.cluster.map().owned_by(self.cluster.life()).map(|it| it.id).collect()
    }

    /// Ends the agent: shards that this server still has are taken over by others.
    pub(crate) fn end(&self) {
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(agent.map(AbortOnDrop));
    }

    /// Notes that the server has left. `is_stored`: everything is, and its journal is closed.
    pub(crate) async fn release(&self, is_stored: bool) {
        let map = self.cluster.map();
        if !is_stored || !self.owned().is_empty() {
            return;
        }
        let released = tokio::time::timeout(map.lease(), self.seat.release()).await;
        if !matches!(released, Ok(Ok(()))) {
            tracing::warn!("other servers have to notice that this one has left");
        }
    }
}

/// Takes part until the server leaves the cluster: then gives all shards away, and returns.
async fn run(own: Seated, mut leaving: watch::Receiver<bool>) {
    let _following = libraries::follow(&own);
    let (suspicion, spreading) = (Suspicion::begin(&own), Spreading::new(own.clone()));
    let (tasks, looked) = (JoinSet::new(), Instant::now());
    let is_replica = own.node.health.replica.is_mirroring();
    let mirroring = is_replica.then(|| Mirroring::new(own.clone(), suspicion.heard().clone()));
    let mut agent = Agent {
        own,
        tasks,
        busy: BTreeSet::new(),
        again: BTreeMap::new(),
        put_off_splits: PutOffSplits::default(),
        adopted: BTreeMap::new(),
        suspicion,
        forgetting: None,
        spreading,
        mirroring,
        has_seen_owner: false,
        looked,
        told: BTreeMap::new(),
        ending: None,
    };
    let step = agent.lease() / STEPS;
    loop {
        let hinted = agent.own.cluster.hinted.notified();
        let is_hinted = tokio::select! {
            () = hinted => true,
            () = tokio::time::sleep(step) => false,
            Some(handled) = agent.tasks.join_next() => {
                agent.ended(handled);
                false
            }
            _ = leaving.wait_for(|leaving| *leaving) => break,
        };
        if is_hinted || agent.looked.elapsed() > LOOK * agent.lease() {
            agent.look().await;
        }
        if let Err(error) = agent.step().await {
            tracing::error!("this server cannot go on in the cluster: {error:#}");
            agent.own.node.ending.end(ShutdownRequest { now: true });
            return;
        }
    }
    if let Err(error) = agent.leave().await {
        tracing::error!("this server cannot leave the cluster in order: {error:#}");
    }
}

impl Agent {
    fn lease(&self) -> Duration {
        self.own.cluster.map().lease()
    }

    fn life(&self) -> Life {
        self.own.cluster.life()
    }

    /// Reads the newest map.
    async fn look(&mut self) {
        self.looked = Instant::now();
        match self.own.seat.maps().newest().await {
            Ok(Some(map)) => self.own.cluster.learn(&map),
            Ok(None) => tracing::error!("the map of the cluster is gone"),
            Err(error) => tracing::warn!(%error, "the map of the cluster cannot be read"),
        }
    }

    /// Begins what follows from the newest map.
    ///
    /// # Errors
    /// If this server can own nothing any more.
    async fn step(&mut self) -> anyhow::Result<()> {
        let map = self.own.cluster.map();
        match map.member(self.life()).map(|member| member.state) {
            Some(MemberState::Open) => {}
            _ => anyhow::bail!("another server has taken over: life {} is sealed", self.life()),
        }
        let engines = &self.own.node.engines;
        if let Some(shard) = self.mirroring.is_none().then(|| engines.fenced()).flatten() {
            // A process that slept while it took the shard has gone on, and begun to merge there. Others can open
            // the engine again; this life would lack rows that only its journal has.
            anyhow::bail!("another process has opened the files of shard {shard}");
        }
        self.follow_address(&map).await?;
        if !self.follow_role(&map).await? {
            return Ok(());
        }
        self.follow_division(&map).await?;
        self.spreading.keep(&self.own.cluster.others());
        self.again.retain(|_, at| *at > Instant::now());
        let own = Some(self.life());
        self.own.cluster.sight.keep_untaken(|id| map.shards()[usize::from(id)].owner == own);
        self.take_what_is_given(&map);
        self.take_parked(&map).await?;
        self.unlist_flushed(&map).await?;
        self.split_one(&map);
        self.move_some(&map);
        if let Some(mirroring) = &mut self.mirroring {
            mirroring.keep(&map);
        }
        self.suspect(&map).await?;
        self.succeed(&map).await?;
        self.fail_over().await?;
        self.forget_ended(&map);
        Ok(())
    }

    /// Notes in the map that this server is at another address, as CONFIG SET may have changed it.
    async fn follow_address(&mut self, map: &ClusterMap) -> anyhow::Result<()> {
        let address = joining::address_of(&self.own.node.config.settings());
        let (Ok(address), Some(member)) = (address, map.member(self.life())) else { return Ok(()) };
        if member.address == address {
            return Ok(());
        }
        let life = self.life();
        self.change("another address", |draft| draft.readdress(life, &address)).await
    }

    /// Returns true if nothing is being done with a shard, and nothing has just failed.
    fn is_free(&self, shard: u16) -> bool {
        !self.busy.contains(&shard) && !self.again.contains_key(&shard)
    }

    /// Begins to take the shards that the map gives to this server: those with the same journals
    /// together, but each alone that could not be taken: one that is damaged must not keep others from being
    /// served.
    fn take_what_is_given(&mut self, map: &ClusterMap) {
        let mut groups: BTreeMap<(&[Life], Option<u16>), Vec<&MapShard>> = BTreeMap::new();
        for entry in map.owned_by(self.life()) {
            let is_new = self.own.cluster.state(entry.id) == ServedState::Elsewhere;
            if is_new && self.is_free(entry.id) {
                let is_alone = self.own.cluster.sight.is_untaken(entry.id);
                let alone = is_alone.then_some(entry.id);
                groups.entry((&entry.journals, alone)).or_default().push(entry);
            }
        }
        for group in groups.into_values() {
            let shards: Vec<u16> = group.iter().map(|entry| entry.id).collect();
            self.busy.extend(&shards);
            let taking = taking::take(self.own.clone(), group.into_iter().cloned().collect());
            self.tasks.spawn(async move { Handled { shards, outcome: taking.await } });
        }
    }

    /// Takes as many parked shards as this server should have.
    async fn take_parked(&mut self, map: &ClusterMap) -> anyhow::Result<()> {
        let life = self.life();
        let parked: Vec<u16> =
            map.shards().iter().filter(|it| it.owner.is_none()).map(|it| it.id).collect();
        let lack = map.balance().iter().find(|one| one.life == life).map_or(0, |one| one.lack());
        if parked.is_empty() || lack == 0 {
            return Ok(());
        }
        self.change("taking parked shards", |draft| {
            let parked = draft.map().shards().iter().filter(|it| it.owner.is_none());
            let parked: Vec<u16> = parked.map(|it| it.id).take(lack).collect();
            if parked.is_empty() {
                return Err(MapRefusal::NoChange);
            }
            parked.into_iter().try_for_each(|shard| draft.take_parked(shard, life))
        })
        .await
    }

    /// Takes the journals of other lives from the lists of shards whose engines have it all.
    async fn unlist_flushed(&mut self, map: &ClusterMap) -> anyhow::Result<()> {
        let mut flushed = Vec::new();
        for (shard, lsn) in self.adopted.clone() {
            // One that is being given away may stay.
            if self.busy.contains(&shard) {
                continue;
            }
            match taking::flush(&self.own, shard, lsn).await {
                Some(progress) if progress.is_done => flushed.push((shard, progress.stored)),
                Some(_) => {}
                None => drop(self.adopted.remove(&shard)),
            }
        }
        let life = self.life();
        let is_listed = |(shard, _): &(u16, Lsn)| {
            let entry = map.shards().get(usize::from(*shard));
            entry.is_some_and(|it| {
                it.owner == Some(life) && !(it.is_begun && it.journals.len() == 1)
            })
        };
        for (shard, _) in &flushed {
            self.adopted.remove(shard);
        }
        flushed.retain(is_listed);
        if flushed.is_empty() {
            return Ok(());
        }
        self.change("dropping journals that are flushed", |draft| {
            // A shard that the newest map does not allow keeps no other one listed.
            let noted = flushed.iter().filter(|(shard, stored)| {
                draft.note_flushed(*shard, life).is_ok()
                    && draft.note_stored(*shard, life, *stored).is_ok()
            });
            if noted.count() > 0 { Ok(()) } else { Err(MapRefusal::NoChange) }
        })
        .await
    }

    /// Begins to delete the journals of ended lives that no list names, and to take these from the map.
    fn forget_ended(&mut self, map: &Arc<ClusterMap>) {
        let is_busy = self.forgetting.as_ref().is_some_and(|task| !task.is_finished());
        if is_busy || map.ended().is_empty() {
            return;
        }
        let (seat, cluster, map) =
            (self.own.seat.clone(), self.own.cluster.clone(), Arc::clone(map));
        self.forgetting = Some(self.own.node.background.spawn(async move {
            match seat.forget(&map).await {
                Ok(newest) => cluster.learn(&newest),
                Err(error) => {
                    tracing::warn!("the journals of ended lives are left for now: {error:#}");
                    tokio::time::sleep(TOLD).await;
                }
            }
            if let Err(error) = seat.maps().prune().await {
                tracing::warn!(%error, "old maps of the cluster are left behind");
            }
        }));
    }

    /// Changes the map. A change that the newest map does not allow was overtaken.
    async fn change(
        &mut self,
        doing: &str,
        steps: impl FnMut(&mut flagstone_storage::cluster::MapDraft) -> Result<(), MapRefusal>,
    ) -> anyhow::Result<()> {
        self.try_to_change(doing, steps).await.map(drop)
    }

    /// Changes the map. Returns the reason if the newest map does not allow it.
    async fn try_to_change(
        &mut self,
        doing: &str,
        steps: impl FnMut(&mut flagstone_storage::cluster::MapDraft) -> Result<(), MapRefusal>,
    ) -> anyhow::Result<Result<(), MapRefusal>> {
        match self.own.seat.amend(steps).await? {
            Ok(map) => {
                tracing::debug!(map = map.number(), "{doing}");
                self.own.cluster.learn(&map);
                Ok(Ok(()))
            }
            Err(refusal) => {
                tracing::debug!("{doing}: {refusal}");
                self.look().await;
                Ok(Err(refusal))
            }
        }
    }

    /// Logs trouble that may come again at each step, but the same one once in a minute.
    fn warn(&mut self, trouble: String) {
        self.told.retain(|_, at| at.elapsed() < TOLD);
        if !self.told.contains_key(&trouble) {
            tracing::warn!("{trouble}");
            if self.told.len() < MAX_TOLD {
                self.told.insert(trouble, Instant::now());
            }
        }
    }

    /// Notes the end of a task.
    fn ended(&mut self, handled: Result<Handled, tokio::task::JoinError>) {
        let Handled { shards, outcome } = match handled {
            Ok(handled) => handled,
            Err(error) => {
                tracing::error!(%error, "a task on shards has failed");
                self.own.node.ending.end(ShutdownRequest { now: true });
                return;
            }
        };
        for shard in &shards {
            self.busy.remove(shard);
        }
        match outcome {
            Ok(ShardChange::Taken { up_to, refused }) => {
                let is_taken = |id: &&u16| refused.iter().all(|(other, _)| other != *id);
                let sight = &self.own.cluster.sight;
                sight.keep_untaken(|id| !shards.contains(&id));
                let taken = shards.iter().filter(is_taken).count();
                sight.taken.fetch_add(taken as u64, Ordering::Relaxed);
                if let Some(lsn) = up_to {
                    self.adopted.extend(shards.iter().filter(is_taken).map(|id| (*id, lsn)));
                }
                for (shard, why) in refused {
                    self.try_again(&[shard], &why);
                }
            }
            Ok(ShardChange::Given) => {
                self.adopted.retain(|shard, _| !shards.contains(shard));
                let given = &self.own.cluster.sight.given;
                given.fetch_add(shards.len() as u64, Ordering::Relaxed);
            }
            Ok(ShardChange::Split) => {
                self.adopted.retain(|shard, _| !shards.contains(shard));
                self.own.cluster.sight.split.fetch_add(1, Ordering::Relaxed);
            }
            Ok(ShardChange::Unsplit { why, was_held }) => {
                shards.iter().for_each(|shard| self.put_split_off(*shard, &why, was_held));
            }
            Err(error) => self.try_again(&shards, &format!("{error:#}")),
        }
    }

    /// Notes that shards did not change hands: they are tried again after a pause.
    fn try_again(&mut self, shards: &[u16], why: &str) {
        self.warn(format!("shards {shards:?} do not change hands yet: {why}"));
        let (cluster, count) = (&self.own.cluster, shards.len() as u64);
        let is_untaken = |id: &u16| cluster.state(*id) != ServedState::Served;
        cluster.sight.note_untaken(shards.iter().copied().filter(is_untaken), why);
        cluster.sight.failures.fetch_add(count, Ordering::Relaxed);
        let at = Instant::now() + RETRY * self.lease();
        self.again.extend(shards.iter().map(|id| (*id, at)));
    }
}
