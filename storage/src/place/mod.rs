//! Places of data: each is a root in an object store, named by a URL.

mod anchored;
mod changes;
mod claimed;
mod cloud;
mod files;
mod guarded;
mod home;
mod metered;
mod preflight;
mod real;
mod requests;
mod shared;
#[cfg(test)]
pub(crate) mod sim;
pub(crate) mod stamp;
#[cfg(test)]
mod tests;

pub(crate) use claimed::WriteClaim;
pub(crate) use files::{names, put, read, remove_dir, sizes};
pub use files::{remove_tree, tells_of_full_disk};
pub(crate) use guarded::{FileFault, Guarded, Writes};
pub(crate) use home::HomeDir;
pub use metered::Requests;
pub(crate) use preflight::cause;
pub(crate) use real::real_path;
pub(crate) use requests::{AskLimits, StoreAway, ask, ask_pages};
pub(crate) use shared::{SHARED, Share, Shares, beside};

use anchored::Anchored;
use anyhow::{Context, Result, bail};
use claimed::Claimed;
use metered::Metered;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use real::without_parents;
use shared::SharedStore;
use slatedb::admin::{Admin, AdminBuilder};
use stamp::{Stamps, Verified};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A root in an object store: a directory, or a prefix in a bucket. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    /// Root path in the store; the store of a local directory begins at `/`.
    root: Path,
    /// The absolute path, if the place is a local directory.
    dir: Option<PathBuf>,
    /// URL without credentials.
    url: String,
    /// Counters of requests to a store that is not a local directory.
    requests: Arc<Requests>,
    /// Files shared with the parent of a branch; the store finds them.
    shared: Option<Arc<SharedStore>>,
}

