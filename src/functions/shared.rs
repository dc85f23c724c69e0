//! The libraries of a cluster of several servers: one object, which the map names (RFC 20).
//!
//! A change is made from the libraries that the newest map names, as a new object, and counts once the
//! map names that. All servers follow the map. Both are done under the turn of an [`Edit`], so the
//! libraries here are always those of some map, and never go back.

use super::registry::{Edit, Functions};
use crate::cluster::Cluster;
use flagstone_storage::cluster::{AmendError, ClusterMap, ClusterSeat, LibrariesId, MapRefusal};
use flagstone_storage::encoding::Library as Row;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Times that libraries are looked for again because a newer map has others.
const LOOKS: usize = 16;

/// How long after a deletion by another server a client may delete the library here, too: clients send
/// FUNCTION DELETE to all servers in turn.
const DELETED: Duration = Duration::from_secs(10);

/// Maximum number of names of libraries that other servers have deleted.
const MAX_DELETED: usize = 1000;

/// The fate of a change of the libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryFate {
    /// It counts, and is in effect here: the object that it replaced is not needed any more.
    Counts { replaced: Option<LibrariesId> },
    /// Another server has changed them first: the object of the change will never count.
    Overtaken { put: Option<LibrariesId> },
}

impl LibraryFate {
    /// Returns the object that nobody needs any more.
    pub fn unneeded(self) -> Option<LibrariesId> {
        match self {
            Self::Counts { replaced: id } | Self::Overtaken { put: id } => id,
        }
    }
}

/// See the module's description.
pub struct SharedLibraries {
    seat: Arc<ClusterSeat>,
    cluster: Arc<Cluster>,
    /// Libraries that other servers have deleted, and when this one has noticed.
    deleted: Mutex<BTreeMap<Box<[u8]>, Instant>>,
    /// Held while objects are deleted.
    pruning: tokio::sync::Mutex<()>,
}

impl SharedLibraries {
    /// Creates the libraries of a server that has joined, and has loaded none yet.
    pub fn new((seat, cluster): (Arc<ClusterSeat>, Arc<Cluster>)) -> Self {
        Self { seat, cluster, deleted: Mutex::default(), pruning: tokio::sync::Mutex::default() }
    }

    /// Returns the newest map.
    ///
    /// # Errors
    /// The error text, if the store does not answer.
    pub async fn newest_map(&self) -> Result<Arc<ClusterMap>, String> {
        let newest = self.seat.maps().newest().await.map_err(|error| error.to_string())?;
        let newest = newest.ok_or("the map of the cluster is gone")?;
        self.cluster.learn(&newest);
        Ok(newest)
    }

    /// Loads the libraries that the newest known map names.
    ///
    /// # Errors
    /// See [`load`](Self::load).
    pub async fn follow(&self, functions: &Functions) -> Result<(), String> {
        let mut edit = functions.edit().await;
        let map = self.cluster.map();
        self.load(functions, &mut edit, map).await.map(drop)
    }

    /// Loads the libraries that a map names, or those of a newer one if it was replaced meanwhile.
    /// Returns that map. The change must have made no others yet.
    ///
    /// # Errors
    /// The error text, without a code, if the store does not answer, or has no valid object of them.
    pub async fn load(
        &self,
        functions: &Functions,
        edit: &mut Edit,
        mut map: Arc<ClusterMap>,
    ) -> Result<Arc<ClusterMap>, String> {
        for _ in 0..LOOKS {
            let wanted = map.functions();
            if self.is_loaded(&map) {
                return Ok(map);
            }
            let rows = match wanted {
                None => Some(Vec::new()),
                Some(id) => {
                    let read = self.seat.libraries().read(id).await;
                    read.map_err(|error| error.to_string())?
                }
            };
            if let Some(rows) = rows {
                self.note_deleted(edit, &rows);
                edit.replace(rows)?;
                edit.apply(functions);
                self.cluster.set_libraries(wanted);
                return Ok(map);
            }
            // Whoever deletes an object has replaced it before.
            map = self.newest_map().await?;
            if map.functions() == wanted {
                return Err("the object of the cluster's libraries of functions is gone".to_owned());
            }
        }
        Err("other servers change the libraries faster than they can be read".to_owned())
    }

    /// Returns true if the libraries here are those that a map names.
    pub fn is_loaded(&self, map: &ClusterMap) -> bool {
        self.cluster.libraries() == map.functions()
    }

    /// Stores a change that was made from the libraries of `base`, and puts it into effect once it
    /// counts. Must be run to its end.
    ///
    /// # Errors
    /// The error text, if the store does not answer. Then the change may count, or not: this server
    /// follows the map.
    pub async fn store(
        &self,
        functions: &Functions,
        edit: &mut Edit,
        base: &ClusterMap,
    ) -> Result<LibraryFate, String> {
        let from = base.functions();
        let to = match edit.rows().len() {
            0 => None,
            _ => {
                let put = self.seat.libraries().put(base, edit.rows()).await;
                Some(put.map_err(|error| format!("ERR nothing has changed: {error}"))?)
            }
        };
        let replaced = self.seat.maps().amend(|draft| draft.replace_functions(from, to)).await;
        match replaced {
            Ok(newest) => {
                edit.apply(functions);
                self.cluster.set_libraries(to);
                self.cluster.learn(&newest);
                Ok(LibraryFate::Counts { replaced: from })
            }
            Err(AmendError::Refused(MapRefusal::OtherLibraries | MapRefusal::LateLibraries)) => {
                Ok(LibraryFate::Overtaken { put: to })
            }
            Err(error @ (AmendError::Unknown { .. } | AmendError::Forgotten(_))) => {
                self.cluster.hinted.notify_one();
                Err(format!("ERR It is not known if the libraries have changed: {error}"))
            }
            Err(error) => Err(format!("ERR nothing has changed: {error}")),
        }
    }

    /// Deletes an object that nobody needs any more, and some that nobody can need, unless that is being
    /// done: what is left is deleted after a later change.
    pub async fn prune(&self, unneeded: Option<LibrariesId>) {
        let Ok(_turn) = self.pruning.try_lock() else { return };
        let objects = self.seat.libraries();
        let pruned = async {
            if let Some(id) = unneeded {
                objects.remove(id).await?;
            }
            objects.prune(&self.cluster.map()).await
        };
        if let Err(error) = pruned.await {
            tracing::warn!(%error, "former libraries of functions are left behind");
        }
    }

    /// Notes which libraries are not among the rows that replace them.
    fn note_deleted(&self, edit: &Edit, rows: &[Row]) {
        let now = Instant::now();
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.retain(|name, at| {
            now.duration_since(*at) < DELETED && rows.iter().all(|row| row.name != *name)
        });
        for library in edit.libraries().iter() {
            if deleted.len() < MAX_DELETED && rows.iter().all(|row| row.name != library.name) {
                deleted.insert(library.name.clone(), now);
            }
        }
    }

    /// Returns true, once, if another server has just deleted a library.
    pub fn was_deleted(&self, name: &[u8]) -> bool {
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        deleted.remove(name).is_some_and(|at| at.elapsed() < DELETED)
    }
}
