//! The fences of an engine.
//!
//! SlateDB puts an empty WAL object, a *fence*, each time an engine is opened, although the engine has
//! no WAL. It numbers the fence behind those that it finds from the manifest's `replay_after_wal_id`
//! on. A flush of rows moves that number up; until then each start adds a fence, and `next_wal_sst_id`
//! in the manifest follows. That number must never go back: with a lower one the engine closes itself
//! at its next write of the manifest.
//!
//! The files of a checkpoint, and so backups and branches, come without fences. This module creates
//! the missing ones, so that an opening finds as many as the manifest counts.

#[cfg(test)]
mod tests;

use crate::place::Place;
use anyhow::{Context, Result, bail};
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{Error, PutMode, PutPayload};
use slatedb::VersionedManifest;
use std::collections::BTreeSet;

/// Fences that are put at the same time.
const AT_ONCE: usize = 16;

/// Maximum number of missing fences: more were never put, so the manifest is damaged.
const MAX_MISSING: u64 = 1 << 20;

/// Creates the fences that the manifest of an engine counts and that are missing. Makes no request
/// to the store if the manifest counts none, as after a clean stop.
pub(super) async fn complete(place: &Place, manifest: &VersionedManifest) -> Result<()> {
    let (after, next) = (manifest.replay_after_wal_id(), manifest.next_wal_sst_id());
    let counted = next.saturating_sub(1).saturating_sub(after);
    if counted == 0 {
        return Ok(());
    }
    let there = numbers(place, after).await.with_context(|| format!("the fences in {place}"))?;
    let found = there.range(after + 1..next).count() as u64;
    if counted - found > MAX_MISSING {
        bail!("the manifest of {place} is damaged: it counts {counted} starts since a flush");
    }
    if counted > found {
        let missing = (after + 1..next).filter(|number| !there.contains(number));
        let put = missing.map(|number| put(place, number));
        stream::iter(put).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    }
    Ok(())
}

fn name(number: u64) -> String {
    format!("wal/{number:020}.sst")
}

/// Returns the numbers of the existing fences behind `after`.
async fn numbers(place: &Place, after: u64) -> Result<BTreeSet<u64>> {
    let number = |path: &Path| path.filename()?.strip_suffix(".sst")?.parse::<u64>().ok();
    let (dir, offset) = (place.path("wal"), place.path(&name(after)));
    let listed = place.store().list_with_offset(Some(&dir), &offset);
    let numbers = listed.try_filter_map(|meta| async move { Ok(number(&meta.location)) });
    match numbers.try_collect().await {
        // The local directory does not exist.
        Err(Error::NotFound { .. }) => Ok(BTreeSet::new()),
        numbers => Ok(numbers?),
    }
}

async fn put(place: &Place, number: u64) -> Result<()> {
    let fence = PutPayload::default();
    match place.store().put_opts(&place.path(&name(number)), fence, PutMode::Create.into()).await {
        Ok(_) | Err(Error::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("writing {place}/{}", name(number))),
    }
}
