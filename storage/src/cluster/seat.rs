//! A process's seat in a cluster: its life, with a journal of its own, and the shards that it takes.

use super::draft::{MapDraft, MapRefusal};
use super::libraries::LibraryStore;
use super::lives::{SealedLife, begin, journal_of, journal_options};
use super::map::{ClusterMap, MapShard};
use super::member::{Life, MapMember, MemberState, NodeAddress, NodeId, ServerRole};
use super::mirroring::MirroredShards;
use super::splitting::remove_unfinished;
use super::store::{AmendError, MapError, MapOutcome, MapStore};
use super::taking::{GivenShard, ShardTaker, TakenShard};
use crate::clock::Clock;
use crate::directory::{Directory, Manifest, OpenOptions};
use crate::engine::machine::check_cpus;
use crate::journal::{BucketJournal, BucketOptions, Journal, JournalSight};
use crate::lease::BootTime;
use crate::place::Place;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of other lives of which it is known how their journals looked.
const MAX_SEEN: usize = 64;

/// Pause before a change whose fate is not known is put again.
const PAUSE: Duration = Duration::from_millis(200);

/// See the module's description.
pub struct ClusterSeat {
    store: Place,
    node: NodeId,
    life: Life,
    maps: MapStore,
    libraries: LibraryStore,
    pub(super) journal: Arc<BucketJournal>,
    journal_options: BucketOptions,
    taker: ShardTaker,
    /// Journals of ended lives that were read.
    sealed: Mutex<BTreeMap<Life, Arc<SealedLife>>>,
    /// The objects of other lives' journals, when they were seen first.
    seen: Mutex<BTreeMap<Life, JournalSight>>,
}

impl ClusterSeat {
    /// Joins the cluster of a bucket as a new life of `node`, or makes the cluster, and returns the
    /// directory, which has no shard yet. `options.lease` counts for a new cluster only. Must run on the
    /// background runtime.
    ///
    /// # Errors
    /// Also if the place has the data of a single server.
    pub async fn join(
        options: OpenOptions,
        clock: Clock,
        (node, address): (NodeId, &NodeAddress),
        role: ServerRole,
    ) -> Result<(Directory, Self)> {
        check_cpus()?;
        let store = options.store.clone();
        store.preflight().await?;
        let manifest = Manifest::open_cluster(&options).await?;
        let maps = MapStore::new(&store);
        let lease_ms = u64::try_from(options.lease.as_millis()).unwrap_or(u64::MAX);
        let first = || MapDraft::create(manifest.layout().shards(), lease_ms);
        let map = newest_or(&maps, first).await?;
        let journal_options = journal_options(&options, manifest.salt(), map.lease());
        let life = loop {
            let newest = maps.newest().await?;
            let former = newest.as_ref().and_then(|map| map.open_member(node));
            let role = match &newest {
                Some(map) => role_at_start(map, node, role)?,
                None => role,
            };
            if let Some(former) = former {
                tracing::info!(life = former.life.0, "ending the former life of this server");
                let sealing = SealedLife::seal(
                    &store,
                    (former.life, former.begun),
                    None,
                    journal_options.clone(),
                );
                if let Err(error) = sealing.await {
                    // If others have sealed it meanwhile, its objects go once nobody needs them.
                    let newest = maps.newest().await?;
                    if newest.is_some_and(|map| map.is_open(former.life)) {
                        return Err(error).with_context(|| ending(former.life));
                    }
                    continue;
                }
            }
            let former = former.map(|former| former.life);
            let joined = join_map(&maps, (node, address), role, former).await?;
            if let Some(life) = joined {
                break life;
            }
        };
        let journal = begin(&store, life, journal_options.clone()).await;
        let journal = journal.with_context(|| format!("beginning life {life} of this server"))?;
        let directory = Directory::without_shards(&options, &manifest, journal.clone());
        let taker = ShardTaker::new(&options, manifest, journal.clone(), clock);
        let (sealed, seen) = (Mutex::default(), Mutex::default());
        let libraries = LibraryStore::new(&store);
        let seat = Self {
            store,
            node,
            life,
            maps,
            libraries,
            journal,
            journal_options,
            taker,
            sealed,
            seen,
        };
        if let Err(refusal) = seat.amend(|draft| draft.begin(life)).await? {
            bail!("life {life} of this server cannot begin: {refusal}");
        }
        Ok((directory, seat))
    }

