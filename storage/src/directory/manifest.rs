//! `flagstone.json`: the facts that are fixed when a data directory is created, the slots of its shards
//! once one was split, and the journal's epoch.

use super::new_directory::UNFINISHED;
use super::{OpenOptions, ShardHome};
use crate::control::{Control, Identity};
use crate::division::{Division, PartOrigin, ShardPart};
use crate::journal::of_link;
use crate::place::Place;
use crate::slot::{Layout, MAX_SHARDS, SplitPlan, check_division};
use anyhow::{Context, Result, anyhow, bail};
use object_store::{ObjectStoreExt, PutMode, PutPayload};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The version of the formats on disk that this program writes, for the directory of one server, for that
/// of a cluster, and for that of one server once a shard was split, in a local directory or in a bucket.
const FORMAT: u32 = 1;
const CLUSTER_FORMAT: u32 = 2;
const SPLIT_FORMAT: u32 = 3;
const SPLIT_REMOTE_FORMAT: u32 = 4;

const NAME: &str = "flagstone.json";

/// Name of the file until it is whole.
pub(super) const TEMPORARY: &str = "flagstone.json.new";

/// Permissions: for the owner only.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;

/// Contents of `flagstone.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// True if the directory belongs to a cluster, whose map tells who owns which shard.
    cluster: bool,
    /// Number of shards at the creation.
    pub(super) created: u16,
    /// The shards, if any was split since. In a cluster the map has them; in a bucket this is a note of what
    /// the first shard has.
    parts: Option<Vec<ShardPart>>,
    /// Seed of the key hashes that rows carry.
    pub(super) seed: u64,
    /// Marks this journal's headers.
    pub(super) salt: u32,
    /// Id of the directory, unique.
    pub(super) id: u128,
    /// True if all shards carry this identity. Before that, some may have none, or that of the
    /// directory from which they were copied.
    pub(super) identified: bool,
    /// The newest epoch that the journal has begun, as far as it was noted here; 0: none.
    pub(super) epoch: u64,
    /// True if the file exists, so that changes are written to it.
    is_stored: bool,
}

/// The file as JSON. The last four fields are missing in files of earlier versions.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    format: u32,
    /// Number of shards at the creation.
    shards: u16,
    /// First and last slot of each shard, in the split format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<Vec<(u16, u16)>>,
    /// From which shard and in which epoch each was split, in the format of buckets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origins: Option<Vec<Option<(u16, u64)>>>,
    seed: u64,
    salt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identified: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

impl Manifest {
    /// Reads the file of the store, or creates it.
    pub(super) async fn open(options: &OpenOptions) -> Result<Self> {
        let store = &options.store;
        let manifest = match Self::read(store).await? {
            Some(manifest) => manifest,
            None => Self::create(options, false).await?,
        };
        if let Some(asked) = options.shards
            && ![manifest.created, manifest.shards()].contains(&asked)
        {
            let shards = manifest.shards();
            bail!(
                "{store} has {shards} shards, and that is fixed: start without `shards` or with \
                 `shards {shards}`, and split shards with FLAGSTONE SPLIT"
            );
        }
        Ok(manifest)
    }

    /// Reads the file of the directory of one server; `None` if there is none.
    ///
    /// # Errors
    /// Also if it is that of a cluster.
    pub(super) async fn read(store: &Place) -> Result<Option<Self>> {
        let found = Self::read_any(store).await?;
        if found.as_ref().is_some_and(|manifest| manifest.cluster) {
            bail!(
                "{store} is the data of a cluster: start servers on it with `cluster-enabled yes`; \
                 commands for the data directory of one server do not apply"
            );
        }
        Ok(found)
    }

    /// Reads the file of a cluster's directory, or creates it.
    pub(crate) async fn open_cluster(options: &OpenOptions) -> Result<Self> {
        let store = &options.store;
        match Self::read_any(store).await? {
            Some(manifest) if manifest.cluster => Ok(manifest),
            Some(_) => bail!(
                "{store} is the data of a single server, and no cluster's: convert it with \
                 `flagstone cluster convert`, start without `cluster-enabled`, or choose another \
                 place for the cluster"
            ),
            None => Self::create(options, true).await,
        }
    }

