//! Files that a branch in a bucket shares with its parent: it reads them where they are, under
//! names of its own, as if they were copies.
//!
//! `shared.json` lists them. A SlateDB checkpoint in each of the parent's engines keeps the files
//! for the branch, until the branch needs none of them.

use super::{Place, admin};
use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use chrono::DateTime;
use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// File name in the root of a branch.
pub(crate) const SHARED: &str = "shared.json";

const FORMAT: u32 = 1;

/// Contents of `shared.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shares {
    format: u32,
    /// Shared files by the engine's path in the branch.
    engines: BTreeMap<String, Share>,
}

/// Files that an engine of a branch shares.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The path of the parent's engine in the bucket.
    pub(crate) engine: String,
    /// SlateDB's id of the checkpoint in it that keeps the files.
    pub(crate) checkpoint: String,
    /// Sizes in bytes by names, which are the same in both engines.
    pub(crate) files: BTreeMap<String, u64>,
}

impl Share {
    /// Deletes the checkpoint that keeps the files in the parent's engine.
    pub(crate) async fn release(&self, store: Arc<dyn ObjectStore>) -> Result<()> {
        let parent = admin(store, &self.engine);
        // If the parent does not exist any more, nothing keeps its files.
        if parent.read_manifest(None).await?.is_some() {
            let id = self.checkpoint.parse().context("the id of a checkpoint")?;
            parent.delete_checkpoint(id).await?;
        }
        Ok(())
    }
}

impl Shares {
    pub(crate) fn new(engines: BTreeMap<String, Share>) -> Self {
        Self { format: FORMAT, engines }
    }

    /// Reads the shares of a place; `None`: it is no branch, or does not need its parent any more.
    pub(crate) async fn read(place: &Place) -> Result<Option<Self>> {
        let file = place.join(SHARED);
        let reading = || format!("reading {file}");
        let bytes = match file.store().get(file.root()).await {
            Ok(found) => found.bytes().await.with_context(reading)?,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error).with_context(reading),
        };
        crate::checked::verify(&bytes).with_context(reading)?;
        let shares: Self = serde_json::from_slice(&bytes).with_context(reading)?;
        if shares.format != FORMAT {
            bail!("{file} has the format {}, this version reads {FORMAT}", shares.format);
        }
        Ok(Some(shares.seen_from(place.root())))
    }

    /// Returns the list as it is to be read at a place. An engine that shares files with another one of its data
    /// directory may have been moved, or copied, together with it: then both are under another path.
    fn seen_from(self, root: &Path) -> Self {
        let moved = |own: &str, share: &Share| {
            let (before, inner) = split_dir(own)?;
            let (now, present) = split_dir(root.as_ref())?;
            let rest = share.engine.strip_prefix(before)?;
            let is_moved = inner == present && before != now;
            is_moved.then(|| Share { engine: format!("{now}{rest}"), ..share.clone() })
        };
        let only = (self.engines.len() == 1).then(|| self.engines.first_key_value()).flatten();
        let Some(share) = only.and_then(|(own, share)| moved(own, share)) else { return self };
        Self { engines: BTreeMap::from([(root.to_string(), share)]), ..self }
    }

    pub(crate) async fn write(&self, place: &Place) -> Result<()> {
        self.put(place, PutMode::Overwrite).await
    }

    /// Writes the first list of a place. It replaces none, however late it comes: another try may have made
    /// the place meanwhile, with other files.
    pub(crate) async fn create(&self, place: &Place) -> Result<()> {
        self.put(place, PutMode::Create).await
    }

    async fn put(&self, place: &Place, mode: PutMode) -> Result<()> {
        let file = place.join(SHARED);
        let bytes = crate::checked::to_vec(self)?;
        let put = file.store().put_opts(file.root(), bytes.into(), mode.into()).await;
        put.with_context(|| format!("writing {file}"))?;
        Ok(())
    }

    /// Returns the files that engines share.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &Share> {
        self.engines.values()
    }

    /// Returns true if a checkpoint of the parent keeps files for this branch.
    pub(crate) fn has(&self, checkpoint: &str) -> bool {
        self.engines.values().any(|share| share.checkpoint == checkpoint)
    }
}

/// Splits the path of an engine into that of its data directory, with a slash at its end or empty, and the engine's
/// place there.
fn split_dir(engine: &str) -> Option<(&str, &str)> {
    let (shard, _) = engine.rsplit_once('/')?;
    let at = shard.rfind('/').map_or(0, |slash| slash + 1);
    Some(engine.split_at(at))
}

