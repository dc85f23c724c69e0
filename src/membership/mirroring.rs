//! Mirrors the shards of all servers on a replica: one task for each server that owns some reads them, and
//! follows its journal.
//!
//! The task reads the next object as soon as it has reason to expect one: the server has said so in a beat,
//! or there was one a moment ago. What is shown is as new as the last beat whose object was read: the
//! server had nothing newer when it was asked, and an object behind that one, its seal included, was not
//! there after that.

use super::{STEPS, Seated, on_worker};
use crate::cluster::{Heard, SaidOfJournal};
use crate::worker::{MirroredOps, Worker};
use anyhow::{Result, anyhow, bail};
use flagstone_storage::cluster::{ClusterMap, Life, LifeFollower, MapShard, MirroredShards};
use flagstone_storage::commit::split_body;
use flagstone_storage::journal::{JournalError, Record, TailStep};
use flagstone_storage::partition::Stay;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{RwLock, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};

/// Age at which pinned engines are replaced: long before their owner deletes files that it has replaced.
const RENEWED: Duration = Duration::from_secs(60);

/// How soon they are replaced because their records fill the memory.
const RENEWED_EARLY: Duration = Duration::from_secs(5);

/// Interval at which the next object is asked for while there was one lately, and how long that is.
const POLL: Duration = Duration::from_millis(50);
const POLLED: Duration = Duration::from_secs(2);

/// Interval at which the same trouble is logged again.
const TOLD: Duration = Duration::from_secs(60);

/// Leases after which a replica that knows of nothing newer counts as cut off.
const OUTDATED: u32 = 3;

/// The number of a map, and the shards that it gives to a server.
type Owned = (u64, Vec<MapShard>);

/// The followers of the servers that own shards.
pub(super) struct Mirroring {
    own: Seated,
    heard: Heard,
    followers: BTreeMap<Life, (watch::Sender<Owned>, AbortHandle)>,
    turns: FollowerTurns,
}

/// True while followers may use workers: each job there holds it.
type FollowerTurns = Arc<RwLock<bool>>;

impl Mirroring {
    pub(super) fn new(own: Seated, heard: Heard) -> Self {
        let turns = Arc::new(RwLock::new(true));
        Self { own, heard, followers: BTreeMap::new(), turns }
    }

    /// Shows nothing any more, once no worker is at a follower's job. Returns false if a shard has to be
    /// hidden later: then this is to be called again.
    pub(super) async fn end(&mut self) -> Result<bool> {
        self.followers.values().for_each(|(_, task)| task.abort());
        *self.turns.write().await = false;
        let cluster = &self.own.cluster;
        cluster.mirrors.keep_owners(|_| false);
        let mut is_done = true;
        for id in 0..self.own.node.layout.shards() {
            is_done &= self.hide(id).await?;
        }
        Ok(is_done)
    }

    /// Hides shards whose slots have changed, and divides the slots anew; if one cannot be hidden now, nothing
    /// changes yet.
    ///
    /// # Errors
    /// If a worker is gone.
    pub(super) async fn divide(&mut self, others: &[u16], division: Vec<Range<u16>>) -> Result<()> {
        // No follower is at work on a worker meanwhile.
        let turns = self.turns.clone();
        let _turn = turns.write().await;
        for id in others {
            if !self.hide(*id).await? {
                return Ok(());
            }
        }
        self.own.node.layout.divide(division);
        Ok(())
    }

    /// Hides a shard. Returns false if that is to be tried again.
    async fn hide(&self, id: u16) -> Result<bool> {
        let cluster = self.own.cluster.clone();
        cluster.mirrors.hide(id);
        let elsewhere = move |slot, secured| cluster.refusal(slot, secured);
        let hide = move |worker: Rc<Worker>| async move { worker.hide_shard(id, elsewhere).await };
        Ok(on_worker(&self.own, id, hide).await?.is_ok())
    }

