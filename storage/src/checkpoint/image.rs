//! Images: the files of each shard in a checkpoint, and their locations.

use super::scratch::Scratch;
use super::{Catalog, Checkpoint};
use crate::journal::Lsn;
use crate::place::{Place, admin};
use anyhow::{Context, Result};
use futures::TryStreamExt;
use object_store::path::Path;
use std::collections::{BTreeMap, BTreeSet};
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
}

/// Returns the directory of a shard's engine, in a data directory.
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
        for (shard, engine) in checkpoint.shards.iter().enumerate() {
            let found = shard_pieces(place, shard, engine.manifest).await;
            pieces.extend(found.with_context(|| {
                format!("checkpoint {}: the files of shard {shard} in {place}", checkpoint.id)
            })?);
        }
        let (checkpoint, place) = (checkpoint.clone(), place.clone());
        let known = Some((checkpoint.lsn, checkpoint.created_ms));
        Ok(Self { checkpoint, place, pieces, records: vec![records], _scratch: None, known })
    }

    /// Returns the total size of its shards' files in bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.size).sum()
    }
}

async fn shard_pieces(place: &Place, shard: usize, manifest: u64) -> Result<Vec<ImageFile>> {
    let dir = engine_dir(shard);
    let engine = place.join(&dir);
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
        let at = engine.path(&name);
        pieces.push(ImageFile { name: format!("{dir}/{name}"), at, size, checksum: None });
    }
    let name = format!("{manifest:020}.manifest");
    let sizes = self::sizes(&engine.join("manifest")).await?;
    let size = *sizes.get(&name).with_context(|| format!("{name} is missing"))?;
    let name = format!("manifest/{name}");
    let at = engine.path(&name);
    pieces.push(ImageFile { name: format!("{dir}/{name}"), at, size, checksum: None });
    Ok(pieces)
}

/// Returns the objects below a place with their sizes, by their paths relative to it.
pub(crate) async fn sizes(place: &Place) -> Result<BTreeMap<String, u64>> {
    let store = place.store();
    let mut found = store.list(Some(place.root()));
    let mut sizes = BTreeMap::new();
    loop {
        match found.try_next().await {
            Ok(Some(meta)) => {
                if let Some(parts) = meta.location.prefix_match(place.root()) {
                    let name: Vec<_> = parts.map(|part| part.as_ref().to_owned()).collect();
                    sizes.insert(name.join("/"), meta.size);
                }
            }
            Ok(None) => return Ok(sizes),
            // The directory does not exist.
            Err(object_store::Error::NotFound { .. }) => return Ok(sizes),
            Err(error) => return Err(error).with_context(|| format!("listing {place}")),
        }
    }
}