/// Returns the place of an engine whose path another one of the same data directory has noted, if the directory has
/// been moved since, or copied.
pub(crate) fn beside(engine: &Path, noted: &str) -> Option<Path> {
    let (now, _) = split_dir(engine.as_ref())?;
    let (_, place) = split_dir(noted)?;
    Path::parse(format!("{now}{place}")).ok()
}

/// A branch's store.
#[derive(Debug)]
pub(super) struct SharedStore {
    inner: Arc<dyn ObjectStore>,
    /// Store of the parent's files: the same one, except for a place in memory.
    parent: Arc<dyn ObjectStore>,
    /// The root of the place that has the list.
    root: Path,
    files: Arc<SharedFiles>,
    shares: tokio::sync::Mutex<Shares>,
}

/// Locations and sizes of the files that are still needed, by their paths in the branch.
#[derive(Debug, Default)]
struct SharedFiles(Mutex<BTreeMap<Path, (Path, u64)>>);

impl SharedFiles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Path, (Path, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a file up; returns true if it was shared.
    fn give_up(&self, location: &Path) -> bool {
        self.lock().remove(location).is_some()
    }

    /// Returns the files below a prefix.
    fn below(&self, prefix: Option<&Path>) -> Vec<ObjectMeta> {
        let is_below = |at: &Path| {
            prefix.is_none_or(|prefix| {
                at != prefix
                    && at.prefix_match(prefix).is_some_and(|mut rest| rest.next().is_some())
            })
        };
        let files = self.lock();
        let found = files.iter().filter(|(at, _)| is_below(at));
        found.map(|(at, (_, size))| meta(at.clone(), *size)).collect()
    }
}

fn meta(location: Path, size: u64) -> ObjectMeta {
    // Shared files are older than the branch.
    let last_modified = DateTime::UNIX_EPOCH;
    ObjectMeta { location, last_modified, size, e_tag: None, version: None }
}

impl SharedStore {
    /// Returns the store of the branch at `root` in `inner`.
    pub(super) fn new(inner: Arc<dyn ObjectStore>, root: Path, shares: Shares) -> Self {
        let mut files = BTreeMap::new();
        for (own, share) in &shares.engines {
            for (name, size) in &share.files {
                let at = |engine: &str| Path::from(format!("{engine}/{name}"));
                files.insert(at(own), (at(&share.engine), *size));
            }
        }
        let this = Self::seeing(inner.clone(), inner, files, shares);
        Self { root, ..this }
    }

    /// Creates a store in memory in which files of another one are seen.
    pub(super) fn in_memory(
        parent: Arc<dyn ObjectStore>,
        files: BTreeMap<Path, (Path, u64)>,
    ) -> Self {
        Self::seeing(Arc::new(InMemory::new()), parent, files, Shares::new(BTreeMap::new()))
    }

    fn seeing(
        inner: Arc<dyn ObjectStore>,
        parent: Arc<dyn ObjectStore>,
        files: BTreeMap<Path, (Path, u64)>,
        shares: Shares,
    ) -> Self {
        let files = Arc::new(SharedFiles(Mutex::new(files)));
        let (root, shares) = (Path::default(), tokio::sync::Mutex::new(shares));
        Self { inner, parent, root, files, shares }
    }

    /// Returns true if the place at this root has the list.
    pub(super) fn is_of(&self, root: &Path) -> bool {
        self.root == *root
    }

    /// Returns true if a file below a path is shared.
    pub(super) fn has_below(&self, path: &Path) -> bool {
        !self.files.below(Some(path)).is_empty()
    }

    /// Returns the path of a file in the parent, if it is shared.
    pub(super) fn of_parent(&self, location: &Path) -> Option<Path> {
        self.files.lock().get(location).map(|(there, _)| there.clone())
    }

    /// Returns the store and path of a file.
    fn resolve(&self, location: &Path) -> (&dyn ObjectStore, Path) {
        match self.of_parent(location) {
            Some(there) => (&*self.parent, there),
            None => (&*self.inner, location.clone()),
        }
    }