    /// Follows the owners that a map has, and says what is shown.
    pub(super) fn keep(&mut self, map: &ClusterMap) {
        let owners: BTreeSet<Life> = map.shards().iter().filter_map(|it| it.owner).collect();
        let gone = self.followers.extract_if(.., |life, _| !owners.contains(life));
        gone.for_each(|(_, (_, task))| task.abort());
        self.own.cluster.mirrors.keep_owners(|life| owners.contains(&life));
        for parked in map.shards().iter().filter(|it| it.owner.is_none()) {
            self.own.cluster.mirrors.hide(parked.id);
        }
        for life in owners {
            let owned = (map.number(), map.owned_by(life).cloned().collect());
            let (owned_by, _) = self.followers.entry(life).or_insert_with(|| {
                let (to, entries) = watch::channel((0, Vec::new()));
                let parts = (self.own.clone(), self.heard.clone(), self.turns.clone());
                let following = follow(parts, life, entries);
                (to, self.own.node.background.spawn(following).abort_handle())
            });
            owned_by.send_if_modified(|known| {
                let is_other = *known != owned;
                *known = owned;
                is_other
            });
        }
        let limit = OUTDATED * map.lease();
        let is_up = self.own.cluster.mirrors.lag().is_some_and(|lag| lag <= limit);
        let primary = map.shards().iter().find_map(|it| map.member(it.owner?));
        let address = primary.map(|member| (&*member.address.host, member.address.port));
        self.own.node.health.replica.mirror(address, is_up, self.own.node.clock.now_ms());
    }
}

impl Drop for Mirroring {
    fn drop(&mut self) {
        self.followers.values().for_each(|(_, task)| task.abort());
    }
}

/// A task that reads shards.
type Reading = JoinHandle<Result<Box<MirroredShards>>>;

/// Shards of one server, and its journal.
struct Following {
    own: Seated,
    heard: Heard,
    turns: FollowerTurns,
    life: Life,
    entries: watch::Receiver<Owned>,
    follower: Option<LifeFollower>,
    /// The shards that are shown, each since which map.
    shown: BTreeMap<u16, (u64, Stay)>,
    /// Shards that are being read, by these entries, since a time.
    reading: Option<(Reading, Vec<MapShard>)>,
    /// Shards that were read, and are ahead.
    ahead: Option<(Box<MirroredShards>, Vec<MapShard>)>,
    read_at: Instant,
    /// When there was an object last.
    found_at: Instant,
}

/// Follows a server until the task is ended.
async fn follow(
    (own, heard, turns): (Seated, Heard, FollowerTurns),
    life: Life,
    entries: watch::Receiver<Owned>,
) {
    let now = Instant::now();
    let pause = own.cluster.map().lease() / STEPS;
    let mut this = Following {
        own,
        heard,
        turns,
        life,
        entries,
        follower: None,
        shown: BTreeMap::new(),
        reading: None,
        ahead: None,
        read_at: now,
        found_at: now,
    };
    let (mut failing, mut told): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        let Err(error) = this.step().await else {
            failing = None;
            continue;
        };
        // A journal that was read while its owner dropped objects is whole at the next try.
        let since = *failing.get_or_insert_with(Instant::now);
        let is_news = told.is_none_or(|at| at.elapsed() > TOLD);
        if is_news && since.elapsed() > STEPS * pause {
            tracing::warn!(life = life.0, "a server cannot be followed yet: {error:#}");
            told = Some(Instant::now());
        }
        tokio::time::sleep(pause).await;
    }
}

