//! The control rows of a directory's shards.

use super::{EngineOpener, Manifest, OpenStore, ShardHome};
use crate::control::{Control, slots_row, unclosed};
use crate::encoding::{Library, SourcePosition, prefix_range, row};
use crate::engine::Engine;
use crate::engine::peek::peek;
use crate::pending::Batch;
use crate::place::Place;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Returns the manifest of a data directory, with the shards that there are now.
pub(crate) async fn manifest_of(store: &Place) -> Result<Manifest> {
    let manifest = read_manifest(store).await?;
    manifest.with_context(|| format!("{store} is no data directory"))
}

/// Returns the manifest of the directory of one server, with the shards that there are now; `None`: there is no
/// data directory.
pub(super) async fn read_manifest(store: &Place) -> Result<Option<Manifest>> {
    match Manifest::read(store).await? {
        Some(manifest) => manifest.with_present_shards(store).await.map(Some),
        None => Ok(None),
    }
}

impl Manifest {
    /// Returns this manifest with the shards that there are now: in a bucket the first one knows them.
    pub(crate) async fn with_present_shards(self, store: &Place) -> Result<Self> {
        let homes = self.homes();
        let Some(first) = homes.first().filter(|_| store.dir().is_none()) else { return Ok(self) };
        let control = peek_control(&store.with_shared().await?, first).await?;
        Ok(self.corrected(store, &control)?.unwrap_or(self))
    }
}

/// Opens the engines of all shards, and returns them with their control rows. In a bucket, only a process that has
/// opened the first one knows which shards there are: it corrects the manifest.
pub(super) async fn open_shards(
    opener: &EngineOpener,
    open_store: &OpenStore<'_>,
    manifest: &mut Manifest,
    store: &Place,
) -> Result<Vec<(u16, Engine, Control)>> {
    let engines = opener.open_all(manifest, open_store).await?;
    let opened = read_controls(engines, manifest, store).await?;
    let first = opened.first().map(|(.., control)| manifest.corrected(store, control));
    let Some(corrected) = first.transpose()?.flatten() else { return Ok(opened) };
    for (_, engine, _) in &opened {
        engine.close().await?;
    }
    *manifest = corrected;
    // Nobody else can change them any more.
    let engines = opener.open_all(manifest, open_store).await?;
    read_controls(engines, manifest, store).await
}

/// Returns the control rows of shards, with their numbers and engines.
async fn read_controls(
    engines: Vec<Engine>,
    manifest: &Manifest,
    store: &Place,
) -> Result<Vec<(u16, Engine, Control)>> {
    let mut opened = Vec::with_capacity(engines.len());
    for (home, engine) in manifest.homes().iter().zip(engines) {
        let control = read_control(home, &engine, store).await?;
        opened.push((home.id, engine, control));
    }
    Ok(opened)
}

/// Returns the control rows of a shard.
pub(super) async fn read_control(
    home: &ShardHome,
    engine: &Engine,
    store: &Place,
) -> Result<Control> {
    let rows = engine.scan(prefix_range(&[row::CONTROL]), usize::MAX).await?;
    let control = Control::read(&rows);
    let control = control
        .map_err(|what| anyhow::anyhow!("shard {} ({}): {what}", home.id, home.place(store)))?;
    Ok(home.own(control))
}

/// Returns the control rows of the shards without opening their engines; a shard without an engine
/// has none.
pub(crate) async fn peek_controls(
    store: &Place,
    manifest: &Manifest,
) -> Result<Vec<(u16, Control)>> {
    let mut found = Vec::new();
    for home in manifest.homes() {
        found.push((home.id, home.own(peek_control(store, &home).await?)));
    }
    Ok(found)
}

/// Returns the control rows of a shard without opening its engine; without an engine it has none.
pub(crate) async fn peek_control(store: &Place, home: &ShardHome) -> Result<Control> {
    let (id, mut place) = (home.id, home.engine_place(store));
    if home.is_split_off() {
        place = place.with_shared().await?;
    }
    let rows = peek(&place, &[row::CONTROL]).await?;
    let control = Control::read(&rows.unwrap_or_default());
    control.map_err(|what| anyhow::anyhow!("shard {id} ({place}): {what}"))
}

/// Returns the batch that replaces control rows which the next record makes untrue: that the shard
/// is complete, its filter of keys, its identity, and its slots.
pub(crate) fn outdated(control: &Control, home: &ShardHome, manifest: &Manifest) -> Batch {
    let identity = Some(manifest.identity(home.id)).filter(|own| control.identity != Some(*own));
    let own = home.slots.as_ref().map(|own| &own.0);
    let slots = (control.slots.as_ref() != own).then(|| slots_row(own));
    unclosed(control).chain(identity.map(|own| own.row())).chain(slots).collect()
}

/// Returns these batches of all shards, with their engines.
pub(super) fn all_outdated(
    opened: &[(u16, Engine, Control)],
    manifest: &Manifest,
) -> Vec<(Engine, Batch)> {
    let homes = opened.iter().zip(manifest.homes());
    homes.map(|((_, engine, c), home)| (engine.clone(), outdated(c, &home, manifest))).collect()
}

/// Takes the libraries of functions, and the position in the stream of another server, from the control
/// rows of all shards.
pub(super) fn take_shared<'a>(
    controls: impl Iterator<Item = &'a mut Control>,
) -> (BTreeMap<Box<[u8]>, Library>, SourcePosition) {
    let (mut libraries, mut source) = (BTreeMap::new(), SourcePosition::default());
    for control in controls {
        libraries.append(&mut control.libraries);
        source = source.later(control.source.take());
    }
    (libraries, source)
}
