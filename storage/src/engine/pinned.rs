//! Engines of other processes, opened for reading.
//!
//! A pinned engine has the files of the manifest that was the newest when it was opened, and no others: a
//! reader that followed newer ones would show rows of records that its process has not read yet. Nothing
//! is stored for it, not even a checkpoint, so its files may be deleted once the owner has replaced them
//! and the time for which it keeps replaced ones is over ([`Upkeep::keep_files`](super::Upkeep)).

use super::database::Database;
use super::figures::Meters;
use super::garbage::Garbage;
use super::memtables::{self, Memtables};
use super::points::Points;
use super::settings::cache_options;
use super::{Claim, Engine, How, OPENING, OpenDb, Upkeep, with_causes, within};
use crate::clock::Clock;
use crate::place::{Guarded, Place};
use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use slatedb::config::DbReaderOptions;
use slatedb::db_cache::DbCache;
use slatedb::{DbReader, DbReaderMode, SstReader};
use slatedb_common::clock::{DefaultSystemClock, SystemClock, SystemClockTicker};
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::runtime::Handle;

/// The files of a pinned engine. Its reader is closed once nobody uses it any more.
pub(super) struct PinnedFiles {
    pub(super) reader: Arc<DbReader>,
    runtime: Handle,
}

impl Drop for PinnedFiles {
    fn drop(&mut self) {
        let reader = self.reader.clone();
        // It stores nothing, so that an error has nothing to say.
        self.runtime.spawn(async move { drop(reader.close().await) });
    }
}

/// A clock on which no ticker ever ticks: SlateDB looks for no newer manifest.
#[derive(Debug, Default)]
struct NoTicks {
    own: DefaultSystemClock,
    ticks: StoppedClock,
}

/// The clock of its tickers.
#[derive(Debug, Default)]
struct StoppedClock(DefaultSystemClock);

impl SystemClock for StoppedClock {
    fn now(&self) -> DateTime<Utc> {
        self.0.now()
    }

    fn sleep<'a>(&'a self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(pending())
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}

impl SystemClock for NoTicks {
    fn now(&self) -> DateTime<Utc> {
        self.own.now()
    }

    fn sleep<'a>(&'a self, of: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.own.sleep(of)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(&self.ticks, duration)
    }
}

impl Engine {
    /// Opens the engine of another process as it is stored now. Must run on the background runtime.
    ///
    /// # Errors
    /// Also if there is none.
    pub(crate) async fn pin(
        place: &Place,
        (cache, cache_id): (Arc<dyn DbCache>, u64),
        clock: Clock,
        upkeep: &Upkeep,
    ) -> Result<Self> {
        let how = How {
            place: place.clone(),
            cache,
            cache_id,
            clock,
            upkeep: upkeep.clone(),
            claim: Claim::Owner,
        };
        let store = Arc::new(Guarded::new(place.store(), false));
        let writes = store.writes().clone();
        let opening = Box::pin(how.pin(store));
        let opened = within(OPENING, &writes, opening).await;
        let opened = opened.with_context(|| format!("reading the engine of {place}"))?;
        let opened = Arc::new(RwLock::new(opened));
        let next_claim = Arc::new(std::sync::Mutex::new(how.claim));
        Ok(Self { opened, turn: Arc::default(), how: Arc::new(how), next_claim })
    }
}

impl How {
    async fn pin(&self, store: Arc<Guarded>) -> Result<OpenDb> {
        let (path, upkeep) = (self.place.root().clone(), &self.upkeep);
        let meters = Arc::new(Meters::default());
        let options = DbReaderOptions {
            skip_wal_replay: true,
            object_store_cache_options: cache_options(upkeep),
            ..DbReaderOptions::default()
        };
        let opening = DbReader::builder(path.clone(), store.clone())
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(options)
            .with_db_cache(self.cache.clone(), self.cache_id)
            .with_metrics_recorder(meters.clone())
            .with_system_clock(Arc::new(NoTicks::default()))
            .build();
        let reader = Box::pin(opening).await.map_err(with_causes)?;
        let files = Arc::new(SstReader::new(path, store.clone(), None, None));
        Ok(OpenDb {
            db: Database::Pinned(Arc::new(PinnedFiles {
                reader: Arc::new(reader),
                runtime: Handle::current(),
            })),
            files,
            garbage: Arc::new(Garbage::new(upkeep.least_garbage)),
            written: Arc::default(),
            memtables: Arc::new(Memtables::new(upkeep)),
            writes: store.writes().clone(),
            hurry: Arc::default(),
            points: Arc::new(Points::new(memtables::limit(upkeep), upkeep.readers.clone())),
            readers: Arc::default(),
            meters,
            clean: Arc::default(),
            slots: upkeep.slots.clone(),
        })
    }
}