    /// Releases the parent's engines of which no file is needed any more, and returns their number.
    pub(super) async fn release(&self, place: &Place) -> Result<usize> {
        let mut shares = self.shares.lock().await;
        let is_needed = |own: &str| !self.files.below(Some(&Path::from(own))).is_empty();
        let owns = shares.engines.keys().filter(|own| !is_needed(own));
        let owns: Vec<String> = owns.cloned().collect();
        for own in &owns {
            let Some(share) = shares.engines.get(own) else { continue };
            share.release(self.inner.clone()).await?;
            shares.engines.remove(own);
        }
        if !owns.is_empty() {
            shares.write(place).await?;
        }
        Ok(owns.len())
    }
}

impl fmt::Display for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for SharedStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let (store, there) = self.resolve(location);
        let mut found = store.get_opts(&there, options).await?;
        found.meta.location = location.clone();
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let (files, given_up) = (self.files.clone(), Arc::<Mutex<Vec<Path>>>::default());
        let (noted, told) = (given_up.clone(), given_up);
        let lock = |list: &Arc<Mutex<Vec<Path>>>| {
            std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let own = locations.filter(move |location| {
            let shared = location.as_ref().ok().filter(|path| files.give_up(path));
            if let Some(path) = shared {
                noted.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
            }
            ready(shared.is_none())
        });
        let deleted = self.inner.delete_stream(own.boxed());
        let rest = stream::once(async move { stream::iter(lock(&told).into_iter().map(Ok)) });
        deleted.chain(rest.flatten()).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let shared = stream::iter(self.files.below(prefix).into_iter().map(Ok));
        self.inner.list(prefix).chain(shared).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let mut shared = self.files.below(prefix);
        shared.retain(|meta| meta.location > *offset);
        let own = self.inner.list_with_offset(prefix, offset);
        own.chain(stream::iter(shared.into_iter().map(Ok))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        let mut listed = self.inner.list_with_delimiter(prefix).await?;
        let root = prefix.cloned().unwrap_or_default();
        for meta in self.files.below(prefix) {
            let location = meta.location.clone();
            let Some(mut parts) = location.prefix_match(&root) else { continue };
            match (parts.next(), parts.next()) {
                (Some(_), None) => listed.objects.push(meta),
                (Some(first), Some(_)) => {
                    let dir = root.clone().join(first);
                    if !listed.common_prefixes.contains(&dir) {
                        listed.common_prefixes.push(dir);
                    }
                }
                (None, _) => {}
            }
        }
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        let (store, from) = self.resolve(from);
        store.copy_opts(&from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(own: &str, engine: &str) -> Shares {
        let share = Share {
            engine: engine.to_owned(),
            checkpoint: "1".to_owned(),
            files: BTreeMap::from([("compacted/a.sst".to_owned(), 7)]),
        };
        Shares::new(BTreeMap::from([(own.to_owned(), share)]))
    }

    fn seen(shares: Shares, from: &str) -> (String, String) {
        let (own, share) = shares.seen_from(&Path::from(from)).engines.pop_first().unwrap();
        (own, share.engine)
    }

    #[test]
    fn engines_that_were_moved_together_find_each_other() {
        let (own, other) = ("a/b/shard-2-1/db", "a/b/shard-0/db");
        let unchanged = (own.to_owned(), other.to_owned());
        assert_eq!(seen(list(own, other), own), unchanged);
        let moved = seen(list(own, other), "x/shard-2-1/db");
        assert_eq!(moved, ("x/shard-2-1/db".to_owned(), "x/shard-0/db".to_owned()));
        let root = seen(list(own, other), "shard-2-1/db");
        assert_eq!(root, ("shard-2-1/db".to_owned(), "shard-0/db".to_owned()));
        let back = seen(list("shard-2-1/db", "shard-0/db"), own);
        assert_eq!(back, unchanged);
        // That of a branch, and that of an engine whose parent is elsewhere.
        assert_eq!(seen(list(own, "p/shard-0/db"), "a/b").1, "p/shard-0/db");
        assert_eq!(seen(list(own, "p/shard-0/db"), "x/shard-2-1/db").1, "p/shard-0/db");
    }

    #[test]
    fn a_shard_is_beside_the_one_that_it_was_split_from() {
        let engine = Path::from("x/y/shard-0/db");
        assert_eq!(beside(&engine, "a/shard-2-1/db"), Some(Path::from("x/y/shard-2-1/db")));
        assert_eq!(beside(&Path::from("shard-0/db"), "a/s/db"), Some(Path::from("s/db")));
    }
}