impl Following {
    /// Reads the next object, or waits for a reason to do so.
    ///
    /// # Errors
    /// If something cannot be read: the next step tries again.
    async fn step(&mut self) -> Result<()> {
        let (map, entries) = self.entries.borrow_and_update().clone();
        let is_same =
            |id: &u16, since: &u64| entries.iter().any(|it| it.id == *id && it.since == *since);
        self.shown.retain(|id, (since, _)| is_same(id, since));
        self.tell_applied(map, entries.len());
        if self.reading.is_none() && self.ahead.is_none() {
            self.begin_reading(entries);
        }
        self.end_reading().await?;
        self.install().await?;
        let Some(follower) = &mut self.follower else { return self.rest(POLL).await };
        if follower.is_full() || self.own.node.pending_bytes() > self.own.node.pending_limit() {
            if self.ahead.is_some() {
                // Newer engines need fewer records, and there is no room to follow as far as they are.
                self.forget();
                return Ok(());
            }
            if self.reading.is_some() {
                return self.rest(POLL).await;
            }
        }
        // An object that the owner has named before is there, or was dropped.
        let said = self.heard.published(self.life).filter(|said| said.map <= map);
        match follower.next().await {
            Ok(TailStep::Records(records)) => {
                self.found_at = Instant::now();
                let applied = self.apply(records).await;
                if applied.is_err() {
                    self.forget();
                }
                applied
            }
            Ok(TailStep::Missing) => self.at_end(said).await,
            Ok(TailStep::Ended) => self.rest(self.own.cluster.map().lease() / STEPS).await,
            Err(error @ JournalError::Away { .. }) => Err(error.into()),
            Err(error) => {
                self.forget();
                Err(error.into())
            }
        }
    }

    /// Returns true if the engines are to be replaced.
    fn is_due(&self) -> bool {
        let age = self.read_at.elapsed();
        let is_full = || self.own.node.pending_bytes() > self.own.node.pending_limit() / 2;
        age > RENEWED || age > RENEWED_EARLY && is_full()
    }

    /// Begins to read shards: those that are not shown, or all of these if their engines are to be replaced.
    fn begin_reading(&mut self, all: Vec<MapShard>) {
        let (count, is_due) = (all.len(), self.is_due());
        let is_wanted = |it: &MapShard| is_due || !self.shown.contains_key(&it.id);
        let entries: Vec<MapShard> = all.into_iter().filter(is_wanted).collect();
        if entries.is_empty() {
            return;
        }
        if entries.len() == count {
            self.read_at = Instant::now();
        }
        let (seat, life, read) = (self.own.seat.clone(), self.life, entries.clone());
        let reading = async move { seat.mirror(life, &read).await };
        self.reading = Some((self.own.node.background.spawn(reading), entries));
        if let Some(follower) = &mut self.follower {
            follower.begin_renewal();
        }
    }

    /// Takes what was read, once it is; waits for it, if nothing can be done before.
    async fn end_reading(&mut self) -> Result<()> {
        let is_needed = self.follower.is_none();
        let Some((reading, _)) =
            self.reading.as_mut().filter(|(it, _)| is_needed || it.is_finished())
        else {
            return Ok(());
        };
        let read = reading.await;
        let entries = self.reading.take().map(|(_, entries)| entries).unwrap_or_default();
        let read =
            read.unwrap_or_else(|error| Err(anyhow!("the task that reads has failed: {error}")));
        let mirrored = read.inspect_err(|_| {
            if let Some(follower) = &mut self.follower {
                follower.end_renewal();
            }
        })?;
        self.ahead = Some((mirrored, entries));
        Ok(())
    }

    /// Shows what was read, unless more has to be read of the journal before.
    async fn install(&mut self) -> Result<()> {
        let Some((mirrored, entries)) = self.ahead.take() else { return Ok(()) };
        let shards = match &mut self.follower {
            None => {
                self.follower = Some(LifeFollower::new(mirrored.tail));
                mirrored.shards
            }
            Some(follower) => match follower.renew(mirrored) {
                Ok(shards) => shards,
                Err(mirrored) => {
                    self.ahead = Some((mirrored, entries));
                    return Ok(());
                }
            },
        };
        let now = self.entries.borrow().1.clone();
        for shard in shards {
            let id = shard.id;
            let read = entries.iter().find(|it| it.id == id).map(|it| it.since);
            // The same stay at the same owner.
            let is_same = |it: &&MapShard| it.id == id && read == Some(it.since);
            let Some(entry) = now.iter().find(is_same) else { continue };
            if let Some((_, stay)) = self.shown.get(&id).filter(|(since, _)| *since == entry.since)
            {
                let stay = *stay;
                let renew =
                    move |worker: Rc<Worker>| async move { worker.renew_shard(stay, shard).await };
                self.on_worker(id, renew).await?;
                continue;
            }
            let cluster = self.own.cluster.clone();
            // What was shown of it before is gone first.
            cluster.mirrors.hide(id);
            let elsewhere = move |slot, secured| cluster.refusal(slot, secured);
            let (shown, since) = (self.own.cluster.clone(), entry.since);
            let show = move |worker: Rc<Worker>| async move {
                worker.show_shard(shard, elsewhere).await.inspect(|_| shown.show_mirror(id, since))
            };
            let stay = self.on_worker(id, show).await?;
            let stay = stay.map_err(|why| anyhow!("shard {id} cannot be shown: {why}"))?;
            self.shown.insert(id, (entry.since, stay));
        }
        Ok(())
    }

