//! Makes the data set of a single server in a bucket the data of a cluster, in place (RFC 20).
//!
//! 1. The directory is opened as at a start, which ends a server that has it, and closed again: then the
//!    engines have everything, and need no journal.
//! 2. The journal is ended for good, if nobody has taken it over meanwhile. This decides: until then the
//!    data is that of a single server, from then on no server can start on it.
//! 3. The first map of the cluster is put: all shards are parked, and lives begin above all epochs of
//!    the journal. A second one names the libraries of functions, if there are any.
//! 4. `flagstone.json` becomes that of a cluster.
//!
//! A conversion that is cut off behind the second step is repeated, and goes on with the third one. The
//! steps after the second one may be taken any number of times, by several processes.

use super::contents::{Contents, controls};
use super::draft::{MapDraft, MapRefusal};
use super::libraries::LibraryStore;
use super::map::ClusterMap;
use super::seat::newest_or;
use super::store::{AmendError, MapStore};
use crate::checkpoint::{COPYING, Catalog};
use crate::clock::Clock;
use crate::directory::{Directory, Manifest, OpenOptions};
use crate::journal::{BucketJournal, BucketOptions};
use crate::place::{Place, Shares, remove_tree};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::time::Duration;

/// The conversion of a single server's data set to that of a cluster.
#[derive(Debug)]
pub struct ClusterConversion {
    options: OpenOptions,
    lease: Duration,
    removes_checkpoints: bool,
}

/// A data set that can be converted, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvertibleData {
    pub shards: u16,
    pub keys: u64,
    /// False if there may be fewer keys: that is known once the journal is replayed.
    pub is_exact: bool,
    /// True if the journal was not closed: a server has the data open, or was killed.
    pub is_open: bool,
    /// Number of checkpoints that are removed.
    pub checkpoints: usize,
    /// True if an earlier conversion was cut off behind its point of no return.
    pub is_begun: bool,
    /// See [`ClusterMap::lease`]: that of the earlier conversion, if that has put a map.
    pub lease: Duration,
}

impl ClusterConversion {
    /// Creates a conversion, without any request. `options`: those to open the data, whose journal is
    /// beside it; `lease`: of the cluster. With `removes_checkpoints` the data set may have checkpoints, which are removed: of a
    /// cluster's data they cannot be restored.
    pub fn new(options: OpenOptions, lease: Duration, removes_checkpoints: bool) -> Self {
        Self { options: OpenOptions { journal: None, ..options }, lease, removes_checkpoints }
    }

    /// Looks if the data can be converted, and changes nothing. A server may have it open; what it stores
    /// later is not seen.
    ///
    /// # Errors
    /// The reason why it cannot; if the store does not answer; and if something is damaged.
    pub async fn look(&self) -> Result<ConvertibleData> {
        let store = &self.options.store;
        let manifest = self.manifest().await?;
        if manifest.is_of_cluster() {
            bail!("{store} is the data of a cluster already");
        }
        if Shares::read(store).await?.is_some() {
            bail!(
                "{store} is a branch, which shares files with its parent: make an independent copy with \
                 `flagstone backup` and `flagstone restore`, and convert that"
            );
        }
        let journal = BucketJournal::look(&self.journal(), &journal_options(&manifest)).await?;
        if journal.epoch < manifest.epoch() {
            bail!(
                "the journal of {store} is not there: start the server once with its journal in the \
                 store (without `journal`), and stop it"
            );
        }
        let map = MapStore::new(store).newest().await?;
        if map.is_some() && !journal.is_ended {
            bail!("{store} has maps of a cluster (cluster/map) to which it does not belong");
        }
        let checkpoints = Catalog::of(store).list().await?.len();
        let contents = match journal.is_ended {
            true => Contents::of_engines(store, &manifest).await?,
            false => {
                self.check_checkpoints(checkpoints)?;
                let contents = Contents::look(store, &manifest, &self.journal()).await?;
                contents.check(store)?;
                contents
            }
        };
        Ok(ConvertibleData {
            shards: manifest.layout().shards(),
            keys: contents.keys(),
            is_exact: contents.is_exact(),
            is_open: contents.is_open,
            checkpoints: if journal.is_ended { 0 } else { checkpoints },
            is_begun: journal.is_ended,
            lease: map.map_or(self.lease, |map| map.lease()),
        })
    }