impl Place {
    /// Parses a URL: `file:///path` or a path, `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`, `bucket+file:///path`, a directory used like a bucket, or `memory:`, a
    /// new store each time. Makes no request and creates nothing.
    ///
    /// # Errors
    /// If the URL is none of these, or if the environment has no credentials for its store.
    pub fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = split_scheme(url) else {
            return Self::local(url);
        };
        if let Some(mark) = rest.find(['?', '#', '@']).filter(|_| !scheme.ends_with("file")) {
            bail!(
                "{scheme}: a URL of a store has no `{}`: credentials and options come from the \
                 environment",
                &rest[mark..=mark]
            );
        }
        match scheme {
            "file" => Self::local(file_path(url, rest)?),
            "bucket+file" => Self::shared_directory(file_path(url, rest)?),
            "memory" => {
                let root = Path::parse(rest).with_context(|| url.to_owned())?;
                Ok(Self::within(Arc::new(InMemory::new()), root, url))
            }
            "s3" | "gs" | "az" => {
                let (bucket, prefix) = bucket_and_prefix(url, rest)?;
                let root = Path::parse(prefix).with_context(|| url.to_owned())?;
                let store = match scheme {
                    "s3" => cloud::s3(bucket),
                    "gs" => cloud::gcs(bucket),
                    _ => cloud::azure(bucket),
                };
                let url = format!("{scheme}://{bucket}/{root}");
                let url = url.trim_end_matches('/').to_owned();
                Ok(Self::within(store.with_context(|| url.clone())?, root, url))
            }
            _ => bail!(
                "{url}: a store is a directory, file:///path, s3://bucket/prefix, \
                 gs://bucket/prefix, az://container/prefix or bucket+file:///path"
            ),
        }
    }

    /// Creates the place of a local directory, which need not exist. Writes to it are durable.
    pub fn local(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        if dir.as_os_str().is_empty() {
            bail!("an empty path names no directory");
        }
        let shown = dir.display().to_string();
        let dir = without_parents(&dir).with_context(|| shown.clone())?;
        let root = Path::from_absolute_path(&dir).with_context(|| shown.clone())?;
        let files = Arc::new(Verified(LocalFileSystem::new().with_fsync(true), Stamps::Read));
        let store = Arc::new(Guarded::new(files, true));
        let requests = Arc::default();
        Ok(Self { store, root, dir: Some(dir), url: shown, requests, shared: None })
    }

    /// Creates the place of a directory that is used like a bucket: several machines may have it, one
    /// of them takes the data over from another, and nothing is locked. Writes to it are durable.
    fn shared_directory(dir: &str) -> Result<Self> {
        let root = Path::from_absolute_path(dir).with_context(|| dir.to_owned())?;
        // A bucket has no directories.
        let files = LocalFileSystem::new().with_fsync(true).with_automatic_cleanup(true);
        let files = Arc::new(Anchored::new(files, dir));
        Ok(Self::within(files, root, format!("bucket+file://{dir}")))
    }

    /// Creates the place of a prefix in a store that is open already, shown as `url`.
    pub fn within(store: Arc<dyn ObjectStore>, root: Path, url: impl Into<String>) -> Self {
        let requests = Arc::<Requests>::default();
        let inner = Arc::new(Verified(store, Stamps::Read));
        let store = Arc::new(Metered { inner, requests: requests.clone() });
        Self { store, root, dir: None, url: url.into(), requests, shared: None }
    }

    /// Returns this place with the files that it shares: if it is a branch in a bucket, with its parent, and if
    /// it is the engine of a shard that was split there, with that one's. That shard may be one of a branch.
    pub(crate) async fn with_shared(&self) -> Result<Self> {
        let is_known = self.shared.as_ref().is_some_and(|shared| shared.is_of(&self.root));
        if self.dir.is_some() || is_known {
            return Ok(self.clone());
        }
        let Some(shares) = Shares::read(self).await? else { return Ok(self.clone()) };
        let shared = Arc::new(SharedStore::new(self.store.clone(), self.root.clone(), shares));
        Ok(Self { store: shared.clone(), shared: Some(shared), ..self.clone() })
    }

    /// Returns true if a file belongs to the parent.
    pub(crate) fn shares(&self, location: &Path) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.of_parent(location).is_some())
    }

    /// Returns true if files here belong to the parent.
    pub(crate) fn shares_any(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.has_below(&self.root))
    }

    /// Returns where a file of this place is in its bucket, if it shares files with another place there.
    pub(crate) fn location(&self, name: &str) -> Path {
        let own = self.path(name);
        let shared = self.shared.as_ref().filter(|shared| shared.is_of(&self.root));
        shared.and_then(|shared| shared.of_parent(&own)).unwrap_or(own)
    }

    /// Releases the parent's engines of which this place needs no file any more, and returns their
    /// number.
    pub async fn release(&self) -> Result<usize> {
        let shared = self.shared.as_ref().filter(|shared| shared.is_of(&self.root));
        let Some(shared) = shared else { return Ok(0) };
        shared.release(self).await.with_context(|| format!("releasing what {self} has shared"))
    }

    /// Creates a place in memory that shows files of this one under other paths, with their sizes.
    /// Writes to it change nothing here.
    pub(crate) fn in_memory(&self, files: BTreeMap<Path, (Path, u64)>) -> Self {
        let store = Arc::new(SharedStore::in_memory(self.store.clone(), files));
        let url = format!("{}, seen in memory", self.url);
        Self { store, root: Path::default(), dir: None, url, shared: None, ..self.clone() }
    }

    /// Returns this place as seen through another store that begins there. Its requests are not
    /// counted.
    #[must_use]
    pub fn through(&self, store: Arc<dyn ObjectStore>) -> Self {
        Self { store, root: Path::default(), ..self.clone() }
    }

    /// Returns this place as an engine writes to it: with stamps of its small files.
    #[must_use]
    pub(crate) fn stamping(&self) -> Self {
        Self { store: Arc::new(Verified(self.store.clone(), Stamps::Written)), ..self.clone() }
    }

    /// Returns this place as it is written to by who holds a claim.
    pub(crate) fn claimed(&self, claim: Arc<WriteClaim>) -> Self {
        Self { store: Arc::new(Claimed { inner: self.store.clone(), claim }), ..self.clone() }
    }

    /// Returns the store. Paths in it begin with [`root`](Self::root).
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        self.store.clone()
    }

    /// Returns the counters of requests to a store that is not a local directory.
    pub fn requests(&self) -> &Arc<Requests> {
        &self.requests
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the directory, if it is local.
    pub fn dir(&self) -> Option<&std::path::Path> {
        self.dir.as_deref()
    }

    /// Returns the path of an object or prefix here; `name` may have several parts.
    pub fn path(&self, name: &str) -> Path {
        let parts = name.split('/').filter(|part| !part.is_empty());
        parts.fold(self.root.clone(), Path::join)
    }

    /// Returns the place beside this one whose name has `suffix` appended.
    #[must_use]
    pub fn beside(&self, suffix: &str) -> Self {
        let dir = self.dir.as_ref().map(|dir| {
            let mut name = dir.file_name().unwrap_or_default().to_owned();
            name.push(suffix);
            dir.with_file_name(name)
        });
        let root = Path::parse(format!("{}{suffix}", self.root));
        Self {
            // It is as valid as the parts that it is made of.
            root: root.unwrap_or_else(|_| self.root.clone()),
            dir,
            url: format!("{}{suffix}", self.url.trim_end_matches('/')),
            ..self.clone()
        }
    }

    /// Returns true if the store itself can copy an object from here to there.
    pub fn is_in_store_of(&self, other: &Self) -> bool {
        let is_same_bucket = || self.bucket().is_some_and(|bucket| Some(bucket) == other.bucket());
        self.dir.is_none() && (Arc::ptr_eq(&self.requests, &other.requests) || is_same_bucket())
    }

    /// Returns scheme and bucket of a place in a cloud.
    fn bucket(&self) -> Option<&str> {
        let (scheme, rest) = self.url.split_once("://")?;
        let end = rest.find('/').unwrap_or(rest.len());
        Some(&self.url[..scheme.len() + 3 + end])
    }

    /// Returns the place below this one; `name` may have several parts.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        Self {
            store: self.store.clone(),
            root: self.path(name),
            dir: self.dir.as_ref().map(|dir| dir.join(name)),
            url: format!("{}/{name}", self.url.trim_end_matches('/')),
            requests: self.requests.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

/// Splits a URL into its scheme and the rest; `None` if it is a path.
fn split_scheme(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme =
        scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    (is_scheme && (scheme == "memory" || rest.starts_with('/'))).then_some((scheme, rest))
}

/// Returns the path in a `file:` URL.
fn file_path<'a>(url: &str, rest: &'a str) -> Result<&'a str> {
    let path = rest.strip_prefix("//localhost").or_else(|| rest.strip_prefix("//"));
    let path = path.unwrap_or(rest);
    if !path.starts_with('/') {
        let scheme = split_scheme(url).map_or("file", |(scheme, _)| scheme);
        bail!("{url}: write {scheme}:///path, with an absolute path and without a host");
    }
    Ok(path)
}

fn bucket_and_prefix<'a>(url: &str, rest: &'a str) -> Result<(&'a str, &'a str)> {
    let rest = rest.strip_prefix("//").unwrap_or_default();
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        bail!("{url} names no bucket: write s3://bucket/prefix");
    }
    Ok((bucket, prefix))
}

/// Returns the administration of an engine by its files; the engine may be open elsewhere.
pub(crate) fn admin(store: Arc<dyn ObjectStore>, path: &str) -> Admin {
    AdminBuilder::new(path, store).build()
}