    /// Says up to where all shards of the owner are shown, of which there are so many in a map.
    fn tell_applied(&self, map: u64, shards: usize) {
        let lsn = self.follower.as_ref().map_or(0, LifeFollower::read_lsn);
        let is_whole = shards > 0 && self.shown.len() == shards;
        let applied = if is_whole { (map, lsn) } else { (0, 0) };
        self.own.cluster.mirrors.set_applied(self.life, applied);
    }

    /// Reads all anew.
    fn forget(&mut self) {
        self.shown.clear();
        self.follower = None;
    }

    /// Applies records on the workers of their shards.
    async fn apply(&self, records: Vec<Record>) -> Result<()> {
        let mut parts: BTreeMap<usize, (u16, Vec<MirroredOps>)> = BTreeMap::new();
        for record in records {
            let body = &record.body;
            let split = split_body(body).ok_or_else(|| anyhow!("a record is damaged"))?;
            for (id, ops) in split {
                let Some((_, stay)) = self.shown.get(&id) else { continue };
                let ops = MirroredOps { stay: *stay, lsn: record.lsn, ops: body.slice_ref(ops) };
                let (_, of_worker) = parts
                    .entry(self.own.node.worker_of_shard(id))
                    .or_insert_with(|| (id, Vec::new()));
                of_worker.push(ops);
            }
        }
        for (id, ops) in parts.into_values() {
            let apply = move |worker: Rc<Worker>| async move { worker.follow(ops).await };
            self.on_worker(id, apply).await?;
        }
        Ok(())
    }

    /// Runs a closure on the worker of a shard, unless this server is an owner by now.
    async fn on_worker<T, F, Fut>(&self, shard: u16, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Worker>) -> Fut + Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let turn = self.turns.clone().read_owned().await;
        if !*turn {
            bail!("this server is no replica any more");
        }
        let in_turn = move |worker: Rc<Worker>| async move {
            let done = job(worker).await;
            drop(turn);
            done
        };
        on_worker(&self.own, shard, in_turn).await
    }

    /// Notes how new the shards are of which everything was read, and waits. `said`: the owner's last
    /// words before the next object was looked for, in vain.
    ///
    /// # Errors
    /// If objects were dropped before they were read: all is read anew, after a pause.
    async fn at_end(&mut self, said: Option<SaidOfJournal>) -> Result<()> {
        let Some(follower) = &self.follower else { return Ok(()) };
        let (up_to, awaited) =
            (follower.read_up_to(), self.ahead.as_ref().map_or(0, |it| it.0.end));
        let published = said.map_or(0, |said| said.published);
        if up_to < published.max(awaited) {
            self.forget();
            bail!("objects of its journal are gone that were not read yet");
        }
        if let Some(SaidOfJournal { asked, .. }) = said {
            self.shown.keys().for_each(|id| self.own.cluster.mirrors.prove(*id, asked));
        }
        let is_recent = self.found_at.elapsed() < POLLED;
        let lease = self.own.cluster.map().lease();
        self.rest(if is_recent { POLL } else { lease }).await
    }

    /// Waits until there is something new to do, for a time at most.
    async fn rest(&mut self, time: Duration) -> Result<()> {
        let (heard, cluster) = (self.heard.clone(), self.own.cluster.clone());
        let news = async {
            tokio::select! {
                () = heard.told() => {}
                () = cluster.mirrors.asked() => {}
                _ = self.entries.changed() => {}
            }
        };
        let _ = timeout(time, news).await;
        Ok(())
    }
}
