//! `flagstone.json`: what is fixed when a data directory is created.

use super::OpenOptions;
use super::new_directory::UNFINISHED;
use crate::place::Place;
use crate::slot::Layout;
use anyhow::{Context, Result, bail};
use object_store::{ObjectStoreExt, PutMode, PutPayload};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The version of the formats on disk that this program writes.
const FORMAT: u32 = 1;

/// Most shards of a node.
const MAX_SHARDS: u16 = 1024;

const NAME: &str = "flagstone.json";

/// What it is called until it is whole.
pub(super) const TEMPORARY: &str = "flagstone.json.new";

/// What is fixed when a data directory is created.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(super) struct Manifest {
    format: u32,
    pub(super) shards: u16,
    /// Seed of the key hashes that rows carry.
    pub(super) seed: u64,
    /// Marks this journal's headers.
    pub(super) salt: u32,
}

impl Manifest {
    /// Reads what the store has, or creates it.
    pub(super) async fn open(options: &OpenOptions) -> Result<Self> {
        let store = &options.store;
        let manifest = match Self::read(store).await? {
            Some(manifest) => manifest,
            None => Self::create(options).await?,
        };
        if let Some(asked) = options.shards
            && asked != manifest.shards
        {
            bail!(
                "{store} has {} shards, and that is fixed: start without `shards` or with \
                 `shards {}`",
                manifest.shards,
                manifest.shards
            );
        }
        Ok(manifest)
    }

    /// `None`: there is none.
    pub(super) async fn read(store: &Place) -> Result<Option<Self>> {
        let place = store.join(NAME);
        let bytes = match store.dir() {
            Some(dir) => match fs::read(dir.join(NAME)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                read => read.with_context(|| format!("reading {place}"))?,
            },
            None => match place.store().get(place.root()).await {
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                got => {
                    let reading = || format!("reading {place}");
                    got.with_context(reading)?.bytes().await.with_context(reading)?.to_vec()
                }
            },
        };
        Self::decode(&place, &bytes).map(Some)
    }

    fn decode(place: &Place, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let damaged = || format!("{place} is damaged");
        let version: Version = serde_json::from_slice(bytes).with_context(damaged)?;
        if version.format != FORMAT {
            bail!("{place} has format {}; this program knows format {FORMAT} only", version.format);
        }
        let manifest: Self = serde_json::from_slice(bytes).with_context(damaged)?;
        if !(1..=MAX_SHARDS).contains(&manifest.shards) {
            bail!("{place} is damaged: {} shards", manifest.shards);
        }
        Ok(manifest)
    }

    pub(super) fn of(layout: &Layout, salt: u32) -> Self {
        Self { format: FORMAT, shards: layout.shards, seed: layout.seed, salt }
    }

    async fn create(options: &OpenOptions) -> Result<Self> {
        let store = &options.store;
        if let Some(name) = names(store).await?.iter().find(|name| is_of_a_directory(name)) {
            bail!("{store} holds {name} but no {NAME}: it is not a whole data directory");
        }
        let shards = options.shards.unwrap_or(options.default_shards).clamp(1, MAX_SHARDS);
        Self { format: FORMAT, shards, seed: rand::random(), salt: rand::random() }
            .store(store)
            .await
    }

    /// The same for another number of shards.
    pub(super) fn with_shards(&self, shards: u16) -> Result<Self> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            bail!("{shards} shards: there may be 1 to {MAX_SHARDS}");
        }
        Ok(Self { shards, salt: rand::random(), ..self.clone() })
    }

    /// Writes it: from then on the place is a data directory. What is there already counts, if
    /// another process has been faster.
    pub(super) async fn store(self, store: &Place) -> Result<Self> {
        let manifest = self;
        let text = manifest.encode()?;
        let Some(dir) = store.dir() else { return Self::put(store, manifest, text).await };
        write(dir, &text).with_context(|| format!("creating {}", store.join(NAME)))?;
        Ok(manifest)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Puts it unless another process has been faster: then its one counts.
    async fn put(store: &Place, manifest: Self, text: Vec<u8>) -> Result<Self> {
        let place = store.join(NAME);
        let payload = PutPayload::from(text);
        match place.store().put_opts(place.root(), payload, PutMode::Create.into()).await {
            Ok(_) => Ok(manifest),
            // A retry that finds what it had stored itself comes here too.
            Err(object_store::Error::AlreadyExists { .. }) => {
                let found = Self::read(store).await?;
                found.with_context(|| format!("{place} was deleted"))
            }
            Err(error) => Err(error).with_context(|| format!("creating {place}")),
        }
    }
}

/// Whether there is a data directory.
pub async fn is_data_directory(store: &Place) -> Result<bool> {
    Ok(Manifest::read(store).await?.is_some())
}

/// The layout of a data directory, and the salt of its journal.
pub(crate) async fn identity_of(store: &Place) -> Result<(Layout, u32)> {
    let manifest = Manifest::read(store).await?;
    let manifest = manifest.with_context(|| format!("{store} is no data directory"))?;
    Ok((Layout { shards: manifest.shards, seed: manifest.seed }, manifest.salt))
}

/// Makes a data directory of what is in `store`, as the last step.
pub(crate) async fn create_manifest_of(store: &Place, layout: &Layout, salt: u32) -> Result<()> {
    Manifest::of(layout, salt).store(store).await?;
    Ok(())
}

pub(super) fn is_of_a_directory(name: &str) -> bool {
    name == "journal" || name == UNFINISHED || name.starts_with("shard-")
}

/// The names right below a place.
async fn names(store: &Place) -> Result<Vec<String>> {
    let listing = || format!("listing {store}");
    if let Some(dir) = store.dir() {
        let entries = fs::read_dir(dir).with_context(listing)?;
        let name = |entry: io::Result<fs::DirEntry>| {
            entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        return entries.map(name).collect::<io::Result<_>>().with_context(listing);
    }
    let root = (!store.root().is_root()).then(|| store.root());
    let listed = store.store().list_with_delimiter(root).await.with_context(listing)?;
    Ok(listed.common_prefixes.iter().filter_map(|p| p.filename().map(str::to_owned)).collect())
}

/// Writes the file durably, whole or not at all.
fn write(dir: &Path, text: &[u8]) -> io::Result<()> {
    let path = dir.join(NAME);
    let temporary = dir.join(TEMPORARY);
    let mut file = File::create(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}