    /// Converts the data. Must run on the background runtime.
    ///
    /// # Errors
    /// As of [`look`](Self::look), and if another process takes the data over meanwhile. Unless the
    /// journal has ended, it is still that of a single server; else the conversion is to be repeated.
    pub async fn run(&self, clock: Clock) -> Result<ConvertibleData> {
        let found = self.look().await?;
        if !found.is_begun {
            self.end_single_server(clock).await?;
        }
        // From then on the map has the slots of the shards.
        let contents = Contents::of_engines(&self.options.store, &self.manifest().await?).await?;
        let lease = self.give_to_cluster().await?.lease();
        Ok(ConvertibleData {
            lease,
            keys: contents.keys(),
            is_exact: true,
            is_open: false,
            ..found
        })
    }

    /// Stores everything in the engines, and ends the journal for good.
    pub(super) async fn end_single_server(&self, clock: Clock) -> Result<()> {
        let store = &self.options.store;
        let directory = Directory::open(self.options.clone(), clock).await?;
        let epoch = directory.journal.epoch();
        let (engines, catalog) = (directory.engines(), Catalog::of(store));
        let checkpoints = catalog.list().await?;
        let contents = Contents::of_open(&directory).check(store);
        if let Err(refusal) = contents.and_then(|()| self.check_checkpoints(checkpoints.len())) {
            directory.close().await?;
            return Err(refusal);
        }
        for checkpoint in &checkpoints {
            catalog.remove(&engines, checkpoint).await?;
        }
        // As at a start: nobody would release the files that its branch keeps.
        remove_tree(&store.join(COPYING)).await?;
        catalog.clean(&engines).await?;
        directory.close().await?;
        let options = journal_options(&self.manifest().await?);
        Ok(BucketJournal::end_for_good(&self.journal(), &options, epoch).await?)
    }

    /// Makes the data that of a cluster, and returns its newest map. The journal must have ended for
    /// good.
    async fn give_to_cluster(&self) -> Result<Arc<ClusterMap>> {
        let store = &self.options.store;
        // Opening the directory has changed it.
        let manifest = self.manifest().await?;
        let (place, options) = (self.journal(), journal_options(&manifest));
        let journal = BucketJournal::look(&place, &options).await?;
        if !journal.is_ended {
            bail!("the journal {place} has not ended");
        }
        BucketJournal::remove_records(&place, &options).await?;
        let (layout, epoch) = (manifest.layout(), journal.epoch.max(manifest.epoch()));
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let origin = |shard| manifest.origin(shard);
        let first = || MapDraft::create_behind(epoch, &layout, &origin, lease_ms);
        let map = newest_or(&MapStore::new(store), first).await?;
        if map.shards.len() != usize::from(layout.shards()) || map.next_life <= epoch {
            bail!("the map of a cluster in {store} is that of other data");
        }
        let map = self.give_libraries(&manifest, map).await?;
        manifest.give_to_cluster(store).await?;
        Ok(map)
    }

    /// Makes the libraries of functions those of the cluster, unless an earlier conversion has, and servers
    /// may have changed them since.
    async fn give_libraries(
        &self,
        manifest: &Manifest,
        map: Arc<ClusterMap>,
    ) -> Result<Arc<ClusterMap>> {
        let controls = controls(&self.options.store, manifest).await?;
        let libraries = || controls.iter().flat_map(|(_, control)| control.libraries.values());
        if map.number() > 1 || libraries().next().is_none() {
            return Ok(map);
        }
        let store = &self.options.store;
        let id = LibraryStore::new(store).put(&map, libraries()).await?;
        let maps = MapStore::new(store);
        match maps.amend(|draft| draft.replace_functions(None, Some(id))).await {
            Ok(map) => Ok(map),
            // Another process converts the data, too: its object has the same.
            Err(AmendError::Refused(MapRefusal::OtherLibraries)) => Ok(map),
            Err(error) => Err(error.into()),
        }
    }

    fn check_checkpoints(&self, checkpoints: usize) -> Result<()> {
        if checkpoints > 0 && !self.removes_checkpoints {
            bail!(
                "{} has {checkpoints} checkpoints, which nobody can restore once it is a cluster's: make \
                 backups (`flagstone backup`), then convert it with --remove-checkpoints",
                self.options.store
            );
        }
        Ok(())
    }

    async fn manifest(&self) -> Result<Manifest> {
        let store = &self.options.store;
        if store.dir().is_some() {
            bail!(
                "{store} is a local directory, which servers cannot share: copy it to a bucket with \
                 `flagstone reshard --to`"
            );
        }
        let manifest = Manifest::read_any(store).await?;
        let manifest = manifest.with_context(|| format!("{store} is no data directory"))?;
        if manifest.is_of_cluster() {
            return Ok(manifest);
        }
        manifest.with_present_shards(store).await
    }

    fn journal(&self) -> Place {
        self.options.store.join("journal")
    }
}

fn journal_options(manifest: &Manifest) -> BucketOptions {
    BucketOptions { salt: manifest.salt(), ..BucketOptions::default() }
}