    pub fn life(&self) -> Life {
        self.life
    }

    pub(super) fn store(&self) -> &Place {
        &self.store
    }

    /// Returns the number of shards at the creation of the cluster.
    pub(super) fn created(&self) -> u16 {
        self.taker.manifest.layout().shards()
    }

    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the objects of libraries of functions.
    pub fn libraries(&self) -> &LibraryStore {
        &self.libraries
    }

    pub fn maps(&self) -> &MapStore {
        &self.maps
    }

    /// Seals the journal of another life, unless that was done before, and reads it: the life owns
    /// nothing from then on.
    ///
    /// # Errors
    /// If the store does not answer, or if the journal is missing or damaged.
    pub async fn seal(&self, life: Life) -> Result<Arc<SealedLife>> {
        let read = |it: &Self| it.sealed().get(&life).cloned();
        if let Some(sealed) = read(self) {
            return Ok(sealed);
        }
        let map = self.maps.newest().await?;
        let is_begun = map.and_then(|map| Some(map.member(life)?.begun)).unwrap_or(false);
        let options = self.journal_options.clone();
        let sight = self.seen().get(&life).copied();
        let sealing = SealedLife::seal(&self.store, (life, is_begun), sight, options);
        let sealed = Arc::new(sealing.await.with_context(|| ending(life))?);
        self.seen().remove(&life);
        Ok(self.sealed().entry(life).or_insert(sealed).clone())
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, BTreeMap<Life, JournalSight>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sealed(&self) -> std::sync::MutexGuard<'_, BTreeMap<Life, Arc<SealedLife>>> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes shards that the map `since` gives to this life, all with the same list of journals, and
    /// waits until they may be served: until the adoption is durable, and the former owners answer
    /// nobody.
    ///
    /// # Errors
    /// If one belongs to another life by now, and if the store does not answer.
    pub async fn take(&self, shards: &[(GivenShard, u64)]) -> Result<Vec<TakenShard>> {
        let given: Vec<GivenShard> = shards.iter().map(|(given, _)| given.clone()).collect();
        let listed = given.first().map_or(&[][..], |first| &first.journals);
        let mut sealed = BTreeMap::new();
        for life in listed {
            sealed.insert(*life, self.seal(*life).await?);
        }
        let is_mine = || async {
            let map = self.maps.newest().await?.context("the cluster's map is gone")?;
            Ok(shards.iter().all(|(given, since)| {
                let entry = map.shards().get(usize::from(given.id));
                entry.is_some_and(|it| it.owner == Some(self.life) && it.since == *since)
            }))
        };
        let taken = self.taker.take(&given, &sealed, is_mine).await?;
        let silent = sealed.values().filter_map(|sealed| sealed.silent_from()).max();
        if let Some(silent) = silent {
            tokio::time::sleep_until(silent).await;
        }
        if let Some(adopted) = taken.iter().map(|one| one.adopted).max() {
            self.until_durable(adopted).await?;
        }
        Ok(taken)
    }

    /// Reads shards that a map gives to another life as they are stored now, and what follows in its
    /// journal. Must run on the background runtime.
    ///
    /// # Errors
    /// If something cannot be read, or has changed meanwhile: the call may be repeated with a newer map.
    pub async fn mirror(&self, owner: Life, entries: &[MapShard]) -> Result<Box<MirroredShards>> {
        self.taker.mirror(owner, entries, &self.journal_options).await
    }

    /// Returns the number up to which all objects of the own journal are stored.
    pub fn published(&self) -> u64 {
        self.journal.published()
    }

    async fn until_durable(&self, lsn: u64) -> Result<()> {
        while self.journal.durable() < lsn {
            if let Some(reason) = self.journal.failed() {
                bail!("the journal has failed: {reason}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Changes the map, and waits until the fate of the change is known. Returns the newest map;
    /// `Err`: the newest map does not allow the change.
    ///
    /// # Errors
    /// If this process cannot go on: the map is damaged, or the fate can never be known.
    pub async fn amend(
        &self,
        mut steps: impl FnMut(&mut MapDraft) -> Result<(), MapRefusal>,
    ) -> Result<Result<Arc<ClusterMap>, MapRefusal>> {
        loop {
            match self.maps.amend(&mut steps).await {
                Ok(map) => return Ok(Ok(map)),
                Err(AmendError::Refused(refusal)) => return Ok(Err(refusal)),
                Err(AmendError::Unknown { change, error }) => {
                    tracing::warn!(%error, "a change of the cluster's map has no answer: trying again");
                    match self.settle(&change).await? {
                        Some(map) => return Ok(Ok(map)),
                        None => continue,
                    }
                }
                Err(AmendError::Map(
                    error @ (MapError::Away { .. } | MapError::Restless { .. }),
                )) => {
                    tracing::warn!(%error, "the cluster's map cannot be read: trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                Err(AmendError::Contended) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts a change until its fate is known; `None`: it never counts.
    async fn settle(
        &self,
        change: &super::draft::PendingChange,
    ) -> Result<Option<Arc<ClusterMap>>> {
        loop {
            match self.maps.change(change).await {
                Ok(MapOutcome::Counts(map)) => return Ok(Some(map)),
                Ok(MapOutcome::Lost(_)) => return Ok(None),
                Ok(MapOutcome::Forgotten(_)) => {
                    bail!("a change of the cluster's map was overtaken: nobody knows if it counts")
                }
                Err(MapError::Away { .. } | MapError::Restless { .. }) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Notes in the map that this life has ended, and owns nothing. Its journal must be closed.
    ///
    /// # Errors
    /// See [`amend`](Self::amend). Another server seals the journal then.
    pub async fn release(&self) -> Result<()> {
        let life = self.life;
        match self.amend(|draft| draft.release(life)).await? {
            Ok(_) => Ok(()),
            Err(refusal) => bail!("life {life} cannot be released: {refusal}"),
        }
    }

    /// Deletes the journals of lives that have ended and that no list of a map names, but not their
    /// seals, and then takes these lives from the map. In this order a process that ends in between
    /// leaves nothing behind that others do not know of. Returns the newest map.
    ///
    /// # Errors
    /// If objects may be left: the call is to be repeated. See [`amend`](Self::amend).
    pub async fn forget(&self, map: &ClusterMap) -> Result<Arc<ClusterMap>> {
        self.sealed().retain(|life, _| map.lists(*life));
        let gone = map.ended();
        for life in &gone {
            let place = journal_of(&self.store, *life);
            let removed = BucketJournal::remove_records(&place, &self.journal_options).await;
            removed.with_context(|| format!("deleting the journal of life {life}"))?;
            let removed = remove_unfinished(&self.store, *life, map).await;
            removed.with_context(|| format!("deleting what life {life} has begun"))?;
        }
        match self.amend(|draft| draft.forget(&gone)).await? {
            Ok(map) => Ok(map),
            // Another server was faster.
            Err(_) => self.maps.newest().await?.context("the cluster's map is gone"),
        }
    }

    /// Returns true if this life has stored an object of its journal that was put at `moment` or later;
    /// else it does so soon.
    pub fn has_stored_since(&self, moment: BootTime) -> bool {
        let Some(lease) = self.journal.lease() else { return false };
        let has_stored = lease.is_proven_since(moment);
        if !has_stored {
            lease.want();
        }
        has_stored
    }

    /// Returns a number that grows with the objects of a life's journal. If the life is sealed later and has
    /// stored nothing since, its lease is over that much sooner.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn progress_of(&self, life: Life) -> Result<u64> {
        let place = journal_of(&self.store, life);
        let sight = BucketJournal::see(&place, &self.journal_options).await?;
        let mut seen = self.seen();
        let first = seen.get(&life).map_or(sight, |before| sight.or_earlier(*before));
        seen.insert(life, first);
        while seen.len() > MAX_SEEN {
            // The oldest life has ended, or another look at it follows.
            seen.pop_first();
        }
        Ok(sight.newest())
    }
}

/// Returns the context of an error in ending a life, with what to do if its journal is damaged.
fn ending(life: Life) -> String {
    format!(
        "ending life {life} (`flagstone cluster give-up {life}` tells if its journal has lost objects)"
    )
}

/// Returns the role in which a node joins again that wants `wanted`. One that owns shards, because it was
/// promoted, is an owner again, unless others can take them: nobody else may be left to serve them.
///
/// # Errors
/// If it is to be a replica, and others are to take its shards first.
fn role_at_start(map: &ClusterMap, node: NodeId, wanted: ServerRole) -> Result<ServerRole> {
    let of_node = map.members().iter().filter(|member| member.node == node);
    let Some(life) =
        of_node.map(|member| member.life).find(|life| map.owned_by(*life).next().is_some())
    else {
        return Ok(wanted);
    };
    let is_other =
        |it: &MapMember| it.node != node && it.state == MemberState::Open && it.takes_shards();
    if wanted == ServerRole::Replica && map.members().iter().any(is_other) {
        bail!(
            "life {life} of this server owns shards, which a replica cannot have: end it with SIGTERM, so \
             that others take them, or wait until they have"
        );
    }
    if wanted != ServerRole::Owner {
        tracing::warn!("this server owns shards, as it was promoted: it starts as an owner");
    }
    Ok(ServerRole::Owner)
}

/// Returns the newest map, and makes the first one if there is none.
pub(super) async fn newest_or(
    maps: &MapStore,
    first: impl FnOnce() -> Result<MapDraft, MapRefusal>,
) -> Result<Arc<ClusterMap>> {
    if let Some(map) = maps.newest().await? {
        return Ok(map);
    }
    let first = first()?.finish()?;
    match maps.change(&first).await? {
        MapOutcome::Counts(map) | MapOutcome::Lost(map) | MapOutcome::Forgotten(map) => Ok(map),
    }
}

/// Adds a new life to the map, and notes that the former one is sealed. Returns `None` if another life
/// of the node has joined meanwhile.
async fn join_map(
    maps: &MapStore,
    (node, address): (NodeId, &NodeAddress),
    role: ServerRole,
    former: Option<Life>,
) -> Result<Option<Life>> {
    let mut joined = None;
    let steps = |draft: &mut MapDraft| {
        if let Some(former) = former
            && draft.map().member(former).is_some_and(|m| m.state == MemberState::Open)
        {
            draft.seal(former, &[])?;
        }
        joined = Some(match role {
            ServerRole::Owner => draft.join(node, address.clone())?,
            replica => draft.join_as_replica(node, address.clone(), replica)?,
        });
        Ok(())
    };
    match maps.amend(steps).await {
        Ok(_) => Ok(joined),
        Err(AmendError::Refused(MapRefusal::NodeIsOpen(_))) => Ok(None),
        Err(AmendError::Refused(MapRefusal::OwnsShards(life))) => bail!(
            "life {life} of this server owns shards, which a replica cannot have: other servers of the \
             cluster take them over in a moment"
        ),
        // It may have joined: a later start seals that life.
        Err(error) => Err(error).context("joining the cluster"),
    }
}
