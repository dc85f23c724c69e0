//! Images: the files of each shard in a checkpoint, and their locations.

use super::scratch::Scratch;
use super::{Catalog, Checkpoint};
use crate::directory::ShardHome;
use crate::engine::checkpoint::EngineCheckpoint;
use crate::journal::Lsn;
use crate::place::{Place, admin, sizes};
use anyhow::{Context, Result};
use object_store::path::Path;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// One file with rows of a shard, or its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Its path in a data directory.
    pub name: String,
    /// Its path in the image's store.
    pub(super) at: Path,
    pub size: u64,
    /// XXH3 (128 bits) of its bytes, if it is known.
    pub checksum: Option<u128>,
}

impl ImageFile {
    /// Returns true if the file has rows: such files have unique names, and are never changed.
    pub(super) fn has_rows(&self) -> bool {
        self.name.ends_with(".sst")
    }
}

/// A checkpoint with its files.
#[derive(Debug)]
pub struct Image {
    pub checkpoint: Checkpoint,
    pub(super) place: Place,
    pub(super) pieces: Vec<ImageFile>,
    /// The local directories of its records, in order: the checkpoint's own, then those of later
    /// records.
    pub(super) records: Vec<PathBuf>,
    /// Directory of records that had to be fetched.
    pub(super) _scratch: Option<Scratch>,
    /// An lsn, and a time up to which all records are known if those up to this lsn are.
    pub(super) known: Option<(Lsn, u64)>,
    /// The reason for which the records end although there were more, if that is known.
    pub(super) broken: Option<String>,
}

/// Returns the directory of a shard's engine, in a data directory that is made anew.
pub(crate) fn engine_dir(shard: usize) -> String {
    format!("shard-{shard}/db")
}

impl Image {
    /// Creates the image of a checkpoint of the data directory whose shards are in `store`. The
    /// checkpoint must not be removed meanwhile.
    pub async fn of_checkpoint(store: &Place, checkpoint: &Checkpoint) -> Result<Self> {
        let (records, scratch) = Catalog::of(store).local_records(&checkpoint.id).await?;
        let image = Self::with_records(store, checkpoint, records).await?;
        Ok(Self { _scratch: scratch, ..image })
    }

    /// Like [`of_checkpoint`](Self::of_checkpoint), with the records in a local directory.
    pub(super) async fn with_records(
        place: &Place,
        checkpoint: &Checkpoint,
        records: PathBuf,
    ) -> Result<Self> {
        let place = &place.with_shared().await?;
        let mut pieces = Vec::new();
        for (shard, state) in checkpoint.shards.iter().enumerate() {
            let found = shard_pieces(place, shard, state).await;
            pieces.extend(found.with_context(|| {
                format!("checkpoint {}: the files of shard {shard} in {place}", checkpoint.id)
            })?);
        }
        let (checkpoint, place) = (checkpoint.clone(), place.clone());
        let known = Some((checkpoint.lsn, checkpoint.created_ms));
        let (records, broken) = (vec![records], None);
        Ok(Self { checkpoint, place, pieces, records, _scratch: None, known, broken })
    }

    /// Returns true if a file is not one of its shard's engine, but of another one that it shares files with.
    pub(super) fn shares(&self, piece: &ImageFile) -> bool {
        let own = || {
            let (dir, name) = piece.name.strip_prefix("shard-")?.split_once("/db/")?;
            let shard: usize = dir.parse().ok()?;
            Some(engine_of(&self.place, shard, self.checkpoint.shards.get(shard)?).path(name))
        };
        self.place.shares(&piece.at) || own().as_ref() != Some(&piece.at)
    }

    /// Returns the total size of its shards' files in bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size).sum()
    }
}

/// Returns the place of a shard's engine in the data directory that the image is of.
pub(super) fn engine_of(place: &Place, shard: usize, state: &EngineCheckpoint) -> Place {
    match state.made_by {
        Some(epoch) => place.join(&format!("{}/db", ShardHome::split_name(shard, epoch))),
        None => place.join(&engine_dir(shard)),
    }
}

async fn shard_pieces(
    place: &Place,
    shard: usize,
    state: &EngineCheckpoint,
) -> Result<Vec<ImageFile>> {
    let (dir, manifest) = (engine_dir(shard), state.manifest);
    let mut engine = engine_of(place, shard, state);
    if state.made_by.is_some() {
        engine = engine.with_shared().await?;
    }
    let admin = admin(place.store(), engine.root().as_ref());
    let listed = admin.read_manifest(Some(manifest)).await?;
    let listed = listed.with_context(|| format!("manifest {manifest} is missing"))?;
    let wanted: BTreeSet<String> =
        listed.all_sst_views().map(|view| format!("{}.sst", view.sst.id.value())).collect();
    let sizes = sizes(&engine.join("compacted")).await?;
    let mut pieces = Vec::with_capacity(wanted.len() + 1);
    for name in wanted {
        let size = *sizes.get(&name).with_context(|| format!("{name} is missing"))?;
        let name = format!("compacted/{name}");
        // The file may be one of the shard that this one was split from.
        let at = engine.location(&name);
        pieces.push(ImageFile { name: format!("{dir}/{name}"), at, size, checksum: None });
    }
    let name = format!("{manifest:020}.manifest");
    let sizes = crate::place::sizes(&engine.join("manifest")).await?;
    let size = *sizes.get(&name).with_context(|| format!("{name} is missing"))?;
    let name = format!("manifest/{name}");
    let at = engine.path(&name);
    pieces.push(ImageFile { name: format!("{dir}/{name}"), at, size, checksum: None });
    Ok(pieces)
}
