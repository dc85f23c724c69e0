//! The engines of the shards that are attached, for figures.

use flagstone_storage::engine::{Closed, Engine, EngineFigures};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Engines by shard. A shard's worker adds and removes its own.
#[derive(Default)]
pub struct AttachedEngines(RwLock<BTreeMap<u16, Engine>>);

impl AttachedEngines {
    /// Creates the table of a directory that has all its shards from the start.
    pub(super) fn of(engines: &[Engine]) -> Self {
        Self(RwLock::new((0..).zip(engines.iter().cloned()).collect()))
    }

    pub fn add(&self, shard: u16, engine: Engine) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(shard, engine);
    }

    pub fn remove(&self, shard: u16) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&shard);
    }

    /// Returns the figures of each engine, in the order of the shards.
    pub fn figures(&self) -> Vec<(u16, EngineFigures)> {
        self.read().iter().map(|(shard, engine)| (*shard, engine.figures())).collect()
    }

    /// Returns a shard whose engine has closed itself because another process has opened its files.
    pub fn fenced(&self) -> Option<u16> {
        let engines = self.read();
        let mut fenced = engines.iter().filter(|(_, it)| it.closed() == Some(Closed::Fenced));
        fenced.next().map(|(shard, _)| *shard)
    }

    /// Releases files of other shards that the shards do not need any more which were split from these.
    pub async fn release_shared(&self) {
        let engines: Vec<Engine> = self.read().values().cloned().collect();
        for engine in engines {
            if let Err(error) = engine.release_shared().await {
                tracing::warn!("{error:#}");
            }
        }
    }

    /// Returns one of them, which has what all share; `None`: there is none.
    pub fn any(&self) -> Option<Engine> {
        self.read().first_key_value().map(|(_, engine)| engine.clone())
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u16, Engine>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}
