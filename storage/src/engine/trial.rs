//! Tries the files of an engine: it is opened as a start would open it and writes its manifest, but
//! all its writes stay in memory.

use super::machine::check_cpus;
use super::settings::engine_settings;
use super::{BLOCK, EngineClock, OPENING, Upkeep, fences};
use super::{with_causes, within};
use crate::clock::Clock;
use crate::control::Control;
use crate::encoding::{prefix_range, row};
use crate::place::{Place, Writes, admin};
use anyhow::{Context, Result};
use object_store::path::Path;
use slatedb::Db;
use slatedb::config::{CheckpointOptions, CheckpointScope, Settings};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

/// Opens an engine whose files are in a place, each with its name in the engine, its path in the
/// place and its size, and returns its control rows.
///
/// # Errors
/// If a start could not open it, or if it closed itself at its first flush.
pub(crate) async fn try_engine(
    place: &Place,
    files: impl Iterator<Item = (String, Path, u64)>,
) -> Result<Control> {
    check_cpus()?;
    let files: BTreeMap<_, _> =
        files.map(|(name, at, size)| (Path::from(format!("db/{name}")), (at, size))).collect();
    let engine = place.in_memory(files).join("db");
    let admin = admin(engine.store(), engine.root().as_ref());
    let manifest = in_time(Box::pin(admin.read_manifest(None))).await?;
    let manifest = manifest.context("it has no manifest")?;
    fences::complete(&engine, &manifest).await?;
    let clock = Clock::default();
    clock.at_least(u64::try_from(manifest.last_l0_clock_tick()).unwrap_or(0));
    let upkeep = Upkeep::default();
    let clock = EngineClock::new(&clock, &upkeep, &Arc::default(), &Arc::default());
    // No merge or collection runs meanwhile.
    let settings = Settings { garbage_collector_options: None, ..engine_settings(&upkeep) };
    let opening = Db::builder(engine.root().clone(), engine.store())
        .with_settings(settings)
        .with_sst_block_size(BLOCK)
        .with_db_cache_disabled()
        .with_system_clock(Arc::new(clock))
        .build();
    let db = in_time(Box::pin(opening)).await?;
    let tried = in_time(Box::pin(read_and_write(&db))).await;
    // The engine has nothing to lose, and may have closed itself.
    let _ = in_time(Box::pin(db.close())).await;
    let rows = tried?;
    Control::read(&rows).map_err(anyhow::Error::msg)
}

/// Waits for the engine within a limit, as it may retry without end.
async fn in_time<T>(work: impl Future<Output = Result<T, slatedb::Error>>) -> Result<T> {
    within(OPENING, &Writes::default(), async { work.await.map_err(with_causes) }).await
}

/// Reads the control rows, and writes the manifest as a flush does.
async fn read_and_write(db: &Db) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>, slatedb::Error> {
    let mut found = db.scan(prefix_range(&[row::CONTROL])).await?;
    let mut rows = Vec::new();
    while let Some(row) = found.next().await? {
        rows.push((row.key, row.value));
    }
    db.create_checkpoint(CheckpointScope::All, &CheckpointOptions::default()).await?;
    Ok(rows)
}