    /// Reads the file, of one server or of a cluster; `None` if there is none.
    pub(crate) async fn read_any(store: &Place) -> Result<Option<Self>> {
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

    pub(super) fn decode(place: &Place, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct ManifestVersion {
            format: u32,
        }
        let damaged = || {
            format!(
                "{place} is damaged: restore it from a copy of this directory, or restore a backup"
            )
        };
        let version: ManifestVersion = serde_json::from_slice(bytes).with_context(damaged)?;
        if !(FORMAT..=SPLIT_REMOTE_FORMAT).contains(&version.format) {
            bail!(
                "{place} has format {}; this program knows formats {FORMAT} to {SPLIT_REMOTE_FORMAT} only",
                version.format
            );
        }
        let cluster = version.format == CLUSTER_FORMAT;
        let text: Text = serde_json::from_slice(bytes).with_context(damaged)?;
        let Text { shards: created, seed, salt, .. } = text;
        let parts = parts_of(text.slots, text.origins).map_err(anyhow::Error::msg);
        let parts = parts.with_context(damaged)?;
        let manifest = match (text.id, text.identified, text.epoch, text.checksum) {
            (Some(id), Some(identified), Some(epoch), Some(checksum)) => {
                let id = u128::from_str_radix(&id, 16).context("its id").with_context(damaged)?;
                let is_stored = true;
                let found =
                    Self { cluster, created, parts, seed, salt, id, identified, epoch, is_stored };
                let expected = found.checksum();
                if checksum != expected {
                    let reason = anyhow!("its checksum is {checksum}, its content has {expected}");
                    return Err(reason).with_context(damaged);
                }
                found
            }
            (None, None, None, None) => {
                // Every process that opens it derives the same id.
                let id = earlier_id(created, seed, salt);
                let (identified, epoch) = (false, 0);
                let is_stored = true;
                Self { cluster, created, parts, seed, salt, id, identified, epoch, is_stored }
            }
            _ => return Err(anyhow!("a field is missing")).with_context(damaged),
        };
        if !(1..=MAX_SHARDS).contains(&manifest.created) {
            bail!("{place} is damaged: {} shards", manifest.created);
        }
        if manifest.format() != version.format {
            return Err(anyhow!("the slots of the shards")).with_context(damaged);
        }
        let divided = manifest.slots().map_or(Ok(()), |it| check_division(created, &it));
        divided.map_err(anyhow::Error::msg).with_context(damaged)?;
        Ok(manifest)
    }

    /// Creates the manifest of a new directory.
    pub(crate) fn of(layout: &Layout) -> Self {
        Self {
            cluster: false,
            created: layout.created(),
            parts: layout.division().map(|slots| slots.into_iter().map(in_place).collect()),
            seed: layout.seed,
            salt: rand::random(),
            id: rand::random(),
            identified: false,
            epoch: 0,
            is_stored: false,
        }
    }

    /// Returns the salt of the journal.
    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    pub(crate) fn layout(&self) -> Layout {
        Layout::divided(self.created, self.seed, self.slots())
    }

    /// Returns the number of shards of one server.
    pub(super) fn shards(&self) -> u16 {
        // The slots are checked.
        self.parts.as_ref().map_or(self.created, |parts| parts.len() as u16)
    }

    /// Returns the homes of the shards of one server, in their order.
    pub(crate) fn homes(&self) -> Vec<ShardHome> {
        (0..self.shards()).map(|id| self.home(id)).collect()
    }

    fn home(&self, id: u16) -> ShardHome {
        let part = self.parts.as_ref().and_then(|parts| parts.get(usize::from(id)));
        let made_by = part.and_then(|part| Some(part.origin?.epoch));
        ShardHome::with_slots(id, made_by, part.map(|part| part.slots.clone()), self.created)
    }

    /// Returns the slots of each shard, if any was split.
    fn slots(&self) -> Option<Vec<Range<u16>>> {
        let slots = |part: &ShardPart| part.slots.clone();
        self.parts.as_ref().map(|parts| parts.iter().map(slots).collect())
    }

    /// Returns which shard, and in which epoch, a shard in a bucket was split from, if it was.
    pub(crate) fn origin(&self, shard: u16) -> Option<PartOrigin> {
        self.parts.as_ref()?.get(usize::from(shard))?.origin
    }

    /// Returns this manifest once a shard was split. `origin`: of the new one, in a bucket.
    pub(super) fn split(self, plan: &SplitPlan, origin: Option<PartOrigin>) -> Self {
        let parts = ShardPart::split(self.parts.as_deref(), plan, origin);
        Self { parts: Some(parts), ..self }
    }

    /// Returns the content of the first shard's control row, if any shard was split.
    pub(super) fn division(&self) -> Option<Division> {
        Some(Division { id: self.id, parts: self.parts.clone()? })
    }

    /// Returns this manifest with the shards that the first one knows, if those differ. In a bucket that one
    /// decides: others may have written the file late.
    ///
    /// # Errors
    /// If the first shard knows fewer of them: it is an older copy.
    pub(super) fn corrected(&self, store: &Place, first: &Control) -> Result<Option<Self>> {
        if store.dir().is_some() {
            return Ok(None);
        }
        let known = first.division.as_ref().filter(|division| division.id == self.id);
        let Some(Division { parts, .. }) = known else {
            let splits = self.parts.iter().flatten().any(|part| part.origin.is_some());
            return if splits { Err(self.older(store, 0)) } else { Ok(None) };
        };
        if self.parts.as_ref() == Some(parts) {
            return Ok(None);
        }
        if parts.len() < usize::from(self.shards()) {
            return Err(self.older(store, parts.len()));
        }
        let corrected = Self { parts: Some(parts.clone()), ..self.clone() };
        let slots = corrected.slots().unwrap_or_default();
        let checked = check_division(self.created, &slots).map_err(anyhow::Error::msg);
        checked.with_context(|| format!("the shards that shard 0 in {store} names"))?;
        Ok(Some(corrected))
    }

    fn older(&self, store: &Place, known: usize) -> anyhow::Error {
        anyhow!(
            "{store} has {} shards by flagstone.json, and shard 0 knows of {known}: its files are an older copy. Put \
             the newest copy of all files in place, or restore a backup",
            self.shards()
        )
    }

    /// Returns the identity of a shard of this directory.
    pub(crate) fn identity(&self, shard: u16) -> Identity {
        // The number of shards is that at the creation.
        Identity::new(self.id, shard, &Layout::new(self.created, self.seed))
    }

    /// Notes that all shards carry the identity, and that the journal has begun `epoch`.
    pub(super) async fn note_begun(&mut self, store: &Place, epoch: u64) -> Result<()> {
        let is_first = !self.identified;
        (self.identified, self.epoch) = (true, self.epoch.max(epoch));
        if !self.is_stored {
            return Ok(());
        }
        let Some(dir) = store.dir() else { return self.replace(store).await };
        self.replace_local(dir)?;
        if is_first {
            make_private(dir);
        }
        Ok(())
    }

    /// Writes the file of a local directory in the place of the one there.
    ///
    /// # Errors
    /// If it cannot be written: then the former one is there, or this one, which may be lost.
    pub(super) fn replace_local(&self, dir: &Path) -> Result<()> {
        write(dir, &self.encode()?).with_context(|| format!("writing {}", dir.join(NAME).display()))
    }

    /// Puts the file in a bucket in the place of the one there.
    pub(super) async fn replace(&self, store: &Place) -> Result<()> {
        let place = store.join(NAME);
        let put = place.store().put(place.root(), self.encode()?.into()).await;
        put.with_context(|| format!("writing {place}"))?;
        Ok(())
    }

    /// Makes the directory of one server, in a bucket, that of a cluster. Its journal must have ended
    /// for good, and the map must be there.
    pub(crate) async fn give_to_cluster(self, store: &Place) -> Result<()> {
        Self { cluster: true, parts: None, ..self }.replace(store).await
    }

    /// Returns true if the directory belongs to a cluster.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.cluster
    }

    /// Returns the newest epoch that the journal of one server has begun, as far as it was noted; 0:
    /// none.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns this manifest with all shards identified.
    pub(crate) fn with_all_identified(self) -> Self {
        Self { identified: true, ..self }
    }

    fn format(&self) -> u32 {
        match (self.cluster, &self.parts) {
            (true, _) => CLUSTER_FORMAT,
            (false, None) => FORMAT,
            (false, Some(parts)) if parts.iter().any(|part| part.origin.is_some()) => {
                SPLIT_REMOTE_FORMAT
            }
            (false, Some(_)) => SPLIT_FORMAT,
        }
    }

    fn checksum(&self) -> String {
        let mut bytes = self.format().to_be_bytes().to_vec();
        bytes.extend(self.created.to_be_bytes());
        bytes.extend(self.seed.to_be_bytes());
        bytes.extend(self.salt.to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        bytes.push(u8::from(self.identified));
        bytes.extend(self.epoch.to_be_bytes());
        for ShardPart { slots, origin } in self.parts.iter().flatten() {
            bytes.extend(slots.start.to_be_bytes());
            bytes.extend(slots.end.to_be_bytes());
            if let Some(PartOrigin { shard, epoch }) = origin {
                bytes.extend(shard.to_be_bytes());
                bytes.extend(epoch.to_be_bytes());
            }
        }
        format!("{:08x}", crc32c::crc32c(&bytes))
    }

    fn origins(&self) -> Option<Vec<Option<(u16, u64)>>> {
        let origin = |part: &ShardPart| part.origin.map(|from| (from.shard, from.epoch));
        let origins = self.parts.as_ref().map(|parts| parts.iter().map(origin).collect::<Vec<_>>());
        origins.filter(|origins| origins.iter().any(Option::is_some))
    }

    async fn create(options: &OpenOptions, cluster: bool) -> Result<Self> {
        let store = &options.store;
        if let Some(name) = names(store).await?.iter().find(|name| is_of_a_directory(name)) {
            bail!("{store} holds {name} but no {NAME}: it is not a whole data directory");
        }
        let shards = options.shards.unwrap_or(options.default_shards).clamp(1, MAX_SHARDS);
        let manifest = Self { cluster, ..Self::of(&Layout::new(shards, rand::random())) };
        manifest.store(store).await
    }

    /// Returns this manifest with another number of shards and a new id.
    pub(super) fn with_shards(&self, shards: u16) -> Result<Self> {
        if !(1..=MAX_SHARDS).contains(&shards) {
            bail!("{shards} shards: there may be 1 to {MAX_SHARDS}");
        }
        Ok(Self::of(&Layout::new(shards, self.seed)))
    }

    /// Writes the file: from then on the place is a data directory. If another process was faster,
    /// its file counts.
    pub(crate) async fn store(self, store: &Place) -> Result<Self> {
        let manifest = Self { is_stored: true, ..self };
        let text = manifest.encode()?;
        let Some(dir) = store.dir() else { return Self::put(store, manifest, text).await };
        write(dir, &text).with_context(|| format!("creating {}", store.join(NAME)))?;
        make_private(dir);
        Ok(manifest)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let text = Text {
            format: self.format(),
            shards: self.created,
            slots: self.slots().map(|slots| slots.iter().map(bounds).collect()),
            origins: self.origins(),
            seed: self.seed,
            salt: self.salt,
            id: Some(format!("{:032x}", self.id)),
            identified: Some(self.identified),
            epoch: Some(self.epoch),
            checksum: Some(self.checksum()),
        };
        let mut text = serde_json::to_vec_pretty(&text)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Puts the file; if another process was faster, returns that one's.
    async fn put(store: &Place, manifest: Self, text: Vec<u8>) -> Result<Self> {
        let place = store.join(NAME);
        let payload = PutPayload::from(text);
        match place.store().put_opts(place.root(), payload, PutMode::Create.into()).await {
            Ok(_) => Ok(manifest),
            // A retry that finds its own earlier write comes here too.
            Err(object_store::Error::AlreadyExists { .. }) => {
                let found = Self::read_any(store).await?;
                let found = found.with_context(|| format!("{place} was deleted"))?;
                if found.cluster != manifest.cluster {
                    bail!("{store} was made by another server at the same time: start again");
                }
                Ok(found)
            }
            Err(error) => Err(error).with_context(|| format!("creating {place}")),
        }
    }
}

/// Returns true if the place has a data directory.
pub async fn is_data_directory(store: &Place) -> Result<bool> {
    Ok(Manifest::read(store).await?.is_some())
}

/// Returns true if the place has the data directory of one server; a new one may be a cluster's.
#[cfg(test)]
pub(crate) async fn is_of_one_server(store: &Place) -> Result<bool> {
    Ok(Manifest::read_any(store).await?.is_some_and(|manifest| !manifest.cluster))
}

/// Returns a shard in the directory of its number.
fn in_place(slots: Range<u16>) -> ShardPart {
    ShardPart { slots, origin: None }
}

/// Returns the shards by their first and last slots and origins.
fn parts_of(
    slots: Option<Vec<(u16, u16)>>,
    origins: Option<Vec<Option<(u16, u64)>>>,
) -> Result<Option<Vec<ShardPart>>, &'static str> {
    let Some(slots) = slots else {
        return if origins.is_some() { Err("the slots of the shards") } else { Ok(None) };
    };
    let origins = origins.unwrap_or_else(|| vec![None; slots.len()]);
    if origins.len() != slots.len() {
        return Err("the origins of the shards");
    }
    let part = |(slots, origin): (_, Option<(u16, u64)>)| ShardPart {
        slots: range(slots),
        origin: origin.map(|(shard, epoch)| PartOrigin { shard, epoch }),
    };
    Ok(Some(slots.into_iter().zip(origins).map(part).collect()))
}

/// Returns slots by their first and last one.
fn range((first, last): (u16, u16)) -> Range<u16> {
    first..last.saturating_add(1)
}

/// Returns the first and the last one of some slots.
fn bounds(slots: &Range<u16>) -> (u16, u16) {
    (slots.start, slots.end.saturating_sub(1))
}

/// Returns the id of a directory whose `flagstone.json` has none.
fn earlier_id(shards: u16, seed: u64, salt: u32) -> u128 {
    let fields = [&shards.to_be_bytes()[..], &seed.to_be_bytes(), &salt.to_be_bytes()];
    xxh3_128(&fields.concat())
}

pub(super) fn is_of_a_directory(name: &str) -> bool {
    matches!(name, "journal" | "lives" | "cluster" | UNFINISHED) || name.starts_with("shard-")
}

/// Returns the names right below a place.
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

/// Creates a directory that only its owner may read, if it does not exist.
pub fn create_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(PRIVATE_DIR).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        created => created.map_err(|error| of_link(error, dir)),
    }
}

/// Restricts a directory that may have existed before to its owner. Some file systems have no
/// permissions.
fn make_private(dir: &Path) {
    if let Err(error) = fs::set_permissions(dir, Permissions::from_mode(PRIVATE_DIR)) {
        tracing::warn!(%error, dir = %dir.display(), "others may be able to read the data directory");
    }
}

/// Writes the file durably, whole or not at all. It is private, as knowing the seed allows to make
/// keys collide.
fn write(dir: &Path, text: &[u8]) -> io::Result<()> {
    let path = dir.join(NAME);
    let temporary = dir.join(TEMPORARY);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file =
        File::options().write(true).create_new(true).mode(PRIVATE_FILE).open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()
}
